//! Columns and images against plain loops.

use oarlock_kernels::Store;
use oarlock_kernels::conv::{Patches, col2im, im2col};
use oarlock_reference::conv::Conv;

use crate::everywhere::{same_everywhere, values};

#[test]
fn columns_and_images_are_each_others_transposes() {
    for (input, kernel, stride, padding, dilation) in [
        ([5, 7], [3, 2], [1, 1], [0, 0], [1, 1]),
        ([5, 7], [3, 3], [2, 3], [1, 2], [1, 1]),
        ([1, 300], [1, 5], [1, 1], [0, 2], [1, 3]),
        ([9, 150], [3, 4], [2, 2], [3, 4], [2, 1]),
        ([2, 2], [5, 5], [1, 1], [3, 3], [1, 1]),
        ([4, 3], [1, 1], [1, 1], [0, 0], [1, 1]),
    ] {
        let out = |d: usize| (input[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
        let p = Patches { channels: 3, input, kernel, stride, padding, dilation, output: [out(0), out(1)] };
        let taps = Conv { input, output: p.output, kernel, stride, padding, dilation, groups: 1 }.taps();
        let image = values::<f32>(1, p.n_elems());
        let grads = values::<f32>(2, p.rows() * p.cols());
        let (columns, back) = same_everywhere(|cpu| {
            let (mut columns, mut back) = (vec![9.0f32; p.rows() * p.cols()], image.clone());
            im2col(cpu, &p, &image, &mut columns);
            col2im(cpu, &p, &grads, &mut back, Store::Add);
            (columns, back)
        });
        let mut want = image.clone();
        let places = input[0] * input[1];
        let mut seen = vec![0.0; columns.len()];
        for (channel, [tap, col, from]) in (0..3).flat_map(|c| taps.iter().map(move |tap| (c, *tap))) {
            let at = (channel * kernel[0] * kernel[1] + tap) * p.cols() + col;
            seen[at] = image[channel * places + from];
            want[channel * places + from] += grads[at];
        }
        assert_eq!(columns, seen, "{p:?}");
        for (got, want) in back.iter().zip(want) {
            assert!((got - want).abs() < 1e-4, "{p:?}");
        }
    }
}
