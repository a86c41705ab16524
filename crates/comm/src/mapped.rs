//! A file as a read-only slice of memory.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A whole file mapped read-only; it dereferences to its bytes.
///
/// For files that are written once under another name and renamed into place (token caches, checkpoints): the map keeps
/// the bytes of the file that it was opened on, even if the name is later given to another file.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped, or is none: whoever opens a pipe waits for its other end.
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a folder, a pipe or a device"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this value. Such files are replaced by a rename and never changed in
        // place, so the bytes behind the slice stay as they are while it lives.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(MappedFile { map })
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
        let dir = std::env::temp_dir();
        let (path, other) = (
            dir.join(format!("oarlock-mapped-{}", std::process::id())),
            dir.join(format!("oarlock-mapped-{}.new", std::process::id())),
        );
        std::fs::write(&path, b"old bytes").unwrap();
        let map = MappedFile::open(&path).unwrap();
        assert_eq!(&map[..], b"old bytes");
        std::fs::write(&other, b"new").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(&map[..], b"old bytes");
        assert_eq!(&MappedFile::open(&path).unwrap()[..], b"new");
        std::fs::remove_file(&path).unwrap();
        assert!(MappedFile::open(&path).is_err());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for path in ["/dev/zero", "/"] {
            let error = MappedFile::open(path).unwrap_err().to_string();
            assert_eq!(error, "it is a folder, a pipe or a device");
        }
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let path = std::env::temp_dir().join(format!("oarlock-mapped-empty-{}", std::process::id()));
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }
}
