//! Passes in which adapted layers are what they were before training.

use std::cell::Cell;

/// What stands in the names of the frozen copy of an adapter.
pub(super) const REFERENCE: &str = ".reference.";

thread_local! {
    static IS_REFERENCE: Cell<bool> = const { Cell::new(false) };
}

/// Runs passes of this thread in which every adapted layer is what it was compared with before training: the layer
/// that the adapter is around, or one with a frozen copy of the adapter that the run continues.
pub fn as_reference<R>(f: impl FnOnce() -> R) -> R {
    /// Ends it also where `f` panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_REFERENCE.set(self.0);
        }
    }
    let _before = Before(IS_REFERENCE.replace(true));
    f()
}

/// Whether this is such a pass.
pub(super) fn is_reference() -> bool {
    IS_REFERENCE.get()
}
