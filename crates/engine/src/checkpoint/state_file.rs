//! The safetensors file with the state of a rank: what lies where, and the writing of it.
//!
//! Every slice begins at a page of the file, so that it can go to the disk from where it lies in memory. What is
//! between two slices is a tensor as well ("padding/…", zeros): a safetensors file has no gaps.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::manifest::{FileEntry, Piece, STATE_DTYPE};
use crate::Result;
use crate::disk::{PAGE, SummedFile};
use crate::shard::Slice;

// Safetensors files are little-endian; the state is written as it lies in memory.
const _: () = assert!(cfg!(target_endian = "little"));

const ZEROS: [u8; PAGE] = [0; PAGE];

/// A piece of a kind of state of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrittenPiece {
    pub kind: String,
    pub name: String,
    /// The shape of this kind of state.
    pub shape: Vec<usize>,
    pub piece: Piece,
}

/// A state file that is being written, slice by slice in the order in which they were given.
pub struct StateFile {
    name: String,
    file: SummedFile,
    pieces: Vec<WrittenPiece>,
    /// Where the next byte goes.
    at: u64,
}

impl StateFile {
    /// Creates the file `name` in `folder` for these slices.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create<'a>(
        folder: &Path,
        name: String,
        slices: impl Iterator<Item = &'a Slice>,
    ) -> Result<StateFile> {
        let (header, pieces) = lay_out(&name, slices);
        let mut file = SummedFile::create(&folder.join(&name))?;
        file.write_at(0, &header)?;
        file.end_run();
        Ok(StateFile { name, file, pieces, at: header.len() as u64 })
    }

    /// Adds bytes of the slice that is due.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// The slice that was due is complete.
    ///
    /// # Errors
    /// When the padding cannot be written.
    pub fn end_slice(&mut self) -> Result<()> {
        let padding = (self.at.next_multiple_of(PAGE as u64) - self.at) as usize;
        self.write(&ZEROS[..padding])?;
        self.file.end_run();
        Ok(())
    }

    /// Brings all to the disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> Result<(FileEntry, Vec<WrittenPiece>)> {
        let sums = self.file.finish()?;
        Ok((FileEntry { path: self.name, bytes: self.at, sums, xxh64: None }, self.pieces))
    }
}

/// The head of a safetensors file (the length of its JSON, then the JSON) and where each piece lies in it.
fn lay_out<'a>(file: &str, slices: impl Iterator<Item = &'a Slice>) -> (Vec<u8>, Vec<WrittenPiece>) {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".into(), json!({ "format": "oarlock-state" }));
    let mut pieces = Vec::new();
    let mut at = 0;
    for Slice { kind, name, shape, elements } in slices {
        let end = at + 4 * elements.len() as u64;
        entries.insert(
            format!("{kind}/{name}/{}", elements.start),
            json!({ "dtype": STATE_DTYPE, "shape": [elements.len()], "data_offsets": [at, end] }),
        );
        let (first, len) = (elements.start as u64, elements.len() as u64);
        pieces.push(WrittenPiece {
            kind: (*kind).to_string(),
            name: name.clone(),
            shape: shape.sizes().to_vec(),
            piece: Piece { first, len, file: file.to_string(), offset: at },
        });
        at = end.next_multiple_of(PAGE as u64);
        if at > end {
            let padding = json!({ "dtype": "U8", "shape": [at - end], "data_offsets": [end, at] });
            entries.insert(format!("padding/{end}"), padding);
        }
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize((8 + json.len()).next_multiple_of(PAGE) - 8, b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    for piece in &mut pieces {
        piece.piece.offset += header.len() as u64;
    }
    (header, pieces)
}
