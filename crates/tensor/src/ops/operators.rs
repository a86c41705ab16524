//! The operators `+ - * /` and unary minus, between tensors, tensors and numbers, and on the result of an operator.
//!
//! The result of an operator is a `Result`, so a chain of operators needs one `?` at its end: `(&a * &b + &c)?`.

use std::ops::{Add, Div, Mul, Neg, Sub};

use oarlock_kernels::Result;

use crate::ops;
use crate::tensor::Tensor;

/// One operator, for each pair of types that it joins.
macro_rules! operator {
    ($Trait:ident $method:ident: $($Left:ty, $Right:ty => |$x:ident, $y:ident| ($a:expr, $b:expr);)*) => {
        $(
            impl $Trait<$Right> for $Left {
                type Output = Result<Tensor>;
                fn $method(self, $y: $Right) -> Result<Tensor> {
                    let $x = self;
                    ops::$method($a, $b)
                }
            }
        )*
    };
    ($Trait:ident $method:ident) => {
        operator! { $Trait $method:
            &Tensor, &Tensor => |x, y| (x, y);
            &Tensor, Tensor => |x, y| (x, &y);
            Tensor, &Tensor => |x, y| (&x, y);
            Tensor, Tensor => |x, y| (&x, &y);
            Result<Tensor>, &Tensor => |x, y| (&x?, y);
            Result<Tensor>, Tensor => |x, y| (&x?, &y);
            &Tensor, Result<Tensor> => |x, y| (x, &y?);
            Tensor, Result<Tensor> => |x, y| (&x, &y?);
            &Tensor, f32 => |x, y| (x, y);
            Tensor, f32 => |x, y| (&x, y);
            &Tensor, i32 => |x, y| (x, y);
            Tensor, i32 => |x, y| (&x, y);
            f32, &Tensor => |x, y| (x, y);
            f32, Tensor => |x, y| (x, &y);
            i32, &Tensor => |x, y| (x, y);
            i32, Tensor => |x, y| (x, &y);
        }
    };
}
operator!(Add add);
operator!(Sub sub);
operator!(Mul mul);
operator!(Div div);

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        ops::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        ops::neg(&self)
    }
}
