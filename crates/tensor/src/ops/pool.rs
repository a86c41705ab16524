//! Pooling over the last two dims: largest elements and means of windows.

use oarlock_kernels::pool::{self as kernel, Window, Windows};
use oarlock_kernels::{DType, Error, Result};

use crate::ops::{with_float, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// How the windows of a pooling op lie in an image of `D` dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions<const D: usize> {
    /// Elements of a window.
    pub kernel: [usize; D],
    /// Elements from one window to the next.
    pub stride: [usize; D],
    /// Places before and after the image that windows may reach; at most half of a window.
    pub padding: [usize; D],
    /// Elements from one element of a window to the next; only for maxima.
    pub dilation: [usize; D],
    /// Whether a window may reach behind the image and its padding.
    pub ceil_mode: bool,
    /// Whether a mean counts the padding, as zeros.
    pub count_include_pad: bool,
}

impl<const D: usize> PoolOptions<D> {
    /// torch's defaults: windows side by side, without padding.
    pub fn new(kernel: [usize; D]) -> PoolOptions<D> {
        PoolOptions {
            kernel,
            stride: kernel,
            padding: [0; D],
            dilation: [1; D],
            ceil_mode: false,
            count_include_pad: true,
        }
    }
}

/// The largest element of each window of x `[.., L]`. The gradient goes to the first of equals; NaN is the largest.
///
/// # Errors
/// Windows that do not fit into x, or a tensor of integers.
pub fn max_pool1d(x: &Tensor, options: &PoolOptions<1>) -> Result<Tensor> {
    max_pool("max_pool1d", x, options)
}

/// The largest element of each window of x `[.., H, W]`.
///
/// # Errors
/// As [`max_pool1d`].
pub fn max_pool2d(x: &Tensor, options: &PoolOptions<2>) -> Result<Tensor> {
    max_pool("max_pool2d", x, options)
}

/// The mean of each window of x `[.., L]`.
///
/// # Errors
/// As [`max_pool1d`], or a dilation.
pub fn avg_pool1d(x: &Tensor, options: &PoolOptions<1>) -> Result<Tensor> {
    avg_pool("avg_pool1d", x, options)
}

/// The mean of each window of x `[.., H, W]`.
///
/// # Errors
/// As [`avg_pool1d`].
pub fn avg_pool2d(x: &Tensor, options: &PoolOptions<2>) -> Result<Tensor> {
    avg_pool("avg_pool2d", x, options)
}

/// The means of as many parts of x `[.., L]` as the output has places; neighbors overlap where their number does not
/// divide the size.
///
/// # Errors
/// An x without elements, or a tensor of integers.
pub fn adaptive_avg_pool1d(x: &Tensor, output: usize) -> Result<Tensor> {
    mean("adaptive_avg_pool1d", x, adaptive("adaptive_avg_pool1d", x, [output])?, 1)
}

/// As [`adaptive_avg_pool1d`], of x `[.., H, W]`.
///
/// # Errors
/// As [`adaptive_avg_pool1d`].
pub fn adaptive_avg_pool2d(x: &Tensor, output: [usize; 2]) -> Result<Tensor> {
    mean("adaptive_avg_pool2d", x, adaptive("adaptive_avg_pool2d", x, output)?, 2)
}

fn max_pool<const D: usize>(name: &'static str, x: &Tensor, options: &PoolOptions<D>) -> Result<Tensor> {
    let windows = windows(name, x, options)?;
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = Tensor::uninit(out_shape(x, &windows, D)?, x.dtype(), x.device(), "activation")?;
    let mut at = Tensor::uninit(*y.shape(), DType::I32, x.device(), "places of maxima")?;
    let kept = windows.clone();
    let mut launch = x.device().launch(name, 0, x.len_bytes() as u64);
    with_float!(x.dtype(), name, T => {
        let (x, y, at) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?, launch.write::<i32>(&mut at)?);
        launch.run(move |cpu| kernel::max_forward(cpu, &windows, x.slice(cpu), y.slice(cpu), at.slice(cpu)))
    })?;
    Ok(Recorder::record(recorder, y, |_| PoolBackward {
        name,
        windows: kept,
        at: Some(at),
        shape: *x.shape(),
    }))
}

fn avg_pool<const D: usize>(name: &'static str, x: &Tensor, options: &PoolOptions<D>) -> Result<Tensor> {
    if options.dilation != [1; D] {
        return Err(Error::Usage(format!("{name}: windows of means have no dilation")));
    }
    mean(name, x, windows(name, x, options)?, D)
}

