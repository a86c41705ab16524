//! The model states of a checkpoint of DeepSpeed: names, shapes, frozen parameters, and what the training loop kept.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock::shard::MASTER;
use oarlock_tensor::DType;
use serde_json::{Map, Value as Json};

use super::container::TorchFile;
use super::error::ImportProblem;
use super::pickle::{Element, Value, View};
use super::pieces::{MODEL_STATES, Parameter, Parameters, Piece, cut, n_elems_of, share_of};
use super::refusal::{need, refused, unexpected, unsupported};
use crate::error::Result;

/// What DeepSpeed itself keeps beside the model; the rest is of the training loop.
const OWN_KEYS: [&str; 19] = [
    "module",
    "buffer_names",
    "optimizer",
    "param_shapes",
    "frozen_param_shapes",
    "shared_params",
    "frozen_param_fragments",
    "lr_scheduler",
    "data_sampler",
    "random_ltd",
    "sparse_tensor_module_names",
    "skipped_steps",
    "global_steps",
    "global_samples",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
];

/// Names with their shapes, in the order in which they lie.
pub type Shapes = Vec<(String, Vec<usize>)>;

/// What a file with model states says.
pub struct Model<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its pickle.
    pub view: View<'a>,
}

impl<'a> Model<'a> {
    /// Checks that the model is sharded by data parallelism alone.
    pub fn check(&self) -> Result<()> {
        let dimensions = self.view.get("checkpoint_parallel_dimensions");
        let degree = |name: &str| dimensions.and_then(|dimensions| dimensions.get(name)?.count());
        let degrees = [self.count("mp_world_size").ok(), degree("pp_degree"), degree("tp_degree")];
        if degrees.into_iter().flatten().any(|degree| degree != 1) {
            let why = "it was saved with tensor or pipeline parallelism, which is not imported";
            return Err(unsupported(self.path, why));
        }
        Ok(())
    }

    /// A whole number from 0.
    pub fn count(&self, name: &str) -> Result<u64> {
        let count = need(self.path, self.view, name)?.count();
        count.ok_or_else(|| unexpected(self.path, name, "a whole number from 0"))
    }

    /// The names and shapes of the trained parameters, by groups, as they lie behind each other.
    pub fn groups(&self) -> Result<Vec<Shapes>> {
        let bad = || unexpected(self.path, "param_shapes", "a list of dictionaries of shapes");
        let groups = need(self.path, self.view, "param_shapes")?.elements().ok_or_else(bad)?;
        groups.map(|group| shapes_of(group).ok_or_else(bad)).collect()
    }

    /// The dtype of the working copies.
    pub fn dtype(&self, file: &TorchFile, parameters: &Parameters) -> Result<DType> {
        let module = self.view.get("module");
        let copy = parameters.keys().find_map(|name| Some((name, module?.get(name)?)));
        // A model that is saved elsewhere leaves no copies; then the f32 weights are all there is.
        let Some((name, copy)) = copy else { return Ok(DType::F32) };
        match file.tensor(name, copy)?.0.element {
            Element::F32 => Ok(DType::F32),
            Element::Bf16 => Ok(DType::BF16),
            Element::F16 => Ok(DType::F16),
            Element::Other(_) => Err(unexpected(self.path, "the dtype of the weights", "f32, bf16 or f16")),
        }
    }

    /// Adds the parameters that are not trained: whatever is whole in the module and none of its buffers.
    pub fn frozen_whole(&self, file: &TorchFile, at: usize, parameters: &mut Parameters) -> Result<()> {
        let buffers = self.view.get("buffer_names").and_then(View::elements);
        let buffers: Vec<&str> = buffers.into_iter().flatten().filter_map(View::text).collect();
        let shared = self.view.get("shared_params");
        let module = self.view.get("module").and_then(View::items);
        for (name, tensor) in module.into_iter().flatten() {
            let Some(name) = name.text() else { continue };
            let known = parameters.contains_key(name) || buffers.contains(&name);
            if known || shared.is_some_and(|shared| shared.get(name).is_some()) {
                continue;
            }
            let (run, shape) = file.tensor(name, tensor)?;
            let shape = sizes(shape).ok_or_else(|| unexpected(self.path, name, "of a size for memory"))?;
            let state = BTreeMap::from([(MASTER, vec![Piece { file: at, run }])]);
            parameters.insert(name.to_string(), Parameter { shape, state });
        }
        Ok(())
    }

