//! `accelerate merge-weights`: the model in a sharded checkpoint, in one piece.

use std::path::Path;

use oarlock::checkpoint::{self, MergeOptions};
use oarlock::model::merge_weights;

use super::command::{COMMAND, parse, refuse};
use crate::config::Words;
use crate::config::flags::Flags;
use crate::config::keys::{Row, Status, ValueType};
use crate::console::{self, Outcome, occupied, print};

oarlock_config::key_table! {
    /// The flags.
    const KEYS = [
        UNSAFE_SERIALIZATION: bool = Row::flag(ValueType::Bool, "unsafe_serialization", "false", Status::Later("weights are written as safetensors alone; whatever reads .bin files reads these, too"), "Write .bin files"),
        REMOVE_CHECKPOINT_DIR: bool = Row::flag(ValueType::Bool, "remove_checkpoint_dir", "false", Status::Used, "Remove the checkpoint when the model is whole"),
        OVERWRITE: bool = Row::flag(ValueType::Bool, "overwrite", "false", Status::Used, "Replace files that no earlier merge wrote"),
    ];
}

pub(super) const FLAGS: Flags = Flags {
    command: "accelerate merge-weights",
    operands: "CHECKPOINT OUT",
    example: "accelerate merge-weights out/checkpoint-500 out/merged",
    about: "Puts the model in a sharded checkpoint of this program together, in Hugging Face form.\n\
            Of several models write CHECKPOINT/pytorch_model_fsdp_N, with the number of one from 0.\n\
            `oarlock merge-weights --help` has more choices.",
    keys: KEYS,
    ..COMMAND
};

/// The most that one file holds, as transformers writes models.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Runs the command.
pub fn run(words: &Words) -> Outcome {
    let Some(parsed) = parse(&FLAGS, words, 2)? else { return Ok(()) };
    let (Some(from), Some(to)) = (parsed.rest.get(0), parsed.rest.get(1)) else {
        let message = "`accelerate merge-weights` takes a checkpoint and a folder to write to";
        return refuse(message, "write `accelerate merge-weights out/checkpoint-100 merged`");
    };
    let (from, model) = model_in(Path::new(from));
    let remove = parsed.settings.get(REMOVE_CHECKPOINT_DIR);
    let overwrite = parsed.settings.get(OVERWRITE);
    let absolute = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    if remove
        && let (Ok(from), Ok(to)) = (absolute(from), absolute(Path::new(to)))
        && to.starts_with(&from)
    {
        let message = "--remove_checkpoint_dir would remove the merged model, which goes into the checkpoint";
        return refuse(message, "name a folder outside of it");
    }
    if parsed.dry_run {
        let then = if remove { ", and remove the checkpoint" } else { "" };
        return print(&format!("would write the model in {} to {to}{then}\n", from.display()));
    }
    let options = MergeOptions { tag: None, model, dtype: None, max_shard_bytes: SHARD_BYTES, overwrite };
    let merged =
        merge_weights(from, Path::new(to), &options).map_err(|error| occupied(error, console::OVERWRITE))?;
    let source = merged.checkpoint.display();
    print(&format!(
        "wrote the model of {source} in {} to {to}: {}\n",
        merged.dtype,
        merged.files.join(", ")
    ))?;
    if remove && merged.n_models > 1 {
        print(&format!("kept {source}, which holds {} models\n", merged.n_models))?;
    } else if remove {
        checkpoint::remove(&merged.checkpoint)?;
        print(&format!("removed {source}\n"))?;
    }
    Ok(())
}

/// The checkpoint, and the number of the model where the path goes on to one, as in accelerate's checkpoints.
fn model_in(path: &Path) -> (&Path, Option<usize>) {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|_| !path.exists());
    let number = name.and_then(|name| name.strip_prefix("pytorch_model_fsdp_")?.parse().ok());
    match (path.parent(), number) {
        (Some(checkpoint), Some(number)) => (checkpoint, Some(number)),
        _ => (path, None),
    }
}
