//! Checksums of the runs of bytes that make up a file, computed while they are written.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash64};

use super::placed::PlacedFile;
use crate::{Error, Result};

/// Bytes that are read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The checksum of a run of bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Where the run begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// The checksum, in hexadecimal digits.
    pub hash: String,
}

impl Sum {
    /// Of bytes in memory that lie at `offset`, by XXH3.
    pub fn of(offset: u64, bytes: &[u8]) -> Sum {
        Sum { offset, bytes: bytes.len() as u64, hash: hex(XxHash3_64::oneshot(bytes)) }
    }

    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// How a checksum is computed; seeds are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Of the first format of checkpoints.
    Xxh64,
    /// Of today's: several times as fast.
    Xxh3,
}

impl Algorithm {
    fn hasher(self) -> Box<dyn Hasher> {
        match self {
            Algorithm::Xxh64 => Box::new(XxHash64::with_seed(0)),
            Algorithm::Xxh3 => Box::new(XxHash3_64::with_seed(0)),
        }
    }

    /// The checksum of a run of a file, as [`Sum::hash`] shows it.
    ///
    /// # Errors
    /// The operating system's; [`io::ErrorKind::UnexpectedEof`] where the file is too short.
    pub fn of_file(self, mut file: &File, offset: u64, n_bytes: u64) -> io::Result<String> {
        file.seek(SeekFrom::Start(offset))?;
        let mut hasher = self.hasher();
        let mut chunk = vec![0; n_bytes.min(CHUNK_BYTES) as usize];
        let mut left = n_bytes;
        while left > 0 {
            let part = &mut chunk[..left.min(CHUNK_BYTES) as usize];
            file.read_exact(part)?;
            hasher.write(part);
            left -= part.len() as u64;
        }
        Ok(hex(hasher.finish()))
    }
}

/// A checksum as it is written down.
fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// A file that knows the checksums of the runs that were written into it, by [`Algorithm::Xxh3`].
pub struct SummedFile {
    path: PathBuf,
    file: PlacedFile,
    run: Option<Run>,
    sums: Vec<Sum>,
}

struct Run {
    start: u64,
    end: u64,
    hasher: XxHash3_64,
}

impl SummedFile {
    /// Creates a file, or empties one.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn create(path: &Path) -> Result<SummedFile> {
        SummedFile::over(path, PlacedFile::create(path).map_err(Error::io("create", path))?)
    }

    /// Opens a file that exists, to write parts of it.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn open(path: &Path) -> Result<SummedFile> {
        SummedFile::over(path, PlacedFile::open(path).map_err(Error::io("open", path))?)
    }

    fn over(path: &Path, file: PlacedFile) -> Result<SummedFile> {
        Ok(SummedFile { path: path.to_path_buf(), file, run: None, sums: Vec::new() })
    }

    /// Writes bytes; those that follow each other are one run.
    ///
    /// # Errors
    /// When the operating system refuses, as on a full disk.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.run.as_ref().is_some_and(|run| run.end != offset) {
            self.end_run();
        }
        let fresh = || Run { start: offset, end: offset, hasher: XxHash3_64::with_seed(0) };
        let run = self.run.get_or_insert_with(fresh);
        run.hasher.write(bytes);
        run.end += bytes.len() as u64;
        self.file.write_at(offset, bytes).map_err(Error::io("write", &self.path))
    }

    /// What is written next belongs to another run.
    pub fn end_run(&mut self) {
        if let Some(Run { start, end, hasher }) = self.run.take().filter(|run| run.end > run.start) {
            self.sums.push(Sum { offset: start, bytes: end - start, hash: hex(hasher.finish()) });
        }
    }

    /// Brings all to the disk; returns the checksums of what was written.
    ///
    /// # Errors
    /// When the operating system refuses, as on a full disk.
    pub fn finish(mut self) -> Result<Vec<Sum>> {
        self.end_run();
        self.file.finish().map_err(Error::io("write", &self.path))?;
        Ok(self.sums)
    }
}

/// Brings the names in a folder to the disk.
///
/// # Errors
/// When the operating system refuses.
pub fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_the_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = SummedFile::create(&path).unwrap();
        for (offset, text) in [(0, "one "), (4, "run"), (20, "another"), (7, "!")] {
            file.write_at(offset, text.as_bytes()).unwrap();
        }
        file.end_run();
        file.write_at(8, b"?").unwrap();
        let sums = file.finish().unwrap();
        let runs: Vec<_> = sums.iter().map(|sum| (sum.offset, sum.bytes)).collect();
        assert_eq!(runs, [(0, 7), (20, 7), (7, 1), (8, 1)]);
        let read = File::open(&path).unwrap();
        for sum in &sums {
            assert_eq!(Algorithm::Xxh3.of_file(&read, sum.offset, sum.bytes).unwrap(), sum.hash);
        }
        assert_eq!(sums[0].hash, hex(XxHash3_64::oneshot(b"one run")));
        assert_eq!(Algorithm::Xxh64.of_file(&read, 0, 7).unwrap(), hex(XxHash64::oneshot(0, b"one run")));
        let short = Algorithm::Xxh3.of_file(&read, 20, 8).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }
}
