//! Which safetensors files of a folder hold its weights, and where that and the files contradict each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::files::INDEX;
use super::source::MappedFiles;
use crate::error::{Error, Result};

/// The file of weights that are in one.
const WHOLE: &str = "model.safetensors";
/// Names that are told.
const SHOWN: usize = 3;

/// The names of the folder's safetensors files.
///
/// # Errors
/// A folder without any, and an index that is none.
pub(crate) fn weight_files(dir: &Path) -> Result<BTreeSet<String>> {
    if dir.join(WHOLE).exists() {
        return Ok(BTreeSet::from([WHOLE.to_owned()]));
    }
    let path = dir.join(INDEX);
    if !path.exists() {
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
        return Err(Error::bad_file(dir, problem));
    }
    Ok(weight_map(&path)?.into_values().collect())
}

/// The files of weights by an index.
fn weight_map(path: &Path) -> Result<BTreeMap<String, String>> {
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", path))?;
    let index: Value = serde_json::from_str(&text).map_err(|e| Error::bad_file(path, e.to_string()))?;
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

/// Lines for what a folder says of its weights that is not so: an index beside all weights in one file, which is not read;
/// weights that the index names and their file does not hold; and weights of its files that it does not name, which are read
/// all the same, as in transformers. What cannot be read is explained when the weights are opened.
pub(crate) fn contradictions(dir: &Path) -> Vec<String> {
    let path = dir.join(INDEX);
    if !path.is_file() {
        return Vec::new();
    }
    if dir.join(WHOLE).exists() {
        return vec![format!(
            "warning: {} holds {WHOLE} and {INDEX}; {WHOLE} is read, as in transformers, and what the index names is not",
            dir.display()
        )];
    }
    let Ok(map) = weight_map(&path) else { return Vec::new() };
    let files: Vec<&String> = map.values().collect::<BTreeSet<_>>().into_iter().collect();
    let Ok(found) = MappedFiles::open(files.iter().map(|name| dir.join(name))) else { return Vec::new() };
    let file_of = |weight: &String| found.tensors.get(weight).map(|located| files[located.file]);
    let elsewhere: Vec<&String> = map
        .iter()
        .filter(|(weight, file)| file_of(weight) != Some(*file))
        .map(|(weight, _)| weight)
        .collect();
    let unnamed: Vec<&String> = found.tensors.keys().filter(|weight| !map.contains_key(*weight)).collect();
    let told = |weights: &[&String], problem: &str| {
        let shown: Vec<&str> = weights.iter().take(SHOWN).map(|name| name.as_str()).collect();
        let more = if weights.len() > SHOWN {
            format!(" and {} more", weights.len() - SHOWN)
        } else {
            String::new()
        };
        (!weights.is_empty()).then(|| {
            format!(
                "warning: {} and the files that it names are of two models, or were changed: {problem} {}{more}",
                path.display(),
                shown.join(", ")
            )
        })
    };
    let lines = [
        told(&elsewhere, "where it says they are, there are no"),
        told(&unnamed, "the files hold, and it does not name, what is read all the same:"),
    ];
    lines.into_iter().flatten().collect()
}
