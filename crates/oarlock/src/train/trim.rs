//! Gives memory back where batches of many lengths have left blocks that fit none of the next.

use oarlock_tensor::Arena;

/// What the largest step needs, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Trimmer {
    need_bytes: usize,
    /// Whether the last step began with no free block.
    is_fresh: bool,
}

impl Trimmer {
    /// Before the first step.
    pub fn new() -> Trimmer {
        Trimmer { need_bytes: 0, is_fresh: true }
    }

    /// After a step: frees what is free when a half more is held than the largest step has needed by itself.
    pub fn after_step(&mut self, arena: &Arena) {
        let bytes = arena.bytes();
        if std::mem::take(&mut self.is_fresh) {
            self.need_bytes = self.need_bytes.max(bytes);
        }
        if bytes > self.need_bytes + self.need_bytes / 2 {
            arena.trim();
            self.is_fresh = true;
        }
    }
}
