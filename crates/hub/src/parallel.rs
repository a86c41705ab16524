//! Several files at once: a few threads that take one after the other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// How many files are downloaded at once, as huggingface_hub does it.
const N_THREADS: usize = 8;

/// Does the same with all items, and gives the results in their order.
///
/// # Errors
/// The first one that came; what was not begun then is not.
pub(crate) fn each<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<(usize, Result<R, Error>)>> = Mutex::new(Vec::with_capacity(items.len()));
    let take = || {
        while !has_failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { break };
            let result = work(item);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..N_THREADS.min(items.len())).map(|_| scope.spawn(take)).collect();
        take();
        for other in others {
            // A panic of a caller's function goes on here.
            if let Err(panic) = other.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Errors in the order in which they came, results in that of the items.
    if let Some(at) = results.iter().position(|(_, result)| result.is_err()) {
        return results.swap_remove(at).1.map(|_| Vec::new());
    }
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_errors_stop_the_rest() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(each(&items, |n| Ok(n * 2)).unwrap(), (0..200).step_by(2).collect::<Vec<_>>());
        assert!(each(&[] as &[u32], |n| Ok(*n)).unwrap().is_empty());
        let n_done = AtomicUsize::new(0);
        let failed = each(&items, |n| {
            n_done.fetch_add(1, Ordering::Relaxed);
            let name = n.to_string();
            if *n == 0 { Err(Error::Disabled { repo: name }) } else { Ok(()) }
        });
        assert!(failed.is_err());
    }
}
