//! Groups: the parameters of a unit that are held alike (one dtype, trained or frozen, sharded or not), with the homes
//! of their weights, gradients and optimizer state.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use oarlock_comm::{Ownership, Region, Sharing};
use oarlock_tensor::ops::optimizer::{Needs, Role, Rule};
use oarlock_tensor::{DType, Device, FlatBuffer, FlatParams, Init, ParamLocation, Shape};

use crate::nn::NamedParam;
use crate::shard::column::{Blocks, Column, Store};
use crate::shard::layout::{BLOCK, Grain, Layout, LayoutParam, runs};
use crate::shard::mesh::Mesh;
use crate::shard::placement::{Gather, Offload, Placement, ShardingConfig, updates_beside};
use crate::shard::plan::{GradientUse, GroupUse};
use crate::shard::pool::flat_of;
use crate::shard::stage::{Tie, TiedGroup};
use crate::shard::state::{GroupState, MASTER};
use crate::shard::topology::Axis;
use crate::{Error, Result};

/// The parameters of one group.
pub(super) struct Group {
    pub layout: Arc<Layout>,
    /// The number of the mesh that it lives on.
    pub mesh: usize,
    pub inits: Vec<Init>,
    pub roles: Vec<Role>,
    /// The home that ops see, where weights and gradients are attached while they are there.
    pub params: Arc<FlatParams>,
    pub trainable: bool,
    pub weights: Weights,
    pub grads: Grads,
    pub state: Arc<GroupState>,
    /// The elements that each rank of the sharding group owns.
    pub owners: Ownership,
    /// The same, cut into reductions.
    pub buckets: Vec<Ownership>,
    /// The number of each parameter's first block among the blocks of the whole model.
    pub first_blocks: Vec<usize>,
    /// Whether weights are gathered in 8 bits, and gradients leave in 4.
    pub in_8_bits: bool,
    pub in_4_bits: bool,
    /// Where other stages of a pipeline have the same parameters.
    pub tied: Option<TiedGroup>,
}

impl Group {
    /// What it is to the order of a step.
    pub fn in_step(&self) -> GroupUse {
        GroupUse {
            elems: self.layout.n_elems(),
            is_gathered: matches!(self.weights, Weights::Gathered),
            gradients: match &self.grads {
                Grads::None => GradientUse::None,
                Grads::Whole(_) => GradientUse::Whole,
                Grads::Sharded { across, .. } => GradientUse::Sharded { across: across.is_some() },
            },
        }
    }
}

/// Where the working copies are.
pub(super) enum Weights {
    /// Always there.
    Resident(Region),
    /// Gathered into a buffer when the unit is used; at rest each rank has what it owns.
    Gathered,
}

/// Where the gradients are.
pub(super) enum Grads {
    /// Nothing is trained.
    None,
    /// A buffer of this rank's own, reduced before the step.
    Whole(Region),
    /// They leave through a buffer when the unit's backward pass is over; this rank keeps the sums of what it owns.
    Sharded {
        sums: FlatBuffer,
        /// The same sums as other sharding groups see them, where there are any.
        across: Option<Region>,
    },
}

/// What the parameters of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    dtype: DType,
    trainable: bool,
    gathered: bool,
    /// In which of both it is sent in few bits.
    in_8_bits: bool,
    in_4_bits: bool,
    /// The number of the tie.
    tie: Option<usize>,
}

impl Kind {
    /// How a parameter is held; `in_unit` says whether there is a unit that can gather it.
    pub fn of(
        param: &NamedParam,
        options: &ShardingConfig,
        shares_memory: bool,
        in_unit: bool,
        tie: Option<usize>,
    ) -> Kind {
        let n_elems = param.param.shape().n_elems();
        let (dtype, trainable) = (param.param.working_dtype(options.dtype), !param.param.is_frozen());
        let quantized = options.quantized;
        let in_8_bits = dtype.is_float() && (quantized.weights || quantized.frozen_weights && !trainable);
        // What is to be rounded on the way is, also where ranks could see one copy: bits do not depend on the transport.
        let apart =
            options.gather == Gather::Copy || options.offload_params.is_some() || !shares_memory || in_8_bits;
        let gathered = in_unit
            && apart
            && options.placements.parameters == Placement::Sharded
            && n_elems >= options.persistence_elems;
        Kind {
            dtype,
            trainable,
            gathered,
            in_8_bits: gathered && in_8_bits,
            in_4_bits: in_unit && trainable && quantized.gradients && param.param.shape().sizes().len() > 1,
            tie,
        }
    }
}

