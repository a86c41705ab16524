//! Data sets that lie on a hub: which ones a run names, and which of their rows.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The files of data sets that lie on a hub, once they are here, by the names that a run has for them.
pub type RemoteFiles = BTreeMap<String, Vec<PathBuf>>;

/// A data set that lies on a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteDataset {
    /// What the run calls it.
    pub name: String,
    /// `OWNER/NAME` on Hugging Face.
    pub hf_hub: Option<String>,
    /// `OWNER/NAME` on ModelScope.
    pub ms_hub: Option<String>,
    /// One of its configurations.
    pub subset: Option<String>,
    /// The folder whose files are meant.
    pub folder: Option<String>,
    /// One of its splits.
    pub split: String,
}

/// The split that is read where none is named.
pub(super) const TRAIN: &str = "train";

impl RemoteDataset {
    /// One that is named as on the hub, without an entry in `dataset_info.json`.
    pub(super) fn named(name: &str) -> RemoteDataset {
        let on_hub = Some(name.to_owned());
        RemoteDataset {
            name: name.to_owned(),
            hf_hub: on_hub.clone(),
            ms_hub: on_hub,
            split: TRAIN.to_owned(),
            ..RemoteDataset::default()
        }
    }
}

/// What a table of data sets says of a name.
#[derive(Default)]
pub(super) enum Entry {
    /// Nothing.
    #[default]
    None,
    /// That its files are here.
    Local,
    /// That they are on a hub.
    Remote(RemoteDataset),
}

/// The rows that a slice behind a split keeps: `train[:100]` is the first 100 of `train`. Other slices are refused with what
/// they say.
pub(super) fn sliced(split: &str) -> std::result::Result<(&str, Option<u64>), String> {
    let Some((name, slice)) = split.split_once('[') else { return Ok((split, None)) };
    let first = slice.strip_suffix(']').and_then(|slice| slice.strip_prefix(':'));
    match first.and_then(|n| n.trim().parse().ok()).filter(|n| *n > 0) {
        Some(n) => Ok((name, Some(n))),
        None => Err(format!("split {split} asks for other rows than the first")),
    }
}
