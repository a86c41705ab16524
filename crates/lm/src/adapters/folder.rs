//! Folders of adapters: `adapter_config.json` and `adapter_model.safetensors` in and out, under PEFT's names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use oarlock_comm::MappedFile;
use oarlock_config::config::{AdapterConfig, AdapterKind};
use oarlock_engine::checkpoint::weights::{ModelFiles, Weight, floats, not_finite};
use oarlock_engine::nn::{NamedParam, names_of, parameters};
use oarlock_engine::{Error, Result};
use oarlock_tensor::DType;
use safetensors::SafeTensors;

use super::adaptation::{
    Adaptation, AdaptedModule, LowRank, block_in, ends_with, linears, refuse_tied, scale,
};
use super::origin;
use super::peft_config::{self, PeftConfig};
use crate::model::hf::take_over_side_files;
use crate::model::{Decoder, HfConfig, ModelMark, is_of_value_head, with_value_head};

/// The settings of an adapter.
pub(super) const CONFIG: &str = "adapter_config.json";
/// Its weights.
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT writes before the names of a model.
const PREFIX: &str = "base_model.model.";

/// The parameters of an update, and of rotations.
pub(super) const PARTS: [&str; 4] =
    ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector", "oft_R.weight"];

/// An adapter in memory.
#[derive(Clone, Debug)]
pub struct Adapter {
    config: AdapterConfig,
    /// The model beside which it was opened.
    beside: ModelMark,
    /// Warnings about how it was read.
    notes: Vec<String>,
    /// The names of linear layers in the files of the model's family, which are those of the settings, by our names.
    stored: BTreeMap<String, String>,
    /// By the names that an adapted model shows: its shape and its values.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Adapter {
    /// Reads the folder of an adapter for a decoder that has none yet.
    ///
    /// # Errors
    /// A folder without an adapter, a setting of PEFT that is not supported, and weights that do not fit the model.
    pub fn open(dir: &Path, hf: &HfConfig, model: &mut Decoder) -> Result<Adapter> {
        if !dir.join(CONFIG).is_file() {
            return Err(Error::bad_file(dir, format!("holds no {CONFIG}; name the folder of an adapter")));
        }
        let peft = peft_config::read(&dir.join(CONFIG))?;
        let path = dir.join(WEIGHTS);
        if !path.is_file() {
            let problem = match dir.join("adapter_model.bin").is_file() {
                true => format!(
                    "holds adapter_model.bin, but only {WEIGHTS} is read; save the adapter again with PEFT"
                ),
                false => format!("holds no {WEIGHTS}"),
            };
            return Err(Error::bad_file(dir, problem));
        }
        let map = MappedFile::open(&path).map_err(Error::io("read", &path))?;
        let bad = |problem: String| Error::bad_file(&path, problem);
        let file = SafeTensors::deserialize(&map)
            .map_err(|e| bad(format!("{e}: the file is damaged or cut off; copy it again")))?;
        let (_, header) = SafeTensors::read_metadata(&map).map_err(|e| bad(e.to_string()))?;
        let beside = hf.mark();
        let other = origin::compare(peft.base.as_deref(), header.metadata().as_ref(), hf, &beside);
        let mut notes = peft.notes.clone();
        notes.extend(other.map_err(|problem| Error::bad_file(dir, problem))?);
        let known = Names::of(hf, model)?;
        let mut tensors = BTreeMap::new();
        for (key, view) in file.tensors() {
            let name = known.ours(&key).map_err(&bad)?;
            let mut values = vec![0.0; view.shape().iter().product()];
            floats(&key, view.dtype(), view.data(), &mut values).map_err(&bad)?;
            let n_bad = values.iter().filter(|x| !x.is_finite()).count();
            if n_bad > 0 {
                return Err(bad(not_finite(&key, n_bad, values.len())));
            }
            tensors.insert(name, (view.shape().to_vec(), values));
        }
        map.check().map_err(Error::io("read", &path))?;
        let stored = known.linears.iter().map(|(stored, own)| (own.clone(), stored.clone())).collect();
        let mut adapter = Adapter { config: peft.config.clone(), beside, notes, stored, tensors };
        let is_output =
            |name: &String| name.starts_with("lm_head.") || name.starts_with("model.embed_tokens.");
        if adapter.tensors.keys().any(is_output) {
            refuse_tied(hf)?;
        }
        adapter.check(&known).map_err(&bad)?;
        let agrees = adapter.check_settings(&known, &peft);
        let strange = agrees.map_err(|problem| Error::bad_file(dir.join(CONFIG), problem))?;
        adapter.notes.extend(strange);
        Ok(adapter)
    }

