//! A GGUF file in the place of a Hugging Face folder: `config.json`, the tokenizer and the weights are derived from it.
//!
//! [`read_file`] reads a file of a model's folder. Where the folder is a GGUF file, it gives what the file says in its place,
//! so that whoever reads a model reads both forms. Weights stay where they lie, and are dequantized as they are asked for.
//! What Hugging Face's form cannot say is refused with the reason.

#[cfg(test)]
pub(crate) mod block_tests;
mod config;
mod model_keys;
pub(crate) mod names;
mod parts;
mod rope;
pub(crate) mod rules;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tokenizer_settings;
pub(crate) mod tokens;
mod weights;

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use oarlock_comm::MappedFile;

use self::parts::Model;
pub(crate) use self::rope::{llama3_divisors, long_attention};
pub(crate) use self::weights::map_weights;

/// Whether this is a file in GGUF, by how it begins. Such a path stands for a model as the path of a folder does; of a model in
/// several files it is that of the first.
pub fn is_gguf(path: &Path) -> bool {
    // Opening a pipe would wait for whoever writes to it.
    if !path.is_file() {
        return false;
    }
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
}

/// The bytes of a file of a model's folder, as [`oarlock_comm::read_file`] reads it, or what a GGUF file in the place of the
/// folder says: `model.gguf/config.json` is the `config.json` of a model in GGUF.
///
/// # Errors
/// As that one; [`ErrorKind::NotFound`] for files that GGUF knows nothing of, and [`ErrorKind::InvalidData`] for what
/// Hugging Face's form cannot say.
pub fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    match gguf_of(path) {
        Some((gguf, name)) => derived(gguf, name).map(String::into_bytes),
        None => oarlock_comm::read_file(path, max_bytes),
    }
}

/// The same as text, without a byte order mark.
///
/// # Errors
/// As [`read_file`], and text that is not UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<String> {
    match gguf_of(path) {
        Some((gguf, name)) => derived(gguf, name),
        None => oarlock_comm::read_text(path, max_bytes),
    }
}

/// Whether a folder, or a GGUF file in its place, has a file of this name.
pub fn has_file(model: &Path, name: &str) -> bool {
    match is_gguf(model) {
        true => DERIVED.contains(&name),
        false => model.join(name).is_file(),
    }
}

/// The files that a GGUF file stands for, but for the weights.
pub(crate) const DERIVED: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// The GGUF file that a path goes into, and the name inside.
fn gguf_of(path: &Path) -> Option<(&Path, &str)> {
    // Folders inside a model's folder have files, too, such as `additional_chat_templates`.
    let model = path.ancestors().skip(1).take(2).find(|model| is_gguf(model))?;
    Some((model, path.strip_prefix(model).ok()?.to_str()?))
}

/// What a GGUF file says in the place of a file.
fn derived(path: &Path, name: &str) -> Result<String> {
    if !DERIVED.contains(&name) {
        return Err(ErrorKind::NotFound.into());
    }
    let maps = parts::open(path)?;
    let refuse = |problem: String| Error::new(ErrorKind::InvalidData, problem);
    let model = Model::of(maps.iter().map(|map| &map[..])).map_err(refuse)?;
    let text = match name {
        "config.json" => config::of(&model),
        "tokenizer.json" => tokenizer::of(model.keys()),
        "tokenizer_config.json" => tokenizer_settings::of(model.keys()),
        _ => tokenizer_settings::generation(model.keys()),
    };
    maps.iter().try_for_each(MappedFile::check)?;
    text.map_err(refuse)
}
