//! What the step of a piece of the parameters works on, and where that lies.

use std::ops::Range;

use oarlock_tensor::{DType, FlatBuffer};

use crate::shard::column::{Column, Store};
use crate::shard::group::Grads;
use crate::shard::passes::Core;

/// Elements that are updated at once.
pub(super) struct Piece {
    pub group: usize,
    pub param: usize,
    /// Elements of the group; one whole parameter where the rule needs that.
    pub flat: Range<usize>,
    /// The number of the step for its parameters.
    pub step: u64,
}

/// Elements that the step of a piece works on.
pub(super) struct Operand {
    /// Where they are at rest.
    pub store: Store,
    pub dtype: DType,
    /// Which of there.
    pub range: Range<usize>,
    pub is_read: bool,
    pub is_written: bool,
}

/// A buffer for each operand of a piece that is not resident and has elements, in the operands' order. Which these are
/// differs from piece to piece, so the buffers belong to none.
pub(super) type Staged = Vec<FlatBuffer>;

impl Operand {
    pub fn bytes(&self) -> Range<usize> {
        self.range.start * self.dtype.size()..self.range.end * self.dtype.size()
    }
}

impl Core {
    /// Whether a step finds it where it runs.
    pub(super) fn is_resident(&self, store: &Store) -> bool {
        match store {
            Store::Memory(flat) => flat.is_pinned() == self.updates_beside(),
            Store::File { .. } => false,
        }
    }

    /// Whether the CPU beside a GPU updates.
    pub(super) fn updates_beside(&self) -> bool {
        !self.updater.same(&self.device)
    }

    /// What the step of a piece works on, in the order of [`UpdateParts`] and of the rule's states, after the gradients;
    /// nothing where there are none.
    pub(super) fn operands(&self, piece: &Piece) -> Vec<Operand> {
        let group = &self.groups[piece.group];
        let (grads, first) = match &group.grads {
            Grads::Sharded { sums, .. } => (Some(sums.clone()), group.state.updated.start),
            _ => (group.params.grads(), 0),
        };
        let Some(grads) = grads else { return Vec::new() };
        let state = &group.state;
        let column = |column: &Column, is_read: bool| Operand {
            store: column.store.clone(),
            dtype: column.dtype,
            range: column.at(piece.param, &piece.flat),
            is_read,
            is_written: true,
        };
        let mut operands = vec![Operand {
            store: Store::Memory(grads),
            dtype: DType::F32,
            range: piece.flat.start - first..piece.flat.end - first,
            is_read: true,
            is_written: false,
        }];
        // Where there are master weights, the working copy is only made from them.
        operands.push(column(&state.weights, state.master.is_none()));
        operands.extend(state.master.iter().map(|master| column(master, true)));
        operands.extend(state.moments.iter().map(|(moment, _)| column(moment, true)));
        operands
    }
}
