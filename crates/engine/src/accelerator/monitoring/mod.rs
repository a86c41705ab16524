//! What is written about a run: figures to trackers, profiles.

pub(crate) mod profile;
pub(crate) mod trackers;
pub(crate) mod tracking;
