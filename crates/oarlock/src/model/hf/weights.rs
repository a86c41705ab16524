//! The weights of a folder: safetensors files, mapped into memory and read in slices.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use half::{bf16, f16};
use oarlock_comm::MappedFile;
use oarlock_tensor::{Init, Shape};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::config::HfConfig;
use super::names::follows_from_settings;
use crate::error::{Error, Result};
use crate::nn::{Module, names_of};
use crate::shard::WeightSource;

/// Names listed in one message.
const MAX_LISTED: usize = 5;

/// The weights of a Hugging Face folder, checked against a model as a whole when opened.
pub struct SafetensorsSource {
    files: Vec<MappedFile>,
    /// By the names that the model uses.
    tensors: HashMap<String, Located>,
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
        let (mut files, mut found) = (Vec::new(), BTreeMap::new());
        for name in weight_files(dir)? {
            let path = dir.join(name);
            let map = MappedFile::open(&path).map_err(Error::io("read", &path))?;
            list_tensors(&path, &map, files.len(), &mut found)?;
            files.push(map);
        }
        let tensors = match_names(dir, config, model, &found)?;
        Ok(SafetensorsSource { files, tensors })
    }
}

impl WeightSource for SafetensorsSource {
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
        let bytes = &bytes[elements.start * size..elements.end * size];
        match tensor.dtype {
            Dtype::F32 => widen(bytes, out, f32::from_le_bytes),
            Dtype::BF16 => widen(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            _ => widen(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        }
        Ok(())
    }
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(chunks).for_each(|(out, chunk)| *out = to_f32(*chunk));
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

/// Finds the weights of a model among those of the files; all that is wrong goes into one message.
fn match_names(
    dir: &Path,
    config: &HfConfig,
    model: &dyn Module,
    found: &BTreeMap<String, Located>,
) -> Result<HashMap<String, Located>> {
    // Each parameter with all its names, in the order in which the model shows it.
    let mut params: Vec<(usize, Shape, Vec<String>)> = Vec::new();
    for named in names_of(model) {
        match params.iter_mut().find(|(id, ..)| *id == named.param.id()) {
            Some((.., names)) => names.push(named.name),
            None => params.push((named.param.id(), *named.param.shape(), vec![named.name])),
        }
    }
    let naming = config.naming();
    let (mut tensors, mut known) = (HashMap::new(), BTreeSet::new());
    let (mut missing, mut misshapen) = (Vec::new(), Vec::new());
    for (_, shape, names) in &params {
        let in_file: Vec<String> = names.iter().map(|name| naming.in_file(name)).collect();
        known.extend(in_file.iter().cloned());
        let Some((stored, tensor)) = in_file.iter().find_map(|name| found.get_key_value(name)) else {
            missing.push(in_file[0].clone());
            continue;
        };
        if tensor.shape != shape.sizes() {
            misshapen.push(format!("{stored} {:?} (config.json asks for {shape:?})", tensor.shape));
        } else if !matches!(tensor.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            misshapen.push(format!("{stored} of {:?} (supported are F32, BF16 and F16)", tensor.dtype));
        }
        tensors.extend(names.iter().map(|name| (name.clone(), tensor.clone())));
    }
    let strange = |name: &&String| !known.contains(*name) && !follows_from_settings(name);
    let unexpected: Vec<String> = found.keys().filter(strange).cloned().collect();
    let mut problems = Vec::new();
    if missing == [naming.in_file("lm_head.weight")] {
        problems.push(format!(
            "lacks the output weights {}; where they are the embedding's, set \"tie_word_embeddings\" to true in config.json",
            missing[0]
        ));
    } else if !missing.is_empty() {
        problems.push(format!("lacks weights that config.json asks for: {}", listed(&missing)));
    }
    if !unexpected.is_empty() {
        problems.push(format!("holds weights that config.json does not ask for: {}", listed(&unexpected)));
    }
    if !misshapen.is_empty() {
        problems.push(format!("holds weights that do not fit: {}", listed(&misshapen)));
    }
    match problems.is_empty() {
        true => Ok(tensors),
        false => Err(Error::bad_file(dir, problems.join("; it "))),
    }
}

fn listed(names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{}{more}", names[..names.len().min(MAX_LISTED)].join(", "))
}
