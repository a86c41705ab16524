//! The files of a model in Hugging Face form: which weight lies where, laid out once and then written by anybody who
//! has weights, in any order and by several at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use oarlock_tensor::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use crate::disk::{A_PROGRAM, PAGE, Part, Sum, SummedFile, Writer};
use crate::shard::Findings;
use crate::{Error, Result};

/// Elements that are converted at a time.
pub(super) const CHUNK_ELEMS: usize = 1 << 18;

pub(super) const INDEX: &str = "model.safetensors.index.json";

/// A weight of a model.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The name of the parameter.
    pub name: String,
    /// What the files call it.
    pub stored: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// What it is written in.
    pub dtype: FileDType,
}

/// The dtype of a tensor of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDType {
    /// One that tensors have as well.
    Number(DType),
    /// Bytes, each given by its value: parts of quantized weights.
    Byte,
    /// Signed bytes, each given by its value.
    SignedByte,
}

impl From<DType> for FileDType {
    fn from(dtype: DType) -> FileDType {
        FileDType::Number(dtype)
    }
}

impl FileDType {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            FileDType::Number(dtype) => dtype.size(),
            FileDType::Byte | FileDType::SignedByte => 1,
        }
    }
}

/// Whether weights can be written in a dtype.
///
/// # Errors
/// [`Error::Usage`] where that is not a float.
pub fn check_weights_dtype(dtype: DType) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(Error::Usage(format!("weights cannot be written as {dtype}; give f32, bf16 or f16")))
}

impl Weight {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// The files of a model: weights in shards, and what is written beside them. The same on every rank.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    shards: Vec<Shard>,
    /// The names of the weights in order.
    order: Vec<String>,
    locations: HashMap<String, Location>,
    rest: BTreeMap<String, Content>,
    writer: Writer,
}

#[derive(Clone, Debug)]
struct Shard {
    name: String,
    header: Vec<u8>,
    bytes: u64,
}

/// Where a weight lies.
#[derive(Clone, Copy, Debug)]
struct Location {
    shard: usize,
    /// In bytes from the beginning of the file.
    offset: u64,
    n_elems: usize,
    dtype: FileDType,
}

/// What a file beside the weights holds.
#[derive(Clone, Debug)]
pub enum Content {
    /// A text.
    Text(String),
    /// What another file holds.
    CopyOf(PathBuf),
}

/// A file that somebody has written parts of.
#[derive(Clone, Debug)]
pub struct WrittenFile {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The checksums of the parts.
    pub sums: Vec<Sum>,
}

impl ModelFiles {
    /// Lays weights out in this order, in files of at most `max_shard_bytes`.
    ///
    /// # Errors
    /// Weights that are not safetensors file together: two of one name.
    pub fn new(weights: &[Weight], max_shard_bytes: u64) -> Result<ModelFiles> {
        ModelFiles::with_metadata(weights, max_shard_bytes, BTreeMap::new())
    }

    /// As [`ModelFiles::new`], with entries in the metadata of each file.
    pub fn with_metadata(
        weights: &[Weight],
        max_shard_bytes: u64,
        mut metadata: BTreeMap<String, String>,
    ) -> Result<ModelFiles> {
        metadata.insert("format".to_owned(), "pt".to_owned());
        let mut known = HashSet::new();
        if let Some(twice) = weights.iter().find(|weight| !known.insert(&weight.stored)) {
            let name = &twice.stored;
            return Err(Error::Model(format!("cannot lay out the weights: \"{name}\" is there twice")));
        }
        let groups = divide(weights, max_shard_bytes);
        let mut files = ModelFiles {
            shards: Vec::new(),
            order: weights.iter().map(|weight| weight.name.clone()).collect(),
            locations: HashMap::new(),
            rest: BTreeMap::new(),
            writer: Writer { by: A_PROGRAM, overwrites: false },
        };
        for (index, group) in groups.iter().enumerate() {
            let (header, offsets) = header_of(group, &metadata)?;
            let first = header.len() as u64;
            for (weight, range) in group.iter().zip(&offsets) {
                let (dtype, n_elems) = (weight.dtype, weight.shape.iter().product());
                let location = Location { shard: index, offset: first + range.0 as u64, n_elems, dtype };
                files.locations.insert(weight.name.clone(), location);
            }
            let bytes = first + offsets.last().map_or(0, |range| range.1 as u64);
            files.shards.push(Shard { name: shard_name(index, groups.len()), header, bytes });
        }
        if groups.len() > 1 {
            files.rest.insert(INDEX.to_string(), Content::Text(index_json(&groups)));
        }
        Ok(files)
    }

