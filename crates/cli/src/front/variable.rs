//! The environment of a command.

/// The value of an environment variable.
pub(crate) fn env_var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
