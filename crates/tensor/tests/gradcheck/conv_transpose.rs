//! Transposed convolutions in one and two dims.

use oarlock_reference::conv::Conv;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, ConvTransposeOptions};
use oarlock_tensor::{DType, Device, Par, Param, Tensor};

use crate::common::{Array, Env, Node, array, formula_case, settle};

/// The sizes of a transposed convolution of images `[n, c, h, w]`; in one dim h is 1.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    c: usize,
    o: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    options: ConvTransposeOptions<2>,
}

impl Sizes {
    fn output(&self, d: usize) -> usize {
        let ConvTransposeOptions { stride, padding, output_padding, dilation, .. } = self.options;
        (self.input[d] - 1) * stride[d] + dilation[d] * (self.kernel[d] - 1) + output_padding[d] + 1
            - 2 * padding[d]
    }

    /// The convolution that it is the transpose of.
    fn reference(&self) -> Conv {
        let ConvTransposeOptions { stride, padding, dilation, groups, .. } = self.options;
        let input = [self.output(0), self.output(1)];
        Conv { input, output: self.input, kernel: self.kernel, stride, padding, dilation, groups }
    }

    fn check(self, with_bias: bool) {
        let ([height, width], [kh, kw]) = (self.input, self.kernel);
        let o_of = self.o / self.options.groups;
        let one_dim = height == 1 && kh == 1 && self.options.padding[0] == 0;
        let (x, w) = if one_dim {
            (array(1, &[self.n, self.c, width]), array(2, &[self.c, o_of, kw]))
        } else {
            (array(1, &[self.n, self.c, height, width]), array(2, &[self.c, o_of, kh, kw]))
        };
        let mut params = vec![w];
        params.extend(with_bias.then(|| array(3, &[self.o])));
        let options = self.options;
        let op = move |_: &Env, x: &[Tensor], p: &[Param]| {
            if one_dim {
                let [stride, padding, output_padding, dilation] =
                    [options.stride, options.padding, options.output_padding, options.dilation]
                        .map(|[_, size]| [size]);
                let groups = options.groups;
                let options = ConvTransposeOptions { stride, padding, output_padding, dilation, groups };
                ops::conv_transpose1d(&x[0], &p[0], p.get(1), &options)
            } else {
                ops::conv_transpose2d(&x[0], &p[0], p.get(1), &options)
            }
        };
        let formula = move |x: &[Node], p: &[Node]| self.reference().transposed(&x[0], &p[0], p.get(1));
        formula_case("transposed conv", [x], params, op, formula).check();
    }
}

#[test]
fn transposed_convolutions() {
    let plain = ConvTransposeOptions::<2>::default();
    let sizes = Sizes { n: 2, c: 4, o: 6, input: [4, 5], kernel: [3, 2], options: plain };
    sizes.check(true);
    sizes.check(false);
    let strided = ConvTransposeOptions { stride: [2, 3], padding: [1, 2], output_padding: [1, 2], ..plain };
    Sizes { kernel: [3, 3], options: strided, ..sizes }.check(true);
    let dilated = ConvTransposeOptions { padding: [2, 2], dilation: [2, 3], ..plain };
    Sizes { options: dilated, ..sizes }.check(false);
    let grouped = ConvTransposeOptions { groups: 2, padding: [1, 0], ..plain };
    Sizes { options: grouped, ..sizes }.check(true);
    let depthwise = ConvTransposeOptions { groups: 4, stride: [2, 2], ..plain };
    Sizes { o: 4, kernel: [2, 2], options: depthwise, ..sizes }.check(true);
    Sizes { kernel: [1, 1], ..sizes }.check(true);
    // More output than places of a kernel of one element.
    let longer = ConvTransposeOptions { dilation: [2, 2], output_padding: [1, 1], ..plain };
    Sizes { kernel: [1, 1], options: longer, ..sizes }.check(true);
    Sizes { n: 0, ..sizes }.check(true);
    Sizes { n: 1, c: 1, o: 1, input: [1, 1], kernel: [1, 1], options: plain }.check(true);
}

#[test]
fn transposed_convolutions_of_lines() {
    let plain = ConvTransposeOptions::<2>::default();
    let sizes = Sizes { n: 2, c: 3, o: 5, input: [1, 9], kernel: [1, 4], options: plain };
    sizes.check(true);
    let moved = ConvTransposeOptions {
        stride: [1, 2],
        padding: [0, 3],
        output_padding: [0, 1],
        dilation: [1, 2],
        groups: 1,
    };
    Sizes { options: moved, ..sizes }.check(false);
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let shapes: [&[usize]; 3] = [&[4, 3, 2, 2], &[4, 3, 2], &[5]];
    let arrays: Vec<Array> = shapes.iter().map(|shape| array(1, shape)).collect();
    let (params, _home) = settle(&arrays, DType::F32, &device, true);
    let plain = ConvTransposeOptions::default();
    let conv = |sizes: &[usize], w: usize, bias: Option<usize>, options| {
        let x = Tensor::zeros(sizes, DType::F32, &device).unwrap();
        ops::conv_transpose2d(&x, &params[w], bias.map(|b| &params[b]), &options).unwrap_err().to_string()
    };
    let sizes = [1, 4, 5, 5];
    for (got, want) in [
        (
            conv(&[1, 2, 5, 5], 0, None, plain),
            "conv_transpose2d: expected x of shape [.., 4, H, W], got [1, 2, 5, 5]",
        ),
        (
            conv(&sizes, 1, None, plain),
            "conv_transpose2d: expected a weight of 4 dims, its first divisible by 1 groups, got [4, 3, 2]",
        ),
        (conv(&sizes, 0, Some(2), plain), "conv_transpose2d: expected a bias of shape [3], got [5]"),
        (
            conv(&sizes, 0, None, ConvTransposeOptions { groups: 3, ..plain }),
            "conv_transpose2d: expected a weight of 4 dims, its first divisible by 3 groups, got [4, 3, 2, 2]",
        ),
        (
            conv(&[1, 4, 1, 5], 0, None, ConvTransposeOptions { padding: [1, 1], ..plain }),
            "conv_transpose2d: expected more elements along dim 2 than the padding cuts off, got [1, 4, 1, 5]",
        ),
        (
            conv(&sizes, 0, None, ConvTransposeOptions { output_padding: [0, 1], ..plain }),
            "conv_transpose2d: expected a stride and a dilation of at least 1, and an output padding that is less than \
             one of them, got [1, 1], [1, 1] and [0, 1]",
        ),
    ] {
        assert_eq!(got, want);
    }
}
