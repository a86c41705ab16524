//! Convolutions in one and two dims: a product of the weight with the patches of each image.
//!
//! Shape legend: N images, C channels in, O channels out, K elements of a patch, L places of the output.

use oarlock_kernels::conv::{self as kernel, Patches};
use oarlock_kernels::gemm::{self, MatMut, MatRef};
use oarlock_kernels::{Cpu, DType, Error, Float, Result, Store};

use crate::ops::{check_dtype, with_float, wrong_shape};
use crate::param::Param;
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// How a kernel moves over an image of `D` dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const D: usize> {
    /// Elements from one place to the next.
    pub stride: [usize; D],
    /// Zeros before and after the image.
    pub padding: [usize; D],
    /// Elements between those that the kernel sees, plus one.
    pub dilation: [usize; D],
    /// Groups of channels, each with a kernel of its own.
    pub groups: usize,
}

impl<const D: usize> Default for ConvOptions<D> {
    /// torch's: every place, without padding, one group.
    fn default() -> ConvOptions<D> {
        ConvOptions { stride: [1; D], padding: [0; D], dilation: [1; D], groups: 1 }
    }
}

/// x `[.., C, L]`, weight `[O, C / groups, k]`, bias `[O]` → `[.., O, L']`, in x's dtype, summed in f32.
///
/// # Errors
/// Shapes, dtypes or options that do not fit.
pub fn conv1d(x: &Tensor, weight: &Param, bias: Option<&Param>, options: &ConvOptions<1>) -> Result<Tensor> {
    conv("conv1d", x, weight, bias, options)
}

/// x `[.., C, H, W]`, weight `[O, C / groups, kh, kw]`, bias `[O]` → `[.., O, H', W']`, in x's dtype, summed in f32.
///
/// # Errors
/// As [`conv1d`].
pub fn conv2d(x: &Tensor, weight: &Param, bias: Option<&Param>, options: &ConvOptions<2>) -> Result<Tensor> {
    conv("conv2d", x, weight, bias, options)
}

fn conv<const D: usize>(
    name: &'static str,
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    options: &ConvOptions<D>,
) -> Result<Tensor> {
    let mut params = vec![weight];
    params.extend(bias);
    let recorder = Recorder::new(&[x], &params)?;
    let (sizes, shape) = sizes_of(name, x, weight, bias, options)?;
    let op = Conv { name, weight: weight.clone(), bias: bias.cloned(), sizes };
    let y = op.forward(x, shape)?;
    Ok(Recorder::record(recorder, y, |recorder| ConvBackward { op, x: recorder.save(x) }))
}

/// The sizes of the products, and the shape of the output.
fn sizes_of<const D: usize>(
    name: &'static str,
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    options: &ConvOptions<D>,
) -> Result<(Sizes, Shape)> {
    let ConvOptions { groups, .. } = *options;
    let &[n_out, c_in, ref kernel @ ..] = weight.shape().sizes() else {
        return Err(wrong_shape(name, format!("a weight of {} dims", D + 2), &weight.weight()?));
    };
    if kernel.len() != D || kernel.contains(&0) || groups == 0 || n_out == 0 || !n_out.is_multiple_of(groups)
    {
        let expected = format!("a weight of {} dims, its outputs divisible by {groups} groups", D + 2);
        return Err(wrong_shape(name, expected, &weight.weight()?));
    }
    if let Some(bias) = bias.filter(|bias| bias.shape().sizes() != [n_out]) {
        return Err(wrong_shape(name, format!("a bias of shape [{n_out}]"), &bias.weight()?));
    }
    let n_dims = x.sizes().len();
    if n_dims <= D || x.sizes()[n_dims - D - 1] != c_in * groups {
        let dims = if D == 1 { "L" } else { "H, W" };
        return Err(wrong_shape(name, format!("x of shape [.., {}, {dims}]", c_in * groups), x));
    }
    let (lead, image) = x.sizes().split_at(n_dims - D);
    let output = |d: usize| {
        let (seen, size) = (options.dilation[d] * (kernel[d] - 1) + 1, image[d] + 2 * options.padding[d]);
        match size.checked_sub(seen) {
            Some(rest) if options.stride[d] > 0 && options.dilation[d] > 0 => {
                Ok(rest / options.stride[d] + 1)
            }
            None if options.dilation[d] > 0 => Err(wrong_shape(
                name,
                format!(
                    "at least {seen} elements with padding {} along dim {}",
                    options.padding[d],
                    lead.len() + d
                ),
                x,
            )),
            _ => Err(Error::Usage(format!("{name}: expected a stride and a dilation of at least 1, got 0"))),
        }
    };
    let out = (0..D).map(output).collect::<Result<Vec<_>>>()?;
    let patches = Patches {
        channels: c_in,
        input: plane(image, 1),
        kernel: plane(kernel, 1),
        stride: plane(&options.stride, 1),
        padding: plane(&options.padding, 0),
        dilation: plane(&options.dilation, 1),
        output: plane(&out, 1),
    };
    let images = lead[..lead.len() - 1].iter().product();
    let shape: Vec<usize> = lead[..lead.len() - 1].iter().copied().chain([n_out]).chain(out).collect();
    Ok((Sizes { images, groups, group_out: n_out / groups, patches }, Shape::new(&shape)?))
}

