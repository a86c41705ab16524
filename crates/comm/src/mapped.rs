//! A file as a read-only slice of memory.

mod guard;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::whole_file::open_file;
use guard::Guard;

/// A whole file mapped read-only; it dereferences to its bytes.
///
/// A file that is replaced by a rename keeps its bytes here. One that somebody cuts short shows zeros from there on, and
/// [`check`](Self::check) says so: whoever has read something of it asks afterward, before it is used.
#[derive(Debug)]
pub struct MappedFile {
    // Before the map, so that the guard of its addresses is gone when they are free for others.
    guard: Option<Guard>,
    map: Mmap,
    file: File,
    path: PathBuf,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped, or is none: whoever opens a pipe waits for its other end.
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        let path = path.as_ref();
        let file = open_file(path)?;
        // SAFETY: the map is read-only and private to this value, which unmaps it when nothing borrows from it any more.
        // Pages that the file no longer has are replaced by zeros instead of ending the process (`guard`). Somebody who
        // writes into the file in place changes what is read; it is only ever read as bytes and numbers, which have no
        // invalid patterns, and what was computed from it before is checked again where it is used as a place.
        let map = unsafe { Mmap::map(&file) }?;
        let guard = match map.is_empty() {
            true => None,
            false => Some(Guard::over(map.as_ptr().addr()..map.as_ptr().addr() + map.len())?),
        };
        Ok(MappedFile { guard, map, file, path: path.into() })
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether all that was read so far stood in the file.
    ///
    /// # Errors
    /// When the file has become shorter.
    pub fn check(&self) -> io::Result<()> {
        // The rest of the last page that the file still has reads as zeros without a signal.
        let is_short = self.file.metadata()?.len() < self.map.len() as u64;
        match is_short || self.guard.as_ref().is_some_and(Guard::is_broken) {
            true => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a part of it is gone: it has become shorter while it was in use, or its disk fails; put the whole file \
                 back and start again",
            )),
            false => Ok(()),
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_bytes_and_keeps_them_after_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("file.new"));
        std::fs::write(&path, b"old bytes").unwrap();
        let map = MappedFile::open(&path).unwrap();
        assert_eq!(&map[..], b"old bytes");
        std::fs::write(&other, b"new").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(&map[..], b"old bytes");
        map.check().unwrap();
        assert_eq!(&MappedFile::open(&path).unwrap()[..], b"new");
        std::fs::remove_file(&path).unwrap();
        assert!(MappedFile::open(&path).is_err());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for path in ["/dev/zero", "/"] {
            let error = MappedFile::open(path).unwrap_err().to_string();
            assert_eq!(error, "it is a folder, a pipe, a socket or a device; name a file");
        }
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
    }

    /// Without the guard the process would be ended by SIGBUS.
    #[test]
    fn a_file_that_becomes_shorter_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![7_u8; 1 << 18]).unwrap();
            (MappedFile::open(&path).unwrap(), path)
        };
        let ((cut, path), (whole, _)) = (open("cut"), open("whole"));
        assert_eq!(cut[1 << 17], 7);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        assert!(cut.check().is_err());
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        assert_eq!(sum(&cut), 7 * 5000);
        let error = cut.check().unwrap_err().to_string();
        assert!(error.contains("it has become shorter while it was in use"), "{error}");
        assert_eq!(sum(&whole), 7 << 18);
        whole.check().unwrap();
        // On several threads at once, and again with addresses that were given back.
        drop((cut, whole));
        for round in 0..20 {
            let (cut, path) = open(&format!("again{round}"));
            std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let cut = &cut;
                    scope.spawn(move || assert_eq!(sum(&cut[thread << 16..(thread + 1) << 16]), 0));
                }
            });
            assert!(cut.check().is_err());
        }
    }
}
