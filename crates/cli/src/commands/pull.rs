//! `oarlock pull`: a model from a hub, in the cache that transformers shares or in a folder.

use std::path::PathBuf;

use clap::Args;
use oarlock_hub::Hub;

use crate::config::render::visible;
use crate::console::{Outcome, print};
use crate::error::Error;
use crate::front::fetch::{self, MOST_SHOWN};

#[derive(Args)]
pub(super) struct PullArgs {
    /// The model, as OWNER/NAME or OWNER/NAME@REVISION; OWNER/NAME:Q4_K_M for a GGUF file
    name: String,
    /// Put the files into this folder instead of the cache
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

pub(super) fn run(args: &PullArgs) -> Outcome {
    let failed = |error: oarlock_hub::Error| Error::Other(Box::new(error));
    let hub = fetch::shown(Hub::from_env().map_err(failed)?);
    // A colon stands in no name of a model.
    let snapshot = match (&args.to, args.name.contains(':')) {
        (Some(_), true) => {
            return Err(Error::Usage(
                "a GGUF file goes into the cache; remove --to, and copy the file that is named at the end"
                    .to_owned(),
            )
            .into());
        }
        (Some(folder), false) => hub.model_to(&args.name, None, folder),
        (None, true) => hub.gguf(&args.name, None),
        (None, false) => hub.model(&args.name, None),
    };
    let snapshot = snapshot.map_err(failed)?;
    let n_bytes: u64 = snapshot.files.iter().map(|file| file.n_bytes).sum();
    let names: Vec<String> = snapshot.files.iter().map(|file| visible(&file.path, MOST_SHOWN)).collect();
    print(&format!(
        "{} at {}: {} files, {:.1} MB: {}\n{}\n",
        visible(&args.name, MOST_SHOWN),
        visible(&snapshot.commit, MOST_SHOWN),
        names.len(),
        n_bytes as f64 / 1e6,
        names.join(", "),
        snapshot.folder.display()
    ))
}
