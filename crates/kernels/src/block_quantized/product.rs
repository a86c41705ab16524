//! y = x·Wᵀ: panels of W are multiplied with a few rows of x at a time.

use super::activations::{self, Rows};
use super::form::{HALVES, Kind, LANES, RUN, VECTOR, of_kind};
use super::machine::{Machine, Portable};
use super::packed::BlockLayout;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Vnni};
use crate::Cpu;
use crate::dtype::Float;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::isa::{Isa, Path};
use crate::pieces::{Columns, task_rows};

/// Panels in a task.
const PANELS: usize = 4;

/// Bytes of scratch memory for [`product`] with `m` rows.
pub fn product_scratch_bytes(m: usize, layout: BlockLayout) -> usize {
    activations::scratch_bytes(layout.form(), m, layout.cols())
}

instances! {
    /// y `[m, rows]` = x `[m, cols]` · Wᵀ, with x quantized to 8 bits. A row has the same bits whatever `m` is, and on every
    /// CPU.
    ///
    /// # Panics
    /// If the lengths do not fit, or `scratch` is smaller than [`product_scratch_bytes`].
    pub fn product[T: Float](
        cpu: &Cpu,
        x: &[T],
        layout: BlockLayout,
        words: &[i32],
        y: &mut [T],
        scratch: &mut [u8],
    ) {
        let (k, n) = (layout.cols(), layout.rows());
        let m = x.len() / k;
        assert!(x.len() == m * k && y.len() == m * n, "a product with a weight in blocks: {layout:?}");
        assert!(words.len() == layout.n_words(), "a product with a weight in blocks: its words");
        let needed = product_scratch_bytes(m, layout);
        assert!(scratch.len() >= needed, "a product with a weight in blocks: {needed} bytes of scratch");
        let rows = activations::quantize(cpu, layout.form(), x, k, scratch);
        let (run, most) = kernel(cpu.isa, layout);
        let (out, n_panels) = (Columns::of(y), layout.n_panels());
        cpu.par.for_each(n_panels.div_ceil(PANELS), |task| {
            let mut sums = [[0f32; LANES]; MOST_ROWS];
            for panel in task * PANELS..((task + 1) * PANELS).min(n_panels) {
                let (first, n_cols) = (panel * LANES, LANES.min(n - panel * LANES));
                for row in (0..m).step_by(most) {
                    let sums = &mut sums[..most.min(m - row)];
                    // SAFETY: the lengths were checked, and the kernel is one for this CPU.
                    unsafe { run(&Operands { layout, words, rows, k }, panel, row, sums) };
                    for (sums, row) in sums.iter().zip(row..) {
                        // SAFETY: y has this row with these columns, which no other task touches.
                        let y = unsafe { std::slice::from_raw_parts_mut(out.at(row * n + first), n_cols) };
                        y.iter_mut().zip(sums).for_each(|(y, sum)| *y = T::from_f32(*sum));
                    }
                }
            }
        });
    }
}

instances! {
    /// `y[row] = W[ids[row]]`, dequantized.
    ///
    /// # Errors
    /// An id outside `0..rows`; then nothing was written.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn embed[T: Float](cpu: &Cpu, layout: BlockLayout, words: &[i32], ids: &[i32], y: &mut [T]) -> Result<()> {
        let dim = layout.cols();
        assert!(words.len() == layout.n_words() && y.len() == ids.len() * dim, "rows of a weight in blocks");
        let outside = |id: &i32| usize::try_from(*id).map_or(true, |id| id >= layout.rows());
        if let Some(position) = ids.iter().position(outside) {
            let index = i64::from(ids[position]);
            return Err(Error::Index { op: "embed_blocks", index, position, bound: layout.rows() });
        }
        let task = task_rows(dim);
        cpu.par.chunks_mut(y, task * dim, |i, y| {
            for (y, &id) in y.chunks_exact_mut(dim).zip(&ids[i * task..]) {
                layout.row(words, id as usize, |at, value| y[at] = T::from_f32(value));
            }
        });
        Ok(())
    }
}

