//! `oarlock licenses`: the notices of the works of others that are in the program.

use crate::console::{Outcome, print};

/// Written by `.ci/third-party`; a test compares it with Cargo.lock.
const NOTICES: &str = include_str!("licenses/third-party.txt");

pub(super) fn run() -> Outcome {
    print(NOTICES)
}
