//! `save_checkpoint` and `load_checkpoint` with a client state of any type, and `save_16bit_model`.

use std::any::type_name;
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use oarlock_files::Replacement;
use oarlock_tensor::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::engine::{Count, DeepSpeedEngine};
use super::zero::{each_parameter, together};
use crate::checkpoint::{self, BASE_KEY, ClientState, Contents, Frozen, Manifest, Saver, describe_base};
use crate::disk::{A_PROGRAM, Outputs, Part, Sum, Writer};
use crate::nn::Module;
use crate::optim::{LossScalerState, other_groups};
use crate::shard::Findings;
use crate::{Error, Result};

/// The file that [`DeepSpeedEngine::save_16bit_model`] writes where nobody names another.
const MODEL_FILE: &str = "model.safetensors";

/// What an engine keeps beside the model's state.
#[derive(Serialize, Deserialize)]
struct EngineState {
    count: Count,
    loss_scale: Option<LossScalerState>,
    /// The learning rates of the parameter groups; older checkpoints have none.
    #[serde(default)]
    group_lrs: Option<Vec<f64>>,
    /// The type of the client state, for messages.
    client_type: String,
    /// For people.
    client_state: Value,
    /// What is read back: MessagePack, since JSON has no word for NaN and the infinities, such as a first best loss.
    client_packed: Vec<u8>,
}

/// The key of it in a checkpoint's client state.
const KEY: &str = "deepspeed";

impl<M: Module> DeepSpeedEngine<M> {
    /// Saves weights, optimizer, schedule, loss scale and counts as `dir/tag`, with a state of the loop's own; `dir/latest`
    /// names it when it is whole. Without a tag that is `global_step` and the number of steps. All ranks call it, with the
    /// same tag, between two windows; the client state of rank 0 is the one that is kept.
    ///
    /// # Errors
    /// A client state that cannot be written as JSON, a call inside of a window (whose gradients no checkpoint holds;
    /// DeepSpeed drops them without a word), tags that differ or are not a name for a folder, a disk that fails.
    #[track_caller]
    pub fn save_checkpoint<T: Serialize>(
        &self,
        dir: impl AsRef<Path>,
        tag: Option<&str>,
        client_state: &T,
    ) -> Result<()> {
        self.save_checkpoint_with(dir, tag, client_state, Frozen::default())
    }

    /// As [`DeepSpeedEngine::save_checkpoint`]; [`Frozen::Exclude`] is DeepSpeed's `exclude_frozen_parameters=True`. An
    /// engine that loads such a checkpoint has the same frozen parameters already, or refuses it.
    ///
    /// # Errors
    /// As [`DeepSpeedEngine::save_checkpoint`].
    #[track_caller]
    pub fn save_checkpoint_with<T: Serialize>(
        &self,
        dir: impl AsRef<Path>,
        tag: Option<&str>,
        client_state: &T,
        frozen: Frozen,
    ) -> Result<()> {
        let comm = self.accelerator().communicator();
        let wrong = |what: &str| {
            Error::Usage(format!("save_checkpoint: the client state {} {what}", type_name::<T>()))
        };
        let kept =
            serde_json::to_value(client_state).map_err(|error| wrong(&format!("is not JSON: {error}")));
        let packed = rmp_serde::to_vec_named(client_state)
            .map_err(|error| wrong(&format!("cannot be packed: {error}")));
        let kept = kept.and_then(|kept| match self.model().state.has_gradients() {
            true => Err(Error::Usage(
                "save_checkpoint: a window of micro-batches is open, whose gradients no checkpoint holds; save behind the \
                 `step` that ends it (`is_gradient_accumulation_boundary`)"
                    .to_owned(),
            )),
            false => Ok((kept, packed?)),
        });
        let (client_state, client_packed) = together(comm, "save_checkpoint", kept)?;
        let optimizer = self.model().state.optimizer()?;
        let kept = EngineState {
            count: self.kept(),
            loss_scale: optimizer.loss_scale_state(),
            group_lrs: self.group_lrs().ok(),
            client_type: type_name::<T>().to_owned(),
            client_state,
            client_packed,
        };
        let kept = serde_json::to_value(kept)
            .map_err(|error| Error::Usage(format!("save_checkpoint: the counts are not JSON: {error}")))?;
        let client = ClientState {
            step: self.global_steps(),
            client: serde_json::Map::from_iter([(KEY.to_owned(), kept)]),
            ..ClientState::default()
        };
        let tag = tag.map_or_else(|| format!("global_step{}", self.global_steps()), str::to_owned);
        let mut saver = Saver::default();
        let contents = Contents { frozen, ..Contents::state(client) };
        checkpoint::save_checkpoint(
            &mut saver,
            dir.as_ref(),
            Some(&tag),
            comm,
            optimizer.engine(),
            contents,
        )?;
        saver.finish(comm).map(|_| ())
    }

