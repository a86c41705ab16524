//! Lines of a file, and plain text with one record a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::error::{Error, Result};
use super::super::record::{Record, Records};
use super::problems::{MAX_RECORD_BYTES, REENCODE, until_error};

/// The lines of a file as bytes, with their numbers from 1, without line ends and byte order mark.
struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    line: u64,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines> {
        let file = oarlock_comm::open_file(path).map_err(|e| Error::read(path, e))?;
        Ok(Lines { reader: BufReader::with_capacity(1 << 18, file), path: path.into(), line: 0 })
    }
}

impl Iterator for Lines {
    type Item = Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        self.line += 1;
        match (&mut self.reader).take(MAX_RECORD_BYTES).read_until(b'\n', &mut bytes) {
            Ok(0) => return None,
            Ok(n) if n as u64 == MAX_RECORD_BYTES => {
                let cause = format!("a line of more than {} MiB", MAX_RECORD_BYTES >> 20);
                return Some(Err(Error::record(&self.path, self.line, cause, "put one record on each line")));
            }
            Ok(_) => {}
            Err(e) => return Some(Err(Error::read(&self.path, e))),
        }
        while bytes.last().is_some_and(|&b| b == b'\n' || b == b'\r') {
            bytes.pop();
        }
        if self.line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        Some(Ok((self.line, bytes)))
    }
}

/// The line as text.
pub(super) fn utf8(path: &Path, line: u64, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let cause = format!("invalid UTF-8 at byte {} of the record", e.utf8_error().valid_up_to() + 1);
        Error::record(path, line, cause, REENCODE)
    })
}

/// Parts of a file, each with the line that it begins on.
pub(super) type Parts = Box<dyn Iterator<Item = Result<(u64, Vec<u8>)>> + Send>;

/// The lines of a file that are not blank.
pub(super) fn lines(path: &Path) -> Result<Parts> {
    let lines = until_error(Lines::open(path)?);
    let is_blank = |bytes: &[u8]| bytes.trim_ascii().is_empty();
    Ok(Box::new(lines.filter(move |line| !line.as_ref().is_ok_and(|(_, bytes)| is_blank(bytes)))))
}

/// One record a line; blank lines are skipped.
pub(super) fn open(path: &Path) -> Result<Records> {
    let file: Arc<Path> = path.into();
    Ok(Box::new(lines(path)?.map(move |line| {
        let (line, bytes) = line?;
        Ok(Record::new(&file, line, utf8(&file, line, bytes)?))
    })))
}
