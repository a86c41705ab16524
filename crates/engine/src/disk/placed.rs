//! Files that are written past the page cache: large runs go to the disk from where they lie in memory.
//!
//! ```text
//! file    |page  |page  |page  |pa           direct: whole pages, from memory that begins at a page as well
//! write      |...|direct       |.|           the edges go through the page cache
//! ```
//!
//! Small neighbors gather in a buffer first. Where a file system refuses direct writes, all goes through the cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Direct writes begin at multiples of this many bytes, in memory and in the file.
pub const PAGE: usize = 4096;

/// The most bytes of one write. A longer one is no faster, and this many are cheap to hold.
const RUN_BYTES: usize = 1 << 20;

/// From here on bytes are written from where they lie instead of being gathered.
const DIRECT_BYTES: usize = 512 << 10;

/// A file that is written in any order; neighbors in turn are the fastest.
pub struct PlacedFile {
    cached: File,
    /// The same file past the cache.
    direct: Option<File>,
    /// What is gathered begins at `buffer[base + start % PAGE]`, which is a page's byte as `start` is in the file.
    buffer: Vec<u8>,
    base: usize,
    start: u64,
    n_gathered: usize,
}

impl PlacedFile {
    /// Creates a file, or empties one.
    ///
    /// # Errors
    /// The operating system's.
    pub fn create(path: &Path) -> io::Result<PlacedFile> {
        let file = oarlock_files::open_or_create(path)?;
        file.set_len(0)?;
        Ok(PlacedFile::over(file, path))
    }

    /// Opens a file that exists, to write parts of it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<PlacedFile> {
        Ok(PlacedFile::over(oarlock_files::open(path)?, path))
    }

    fn over(cached: File, path: &Path) -> PlacedFile {
        let direct = past_the_cache(&cached, path).ok();
        PlacedFile { cached, direct, buffer: Vec::new(), base: 0, start: 0, n_gathered: 0 }
    }

    /// Writes `bytes` at `offset`; they are in the file after [`PlacedFile::finish`].
    ///
    /// # Errors
    /// The operating system's.
    pub fn write_at(&mut self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n_bytes = if self.can_go_from_memory(offset, bytes) {
                self.flush()?;
                let n_bytes = bytes.len().min(RUN_BYTES) / PAGE * PAGE;
                self.write_pages(offset, &bytes[..n_bytes])?;
                n_bytes
            } else {
                self.gather(offset, bytes)?
            };
            offset += n_bytes as u64;
            bytes = &bytes[n_bytes..];
        }
        Ok(())
    }

    /// Brings all to the disk.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.cached.sync_all()
    }

    fn can_go_from_memory(&self, offset: u64, bytes: &[u8]) -> bool {
        let at_page = offset.is_multiple_of(PAGE as u64) && bytes.as_ptr().align_offset(PAGE) == 0;
        self.direct.is_some() && at_page && bytes.len() >= DIRECT_BYTES
    }

    /// Takes as many bytes as there is room for.
    fn gather(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; RUN_BYTES + PAGE];
            self.base = self.buffer.as_ptr().align_offset(PAGE);
        }
        if self.start + self.n_gathered as u64 != offset {
            self.flush()?;
        }
        if self.n_gathered == 0 {
            self.start = offset;
        }
        let first = self.first();
        let n_bytes = bytes.len().min(RUN_BYTES - (first - self.base) - self.n_gathered);
        let at = first + self.n_gathered;
        self.buffer[at..at + n_bytes].copy_from_slice(&bytes[..n_bytes]);
        self.n_gathered += n_bytes;
        if first + self.n_gathered == self.base + RUN_BYTES {
            self.flush()?;
        }
        Ok(n_bytes)
    }

    fn first(&self) -> usize {
        self.base + (self.start % PAGE as u64) as usize
    }

    /// Writes what is gathered: whole pages past the cache, the edges through it.
    fn flush(&mut self) -> io::Result<()> {
        let first = self.first();
        let buffer = std::mem::take(&mut self.buffer);
        let gathered = &buffer[first..first + self.n_gathered];
        let head = gathered.len().min((self.start.next_multiple_of(PAGE as u64) - self.start) as usize);
        let (head, rest) = gathered.split_at(head);
        let (pages, tail) = rest.split_at(rest.len() / PAGE * PAGE);
        let at_pages = self.start + head.len() as u64;
        let written = self
            .cached
            .write_all_at(head, self.start)
            .and_then(|()| self.write_pages(at_pages, pages))
            .and_then(|()| self.cached.write_all_at(tail, at_pages + pages.len() as u64));
        self.buffer = buffer;
        self.start += self.n_gathered as u64;
        self.n_gathered = 0;
        written
    }

    fn write_pages(&mut self, offset: u64, pages: &[u8]) -> io::Result<()> {
        if let Some(direct) = &self.direct
            && !pages.is_empty()
        {
            match direct.write_all_at(pages, offset) {
                // A file system that opens a file so and then refuses to write.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.direct = None,
                written => return written,
            }
        }
        self.cached.write_all_at(pages, offset)
    }
}

/// The same file, opened to be written past the cache.
fn past_the_cache(file: &File, path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let direct = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let (ours, named) = (file.metadata()?, direct.metadata()?);
    match (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
        true => Ok(direct),
        // Somebody has put another one there since.
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn bytes_land_where_they_should(
            pieces in prop::collection::vec((0usize..3 * RUN_BYTES, 0usize..2 * RUN_BYTES, 0usize..3), 1..6),
            direct: bool,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let mut expected = vec![0u8; 5 * RUN_BYTES + PAGE];
            let mut file = PlacedFile::create(&path).unwrap();
            if !direct {
                file.direct = None;
            }
            file.cached.set_len(expected.len() as u64).unwrap();
            let source: Vec<u8> = (0..2 * RUN_BYTES + 2 * PAGE).map(|i| (i * 31 + i / 251) as u8).collect();
            let page = source.as_ptr().align_offset(PAGE);
            let mut end = 0;
            for (offset, len, how) in pieces {
                // Anywhere, at a page of both, or behind the one before.
                let (offset, from) = match how {
                    0 => (offset, 0),
                    1 => (offset / PAGE * PAGE, page),
                    _ => (end, 7),
                };
                let len = len.min(expected.len() - offset);
                let bytes = &source[from..from + len];
                file.write_at(offset as u64, bytes).unwrap();
                expected[offset..offset + len].copy_from_slice(bytes);
                end = offset + len;
            }
            file.finish().unwrap();
            prop_assert!(std::fs::read(&path).unwrap() == expected);
        }
    }

    #[test]
    fn two_writers_share_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let edge = RUN_BYTES + 1000;
        let bytes: Vec<u8> = (0..2 * RUN_BYTES + 500).map(|i| (i / 7) as u8).collect();
        let mut first = PlacedFile::create(&path).unwrap();
        first.cached.set_len(bytes.len() as u64).unwrap();
        let mut second = PlacedFile::open(&path).unwrap();
        second.write_at(edge as u64, &bytes[edge..]).unwrap();
        first.write_at(0, &bytes[..edge]).unwrap();
        first.finish().unwrap();
        second.finish().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
    }

    #[test]
    fn a_full_disk_is_told() {
        let mut file =
            PlacedFile::over(File::options().write(true).open("/dev/full").unwrap(), Path::new("/dev/full"));
        let written = file.write_at(3, &vec![1; 3 * PAGE]).and_then(|()| file.finish());
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
