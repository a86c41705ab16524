//! The kernels over indices, orders and running sums.

use super::{FLOATS, NONE, kernels};
use crate::element::Element::{BF16, F16, F32, I32};
use crate::kernel::Dtypes;
use crate::source;

/// Whatever can be moved or compared.
const WORDS: &[Dtypes] = &[&[F32], &[BF16], &[F16], &[I32]];

kernels! { CUMSUM, source::CUMSUM;
    cumsum (reverse: value(u32), x: read(0), y: write(0), outer: value(u32), n: value(u32), inner: value(u32)) for WORDS;
}

kernels! { INDEXED_WORDS, source::INDEXED;
    select_rows (x: read(0), ids: read(i32), y: write(0), outer: value(u32), n: value(u32), n_ids: value(u32),
        inner: value(u32)) for WORDS;
    gather (order: value(walk), ids: read(i32), x: read(0), y: write(0), step: value(u32), n: value(u64)) for WORDS;
    write_places (order: value(walk), ids: read(i32), x: read(0), x_step: value(u32), y: update(0), step: value(u32),
        n: value(u64)) for WORDS;
    write_rows (x: read(0), order: read(i32), starts: read(i32), ids: read(i32), y: update(0), n_ids: value(u32),
        inner: value(u32)) for WORDS;
    take_rows (dx: update(0), order: read(i32), starts: read(i32), ids: read(i32), d_source: write(0),
        n_ids: value(u32)) for WORDS;
}

kernels! { INDEXED_FLOATS, source::INDEXED;
    add_rows (x: read(0), order: read(i32), starts: read(i32), ids: read(i32), y: update(f32), outer: value(u32),
        n: value(u32), n_rows: value(u32), n_ids: value(u32), inner: value(u32)) for FLOATS;
    places (order: value(walk), ids: read(i32), out: write(i32), step: value(u32), n: value(u64)) for NONE;
    add_rows_ints (x: read(i32), order: read(i32), starts: read(i32), ids: read(i32), y: update(i32),
        outer: value(u32), n: value(u32), n_rows: value(u32), n_ids: value(u32), inner: value(u32)) for NONE;
    first_outside (ids: read(i32), bound: value(u32), positions: write(u32), n: value(u32)) for NONE;
    targets (labels: read(i32), ignored: value(i32), mark: value(i32), bound: value(u32), out: write(i32),
        positions: write(u32), n: value(u32)) for NONE;
}

kernels! { ORDER, source::ORDER;
    order_count (ids: read(i32), order: read(i32), counts: write(u32), shift: value(u32), n: value(u32)) for NONE;
    order_scan (counts: update(u32), n: value(u32)) for NONE;
    order_place (ids: read(i32), order: read(i32), counts: read(u32), to: write(i32), shift: value(u32), n: value(u32))
        for NONE;
    group_count (ids: read(i32), order: read(i32), counts: write(u32), n: value(u32)) for NONE;
    group_place (ids: read(i32), order: read(i32), counts: read(u32), starts: write(i32), unique: write(i32),
        n: value(u32)) for NONE;
}

kernels! { SORT, source::SORT;
    sort_rows (rows: write(i32), n: value(u32), inner: value(u32), n_elems: value(u64)) for NONE;
    sort_places (order: read(i32), places: write(i32), n: value(u32), k: value(u32), inner: value(u32),
        n_places: value(u64)) for NONE;
}

kernels! { SORT_KEYS, source::SORT;
    sort_keys (descending: value(u32), x: read(0), keys: write(i32), n: value(u64)) for WORDS;
}

kernels! { TOP_K, source::TOP_K;
    top_k (descending: value(u32), x: read(0), values: write(0), places: write(i32), rows: value(u32), n: value(u32),
        k: value(u32)) for WORDS;
}
