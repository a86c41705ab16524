//! `oarlock gather-checkpoint`: the parts of a checkpoint that nodes without a shared filesystem wrote, in one folder.

use std::path::PathBuf;

use clap::Args;
use oarlock::checkpoint::gather;

use crate::console::{Outcome, print, refuse_taken};

#[derive(Args)]
pub(super) struct GatherArgs {
    /// The folder of the checkpoint from each machine, copied to this one
    #[arg(required = true)]
    parts: Vec<PathBuf>,
    /// The folder of the whole checkpoint
    #[arg(short, long)]
    out: PathBuf,
    /// Replace a checkpoint that is there already
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn run(args: &GatherArgs) -> Outcome {
    refuse_taken(&args.out, args.overwrite)?;
    let gathered = gather(&args.parts, &args.out)?;
    print(&format!(
        "joined {} into {}: step {}, {} files, {:.1} MB\n",
        if args.parts.len() == 1 { "1 folder".to_owned() } else { format!("{} folders", args.parts.len()) },
        args.out.display(),
        gathered.step,
        gathered.files,
        gathered.bytes as f64 / 1e6,
    ))
}
