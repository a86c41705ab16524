//! Convolutions in one and two dims.

use oarlock_reference::conv::Conv;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, ConvOptions};
use oarlock_tensor::{Device, Par, Param, Tensor};

use crate::common::{Array, Env, Node, array, formula_case, settle};

/// The sizes of a convolution of images `[n, c, h, w]`; in one dim h is 1.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    c: usize,
    o: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    options: ConvOptions<2>,
}

impl Sizes {
    fn output(&self, d: usize) -> usize {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        (self.input[d] + 2 * padding[d] - dilation[d] * (self.kernel[d] - 1) - 1) / stride[d] + 1
    }

    fn reference(&self) -> Conv {
        let ConvOptions { stride, padding, dilation, groups } = self.options;
        let output = [self.output(0), self.output(1)];
        Conv { input: self.input, output, kernel: self.kernel, stride, padding, dilation, groups }
    }

    fn check(self, with_bias: bool) {
        let ([height, width], [kh, kw]) = (self.input, self.kernel);
        let c_in = self.c / self.options.groups;
        let one_dim = height == 1 && kh == 1 && self.options.padding[0] == 0;
        let (x, w) = if one_dim {
            (array(1, &[self.n, self.c, width]), array(2, &[self.o, c_in, kw]))
        } else {
            (array(1, &[self.n, self.c, height, width]), array(2, &[self.o, c_in, kh, kw]))
        };
        let mut params = vec![w];
        params.extend(with_bias.then(|| array(3, &[self.o])));
        let options = self.options;
        let op = move |_: &Env, x: &[Tensor], p: &[Param]| {
            if one_dim {
                let [stride, padding, dilation] =
                    [options.stride, options.padding, options.dilation].map(|[_, size]| [size]);
                let options = ConvOptions { stride, padding, dilation, groups: options.groups };
                ops::conv1d(&x[0], &p[0], p.get(1), &options)
            } else {
                ops::conv2d(&x[0], &p[0], p.get(1), &options)
            }
        };
        let formula = move |x: &[Node], p: &[Node]| self.reference().conv(&x[0], &p[0], p.get(1));
        formula_case("conv", [x], params, op, formula).check();
    }
}

#[test]
fn convolutions() {
    let plain = ConvOptions::<2>::default();
    let sizes = Sizes { n: 2, c: 4, o: 6, input: [5, 7], kernel: [3, 2], options: plain };
    sizes.check(true);
    sizes.check(false);
    let strided = ConvOptions { stride: [2, 3], padding: [1, 2], ..plain };
    Sizes { kernel: [3, 3], options: strided, ..sizes }.check(true);
    let dilated = ConvOptions { padding: [2, 2], dilation: [2, 3], ..plain };
    Sizes { options: dilated, ..sizes }.check(false);
    let grouped = ConvOptions { groups: 2, padding: [1, 0], ..plain };
    Sizes { options: grouped, ..sizes }.check(true);
    let depthwise = ConvOptions { groups: 4, padding: [1, 1], ..plain };
    Sizes { o: 4, kernel: [3, 3], options: depthwise, ..sizes }.check(true);
    Sizes { kernel: [1, 1], ..sizes }.check(true);
    Sizes { n: 0, ..sizes }.check(true);
    Sizes { n: 1, c: 1, o: 1, input: [1, 1], kernel: [1, 1], options: plain }.check(true);
}

#[test]
fn convolutions_of_lines() {
    let plain = ConvOptions::<2>::default();
    let sizes = Sizes { n: 2, c: 3, o: 5, input: [1, 11], kernel: [1, 4], options: plain };
    sizes.check(true);
    let moved = ConvOptions { stride: [1, 2], padding: [0, 3], dilation: [1, 2], groups: 1 };
    Sizes { options: moved, ..sizes }.check(true);
    let depthwise = ConvOptions { groups: 3, padding: [0, 3], ..plain };
    Sizes { o: 3, options: depthwise, ..sizes }.check(false);
}

#[test]
fn one_image_needs_no_batch() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let (params, _home) = settle(&[array(1, &[2, 3, 3, 3])], oarlock_tensor::DType::F32, &device, true);
    let data = array(2, &[3, 4, 4]).data.iter().map(|x| *x as f32).collect::<Vec<_>>();
    let x = Tensor::from_slice(&data, [3, 4, 4], &device).unwrap();
    let options = ConvOptions::default();
    let one = ops::conv2d(&x, &params[0], None, &options).unwrap();
    let batch = ops::conv2d(&x.reshape([1, 3, 4, 4]).unwrap(), &params[0], None, &options).unwrap();
    assert_eq!((one.sizes(), batch.sizes()), (&[2, 2, 2][..], &[1, 2, 2, 2][..]));
    assert_eq!(one.to_vec::<f32>().unwrap(), batch.to_vec::<f32>().unwrap());
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let shapes: [&[usize]; 3] = [&[4, 3, 3, 3], &[4, 3, 3], &[5]];
    let arrays: Vec<Array> = shapes.iter().map(|shape| array(1, shape)).collect();
    let (params, _home) = settle(&arrays, oarlock_tensor::DType::F32, &device, true);
    let t =
        |shape: &[usize]| Tensor::from_slice(&vec![1f32; shape.iter().product()], shape, &device).unwrap();
    let plain = ConvOptions::default();
    let conv = |x: &Tensor, w: usize, bias: Option<usize>, options| {
        ops::conv2d(x, &params[w], bias.map(|b| &params[b]), &options).unwrap_err().to_string()
    };
    let x = t(&[1, 3, 5, 5]);
    for (got, want) in [
        (
            conv(&t(&[1, 2, 5, 5]), 0, None, plain),
            "conv2d: expected x of shape [.., 3, H, W], got [1, 2, 5, 5]",
        ),
        (
            conv(&t(&[1, 3, 2, 5]), 0, None, plain),
            "conv2d: expected at least 3 elements with padding 0 along dim 2, got [1, 3, 2, 5]",
        ),
        (
            conv(&x, 1, None, plain),
            "conv2d: expected a weight of 4 dims, its outputs divisible by 1 groups, got [4, 3, 3]",
        ),
        (conv(&x, 0, Some(2), plain), "conv2d: expected a bias of shape [4], got [5]"),
        (
            conv(&x, 0, None, ConvOptions { groups: 3, ..plain }),
            "conv2d: expected a weight of 4 dims, its outputs divisible by 3 groups, got [4, 3, 3, 3]",
        ),
        (
            conv(&x, 0, None, ConvOptions { stride: [0, 1], ..plain }),
            "conv2d: expected a stride and a dilation of at least 1, got 0",
        ),
    ] {
        assert_eq!(got, want);
    }
}
