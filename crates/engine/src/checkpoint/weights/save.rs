//! Writing the files of a model into a folder.
//!
//! Everything is first written beside its place and synced; only when all of it is on the disk do the files get their
//! names. Whatever fails before that leaves the folder as it was. Files that somebody else wrote are never replaced
//! ([`ModelFiles::written_by`]).

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::files::{CHUNK_ELEMS, Content, ModelFiles};
use super::staged::Staged;
use crate::nn::{Module, NamedParam, names_of};
use crate::shard::{ParamSlice, WeightSource};
use crate::{Error, Result};

/// The working copies of a prepared model, in whatever dtype they are.
pub struct WorkingCopies(HashMap<String, NamedParam>);

impl WorkingCopies {
    /// Those of `model`.
    pub fn of(model: &dyn Module) -> WorkingCopies {
        WorkingCopies(names_of(model).into_iter().map(|named| (named.name.clone(), named)).collect())
    }
}

impl WeightSource for WorkingCopies {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, elements, .. } = slice;
        let Some(named) = self.0.get(*name) else {
            return Err(Error::Usage(format!("the model has no parameter \"{name}\"")));
        };
        Ok(named.param.weight()?.read_f32(elements.start, out)?)
    }
}

/// Fills a buffer with elements of a weight.
pub type ReadElements<'a> = dyn FnMut(&str, Range<usize>, &mut [f32]) -> Result<()> + 'a;

impl ModelFiles {
    /// Takes files of these names over from the folder `from`, as far as it has them.
    pub fn take_over<'n>(&mut self, from: &Path, names: impl IntoIterator<Item = &'n str>) {
        for name in names {
            let path = from.join(name);
            if path.is_file() {
                self.add(name, Content::CopyOf(path));
            }
        }
    }

    /// Writes all files into the folder `dir`, which is as it was when that fails. Those of an earlier save by the same writer
    /// are replaced, and removed where none takes their place.
    ///
    /// # Errors
    /// [`Error::Occupied`] where something is in the way that this writer may not replace; when a file cannot be written,
    /// such as on a full disk, or a weight cannot be read.
    pub fn save(self, dir: &Path, read: &mut ReadElements<'_>) -> Result<()> {
        let files = Arc::new(self);
        let staged = Staged::new(dir, files.clone(), std::process::id().to_string())?;
        let mut attempt = || {
            let mut written = files.create(&|name| staged.path_of(name))?;
            let mut writer = staged.writer();
            let mut values = Vec::new();
            for (name, n_elems) in files.weights() {
                for start in (0..n_elems).step_by(CHUNK_ELEMS) {
                    let elements = start..(start + CHUNK_ELEMS).min(n_elems);
                    values.resize(elements.len(), 0.0);
                    read(name, elements, &mut values)?;
                    writer.write(name, start, &values)?;
                }
            }
            written.extend(writer.finish()?);
            files.write_rest(&|name| staged.path_of(name)).map(|()| written)
        };
        let written = attempt().map_err(|error| staged.by_final_name(error))?;
        staged.publish(written)
    }
}
