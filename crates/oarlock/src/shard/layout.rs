//! The layout of a unit: where each parameter lies in the unit's flat buffers, and which rank owns which elements.
//!
//! ```text
//! flat buffer   | q_proj ......| k_proj ..|pad| norm |pad|   each parameter starts at a multiple of 16 elements
//! blocks        |0      |1      |2      |3      |4   |       of 4096 elements, the last may be shorter
//! owners, N=2   |rank 0         |rank 1              |       whole blocks, contiguous, in rank order
//! ```
//!
//! The layout depends on the parameters alone. Sums over elements go block by block, and only whole blocks change
//! hands, so no sum depends on the number of ranks.

use std::ops::Range;

use oarlock_tensor::{Place, Shape};

/// Elements of a block: what is owned, and summed, as a whole.
pub const BLOCK: usize = oarlock_tensor::ops::update::NORM_BLOCK;

/// Parameters start at multiples of this many elements: 64 bytes in f32.
const ALIGN: usize = 16;

/// One parameter in a unit's flat buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutParam {
    /// Its name in the model.
    pub name: String,
    /// Its first element and its shape.
    pub place: Place,
    /// Whether weight decay applies to it.
    pub decay: bool,
}

impl LayoutParam {
    /// Its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.place.first..self.place.first + self.place.shape.n_elems()
    }
}

/// Where the parameters of a unit lie. Never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    params: Vec<LayoutParam>,
    n_elems: usize,
}

impl Layout {
    /// Places parameters (name, shape, decay) one after the other.
    pub fn new(params: impl IntoIterator<Item = (String, Shape, bool)>) -> Layout {
        let mut end = 0;
        let mut placed = Vec::new();
        for (name, shape, decay) in params {
            placed.push(LayoutParam { name, place: Place { first: end, shape }, decay });
            end = (end + shape.n_elems()).next_multiple_of(ALIGN);
        }
        Layout { params: placed, n_elems: end }
    }

    /// The parameters in order.
    pub fn params(&self) -> &[LayoutParam] {
        &self.params
    }

    /// Elements of the flat buffer, padding included.
    pub fn n_elems(&self) -> usize {
        self.n_elems
    }

    /// The number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_elems.div_ceil(BLOCK)
    }

    /// The elements that a rank owns: whole blocks, as evenly as blocks allow.
    pub fn owned(&self, rank: usize, world_size: usize) -> Range<usize> {
        let edge = |r: usize| (self.n_blocks() * r / world_size * BLOCK).min(self.n_elems);
        edge(rank)..edge(rank + 1)
    }

    /// The parts of parameters inside `range`: (parameter, elements of the flat buffer).
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&LayoutParam, Range<usize>)> {
        self.params.iter().filter_map(move |param| {
            let own = param.range();
            let part = own.start.max(range.start)..own.end.min(range.end);
            (!part.is_empty()).then_some((param, part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn owners_cover_all_elements_once_in_whole_blocks(
            sizes in prop::collection::vec(1usize..20_000, 1..12), world in 1usize..9,
        ) {
            let layout = Layout::new(sizes.iter().map(|&n| (String::new(), Shape::new(&[n]).unwrap(), true)));
            let mut next = 0;
            for rank in 0..world {
                let owned = layout.owned(rank, world);
                prop_assert_eq!(owned.start, next);
                prop_assert!(owned.start.is_multiple_of(BLOCK) || owned.is_empty());
                prop_assert!(owned.len() <= (layout.n_blocks() / world + 1) * BLOCK);
                next = owned.end;
            }
            prop_assert_eq!(next, layout.n_elems());
            let mut covered = vec![0u8; layout.n_elems()];
            for rank in 0..world {
                for (param, part) in layout.parts(layout.owned(rank, world)) {
                    prop_assert!(param.range().start <= part.start && part.end <= param.range().end);
                    part.for_each(|i| covered[i] += 1);
                }
            }
            let real: usize = sizes.iter().sum();
            prop_assert_eq!(covered.iter().map(|&c| c as usize).sum::<usize>(), real);
            prop_assert!(covered.iter().all(|&c| c <= 1));
            prop_assert!(layout.params().iter().all(|p| p.place.first % ALIGN == 0));
        }
    }
}
