//! Runs code of other crates that answers some damaged files with a panic.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is behind the fence.
    static FENCED: Cell<bool> = const { Cell::new(false) };
}

/// What `body` returns; `None` when it panics, of which nothing is printed.
pub(super) fn fenced<T>(body: impl FnOnce() -> T) -> Option<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !FENCED.get() {
                before(info);
            }
        }));
    });
    let around = FENCED.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(body));
    FENCED.set(around);
    done.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_behind_the_fence_is_none_and_one_outside_is_a_panic() {
        assert_eq!(fenced(|| 7), Some(7));
        assert_eq!(fenced(|| [1][std::hint::black_box(1)]), None);
        assert!(!FENCED.get());
    }
}
