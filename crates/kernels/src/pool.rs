//! Pooling: the largest element or the mean of windows of an image.

use crate::dtype::Float;
use crate::instances::instances;
use crate::pieces::{cut, for_pieces};
use crate::{Cpu, Store};

/// What a place of the output sees along one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first element.
    pub first: usize,
    /// Behind the last.
    pub end: usize,
    /// From one element to the next.
    pub step: usize,
    /// What a mean divides by, along this dim.
    pub divisor: usize,
}

/// The windows of an image `[height, width]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Height and width of the image.
    pub input: [usize; 2],
    /// Those of each line of the output.
    pub lines: Vec<Window>,
    /// Those of each place of a line.
    pub places: Vec<Window>,
}

impl Windows {
    /// The elements of an image.
    pub fn n_in(&self) -> usize {
        self.input[0] * self.input[1]
    }

    /// The elements of its output.
    pub fn n_out(&self) -> usize {
        self.lines.len() * self.places.len()
    }

    /// Runs `f(place of the output, lines, places of a line)` for each window.
    fn each(&self, mut f: impl FnMut(usize, &Window, &Window)) {
        for (y, lines) in self.lines.iter().enumerate() {
            for (x, places) in self.places.iter().enumerate() {
                f(y * self.places.len() + x, lines, places);
            }
        }
    }

    /// Runs `f(element)` for the elements of a window, line by line.
    fn elements(&self, lines: &Window, places: &Window, mut f: impl FnMut(usize)) {
        for h in (lines.first..lines.end).step_by(lines.step) {
            (places.first..places.end).step_by(places.step).for_each(|w| f(h * self.input[1] + w));
        }
    }
}

instances! {
    /// The largest element of each window, and where it lies in its image: the first of equals; NaN is the largest.
    pub fn max_forward[T: Float](cpu: &Cpu, windows: &Windows, x: &[T], y: &mut [T], at: &mut [i32]) {
        let (n_in, n_out) = (windows.n_in(), windows.n_out());
        assert!(y.len() == at.len() && x.len() * n_out == y.len() * n_in, "max_forward: lengths");
        let n_images = y.len() / n_out.max(1);
        for_pieces(&cpu.par, n_images, (cut(y, n_out), cut(at, n_out)), |i, (y, at)| {
            let x = &x[i * n_in..][..n_in];
            windows.each(|place, lines, places| {
                let (mut largest, mut from) = (f32::NEG_INFINITY, lines.first * windows.input[1] + places.first);
                windows.elements(lines, places, |element| {
                    let value = x[element].to_f32();
                    if value > largest || value.is_nan() && !largest.is_nan() {
                        (largest, from) = (value, element);
                    }
                });
                (y[place], at[place]) = (x[from], from as i32);
            });
        });
    }
}

instances! {
    /// The gradient goes to the element that was the largest.
    pub fn max_backward[T: Float](
        cpu: &Cpu,
        windows: &Windows,
        at: &[i32],
        dy: &[T],
        dx: (&mut [T], Store),
    ) {
        let (dx, store) = dx;
        assert!(dy.len() == at.len() && dx.len() * windows.n_out() == dy.len() * windows.n_in());
        images_backward(cpu, windows, dy, (dx, store), |first, dy, dx| {
            for (dy, at) in dy.iter().zip(&at[first..]) {
                Store::Add.put(&mut dx[*at as usize], dy.to_f32());
            }
        });
    }
}

instances! {
    /// The sum of each window divided by its divisors.
    pub fn mean_forward[T: Float](cpu: &Cpu, windows: &Windows, x: &[T], y: &mut [T]) {
        let (n_in, n_out) = (windows.n_in(), windows.n_out());
        assert_eq!(x.len() * n_out, y.len() * n_in, "mean_forward: lengths");
        cpu.par.chunks_mut(y, n_out, |i, y| {
            let x = &x[i * n_in..][..n_in];
            windows.each(|place, lines, places| {
                let mut sum = 0.0;
                windows.elements(lines, places, |element| sum += f64::from(x[element].to_f32()));
                y[place] = T::from_f32((sum / (lines.divisor * places.divisor) as f64) as f32);
            });
        });
    }
}

instances! {
    /// The gradient goes to all elements of a window, divided as the sum was.
    pub fn mean_backward[T: Float](cpu: &Cpu, windows: &Windows, dy: &[T], dx: (&mut [T], Store)) {
        let (dx, store) = dx;
        assert_eq!(dx.len() * windows.n_out(), dy.len() * windows.n_in(), "mean_backward: lengths");
        images_backward(cpu, windows, dy, (dx, store), |_, dy, dx| {
            windows.each(|place, lines, places| {
                let part = dy[place].to_f32() / (lines.divisor * places.divisor) as f32;
                windows.elements(lines, places, |element| Store::Add.put(&mut dx[element], part));
            });
        });
    }
}

/// Runs `f(first place, dy, dx)` for each image, to add to `dx`.
fn images_backward<T: Float>(
    cpu: &Cpu,
    windows: &Windows,
    dy: &[T],
    (dx, store): (&mut [T], Store),
    f: impl Fn(usize, &[T], &mut [T]) + Sync + Send,
) {
    let n_out = windows.n_out();
    cpu.par.chunks_mut(dx, windows.n_in(), |i, dx| {
        if store == Store::Overwrite {
            dx.fill(T::from_f32(0.0));
        }
        f(i * n_out, &dy[i * n_out..][..n_out], dx);
    });
}