/// What all groups of an engine are made with.
pub(super) struct GroupBuilder<'a> {
    /// The mesh that groups live on.
    pub mesh: &'a Mesh,
    pub device: &'a Device,
    pub options: &'a ShardingConfig,
    pub rule: &'a Rule,
    /// Files for offloaded state, and their length so far.
    pub optimizer_file: Option<(Arc<File>, u64)>,
    pub params_file: Option<(Arc<File>, u64)>,
    /// The blocks of the model so far: what each parameter's begin with, by its id, however it is grouped.
    pub first_blocks: HashMap<usize, usize>,
    pub n_blocks: usize,
    /// What is on several stages of a pipeline.
    pub ties: &'a [Tie],
}

impl GroupBuilder<'_> {
    /// Numbers the blocks of a model's parameters.
    pub fn count(&mut self, named: &[NamedParam]) {
        for named in named {
            self.first_blocks.insert(named.param.id(), self.n_blocks);
            self.n_blocks += named.param.shape().n_elems().div_ceil(BLOCK);
        }
    }

    /// A group of parameters that are held alike. `in_unit` says whether a unit's hooks surround their use.
    pub fn group(
        &mut self,
        index: usize,
        kind: Kind,
        named: &[NamedParam],
        in_unit: bool,
        param_group: &dyn Fn(&NamedParam) -> usize,
        role: &dyn Fn(&NamedParam) -> Role,
    ) -> Result<Group> {
        let grain = match self.rule.needs() {
            Needs::Elementwise => Grain::Blocks,
            Needs::Blocks => Grain::BlocksOfParameters,
            Needs::WholeParameters => Grain::Parameters,
        };
        let layout = Arc::new(Layout::new(
            named.iter().map(|p| (p.name.clone(), *p.param.shape(), param_group(p))),
            grain,
        ));
        let roles: Vec<Role> = named.iter().map(role).collect();
        let (shard, replica) = (self.mesh.shard(), self.mesh.get(Axis::Replicate));
        let n_elems = layout.n_elems();
        let n = shard.world_size();
        let owned = layout.owned(shard.rank(), n);
        let updated = match self.options.placements.optimizer {
            Placement::Whole => 0..n_elems,
            Placement::Sharded => owned.clone(),
        };
        let (replicas, replica) = replica.map_or((1, 0), |across| (across.world_size(), across.rank()));
        let tie = kind.tie.and_then(|tie| self.ties.get(tie));
        let saved = match tie {
            Some(Tie { is_first: false, .. }) => 0..0,
            _ => layout.owned(shard.rank() * replicas + replica, n * replicas),
        };
        let tied = tie.map(|tie| TiedGroup::new(tie, updated.len())).transpose()?;
        let ranges: Vec<_> = (0..n).map(|rank| layout.owned(rank, n)).collect();
        let owners = Ownership::new(ranges.iter().map(|range| vec![range.clone()]).collect())?;
        let buckets = cut(&ranges, n_elems, self.options.reduce_bucket_elems)?;

        let places: Vec<ParamLocation> = layout.params().iter().map(|p| p.place).collect();
        let params = Arc::new(FlatParams::detached(places, kind.dtype, kind.trainable, self.device));
        let (weights, working) = self.weights(index, kind, &layout, &updated, &params)?;
        let grads = self.grads(index, kind, in_unit, &layout, &owned, &params)?;
        let state = self.state(kind, &layout, &roles, updated, saved, working)?;
        let first_block = |p: &NamedParam| self.first_blocks.get(&p.param.id()).copied().unwrap_or(0);
        let first_blocks = named.iter().map(first_block).collect();
        Ok(Group {
            mesh: 0,
            inits: named.iter().map(|p| p.param.init()).collect(),
            roles,
            params,
            trainable: kind.trainable,
            weights,
            grads,
            state: Arc::new(state),
            owners,
            buckets,
            first_blocks,
            in_8_bits: kind.in_8_bits,
            in_4_bits: kind.in_4_bits,
            tied,
            layout,
        })
    }

    /// The home of the working copies, and the column of those that this rank updates.
    fn weights(
        &mut self,
        index: usize,
        kind: Kind,
        layout: &Layout,
        updated: &Range<usize>,
        params: &FlatParams,
    ) -> Result<(Weights, Column)> {
        let size = kind.dtype.size();
        if kind.gathered {
            let store = match &mut self.params_file {
                Some(file) => span(file, updated.len() * size)?,
                None => {
                    let pinned = self.options.offload_params.is_some();
                    memory(self.device, pinned, updated.len() * size, "sharded parameters")?
                }
            };
            return Ok((Weights::Gathered, Column::of_elements(MASTER, kind.dtype, store, updated.start)));
        }
        let sharing = match (self.options.placements.optimizer, self.options.gather) {
            (Placement::Sharded, Gather::InPlace) => Sharing::Replicated,
            _ => Sharing::PerRank,
        };
        let name = format!("weights {index}");
        let region = self.mesh.shard().allocate(&name, layout.n_elems() * size, sharing)?;
        let flat = self.flat(&region, "working weights")?;
        params.attach_weights(flat.clone())?;
        let column = Column::of_elements(MASTER, kind.dtype, Store::Memory(flat), 0);
        Ok((Weights::Resident(region), column))
    }

    /// The elements of a region, where launches use them.
    fn flat(&self, region: &Region, what: &'static str) -> Result<FlatBuffer> {
        let is_alone = self.mesh.shard().world_size() == 1 && self.mesh.get(Axis::Replicate).is_none();
        flat_of(region, is_alone, self.device, what)
    }

    fn grads(
        &self,
        index: usize,
        kind: Kind,
        in_unit: bool,
        layout: &Layout,
        owned: &Range<usize>,
        params: &FlatParams,
    ) -> Result<Grads> {
        if !kind.trainable {
            return Ok(Grads::None);
        }
        let replica = self.mesh.get(Axis::Replicate);
        if self.options.placements.gradients == Placement::Whole || !in_unit && replica.is_none() {
            let name = format!("gradients {index}");
            let region = self.mesh.shard().allocate(&name, layout.n_elems() * 4, Sharing::PerRank)?;
            params.attach_grads(self.flat(&region, "gradients")?)?;
            return Ok(Grads::Whole(region));
        }
        let bytes = owned.len() * 4;
        match replica {
            Some(replica) => {
                let name = format!("gradient sums {index}");
                let region = replica.allocate(&name, bytes, Sharing::PerRank)?;
                Ok(Grads::Sharded { sums: region.flat(), across: Some(region) })
            }
            None => Ok(Grads::Sharded {
                sums: FlatBuffer::pooled(self.device, bytes, "gradient sums")?,
                across: None,
            }),
        }
    }

    fn state(
        &mut self,
        kind: Kind,
        layout: &Arc<Layout>,
        roles: &[Role],
        updated: Range<usize>,
        saved: Range<usize>,
        weights: Column,
    ) -> Result<GroupState> {
        let (device, beside) = (self.device, updates_beside(self.options, self.device));
        let mut memory_or_file = |n_elems: usize, what: &'static str| match &mut self.optimizer_file {
            Some(file) => span(file, n_elems * 4),
            None => memory(device, beside, n_elems * 4, what),
        };
        // Where a CPU updates weights of a GPU, they are not a master that it could work on.
        let is_far = beside && matches!(&weights.store, Store::Memory(flat) if !flat.is_pinned());
        let mut master = None;
        let mut moments = Vec::new();
        if kind.trainable {
            if kind.dtype != DType::F32 || is_far {
                let store = memory_or_file(updated.len(), "master weights")?;
                master = Some(Column::of_elements(MASTER, DType::F32, store, updated.start));
            }
            for (which, &name) in self.rule.state_names().iter().enumerate() {
                let shapes: Vec<_> = layout
                    .params()
                    .iter()
                    .zip(roles)
                    .map(|(p, &role)| self.rule.state_shape(which, &p.place.shape, role))
                    .collect();
                let column = match self.rule.needs() {
                    Needs::Elementwise => {
                        let store = memory_or_file(updated.len(), "optimizer state")?;
                        Column::of_elements(name, DType::F32, store, updated.start)
                    }
                    Needs::Blocks => {
                        let (blocks, end) = blocks(layout, &shapes, &updated);
                        Column::of_blocks(name, memory_or_file(end, "optimizer state")?, blocks)
                    }
                    Needs::WholeParameters => {
                        let mut end = 0;
                        let mut places = Vec::new();
                        for (param, shape) in layout.params().iter().zip(&shapes) {
                            let here = updated.start <= param.place.first && param.range().end <= updated.end;
                            let len = shape.filter(|_| here).map_or(0, |shape| shape.n_elems());
                            places.push(end..end + len);
                            end += len;
                        }
                        Column::of_parameters(name, memory_or_file(end, "optimizer state")?, places)
                    }
                };
                moments.push((column, shapes));
            }
        }
        Ok(GroupState {
            layout: layout.clone(),
            updated,
            saved,
            weights,
            master,
            moments,
            gate: Arc::default(),
        })
    }
}

