//! Models and data sets that come from a hub, and what a person sees of that.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use oarlock_hub::{Event, Hub};

use crate::config::hub::OnHub;
use crate::config::hub_data::DataOnHub;
use crate::config::render::visible;
use crate::console::eprint;
use crate::error::Error;

/// The most characters of a name that is shown.
pub(crate) const MOST_SHOWN: usize = 200;
/// How often the progress is shown.
const INTERVAL: Duration = Duration::from_millis(200);

/// Where a model is: the path itself, or that of what a hub has under this name, which is fetched where the cache does not have
/// all of it.
///
/// # Errors
/// What the hub says.
pub(crate) fn model(path: &Path) -> Result<PathBuf, Error> {
    match path.to_str().and_then(OnHub::of) {
        None => Ok(path.to_owned()),
        Some(model) => match model.cached() {
            Some(found) => Ok(found),
            None => fetch(&model).map_err(|error| Error::Other(Box::new(error))),
        },
    }
}

/// Fetches a model, and says where it lies.
///
/// # Errors
/// What the hub says.
pub(crate) fn fetch(model: &OnHub) -> Result<PathBuf, oarlock_hub::Error> {
    let found = model.find(&shown(model.hub()?))?;
    eprint(&format!("{} lies in {}\n", visible(model.name(), MOST_SHOWN), found.display()));
    Ok(found)
}

/// Fetches a data set, and says where it lies.
///
/// # Errors
/// What the hub says.
pub(crate) fn fetch_data(data: &DataOnHub) -> Result<(), oarlock_hub::Error> {
    let files = data.find(&shown(data.hub()?))?;
    let folder = files.first().and_then(|file| file.parent()).unwrap_or(Path::new(""));
    eprint(&format!("{} lies in {}\n", visible(data.name(), MOST_SHOWN), folder.display()));
    Ok(())
}

/// A hub that tells on standard error what it does.
pub(crate) fn shown(hub: Hub) -> Hub {
    let bytes = Mutex::new(Counted { n_bytes: 0, shown: Instant::now() });
    let is_terminal = std::io::stderr().is_terminal();
    hub.with_progress(move |event| tell(event, &bytes, is_terminal))
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
