//! The weights of a folder under llama.cpp's names, with their rows in its order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use oarlock_engine::checkpoint::weights::{MappedFiles, floats, weight_files};
use oarlock_engine::{Error, Result};
use oarlock_gguf::{TensorPlan, TensorType};

use super::file::Rows;
use super::settings::Settings;
use super::{architecture, rope};
use crate::gguf::names::{Architecture, RowOrder};

/// The weights of a folder.
pub(super) struct Tensors {
    dir: std::path::PathBuf,
    mapped: MappedFiles,
    /// By their names in GGUF.
    stored: BTreeMap<String, Stored>,
    /// Those that no file holds.
    made: BTreeMap<String, Vec<f32>>,
}

/// A tensor of the files.
struct Stored {
    /// Its name there.
    name: String,
    rows: RowOrder,
}

impl Tensors {
    /// Opens the files of a folder.
    ///
    /// # Errors
    /// Files that cannot be read, and tensors that the architecture has no place for.
    pub(super) fn open(dir: &Path, architecture: &Architecture, settings: &Settings) -> Result<Tensors> {
        if dir.join(crate::model::VALUE_HEAD_FILE).exists() {
            return Err(settings.refuse("it is a reward model, whose value head has no tensor there"));
        }
        let mapped = MappedFiles::open(weight_files(dir)?.iter().map(|name| dir.join(name)))?;
        let mut stored = BTreeMap::new();
        for (name, located) in &mapped.tensors {
            let Some((named, rows)) = architecture::tensor(architecture, name, settings)? else { continue };
            if located.shape.is_empty() || located.shape.len() > 2 {
                return Err(settings.refuse(format_args!("{name} has the shape {:?}", located.shape)));
            }
            if !rows.fits(located.shape[0]) {
                return Err(settings.refuse(format_args!("the rows of {name} are not whole heads")));
            }
            stored.insert(named, Stored { name: name.clone(), rows });
        }
        let made = rope::tensors(architecture.name, settings)?.into_iter().collect();
        Ok(Tensors { dir: dir.to_owned(), mapped, stored, made })
    }

    /// The rows of the embedding: the size of the vocabulary.
    ///
    /// # Errors
    /// Files without an embedding.
    pub(super) fn n_tokens(&self) -> Result<usize> {
        let embedding = self.stored.get("token_embd.weight").and_then(|s| self.mapped.tensors.get(&s.name));
        let rows = embedding.and_then(|located| located.shape.first().copied());
        rows.ok_or_else(|| Error::bad_file(&self.dir, "the files hold no embedding of tokens"))
    }

    /// All tensors in single precision; the first dimension is that of a row.
    pub(super) fn plans(&self) -> Vec<TensorPlan> {
        let stored = self.stored.iter().filter_map(|(name, stored)| {
            let shape = &self.mapped.tensors.get(&stored.name)?.shape;
            let dims: Vec<u64> = shape.iter().rev().map(|size| *size as u64).collect();
            Some(TensorPlan::new(name.clone(), dims, TensorType::F32))
        });
        let made = (self.made.iter())
            .map(|(name, values)| TensorPlan::new(name.clone(), [values.len() as u64], TensorType::F32));
        stored.chain(made).collect()
    }
}

impl Rows for Tensors {
    fn read(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        if let Some(values) = self.made.get(name) {
            out.copy_from_slice(values);
            return Ok(());
        }
        let found =
            self.stored.get(name).and_then(|stored| Some((stored, self.mapped.tensors.get(&stored.name)?)));
        let Some((stored, located)) = found else {
            return Err(Error::Usage(format!("there is no tensor {name}")));
        };
        let bytes = &self.mapped.files[located.file][located.bytes.clone()];
        let n_elems: usize = located.shape.iter().product();
        let size = bytes.len() / n_elems.max(1);
        let read = |elements: Range<usize>, out: &mut [f32]| {
            let bytes = &bytes[elements.start * size..elements.end * size];
            floats(&stored.name, located.dtype, bytes, out)
                .map_err(|problem| Error::bad_file(&self.dir, problem))
        };
        // A bias is one row there, whose elements take turns as the rows of its weight do.
        let (n, row) = match located.shape[..] {
            [n] => (n, 1),
            _ => (located.shape[0], located.shape[1]),
        };
        let rows = if located.shape.len() == 1 { 0..n } else { rows };
        match stored.rows {
            order @ RowOrder::Interleaved(_) => {
                for (at, out) in rows.zip(out.chunks_mut(row)) {
                    let from = order.stored(at, n);
                    read(from * row..(from + 1) * row, out)?;
                }
                Ok(())
            }
            RowOrder::Same => read(rows.start * row..rows.end * row, out),
            RowOrder::PlusOne => {
                read(rows.start * row..rows.end * row, out)?;
                out.iter_mut().for_each(|x| *x += 1.0);
                Ok(())
            }
        }
    }
}