    /// The same as the result of a command, such as `training`; by default they are a save of a program. In a folder they
    /// replace what the same writer wrote there before, as long as that was not changed; with `overwrites` also what else has
    /// one of these names. Weights of another model are never replaced by an adapter.
    #[must_use]
    pub fn written_by(mut self, by: &'static str, overwrites: bool) -> ModelFiles {
        self.writer = Writer { by, overwrites };
        self
    }

    /// Who writes them into a folder.
    pub(super) fn writer_of_folder(&self) -> Writer {
        self.writer
    }

    /// What they are in a folder.
    pub(super) fn part(&self) -> Part {
        let is_model = self.shards.iter().any(|shard| is_weight_file(&shard.name));
        if is_model { Part::Model } else { Part::Adapter }
    }

    /// Whether a folder holds a file beside the weights already, with the same content.
    pub fn is_there(&self, name: &str, dir: &Path) -> bool {
        let path = dir.join(name);
        let read = |path: &Path| oarlock_comm::read_file(path, oarlock_comm::MAX_TOKENIZER_BYTES);
        let is_same = |content: &Content| match content {
            Content::Text(text) => read(&path).is_ok_and(|found| found == text.as_bytes()),
            Content::CopyOf(from) => match (path.canonicalize(), from.canonicalize()) {
                (Ok(path), Ok(from)) if path == from => true,
                _ => read(&path).is_ok_and(|found| read(from).is_ok_and(|bytes| bytes == found)),
            },
        };
        path.is_file() && self.rest.get(name).is_some_and(is_same)
    }

    /// With another name of the file of weights, of which there is one.
    pub fn renamed(mut self, name: &str) -> ModelFiles {
        self.shards.iter_mut().for_each(|shard| shard.name = name.to_owned());
        self
    }

    /// With the files of more weights beside its own.
    pub fn and(mut self, more: ModelFiles) -> ModelFiles {
        let first = self.shards.len();
        self.shards.extend(more.shards);
        self.order.extend(more.order);
        let moved = |location: Location| Location { shard: first + location.shard, ..location };
        self.locations.extend(more.locations.into_iter().map(|(name, location)| (name, moved(location))));
        self.rest.extend(more.rest);
        self
    }

    /// Whether it has a place for a weight.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.locations.contains_key(name)
    }

    /// Adds a text beside the weights.
    pub fn add_text(&mut self, name: &str, text: String) {
        self.add(name, Content::Text(text));
    }

    /// Leaves a file beside the weights out that was added.
    pub fn leave_out(&mut self, name: &str) {
        self.rest.remove(name);
    }

    /// Adds a file beside the weights.
    pub fn add(&mut self, name: &str, content: Content) {
        self.rest.insert(name.to_string(), content);
    }

    /// The same without the weights: settings and tokenizer.
    pub fn without_weights(mut self) -> ModelFiles {
        self.rest.remove(INDEX);
        ModelFiles { shards: Vec::new(), order: Vec::new(), locations: HashMap::new(), ..self }
    }

    /// The names of all files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let weights = self.shards.iter().map(|shard| shard.name.as_str());
        weights.chain(self.rest.keys().map(String::as_str))
    }

    /// The weights in order, with the number of elements of each.
    pub fn weights(&self) -> impl Iterator<Item = (&str, usize)> {
        self.order
            .iter()
            .map(|name| (name.as_str(), self.locations.get(name).map_or(0, |location| location.n_elems)))
    }

    /// Creates the files for the weights, in full size, without the weights. One does it, and all can write then.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create(&self, path_of: &dyn Fn(&str) -> PathBuf) -> Result<Vec<WrittenFile>> {
        let create = |shard: &Shard| {
            let path = path_of(&shard.name);
            // Whoever writes weights into it brings the header to the disk as well.
            let mut file = oarlock_files::open_or_create(&path).map_err(Error::io("create", &path))?;
            file.set_len(0)
                .and_then(|()| file.write_all(&shard.header))
                .and_then(|()| file.set_len(shard.bytes))
                .map_err(Error::io("write", &path))?;
            let sums = vec![Sum::of(0, &shard.header)];
            Ok(WrittenFile { name: shard.name.clone(), bytes: shard.bytes, sums })
        };
        self.shards.iter().map(create).collect()
    }

    /// Writes what lies beside the weights, and brings it to the disk.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn write_rest(&self, path_of: &dyn Fn(&str) -> PathBuf) -> Result<()> {
        for (name, content) in &self.rest {
            let bytes = match content {
                Content::Text(text) => text.clone().into_bytes(),
                Content::CopyOf(path) => oarlock_comm::read_file(path, oarlock_comm::MAX_TOKENIZER_BYTES)
                    .map_err(Error::io("read", path))?,
            };
            let mut file = SummedFile::create(&path_of(name))?;
            file.write_at(0, &bytes)?;
            file.finish()?;
        }
        Ok(())
    }

    /// Something to write weights with, into files that were created.
    pub fn writer(self: Arc<Self>, path_of: impl Fn(&str) -> PathBuf + Send + 'static) -> ModelWriter {
        ModelWriter {
            files: self,
            path_of: Box::new(path_of),
            open: BTreeMap::new(),
            unfit: Findings::default(),
            halves: Vec::new(),
            bytes: Vec::new(),
        }
    }
}

