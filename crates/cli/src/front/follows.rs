//! What may follow the name of a command, for its completion.

use crate::config::flags::Flags;

/// What may follow the name of a command.
pub enum Follows {
    /// Flags, and what they end with.
    Flags(&'static Flags),
    /// One of these commands, each with what it does.
    Commands(Vec<(&'static str, &'static str)>),
    /// What `oarlock train` takes, too.
    Training,
    /// Nothing that is known.
    Unknown,
}
