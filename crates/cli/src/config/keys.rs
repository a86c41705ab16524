//! Finds a key of the table by its name, or by what somebody probably meant.

use super::table::{KEYS, OTHER_NAMES};
use oarlock::nearest::nearest_of;

pub use oarlock::settings::keys::*;

/// The key of this name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name that somebody who wrote `name` probably meant: a key that other programs call so, or the nearest one.
pub fn nearest(name: &str) -> Option<&'static str> {
    if let Some((_, key)) = OTHER_NAMES.iter().find(|(other, _)| *other == name) {
        return Some(key);
    }
    nearest_of(name, KEYS.iter().map(|key| key.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        assert_eq!(nearest("learning_rat"), Some("learning_rate"));
        assert_eq!(nearest("warmup_step"), Some("warmup_steps"));
        assert_eq!(nearest("BF16"), Some("bf16"));
        assert_eq!(nearest("grad_clip"), Some("max_grad_norm"));
        assert_eq!(nearest("completely_different"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn every_key_is_declared_once_and_well() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{} stands twice", key.name);
            assert!(
                key.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
                "{}",
                key.name
            );
            assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}: doc", key.name);
        }
        for (other, key) in OTHER_NAMES {
            assert!(find(key).is_some() && find(other).is_none(), "{other} -> {key}");
        }
    }
}
