//! `oarlock merge-weights`: the model in a checkpoint, whatever ranks wrote it, in Hugging Face form.

use std::path::PathBuf;

use clap::Args;
use oarlock::checkpoint::{MergeOptions, shard_size};
use oarlock::model::merge_weights;
use oarlock_tensor::DType;

use super::dtypes::dtypes;
use crate::console::{OVERWRITE, Outcome, occupied, print};

#[derive(Args)]
pub(super) struct MergeArgs {
    /// A checkpoint, or a folder of checkpoints: the one that its file `latest` names, or the newest
    checkpoint: PathBuf,
    /// The folder to write to
    out: PathBuf,
    /// The number of the model, from 0, in a checkpoint of several
    #[arg(long)]
    model: Option<usize>,
    /// The dtype of the weights; by default that in which the model was trained
    #[arg(long, value_parser = dtypes(["f32", "bf16", "f16"]))]
    dtype: Option<DType>,
    /// The most that one file of weights holds, such as 500MB or 4GiB
    #[arg(long, default_value = "5GB", value_parser = shard_size, alias = "max_shard_size")]
    max_shard_size: u64,
    /// The tag of the checkpoint in the folder
    #[arg(short, long)]
    tag: Option<String>,
    /// Replace files that no earlier merge wrote
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn run(args: &MergeArgs) -> Outcome {
    let options = MergeOptions {
        tag: args.tag.as_deref(),
        model: args.model,
        dtype: args.dtype,
        max_shard_bytes: args.max_shard_size,
        overwrite: args.overwrite,
    };
    let merged =
        merge_weights(&args.checkpoint, &args.out, &options).map_err(|error| occupied(error, OVERWRITE))?;
    print(&format!(
        "wrote {:.2} M parameters of {} in {} to {}: {}\n",
        merged.n_elems as f64 / 1e6,
        merged.checkpoint.display(),
        merged.dtype,
        args.out.display(),
        merged.files.join(", "),
    ))
}
