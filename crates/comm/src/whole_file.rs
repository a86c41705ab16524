//! Files of other people: they are regular files of a bounded length, or they are refused.
//!
//! Whoever opens a pipe waits for its other end, a device has effects and no end, and a name in a folder that somebody
//! else made can be any of these. Every file that is read whole is read here.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The longest configuration, manifest, index or log that is read whole.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// The longest `tokenizer.json`.
pub const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// The longest file whose records are read at once, such as measurements and the questions of an evaluation.
pub const MAX_RECORDS_BYTES: u64 = 4 << 30;

/// Opens a regular file to read it. It neither waits nor has effects where the name is something else.
///
/// # Errors
/// A file that cannot be opened, and what is not a regular file.
pub fn open_file(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    let regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a folder, a pipe, a socket or a device; name a file",
        )),
    };
    // Opening a device can have effects, so the name is looked at first; it may be given to a pipe in between, so what
    // was opened is looked at again.
    std::fs::metadata(path).and_then(regular)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    file.metadata().and_then(regular)?;
    Ok(file)
}

/// Opens a folder, to lock it.
///
/// # Errors
/// A folder that cannot be opened, and what is none.
pub fn open_folder(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(path)
}

/// The bytes of a regular file of at most `max_bytes`.
///
/// # Errors
/// A file that cannot be read or is longer, and what is not a regular file.
pub fn read_file(path: impl AsRef<Path>, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_file(path)?;
    let found = file.metadata()?.len();
    let mut bytes = Vec::with_capacity(usize::try_from(found.min(max_bytes)).unwrap_or(0));
    // Some files say that they are empty, and others grow.
    if found <= max_bytes {
        file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    match found.max(bytes.len() as u64) > max_bytes {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {}, which such a file never has", size(max_bytes)),
        )),
        false => Ok(bytes),
    }
}

/// The text of a regular file of at most `max_bytes`, without a byte order mark.
///
/// # Errors
/// As [`read_file`], and a file that is not UTF-8.
pub fn read_text(path: impl AsRef<Path>, max_bytes: u64) -> io::Result<String> {
    let mut bytes = read_file(path, max_bytes)?;
    // Some editors begin files with a byte order mark.
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..=0xf_ffff => format!("{bytes} bytes"),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_text_begins_behind_its_byte_order_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hostfile");
        std::fs::write(&path, b"\xef\xbb\xbfhost-a slots=2\n").unwrap();
        assert_eq!(read_text(&path, 100).unwrap(), "host-a slots=2\n");
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, socket, link) =
            (dir.path().join("pipe"), dir.path().join("socket"), dir.path().join("link"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &socket, &link, &dir.path().to_owned(), &"/dev/null".into()] {
            let error = read_file(path, 10).unwrap_err().to_string();
            assert_eq!(error, "it is a folder, a pipe, a socket or a device; name a file", "{path:?}");
        }
        assert_eq!(open_folder(&pipe).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        open_folder(dir.path()).unwrap();
        assert_eq!(read_file(dir.path().join("none"), 10).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(read_text(&path, 10).unwrap(), "0123456789");
        let error = read_text(&path, 9).unwrap_err().to_string();
        assert_eq!(error, "it has more than 9 bytes, which such a file never has");
        // Nothing of it is read.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read_text(&path, MAX_CONFIG_BYTES).unwrap_err().to_string();
        assert_eq!(error, "it has more than 64 MiB, which such a file never has");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 10).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // Files of the kernel say that they are empty.
        assert!(!read_text("/proc/self/status", MAX_CONFIG_BYTES).unwrap().is_empty());
    }
}
