//! The optimizer's step: one pass over what this rank updates, piece by piece. State that lies in a file is read ahead
//! and written behind on threads of their own, so that both overlap the arithmetic.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use oarlock_tensor::ops::optimizer::{self, Part, Rule, StepArgs, UpdateParts, Workspace};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{Device, FlatBuffer};

use crate::error::{Error, Result};
use crate::shard::column::{Column, Store};
use crate::shard::group::{Grads, Group};
use crate::shard::layout::runs;
use crate::shard::passes::Core;
use crate::shard::state::MASTER;

/// The numbers of a group of parameters in a step: an entry of torch's `param_groups`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroup {
    /// How gradients change weights: the same kind of rule in all groups of an optimizer, each with its own numbers.
    pub rule: Rule,
    /// The learning rate.
    pub lr: f64,
    /// Weight decay; 0 for none.
    pub weight_decay: f64,
}

impl ParamGroup {
    /// What of its numbers is none that training takes, as torch looks at them.
    pub fn check(&self) -> std::result::Result<(), String> {
        let is_rate = |number: f64| number.is_finite() && number >= 0.0;
        if !is_rate(self.lr) {
            return Err(format!("the learning rate {}; it is a number of at least 0", self.lr));
        }
        if !is_rate(self.weight_decay) {
            return Err(format!("the weight decay {}; it is a number of at least 0", self.weight_decay));
        }
        let states = self.rule.state_names();
        let is_wrong = |(index, name): &(usize, &&str)| {
            name.is_empty() || **name == MASTER || states[..*index].contains(*name)
        };
        if self.rule.name().is_empty() {
            return Err("a rule without a name, by which checkpoints know it".to_owned());
        }
        if states.iter().enumerate().any(|at| is_wrong(&at)) {
            return Err(format!(
                "the rule {}, which keeps the states {states:?}; each has a name of its own, and none is \"\" or \
                 \"{MASTER}\" (the weights)",
                self.rule.name()
            ));
        }
        match self.rule.betas() {
            Some(betas) if !betas.iter().all(|beta| (0.0..1.0).contains(beta)) => {
                Err(format!("the betas {} and {}; they are at least 0 and below 1", betas[0], betas[1]))
            }
            _ => Ok(()),
        }
    }
}

/// Elements that are updated at once.
struct Piece {
    group: usize,
    param: usize,
    /// Elements of the group; one whole parameter where the rule needs that.
    flat: Range<usize>,
    /// The number of the step for its parameters.
    step: u64,
}

/// A buffer for each column of a piece that lies in a file and holds something for it, in the columns' order. Which
/// columns these are differs from piece to piece, so the buffers belong to none.
type Staged = Vec<FlatBuffer>;

impl Core {
    /// One step on what this rank updates, with the numbers of each parameter group; `step` is its number for parameter
    /// `.1` of group `.0`, or `None` where the step leaves it out. Waits for whoever holds the state constant.
    pub fn update(
        &self,
        numbers: &[ParamGroup],
        grad_scale: f32,
        step: &dyn Fn(usize, usize) -> Option<u64>,
    ) -> Result<()> {
        let offload = self.options.offload_optimizer.as_ref().or(self.options.offload_params.as_ref());
        let most = offload.map_or(usize::MAX, |offload| offload.sub_group_elems);
        let (in_memory, in_files): (Vec<_>, Vec<_>) = self
            .pieces(most, step)
            .partition(|piece| columns(&self.groups[piece.group]).all(Column::in_memory));
        let workspace_bytes = |piece: &Piece| {
            let group = &self.groups[piece.group];
            let param = &group.layout.params()[piece.param];
            let rule = &numbers[param.param_group].rule;
            optimizer::workspace_bytes(&self.device, rule, &param.place.shape, group.roles[piece.param])
        };
        // One for all: pieces of many sizes would fit into none of each other's.
        let bytes = in_memory.iter().chain(&in_files).map(workspace_bytes).max().unwrap_or(0);
        let mut workspace = Workspace::new(&self.device, bytes)?;
        for piece in &in_memory {
            self.groups[piece.group].state.gate.wait();
            self.update_piece(numbers, grad_scale, piece, &Vec::new(), &mut workspace)?;
        }
        match offload {
            Some(offload) if !in_files.is_empty() => {
                self.update_in_files(numbers, grad_scale, &in_files, offload.buffers, &mut workspace)
            }
            _ => Ok(()),
        }
    }