    /// Warnings about how it was read: settings that nothing reads, and a base that is not the one that it was
    /// trained beside.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The model beside which it was opened.
    pub(super) fn beside(&self) -> &ModelMark {
        &self.beside
    }

    /// Its settings.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// The layers that it is around.
    pub(super) fn modules(&self) -> BTreeMap<String, AdaptedModule> {
        let main = |name: &String| {
            [PARTS[0], PARTS[3]]
                .iter()
                .find_map(|part| name.strip_suffix(part)?.strip_suffix('.'))
                .map(str::to_owned)
        };
        let paths = self.tensors.keys().filter_map(main);
        paths.filter_map(|path| Some((path.clone(), self.module(&path)?))).collect()
    }

    /// The adapter of a layer, if it is around it.
    pub(super) fn module(&self, path: &str) -> Option<AdaptedModule> {
        match &self.config.kind {
            AdapterKind::Lora(lora) => {
                let rank = self.values(path, PARTS[0])?.0[0];
                let stored = self.stored.get(path).map_or(path, String::as_str);
                let found = |key: &String| ends_with(stored, key);
                let alpha = lora.alpha_pattern.iter().find(|(key, _)| found(key)).map(|(_, alpha)| *alpha);
                Some(AdaptedModule::LowRank(LowRank { rank, scale: scale(lora, rank, alpha) }))
            }
            AdapterKind::Oft(_) => {
                let n_above = self.values(path, PARTS[3])?.0[1];
                Some(AdaptedModule::Rotated(block_of(n_above)))
            }
        }
    }

    /// Whether it is nothing but updates of low rank of layers inside the model.
    pub(super) fn is_of_layers_alone(&self) -> bool {
        let is_lora = matches!(&self.config.kind, AdapterKind::Lora(lora) if !lora.use_dora);
        is_lora
            && self.whole().is_empty()
            && self.tensors.keys().all(|name| name.starts_with("model.layers."))
    }

    /// The modules of which it has a trained copy.
    pub(super) fn whole(&self) -> BTreeSet<String> {
        let is_part = |name: &str| PARTS.iter().any(|part| ends_with(name, part));
        let whole = self.tensors.keys().filter(|name| !is_part(name));
        whole.filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned())).collect()
    }

    /// A parameter below a layer, with its shape.
    pub(super) fn values(&self, path: &str, part: &str) -> Option<(&[usize], &[f32])> {
        self.tensor(&format!("{path}.{part}"))
    }

    /// A parameter, with its shape.
    pub(super) fn tensor(&self, name: &str) -> Option<(&[usize], &[f32])> {
        self.tensors.get(name).map(|(shape, values)| (shape.as_slice(), values.as_slice()))
    }

    /// All parameters, with their shapes.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&String, &(Vec<usize>, Vec<f32>))> {
        self.tensors.iter()
    }

    /// Whether all of its weights are there and have the shapes of the model's.
    fn check(&self, known: &Names) -> std::result::Result<(), String> {
        let paths: BTreeSet<&str> = (self.tensors.keys())
            .filter_map(|name| PARTS.iter().find_map(|part| name.strip_suffix(part)?.strip_suffix('.')))
            .collect();
        if paths.is_empty() && self.tensors.is_empty() {
            return Err("holds no weights".to_owned());
        }
        for path in paths {
            let [n_out, n_in] = known.sizes(path);
            let first = |part: &str, dim: usize| {
                self.values(path, part).and_then(|(shape, _)| shape.get(dim).copied()).unwrap_or(0)
            };
            let expected = match &self.config.kind {
                AdapterKind::Lora(lora) => {
                    let rank = first(PARTS[0], 0);
                    let mut expected = vec![(PARTS[0], vec![rank, n_in]), (PARTS[1], vec![n_out, rank])];
                    if lora.use_dora {
                        expected.push((PARTS[2], vec![n_out]));
                    }
                    expected
                }
                AdapterKind::Oft(_) => {
                    let block = block_of(first(PARTS[3], 1));
                    vec![(PARTS[3], vec![n_in / block, block * (block - 1) / 2])]
                }
            };
            for (part, shape) in expected {
                match self.values(path, part) {
                    Some((found, _)) if found == shape.as_slice() && !shape.contains(&0) => {}
                    Some((found, _)) => {
                        return Err(format!(
                            "{path}.{part} has the shape {found:?}, the model needs {shape:?}; it is an adapter of \
                             another model"
                        ));
                    }
                    None => return Err(format!("lacks {path}.{part}")),
                }
            }
        }
        for (name, (shape, _)) in &self.tensors {
            if let Some(expected) = known.shapes.get(name)
                && expected != shape
            {
                return Err(format!("{name} has the shape {shape:?}, the model needs {expected:?}"));
            }
        }
        Ok(())
    }
}

