//! What a run reads: fingerprints of the files of its model, tokenizer, adapters and data. Machines compare theirs before the
//! first step, and checkpoints keep them for the run that goes on.
//!
//! The first rank of each machine reads for all of its ranks. Weights are read while the run gets ready, and of data the token
//! cache knows the fingerprints already.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use oarlock_comm::Communicator;
use oarlock_config::config::{Finetuning, ModelSource, TrainConfig};
use oarlock_engine::checkpoint::share;
use oarlock_engine::checkpoint::weights::weight_files;
use oarlock_engine::disk::{Algorithm, Sum};
use oarlock_engine::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::data::TokenCache;
use crate::gguf::is_gguf;

/// The key under which the files of data sets are, which a run trains on.
pub const DATASET: &str = "dataset";

/// The table of data sets. Of two runs the entries that they read are compared with the data.
const DATASET_DIR: &str = "dataset_dir";

/// The files of a model's folder beside weights, of a tokenizer's and of an adapter's.
const SMALL: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "adapter_config.json",
];

/// The files of weights that have one name.
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "value_head.safetensors"];

/// The most files that a message names.
const MOST_NAMED: usize = 8;

/// What was read, by the key that names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs(BTreeMap<String, Input>);

/// What was read for one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    files: Vec<InputFile>,
    /// The tokens that data became. Under `tokens` older checkpoints have a sum over something else.
    #[serde(rename = "content", default, skip_serializing_if = "Option::is_none")]
    tokens: Option<String>,
}

/// A file and the XXH3 or XXH64 of what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InputFile {
    path: PathBuf,
    hash: String,
}

impl InputFile {
    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Input {
    /// Of the files that a token cache was made of, and what they became.
    ///
    /// # Errors
    /// A damaged file.
    pub fn of_tokens(cache: &TokenCache) -> Result<Input> {
        let (files, tokens) = cache.made_of()?;
        let files =
            files.into_iter().map(|(path, hash)| InputFile { path, hash: format!("{hash:016x}") }).collect();
        Ok(Input { files, tokens: Some(format!("{tokens:016x}")) })
    }

    /// In how far this is other than `then`, for a run that goes on; the folders may be others.
    fn changes(&self, then: &Input) -> Vec<String> {
        let hashes = |input: &Input| input.files.iter().map(|file| file.hash.clone()).collect::<Vec<_>>();
        let is_same = match (&self.tokens, &then.tokens) {
            (Some(now), Some(then)) => now == then,
            _ => hashes(self) == hashes(then),
        };
        if is_same {
            return Vec::new();
        }
        let by_name = |input: &Input| -> BTreeMap<(String, usize), String> {
            let mut all = BTreeMap::new();
            for file in &input.files {
                let n = (0..).find(|n| !all.contains_key(&(file.name(), *n))).unwrap_or(0);
                all.insert((file.name(), n), file.hash.clone());
            }
            all
        };
        let (now, then) = (by_name(self), by_name(then));
        let names: BTreeSet<&(String, usize)> = now.keys().chain(then.keys()).collect();
        let mut changes = Vec::new();
        for name in names {
            match (now.get(name), then.get(name)) {
                (Some(now), Some(then)) if now == then => {}
                (Some(_), Some(_)) => changes.push(format!("{} has changed", name.0)),
                (Some(_), None) => changes.push(format!("{} was not read before", name.0)),
                (None, _) => changes.push(format!("{} is not read any more", name.0)),
            }
        }
        if changes.is_empty() {
            changes.push(match self.tokens {
                Some(_) => "its files become other tokens".to_owned(),
                None => "its files come in another order".to_owned(),
            });
        }
        changes
    }
}

impl Inputs {
    /// In how far these are other than `then`, in lines, each with whether something else is computed so. `judges`: whether
    /// evaluations decide anything.
    pub fn differences(&self, then: &Inputs, judges: bool) -> Vec<(String, bool)> {
        let keys: BTreeSet<&String> = self.0.keys().chain(then.0.keys()).collect();
        let mut all = Vec::new();
        for key in keys.into_iter().filter(|key| *key != DATASET_DIR) {
            let is_learned = key == DATASET || !(key.starts_with("eval") || key.starts_with("predict"));
            let changes = match (self.0.get(key), then.0.get(key)) {
                (Some(now), Some(then)) => now.changes(then),
                (Some(_), None) => vec!["nothing was read for it before".to_owned()],
                (None, _) => vec!["nothing is read for it any more".to_owned()],
            };
            all.extend(changes.into_iter().map(|change| (format!("{key}: {change}"), is_learned || judges)));
        }
        all
    }

