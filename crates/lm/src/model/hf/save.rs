//! Writing a model as a Hugging Face folder that transformers loads: weights in shards, settings, tokenizer.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use oarlock_engine::checkpoint::weights::{Content, ModelFiles, Weight, check_weights_dtype};
use oarlock_engine::checkpoint::{self, MergeOptions, Merged};
use oarlock_engine::nn::{Module, NamedParam, names_of};
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::DType;

use super::config::HfConfig;
use crate::gguf;
use crate::model::value_head::{is_of_value_head, with_value_head, with_value_head_of};

/// What belongs to a tokenizer, and the settings of generation: taken over as they are.
const SIDE_FILES: [&str; 10] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

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

impl HfConfig {
    /// The files of `model`: weights, `config.json`, and what is taken over from another folder. Shared weights are there
    /// once.
    ///
    /// # Errors
    /// A dtype in which weights cannot be written.
    pub fn files_of(&self, model: &dyn Module, options: &SaveOptions<'_>) -> Result<ModelFiles> {
        check_weights_dtype(options.dtype)?;
        let mut seen = BTreeSet::new();
        let weights: Vec<Weight> = names_of(model)
            .into_iter()
            .filter(|named| seen.insert(named.param.id()) && !is_of_value_head(&named.name))
            .map(|NamedParam { name, param }| Weight {
                stored: self.stored(&name),
                shape: param.shape().sizes().to_vec(),
                dtype: options.dtype.into(),
                name,
            })
            .collect();
        let files = ModelFiles::new(&weights, options.max_shard_bytes)?;
        let mut files = with_value_head(files, model)?;
        self.add_settings(&mut files, options.dtype, options.side_files_from)?;
        Ok(files)
    }

    /// Adds the settings, with what belongs to them in the folder `from`.
    ///
    /// # Errors
    /// As [`take_over_side_files`].
    pub(crate) fn add_settings(
        &self,
        files: &mut ModelFiles,
        dtype: DType,
        from: Option<&Path>,
    ) -> Result<()> {
        files.add("config.json", Content::Text(self.to_json(dtype)));
        files.add("generation_config.json", Content::Text(self.generation_json()));
        from.map_or(Ok(()), |from| take_over_side_files(files, from, &self.code_files()))
    }
}

/// Takes the files of the tokenizer, those of generation, and `more` over from a folder, as far as it has them; of a GGUF file
/// what it says in their place.
///
/// # Errors
/// A GGUF file that cannot be read.
pub fn take_over_side_files(files: &mut ModelFiles, from: &Path, more: &[String]) -> Result<()> {
    if !gguf::is_gguf(from) {
        files.take_over(from, SIDE_FILES.into_iter().chain(more.iter().map(String::as_str)));
        return Ok(());
    }
    for name in SIDE_FILES.into_iter().filter(|name| gguf::DERIVED.contains(name)) {
        let text = gguf::read_text(&from.join(name), oarlock_comm::MAX_TOKENIZER_BYTES);
        files.add(name, Content::Text(text.map_err(Error::io("read", &from.join(name)))?));
    }
    Ok(())
}

/// The files of a model with parameters of these names and shapes, with the settings and the tokenizer in a folder.
///
/// # Errors
/// A dtype in which weights cannot be written.
pub fn lay_out(
    dir: Option<&Path>,
    shapes: Vec<(String, Vec<usize>)>,
    dtype: DType,
    max_shard_bytes: u64,
) -> Result<ModelFiles> {
    // Settings that we do not know belong to somebody's own model: they are taken over as they are.
    let config = dir.and_then(|dir| HfConfig::read(dir).ok());
    check_weights_dtype(dtype)?;
    // The value head of a reward model has a file of its own.
    let (head, shapes): (Vec<_>, Vec<_>) =
        shapes.into_iter().partition(|(name, _)| config.is_some() && is_of_value_head(name));
    let weight = |(name, shape): (String, Vec<usize>)| Weight {
        stored: config.as_ref().map_or_else(|| name.clone(), |config| config.stored(&name)),
        name,
        shape,
        dtype: dtype.into(),
    };
    let weights: Vec<Weight> = shapes.into_iter().map(weight).collect();
    let mut files = with_value_head_of(ModelFiles::new(&weights, max_shard_bytes)?, head.into_iter())?;
    match &config {
        Some(config) => config.add_settings(&mut files, dtype, dir)?,
        None => {
            if let Some(dir) = dir {
                take_over_side_files(&mut files, dir, &["config.json".to_owned()])?;
            }
        }
    }
    Ok(files)
}

/// [`checkpoint::merge_weights`](oarlock_engine::checkpoint::merge_weights) into a folder in Hugging Face form, with the settings and
/// the tokenizer that the checkpoint has.
///
/// # Errors
/// As that one.
pub fn merge_weights(checkpoint: &Path, out: &Path, options: &MergeOptions<'_>) -> Result<Merged> {
    checkpoint::merge_weights(checkpoint, out, options, &|dir, shapes, dtype, max_shard_bytes| {
        lay_out(Some(dir), shapes, dtype, max_shard_bytes)
    })
}

/// Writes `model`, whose weights come from `weights`, to the folder `dir`. Shared weights are written once. Files of an earlier
/// save are replaced, and removed where none takes their place; what else is in the folder stays.
///
/// # Errors
/// [`Error::Occupied`](oarlock_engine::Error::Occupied) where files of the same names are there that `save_pretrained` did not write, or not as they are now.
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
    config
        .files_of(model, options)?
        .save(dir, &mut |name, elements, out| weights.read(&ParamSlice::of(&params[name], elements), out))
}