/// Writes weights where they belong.
pub struct ModelWriter {
    files: Arc<ModelFiles>,
    path_of: Box<dyn Fn(&str) -> PathBuf + Send>,
    open: BTreeMap<usize, SummedFile>,
    /// What must not be written as it is.
    unfit: Findings,
    /// Converted elements, as bits.
    halves: Vec<u16>,
    /// Converted bytes.
    bytes: Vec<u8>,
}

impl ModelWriter {
    /// Whether the files have a place for a weight.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.files.holds(name)
    }

    /// Writes elements of a weight, beginning with `first`; integers are given by their bits.
    ///
    /// # Errors
    /// When the model has no such elements, or the file cannot be written.
    pub fn write(&mut self, name: &str, first: usize, values: &[f32]) -> Result<()> {
        if let Some(Location { dtype: FileDType::Number(dtype), n_elems, .. }) =
            self.files.locations.get(name)
            && dtype.is_float()
        {
            self.unfit.look(name, *n_elems, values, *dtype);
        }
        self.write_buffer(name, first, values)
    }

    /// As [`write`](Self::write), of what is not a weight: a mask of a module, for one, may hold infinities.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_buffer(&mut self, name: &str, first: usize, values: &[f32]) -> Result<()> {
        let location = self.files.locations.get(name).copied();
        let fits = |at: &Location| first.checked_add(values.len()).is_some_and(|end| end <= at.n_elems);
        let Some(Location { shard, offset, dtype, .. }) = location.filter(fits) else {
            let last = first + values.len();
            return Err(Error::Usage(format!("the model has no elements {first} to {last} of \"{name}\"")));
        };
        if !self.open.contains_key(&shard) {
            self.open.insert(shard, SummedFile::open(&(self.path_of)(&self.files.shards[shard].name))?);
        }
        let Some(file) = self.open.get_mut(&shard) else { return Ok(()) };
        let mut at = offset + (first * dtype.size()) as u64;
        for chunk in values.chunks(CHUNK_ELEMS) {
            self.halves.resize(chunk.len(), 0);
            let bytes: &[u8] = match dtype {
                FileDType::Byte | FileDType::SignedByte => {
                    self.bytes.clear();
                    // Bytes of either sign are integers of 16 bits whose upper half is left out.
                    self.bytes.extend(chunk.iter().map(|x| *x as i16 as u8));
                    &self.bytes
                }
                FileDType::Number(DType::BF16) => {
                    self.halves.iter_mut().zip(chunk).for_each(|(half, x)| *half = bf16_bits(*x));
                    bytemuck::cast_slice(&self.halves)
                }
                FileDType::Number(DType::F16) => {
                    bytemuck::cast_slice_mut::<u16, f16>(&mut self.halves).convert_from_f32_slice(chunk);
                    bytemuck::cast_slice(&self.halves)
                }
                FileDType::Number(DType::F32 | DType::I32) => bytemuck::cast_slice(chunk),
            };
            file.write_at(at, bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Brings all to the disk; returns what was written by this one.
    ///
    /// # Errors
    /// When a file cannot be written, and where weights are not finite, or too large for their dtype
    /// ([`Error::Weights`]): the caller gives the files up then.
    pub fn finish(self) -> Result<Vec<WrittenFile>> {
        let written = |(shard, file): (usize, SummedFile)| {
            let Shard { name, bytes, .. } = &self.files.shards[shard];
            Ok(WrittenFile { name: name.clone(), bytes: *bytes, sums: file.finish()? })
        };
        self.unfit.verdict("written")?;
        self.open.into_iter().map(written).collect()
    }
}

/// `bf16::from_f32`, to the nearest and ties to even, in a form of which the compiler makes vector code.
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

fn shard_name(index: usize, n_shards: usize) -> String {
    match n_shards {
        1 => "model.safetensors".to_string(),
        n => format!("model-{:05}-of-{n:05}.safetensors", index + 1),
    }
}

/// Whether a file holds weights of a model.
fn is_weight_file(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

/// The weights of each file, in order.
fn divide(weights: &[Weight], max_shard_bytes: u64) -> Vec<Vec<&Weight>> {
    let (mut groups, mut bytes) = (vec![Vec::new()], 0);
    for weight in weights {
        let more = weight.bytes() as u64;
        if bytes > 0 && bytes + more > max_shard_bytes {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(group) = groups.last_mut() {
            group.push(weight);
        }
    }
    groups
}

/// Where each of some tensors begins and ends.
type Ranges = Vec<(usize, usize)>;

/// The head of a safetensors file, and where each tensor begins and ends behind it.
fn header_of(group: &[&Weight], metadata: &BTreeMap<String, String>) -> Result<(Vec<u8>, Ranges)> {
    let mut end = 0;
    let (mut infos, mut offsets) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
    for tensor in group {
        let start = end;
        end += tensor.bytes();
        offsets.push((start, end));
        let dtype = match tensor.dtype {
            FileDType::Number(DType::F32) => Dtype::F32,
            FileDType::Number(DType::BF16) => Dtype::BF16,
            FileDType::Number(DType::F16) => Dtype::F16,
            FileDType::Number(DType::I32) => Dtype::I32,
            FileDType::Byte => Dtype::U8,
            FileDType::SignedByte => Dtype::I8,
        };
        let info = TensorInfo { dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        infos.push((tensor.stored.clone(), info));
    }
    let unusual = |e: &dyn std::fmt::Display| Error::Model(format!("cannot lay out the weights: {e}"));
    let tensors = Metadata::new(Some(HashMap::new()), infos).map_err(|e| unusual(&e))?;
    let mut header = serde_json::to_value(&tensors).map_err(|e| unusual(&e))?;
    // In an order of its own, where the library has none.
    header["__metadata__"] = json!(metadata);
    let mut json = serde_json::to_vec(&header).map_err(|e| unusual(&e))?;
    // The data begin at a page, so that most weights do.
    json.resize((8 + json.len()).next_multiple_of(PAGE) - 8, b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok((header, offsets))
}

fn index_json(groups: &[Vec<&Weight>]) -> String {
    let mut map = BTreeMap::new();
    let (mut n_elems, mut bytes) = (0, 0);
    for (index, group) in groups.iter().enumerate() {
        for tensor in group {
            map.insert(&tensor.stored, shard_name(index, groups.len()));
            n_elems += tensor.shape.iter().product::<usize>();
            bytes += tensor.bytes();
        }
    }
    let metadata = json!({ "total_parameters": n_elems, "total_size": bytes });
    format!("{:#}\n", json!({ "metadata": metadata, "weight_map": map }))
}

#[cfg(test)]
mod tests {
    use super::bf16_bits;

    #[test]
    fn bf16_is_that_of_half() {
        // All upper halves with the lower halves around every edge of rounding.
        for upper in 0..=u32::from(u16::MAX) {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(upper << 16 | lower);
                assert_eq!(bf16_bits(x), half::bf16::from_f32(x).to_bits(), "{upper:x} {lower:x}");
            }
        }
    }
}
