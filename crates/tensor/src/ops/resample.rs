//! Images of another size: interpolation between elements, and channels that become places.

use oarlock_kernels::{DType, Error, Result};

use crate::ints::Ints;
use crate::ops::{cast, index_select, mul, permute, reshape, wrong_shape};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How the elements of an image of another size are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest element: torch's `nearest`.
    Nearest,
    /// Linear between the two nearest along each dim: torch's `linear`, `bilinear` and `trilinear`.
    Linear {
        /// The outermost elements stay in place, where otherwise the edges of the image do.
        align_corners: bool,
    },
}

/// x `[.., L]`, `[.., H, W]` and so on with other sizes of its last dims. Linear interpolation computes in f32 and rounds
/// once.
///
/// # Errors
/// More sizes than dims, a size of 0, or integers that are to be interpolated linearly.
pub fn interpolate(x: &Tensor, sizes: impl Ints, mode: Interpolation) -> Result<Tensor> {
    let (op, sizes, n_dims) = ("interpolate", sizes.signed(), x.sizes().len());
    let Some(first) = n_dims.checked_sub(sizes.len()) else {
        return Err(wrong_shape(op, format!("at least {} dims", sizes.len()), x));
    };
    if x.sizes()[first..].contains(&0) || sizes.iter().any(|&size| size < 1) {
        return Err(wrong_shape(
            op,
            format!("at least one element along each dim, and sizes {sizes:?} above 0"),
            x,
        ));
    }
    if !x.dtype().is_float() && mode != Interpolation::Nearest {
        return Err(Error::DType { op, expected: "a float tensor", got: x.dtype() });
    }
    let changed = (first..n_dims).zip(sizes).map(|(dim, size)| (dim, size.unsigned_abs()));
    let changed: Vec<(usize, usize)> = changed.filter(|&(dim, size)| x.sizes()[dim] != size).collect();
    match mode {
        _ if changed.is_empty() => Ok(x.clone()),
        Interpolation::Nearest => changed.iter().try_fold(x.clone(), |x, &(dim, n)| nearest(&x, dim, n)),
        Interpolation::Linear { align_corners } => {
            let linear = |x: Tensor, &(dim, n): &(usize, usize)| linear(&x, dim, n, align_corners);
            cast(&changed.iter().rev().try_fold(cast(x, DType::F32)?, linear)?, x.dtype())
        }
    }
}

fn nearest(x: &Tensor, dim: usize, n: usize) -> Result<Tensor> {
    let size = x.sizes()[dim];
    // In f32: torch chooses the elements so.
    let scale = size as f32 / n as f32;
    let place = |i: usize| ((i as f32 * scale) as usize).min(size - 1);
    index_select(x, dim, &indices(x, n, place)?)
}

fn linear(x: &Tensor, dim: usize, n: usize, align_corners: bool) -> Result<Tensor> {
    let size = x.sizes()[dim];
    let place = |i: usize| match align_corners {
        true if n == 1 => 0.0,
        true => i as f64 * (size - 1) as f64 / (n - 1) as f64,
        false => ((i as f64 + 0.5) * size as f64 / n as f64 - 0.5).clamp(0.0, (size - 1) as f64),
    };
    let below = |i: usize| place(i) as usize;
    let shares: Vec<f64> = (0..n).map(|i| place(i).fract()).collect();
    let beside_dim: Vec<usize> = std::iter::once(n).chain(x.sizes()[dim + 1..].iter().map(|_| 1)).collect();
    let shares = Tensor::from_slice(&shares, &beside_dim[..], x.device())?;
    let low = index_select(x, dim, &indices(x, n, below)?)?;
    let high = index_select(x, dim, &indices(x, n, |i| (below(i) + 1).min(size - 1))?)?;
    mul(&low, &shares.neg()?.add_scalar(1.0)?)?.add(&mul(&high, &shares)?)
}

/// `n` indices into a dim of x.
fn indices(x: &Tensor, n: usize, place: impl Fn(usize) -> usize) -> Result<Tensor> {
    let places: Vec<i64> = (0..n).map(|i| place(i) as i64).collect();
    Tensor::from_slice(&places, [n], x.device())
}

/// x `[.., C r², H, W]` → `[.., C, H r, W r]`: each group of r² channels becomes a square of r × r places (Shi et al. 2016).
///
/// # Errors
/// Fewer than three dims, or channels that are not a multiple of r².
pub fn pixel_shuffle(x: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    let r = upscale_factor;
    match x.sizes() {
        &[ref lead @ .., channels, h, w] if r > 0 && channels.is_multiple_of(r * r) => {
            let (n, c) = (lead.iter().product(), channels / (r * r));
            let parts = permute(&reshape(x, [n, c, r, r, h, w])?, [0, 1, 4, 2, 5, 3])?;
            reshape(&parts, Shape::new(&[lead, &[c, h * r, w * r]].concat())?)
        }
        _ => Err(wrong_shape("pixel_shuffle", format!("x of shape [.., C * {r} * {r}, H, W]"), x)),
    }
}

/// x `[.., C, H r, W r]` → `[.., C r², H, W]`: the reverse of [`pixel_shuffle`].
///
/// # Errors
/// Fewer than three dims, or a height or width that is not a multiple of r.
pub fn pixel_unshuffle(x: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    let r = downscale_factor;
    match x.sizes() {
        &[ref lead @ .., c, height, width]
            if r > 0 && height.is_multiple_of(r) && width.is_multiple_of(r) =>
        {
            let (n, h, w) = (lead.iter().product(), height / r, width / r);
            let parts = permute(&reshape(x, [n, c, h, r, w, r])?, [0, 1, 3, 5, 2, 4])?;
            reshape(&parts, Shape::new(&[lead, &[c * r * r, h, w]].concat())?)
        }
        _ => Err(wrong_shape("pixel_unshuffle", format!("x of shape [.., C, H * {r}, W * {r}]"), x)),
    }
}
