//! A training run of ours, as a command asks for it.

use crate::config::keys::Row;
use crate::config::location::Location;
use crate::config::written::Layer;
use crate::config::{Problem, Problems};

/// An Oarlock run, as its arguments describe it.
#[derive(Clone, Debug)]
pub struct Training {
    /// What was written, in the order of its weight.
    pub layers: Vec<Layer>,
    /// What the user should know about how it was read.
    pub notes: Vec<String>,
    /// `--dry-run` among the words.
    pub dry_run: bool,
    /// `--print-config` among the words.
    pub print_config: bool,
    /// Its own `bf16` or `fp16` decides over the precision of Accelerate's launcher, as in transformers.
    pub own_precision_decides: bool,
    /// Where the script is named that it stands for, if another one of that name may have been meant.
    pub stands_for: Option<Location>,
    /// The flags of its script that are settings of ours under another name; where there are none, settings are written
    /// under their names.
    pub flags: &'static [(&'static Row, &'static str)],
}

impl Training {
    /// What is wrong with it, behind the file that may be missing.
    pub fn explain(stands_for: Option<&Location>, problems: Problems) -> Problems {
        let Some(location) = stands_for else { return problems };
        let message = format!("there is no file `{}`", location.text());
        let help = "name a script that exists; where there is none, LLaMA-Factory's training is started under this name, and \
                    what follows is about that";
        let mut all = Problems::from(Problem::new(message).at(location, "").help(help));
        all.append(problems);
        all
    }
}
