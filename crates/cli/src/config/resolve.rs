//! Joins what was written in all layers into one setting for every key of the table.

use super::keys;
use super::problem::{Problem, Problems};
use super::table::KEYS;
use super::written::{Entry, Layer};

pub use oarlock::settings::resolve::*;

/// Joins the layers, later ones over earlier ones.
pub fn resolve(layers: &[Layer]) -> (Settings, Problems) {
    let mut settings = Settings::of(KEYS);
    let mut problems = Problems::default();
    for layer in layers {
        add(layer, &mut settings, &unknown, &mut problems);
    }
    (settings, problems)
}

fn unknown(entry: &Entry) -> Problem {
    let problem = Problem::new(format!("unknown key `{}`", entry.key)).at(&entry.place, "");
    match keys::nearest(&entry.key) {
        Some(name) => problem.help(format!("did you mean `{name}`?")),
        None => problem.help("`oarlock train --help` lists every key"),
    }
}
