//! Files of a checkpoint: written once, hashed on the way, and on the disk before anybody relies on them.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::path::Path;

use twox_hash::XxHash64;

use crate::error::{Error, Result};

/// Bytes that are read or written at once.
pub const CHUNK_BYTES: usize = 4 << 20;

/// A checksum (XXH64 with seed 0) as manifests show it.
pub fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The checksum of bytes in memory.
pub fn hash_of(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// A new file that knows its size and checksum.
pub struct HashedFile<'a> {
    path: &'a Path,
    file: File,
    hash: XxHash64,
    n_bytes: u64,
}

impl HashedFile<'_> {
    /// Creates a file.
    pub fn create(path: &Path) -> Result<HashedFile<'_>> {
        let file = File::create(path).map_err(Error::io("create", path))?;
        Ok(HashedFile { path, file, hash: XxHash64::with_seed(0), n_bytes: 0 })
    }

    /// Adds to its end.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io("write", self.path))?;
        self.hash.write(bytes);
        self.n_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Brings it to the disk; returns its size and checksum.
    pub fn finish(self) -> Result<(u64, u64)> {
        self.file.sync_all().map_err(Error::io("write", self.path))?;
        Ok((self.n_bytes, self.hash.finish()))
    }
}

/// The size and checksum of a file.
pub fn hash_file(mut file: &File) -> io::Result<(u64, u64)> {
    let mut hash = XxHash64::with_seed(0);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut n_bytes = 0;
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok((n_bytes, hash.finish())),
            n => {
                hash.write(&chunk[..n]);
                n_bytes += n as u64;
            }
        }
    }
}

/// Brings the names in a folder to the disk.
pub fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("write", path))
}