    /// What this rank updates, in pieces of at most `most` elements where the rule allows.
    fn pieces<'a>(
        &'a self,
        most: usize,
        step: &'a dyn Fn(usize, usize) -> Option<u64>,
    ) -> impl Iterator<Item = Piece> + 'a {
        let trained = self.groups.iter().enumerate().filter(|(_, group)| group.trainable);
        trained.flat_map(move |(group, held)| {
            let pieces =
                held.layout.pieces(held.state.updated.clone(), most, move |param| step(group, param));
            pieces.filter_map(move |(param, flat)| {
                Some(Piece { group, param, flat, step: step(group, param)? })
            })
        })
    }

    fn update_piece(
        &self,
        numbers: &[ParamGroup],
        grad_scale: f32,
        piece: &Piece,
        staged: &Staged,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let group = &self.groups[piece.group];
        let (grads, first) = match &group.grads {
            Grads::Sharded { sums, .. } => (Some(sums.clone()), group.state.updated.start),
            _ => (group.params.grads(), 0),
        };
        let Some(grads) = grads else { return Ok(()) };
        let grads = Part { flat: &grads, range: piece.flat.start - first..piece.flat.end - first };
        let mut staged = staged.iter();
        let mut parts = columns(group).map(|column| {
            let range = column.at(piece.param, &piece.flat);
            match &column.store {
                Store::Memory(flat) => Ok(Part { flat, range }),
                // Nothing of any buffer.
                Store::File { .. } if range.is_empty() => Ok(Part { flat: grads.flat, range: 0..0 }),
                Store::File { .. } => {
                    let unread = || Error::Usage("a piece of offloaded state was not read".to_string());
                    Ok(Part { flat: staged.next().ok_or_else(unread)?, range: 0..range.len() })
                }
            }
        });
        let weights = parts.next().transpose()?;
        let master = if group.state.master.is_some() { parts.next().transpose()? } else { None };
        let state = parts.collect::<Result<Vec<_>>>()?;
        let Some(weights) = weights else { return Ok(()) };
        let parts = UpdateParts { weights, dtype: group.params.dtype(), master, grads, state: &state };
        let param = &group.layout.params()[piece.param];
        let ParamGroup { rule, lr, weight_decay } = &numbers[param.param_group];
        let args = StepArgs { step: piece.step, lr: *lr, weight_decay: *weight_decay, grad_scale };
        let (shape, role) = (&param.place.shape, group.roles[piece.param]);
        Ok(optimizer::update(&self.device, rule, &args, shape, role, &parts, workspace)?)
    }

    /// The same for state in files: while one piece is updated, the next is read and the one before is written.
    fn update_in_files(
        &self,
        numbers: &[ParamGroup],
        grad_scale: f32,
        pieces: &[Piece],
        buffers: usize,
        workspace: &mut Workspace,
    ) -> Result<()> {
        let (free, to_fill) = channel::<Staged>();
        let (filled, to_update) = channel::<Result<Staged>>();
        let (updated, to_write) = channel::<Staged>();
        for first in 0..buffers.min(pieces.len()) {
            // They go around in order, so each is for every so many pieces. The receiver is there.
            let _ = free.send(self.staging(pieces[first..].iter().step_by(buffers))?);
        }
        std::thread::scope(|scope| {
            scope.spawn(move || self.read_ahead(pieces, &to_fill, &filled));
            let writer = scope.spawn(move || self.write_behind(pieces, &to_write, &free));
            let mut step = || -> Result<()> {
                for piece in pieces {
                    let staged = to_update.recv().map_err(|_| stopped())??;
                    self.update_piece(numbers, grad_scale, piece, &staged, workspace)?;
                    updated.send(staged).map_err(|_| stopped())?;
                }
                Ok(())
            };
            let result = step();
            // Both threads end when their channels do.
            drop((updated, to_update));
            let written = writer.join().unwrap_or_else(|_| Err(stopped()));
            // The writer knows best why the updates stopped.
            written.and(result)
        })
    }

    /// Buffers for any of these pieces.
    fn staging<'a>(&self, pieces: impl Iterator<Item = &'a Piece>) -> Result<Staged> {
        let mut sizes: Vec<usize> = Vec::new();
        for piece in pieces {
            for (index, (column, range)) in self.in_files(piece).enumerate() {
                let bytes = range.len() * column.dtype.size();
                match sizes.get_mut(index) {
                    Some(size) => *size = bytes.max(*size),
                    None => sizes.push(bytes),
                }
            }
        }
        let buffer =
            |bytes| FlatBuffer::borrowed(&self.device, bytes, "offload buffers").map_err(Error::from);
        sizes.into_iter().map(buffer).collect()
    }

    fn read_ahead(&self, pieces: &[Piece], to_fill: &Receiver<Staged>, filled: &Sender<Result<Staged>>) {
        for piece in pieces {
            let Ok(staged) = to_fill.recv() else { return };
            let read = || -> Result<()> {
                self.groups[piece.group].state.gate.wait();
                for ((column, range), flat) in self.in_files(piece).zip(&staged) {
                    let size = column.dtype.size();
                    let read = |bytes: &mut [u8]| column.store.read_bytes(bytes, (range.start * size) as u64);
                    transfer::write_with(flat, 0..range.len() * size, read)??;
                }
                Ok(())
            };
            if filled.send(read().map(|()| staged)).is_err() {
                return;
            }
        }
    }

    fn write_behind(
        &self,
        pieces: &[Piece],
        to_write: &Receiver<Staged>,
        free: &Sender<Staged>,
    ) -> Result<()> {
        for piece in pieces {
            let Ok(staged) = to_write.recv() else { return Ok(()) };
            for ((column, range), flat) in self.in_files(piece).zip(&staged) {
                let size = column.dtype.size();
                let write = |bytes: &[u8]| column.store.write_bytes(bytes, (range.start * size) as u64);
                transfer::read_with(flat, 0..range.len() * size, write)??;
            }
            // Near the end nobody wants it any more.
            let _ = free.send(staged);
        }
        Ok(())
    }

    /// The columns that lie in files and hold something for a piece, and where they hold it.
    fn in_files(&self, piece: &Piece) -> impl Iterator<Item = (&Column, Range<usize>)> {
        let in_files = columns(&self.groups[piece.group]).filter(|column| !column.in_memory());
        let held = in_files.map(|column| (column, column.at(piece.param, &piece.flat)));
        held.filter(|(_, range)| !range.is_empty())
    }

    /// Rounds the master weights of a group into its working copies.
    pub fn refresh_working_copy(&self, device: &Device, group: &Group) -> Result<()> {
        let Some(master) = &group.state.master else { return Ok(()) };
        let mut values = Vec::new();
        for flat in runs(group.state.updated.clone(), CHUNK) {
            values.resize(flat.len(), 0.0f32);
            master.read(master.at(0, &flat).start, &mut values)?;
            group.state.weights.write(device, group.state.weights.at(0, &flat).start, &values)?;
        }
        Ok(())
    }
}

/// Elements that are moved at once when state is filled in.
pub(super) const CHUNK: usize = 1 << 20;

/// The columns of a group in the order of [`UpdateParts`]: working copy, master weights, the rule's states.
fn columns(group: &Group) -> impl Iterator<Item = &Column> {
    let state = &group.state;
    std::iter::once(&state.weights).chain(&state.master).chain(state.moments.iter().map(|(column, _)| column))
}

fn stopped() -> Error {
    Error::Usage("the thread that moves offloaded state has stopped".to_string())
}