    /// Adds the parameters that are not trained, which are sharded in stage 3.
    pub fn frozen_of_stage_3(
        &self,
        dir: &Path,
        n_ranks: u64,
        files: &mut Vec<TorchFile>,
        parameters: &mut Parameters,
    ) -> Result<()> {
        let Some(shapes) = self.view.get("frozen_param_shapes").and_then(shapes_of) else { return Ok(()) };
        if shapes.is_empty() {
            return Ok(());
        }
        let mut pieces: Vec<Vec<Piece>> = vec![Vec::new(); shapes.len()];
        for rank in 0..n_ranks {
            let path = dir.join(format!("zero_pp_rank_{rank}_{MODEL_STATES}"));
            let (file, pickle) = TorchFile::open(&path)?;
            let fragments = need(&path, pickle.root(), "frozen_param_fragments")?;
            for ((name, shape), pieces) in shapes.iter().zip(&mut pieces) {
                let run = file.tensor(name, need(&path, fragments, name)?)?.0;
                let row = [Piece { file: files.len(), run }];
                let share = share_of(n_elems_of(shape), rank, n_ranks);
                let short = || refused(&path, ImportProblem::Short { kind: MASTER, name: name.clone() });
                pieces.extend(cut(&row, 0, share).ok_or_else(short)?);
            }
            files.push(file);
        }
        for ((name, shape), pieces) in shapes.into_iter().zip(pieces) {
            parameters.insert(name, Parameter { shape, state: BTreeMap::from([(MASTER, pieces)]) });
        }
        Ok(())
    }

    /// The parameters under the names of transformers: without what wrappers put before them, and a head that is the
    /// embedding under the embedding's name.
    pub fn renamed(&self, parameters: Parameters) -> Result<Parameters> {
        const EMBEDDING: &str = "model.embed_tokens.weight";
        let shared = self.view.get("shared_params").and_then(View::items);
        let mut shared =
            shared.into_iter().flatten().filter_map(|(alias, kept)| Some((alias.text()?, kept.text()?)));
        let head = shared.find(|(alias, _)| unwrapped(alias) == EMBEDDING).map(|(_, kept)| kept);
        let mut renamed = Parameters::new();
        for (name, parameter) in parameters {
            let new = if head == Some(name.as_str()) { EMBEDDING } else { unwrapped(&name) };
            if renamed.insert(new.to_string(), parameter).is_some() {
                return Err(unexpected(self.path, &name, "the only parameter of its name"));
            }
        }
        Ok(renamed)
    }

    /// The optimizer's rule. What `torch.optim` says of itself counts before the configuration.
    pub fn rule(&self, decoupled_decay: Option<bool>) -> Result<&'static str> {
        let optimizer = self.view.get("ds_config").and_then(|config| config.get("optimizer"));
        let kind = optimizer.and_then(|optimizer| optimizer.get("type")?.text()).unwrap_or("AdamW");
        let mode = optimizer.and_then(|optimizer| optimizer.get("params")?.get("adam_w_mode"));
        let decoupled = decoupled_decay.or(mode.map(|mode| *mode.value == Value::Bool(true))).unwrap_or(true);
        match (kind.to_ascii_lowercase().as_str(), decoupled) {
            ("adamw", _) | ("adam", true) => Ok("adamw"),
            ("adam", false) => Ok("adam"),
            _ => {
                let why = format!("its optimizer is {kind}; only the states of Adam and AdamW are imported");
                Err(unsupported(self.path, why))
            }
        }
    }

    /// The numbers and texts that the training loop kept.
    pub fn client(&self) -> Map<String, Json> {
        let kept = |(key, value): (View<'_>, View<'_>)| {
            let key = key.text().filter(|key| !OWN_KEYS.contains(key))?;
            let value = match value.value {
                Value::Bool(truth) => Json::from(*truth),
                Value::Int(number) => Json::from(*number),
                Value::Float(number) => Json::from(*number),
                Value::Text(text) => Json::from(text.as_str()),
                _ => return None,
            };
            Some((key.to_string(), value))
        };
        self.view.items().into_iter().flatten().filter_map(kept).collect()
    }
}

/// The name of a parameter without that of a wrapper around the model.
fn unwrapped(mut name: &str) -> &str {
    while let Some(inner) = name.strip_prefix("module.") {
        name = inner;
    }
    name
}

fn shapes_of(group: View<'_>) -> Option<Shapes> {
    let shape = |(name, shape): (View<'_>, View<'_>)| {
        let shape = shape.elements()?.map(View::count).collect::<Option<Vec<u64>>>()?;
        Some((name.text()?.to_string(), sizes(shape)?))
    };
    group.items()?.map(shape).collect()
}

fn sizes(shape: Vec<u64>) -> Option<Vec<usize>> {
    shape.into_iter().map(|size| usize::try_from(size).ok()).collect()
}