    fn merge(&mut self, other: Inputs) {
        for (key, mut input) in other.0 {
            let own = self.0.entry(key).or_default();
            own.files.append(&mut input.files);
            own.tokens = input.tokens.or(own.tokens.take());
        }
    }

    /// What is other than on another machine: files by their paths, and what becomes of them.
    fn unlike(&self, other: &Inputs) -> Vec<String> {
        let mut unlike = Vec::new();
        for (key, input) in &self.0 {
            let Some(its) = other.0.get(key) else { continue };
            let hash = |input: &Input, path: &Path| {
                let file = input.files.iter().find(|file| file.path == path);
                file.map(|file| file.hash.clone())
            };
            let paths: BTreeSet<&PathBuf> =
                input.files.iter().chain(&its.files).map(|file| &file.path).collect();
            let before = unlike.len();
            for path in paths {
                if hash(input, path) != hash(its, path) {
                    unlike.push(path.display().to_string());
                }
            }
            if unlike.len() == before && input != its {
                unlike.push(format!("what {key} becomes in tokens"));
            }
        }
        unlike
    }
}

/// The reading of a run's files, which goes on in the background.
pub struct Reading {
    small: Inputs,
    /// On the first rank of each machine.
    weights: Option<JoinHandle<Result<Inputs>>>,
}

impl Reading {
    /// Begins to read; compares all but weights and data between machines. All ranks call it.
    ///
    /// # Errors
    /// A file that is not the same on all machines, and one that cannot be read.
    pub fn begin(comm: &Communicator, config: &TrainConfig) -> Result<Reading> {
        compare_folders(comm, is_anything_relative(config))?;
        if !is_first_of_machine(comm) {
            compare(comm, None)?;
            return Ok(Reading { small: Inputs::default(), weights: None });
        }
        let (weights, small): (Vec<_>, Vec<_>) = files_of(config)
            .into_iter()
            .partition(|(_, path)| path.extension().is_some_and(|end| end == "safetensors"));
        let small = read(&small);
        let warnings = small.as_ref().map_err(ToString::to_string);
        compare(comm, Some(warnings))?;
        let reader = std::thread::Builder::new().name("fingerprints".into());
        let weights = reader.spawn(move || read(&weights)).map_err(Error::other)?;
        Ok(Reading { small: small?, weights: Some(weights) })
    }

