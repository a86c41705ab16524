//! How the elements of all ranks become one.

use std::fmt;

/// How the elements of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their mean; of floats only.
    Avg,
    /// Their product.
    Product,
    /// The least; NaN if any is NaN.
    Min,
    /// The greatest; NaN if any is NaN.
    Max,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Avg => "avg",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
        })
    }
}