#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub images: usize,
    pub groups: usize,
    /// Channels out of a group.
    pub group_out: usize,
    /// Of a group of channels of an image.
    pub patches: Patches,
}

impl Sizes {
    fn flops(&self) -> u64 {
        let Sizes { images, groups, group_out, patches } = self;
        2 * (images * groups) as u64 * (group_out * patches.rows() * patches.cols()) as u64
    }

    /// Runs `f(n, g)` for each group of channels of each image: their places in x and y.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        (0..self.images * self.groups).for_each(|i| f(i, i % self.groups));
    }

    /// The elements of a group of the weight, of x and of y.
    fn group_lens(&self) -> (usize, usize, usize) {
        let p = &self.patches;
        (self.group_out * p.rows(), p.n_elems(), self.group_out * p.cols())
    }

    /// The bytes of columns of elements of `size` bytes, and those of the scratch of a product behind them.
    fn columns_bytes(&self, size: usize) -> usize {
        let columns = self.patches.rows() * self.patches.cols() * size;
        columns.next_multiple_of(crate::arena::ALIGN)
    }
}

/// Columns and the scratch of products in one piece of memory.
fn split<'a, T: Float>(sizes: &Sizes, scratch: &'a mut [u8]) -> (&'a mut [T], &'a mut [u8]) {
    let (columns, rest) = scratch.split_at_mut(sizes.columns_bytes(size_of::<T>()));
    let n = sizes.patches.rows() * sizes.patches.cols();
    (&mut bytemuck::cast_slice_mut(columns)[..n], rest)
}

/// The columns of a group of an image, which may be the image.
fn columns_of<'a, T: Float>(
    cpu: &Cpu,
    patches: &Patches,
    image: &'a [T],
    columns: &'a mut [T],
) -> MatRef<'a, T> {
    let data = if patches.is_image() {
        image
    } else {
        kernel::im2col(cpu, patches, image, columns);
        columns
    };
    MatRef::new(data, patches.rows(), patches.cols())
}

pub(super) struct Conv {
    pub name: &'static str,
    pub weight: Param,
    pub bias: Option<Param>,
    pub sizes: Sizes,
}

impl Conv {
    pub(super) fn forward(&self, x: &Tensor, shape: Shape) -> Result<Tensor> {
        let w = self.weight.weight()?;
        check_dtype(self.name, x, &w)?;
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let mut y = Tensor::uninit(shape, x.dtype(), x.device(), "activation")?;
        let sizes = self.sizes;
        let (patches, o) = (sizes.patches, sizes.group_out);
        let (rows, cols) = (patches.rows(), patches.cols());
        let mut launch = x.device().launch(self.name, sizes.flops(), 0);
        let product = gemm::gemm_scratch_bytes(x.device().host(), o, cols, rows, x.dtype());
        let scratch = launch.scratch::<u8>(sizes.columns_bytes(x.dtype().size()) + product)?;
        with_float!(x.dtype(), self.name, T => {
            let (x, w) = (launch.read::<T>(x)?, launch.read::<T>(&w)?);
            let bias = bias.as_ref().map(|bias| launch.read::<T>(bias)).transpose()?;
            let y = launch.write::<T>(&mut y)?;
            launch.run(move |cpu| {
                let (x, w, y) = (x.slice(cpu), w.slice(cpu), y.slice(cpu));
                let (columns, products) = split::<T>(&sizes, scratch.slice(cpu));
                let (w_len, x_len, y_len) = sizes.group_lens();
                sizes.each(|i, g| {
                    let columns = columns_of(cpu, &patches, &x[i * x_len..][..x_len], columns);
                    let w = MatRef::new(&w[g * w_len..][..w_len], o, rows);
                    let out = MatMut::new(&mut y[i * y_len..][..y_len], o, cols);
                    gemm::gemm(cpu, w, columns, out, Store::Overwrite, products);
                });
                if let Some(bias) = bias {
                    kernel::add_to_planes(cpu, y, cols, bias.slice(cpu));
                }
            })
        })?;
        Ok(y)
    }