    /// Goes on from `dir/tag`, or from what `dir/latest` names; returns where that was and the loop's own state, or nothing
    /// where there is no `latest`. All ranks call it, on any number of ranks and in any stage. Everything is checked before
    /// the first weight changes.
    ///
    /// # Errors
    /// A checkpoint that is incomplete, damaged, of another model, or not saved by an engine; a client state of another
    /// type than `T`.
    #[track_caller]
    pub fn load_checkpoint<T: DeserializeOwned>(
        &self,
        dir: impl AsRef<Path>,
        tag: Option<&str>,
    ) -> Result<Option<(PathBuf, T)>> {
        let (dir, comm) = (dir.as_ref(), self.accelerator().communicator());
        let looked = match comm.rank() {
            0 => look::<T>(dir, tag, self.group_lrs().ok()),
            _ => Ok(()),
        };
        together(comm, "load_checkpoint", looked)?;
        let loaded = {
            let mut optimizer = self.model().state.optimizer()?;
            checkpoint::load_checkpoint(dir, tag, comm, optimizer.engine_mut())?
        };
        let Some((path, client)) = loaded else { return Ok(None) };
        let (kept, client_state) = read::<T>(&path, &client)?;
        if let Some(state) = kept.loss_scale {
            self.model().state.optimizer()?.resume_loss_scale(state);
        }
        self.go_on(kept.count, kept.group_lrs)?;
        Ok(Some((path, client_state)))
    }

    /// Writes the whole weights, in the 16 bits that the model computes in (in f32 where it computes in that), as one
    /// safetensors file `dir/name`, by default `model.safetensors`. All ranks call it; rank 0 needs memory for the file.
    /// DeepSpeed writes a pickle, and nothing at all in stage 3 without `stage3_gather_16bit_weights_on_model_save`.
    ///
    /// # Errors
    /// A file that cannot be written, or that is there and was not saved by a program, or not as it is now; on all ranks.
    #[track_caller]
    pub fn save_16bit_model(&self, dir: impl AsRef<Path>, name: Option<&str>) -> Result<()> {
        self.save_16bit_model_with(dir, name, Frozen::Include)
    }

    /// As [`DeepSpeedEngine::save_16bit_model`]; [`Frozen::Exclude`] is DeepSpeed's `exclude_frozen_parameters=True`.
    ///
    /// # Errors
    /// As [`DeepSpeedEngine::save_16bit_model`].
    #[track_caller]
    pub fn save_16bit_model_with(
        &self,
        dir: impl AsRef<Path>,
        name: Option<&str>,
        frozen: Frozen,
    ) -> Result<()> {
        let (dir, comm) = (dir.as_ref(), self.accelerator().communicator());
        let state = &self.model().state;
        let (dtype, left_out, base) = {
            let optimizer = state.optimizer()?;
            let left_out = frozen.left_out(optimizer.engine());
            let base = describe_base(comm, optimizer.engine(), &left_out)?;
            (optimizer.engine().options().dtype, left_out, base)
        };
        let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        let mut findings = Findings::default();
        each_parameter(state, &**self.module(), comm, &mut |named, values| {
            if comm.rank() == 0 && !left_out.contains(&named.name) {
                let shape = named.param.shape().sizes().to_vec();
                findings.look(&named.name, values.len(), values, dtype);
                tensors.push((named.name.clone(), shape, bytes_of(values, dtype)));
            }
        })?;
        let written = match comm.rank() {
            0 => findings
                .verdict("written")
                .and_then(|()| write(dir, name.unwrap_or(MODEL_FILE), dtype, &tensors, base)),
            _ => Ok(()),
        };
        together(comm, "save_16bit_model", written)
    }
}

