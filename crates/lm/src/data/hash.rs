//! Hashes that tell whether a file is still the same: XXH64.

use std::hash::Hasher;
use std::io::{self, Read};
use std::path::Path;

use twox_hash::XxHash64;

const CHUNK_BYTES: usize = 1 << 20;

/// The hash of `bytes`.
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// The hash of a file's content.
pub(super) fn hash_file(path: &Path) -> io::Result<u64> {
    let mut file = oarlock_comm::open_file(path)?;
    let mut hasher = XxHash64::with_seed(0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hasher.finish()),
            n => hasher.write(&chunk[..n]),
        }
    }
}
