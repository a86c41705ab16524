//! Pooling: maxima and means of windows.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, PoolOptions};
use oarlock_tensor::{Device, Par, Tensor};

use crate::common::{Array, array, case};

/// Numbers of which no two are equal, exact in every dtype up to 256 of them.
fn distinct(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| ((i * 89) % 257) as f64 / 32.0 - 4.0).collect();
    Array { shape: shape.to_vec(), data }
}

/// Windows as torch's definition has them, along one dim: the elements that are inside, and the divisor of a mean.
fn windows(size: usize, o: &PoolOptions<2>, d: usize) -> Vec<(Vec<usize>, usize)> {
    let (k, s, p, dilation) = (o.kernel[d], o.stride[d], o.padding[d], o.dilation[d]);
    let rest = size + 2 * p - dilation * (k - 1) - 1;
    let mut n = rest / s + 1;
    if o.ceil_mode && !rest.is_multiple_of(s) && n * s < size + p {
        n += 1;
    }
    let window = |i: usize| {
        let all = (0..k).map(|j| (i * s + j * dilation) as isize - p as isize);
        let inside = all.clone().filter(|&at| at >= 0 && at < size as isize).map(|at| at as usize);
        let inside: Vec<usize> = inside.collect();
        let with_padding = all.filter(|&at| at < (size + p) as isize).count();
        let divisor = if o.count_include_pad { with_padding } else { inside.len() };
        (inside, divisor)
    };
    (0..n).map(window).collect()
}

fn pooled(x: &[f64], [h, w]: [usize; 2], options: &PoolOptions<2>, mean: bool) -> Vec<f64> {
    let (lines, places) = (windows(h, options, 0), windows(w, options, 1));
    let mut y = Vec::new();
    for x in x.chunks(h * w) {
        for ((rows, by), (cols, cols_by)) in lines.iter().flat_map(|l| places.iter().map(move |p| (l, p))) {
            let seen = rows.iter().flat_map(|r| cols.iter().map(move |c| x[r * w + c]));
            y.push(match mean {
                true => seen.sum::<f64>() / (by * cols_by) as f64,
                false => seen.fold(f64::NEG_INFINITY, f64::max),
            });
        }
    }
    y
}

#[test]
fn maxima_and_means_of_windows() {
    let plain = PoolOptions::new([2, 3]);
    for options in [
        plain,
        PoolOptions { stride: [1, 2], padding: [1, 1], ..plain },
        PoolOptions { kernel: [3, 3], stride: [2, 2], padding: [1, 1], ceil_mode: true, ..plain },
        PoolOptions { stride: [2, 2], padding: [1, 0], count_include_pad: false, ceil_mode: true, ..plain },
    ] {
        let size = [5, 8];
        let max = move |x: &[Tensor]| ops::max_pool2d(&x[0], &options);
        case("max_pool2d", [distinct(&[2, 3, 5, 8])], max, move |x| pooled(x[0], size, &options, false))
            .check();
        let mean = move |x: &[Tensor]| ops::avg_pool2d(&x[0], &options);
        case("avg_pool2d", [array(1, &[2, 3, 5, 8])], mean, move |x| pooled(x[0], size, &options, true))
            .check();
    }
    let dilated = PoolOptions { dilation: [2, 2], stride: [1, 1], padding: [1, 1], ..plain };
    let op = move |x: &[Tensor]| ops::max_pool2d(&x[0], &dilated);
    case("max_pool2d", [distinct(&[5, 8])], op, move |x| pooled(x[0], [5, 8], &dilated, false)).check();
}

#[test]
fn windows_of_lines_and_of_adaptive_sizes() {
    let line = PoolOptions { kernel: [1, 3], stride: [1, 2], padding: [0, 1], ..PoolOptions::new([1, 1]) };
    let options = PoolOptions { stride: [2], padding: [1], ..PoolOptions::new([3]) };
    let max = move |x: &[Tensor]| ops::max_pool1d(&x[0], &options);
    case("max_pool1d", [distinct(&[2, 3, 9])], max, move |x| pooled(x[0], [1, 9], &line, false)).check();
    let mean = move |x: &[Tensor]| ops::avg_pool1d(&x[0], &options);
    case("avg_pool1d", [array(1, &[2, 3, 9])], mean, move |x| pooled(x[0], [1, 9], &line, true)).check();

    for output in [1, 2, 3, 7] {
        let op = move |x: &[Tensor]| ops::adaptive_avg_pool2d(&x[0], [output, 2]);
        let reference = move |x: &[&[f64]]| {
            let mut y = Vec::new();
            for x in x[0].chunks(7 * 4) {
                for (i, j) in (0..output).flat_map(|i| (0..2).map(move |j| (i, j))) {
                    let rows = i * 7 / output..((i + 1) * 7).div_ceil(output);
                    let n = (rows.len() * 2) as f64;
                    y.push(rows.map(|r| x[r * 4 + 2 * j] + x[r * 4 + 2 * j + 1]).sum::<f64>() / n);
                }
            }
            y
        };
        case("adaptive_avg_pool2d", [array(1, &[3, 7, 4])], op, reference).check();
    }
    let op = |x: &[Tensor]| ops::adaptive_avg_pool1d(&x[0], 1);
    let mean = |x: &[&[f64]]| x[0].chunks(5).map(|x| x.iter().sum::<f64>() / 5.0).collect();
    case("adaptive_avg_pool1d", [array(1, &[2, 3, 5])], op, mean).check();
}

#[test]
fn nan_is_the_largest_and_misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1.0, f32::NAN, 3.0, 2.0, 5.0, 5.0], [6], &device).unwrap();
    let y = ops::max_pool1d(&x, &PoolOptions::new([3])).unwrap().to_vec::<f32>().unwrap();
    assert!(y[0].is_nan() && y[1] == 5.0);
    let text = |options: PoolOptions<1>| ops::max_pool1d(&x, &options).unwrap_err().to_string();
    let plain = PoolOptions::new([2]);
    assert_eq!(
        text(PoolOptions::new([7])),
        "max_pool1d: expected at least 7 elements with padding 0 along dim 0, got [6]"
    );
    assert_eq!(
        text(PoolOptions { padding: [2], ..plain }),
        "max_pool1d: expected a padding of at most half of a window of 2, got 2"
    );
    assert_eq!(
        text(PoolOptions { stride: [0], ..plain }),
        "max_pool1d: expected a kernel, a stride and a dilation of at least 1, got 0"
    );
    let far = PoolOptions { dilation: [10], padding: [5], ..plain };
    assert_eq!(text(far), "max_pool1d: expected an element in each window along dim 0, got [6]");
    let error = ops::avg_pool1d(&x, &PoolOptions { dilation: [2], ..plain }).unwrap_err().to_string();
    assert_eq!(error, "avg_pool1d: windows of means have no dilation");
    let error = ops::max_pool2d(&x, &PoolOptions::new([2, 2])).unwrap_err().to_string();
    assert_eq!(error, "max_pool2d: expected x of shape [.., H, W], got [6]");
}