    /// The gradient of the weight: image after image, dy · columnsᵀ.
    pub(super) fn weight_grad(&self, x: &Tensor, dy: &Tensor) -> Result<()> {
        let Some(mut slot) = self.weight.grad()? else { return Ok(()) };
        let sizes = self.sizes;
        let (patches, o) = (sizes.patches, sizes.group_out);
        let (rows, cols) = (patches.rows(), patches.cols());
        let device = x.device();
        let mut launch = device.launch("conv weight grad", sizes.flops(), 0);
        let product = gemm::gemm_scratch_bytes(device.host(), o, rows, cols, x.dtype());
        let scratch = launch.scratch::<u8>(sizes.columns_bytes(x.dtype().size()) + product)?;
        with_float!(x.dtype(), self.name, T => {
            let (x, dy) = (launch.read::<T>(x)?, launch.read::<T>(dy)?);
            let (store, out) = (slot.store, launch.grad(&mut slot)?);
            launch.run(move |cpu| {
                let (x, dy, out) = (x.slice(cpu), dy.slice(cpu), out.slice(cpu));
                let (columns, products) = split::<T>(&sizes, scratch.slice(cpu));
                let (w_len, x_len, y_len) = sizes.group_lens();
                if sizes.images == 0 && store == Store::Overwrite {
                    out.fill(0.0);
                }
                sizes.each(|i, g| {
                    let store = if i < sizes.groups { store } else { Store::Add };
                    let columns = columns_of(cpu, &patches, &x[i * x_len..][..x_len], columns);
                    let dy = MatRef::new(&dy[i * y_len..][..y_len], o, cols);
                    let out = MatMut::new(&mut out[g * w_len..][..w_len], o, rows);
                    gemm::gemm(cpu, dy, columns.t(), out, store, products);
                });
            })
        })
    }

    /// The gradient of x: the columns Wᵀ · dy in f32, added where they came from.
    pub(super) fn input_grad(
        &self,
        op: &'static str,
        dy: &Tensor,
        dx: &mut Tensor,
        store: Store,
    ) -> Result<()> {
        let (w, sizes) = (self.weight.weight()?, self.sizes);
        let (patches, o) = (sizes.patches, sizes.group_out);
        let (rows, cols) = (patches.rows(), patches.cols());
        let device = dy.device();
        let mut launch = device.launch(op, sizes.flops(), 0);
        let product = gemm::gemm_scratch_bytes(device.host(), rows, cols, o, dy.dtype());
        let scratch = launch.scratch::<u8>(sizes.columns_bytes(DType::F32.size()) + product)?;
        with_float!(dy.dtype(), self.name, T => {
            let (dy, w, dx) = (launch.read::<T>(dy)?, launch.read::<T>(&w)?, launch.store::<T>(dx, store)?);
            launch.run(move |cpu| {
                let (dy, w, dx) = (dy.slice(cpu), w.slice(cpu), dx.slice(cpu));
                let (columns, products) = split::<f32>(&sizes, scratch.slice(cpu));
                let (w_len, x_len, y_len) = sizes.group_lens();
                sizes.each(|i, g| {
                    let w = MatRef::new(&w[g * w_len..][..w_len], o, rows).t();
                    let dy = MatRef::new(&dy[i * y_len..][..y_len], o, cols);
                    gemm::gemm(cpu, w, dy, MatMut::new(&mut *columns, rows, cols), Store::Overwrite, products);
                    kernel::col2im(cpu, &patches, columns, &mut dx[i * x_len..][..x_len], store);
                });
            })
        })
    }
}

/// The gradient of a bias: the sums of planes of `len` elements of dy.
pub(super) fn bias_grad(name: &'static str, bias: Option<&Param>, dy: &Tensor, len: usize) -> Result<()> {
    let Some(mut slot) = bias.map(Param::grad).transpose()?.flatten() else {
        return Ok(());
    };
    let mut launch = dy.device().launch("conv bias grad", 0, dy.len_bytes() as u64);
    with_float!(dy.dtype(), name, T => {
        let (store, dy, out) = (slot.store, launch.read::<T>(dy)?, launch.grad(&mut slot)?);
        launch.run(move |cpu| kernel::sum_planes(cpu, dy.slice(cpu), len, out.slice(cpu), store))
    })
}

/// An image of one dim is one line of an image of two.
pub(super) fn plane(sizes: &[usize], first: usize) -> [usize; 2] {
    match *sizes {
        [size] => [first, size],
        [.., height, width] => [height, width],
        [] => [first; 2],
    }
}

struct ConvBackward {
    op: Conv,
    x: Saved,
}

impl Function for ConvBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let x = cx.get(&self.x)?;
        self.op.weight_grad(&x, &dy)?;
        bias_grad(self.op.name, self.op.bias.as_ref(), &dy, self.op.sizes.patches.cols())?;
        if cx.needs(0) {
            let (mut dx, store) = cx.slot(0, &x)?;
            self.op.input_grad("conv input grad", &dy, &mut dx, store)?;
            cx.give(0, dx)?;
        }
        Ok(())
    }
}
