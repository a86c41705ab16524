//! The flags of `accelerate launch`.

use crate::config::accelerate::keys::FLAGS;
use crate::config::flags::{Abbreviations, Flags};

/// All flags.
pub(super) const LAUNCH: Flags = Flags {
    command: "accelerate launch",
    bare_switches: false,
    operands: "SCRIPT [arguments]",
    about: "Starts an Oarlock run, or any program, on several processes.",
    keys: FLAGS,
    aliases: &[("q", "quiet"), ("m", "module"), ("t", "tee")],
    abbreviations: Abbreviations::None,
};
