//! `oarlock pull`: a model from a hub, in the cache that transformers shares or in a folder.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use oarlock_hub::{Event, Hub};

use crate::config::render::visible;
use crate::console::{Outcome, eprint, print};
use crate::error::Error;

/// The most characters of a name that is shown.
const MOST_SHOWN: usize = 200;
/// How often the progress is shown.
const INTERVAL: Duration = Duration::from_millis(200);

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
    let bytes = Mutex::new(Counted { n_bytes: 0, shown: Instant::now() });
    let is_terminal = std::io::stderr().is_terminal();
    let hub = Hub::from_env().map_err(failed)?.with_progress(move |event| tell(event, &bytes, is_terminal));
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

/// The bytes that have come, and when that was last shown.
struct Counted {
    n_bytes: u64,
    shown: Instant,
}

/// Shows what happens: at a terminal a line that grows, elsewhere each file once.
fn tell(event: &Event<'_>, bytes: &Mutex<Counted>, is_terminal: bool) {
    let shown = |text: &str| visible(text, MOST_SHOWN);
    let end = if is_terminal { "\x1b[K\n" } else { "\n" };
    match event {
        Event::Bytes { n_bytes, .. } => {
            let Ok(mut counted) = bytes.lock() else { return };
            counted.n_bytes += n_bytes;
            if is_terminal && counted.shown.elapsed() >= INTERVAL {
                counted.shown = Instant::now();
                eprint(&format!("\r{:.1} MB\x1b[K", counted.n_bytes as f64 / 1e6));
            }
        }
        Event::Begin { path, size, present } => {
            let size = size.map_or_else(String::new, |size| format!(", {:.1} MB", size as f64 / 1e6));
            let there = if *present > 0 {
                format!(", {:.1} MB of it here", *present as f64 / 1e6)
            } else {
                String::new()
            };
            let begin = if is_terminal { "\r" } else { "" };
            eprint(&format!("{begin}{}{size}{there}{end}", shown(path)));
        }
        Event::Restart { path, why } => eprint(&format!("{}: begins anew: {why}{end}", shown(path))),
        Event::Pause { pause, why } => {
            eprint(&format!("waits {:.0} s: {}{end}", pause.as_secs_f64(), visible(&why.to_string(), 500)));
        }
        Event::Note(note) => eprint(&format!("note: {}{end}", visible(note, 500))),
        _ => {}
    }
}
