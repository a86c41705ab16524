//! Which of a model's adapters each row of a pass is for.

use std::cell::RefCell;

thread_local! {
    static ROWS: RefCell<Vec<Option<usize>>> = const { RefCell::new(Vec::new()) };
}

/// Runs passes of this thread whose rows (sequences) are for these adapters, by their numbers; `None` is the model alone.
pub fn for_rows<R>(adapters: &[Option<usize>], f: impl FnOnce() -> R) -> R {
    /// Ends it also where `f` panics.
    struct Before(Vec<Option<usize>>);
    impl Drop for Before {
        fn drop(&mut self) {
            ROWS.set(std::mem::take(&mut self.0));
        }
    }
    let _before = Before(ROWS.replace(adapters.to_vec()));
    f()
}

/// The adapters of the rows of this pass; empty where all rows are for the model alone.
pub(crate) fn rows() -> Vec<Option<usize>> {
    ROWS.with_borrow(|rows| match rows.iter().all(Option::is_none) {
        true => Vec::new(),
        false => rows.clone(),
    })
}
