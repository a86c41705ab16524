//! Who writes what a run leaves in its folder, and the folders below it.

use oarlock_config::config::{Tracker, TrainConfig};
use oarlock_engine::disk::Writer;

/// What the record of a folder calls the writer of all that a run writes.
pub const TRAINING: &str = "training";
/// The folder of an adapter of PiSSA as one of the base as it was, below that of the run.
pub const CONVERTED: &str = "pissa_converted";
/// The folder of token caches, below that of the run.
pub const CACHE: &str = "cache";

/// The file that says which run of SwanLab a run is, under LLaMA-Factory's name for it.
pub const SWANLAB_RUN: &str = "swanlab_public_config.json";

/// Whether the log of this run goes to SwanLab.
pub fn reports_to_swanlab(config: &TrainConfig) -> bool {
    config.monitor.trackers.iter().any(|tracker| matches!(tracker, Tracker::SwanLab { .. }))
}

/// Who writes the result of this run.
pub fn writer(config: &TrainConfig) -> Writer {
    Writer { by: TRAINING, overwrites: config.save.overwrite }
}
