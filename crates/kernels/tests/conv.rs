//! Columns and images against plain loops.

use oarlock_kernels::Store;
use oarlock_kernels::conv::{Patches, col2im, im2col};

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
        let image = values::<f32>(1, p.n_elems());
        let grads = values::<f32>(2, p.rows() * p.cols());
        let (columns, back) = same_everywhere(|cpu| {
            let (mut columns, mut back) = (vec![9.0f32; p.rows() * p.cols()], image.clone());
            im2col(cpu, &p, &image, &mut columns);
            col2im(cpu, &p, &grads, &mut back, Store::Add);
            (columns, back)
        });
        let mut want = image.clone();
        for (row, col) in (0..p.rows()).flat_map(|r| (0..p.cols()).map(move |c| (r, c))) {
            let (c, i, j) = (row / (kernel[0] * kernel[1]), row / kernel[1] % kernel[0], row % kernel[1]);
            let h = (col / p.output[1] * stride[0] + i * dilation[0]).checked_sub(padding[0]);
            let w = (col % p.output[1] * stride[1] + j * dilation[1]).checked_sub(padding[1]);
            let at = row * p.cols() + col;
            match (h, w) {
                (Some(h), Some(w)) if h < input[0] && w < input[1] => {
                    let place = (c * input[0] + h) * input[1] + w;
                    assert_eq!(columns[at], image[place], "{p:?}");
                    want[place] += grads[at];
                }
                _ => assert_eq!(columns[at], 0.0, "{p:?}"),
            }
        }
        for (got, want) in back.iter().zip(want) {
            assert!((got - want).abs() < 1e-4, "{p:?}");
        }
    }
}
