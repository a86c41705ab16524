//! The state of the elements that a rank updates, and how checkpoints see it: as slices of named parameters.
//!
//! A [`Snapshot`] holds the state constant while it is written: the next optimizer step waits, group by group, until
//! what it would change has been released. So a save needs no copy.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Shape};

use crate::shard::column::{Column, Store};
use crate::shard::layout::Layout;
use crate::{Error, Result};

/// The kind of state that every parameter has: its weights in f32.
pub const MASTER: &str = "master";

/// Elements that are shown at once where they do not lie in memory as f32.
const CHUNK: usize = 1 << 18;

/// A run of elements of one kind of state of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// [`MASTER`], or one of the optimizer's states.
    pub kind: &'static str,
    /// The parameter.
    pub name: String,
    /// The shape of this state; the parameter's, except where an optimizer keeps rows and columns.
    pub shape: Shape,
    /// Elements of it, row-major.
    pub elements: Range<usize>,
}

/// The state of one group on one rank.
#[derive(Debug)]
pub(super) struct GroupState {
    pub layout: Arc<Layout>,
    /// The elements that this rank updates.
    pub updated: Range<usize>,
    /// Those of them that it saves; other ranks with the same state save the rest.
    pub saved: Range<usize>,
    /// The working copy of what this rank updates; it is the master where it is f32, and where nothing is trained.
    pub weights: Column,
    pub master: Option<Column>,
    /// One column for each state of the optimizer, and the shape that it has for each parameter.
    pub moments: Vec<(Column, Vec<Option<Shape>>)>,
    pub gate: Arc<Gate>,
}

/// Lets readers hold state constant, and the writer wait for them.
#[derive(Debug, Default)]
pub(super) struct Gate {
    n_guards: Mutex<usize>,
    free: Condvar,
}

/// While this lives the gate is held.
#[derive(Debug)]
struct GateGuard(Arc<Gate>);

impl Gate {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.n_guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(self: &Arc<Gate>) -> GateGuard {
        *self.count() += 1;
        GateGuard(self.clone())
    }

    /// Returns when nobody holds it.
    pub fn wait(&self) {
        let mut n_guards = self.count();
        while *n_guards > 0 {
            n_guards = self.free.wait(n_guards).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.free.notify_all();
    }
}

impl GroupState {
    /// The column that holds the f32 weights.
    pub fn master(&self) -> &Column {
        self.master.as_ref().unwrap_or(&self.weights)
    }

    /// All slices of the elements `range` of the group, kind by kind.
    pub fn slices(&self, range: &Range<usize>) -> Vec<Slice> {
        let mut slices = Vec::new();
        for (index, part) in self.layout.parts(range.clone()) {
            let param = &self.layout.params()[index];
            let elements = part.start - param.place.first..part.end - param.place.first;
            slices.push(Slice { kind: MASTER, name: param.name.clone(), shape: param.place.shape, elements });
        }
        for (column, shapes) in &self.moments {
            for (index, part) in self.layout.parts(range.clone()) {
                let (param, Some(shape)) = (&self.layout.params()[index], shapes[index]) else { continue };
                let elements = match column.elements(index, &part) {
                    Some(elements) => elements,
                    None if shape == param.place.shape => {
                        part.start - param.place.first..part.end - param.place.first
                    }
                    None => 0..shape.n_elems(),
                };
                slices.push(Slice { kind: column.kind, name: param.name.clone(), shape, elements });
            }
        }
        slices
    }

    /// The column of a slice, and the slice's place in it.
    pub fn find(&self, slice: &Slice) -> Option<(&Column, Range<usize>)> {
        let index = self.layout.index_of(&slice.name)?;
        let param = &self.layout.params()[index];
        let column = match slice.kind {
            MASTER => self.master(),
            kind => self.moments.iter().map(|(column, _)| column).find(|column| column.kind == kind)?,
        };
        if column.is_of_blocks() {
            return Some((column, column.find(index, &slice.elements)?));
        }
        if slice.shape != param.place.shape {
            // Rows or columns of a parameter, which is whole here.
            let whole = column.at(index, &param.range());
            let inside = param.range().start >= self.updated.start && slice.elements.end <= whole.len();
            return inside
                .then(|| (column, whole.start + slice.elements.start..whole.start + slice.elements.end));
        }
        let flat = param.place.first + slice.elements.start..param.place.first + slice.elements.end;
        if flat.start < self.updated.start || flat.end > self.updated.end {
            return None;
        }
        let start = match column.kind == MASTER || column.at(index, &flat).len() == flat.len() {
            true => column.at(index, &flat).start,
            // A column by parameters holds all of this one.
            false => column.at(index, &flat).start + slice.elements.start,
        };
        Some((column, start..start + slice.elements.len()))
    }
}

/// All state that a rank saves, held constant until it is released or dropped.
#[derive(Debug)]
pub struct Snapshot {
    groups: Vec<Arc<GroupState>>,
    guards: Vec<Option<GateGuard>>,
}

impl Snapshot {
    pub(super) fn new(groups: Vec<Arc<GroupState>>) -> Snapshot {
        let guards = groups.iter().map(|group| Some(group.gate.hold())).collect();
        Snapshot { groups, guards }
    }

    /// The number of pieces that can be released one by one, in the order in which the optimizer wants them back.
    pub fn units(&self) -> usize {
        self.groups.len()
    }

    /// What this rank saves of a unit.
    pub fn slices(&self, unit: usize) -> Vec<Slice> {
        let group = &self.groups[unit];
        group.slices(&group.saved)
    }

    /// Copies a slice out; `out` has its length.
    ///
    /// # Errors
    /// When it is not on this rank, or cannot be read.
    pub fn read(&self, slice: &Slice, out: &mut [f32]) -> Result<()> {
        let (column, range) = find(&self.groups, slice)?;
        column.read(range.start, out)
    }

    /// Shows a slice as little-endian f32, in one piece where it lies in memory so, else in several.
    ///
    /// # Errors
    /// When it is not on this rank, cannot be read, or `write` fails.
    pub fn with_bytes(&self, slice: &Slice, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<()> {
        let (column, range) = find(&self.groups, slice)?;
        let failed = |error| Error::io("write", "the slices of a checkpoint")(error);
        if let (Store::Memory(flat), DType::F32) = (&column.store, column.dtype) {
            let show = |values: &[f32]| write(bytemuck::cast_slice(values));
            return transfer::read_with(flat, range, show)?.map_err(failed);
        }
        let mut values = vec![0.0f32; range.len().min(CHUNK)];
        for first in range.clone().step_by(CHUNK) {
            let part = &mut values[..CHUNK.min(range.end - first)];
            column.read(first, part)?;
            write(bytemuck::cast_slice(part)).map_err(failed)?;
        }
        Ok(())
    }

    /// This unit is written: the optimizer may change it.
    pub fn release(&mut self, unit: usize) {
        self.guards[unit] = None;
    }
}

/// The column of a slice that one of these groups holds, and the slice's place in it.
///
/// # Errors
/// When the slice belongs to another rank.
pub(super) fn find<'a>(
    groups: impl IntoIterator<Item = &'a Arc<GroupState>>,
    slice: &Slice,
) -> Result<(&'a Column, Range<usize>)> {
    groups.into_iter().find_map(|group| group.find(slice)).ok_or_else(|| {
        let Slice { kind, name, elements, .. } = slice;
        Error::Usage(format!("elements {elements:?} of {kind} of \"{name}\" are not on this rank"))
    })
}
