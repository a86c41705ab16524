//! The weights of a folder: safetensors files, mapped into memory and read in slices.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use oarlock_comm::MappedFile;
use oarlock_tensor::{Init, Shape};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::config::HfConfig;
use super::elements;
use crate::error::{Error, Result};
use crate::model::family::Stored;
use crate::nn::{Buffer, BufferValues, Module, NamedBuffer, buffers, names_of};
use crate::shard::WeightSource;

/// Names listed in one message.
const MAX_LISTED: usize = 5;

/// The weights of a Hugging Face folder, checked against a model as a whole when opened.
pub struct SafetensorsSource {
    files: Vec<MappedFile>,
    /// By the names that the model uses, each with its own part of a tensor that holds several.
    tensors: HashMap<String, Located>,
    /// Buffers of the model that the files hold, with their values there.
    buffers: Vec<(Buffer, BufferValues)>,
}

#[derive(Clone)]
struct Located {
    file: usize,
    bytes: Range<usize>,
    shape: Vec<usize>,
    dtype: Dtype,
}

impl SafetensorsSource {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` lists, and checks that they hold the
    /// weights of `model` and nothing else. A weight that the model shows under several names needs only one of them.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a broken file, and for missing, unexpected or misshapen weights (at most five listed).
    pub fn open(dir: &Path, config: &HfConfig, model: &dyn Module) -> Result<SafetensorsSource> {
        let names = weight_files(dir)?;
        let (files, found) = map_files(names.iter().map(|name| dir.join(name)))?;
        let matched = match_names(model, &|name| config.stored(name), "config.json", &found);
        let output = config.stored("lm_head.weight").tensor;
        let mut problems = matched.problems("config.json asks for", Strict::Yes);
        if matched.differences.missing == [output.as_str()] {
            problems[0] = format!(
                "lacks the output weights {output}; where they are the embedding's, set \"tie_word_embeddings\" to true in config.json"
            );
        }
        match problems.is_empty() {
            true => Ok(SafetensorsSource { files, tensors: matched.tensors, buffers: Vec::new() }),
            false => Err(Error::bad_file(dir, problems.join("; it "))),
        }
    }

    /// Opens the weights of any model: a safetensors file, or a folder of them as [`SafetensorsSource::open`] takes it,
    /// under the names that the model shows, or as its family stores a decoder. What the files lack keeps the values that it has; the result says what
    /// that is.
    ///
    /// # Errors
    /// [`Error::BadFile`] for a broken file and for misshapen weights; with [`Strict::Yes`] also for missing and
    /// unexpected ones (at most five listed).
    pub fn of_module(
        path: &Path,
        model: &dyn Module,
        strict: Strict,
    ) -> Result<(SafetensorsSource, Differences)> {
        let (files, found) = match path.is_dir() {
            true => map_files(weight_files(path)?.iter().map(|name| path.join(name)))?,
            false => map_files(std::iter::once(path.to_path_buf()))?,
        };
        let mut matched = match_names(model, &|name| Stored::whole(name), "the model", &found);
        if !matched.differences.missing.is_empty()
            && let Ok(config) = HfConfig::read(path)
        {
            // A decoder of a family whose files have other names than the model.
            let of_family = match_names(model, &|name| config.stored(name), "the model", &found);
            if of_family.differences.missing.len() < matched.differences.missing.len() {
                matched = of_family;
            }
        }
        let mut kept = Vec::new();
        for NamedBuffer { name, buffer } in buffers(model) {
            matched.differences.unexpected.retain(|other| *other != name);
            match found.get(&name) {
                Some(stored) => match values_of(&name, &files, stored, &buffer) {
                    Ok(values) => kept.push((buffer, values)),
                    Err(problem) => matched.misshapen.push(problem),
                },
                None if buffer.is_persistent() => matched.differences.missing.push(name),
                None => {}
            }
        }
        let mut problems = matched.problems("the model asks for", strict);
        if matched.tensors.is_empty() && problems.is_empty() {
            problems.push("holds no weight of the model".to_owned());
        }
        match problems.is_empty() {
            true => {
                let source = SafetensorsSource { files, tensors: matched.tensors, buffers: kept };
                Ok((source, matched.differences))
            }
            false => Err(Error::bad_file(path, problems.join("; it "))),
        }
    }

    /// Gives the buffers of the model the values that the files have for them.
    ///
    /// # Errors
    /// Never for a model that has kept its buffers.
    pub fn fill_buffers(&self) -> Result<()> {
        for (buffer, values) in &self.buffers {
            buffer.set(values.clone())?;
        }
        Ok(())
    }
}

/// The values that the files have for a buffer, or why it cannot hold them.
fn values_of(
    name: &str,
    files: &[MappedFile],
    stored: &Located,
    buffer: &Buffer,
) -> std::result::Result<BufferValues, String> {
    let bytes = &files[stored.file][stored.bytes.clone()];
    let values = match stored.shape == buffer.shape().sizes() {
        true => elements::like(name, &buffer.values(), stored.dtype, bytes),
        false => Ok(None),
    };
    let (shape, dtype) = (&stored.shape, stored.dtype);
    values
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("{name} {shape:?} of {dtype:?} (the model asks for {buffer:?})"))
}

/// Whether a model and its files must name the same weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strict {
    /// They must.
    #[default]
    Yes,
    /// What both name is loaded.
    No,
}

/// Where the names of a model and its files differ: torch's `missing_keys` and `unexpected_keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Weights of the model that the files lack.
    pub missing: Vec<String>,
    /// Weights of the files that the model lacks.
    pub unexpected: Vec<String>,
}

