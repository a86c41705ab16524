//! `oarlock import-checkpoint`: a checkpoint that DeepSpeed saved, as one of ours.

use std::path::PathBuf;

use clap::Args;

use crate::console::{Outcome, print, refuse_taken};
use crate::import::import_checkpoint;

#[derive(Args)]
pub(super) struct ImportArgs {
    /// What DeepSpeed saved: a folder with a file `latest`, or the folder of a tag
    from: PathBuf,
    /// The checkpoint to write, such as out/checkpoint-500
    to: PathBuf,
    /// The tag, where it is not the one in `latest`
    #[arg(short, long)]
    tag: Option<String>,
    /// Replace a checkpoint that is there already
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn run(args: &ImportArgs) -> Outcome {
    refuse_taken(&args.to, args.overwrite)?;
    let imported = import_checkpoint(&args.from, &args.to, args.tag.as_deref())?;
    let config = match imported.has_config {
        true => "",
        false => "there is no config.json beside it: add the model's before generating from this folder\n",
    };
    print(&format!(
        "imported {} (ZeRO-{} of {} ranks, {}, step {}): {} parameters of {:.2} M elements to {}\n{config}",
        imported.from.display(),
        imported.stage,
        imported.n_ranks,
        imported.dtype,
        imported.steps,
        imported.n_params,
        imported.n_elems as f64 / 1e6,
        args.to.display(),
    ))
}
