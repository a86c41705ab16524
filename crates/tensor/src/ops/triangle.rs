//! The lower and the upper triangle of matrices.

use oarlock_cuda::geometry;
use oarlock_kernels::Result;
use oarlock_kernels::copy;

use crate::ops::{with_word, wrong_shape};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The elements of matrices (the last two dims) on the diagonal and below it, and 0 elsewhere. Diagonal 1 is the one
/// above the main diagonal, -1 the one below.
///
/// # Errors
/// Fewer than two dims.
pub fn tril(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    triangle(x, Side { diagonal, upper: false })
}

/// The elements of matrices (the last two dims) on the diagonal and above it, and 0 elsewhere. Diagonals are numbered as
/// for [`tril`].
///
/// # Errors
/// Fewer than two dims.
pub fn triu(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    triangle(x, Side { diagonal, upper: true })
}

/// Which elements stay.
#[derive(Clone, Copy)]
struct Side {
    diagonal: isize,
    upper: bool,
}

impl Side {
    fn name(self) -> &'static str {
        if self.upper { "triu" } else { "tril" }
    }

    fn of(self, x: &Tensor) -> Result<Tensor> {
        let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
        let (rows, cols) = (x.sizes()[x.sizes().len() - 2], x.shape().last());
        let mut launch = x.device().launch(self.name(), 0, 2 * x.len_bytes() as u64);
        let (dtype, n) = (x.dtype(), x.n_elems());
        with_word!(dtype, W => {
            let (x, y) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
            launch.cuda(|gpu| {
                let diagonal = self.diagonal.clamp(i32::MIN as isize, i32::MAX as isize) as i32;
                let call = gpu.kernel("triangle", &[dtype])?.u32(usize::from(self.upper)).signed(diagonal);
                call.view(&x).view(&y).u32(rows).u32(cols).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| {
                copy::keep_in_rows(cpu, cols, x.slice(cpu), y.slice(cpu), &|row| {
                    // The first column that is above the diagonal, or on it for the upper triangle.
                    let on = self.diagonal.saturating_add_unsigned(row % rows);
                    let above = if self.upper { on } else { on.saturating_add(1) };
                    let above = usize::try_from(above).map_or(0, |above| above.min(cols));
                    if self.upper { above..cols } else { 0..above }
                });
            })
        })?;
        Ok(y)
    }
}

fn triangle(x: &Tensor, side: Side) -> Result<Tensor> {
    if x.sizes().len() < 2 {
        return Err(wrong_shape(side.name(), "at least two dims", x));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = side.of(x)?;
    Ok(Recorder::record(recorder, y, |_| TriangleBackward { side }))
}

struct TriangleBackward {
    side: Side,
}

impl Function for TriangleBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, self.side.of(&dy)?)
    }
}
