//! Reads small files of caches: plain files of a bounded length, reached through links or not.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a plain file to read it, through links: caches consist of them. A pipe is not waited for.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file")),
    }
}

/// The text of a plain file of at most `max_bytes`.
pub(crate) fn text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than such a file ever is"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}