impl Adapter {
    /// Whether the settings are those of these weights; warnings about names that the model does not have.
    fn check_settings(&self, known: &Names, peft: &PeftConfig) -> std::result::Result<Vec<String>, String> {
        let paths: BTreeSet<&str> = (self.tensors.keys())
            .filter_map(|name| PARTS.iter().find_map(|part| name.strip_suffix(part)?.strip_suffix('.')))
            .collect();
        if let AdapterKind::Lora(lora) = &self.config.kind {
            for path in &paths {
                let stored = known.stored(path);
                let pattern = lora.rank_pattern.iter().find(|(key, _)| ends_with(&stored, key));
                let expected = pattern.map_or(lora.rank, |(_, rank)| *rank);
                let found = self.values(path, PARTS[0]).and_then(|(shape, _)| shape.first().copied());
                if found.is_some_and(|found| found != expected) {
                    return Err(format!(
                        "says the rank {expected} for {path} (r, rank_pattern), and its weights there have the rank {}; the \
                         files are of two adapters, or were changed",
                        found.unwrap_or(0)
                    ));
                }
                if !lora.use_dora && self.values(path, PARTS[2]).is_some() {
                    return Err(format!(
                        "says use_dora: false, and the weights hold magnitudes of {path}; the files are of two adapters"
                    ));
                }
            }
        }
        if let AdapterKind::Oft(oft) = &self.config.kind {
            for path in &paths {
                let expected = block_in(oft.blocks, known.sizes(path)[1].max(1));
                let found = self.values(path, PARTS[3]).and_then(|(shape, _)| shape.get(1).copied());
                if let Some(found) = found.map(block_of).filter(|found| *found != expected) {
                    return Err(format!(
                        "says blocks of {expected} for {path} (oft_block_size, r), and its weights there are of blocks of \
                         {found}; the files are of two adapters, or were changed"
                    ));
                }
            }
        }
        for name in &self.config.modules_to_save {
            if !self.whole().iter().any(|path| ends_with(path, name)) {
                return Err(format!(
                    "names {name} in modules_to_save, and the weights do not hold it; copy the adapter again"
                ));
            }
        }
        let mut strange = self.patterns_without_layer(&paths, known);
        let Some(targeted) = &peft.targeted else { return Ok(strange) };
        for (stored, own) in &known.linears {
            match (targeted.names(stored)?, paths.contains(own.as_str())) {
                (false, true) => {
                    return Err(format!(
                        "{}, and the weights hold an adapter of {stored}, which is none of them; the files are of two \
                         adapters, or were changed",
                        targeted.said()
                    ));
                }
                (true, false) => {
                    return Err(format!(
                        "{}, and the weights hold no adapter of {stored}; copy the adapter again",
                        targeted.said()
                    ));
                }
                _ => {}
            }
        }
        let stored: Vec<&str> = known.linears.keys().map(String::as_str).collect();
        let unknown = targeted.strange(&stored);
        if !unknown.is_empty() {
            strange.push(format!(
                "note: target_modules of the adapter names {}, which the model does not have",
                unknown.join(", ")
            ));
        }
        Ok(strange)
    }