fn mean(name: &'static str, x: &Tensor, windows: Windows, n_dims: usize) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = Tensor::uninit(out_shape(x, &windows, n_dims)?, x.dtype(), x.device(), "activation")?;
    let kept = windows.clone();
    let mut launch = x.device().launch(name, 0, x.len_bytes() as u64);
    with_float!(x.dtype(), name, T => {
        let (x, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.run(move |cpu| kernel::mean_forward(cpu, &windows, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(Recorder::record(recorder, y, |_| PoolBackward { name, windows: kept, at: None, shape: *x.shape() }))
}

/// The sizes of the image's dims, after those that stay.
fn image<const D: usize>(name: &'static str, x: &Tensor) -> Result<[usize; D]> {
    let sizes = x.sizes();
    let image = sizes.len().checked_sub(D).and_then(|first| sizes[first..].try_into().ok());
    image.ok_or_else(|| {
        wrong_shape(name, if D == 1 { "x of shape [.., L]" } else { "x of shape [.., H, W]" }, x)
    })
}

fn out_shape(x: &Tensor, windows: &Windows, n_dims: usize) -> Result<Shape> {
    let lead = x.sizes()[..x.sizes().len() - n_dims].iter().copied();
    let out = [windows.lines.len(), windows.places.len()];
    Shape::new(&lead.chain(out[2 - n_dims..].iter().copied()).collect::<Vec<_>>())
}

/// An image of one dim is one line of an image of two.
fn of_dims<const D: usize>(image: [usize; D], mut dims: Vec<Vec<Window>>) -> Windows {
    let places = dims.pop().unwrap_or_default();
    let line = Window { first: 0, end: 1, step: 1, divisor: 1 };
    let lines = dims.pop().unwrap_or_else(|| vec![line]);
    Windows { input: [if D == 1 { 1 } else { image[0] }, image[D - 1]], lines, places }
}

fn windows<const D: usize>(name: &'static str, x: &Tensor, options: &PoolOptions<D>) -> Result<Windows> {
    let image = image::<D>(name, x)?;
    let dims = (0..D).map(|d| windows_of(name, x, image[d], options, d));
    Ok(of_dims(image, dims.collect::<Result<_>>()?))
}

/// The windows along one dim.
fn windows_of<const D: usize>(
    name: &'static str,
    x: &Tensor,
    size: usize,
    options: &PoolOptions<D>,
    d: usize,
) -> Result<Vec<Window>> {
    let PoolOptions { ceil_mode, count_include_pad, .. } = *options;
    let of = |values: &[usize; D]| values[d];
    let (kernel, stride) = (of(&options.kernel), of(&options.stride));
    let (padding, dilation) = (of(&options.padding), of(&options.dilation));
    if [kernel, stride, dilation].contains(&0) {
        return Err(Error::Usage(format!(
            "{name}: expected a kernel, a stride and a dilation of at least 1, got 0"
        )));
    }
    let seen = dilation * (kernel - 1) + 1;
    if padding > seen / 2 {
        return Err(Error::Usage(format!(
            "{name}: expected a padding of at most half of a window of {seen}, got {padding}"
        )));
    }
    let dim = x.sizes().len() - D + d;
    let Some(rest) = (size + 2 * padding).checked_sub(seen) else {
        let expected = format!("at least {seen} elements with padding {padding} along dim {dim}");
        return Err(wrong_shape(name, expected, x));
    };
    let mut n = if ceil_mode { rest.div_ceil(stride) + 1 } else { rest / stride + 1 };
    // The last window begins inside of the image or before it.
    n -= usize::from(ceil_mode && (n - 1) * stride >= size + padding);
    let window = |i: usize| {
        // Counted from the beginning of the padding.
        let (start, end) = (i * stride, (i * stride + seen).min(size + 2 * padding));
        let skipped = padding.saturating_sub(start).div_ceil(dilation);
        let first = start + skipped * dilation - padding;
        let last = end.saturating_sub(padding).min(size);
        let divisor = if count_include_pad { end - start } else { last.saturating_sub(first) };
        Window { first, end: last, step: dilation, divisor }
    };
    let windows: Vec<Window> = (0..n).map(window).collect();
    if windows.iter().any(|window| window.first >= window.end) {
        return Err(wrong_shape(name, format!("an element in each window along dim {dim}"), x));
    }
    Ok(windows)
}

fn adaptive<const D: usize>(name: &'static str, x: &Tensor, output: [usize; D]) -> Result<Windows> {
    let image = image::<D>(name, x)?;
    if image.contains(&0) {
        return Err(wrong_shape(name, "at least one element along each dim of the image", x));
    }
    let windows_of = |(size, n): (usize, usize)| {
        let window = |i: usize| {
            let (first, end) = (i * size / n, ((i + 1) * size).div_ceil(n));
            Window { first, end, step: 1, divisor: end - first }
        };
        (0..n).map(window).collect()
    };
    Ok(of_dims(image, image.into_iter().zip(output).map(windows_of).collect()))
}

struct PoolBackward {
    name: &'static str,
    windows: Windows,
    /// Where the maxima were; `None` for means.
    at: Option<Tensor>,
    shape: Shape,
}

impl Function for PoolBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (mut dx, store) = cx.slot_of(0, self.shape, &dy)?;
        let device = dy.device().clone();
        let PoolBackward { name, windows, at, .. } = *self;
        let mut launch = device.launch(name, 0, 2 * dx.len_bytes() as u64);
        with_float!(dy.dtype(), name, T => {
            // `at` lives until the launch is made: memory that is given back before may belong to another thread by then.
            let (dy, at) = (launch.read::<T>(&dy)?, at.as_ref().map(|at| launch.read::<i32>(at)).transpose()?);
            let dx = launch.store::<T>(&mut dx, store)?;
            launch.run(move |cpu| {
                let (dy, dx) = (dy.slice(cpu), (dx.slice(cpu), store));
                match at {
                    Some(at) => kernel::max_backward(cpu, &windows, at.slice(cpu), dy, dx),
                    None => kernel::mean_backward(cpu, &windows, dy, dx),
                }
            })
        })?;
        cx.give(0, dx)
    }
}