/// What a kernel works on.
struct Operands<'a> {
    layout: BlockLayout,
    words: &'a [i32],
    rows: Rows<'a>,
    /// The columns of the rows.
    k: usize,
}

/// Writes the products of a panel with the rows from `row` on, as many as `sums` has.
type Kernel = unsafe fn(&Operands<'_>, panel: usize, row: usize, sums: &mut [[f32; LANES]]);

/// The most rows of any machine.
const MOST_ROWS: usize = 8;

/// The kernel for a CPU, and the rows that it takes at a time.
fn kernel(isa: Isa, layout: BlockLayout) -> (Kernel, usize) {
    let kind = layout.block_type();
    match isa.path() {
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 | Path::Avx512Bf16 if std::arch::is_x86_feature_detected!("avx512vnni") => {
            (of_kind!(kind, vnni, Vnni), Vnni::ROWS)
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 | Path::Avx512Bf16 | Path::Avx2 => (of_kind!(kind, avx2, Avx2), Avx2::ROWS),
        _ => (of_kind!(kind, portable, Portable), Portable::ROWS),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn vnni<M: Machine, K: Kind>(x: &Operands<'_>, panel: usize, row: usize, sums: &mut [[f32; LANES]]) {
    // SAFETY: the caller's contract.
    unsafe { body::<M, K>(x, panel, row, sums) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<M: Machine, K: Kind>(x: &Operands<'_>, panel: usize, row: usize, sums: &mut [[f32; LANES]]) {
    // SAFETY: the caller's contract.
    unsafe { body::<M, K>(x, panel, row, sums) }
}

unsafe fn portable<M: Machine, K: Kind>(
    x: &Operands<'_>,
    panel: usize,
    row: usize,
    sums: &mut [[f32; LANES]],
) {
    // SAFETY: the caller's contract.
    unsafe { body::<M, K>(x, panel, row, sums) }
}

#[inline(always)]
unsafe fn body<M: Machine, K: Kind>(x: &Operands<'_>, panel: usize, row: usize, sums: &mut [[f32; LANES]]) {
    let mut done = 0;
    while done < sums.len() {
        let (out, row) = (&mut sums[done..], row + done);
        // SAFETY: the caller's contract; there are as many rows.
        done += unsafe {
            match out.len() {
                8.. if M::ROWS >= 8 => rows::<M, K, 8>(x, panel, row, out),
                4.. if M::ROWS >= 4 => rows::<M, K, 4>(x, panel, row, out),
                2.. if M::ROWS >= 2 => rows::<M, K, 2>(x, panel, row, out),
                _ => rows::<M, K, 1>(x, panel, row, out),
            }
        };
    }
}

/// The products of a panel with `R` rows; returns `R`.
#[inline(always)]
unsafe fn rows<M: Machine, K: Kind, const R: usize>(
    x: &Operands<'_>,
    panel: usize,
    row: usize,
    sums: &mut [[f32; LANES]],
) -> usize {
    let (layout, k, form) = (x.layout, x.k, K::FORM);
    let (n_units, n_sums) = (k / form.unit, k / form.sum());
    let zero = if form.bits == 8 { M::ZERO_OF_EIGHT } else { form.zero };
    // SAFETY: the caller's contract: the panel and the rows are there, each with all its units.
    unsafe {
        let mut head = x.words.as_ptr().cast::<u8>().add(panel * layout.panel_bytes());
        let mut run = head.add(layout.heads_bytes());
        let codes: [*const i8; R] = std::array::from_fn(|r| x.rows.codes.as_ptr().add((row + r) * k));
        let scales: [*const f32; R] =
            std::array::from_fn(|r| x.rows.scales.as_ptr().add((row + r) * n_units));
        let totals: [*const i32; R] = std::array::from_fn(|r| x.rows.sums.as_ptr().add((row + r) * n_sums));
        let mut acc = [M::floats(0.0); R];
        for unit in 0..n_units {
            let scale = M::halves(head);
            let mut products = [M::ints(0); R];
            let mut minima = [M::ints(0); R];
            let integers = head.add(if form.has_min { 2 * HALVES } else { HALVES });
            for i in 0..form.unit / RUN {
                let at = unit * form.unit + i * RUN;
                let quads = expand::<M, K>(run);
                run = run.add(form.run_bytes());
                match form.group {
                    None => {
                        for r in 0..R {
                            let total = *totals[r].add(at / RUN);
                            products[r] = dot::<M, K>(M::ints(-zero * total), &quads, codes[r].add(at));
                        }
                    }
                    Some(group) => {
                        for g in 0..RUN / group {
                            let n_quads = group / 4;
                            let which = i * (RUN / group) + g;
                            let by = M::small_ints(integers.add(which * LANES));
                            for r in 0..R {
                                let total = *totals[r].add(at / group + g);
                                let quads = &quads[g * n_quads..][..n_quads];
                                let from = codes[r].add(at + g * group);
                                let product = dot::<M, K>(M::ints(-zero * total), quads, from);
                                products[r] = M::multiply_add(product, by, products[r]);
                            }
                            if form.has_min {
                                let by = M::small_ints(integers.add((form.unit / group + which) * LANES));
                                for r in 0..R {
                                    let total = M::ints(*totals[r].add(at / group + g));
                                    minima[r] = M::multiply_add(total, by, minima[r]);
                                }
                            }
                        }
                    }
                }
            }
            for r in 0..R {
                let own = *scales[r].add(unit);
                let product = M::to_floats(products[r]);
                acc[r] = M::add(acc[r], M::multiply(M::multiply(scale, M::floats(own)), product));
                if form.has_min {
                    let minimum = M::halves(head.add(HALVES));
                    acc[r] = match form.group {
                        None => {
                            let total = own * *totals[r].add(unit) as f32;
                            M::add(acc[r], M::multiply(minimum, M::floats(total)))
                        }
                        Some(_) => {
                            let by = M::multiply(minimum, M::floats(own));
                            M::subtract(acc[r], M::multiply(by, M::to_floats(minima[r])))
                        }
                    };
                }
            }
            head = head.add(form.head_bytes());
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            *sums = M::array(acc);
        }
    }
    R
}

/// The codes of 32 elements of each row of a panel, four elements in each vector.
#[inline(always)]
unsafe fn expand<M: Machine, K: Kind>(run: *const u8) -> [M::Bytes; 8] {
    // SAFETY: the caller's contract: the bytes of a run.
    unsafe {
        if K::FORM.bits == 8 {
            return std::array::from_fn(|quad| M::eight(M::bytes(run.add(quad * VECTOR))));
        }
        let low: [M::Bytes; 4] = std::array::from_fn(|i| M::bytes(run.add(i * VECTOR)));
        let mut quads = [low[0]; 8];
        for i in 0..4 {
            quads[i] = M::and(low[i], 15);
            quads[i + 4] = M::and(M::right(low[i], 4), 15);
        }
        let high = |i: usize| M::bytes(run.add((4 + i) * VECTOR));
        // Moves bits from their place in the byte to those above the low four.
        let moved = |x, from: u32| if from <= 4 { M::left(x, 4 - from) } else { M::right(x, from - 4) };
        if K::FORM.bits == 5 {
            let high = high(0);
            for (quad, codes) in (0..).zip(&mut quads) {
                *codes = M::or(*codes, M::and(moved(high, quad), 0x10));
            }
        }
        if K::FORM.bits == 6 {
            let high = [high(0), high(1)];
            for (quad, codes) in quads.iter_mut().enumerate() {
                *codes = M::or(*codes, M::and(moved(high[quad / 4], 2 * (quad as u32 % 4)), 0x30));
            }
        }
        quads
    }
}

/// Adds the products of codes with elements of x.
#[inline(always)]
unsafe fn dot<M: Machine, K: Kind>(mut sum: M::Ints, quads: &[M::Bytes], x: *const i8) -> M::Ints {
    for (i, &quad) in quads.iter().enumerate() {
        // SAFETY: the caller's contract: four elements of x for each vector.
        sum = unsafe {
            let x = x.add(4 * i).cast::<i32>().read_unaligned();
            if K::FORM.bits == 8 { M::dot_eight(sum, quad, x) } else { M::dot(sum, quad, x) }
        };
    }
    sum
}
