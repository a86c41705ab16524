//! The checkpoint that an import makes: one state file, the model in Hugging Face form, and the trainer's state.

use std::path::Path;
use std::sync::Arc;

use oarlock_tensor::Shape;
use serde_json::Value as Json;

use super::deepspeed::{KINDS, Parameter, Piece, Source};
use crate::checkpoint::ClientState;
use crate::checkpoint::export::lay_out;
use crate::checkpoint::folder::TempFolder;
use crate::checkpoint::job::{RankFiles, entry_of};
use crate::checkpoint::manifest::{Manifest, PlanEntry};
use crate::checkpoint::publish::{publish, write_rest};
use crate::checkpoint::state_file::StateFile;
use crate::error::{Error, Result};
use crate::model::hf::{ModelWriter, SaveOptions};
use crate::shard::{MASTER, Slice};

/// How far the run is and what it logged, for a training that goes on.
const TRAINER_STATE: &str = "trainer_state.json";

/// Elements that are moved at once; so few in tests that their small parameters take several moves.
const CHUNK_ELEMS: usize = if cfg!(test) { 5 } else { 1 << 18 };

/// Writes the checkpoint `to`, with the settings and the tokenizer in the folder `beside`.
///
/// # Errors
/// When a file cannot be read or written; `to` is then as it was.
pub fn write(source: &Source, beside: Option<&Path>, to: &Path) -> Result<()> {
    let shapes =
        source.parameters.iter().map(|(name, parameter)| (name.as_str(), parameter.shape.as_slice()));
    let model = Arc::new(lay_out(beside, shapes, source.dtype, SaveOptions::MAX_SHARD_BYTES)?);
    let mut slices = Vec::new();
    for (name, parameter) in &source.parameters {
        slices.extend(slices_of(name, parameter)?);
    }
    let mut folder = TempFolder::create(to)?;
    let path = folder.path().to_path_buf();
    let begun = model.create(&|name| path.join(name))?;
    let begun = begun.into_iter().map(entry_of).collect();
    let state = slices.iter().map(|(slice, _)| slice);
    let mut state = StateFile::create(&path, "state/rank-00000-of-00001.safetensors".into(), state)?;
    let in_folder = path.clone();
    let mut writer = model.clone().writer(move |name| in_folder.join(name));
    let mut values = vec![0.0f32; CHUNK_ELEMS];
    for (slice, pieces) in &slices {
        move_slice(source, slice, pieces, &mut values, &mut state, &mut writer)?;
    }
    let (file, pieces) = state.finish()?;
    let mut files = vec![file];
    files.extend(writer.finish()?.into_iter().map(entry_of));
    write_rest(&path, Some(&model), |folder| {
        let path = folder.join(TRAINER_STATE);
        std::fs::write(&path, trainer_state(source, beside)).map_err(Error::io("write", &path))
    })?;
    publish(manifest(source), &mut folder, begun, vec![RankFiles { files, pieces }])
}

/// The kinds of state of a parameter, each whole.
fn slices_of<'a>(name: &str, parameter: &'a Parameter) -> Result<Vec<(Slice, &'a [Piece])>> {
    let shape = Shape::new(&parameter.shape)?;
    let slice = |kind| Slice { kind, name: name.to_string(), shape, elements: 0..shape.n_elems() };
    let held =
        KINDS.into_iter().filter_map(|kind| Some((slice(kind), parameter.state.get(kind)?.as_slice())));
    Ok(held.filter(|(slice, _)| !slice.elements.is_empty()).collect())
}

fn move_slice(
    source: &Source,
    slice: &Slice,
    pieces: &[Piece],
    values: &mut [f32],
    state: &mut StateFile,
    model: &mut ModelWriter,
) -> Result<()> {
    let mut first = 0;
    for piece in pieces {
        let mut rest = piece.run;
        while rest.n_elems > 0 {
            let n_elems = rest.n_elems.min(values.len() as u64);
            let chunk = &mut values[..n_elems as usize];
            source.files[piece.file].read(rest, chunk)?;
            state.write(bytemuck::cast_slice(chunk))?;
            if slice.kind == MASTER {
                model.write(&slice.name, first, chunk)?;
            }
            first += chunk.len();
            rest = rest.part(n_elems, rest.n_elems);
        }
    }
    state.end_slice()
}

fn manifest(source: &Source) -> Manifest {
    let placed = |sharded: bool| if sharded { "sharded".to_string() } else { "whole".to_string() };
    let plan = PlanEntry {
        dtype: source.dtype.to_string(),
        optimizer: placed(true),
        gradients: placed(source.stage >= 2),
        parameters: placed(source.stage == 3),
        rule: source.rule.to_string(),
    };
    let mut client =
        serde_json::Map::from_iter([("client_state".to_string(), Json::from(source.client.clone()))]);
    client.extend(source.loss_scale.clone().map(|scale| ("loss_scale".to_string(), scale)));
    let state = ClientState {
        step: source.steps,
        consumed_samples: source.samples,
        client,
        ..ClientState::default()
    };
    Manifest::new(1, plan, source.optimizer_steps, state)
}

/// What the trainer of transformers left beside the checkpoint, or the step alone.
fn trainer_state(source: &Source, beside: Option<&Path>) -> String {
    // One that cannot be read is a log that is lost, not a state.
    let text = beside.and_then(|folder| std::fs::read(folder.join(TRAINER_STATE)).ok());
    let found = text.and_then(|text| serde_json::from_slice::<serde_json::Map<String, Json>>(&text).ok());
    let mut state = found.unwrap_or_default();
    state.insert("global_step".to_string(), Json::from(source.steps));
    format!("{:#}\n", Json::from(state))
}
