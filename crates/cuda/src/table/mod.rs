//! The table of all kernels: what a launch must pass, and for which types they are compiled.

mod attention;
mod elements;
mod indexed;
mod norm;
mod optim;
mod probe;
mod product;
mod rows;

use crate::element::Element;
use crate::kernel::{Dtypes, Kernel};
use crate::source::Unit;

/// Threads of a block of all kernels but attention.
pub const THREADS: u32 = 256;

/// No dtype in the name.
pub const NONE: &[Dtypes] = &[&[]];

/// One dtype that is a float.
pub const FLOATS: &[Dtypes] = &[&[Element::F32], &[Element::BF16], &[Element::F16]];

/// Declares kernels: `op (parameters) for dtypes;` with parameters as `name: access(type)`, where a number stands for the
/// dtype of that number.
macro_rules! kernels {
    ($list:ident, $source:expr, $threads:expr, $head_dims:expr;
     $($op:ident ($($param:ident: $access:ident($of:tt)),* $(,)?) for $dtypes:expr;)+) => {
        pub(super) const $list: &[$crate::kernel::Kernel] = &[$($crate::kernel::Kernel {
            op: stringify!($op),
            source: $source,
            threads: $threads,
            params: &[$($crate::kernel::Param {
                name: stringify!($param),
                access: kernels!(@access $access),
                of: kernels!(@of $of),
            }),*],
            dtypes: $dtypes,
            head_dims: $head_dims,
        }),+];
    };
    ($list:ident, $source:expr; $($rest:tt)+) => {
        kernels! { $list, $source, $crate::table::THREADS, &[]; $($rest)+ }
    };
    (@access read) => { $crate::kernel::Access::Read };
    (@access write) => { $crate::kernel::Access::Write };
    (@access update) => { $crate::kernel::Access::Update };
    (@access value) => { $crate::kernel::Access::Value };
    (@of f32) => { $crate::kernel::Of::Fixed($crate::element::Element::F32) };
    (@of f64) => { $crate::kernel::Of::Fixed($crate::element::Element::F64) };
    (@of i8) => { $crate::kernel::Of::Fixed($crate::element::Element::I8) };
    (@of u8) => { $crate::kernel::Of::Fixed($crate::element::Element::U8) };
    (@of i32) => { $crate::kernel::Of::Fixed($crate::element::Element::I32) };
    (@of u32) => { $crate::kernel::Of::Fixed($crate::element::Element::U32) };
    (@of u64) => { $crate::kernel::Of::Fixed($crate::element::Element::U64) };
    (@of pieces) => { $crate::kernel::Of::Fixed($crate::element::Element::Pieces) };
    (@of walk) => { $crate::kernel::Of::Fixed($crate::element::Element::Walk) };
    (@of $number:literal) => { $crate::kernel::Of::Dtype($number) };
}
use kernels;

/// All kernels, family by family.
pub const FAMILIES: &[&[Kernel]] = &[
    attention::BACKWARD,
    attention::DECODE,
    attention::FORWARD,
    elements::BINARY,
    elements::BINARY_INTS,
    elements::COMPARE,
    elements::COPY,
    elements::COPY_FLOATS,
    elements::ELEMENTWISE,
    elements::GLU,
    elements::PAIR_LOSS,
    elements::QUANTIZED,
    elements::RANDOM,
    elements::RANDOM_BITS,
    elements::UNARY,
    indexed::CUMSUM,
    indexed::INDEXED_FLOATS,
    indexed::INDEXED_WORDS,
    indexed::ORDER,
    indexed::SORT,
    indexed::SORT_KEYS,
    indexed::TOP_K,
    norm::KERNELS,
    optim::KERNELS,
    optim::OF_ADAFACTOR,
    optim::OF_LAMB,
    probe::PLAIN,
    probe::SUMS,
    probe::WORDS,
    product::GEMM,
    product::GEMM_QUANTIZED,
    rows::CROSS_ENTROPY,
    rows::EMBED,
    rows::REDUCE,
    rows::REDUCE_WORDS,
    rows::ROPE,
    rows::ROW_LOSS,
    rows::SOFTMAX,
    rows::SUM_ROWS,
    rows::TOTAL_LOSS,
];

/// All kernels.
pub fn all() -> impl Iterator<Item = &'static Kernel> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The kernel of an op; none where there is none of this name.
pub fn find(op: &str) -> Option<&'static Kernel> {
    all().find(|kernel| kernel.op == op)
}

/// All units in which the kernels are compiled, each once.
pub fn units() -> Vec<Unit> {
    let mut units: Vec<Unit> =
        all().flat_map(|kernel| kernel.instances().map(|instance| instance.unit())).collect();
    units.sort();
    units.dedup();
    units
}
