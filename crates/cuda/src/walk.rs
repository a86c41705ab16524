//! The order in which operands with strides are read for a dense output.

/// The most dims of a [`Walk`], once dims over which all operands move evenly are merged.
const MOST_DIMS: usize = 6;

/// Sizes and strides, as kernels take them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    n_dims: u32,
    sizes: [u32; MOST_DIMS],
    strides: [[u32; MOST_DIMS]; 2],
}

impl Walk {
    /// For an output of these sizes, slowest dim first; operand `k` moves by `strides[k][d]` elements along dim `d`. None
    /// if it has more than six dims that cannot be merged, or a number that 32 bits do not hold.
    pub fn new(sizes: &[usize], strides: [&[usize]; 2]) -> Option<Walk> {
        let mut dims: Vec<(usize, [usize; 2])> = vec![];
        for (d, &size) in sizes.iter().enumerate() {
            let step = strides.map(|strides| strides[d]);
            match dims.last_mut() {
                _ if size == 1 => {}
                Some((outer, steps)) if (0..2).all(|k| steps[k] == step[k] * size) => {
                    (*outer, *steps) = (*outer * size, step);
                }
                _ => dims.push((size, step)),
            }
        }
        let mut walk =
            Walk { n_dims: dims.len() as u32, sizes: [1; MOST_DIMS], strides: [[0; MOST_DIMS]; 2] };
        for (d, (size, steps)) in dims.into_iter().enumerate() {
            *walk.sizes.get_mut(d)? = u32::try_from(size).ok()?;
            for (k, step) in steps.into_iter().enumerate() {
                walk.strides[k][d] = u32::try_from(step).ok()?;
            }
        }
        Some(walk)
    }

    /// The same for one operand.
    pub fn of_one(sizes: &[usize], strides: &[usize]) -> Option<Walk> {
        Walk::new(sizes, [strides, strides])
    }

    /// As the bytes that a launch passes.
    pub fn bytes(&self) -> [u8; size_of::<Walk>()] {
        let numbers = [&[self.n_dims][..], &self.sizes, &self.strides[0], &self.strides[1]].concat();
        let mut bytes = [0; size_of::<Walk>()];
        for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_that_move_evenly_are_one() {
        let walk = Walk::new(&[2, 3, 1, 4], [&[12, 4, 9, 1], &[0, 0, 5, 1]]).unwrap();
        let separate = Walk::new(&[6, 4], [&[4, 1], &[0, 1]]).unwrap();
        assert_eq!(walk, separate);
        assert_eq!(Walk::new(&[2; 7], [&[1, 3, 1, 3, 1, 3, 1], &[0; 7]]), None);
    }
}
