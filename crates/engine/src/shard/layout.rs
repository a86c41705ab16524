//! The layout of a group of parameters: where each lies in the group's flat buffers, and which rank owns which elements.
//!
//! ```text
//! flat buffer   | q_proj .........| k_proj ..|pad| norm |pad|   each parameter starts at a multiple of 16 elements
//! blocks        |0    |1    |2    |0    |1   |   |0     |       of 4096 elements, counted from the parameter's start
//! owners, N=2   |rank 0           |rank 1                 |     whole blocks, contiguous, in rank order
//! ```
//!
//! The layout depends on the parameters alone, and on a GPU matrices come before vectors ([`in_order_on`]). Sums over elements go block by block, and only whole blocks change
//! hands, so no sum depends on the number of ranks, or on how parameters are grouped.

use std::ops::Range;
use std::rc::Rc;

use oarlock_tensor::ops::optimizer::Role;
use oarlock_tensor::{Device, ParamLocation, Shape};

use crate::nn::NamedParam;

/// Elements of a block: what is owned, and summed, as a whole.
pub const BLOCK: usize = oarlock_tensor::ops::update::NORM_BLOCK;

/// Parameters start at multiples of this many elements: 64 bytes in f32.
const ALIGN: usize = 16;

/// A range in runs of at most `most` elements.
pub(crate) fn runs(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(most).map(move |start| start..end.min(start.saturating_add(most)))
}

/// The parameters of a group in the order in which they lie on a device. On a GPU matrices come before vectors, so that no bias
/// is between the weights of projections that are multiplied by at once, or between runs of weights of one update.
pub fn in_order_on(device: &Device, mut params: Vec<NamedParam>) -> Vec<NamedParam> {
    if device.is_gpu() {
        params.sort_by_key(|named| named.param.shape().sizes().len() < 2);
    }
    params
}

/// One parameter in a group's flat buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutParam {
    /// Its name in the model.
    pub name: String,
    /// Its first element and its shape.
    pub place: ParamLocation,
    /// Which of the optimizer's parameter groups has its hyperparameters.
    pub param_group: usize,
}

impl LayoutParam {
    /// Its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.place.first..self.place.first + self.place.shape.n_elems()
    }

    /// What it is to an optimizer.
    pub fn role(&self) -> Role {
        role_of(&self.name, &self.place.shape)
    }

    /// The number of its blocks.
    pub fn n_blocks(&self) -> usize {
        self.place.shape.n_elems().div_ceil(BLOCK)
    }
}

/// What a parameter of this name and shape is to an optimizer.
pub fn role_of(name: &str, shape: &Shape) -> Role {
    match shape.sizes() {
        // The adapter of an embedding is none itself.
        _ if name.contains("embed") && !name.contains("lora_") => Role::Embedding,
        [_, _] if !name.contains("embed") && !name.contains("lm_head") => Role::Matrix,
        _ => Role::Other,
    }
}

/// What changes hands as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Blocks of elements.
    Blocks,
    /// Blocks of elements, for optimizers that look at blocks of one parameter at a time.
    BlocksOfParameters,
    /// Parameters, for optimizers that look at all of one at once.
    Parameters,
}

/// Where the parameters of a group lie. Never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    params: Vec<LayoutParam>,
    /// The indices of the parameters in the order of their names.
    by_name: Vec<usize>,
    n_elems: usize,
    grain: Grain,
}

impl Layout {
    /// Places parameters (name, shape, parameter group) one after the other.
    pub fn new(params: impl IntoIterator<Item = (String, Shape, usize)>, grain: Grain) -> Layout {
        let mut end = 0;
        let mut placed = Vec::new();
        for (name, shape, param_group) in params {
            placed.push(LayoutParam { name, place: ParamLocation { first: end, shape }, param_group });
            end = (end + shape.n_elems()).next_multiple_of(ALIGN);
        }
        let mut by_name: Vec<usize> = (0..placed.len()).collect();
        by_name.sort_by_key(|&index| &placed[index].name);
        Layout { params: placed, by_name, n_elems: end, grain }
    }