    /// Ends it, with what data was read; compares weights and data between machines. What the machine of this rank has read,
    /// on its first rank. All ranks call it.
    ///
    /// # Errors
    /// As [`Reading::begin`].
    pub fn finish(self, comm: &Communicator, data: Vec<(String, Input)>) -> Result<Inputs> {
        let Reading { small: mut all, weights } = self;
        let Some(weights) = weights else {
            compare(comm, None)?;
            return Ok(all);
        };
        // A panic there is a fault of this program, which is reported as one.
        let read = weights.join().unwrap_or_else(|_| {
            Err(Error::Usage("the thread that reads the fingerprints of weights ended early".to_owned()))
        });
        let late = read.map(|mut late| {
            late.merge(Inputs(data.into_iter().collect()));
            late
        });
        compare(comm, Some(late.as_ref().map_err(ToString::to_string)))?;
        all.merge(late?);
        Ok(all)
    }
}

fn is_first_of_machine(comm: &Communicator) -> bool {
    let machines = comm.machines();
    machines.iter().position(|machine| machine == &machines[comm.rank()]) == Some(comm.rank())
}

/// Whether the run names anything by a path that depends on the folder in which it is started.
fn is_anything_relative(config: &TrainConfig) -> bool {
    let data = &config.data;
    // A name of `dataset_info.json` is none.
    let is_path = |name: &&String| Path::new(name.as_str()).exists();
    let mut data = data.datasets.iter().chain(&data.eval_datasets).filter(is_path).map(Path::new);
    config.save.output_dir.is_relative()
        || config.data.dataset_dir.is_relative()
        || data.any(Path::is_relative)
        || files_of(config).iter().any(|(_, path)| path.is_relative())
}

/// Ranks of one machine read and write for each other, so where paths are relative they must run in one folder: two launchers
/// may have been started in two.
fn compare_folders(comm: &Communicator, is_relative: bool) -> Result<()> {
    let mine = std::env::current_dir().map_err(|error| error.to_string()).map(|dir| {
        let found = std::fs::metadata(&dir).map(|found| (found.dev(), found.ino())).ok();
        (dir.display().to_string(), found, is_relative)
    });
    let all = share(comm, mine)?.map_err(|(rank, cause)| {
        Error::Refused(format!("rank {rank}: the folder in which it runs cannot be found: {cause}"))
    })?;
    if !all.iter().any(|(_, _, is_relative)| *is_relative) {
        return Ok(());
    }
    let machines = comm.machines();
    for (rank, (folder, found, _)) in all.iter().enumerate() {
        let first = machines.iter().position(|machine| *machine == machines[rank]).unwrap_or(rank);
        let (its_folder, its, _) = &all[first];
        if rank != first && (found.is_none() || found != its) {
            return Err(Error::Refused(format!(
                "rank {rank} runs in the folder {folder}, and rank {first} of the same machine in {its_folder}, so that one \
                 relative path means two places: start both in one folder, or give absolute paths"
            )));
        }
    }
    Ok(())
}

/// Compares what the first ranks of machines have read with what rank 0 has.
fn compare(comm: &Communicator, mine: Option<std::result::Result<&Inputs, String>>) -> Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mine = mine.transpose().map(|inputs| (host, inputs.cloned()));
    let all = share(comm, mine)?.map_err(|(rank, cause)| Error::Refused(format!("rank {rank}: {cause}")))?;
    let mut read =
        all.iter().enumerate().filter_map(|(rank, (host, inputs))| Some((rank, host, inputs.as_ref()?)));
    let Some((first, first_host, expected)) = read.next() else { return Ok(()) };
    for (rank, host, inputs) in read {
        let unlike = expected.unlike(inputs);
        if unlike.is_empty() {
            continue;
        }
        let more = match unlike.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let verb = if unlike.len() == 1 { "differs" } else { "differ" };
        let named = unlike.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
        return Err(Error::Refused(format!(
            "{named}{more} {verb} between rank {first} on {first_host} and rank {rank} on {host}: copy what one machine has \
             to the others, or give all of them one folder"
        )));
    }
    Ok(())
}

/// Every file of a run but its data, each with the key that names it.
fn files_of(config: &TrainConfig) -> Vec<(&'static str, PathBuf)> {
    let mut all = Vec::new();
    let mut folder = |key: &'static str, dir: &Path, with_weights: bool| {
        // It has all that a folder has.
        if is_gguf(dir) {
            all.push((key, dir.to_owned()));
            return;
        }
        let weights = if with_weights { weight_files(dir).unwrap_or_default() } else { BTreeSet::new() };
        let named = WEIGHTS.iter().filter(|_| with_weights).map(|name| (*name).to_owned());
        let names = SMALL.iter().map(|name| (*name).to_owned()).chain(weights).chain(named);
        let there = names.map(|name| dir.join(name)).filter(|path| path.is_file());
        all.extend(there.map(|path| (key, path)));
    };
    match &config.model.source {
        ModelSource::Folder(dir) => folder("model_name_or_path", dir, !config.model.from_scratch),
        ModelSource::Fields(_) if config.model.tokenizer.is_dir() => {
            folder("tokenizer_path", &config.model.tokenizer, false);
        }
        ModelSource::Fields(_) => {}
    }
    if let Finetuning::Adapter(args) = &config.train.finetuning {
        args.adapters.iter().for_each(|dir| folder("adapter_name_or_path", dir, true));
    }
    if let Some(reference) = config.train.objective.reference() {
        let key = config.train.objective.reference_key();
        reference.model.iter().for_each(|dir| folder(key, dir, true));
        reference.adapters.iter().for_each(|dir| folder("ref_model_adapters", dir, true));
    }
    if let ModelSource::Fields(_) = &config.model.source
        && config.model.tokenizer.is_file()
    {
        all.push(("tokenizer_path", config.model.tokenizer.clone()));
    }
    let info = config.data.dataset_dir.join("dataset_info.json");
    if info.is_file() {
        all.push((DATASET_DIR, info));
    }
    all
}

