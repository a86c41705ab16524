//! Writing a model as a Hugging Face folder that transformers loads: weights in shards, settings, tokenizer.
//!
//! Everything is first written beside its place and synced; only when all of it is on the disk do the files get their
//! names. Whatever fails before that leaves the folder as it was.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use oarlock_tensor::{DType, Init, Shape};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use super::config::HfConfig;
use crate::error::{Error, Result};
use crate::nn::{Module, NamedParam, names_of};
use crate::shard::WeightSource;

/// Elements that are converted at a time.
const CHUNK_ELEMS: usize = 1 << 20;

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

impl SaveOptions<'_> {
    /// The size that LLaMA-Factory writes (`export_size: 5`).
    pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;
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
    fn read(
        &mut self,
        name: &str,
        _shape: &Shape,
        _init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let Some(named) = self.0.get(name) else {
            return Err(Error::Usage(format!("the model has no parameter \"{name}\"")));
        };
        let weight = named.param.weight()?;
        match weight.dtype() {
            DType::BF16 => widen(&weight.slice::<bf16>()?[elements], out, |x| x.to_f32()),
            DType::F16 => widen(&weight.slice::<f16>()?[elements], out, |x| x.to_f32()),
            DType::F32 | DType::I32 => out.copy_from_slice(&weight.slice::<f32>()?[elements]),
        }
        Ok(())
    }
}

fn widen<T: Copy>(from: &[T], out: &mut [f32], to_f32: impl Fn(T) -> f32) {
    out.iter_mut().zip(from).for_each(|(out, x)| *out = to_f32(*x));
}

/// Writes `model`, whose weights come from `weights`, to the folder `dir`. Shared weights are written once. Weight files
/// of an earlier save that are not replaced are removed at the end.
///
/// # Errors
/// When a file cannot be written, such as on a full disk, or a weight cannot be read; the folder is then as it was.
pub fn save_pretrained(
    dir: &Path,
    config: &HfConfig,
    model: &dyn Module,
    weights: &mut dyn WeightSource,
    options: &SaveOptions<'_>,
) -> Result<()> {
    if !options.dtype.is_float() {
        return Err(Error::Usage(format!(
            "weights cannot be written as {}; give f32, bf16 or f16",
            options.dtype
        )));
    }
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let shards = plan_shards(model, options);
    let mut staged = Staged { dir, names: BTreeSet::new() };
    for (index, shard) in shards.iter().enumerate() {
        staged.write(&shard_name(index, shards.len()), |out| {
            write_shard(out, shard, config, weights, options.dtype)
        })?;
    }
    if shards.len() > 1 {
        staged
            .write(INDEX, |out| Ok(out.write_all(index_json(&shards, config, options.dtype).as_bytes())?))?;
    }
    staged.write("config.json", |out| Ok(out.write_all(config.to_json(options.dtype).as_bytes())?))?;
    let code_files = config.code_files();
    for name in SIDE_FILES.into_iter().chain(code_files.iter().map(String::as_str)) {
        match options.side_files_from.map(|from| from.join(name)).filter(|path| path.is_file()) {
            Some(path) => {
                let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
                staged.write(name, |out| Ok(out.write_all(&bytes)?))?;
            }
            None if name == "generation_config.json" => {
                staged.write(name, |out| Ok(out.write_all(config.generation_json().as_bytes())?))?;
            }
            None => {}
        }
    }
    staged.publish()
}

const INDEX: &str = "model.safetensors.index.json";

fn shard_name(index: usize, n_shards: usize) -> String {
    match n_shards {
        1 => "model.safetensors".to_string(),
        n => format!("model-{:05}-of-{n:05}.safetensors", index + 1),
    }
}

/// Whether a file holds weights of the model as some save could have named it.
fn is_weight_file(name: &str) -> bool {
    name == INDEX || (name.starts_with("model") && name.ends_with(".safetensors"))
}