fn map_files(paths: impl Iterator<Item = PathBuf>) -> Result<(Vec<MappedFile>, BTreeMap<String, Located>)> {
    let (mut files, mut found) = (Vec::new(), BTreeMap::new());
    for path in paths {
        let map = MappedFile::open(&path).map_err(Error::io("read", &path))?;
        list_tensors(&path, &map, files.len(), &mut found)?;
        files.push(map);
    }
    Ok((files, found))
}

impl WeightSource for SafetensorsSource {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn read(
        &mut self,
        name: &str,
        shape: &Shape,
        _init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let fits = |t: &&Located| {
            t.shape == shape.sizes() && elements.len() == out.len() && elements.end <= shape.n_elems()
        };
        let Some(tensor) = self.tensors.get(name).filter(fits) else {
            return Err(Error::Usage(format!(
                "elements {elements:?} of \"{name}\" {shape:?} are not among the opened weights"
            )));
        };
        let bytes = &self.files[tensor.file][tensor.bytes.clone()];
        let size = tensor.dtype.bitsize() / 8;
        Ok(elements::to_f32(name, tensor.dtype, &bytes[elements.start * size..elements.end * size], out)?)
    }
}

/// The names of the folder's safetensors files.
fn weight_files(dir: &Path) -> Result<BTreeSet<String>> {
    if dir.join("model.safetensors").exists() {
        return Ok(BTreeSet::from(["model.safetensors".to_string()]));
    }
    let path = dir.join("model.safetensors.index.json");
    if !path.exists() {
        let pickled =
            ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|name| dir.join(name).exists());
        let problem = match pickled {
            true => {
                "holds pytorch_model.bin, but only safetensors files are read; save the model again with transformers"
            }
            false => {
                "holds no model.safetensors and no model.safetensors.index.json; put the weights there, or begin without \
                 them with train_from_scratch: true"
            }
        };
        return Err(Error::bad_file(dir, problem));
    }
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let index: Value = serde_json::from_str(&text).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(Error::bad_file(
            &path,
            "\"weight_map\" is missing; expected an object of weight and file names",
        ));
    };
    let file = |(weight, file): (&String, &Value)| match file.as_str() {
        Some(name) if Path::new(name).file_name().is_some_and(|base| base == name) => Ok(name.to_string()),
        _ => Err(Error::bad_file(
            &path,
            format!("the file of \"{weight}\" is {file}; expected the name of a file beside it"),
        )),
    };
    map.iter().map(file).collect()
}

fn list_tensors(path: &Path, map: &[u8], file: usize, found: &mut BTreeMap<String, Located>) -> Result<()> {
    let (header_len, metadata) = SafeTensors::read_metadata(map).map_err(|e| {
        Error::bad_file(
            path,
            format!("{e}: the file is damaged or cut off ({} bytes); copy or download it again", map.len()),
        )
    })?;
    let data = 8 + header_len;
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let located =
            Located { file, bytes: data + start..data + end, shape: info.shape.clone(), dtype: info.dtype };
        if found.insert(name.clone(), located).is_some() {
            return Err(Error::bad_file(
                path,
                format!("\"{name}\" is also in another file of the folder; remove one of them"),
            ));
        }
    }
    Ok(())
}

