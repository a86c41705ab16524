//! The checkpoint that an import makes: one state file, the model in Hugging Face form, and the trainer's state.

use std::path::Path;

use oarlock::checkpoint::{Assembler, ClientState, PlanEntry};
use oarlock::model::SaveOptions;
use oarlock::model::hf::lay_out;
use serde_json::Value as Json;

use super::deepspeed::{DeepSpeedCheckpoint, KINDS};
use crate::error::Result;

/// How far the run is and what it logged, for a training run that goes on.
const TRAINER_STATE: &str = "trainer_state.json";

/// Elements that are moved at once; so few in tests that their small parameters take several moves.
const CHUNK_ELEMS: usize = if cfg!(test) { 5 } else { 1 << 18 };

/// Writes the checkpoint `to`, with the settings and the tokenizer in the folder `beside`.
///
/// # Errors
/// When a file cannot be read or written; `to` is then as it was.
pub fn write(source: &DeepSpeedCheckpoint, beside: Option<&Path>, to: &Path) -> Result<()> {
    let shapes = source.parameters.iter().map(|(name, parameter)| (name.clone(), parameter.shape.clone()));
    let model = lay_out(beside, shapes.collect(), source.dtype, SaveOptions::MAX_SHARD_BYTES)?;
    let parameters = source.parameters.iter().map(|(name, parameter)| {
        let kinds = KINDS.into_iter().filter(|kind| parameter.state.contains_key(kind)).collect();
        (name.as_str(), parameter.shape.as_slice(), kinds)
    });
    let mut checkpoint = Assembler::create(to, model, parameters)?;
    let mut values: Vec<f32> = std::iter::repeat_n(0.0, CHUNK_ELEMS).collect();
    for parameter in source.parameters.values() {
        for piece in KINDS.iter().filter_map(|kind| parameter.state.get(kind)).flatten() {
            let mut rest = piece.run;
            while rest.n_elems > 0 {
                let n_elems = rest.n_elems.min(values.len() as u64);
                let chunk = &mut values[..n_elems as usize];
                source.files[piece.file].read(rest, chunk)?;
                checkpoint.write(chunk)?;
                rest = rest.part(n_elems, rest.n_elems);
            }
        }
    }
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
    let client = ClientState {
        step: source.steps,
        consumed_samples: source.samples,
        client,
        ..ClientState::default()
    };
    let trainer_state = trainer_state(source, beside);
    checkpoint.finish(plan, source.optimizer_steps, client, |folder| {
        let path = folder.join(TRAINER_STATE);
        oarlock_files::replace(&path, trainer_state).map_err(oarlock::Error::io("write", &path))
    })?;
    Ok(())
}

/// What the trainer of transformers left beside the checkpoint, or the step alone.
fn trainer_state(source: &DeepSpeedCheckpoint, beside: Option<&Path>) -> String {
    // One that cannot be read is a log that is lost, not a state.
    let text = beside.and_then(|folder| {
        oarlock_comm::read_file(folder.join(TRAINER_STATE), oarlock_comm::MAX_CONFIG_BYTES).ok()
    });
    let found = text.and_then(|text| serde_json::from_slice::<serde_json::Map<String, Json>>(&text).ok());
    let mut state = found.unwrap_or_default();
    state.insert("global_step".to_string(), Json::from(source.steps));
    format!("{:#}\n", Json::from(state))
}