/// What a column holds for the parameters whose blocks it has, given the shapes of the state, and its length.
fn blocks(layout: &Layout, shapes: &[Option<Shape>], updated: &Range<usize>) -> (Vec<Blocks>, usize) {
    let mut end = 0;
    let of = |(param, shape): (&LayoutParam, &Option<Shape>)| {
        let range = param.range();
        let first = range.start;
        let here = updated.start.clamp(first, range.end)..updated.end.clamp(first, range.end);
        let is_packed = shape.is_some_and(|shape| shape != param.place.shape);
        let mut blocks = Blocks { at: end, first, elements: 0..0, is_packed };
        if shape.is_some() && !here.is_empty() {
            blocks.elements = blocks.of(&here);
        }
        end += blocks.elements.len();
        blocks
    };
    (layout.params().iter().zip(shapes).map(of).collect(), end)
}

/// A file for offloaded state, which vanishes with its last user.
pub(super) fn offload_file(offload: Option<&Offload>) -> Result<Option<(Arc<File>, u64)>> {
    let Some(Offload { dir, sub_group_elems, buffers }) = offload else { return Ok(None) };
    if *sub_group_elems == 0 || *buffers == 0 {
        return Err(Error::Usage("offloading needs at least one buffer of at least one element".to_string()));
    }
    let Some(dir) = dir else { return Ok(None) };
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let file = crate::disk::unnamed_file(dir).map_err(Error::io("create a file in", dir))?;
    Ok(Some((Arc::new(file), 0)))
}