    /// A line for names in `rank_pattern` and `alpha_pattern` that no adapted layer has.
    fn patterns_without_layer(&self, paths: &BTreeSet<&str>, known: &Names) -> Vec<String> {
        let AdapterKind::Lora(lora) = &self.config.kind else { return Vec::new() };
        let ranks = lora.rank_pattern.iter().map(|(key, _)| ("rank_pattern", key));
        let alphas = lora.alpha_pattern.iter().map(|(key, _)| ("alpha_pattern", key));
        let is_there = |key: &str| paths.iter().any(|path| ends_with(&known.stored(path), key));
        let strange = ranks.chain(alphas).filter(|(_, key)| !is_there(key));
        let warning = |(setting, key)| {
            format!("note: {setting} of the adapter names {key}, and no layer of that name has an adapter")
        };
        strange.map(warning).collect()
    }
}

/// The settings of a model for use with adapters. One that was trained with more tokens than the files of the model have
/// brings its own embedding and output weights.
///
/// # Errors
/// What is wrong with the folder of the model.
pub fn settings_beside(dir: &Path, adapters: &[impl AsRef<Path>]) -> Result<HfConfig> {
    let mut hf = HfConfig::read(dir)?;
    for adapter in adapters {
        // What cannot be read is explained when the adapter is opened.
        let Ok(map) = MappedFile::open(adapter.as_ref().join(WEIGHTS)) else { continue };
        let Ok((_, header)) = SafeTensors::read_metadata(&map) else { continue };
        let named = header.tensors();
        let [embedding, output] = ["model.embed_tokens.weight", "lm_head.weight"]
            .map(|name| named.get(&stored_name(&hf, name)).map(|info| info.shape.clone()));
        if let Some([rows, _]) = embedding.as_deref()
            && *rows > hf.decoder().vocab_size
        {
            hf = hf.with_vocab_size(*rows, output.is_some());
        }
    }
    Ok(hf)
}

/// Inputs of a block whose skew-symmetric matrix has so many elements above its diagonal.
fn block_of(n_above: usize) -> usize {
    (2..=n_above + 1).find(|block| block * (block - 1) / 2 >= n_above).unwrap_or(2)
}

/// The names of a decoder in PEFT's files.
struct Names {
    /// Paths of linear layers by their names in the family's files.
    linears: BTreeMap<String, String>,
    /// Parameters by their names in the family's files.
    params: BTreeMap<String, String>,
    /// The shapes of parameters by our names.
    shapes: BTreeMap<String, Vec<usize>>,
}

impl Names {
    fn of(hf: &HfConfig, model: &mut Decoder) -> Result<Names> {
        let stored = |name: &str| hf.stored(name);
        let path =
            |path: String| (stored(&format!("{path}.weight")).trim_end_matches(".weight").to_owned(), path);
        let linears = linears(model)?.into_iter().map(path).collect();
        let all = names_of(model);
        Ok(Names {
            linears,
            params: all.iter().map(|named| (stored(&named.name), named.name.clone())).collect(),
            shapes: all.iter().map(|n| (n.name.clone(), n.param.shape().sizes().to_vec())).collect(),
        })
    }

    /// Our name of a tensor.
    fn ours(&self, key: &str) -> std::result::Result<String, String> {
        let unknown = || {
            format!(
                "has \"{key}\", for which the model has no place; it is an adapter of another model or of another kind"
            )
        };
        let name = key.strip_prefix(PREFIX).ok_or_else(unknown)?;
        if ["lora_embedding_", "oft_embedding_R"].iter().any(|of| name.contains(of))
            || name.ends_with("lora_B.bias")
        {
            return Err(format!(
                "has \"{key}\"; adapters of embeddings and biases of lora_B are not supported"
            ));
        }
        // Older versions of PEFT have `.weight` behind the magnitudes.
        let name = name
            .strip_suffix("lora_magnitude_vector.weight")
            .map_or(name.to_owned(), |path| format!("{path}lora_magnitude_vector"));
        for part in PARTS {
            if let Some(path) = name.strip_suffix(part).and_then(|path| path.strip_suffix('.')) {
                return self.linears.get(path).map(|path| format!("{path}.{part}")).ok_or_else(unknown);
            }
        }
        let name = name.replace(".base_layer.", ".").replace(".modules_to_save.", ".");
        self.params.get(&name).cloned().ok_or_else(unknown)
    }

