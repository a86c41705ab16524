//! Reading a checkpoint: elements of a kind of state, wherever they lie, and whether bytes are still what was written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::manifest::{FileEntry, Manifest, Piece};
use crate::disk::Sum;
use crate::report::error::Problem;
use crate::{Error, Result};

/// Verifies a run of bytes of a file.
///
/// # Errors
/// What is wrong with the file.
pub fn verify(
    dir: &Path,
    manifest: &Manifest,
    FileEntry { path, bytes, .. }: &FileEntry,
    sum: &Sum,
) -> std::result::Result<(), Problem> {
    let hashed = oarlock_comm::open_file(dir.join(path)).and_then(|file| {
        let found = file.metadata()?.len();
        // A file of another size is reported so, not by a checksum of what is left of it.
        let hash = (found == *bytes).then(|| manifest.algorithm().of_file(&file, sum.offset, sum.bytes));
        Ok((found, hash.transpose()?))
    });
    let file = path.clone();
    match hashed {
        Ok((_, Some(hash))) if hash == sum.hash => Ok(()),
        Ok((_, Some(found))) => Err(Problem::Checksum { file, found, expected: sum.hash.clone() }),
        Ok((found, None)) => Err(Problem::Size { file, found, expected: *bytes }),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Err(Problem::MissingFile { file }),
        Err(cause) => Err(Problem::Unreadable { file, cause: cause.to_string() }),
    }
}

/// Reads the state of a checkpoint.
pub struct Reader<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    /// The files that are open, by their paths inside the checkpoint.
    files: BTreeMap<&'a str, File>,
}

impl<'a> Reader<'a> {
    /// Of the checkpoint in `dir`.
    pub fn new(dir: &'a Path, manifest: &'a Manifest) -> Reader<'a> {
        Reader { dir, manifest, files: BTreeMap::new() }
    }

    /// Puts elements together from the pieces that hold them; the manifest's check says that they hold all.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(&mut self, kind: &str, name: &str, elements: &Range<usize>, out: &mut [f32]) -> Result<()> {
        let parameter = self.manifest.parameters.get(name);
        let pieces: &'a [Piece] = parameter.and_then(|p| p.state.get(kind)).map_or(&[], |pieces| pieces);
        let (start, end) = (elements.start as u64, elements.end as u64);
        let from = pieces.partition_point(|piece| piece.end() <= start);
        for piece in pieces[from..].iter().take_while(|piece| piece.first < end) {
            let (first, last) = (piece.first.max(start), piece.end().min(end));
            let part = &mut out[(first - start) as usize..(last - start) as usize];
            let path = self.dir.join(&piece.file);
            if !self.files.contains_key(piece.file.as_str()) {
                let file = oarlock_comm::open_file(&path).map_err(Error::io("open", &path))?;
                self.files.insert(&piece.file, file);
            }
            let at = piece.offset + 4 * (first - piece.first);
            self.files[piece.file.as_str()]
                .read_exact_at(bytemuck::cast_slice_mut(part), at)
                .map_err(Error::io("read", &path))?;
        }
        Ok(())
    }
}