    /// The same places, cut into other grains.
    #[must_use]
    pub fn with_grain(self, grain: Grain) -> Layout {
        Layout { grain, ..self }
    }

    /// The parameters in order.
    pub fn params(&self) -> &[LayoutParam] {
        &self.params
    }

    /// The index of the parameter of this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let at = self.by_name.binary_search_by(|&index| self.params[index].name.as_str().cmp(name));
        at.ok().map(|at| self.by_name[at])
    }

    /// Elements of the flat buffer, padding included.
    pub fn n_elems(&self) -> usize {
        self.n_elems
    }

    /// The number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.params.iter().map(LayoutParam::n_blocks).sum()
    }

    /// The elements that a rank owns: whole grains, as evenly as they allow.
    pub fn owned(&self, rank: usize, world_size: usize) -> Range<usize> {
        let edge = |r: usize| match r {
            r if r == world_size => self.n_elems,
            r => self.nearest_edge(self.n_elems * r / world_size),
        };
        edge(rank)..edge(rank + 1)
    }

    /// The place nearest to element `at` where a grain begins.
    fn nearest_edge(&self, at: usize) -> usize {
        let index = self.params.partition_point(|p| p.place.first <= at).saturating_sub(1);
        let Some(param) = self.params.get(index) else { return 0 };
        let (start, next) = (param.place.first, self.params.get(index + 1).map(|p| p.place.first));
        let next = next.unwrap_or(self.n_elems);
        let (below, above) = match self.grain {
            Grain::Parameters => (start, next),
            Grain::Blocks | Grain::BlocksOfParameters => {
                let below = start + (at - start) / BLOCK * BLOCK;
                (below, if below + BLOCK < param.range().end { below + BLOCK } else { next })
            }
        };
        if at - below <= above - at { below } else { above }
    }

    /// The parts of parameters inside `range`: (parameter's index, elements of the flat buffer).
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.params.iter().enumerate().filter_map(move |(index, param)| {
            let own = param.range();
            let part = own.start.max(range.start)..own.end.min(range.end);
            (!part.is_empty()).then_some((index, part))
        })
    }

    /// What an optimizer updates at once, with the first parameter of each: whole parameters where those are the grain,
    /// otherwise runs of at most `most` elements of one parameter group, or of blocks of one parameter. `step` is the number of the step for a
    /// parameter, the same for all of a run, and `None` for one that the step leaves out.
    pub fn pieces<'a>(
        &'a self,
        range: Range<usize>,
        most: usize,
        step: impl Fn(usize) -> Option<u64> + 'a,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        let (whole, apart) = (self.grain == Grain::Parameters, self.grain != Grain::Blocks);
        let most = if apart { most.max(BLOCK) / BLOCK * BLOCK } else { most.max(1) };
        let cut = move |(param, part): (usize, Range<usize>)| {
            let most = if whole { part.len() } else { most };
            runs(part, most).map(move |run| (param, run))
        };
        let step = Rc::new(step);
        let taken = step.clone();
        let taken = self.parts(range).filter(move |(param, _)| taken(*param).is_some());
        let mut cuts = taken.flat_map(cut).peekable();
        std::iter::from_fn(move || {
            let (param, Range { start, mut end }) = cuts.next()?;
            let mut last = param;
            let joins = |last: usize, next: &(usize, Range<usize>)| {
                !apart
                    && next.0 <= last + 1
                    && step(next.0) == step(param)
                    && self.params[next.0].param_group == self.params[param].param_group
                    && next.1.end - start <= most
            };
            // Padding between parameters holds zeros and stays zero: it may be stepped over in one run.
            while let Some((index, next)) = cuts.next_if(|next| joins(last, next)) {
                (last, end) = (index, next.end);
            }
            Some((param, start..end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_are_found_by_their_names() {
        // So many that a walk through all of them for each would take minutes.
        let names: Vec<String> =
            (0..100_000).map(|i| format!("blocks.{}.weight", i * 7919 % 100_000)).collect();
        let shape = Shape::new(&[3]).unwrap();
        let layout = Layout::new(names.iter().map(|name| (name.clone(), shape, 0)), Grain::Blocks);
        for (index, name) in names.iter().enumerate() {
            assert_eq!(layout.index_of(name), Some(index), "{name}");
        }
        for other in ["", "blocks.5", "blocks.100000.weight", "z"] {
            assert_eq!(layout.index_of(other), None);
        }
    }

    proptest! {
        #[test]
        fn owners_cover_all_elements_once_in_whole_grains(
            sizes in prop::collection::vec(1usize..20_000, 1..12), world in 1usize..9, whole in any::<bool>(),
        ) {
            let grain = if whole { Grain::Parameters } else { Grain::Blocks };
            let shapes = sizes.iter().map(|&n| (String::new(), Shape::new(&[n]).unwrap(), 0));
            let layout = Layout::new(shapes, grain);
            let mut next = 0;
            for rank in 0..world {
                let owned = layout.owned(rank, world);
                prop_assert_eq!(owned.start, next);
                next = owned.end;
                for (index, part) in layout.parts(owned.clone()) {
                    let own = layout.params()[index].range();
                    prop_assert!((part.start - own.start).is_multiple_of(BLOCK));
                    prop_assert!(part.end == own.end || (part.end - own.start).is_multiple_of(BLOCK));
                    prop_assert!(!whole || part == own);
                }
                if !whole {
                    prop_assert!(owned.len() <= layout.n_elems() / world + 2 * BLOCK);
                }
            }
            prop_assert_eq!(next, layout.n_elems());
            let mut covered = vec![0u8; layout.n_elems()];
            for rank in 0..world {
                for (_, part) in layout.parts(layout.owned(rank, world)) {
                    part.for_each(|i| covered[i] += 1);
                }
            }
            let real: usize = sizes.iter().sum();
            prop_assert_eq!(covered.iter().map(|&c| c as usize).sum::<usize>(), real);
            prop_assert!(covered.iter().all(|&c| c <= 1));
            prop_assert!(layout.params().iter().all(|p| p.place.first % ALIGN == 0));
        }

        #[test]
        fn pieces_cover_what_is_owned_in_runs_of_one_parameter_group(
            params in prop::collection::vec((1usize..20_000, 0usize..3, prop::option::of(3u64..5)), 1..12),
            world in 1usize..5, whole in any::<bool>(), most in 1usize..30_000,
        ) {
            let most = most.max(100);
            let grain = if whole { Grain::Parameters } else { Grain::Blocks };
            let param = |&(n, group, _): &(usize, usize, Option<u64>)| (String::new(), Shape::new(&[n]).unwrap(), group);
            let layout = Layout::new(params.iter().map(param), grain);
            for rank in 0..world {
                let owned = layout.owned(rank, world);
                let pieces: Vec<_> = layout.pieces(owned.clone(), most, |param| params[param].2).collect();
                prop_assert!(pieces.windows(2).all(|two| two[0].1.end <= two[1].1.start));
                for (index, part) in layout.parts(owned) {
                    let of = pieces.iter().filter(|(_, flat)| flat.start < part.end && part.start < flat.end);
                    let of: Vec<_> = of.collect();
                    if params[index].2.is_none() {
                        prop_assert!(of.is_empty());
                        continue;
                    }
                    let inside = of.iter().map(|(_, f)| f.end.min(part.end) - f.start.max(part.start));
                    prop_assert_eq!(inside.sum::<usize>(), part.len());
                    let group = layout.params()[index].param_group;
                    prop_assert!(of.iter().all(|(first, _)| layout.params()[*first].param_group == group));
                    prop_assert!(of.iter().all(|(first, _)| params[*first].2 == params[index].2));
                    prop_assert!(!whole || of == [&(index, part)]);
                }
                prop_assert!(whole || pieces.iter().all(|(_, flat)| flat.len() <= most));
            }
        }
    }
}
