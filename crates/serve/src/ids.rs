//! Names for answers, calls and requests, seeds, and the time: what no two requests share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A number that was not there before and cannot be guessed from the ones before it: a keyed hash of a counter.
pub(crate) fn fresh() -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    KEY.get_or_init(RandomState::new).hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A prefix and 24 letters and digits.
pub(crate) fn name(prefix: &str) -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut name = prefix.to_owned();
    for _ in 0..2 {
        let mut number = fresh();
        for _ in 0..12 {
            name.push(char::from(DIGITS[(number % 36) as usize]));
            number /= 36;
        }
    }
    name
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_differ() {
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| name("call_")).collect();
        assert_eq!(names.len(), 1000);
        assert!(
            names.iter().all(|name| name.len() == 29 && name[5..].bytes().all(|b| b.is_ascii_alphanumeric()))
        );
    }
}