/// Whether the client state of a checkpoint is a `T`, and it has as many parameter groups as `own`. What else is wrong is
/// told where it is loaded.
fn look<T: DeserializeOwned>(dir: &Path, tag: Option<&str>, own: Option<Vec<f64>>) -> Result<()> {
    let Ok(path) = checkpoint::find(dir, tag) else { return Ok(()) };
    let Ok(manifest) = Manifest::open(&path) else { return Ok(()) };
    let (kept, _) = read::<T>(&path, &manifest.client_state)?;
    match (kept.group_lrs, own) {
        (Some(saved), Some(own)) if saved.len() != own.len() => {
            Err(Error::bad_file(path, other_groups(saved.len(), own.len())))
        }
        _ => Ok(()),
    }
}

fn read<T: DeserializeOwned>(path: &Path, client: &ClientState) -> Result<(EngineState, T)> {
    let kept =
        client.client.get(KEY).and_then(|kept| EngineState::deserialize(kept).ok()).ok_or_else(|| {
            Error::bad_file(
                path,
                "it was not saved by `save_checkpoint` of an engine; load it with what has saved it",
            )
        })?;
    let state = rmp_serde::from_slice(&kept.client_packed).map_err(|error| {
        let (saved, wanted) = (&kept.client_type, type_name::<T>());
        Error::bad_file(
            path,
            format!(
                "its client state was saved as {saved} and cannot be read as {wanted}: {error}; give load_checkpoint the \
                 type that was saved, or serde_json::Value"
            ),
        )
    })?;
    Ok((kept, state))
}

fn bytes_of(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::BF16 => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// Under another name first, so that no half of it is ever found under its own.
fn write(
    dir: &Path,
    name: &str,
    dtype: DType,
    tensors: &[(String, Vec<usize>, Vec<u8>)],
    base: Option<String>,
) -> Result<()> {
    let dtype = match dtype {
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        _ => Dtype::F32,
    };
    let path = dir.join(name);
    let mut tensors: Vec<_> = tensors.iter().collect();
    tensors.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let mut end = 0;
    let infos = tensors.iter().map(|(name, shape, bytes)| {
        let begin = end;
        end += bytes.len();
        (name.clone(), TensorInfo { dtype, shape: shape.clone(), data_offsets: (begin, end) })
    });
    let base = base.map(|base| HashMap::from([(BASE_KEY.to_owned(), base)]));
    let metadata = Metadata::new(base, infos.collect()).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    // The format begins the numbers at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut outputs = Outputs::of(dir);
    outputs.refuse(Writer { by: A_PROGRAM, overwrites: false }, [name])?;
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let mut file = Replacement::begin(&path).map_err(Error::io("create", &path))?;
    let length = (header.len() as u64).to_le_bytes();
    let mut pieces = vec![&length[..], &header[..]];
    pieces.extend(tensors.iter().map(|(_, _, bytes)| &bytes[..]));
    pieces.iter().try_for_each(|piece| file.write_all(piece)).map_err(Error::io("write", &path))?;
    let mut n_bytes = 0;
    let sums = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| {
        let sum = Sum::of(n_bytes, piece);
        n_bytes = sum.end();
        sum
    });
    let sums: Vec<Sum> = sums.collect();
    outputs.add(A_PROGRAM, Part::Model, name, n_bytes, sums);
    outputs.save()?;
    file.publish().map_err(Error::io("write", &path))?;
    outputs.settle(&[]);
    outputs.save()
}
