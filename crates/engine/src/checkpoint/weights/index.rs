//! Which safetensors files of a folder hold its weights, and where that and the files contradict each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use oarlock_config::json;
use serde_json::Value;

use super::files::INDEX;
use super::located::Located;
use crate::{Error, Result};

/// The file of weights that are in one.
const WHOLE: &str = "model.safetensors";
/// Names that are listed.
const SHOWN: usize = 3;

/// The names of the folder's safetensors files.
///
/// # Errors
/// A folder without any, and an index that is none.
pub fn weight_files(dir: &Path) -> Result<BTreeSet<String>> {
    Ok(Listing::of(dir)?.files)
}

/// The safetensors files of a folder.
pub(super) struct Listing {
    path: PathBuf,
    pub files: BTreeSet<String>,
    /// The file of each weight, where an index says it.
    named: Option<BTreeMap<String, String>>,
}

impl Listing {
    /// # Errors
    /// As [`weight_files`].
    pub(super) fn of(dir: &Path) -> Result<Listing> {
        let path = dir.join(INDEX);
        if dir.join(WHOLE).exists() {
            return Ok(Listing { path, files: BTreeSet::from([WHOLE.to_owned()]), named: None });
        }
        if path.exists() {
            let named = weight_map(&path)?;
            return Ok(Listing { path, files: named.values().cloned().collect(), named: Some(named) });
        }
        let pickled =
            ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|name| dir.join(name).exists());
        let problem = match pickled {
            true => {
                "holds pytorch_model.bin, but only safetensors files are read; save the model again with transformers"
            }
            false => {
                "holds no model.safetensors and no model.safetensors.index.json; put the weights there, or begin without \
                 them with train_from_scratch: true"
            }
        };
        Err(Error::bad_file(dir, problem))
    }

    /// Lines for what the folder says of its weights, which are `found` in files in the order of their names, that is not
    /// so: an index beside all weights in one file, which is not read; weights that the index names and their file does not
    /// hold; and weights of its files that it does not name, which are read all the same, as in transformers.
    pub fn contradictions(&self, found: &BTreeMap<String, Located>) -> Vec<String> {
        let Some(named) = &self.named else {
            let message = format!(
                "warning: {} lies beside {WHOLE}, which is read, as in transformers; what the index names is not",
                self.path.display()
            );
            return if self.path.is_file() { vec![message] } else { Vec::new() };
        };
        let files: Vec<&String> = self.files.iter().collect();
        let file_of = |weight: &String| found.get(weight).map(|located| files[located.file]);
        let elsewhere = named.iter().filter(|(weight, file)| file_of(weight) != Some(*file));
        let unnamed = found.keys().filter(|weight| !named.contains_key(*weight));
        let message = |names: Option<String>, problem: &str| {
            names.map(|names| {
                format!(
                    "warning: {} and the files that it names are of two models, or were changed: {problem} {names}",
                    self.path.display()
                )
            })
        };
        let lines = [
            message(some_of(elsewhere.map(|(weight, _)| weight)), "where it says they are, there are no"),
            message(some_of(unnamed), "the files hold, and it does not name, what is read all the same:"),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// Some of these names, and how many more there are; none where there is none.
pub fn some_of<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        n if n > SHOWN => Some(format!("{shown} and {} more", n - SHOWN)),
        _ => Some(shown),
    }
}

/// The files of weights by an index.
fn weight_map(path: &Path) -> Result<BTreeMap<String, String>> {
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", path))?;
    let index: Value = json::from_str(&text).map_err(|e| Error::bad_file(path, e.to_string()))?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(Error::bad_file(
            path,
            "\"weight_map\" is missing; expected an object of weight and file names",
        ));
    };
    let file = |(weight, file): (&String, &Value)| match file.as_str() {
        Some(name) if Path::new(name).file_name().is_some_and(|base| base == name) => {
            Ok((weight.clone(), name.to_owned()))
        }
        _ => Err(Error::bad_file(
            path,
            format!("the file of \"{weight}\" is {file}; expected the name of a file beside it"),
        )),
    };
    map.iter().map(file).collect()
}
