//! A log of records in LevelDB's format: behind a header blocks of 32 KiB with fragments of records. Offline runs of Weights &
//! Biases and of SwanLab are such logs, each with a header of its own.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::checksum::crc32;
use crate::report::file_error::{Result, io_error};
use crate::report::files;

/// The bytes with which a log begins.
pub(super) type Header = [u8; 7];

/// A log that grows by whole records.
#[derive(Debug)]
pub(super) struct RecordLog {
    path: PathBuf,
    file: File,
    len: usize,
}

const BLOCK: usize = 32 * 1024;
/// Checksum, length and kind of a fragment.
const FRAGMENT: usize = 7;
/// A log beyond this size is not read back.
const MOST_READ: u64 = 1 << 30;

impl RecordLog {
    /// A new log, which holds its header.
    pub(super) fn create(path: &Path, header: &Header) -> Result<RecordLog> {
        let file = oarlock_files::append_new(path).map_err(io_error("create", path))?;
        let mut log = RecordLog { path: path.to_owned(), file, len: 0 };
        log.write(header)?;
        Ok(log)
    }

    /// A log that another process has left, to go on behind its last whole record, and its records.
    pub(super) fn reopen(path: &Path, header: &Header) -> Result<(RecordLog, Vec<Vec<u8>>)> {
        let bytes = oarlock_comm::read_file(path, MOST_READ).map_err(io_error("read", path))?;
        let Some((records, len)) = records(&bytes, header) else {
            let wrong = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is no such log");
            return Err(io_error("read", path)(wrong));
        };
        let file = oarlock_files::append(path).map_err(io_error("open", path))?;
        file.set_len(len as u64).map_err(io_error("write", path))?;
        Ok((RecordLog { path: path.to_owned(), file, len }, records))
    }

    /// Adds a record.
    pub(super) fn push(&mut self, record: &[u8]) -> Result<()> {
        self.write(&fragments(record, self.len))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(file) = files::moved(&mut self.file, &self.path) {
            self.file = file;
        }
        self.file.write_all(bytes).map_err(io_error("write", &self.path))?;
        self.len += bytes.len();
        Ok(())
    }
}

/// A record as it stands in a log that holds `at` bytes: in one piece, or cut at the ends of blocks.
fn fragments(record: &[u8], at: usize) -> Vec<u8> {
    let (mut out, mut rest, mut first) = (Vec::with_capacity(record.len() + FRAGMENT), record, true);
    loop {
        let room = BLOCK - (at + out.len()) % BLOCK;
        if room < FRAGMENT {
            out.resize(out.len() + room, 0);
            continue;
        }
        let (piece, later) = rest.split_at(rest.len().min(room - FRAGMENT));
        let kind: u8 = match (first, later.is_empty()) {
            (true, true) => 1,
            (true, false) => 2,
            (false, false) => 3,
            (false, true) => 4,
        };
        out.extend(crc32(&[&[kind], piece]).to_le_bytes());
        out.extend((piece.len() as u16).to_le_bytes());
        out.push(kind);
        out.extend(piece);
        (rest, first) = (later, false);
        if rest.is_empty() {
            return out;
        }
    }
}

/// The whole records of a log, up to the first that is damaged or cut off, and where the last of them ends. Nothing where the
/// log begins otherwise.
pub(super) fn records(bytes: &[u8], header: &Header) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut rest = bytes.strip_prefix(header)?;
    let (mut found, mut end, mut record) = (Vec::new(), header.len(), None::<Vec<u8>>);
    loop {
        let room = BLOCK - (bytes.len() - rest.len()) % BLOCK;
        if room < FRAGMENT {
            let Some(later) = rest.get(room..) else { break };
            rest = later;
        }
        let Some((&[c0, c1, c2, c3, l0, l1, kind], later)) = rest.split_first_chunk() else { break };
        let Some((piece, later)) = later.split_at_checked(usize::from(u16::from_le_bytes([l0, l1]))) else {
            break;
        };
        if crc32(&[&[kind], piece]) != u32::from_le_bytes([c0, c1, c2, c3]) {
            break;
        }
        let mut whole = match (kind, record.take()) {
            (1 | 2, None) => Vec::new(),
            (3 | 4, Some(begun)) => begun,
            _ => break,
        };
        whole.extend(piece);
        rest = later;
        if matches!(kind, 1 | 4) {
            found.push(whole);
            end = bytes.len() - rest.len();
        } else {
            record = Some(whole);
        }
    }
    Some((found, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &Header = b":LOG\x01\x02\x03";

    fn log_of(sizes: &[usize]) -> Vec<u8> {
        let mut log = HEADER.to_vec();
        for (number, size) in sizes.iter().enumerate() {
            log.extend(fragments(&vec![number as u8; *size], log.len()));
        }
        log
    }

    #[test]
    fn records_end_anywhere_in_a_block() {
        let sizes = [BLOCK - 7 - 7 - 8, 1, 3, BLOCK - 30, 0, 2 * BLOCK, 5, BLOCK - 60, 12];
        let log = log_of(&sizes);
        let (found, end) = records(&log, HEADER).unwrap();
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert!(found.iter().enumerate().all(|(number, record)| record.iter().all(|b| *b == number as u8)));
        assert_eq!(end, log.len());
        // Six bytes are left of a block, or none: the next record begins in the next one.
        for left in 0..=8 {
            let log = log_of(&[BLOCK - 7 - 7 - left, 3]);
            assert_eq!(records(&log, HEADER).unwrap().0.len(), 2, "{left}");
        }
    }

    #[test]
    fn a_log_that_was_cut_or_damaged_has_its_whole_records() {
        let log = log_of(&[10, 3 * BLOCK, 20]);
        let second = records(&log[..log.len() - 1], HEADER).unwrap();
        let near = |at: usize| at - 8..at + 8;
        let lengths =
            (HEADER.len()..60).chain(near(BLOCK)).chain(near(second.1)).chain((0..log.len()).step_by(9973));
        for len in lengths.filter(|len| (HEADER.len()..log.len()).contains(len)) {
            let (found, end) = records(&log[..len], HEADER).unwrap();
            let expected = usize::from(len >= 24) + usize::from(len >= second.1);
            assert_eq!(found.len(), expected, "{len}");
            assert!(end <= len && (found.len() == 2) == (end == second.1));
        }
        for at in [8, 13, 14, 20, 40_000] {
            let mut log = log.clone();
            log[at] ^= 1;
            let n_before = if at < 24 { 0 } else { 1 };
            assert_eq!(records(&log, HEADER).unwrap().0.len(), n_before, "{at}");
        }
        assert!(records(&log, b":SWL\x00\x00\x00").is_none() && records(b":LO", HEADER).is_none());
    }

    #[test]
    fn a_log_goes_on_behind_what_a_killed_process_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = log_of(&[10, BLOCK, 20]);
        std::fs::write(&path, &log[..log.len() - 3]).unwrap();
        let (mut reopened, before) = RecordLog::reopen(&path, HEADER).unwrap();
        assert_eq!(before.len(), 2);
        reopened.push(b"the end").unwrap();
        let (found, _) = records(&std::fs::read(&path).unwrap(), HEADER).unwrap();
        assert_eq!((found.len(), &found[2][..]), (3, &b"the end"[..]));
        std::fs::write(&path, "something else").unwrap();
        let error = RecordLog::reopen(&path, HEADER).unwrap_err().to_string();
        assert!(error.contains("it is no such log"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"something else");
    }
}