/// The parameters of each file, each parameter once, in the order of the model.
fn plan_shards(model: &dyn Module, options: &SaveOptions<'_>) -> Vec<Vec<NamedParam>> {
    let (mut shards, mut bytes, mut seen) = (vec![Vec::new()], 0, BTreeSet::new());
    for named in names_of(model) {
        if !seen.insert(named.param.id()) {
            continue;
        }
        let size = (named.param.shape().n_elems() * options.dtype.size()) as u64;
        if bytes > 0 && bytes + size > options.max_shard_bytes {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(shard) = shards.last_mut() {
            shard.push(named);
        }
    }
    shards
}

fn write_shard(
    out: &mut dyn Write,
    shard: &[NamedParam],
    config: &HfConfig,
    weights: &mut dyn WeightSource,
    dtype: DType,
) -> std::result::Result<(), WriteError> {
    let stored = match dtype {
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F32 | DType::I32 => Dtype::F32,
    };
    let mut end = 0;
    let mut infos = Vec::with_capacity(shard.len());
    for named in shard {
        let shape = named.param.shape();
        let start = end;
        end += shape.n_elems() * stored.bitsize() / 8;
        let info = TensorInfo { dtype: stored, shape: shape.sizes().to_vec(), data_offsets: (start, end) };
        infos.push((config.naming().in_file(&named.name), info));
    }
    let note = HashMap::from([("format".to_string(), "pt".to_string())]);
    let header = Metadata::new(Some(note), infos)
        .map_err(|e| Error::Model(format!("cannot lay out the weights: {e}")))?;
    let mut header = serde_json::to_vec(&header).map_err(std::io::Error::from)?;
    // The data begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for named in shard {
        let n_elems = named.param.shape().n_elems();
        for start in (0..n_elems).step_by(CHUNK_ELEMS) {
            let elements = start..(start + CHUNK_ELEMS).min(n_elems);
            values.resize(elements.len(), 0.0);
            weights.read(&named.name, named.param.shape(), named.param.init(), elements, &mut values)?;
            bytes.clear();
            match stored {
                Dtype::BF16 => bytes.extend(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
                Dtype::F16 => bytes.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
                _ => bytes.extend(values.iter().flat_map(|x| x.to_le_bytes())),
            }
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

fn index_json(shards: &[Vec<NamedParam>], config: &HfConfig, dtype: DType) -> String {
    let mut map = BTreeMap::new();
    let mut n_elems = 0;
    for (index, shard) in shards.iter().enumerate() {
        for named in shard {
            map.insert(config.naming().in_file(&named.name), shard_name(index, shards.len()));
            n_elems += named.param.shape().n_elems();
        }
    }
    let metadata = json!({ "total_parameters": n_elems, "total_size": n_elems * dtype.size() });
    format!("{:#}\n", json!({ "metadata": metadata, "weight_map": map }))
}

/// What fails while a file is written: the disk, or the source of what is written.
enum WriteError {
    Disk(std::io::Error),
    Source(Error),
}

impl From<std::io::Error> for WriteError {
    fn from(cause: std::io::Error) -> WriteError {
        WriteError::Disk(cause)
    }
}

impl From<Error> for WriteError {
    fn from(cause: Error) -> WriteError {
        WriteError::Source(cause)
    }
}

/// Files that are written but do not have their names yet; dropping it removes them.
struct Staged<'a> {
    dir: &'a Path,
    names: BTreeSet<String>,
}

impl Staged<'_> {
    fn write(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> std::result::Result<(), WriteError>,
    ) -> Result<()> {
        self.names.insert(name.to_string());
        let path = self.temporary(name);
        let attempt = || {
            let mut out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
            fill(&mut out)?;
            out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
            Ok(())
        };
        attempt().map_err(|e| match e {
            WriteError::Disk(cause) => Error::io("write", self.dir.join(name))(cause),
            WriteError::Source(cause) => cause,
        })
    }

    /// Gives all files their names, then removes weight files of an earlier save.
    fn publish(mut self) -> Result<()> {
        for name in &self.names {
            let path = self.dir.join(name);
            std::fs::rename(self.temporary(name), &path).map_err(Error::io("rename to", &path))?;
        }
        let names = std::mem::take(&mut self.names);
        let entries = std::fs::read_dir(self.dir).map_err(Error::io("read", self.dir))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_weight_file(&name) && !names.contains(&name) {
                std::fs::remove_file(entry.path()).map_err(Error::io("remove", entry.path()))?;
            }
        }
        File::open(self.dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", self.dir))
    }

    fn temporary(&self, name: &str) -> PathBuf {
        self.dir.join(format!(".{name}.{}.part", std::process::id()))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            // What was never created needs no removal.
            let _ = std::fs::remove_file(self.temporary(name));
        }
    }
}
