//! Transposed convolutions: the gradient of a convolution with respect to its input, as an op of its own. Forward and
//! backward pass are those of that convolution with their roles exchanged.

use oarlock_kernels::conv::{Patches, add_to_planes};
use oarlock_kernels::{Error, Result, Store};

use crate::ops::conv::{Conv, Sizes, bias_grad, plane};
use crate::ops::{check_dtype, with_float, wrong_shape};
use crate::param::Param;
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// How the kernel of a transposed convolution moves over the output, an image of `D` dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTransposeOptions<const D: usize> {
    /// Elements of the output from one place to the next.
    pub stride: [usize; D],
    /// Elements that are cut off before and after the output.
    pub padding: [usize; D],
    /// Elements that are added after the output: of the several sizes that a convolution with a stride maps to the size
    /// of x, which one is meant. Less than the stride or the dilation.
    pub output_padding: [usize; D],
    /// Elements between those that the kernel writes, plus one.
    pub dilation: [usize; D],
    /// Groups of channels, each with a kernel of its own.
    pub groups: usize,
}

impl<const D: usize> Default for ConvTransposeOptions<D> {
    /// torch's: every place, whole, one group.
    fn default() -> ConvTransposeOptions<D> {
        ConvTransposeOptions {
            stride: [1; D],
            padding: [0; D],
            output_padding: [0; D],
            dilation: [1; D],
            groups: 1,
        }
    }
}

/// x `[.., C, L]`, weight `[C, O / groups, k]`, bias `[O]` → `[.., O, L']`, in x's dtype, summed in f32.
///
/// # Errors
/// Shapes, dtypes or options that do not fit.
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    options: &ConvTransposeOptions<1>,
) -> Result<Tensor> {
    conv_transpose("conv_transpose1d", x, weight, bias, options)
}

/// x `[.., C, H, W]`, weight `[C, O / groups, kh, kw]`, bias `[O]` → `[.., O, H', W']`, in x's dtype, summed in f32.
///
/// # Errors
/// As [`conv_transpose1d`].
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    options: &ConvTransposeOptions<2>,
) -> Result<Tensor> {
    conv_transpose("conv_transpose2d", x, weight, bias, options)
}

fn conv_transpose<const D: usize>(
    name: &'static str,
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    options: &ConvTransposeOptions<D>,
) -> Result<Tensor> {
    let mut params = vec![weight];
    params.extend(bias);
    let recorder = Recorder::new(&[x], &params)?;
    let (sizes, shape) = sizes_of(name, x, weight, bias, options)?;
    check_dtype(name, x, &weight.weight()?)?;
    let conv = Conv { name, weight: weight.clone(), bias: None, sizes };
    let mut y = Tensor::uninit(shape, x.dtype(), x.device(), "activation")?;
    conv.input_grad(name, x, &mut y, Store::Overwrite)?;
    if let Some(bias) = bias {
        let bias = bias.weight()?;
        let mut launch = x.device().launch("conv bias", 0, 2 * y.len_bytes() as u64);
        let len = plane_len(&sizes);
        with_float!(x.dtype(), name, T => {
            let (bias, y) = (launch.read::<T>(&bias)?, launch.update::<T>(&mut y)?);
            launch.run(move |cpu| add_to_planes(cpu, y.slice(cpu), len, bias.slice(cpu)))
        })?;
    }
    let bias = bias.cloned();
    Ok(Recorder::record(recorder, y, |recorder| ConvTransposeBackward { conv, bias, x: recorder.save(x) }))
}

/// The elements of a channel of the output.
fn plane_len(sizes: &Sizes) -> usize {
    sizes.patches.input.iter().product()
}

/// The sizes of the convolution from the output to x, and the shape of the output.
fn sizes_of<const D: usize>(
    name: &'static str,
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    options: &ConvTransposeOptions<D>,
) -> Result<(Sizes, Shape)> {
    let ConvTransposeOptions { stride, padding, output_padding, dilation, groups } = *options;
    let wrong_weight = || -> Result<Error> {
        let expected = format!("a weight of {} dims, its first divisible by {groups} groups", D + 2);
        Ok(wrong_shape(name, expected, &weight.weight()?))
    };
    let &[c_in, of_group, ref kernel @ ..] = weight.shape().sizes() else { return Err(wrong_weight()?) };
    if kernel.len() != D
        || kernel.contains(&0)
        || groups == 0
        || of_group == 0
        || !c_in.is_multiple_of(groups)
    {
        return Err(wrong_weight()?);
    }
    let n_out = of_group * groups;
    if let Some(bias) = bias.filter(|bias| bias.shape().sizes() != [n_out]) {
        return Err(wrong_shape(name, format!("a bias of shape [{n_out}]"), &bias.weight()?));
    }
    let n_dims = x.sizes().len();
    if n_dims <= D || x.sizes()[n_dims - D - 1] != c_in {
        let dims = if D == 1 { "L" } else { "H, W" };
        return Err(wrong_shape(name, format!("x of shape [.., {c_in}, {dims}]"), x));
    }
    let (lead, image) = x.sizes().split_at(n_dims - D);
    let output = |d: usize| {
        if stride[d] == 0 || dilation[d] == 0 || output_padding[d] >= stride[d].max(dilation[d]) {
            return Err(Error::Usage(format!(
                "{name}: expected a stride and a dilation of at least 1, and an output padding that is less than one of \
                 them, got {stride:?}, {dilation:?} and {output_padding:?}"
            )));
        }
        let whole = image[d]
            .checked_sub(1)
            .map(|steps| steps * stride[d] + dilation[d] * (kernel[d] - 1) + output_padding[d] + 1);
        whole.and_then(|whole| whole.checked_sub(2 * padding[d])).filter(|n| *n > 0).ok_or_else(|| {
            let dim = lead.len() + d;
            wrong_shape(name, format!("more elements along dim {dim} than the padding cuts off"), x)
        })
    };
    let out = (0..D).map(output).collect::<Result<Vec<_>>>()?;
    let patches = Patches {
        channels: of_group,
        input: plane(&out, 1),
        kernel: plane(kernel, 1),
        stride: plane(&stride, 1),
        padding: plane(&padding, 0),
        dilation: plane(&dilation, 1),
        output: plane(image, 1),
    };
    let lead = &lead[..lead.len() - 1];
    let shape = Shape::new(&[lead, &[n_out], &out].concat())?;
    Ok((Sizes { images: lead.iter().product(), groups, group_out: c_in / groups, patches }, shape))
}

struct ConvTransposeBackward {
    conv: Conv,
    bias: Option<Param>,
    x: Saved,
}

impl Function for ConvTransposeBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (conv, x) = (&self.conv, cx.get(&self.x)?);
        conv.weight_grad(&dy, &x)?;
        bias_grad(conv.name, self.bias.as_ref(), &dy, plane_len(&conv.sizes))?;
        if cx.needs(0) {
            cx.give(0, conv.forward(&dy, *x.shape())?)?;
        }
        Ok(())
    }
}
