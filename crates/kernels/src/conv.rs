//! Convolutions as matrix products: the patches of an image as columns of a matrix, and columns added back to an image.

use std::ops::Range;

use crate::dtype::Float;
use crate::instances::instances;
use crate::{Cpu, Store};

/// Columns that are summed at once; they stay in registers or the nearest cache.
const BLOCK: usize = 64;

/// The patches of an image `[channels, height, width]` that a kernel sees, one for each place of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches {
    /// Channels of the image.
    pub channels: usize,
    /// Height and width of the image.
    pub input: [usize; 2],
    /// Those of the kernel.
    pub kernel: [usize; 2],
    /// Elements from one patch to the next.
    pub stride: [usize; 2],
    /// Zeros before and after the image.
    pub padding: [usize; 2],
    /// Elements from one element of a patch to the next.
    pub dilation: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
}

impl Patches {
    /// The elements of a patch: rows of the matrix.
    pub fn rows(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// The number of patches: its columns.
    pub fn cols(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// The elements of the image.
    pub fn n_elems(&self) -> usize {
        self.channels * self.input[0] * self.input[1]
    }

    /// Whether the matrix is the image itself.
    pub fn is_image(&self) -> bool {
        self.kernel == [1; 2] && self.stride == [1; 2] && self.padding == [0; 2] && self.input == self.output
    }

    /// Where element `i` of the first patch lies along a dim.
    fn offset(&self, dim: usize, i: usize) -> isize {
        (i * self.dilation[dim]) as isize - self.padding[dim] as isize
    }

    /// The patches whose element at `offset` lies in `places` of a dim.
    fn inside(&self, dim: usize, offset: isize, places: Range<usize>) -> Range<usize> {
        let stride = self.stride[dim] as isize;
        // The first patch at or behind a place.
        let first = |place: usize| {
            let distance = place as isize - offset;
            if distance <= 0 { 0 } else { ((distance + stride - 1) / stride) as usize }
        };
        let end = first(places.end).min(self.output[dim]);
        first(places.start).min(end)..end
    }
}

instances! {
    /// Row `(c, i, j)` of `columns` is element `(c, i, j)` of each patch of the image, 0 where a patch leaves it.
    pub fn im2col[T: Float](cpu: &Cpu, patches: &Patches, image: &[T], columns: &mut [T]) {
        let ([height, width], [_, kernel_width]) = (patches.input, patches.kernel);
        assert!(
            image.len() == patches.n_elems() && columns.len() == patches.rows() * patches.cols(),
            "im2col: lengths"
        );
        let out_width = patches.output[1];
        cpu.par.chunks_mut(columns, patches.cols(), |row, columns| {
            let (c, i, j) = (
                row / kernel_width / patches.kernel[0],
                row / kernel_width % patches.kernel[0],
                row % kernel_width,
            );
            let plane = &image[c * height * width..][..height * width];
            let (dy, dx) = (patches.offset(0, i), patches.offset(1, j));
            let (ys, xs) = (patches.inside(0, dy, 0..height), patches.inside(1, dx, 0..width));
            for (y, line) in columns.chunks_exact_mut(out_width).enumerate() {
                if !ys.contains(&y) || xs.is_empty() {
                    line.fill(T::from_f32(0.0));
                    continue;
                }
                let from = &plane[(y * patches.stride[0]).wrapping_add_signed(dy) * width..][..width];
                let from = &from[(xs.start * patches.stride[1]).wrapping_add_signed(dx)..];
                line[..xs.start].fill(T::from_f32(0.0));
                line[xs.end..].fill(T::from_f32(0.0));
                match patches.stride[1] {
                    1 => line[xs.clone()].copy_from_slice(&from[..xs.len()]),
                    stride => {
                        line[xs.clone()].iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, x)| *to = *x);
                    }
                }
            }
        });
    }
}

instances! {
    /// Each element of the image is the sum of the columns' elements that [`im2col`] takes from there, in the order of the
    /// rows.
    pub fn col2im[T: Float](cpu: &Cpu, patches: &Patches, columns: &[f32], image: &mut [T], store: Store) {
        let ([height, width], [kernel_height, kernel_width]) = (patches.input, patches.kernel);
        assert!(
            image.len() == patches.n_elems() && columns.len() == patches.rows() * patches.cols(),
            "col2im: lengths"
        );
        let (cols, out_width, stride) = (patches.cols(), patches.output[1], patches.stride[1]);
        cpu.par.chunks_mut(image, height * width, |c, plane| {
            for (h, line) in plane.chunks_exact_mut(width).enumerate() {
                for (block, line) in line.chunks_mut(BLOCK).enumerate() {
                    let (first, mut sums) = (block * BLOCK, [0.0f32; BLOCK]);
                    for (i, j) in (0..kernel_height).flat_map(|i| (0..kernel_width).map(move |j| (i, j))) {
                        let ys = patches.inside(0, patches.offset(0, i), h..h + 1);
                        let dx = patches.offset(1, j);
                        let xs = patches.inside(1, dx, first..first + line.len());
                        if ys.is_empty() || xs.is_empty() {
                            continue;
                        }
                        let row = (c * kernel_height + i) * kernel_width + j;
                        let from = &columns[row * cols + ys.start * out_width..][xs.clone()];
                        let sums = &mut sums[(xs.start * stride).wrapping_add_signed(dx) - first..];
                        sums.iter_mut().step_by(stride).zip(from).for_each(|(sum, x)| *sum += x);
                    }
                    line.iter_mut().zip(sums).for_each(|(to, sum)| store.put(to, sum));
                }
            }
        });
    }
}

instances! {
    /// Adds to each plane of `len` elements its number.
    pub fn add_to_planes[T: Float](cpu: &Cpu, planes: &mut [T], len: usize, numbers: &[T]) {
        cpu.par.chunks_mut(planes, len, |i, plane| {
            let number = numbers[i % numbers.len()].to_f32();
            plane.iter_mut().for_each(|x| *x = T::from_f32(x.to_f32() + number));
        });
    }
}

instances! {
    /// The sum of the planes of each of `sums`, image after image, in f64.
    pub fn sum_planes[T: Float](cpu: &Cpu, planes: &[T], len: usize, sums: &mut [f32], store: Store) {
        let n = sums.len();
        cpu.par.chunks_mut(sums, 1, |i, sum| {
            let own = planes.chunks_exact(len.max(1)).skip(i).step_by(n);
            let total: f64 = own.map(|plane| plane.iter().map(|x| f64::from(x.to_f32())).sum::<f64>()).sum();
            store.put(&mut sum[0], total as f32);
        });
    }
}