/// A model's parameters beside the weights of files.
struct Matched {
    /// By the names that the model uses.
    tensors: HashMap<String, Located>,
    differences: Differences,
    /// What is there, but does not fit.
    misshapen: Vec<String>,
}

/// Finds the weights of a model among those of the files; `stored` is where they lie there, `asks` who says the shape.
fn match_names(
    model: &dyn Module,
    stored: &dyn Fn(&str) -> Stored,
    asks: &str,
    found: &BTreeMap<String, Located>,
) -> Matched {
    // Each parameter with all its names, in the order in which the model shows it.
    let mut params: Vec<(usize, Shape, Vec<String>)> = Vec::new();
    for named in names_of(model) {
        match params.iter_mut().find(|(id, ..)| *id == named.param.id()) {
            Some((.., names)) => names.push(named.name),
            None => params.push((named.param.id(), *named.param.shape(), vec![named.name])),
        }
    }
    let (mut tensors, mut known) = (HashMap::new(), BTreeSet::new());
    let (mut missing, mut misshapen) = (Vec::new(), Vec::new());
    // Several parameters of one tensor have the same complaint.
    let add = |problems: &mut Vec<String>, problem: String| match problems.contains(&problem) {
        true => {}
        false => problems.push(problem),
    };
    for (_, shape, names) in &params {
        let stored: Vec<Stored> = names.iter().map(|name| stored(name)).collect();
        known.extend(stored.iter().map(|stored| stored.tensor.clone()));
        let in_files = |stored: &Stored| Some((stored.clone(), found.get(&stored.tensor)?));
        let Some((stored, tensor)) = stored.iter().find_map(in_files) else {
            add(&mut missing, stored[0].tensor.clone());
            continue;
        };
        let whole = stored.whole_shape(shape.sizes());
        if tensor.shape != whole {
            let (name, its) = (&stored.tensor, &tensor.shape);
            add(&mut misshapen, format!("{name} {its:?} ({asks} asks for {whole:?})"));
            continue;
        }
        if !elements::is_float(tensor.dtype) {
            let problem =
                format!("{} of {:?} (supported are F32, F64, BF16 and F16)", stored.tensor, tensor.dtype);
            add(&mut misshapen, problem);
            continue;
        }
        let size = tensor.dtype.bitsize() / 8;
        let start = tensor.bytes.start + stored.first_elem(shape.sizes()) * size;
        let bytes = start..start + shape.n_elems() * size;
        let located = Located { bytes, shape: shape.sizes().to_vec(), ..*tensor };
        tensors.extend(names.iter().map(|name| (name.clone(), located.clone())));
    }
    let strange = |name: &&String| !known.contains(*name) && !follows_from_settings(name);
    let unexpected: Vec<String> = found.keys().filter(strange).cloned().collect();
    Matched { tensors, differences: Differences { missing, unexpected }, misshapen }
}

/// Whether a tensor is a table that follows from the settings, which older files store beside the weights.
fn follows_from_settings(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    matches!(last, "inv_freq" | "pos_cis" | "freqs_cos" | "freqs_sin") || name.ends_with(".attention.mask")
}

impl Matched {
    /// What is wrong, all in one message; `ask` is "config.json asks for".
    fn problems(&self, ask: &str, strict: Strict) -> Vec<String> {
        let Differences { missing, unexpected } = &self.differences;
        let mut problems = Vec::new();
        if !missing.is_empty() && strict == Strict::Yes {
            problems.push(format!("lacks weights that {ask}: {}", listed(missing)));
        }
        if !unexpected.is_empty() && strict == Strict::Yes {
            let not = ask.replace(" asks for", " does not ask for");
            problems.push(format!("holds weights that {not}: {}", listed(unexpected)));
        }
        if !self.misshapen.is_empty() {
            problems.push(format!("holds weights that do not fit: {}", listed(&self.misshapen)));
        }
        problems
    }
}

fn listed(names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{}{more}", names[..names.len().min(MAX_LISTED)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::follows_from_settings;

    #[test]
    fn tables_are_told_from_weights() {
        for table in [
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "pos_cis",
            "layers.1.attention.mask",
            "model.freqs_cos",
        ] {
            assert!(follows_from_settings(table), "{table}");
        }
        assert!(!follows_from_settings("model.layers.0.mlp.gate.weight"));
    }
}
