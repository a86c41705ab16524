//! Writing a model as a Hugging Face folder that transformers loads: weights in shards, settings, tokenizer.
//!
//! Everything is first written beside its place and synced; only when all of it is on the disk do the files get their
//! names. Whatever fails before that leaves the folder as it was. Files that somebody else wrote are never replaced
//! ([`ModelFiles::written_by`]).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use oarlock_tensor::DType;

use super::config::HfConfig;
use super::files::{CHUNK_ELEMS, Content, ModelFiles, Weight, check_weights_dtype};
use super::staged::Staged;
use crate::error::{Error, Result};
use crate::model::is_of_value_head;
use crate::nn::{Module, NamedParam, names_of};
use crate::shard::{ParamSlice, WeightSource};

/// What belongs to a tokenizer, and the settings of generation: taken over as they are.
const SIDE_FILES: [&str; 9] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// The files beside the weights that a model takes over from a folder, without those of code.
pub fn side_files(from: &Path) -> impl Iterator<Item = &'static str> {
    SIDE_FILES.into_iter().filter(|name| from.join(name).is_file())
}

/// How a folder is written.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions<'a> {
    /// The dtype of the weights in the files.
    pub dtype: DType,
    /// The most bytes of weights in one file; a larger model gets several files and an index.
    pub max_shard_bytes: u64,
    /// The folder whose tokenizer and generation settings are copied.
    pub side_files_from: Option<&'a Path>,
}

impl<'a> SaveOptions<'a> {
    /// The size that LLaMA-Factory writes (`export_size: 5`).
    pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;

    /// Weights in `dtype`, in files of at most [`MAX_SHARD_BYTES`](Self::MAX_SHARD_BYTES), beside the tokenizer and the
    /// generation settings of a folder.
    pub fn new(dtype: DType, side_files_from: Option<&'a Path>) -> SaveOptions<'a> {
        SaveOptions { dtype, max_shard_bytes: Self::MAX_SHARD_BYTES, side_files_from }
    }
}

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
    /// The files of `model`: weights, `config.json`, and what is taken over from another folder. Shared weights are there
    /// once.
    ///
    /// # Errors
    /// A dtype in which weights cannot be written.
    pub fn of_model(config: &HfConfig, model: &dyn Module, options: &SaveOptions<'_>) -> Result<ModelFiles> {
        check_weights_dtype(options.dtype)?;
        let mut seen = BTreeSet::new();
        let weights: Vec<Weight> = names_of(model)
            .into_iter()
            .filter(|named| seen.insert(named.param.id()) && !is_of_value_head(&named.name))
            .map(|NamedParam { name, param }| Weight {
                stored: config.stored(&name),
                shape: param.shape().sizes().to_vec(),
                dtype: options.dtype.into(),
                name,
            })
            .collect();
        let mut files = ModelFiles::new(&weights, options.max_shard_bytes)?.with_value_head(model)?;
        files.settle(config, options.dtype, options.side_files_from);
        Ok(files)
    }

    /// Adds the settings, with what belongs to them in the folder `from`.
    pub(crate) fn settle(&mut self, config: &HfConfig, dtype: DType, from: Option<&Path>) {
        self.add("config.json", Content::Text(config.to_json(dtype)));
        self.add("generation_config.json", Content::Text(config.generation_json()));
        if let Some(from) = from {
            self.take_over(from, &config.code_files());
        }
    }

    /// Adds the files of the tokenizer, those of generation, and `more`, as far as a folder has them.
    pub fn take_over(&mut self, from: &Path, more: &[String]) {
        for name in SIDE_FILES.into_iter().chain(more.iter().map(String::as_str)) {
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

/// Writes `model`, whose weights come from `weights`, to the folder `dir`. Shared weights are written once. Files of an earlier
/// save are replaced, and removed where none takes their place; what else is in the folder stays.
///
/// # Errors
/// [`Error::Occupied`] where files of the same names are there that `save_pretrained` did not write, or not as they are now.
/// When a file cannot be written, such as on a full disk, or a weight cannot be read; the folder is then as it was.
pub fn save_pretrained(
    dir: &Path,
    config: &HfConfig,
    model: &dyn Module,
    weights: &mut dyn WeightSource,
    options: &SaveOptions<'_>,
) -> Result<()> {
    let params: HashMap<String, NamedParam> =
        names_of(model).into_iter().map(|named| (named.name.clone(), named)).collect();
    ModelFiles::of_model(config, model, options)?
        .save(dir, &mut |name, elements, out| weights.read(&ParamSlice::of(&params[name], elements), out))
}
