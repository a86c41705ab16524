//! Images of another size.

use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops::{self, Interpolation};
use oarlock_tensor::{DType, Device, Tensor};

use crate::common::{array, case};

/// For each place of an output of `n` elements, the places in an input of `size` and their shares.
fn sources(size: usize, n: usize, mode: Interpolation) -> Vec<Vec<(usize, f64)>> {
    let of = |i: usize| match mode {
        Interpolation::Nearest => vec![(i * size / n, 1.0)],
        Interpolation::Linear { align_corners } => {
            let place = match align_corners {
                true if n == 1 => 0.0,
                true => i as f64 * (size - 1) as f64 / (n - 1) as f64,
                false => ((i as f64 + 0.5) * size as f64 / n as f64 - 0.5).clamp(0.0, (size - 1) as f64),
            };
            let share = place - place.floor();
            vec![(place as usize, 1.0 - share), ((place as usize + 1).min(size - 1), share)]
        }
    };
    (0..n).map(of).collect()
}

#[test]
fn images_of_another_size() {
    let modes = [
        Interpolation::Nearest,
        Interpolation::Linear { align_corners: false },
        Interpolation::Linear { align_corners: true },
    ];
    for mode in modes {
        for (from, to) in
            [([3, 4], [6, 8]), ([5, 7], [3, 10]), ([1, 1], [2, 3]), ([4, 3], [1, 3]), ([2, 40], [2, 70])]
        {
            let reference = move |x: &[&[f64]]| {
                let (rows, cols) = (sources(from[0], to[0], mode), sources(from[1], to[1], mode));
                let mut y = Vec::new();
                for image in x[0].chunks(from[0] * from[1]) {
                    for (row, col) in rows.iter().flat_map(|row| cols.iter().map(move |col| (row, col))) {
                        let parts = row.iter().flat_map(|r| col.iter().map(move |c| (r, c)));
                        y.push(parts.map(|((i, a), (j, b))| a * b * image[i * from[1] + j]).sum());
                    }
                }
                y
            };
            let op = move |x: &[Tensor]| ops::interpolate(&x[0], to, mode);
            case("interpolate", [array(1, &[2, 3, from[0], from[1]])], op, reference).check();
        }
    }
    let line = |x: &[Tensor]| ops::interpolate(&x[0], [6], Interpolation::Nearest);
    let doubled = |x: &[&[f64]]| x[0].iter().flat_map(|x| [*x; 2]).collect();
    case("interpolate a line", [array(1, &[3])], line, doubled).check();
}

#[test]
fn values_are_torchs() {
    let device = Device::default();
    let x = Tensor::from_slice(&[1f32, 2.0, 4.0, 8.0, -1.0, 3.0], [1, 1, 2, 3], &device).unwrap();
    let of = |sizes: [usize; 2], mode| ops::interpolate(&x, sizes, mode).unwrap().to_vec::<f32>().unwrap();
    let edges = Interpolation::Linear { align_corners: false };
    let corners = Interpolation::Linear { align_corners: true };
    assert_eq!(
        of([3, 5], Interpolation::Nearest),
        [1.0, 1.0, 2.0, 2.0, 4.0, 1.0, 1.0, 2.0, 2.0, 4.0, 8.0, 8.0, -1.0, -1.0, 3.0]
    );
    for (got, want) in [
        (of([3, 5], edges), vec![1.0, 1.4, 2.0, 3.2, 4.0, 4.5, 2.9, 0.5, 2.3, 3.5, 8.0, 4.4, -1.0, 1.4, 3.0]),
        (
            of([3, 5], corners),
            vec![1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 2.5, 0.5, 2.0, 3.5, 8.0, 3.5, -1.0, 1.0, 3.0],
        ),
        (of([1, 2], edges), vec![3.5, 2.75]),
        (of([1, 2], corners), vec![1.0, 4.0]),
    ] {
        assert!(largest_difference(&got, &want).unwrap() < 1e-5, "{got:?} {want:?}");
    }
    // Integers have neighbors, but nothing between them.
    let labels = Tensor::from_slice(&[1, 2], [1, 2], &device).unwrap();
    let larger = ops::interpolate(&labels, [2, 2], Interpolation::Nearest).unwrap();
    assert_eq!(larger.to_vec::<i32>().unwrap(), [1, 2, 1, 2]);
    let text = ops::interpolate(&labels, [2, 2], edges).unwrap_err().to_string();
    assert_eq!(text, "interpolate: expected a float tensor, got i32");
    let text = ops::interpolate(&labels, [2, 2, 2], edges).unwrap_err().to_string();
    assert_eq!(text, "interpolate: expected at least 3 dims, got [1, 2]");
    let text = ops::interpolate(&x, [0, 2], edges).unwrap_err().to_string();
    assert_eq!(
        text,
        "interpolate: expected at least one element along each dim, and sizes [0, 2] above 0, got [1, 1, 2, 3]"
    );
}

#[test]
fn channels_become_places_and_back() {
    let device = Device::default();
    let x = Tensor::arange(0, 8, 1, DType::F32, &device).unwrap();
    let shuffled = ops::pixel_shuffle(&x.reshape([8, 1, 1]).unwrap(), 2).unwrap();
    assert_eq!(
        (shuffled.sizes(), shuffled.to_vec::<f32>().unwrap()),
        (&[2, 2, 2][..], x.to_vec::<f32>().unwrap())
    );
    let wide = ops::pixel_unshuffle(&x.reshape([1, 1, 2, 4]).unwrap(), 2).unwrap();
    assert_eq!(wide.sizes(), [1, 4, 1, 2]);
    assert_eq!(wide.to_vec::<f32>().unwrap(), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    let places = |x: &[f64]| {
        // [2, 9, 2, 5] with r = 3: [2, 1, 6, 15].
        let at = |i: usize| {
            let (n, h, w) = (i / 90, i / 15 % 6, i % 15);
            x[((n * 9 + h % 3 * 3 + w % 3) * 2 + h / 3) * 5 + w / 3]
        };
        (0..180).map(at).collect::<Vec<f64>>()
    };
    let op = |x: &[Tensor]| ops::pixel_shuffle(&x[0], 3);
    case("pixel_shuffle", [array(1, &[2, 9, 2, 5])], op, move |x| places(x[0])).check();
    let there_and_back = |x: &[Tensor]| ops::pixel_unshuffle(&ops::pixel_shuffle(&x[0], 3)?, 3);
    case("pixel_unshuffle", [array(1, &[2, 9, 2, 5])], there_and_back, |x| x[0].to_vec()).check();
    let text = ops::pixel_shuffle(&x.reshape([2, 2, 2]).unwrap(), 2).unwrap_err().to_string();
    assert_eq!(text, "pixel_shuffle: expected x of shape [.., C * 2 * 2, H, W], got [2, 2, 2]");
    let text = ops::pixel_unshuffle(&x.reshape([2, 2, 2]).unwrap(), 3).unwrap_err().to_string();
    assert_eq!(text, "pixel_unshuffle: expected x of shape [.., C, H * 3, W * 3], got [2, 2, 2]");
}