    /// The path of a linear layer in the family's files.
    fn stored(&self, path: &str) -> String {
        let found = self.linears.iter().find(|(_, own)| own.as_str() == path);
        found.map_or(path, |(stored, _)| stored).to_owned()
    }

    /// Outputs and inputs of a linear layer.
    fn sizes(&self, path: &str) -> [usize; 2] {
        match self.shapes.get(&format!("{path}.weight")).map(Vec::as_slice) {
            Some(&[n_out, n_in]) => [n_out, n_in],
            _ => [0, 0],
        }
    }
}

/// The files of the adapter of an adapted model: what is trained, in f32, and its settings. `base` is what the model is
/// called, `tokenizer` the folder whose tokenizer is copied.
///
/// # Errors
/// Weights that cannot be laid out.
pub fn adapter_files(
    hf: &HfConfig,
    model: &Decoder,
    adaptation: &Adaptation,
    base: &str,
    tokenizer: Option<&Path>,
) -> Result<ModelFiles> {
    let trained = parameters(model).into_iter().filter(is_of_adapter);
    let weights: Vec<Weight> = trained
        .map(|named| Weight {
            stored: stored_name(hf, &named.name),
            shape: named.param.shape().sizes().to_vec(),
            dtype: DType::F32.into(),
            name: named.name,
        })
        .collect();
    let laid_out = ModelFiles::with_metadata(&weights, u64::MAX, origin::metadata(adaptation.base.as_ref()))?;
    let mut files = with_value_head(as_adapter(laid_out), model)?;
    adapter_text(&mut files, hf, model, adaptation, base);
    if let Some(tokenizer) = tokenizer {
        take_over_side_files(&mut files, tokenizer, &[])?;
    }
    Ok(files)
}

/// Whether a parameter of an adapted model is one of its adapter.
pub(super) fn is_of_adapter(named: &NamedParam) -> bool {
    !named.param.is_frozen() && !is_of_value_head(&named.name)
}

/// The files under the name that the weights of an adapter have.
pub(super) fn as_adapter(files: ModelFiles) -> ModelFiles {
    files.renamed(WEIGHTS)
}

/// What a parameter of an adapter is called in PEFT's files.
pub(super) fn stored_name(hf: &HfConfig, name: &str) -> String {
    let part = PARTS.iter().find(|part| ends_with(name, part));
    match part.and_then(|part| Some((name.strip_suffix(part)?.strip_suffix('.')?, part))) {
        Some((path, part)) => {
            let stored = hf.stored(&format!("{path}.weight"));
            format!("{PREFIX}{}.{part}", stored.trim_end_matches(".weight"))
        }
        None => format!("{PREFIX}{}", hf.stored(name)),
    }
}

/// Adds the settings of an adapter to its files.
pub(super) fn adapter_text(
    files: &mut ModelFiles,
    hf: &HfConfig,
    model: &Decoder,
    adaptation: &Adaptation,
    base: &str,
) {
    let path = |path: &String| hf.stored(&format!("{path}.weight")).trim_end_matches(".weight").to_owned();
    let modules: Vec<String> = adaptation.modules.keys().map(path).collect();
    let all: Vec<String> = model_linears(model).iter().map(path).collect();
    let whole = short(&adaptation.whole.iter().map(path).collect::<Vec<_>>());
    let text = peft_config::write(&adaptation.config, base, &targets(&modules, &all), &whole);
    files.add_text(CONFIG, text);
}

/// The paths of the linear layers of a model that may be adapted.
fn model_linears(model: &Decoder) -> Vec<String> {
    let is_projection = |name: &str| name.ends_with("_proj.weight") || name == "lm_head.weight";
    let names = names_of(model).into_iter().map(|named| named.name).filter(|name| is_projection(name));
    names.filter_map(|name| name.strip_suffix(".weight").map(str::to_owned)).collect()
}

/// The last words of paths, each once, in order.
fn short(paths: &[String]) -> Vec<String> {
    let last = paths.iter().map(|path| path.rsplit('.').next().unwrap_or(path).to_owned());
    last.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Names that select these layers among all, and no others.
fn targets(modules: &[String], all: &[String]) -> Vec<String> {
    let names = short(modules);
    let selected = all.iter().filter(|path| names.iter().any(|name| ends_with(path, name))).count();
    if selected == modules.len() { names } else { modules.to_vec() }
}
