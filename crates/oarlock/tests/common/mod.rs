//! What the tests of the library and those of the program share: the model of the golden trajectories, and waiting for
//! processes.

// Each test binary takes what it needs.
#![allow(dead_code)]

pub mod weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Nothing here takes so long, also where many share the machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A model of the golden trajectories: hidden size 32, two layers, 300 tokens, 64 positions.
pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden/train-llama")
}

/// Waits until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "no sign of {what} after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process runs; one that ended and waits for its parent does not.
pub fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X']))
}
