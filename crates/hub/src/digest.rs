//! The hash by which a hub names a file, computed again from what came.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::names::Etag;

/// How much is read from disks and networks at once.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// What a file is compared with.
pub(crate) enum Check {
    /// The sha256 of its content, computed on the way.
    Sha256(Box<Sha256>),
    /// The hash of Git, which begins with the length and is computed at the end.
    Git,
    /// An entity tag of a mirror, which is no hash of anything known.
    Unknown,
}

impl Check {
    pub(crate) fn of(etag: &Etag) -> Check {
        match etag {
            etag if etag.is_sha256() => Check::Sha256(Box::default()),
            etag if etag.is_git_hash() => Check::Git,
            _ => Check::Unknown,
        }
    }

    /// Takes the next bytes of the file.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Check::Sha256(hash) = self {
            hash.update(bytes);
        }
    }

    /// Takes what a file has already, and leaves its position behind that.
    pub(crate) fn update_from(&mut self, file: &mut File) -> io::Result<u64> {
        file.seek(SeekFrom::Start(0))?;
        match self {
            Check::Sha256(_) => each_chunk(file, |bytes| self.update(bytes)),
            Check::Git | Check::Unknown => file.seek(SeekFrom::End(0)),
        }
    }

    /// The hash of the whole file, where there is one to compare with.
    pub(crate) fn finish(self, file: &mut File) -> io::Result<Option<String>> {
        match self {
            Check::Sha256(hash) => Ok(Some(hex(&hash.finalize()))),
            Check::Git => git_hash(file).map(Some),
            Check::Unknown => Ok(None),
        }
    }
}

/// Whether the content of a file is the one that an entity tag names. One that is no hash never is.
pub(crate) fn is_content_of(file: &mut File, etag: &Etag) -> io::Result<bool> {
    let mut check = Check::of(etag);
    check.update_from(file)?;
    Ok(check.finish(file)?.is_some_and(|found| found == etag.as_str()))
}

fn git_hash(file: &mut File) -> io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha1::new();
    hash.update(format!("blob {length}\0"));
    each_chunk(file, |bytes| hash.update(bytes))?;
    Ok(hex(&hash.finalize()))
}

fn each_chunk(file: &mut File, mut take: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut n_read = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(n_read),
            Ok(n) => {
                take(&buffer[..n]);
                n_read += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_sha256sum() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello\n").unwrap();
        // `git hash-object` and `sha256sum` of the same six bytes.
        for (etag, is_it) in [
            ("ce013625030ba8dba906f756967f9e9ca394464a", true),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", true),
            ("ce013625030ba8dba906f756967f9e9ca394464b", false),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be04", false),
            ("something", false),
        ] {
            assert_eq!(is_content_of(&mut file, &Etag::of(etag).unwrap()).unwrap(), is_it, "{etag}");
        }
        let mut empty = tempfile::tempfile().unwrap();
        let etag = Etag::of("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391").unwrap();
        assert!(is_content_of(&mut empty, &etag).unwrap());
    }
}