/// Reads files, each once.
fn read(files: &[(&'static str, PathBuf)]) -> Result<Inputs> {
    let (mut known, mut inputs) = (BTreeMap::<&Path, String>::new(), Inputs::default());
    for (key, path) in files {
        let hash = match known.get(path.as_path()) {
            Some(hash) => hash.clone(),
            // What its reader refuses is not read through here.
            None if SMALL.iter().any(|name| path.ends_with(name)) => {
                let bytes = oarlock_comm::read_file(path, oarlock_comm::MAX_TOKENIZER_BYTES);
                Sum::of(0, &bytes.map_err(Error::io("read", path))?).hash
            }
            None => {
                let file = oarlock_comm::open_file(path).map_err(Error::io("read", path))?;
                let n_bytes = file.metadata().map_err(Error::io("read", path))?.len();
                Algorithm::Xxh3.of_file(&file, 0, n_bytes).map_err(Error::io("read", path))?
            }
        };
        known.insert(path, hash.clone());
        let input = inputs.0.entry((*key).to_owned()).or_default();
        input.files.push(InputFile { path: path.clone(), hash });
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(files: &[(&str, &str)], tokens: Option<&str>) -> Input {
        let file = |(path, hash): &(&str, &str)| InputFile { path: path.into(), hash: (*hash).to_owned() };
        Input { files: files.iter().map(file).collect(), tokens: tokens.map(str::to_owned) }
    }

    #[test]
    fn a_folder_may_move_and_a_file_may_not_change() {
        let then = input(&[("a/config.json", "1"), ("a/model.safetensors", "2")], None);
        let moved = input(&[("b/config.json", "1"), ("b/model.safetensors", "2")], None);
        assert_eq!(moved.changes(&then), Vec::<String>::new());
        let changed = input(&[("b/config.json", "3"), ("b/extra.json", "4")], None);
        let expected = [
            "config.json has changed",
            "extra.json was not read before",
            "model.safetensors is not read any more",
        ];
        assert_eq!(changed.changes(&then), expected);
        let turned = input(&[("a/model.safetensors", "2"), ("a/config.json", "1")], None);
        assert_eq!(turned.changes(&then), ["its files come in another order"]);
    }

    #[test]
    fn data_is_what_it_becomes() {
        let then = input(&[("text.jsonl", "1")], Some("7"));
        assert!(input(&[("other.jsonl", "2")], Some("7")).changes(&then).is_empty());
        assert_eq!(input(&[("text.jsonl", "2")], Some("8")).changes(&then), ["text.jsonl has changed"]);
        assert_eq!(
            input(&[("text.jsonl", "1")], Some("8")).changes(&then),
            ["its files become other tokens"]
        );
        // Of a checkpoint that does not know the tokens, the files count.
        assert!(
            input(&[("text.jsonl", "1")], Some("8")).changes(&input(&[("text.jsonl", "1")], None)).is_empty()
        );
    }

    /// Two ranks as if they were on two machines.
    #[test]
    fn what_differs_between_machines_is_named() {
        let ranks = oarlock_comm::shm::on_threads(2, |comm| {
            let weights = if comm.rank() == 0 { "2" } else { "3" };
            let own = input(&[("model/config.json", "1"), ("model/model.safetensors", weights)], None);
            let inputs = Inputs(BTreeMap::from([("model_name_or_path".to_owned(), own)]));
            let equal = compare(&comm, Some(Ok(&Inputs::default())));
            (equal.is_ok(), compare(&comm, Some(Ok(&inputs))).unwrap_err().to_string())
        });
        for (equal, said) in ranks.unwrap() {
            assert!(equal);
            assert!(said.starts_with("model/model.safetensors differs between rank 0 on "), "{said}");
            assert!(said.contains(" and rank 1 on "), "{said}");
        }
    }
}