/// Memory of a device, or pinned beside it.
fn memory(device: &Device, pinned: bool, bytes: usize, what: &'static str) -> Result<Store> {
    Ok(Store::Memory(match pinned {
        true => FlatBuffer::pinned(device, bytes, what)?,
        false => FlatBuffer::pooled(device, bytes, what)?,
    }))
}

/// Adds zeros at the end of a file.
fn span((file, end): &mut (Arc<File>, u64), bytes: usize) -> Result<Store> {
    let first_byte = *end;
    // Pages of the file, so that pieces do not share any.
    *end += (bytes as u64).next_multiple_of(4096);
    file.set_len(*end).map_err(Error::io("extend", "the file of offloaded state"))?;
    Ok(Store::File { file: file.clone(), first_byte })
}

/// Cuts what the ranks own into reductions of at most `bucket` elements.
fn cut(ranges: &[Range<usize>], n_elems: usize, bucket: usize) -> Result<Vec<Ownership>> {
    let mut buckets = Vec::new();
    for Range { start, end } in runs(0..n_elems, bucket) {
        let inside = |range: &Range<usize>| {
            let part = range.start.clamp(start, end)..range.end.clamp(start, end);
            if part.is_empty() { Vec::new() } else { vec![part] }
        };
        buckets.push(Ownership::new(ranges.iter().map(inside).collect())?);
    }
    Ok(buckets)
}
