//! Commands and files of Accelerate, from words to processes and plans.

mod commands;
mod flags;
mod goldens;
mod guides;
mod rules;

use std::path::{Path, PathBuf};

use super::launch::{Machine, Resolved, resolve};
use crate::config::{ResolvedConfig, Words, train_config_of};
use crate::front::script::Script;
use crate::launch::devices::Devices;
use crate::launch::environment;

/// A machine, and a folder for the files of a command.
struct Site {
    folder: tempfile::TempDir,
    gpus: usize,
    cores: usize,
    variables: Vec<(String, String)>,
}

/// The text of a file of the guides.
fn guide(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guides").join(name)
}

impl Site {
    /// A machine with so many GPUs, and a program `env.py` beside a training run `train.yaml`.
    fn new(gpus: usize) -> Site {
        let site = Site { folder: tempfile::tempdir().unwrap(), gpus, cores: 2, variables: Vec::new() };
        site.write("env.py", "");
        site.write(
            "train.yaml",
            "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: out\nstage: pt\nfinetuning_type: full\n",
        );
        site.variables(&[])
    }

    fn variables(mut self, more: &[(&str, &str)]) -> Site {
        let home = self.path("nowhere");
        self.variables = vec![("HF_HOME".to_owned(), home)];
        self.variables.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// The words of a command; `env.py`, and what ends in yaml or json, lies in the folder.
    fn words(&self, line: &str) -> Words {
        let word = |word: &str| {
            let file = word == "env.py" || word.ends_with(".yaml") || word.ends_with(".json");
            if file && !word.contains('/') { self.path(word) } else { word.to_owned() }
        };
        Words::new(&line.split_whitespace().map(word).collect::<Vec<_>>())
    }

    fn try_resolve(&self, line: &str) -> Result<Resolved, String> {
        let look_up = |name: &str| {
            self.variables.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        let machine = Machine {
            devices: &|visible| {
                let named = visible.map_or(self.gpus, |list| list.split(',').count());
                Devices { gpus: named.min(self.gpus), cores: self.cores }
            },
            environment: &look_up,
        };
        let folder = format!("{}/", self.folder.path().display());
        resolve(&self.words(line), &machine).map_err(|problems| problems.to_string().replace(&folder, ""))
    }

    fn resolve(&self, line: &str) -> Resolved {
        self.try_resolve(line).unwrap_or_else(|problems| panic!("{line}: {problems}"))
    }

    /// What is wrong with a command, and with the run that it means.
    fn wrong(&self, line: &str) -> String {
        match self.try_resolve(line) {
            Err(problems) => problems,
            Ok(resolved) => match self.try_plan(resolved) {
                Err(problems) => problems,
                Ok(_) => "nothing is wrong".to_owned(),
            },
        }
    }

    fn try_plan(&self, resolved: Resolved) -> Result<Option<ResolvedConfig>, String> {
        let Script::Training(training) = resolved.script else { return Ok(None) };
        let layers = training.layers.into_iter().chain(resolved.layers).collect();
        let folder = format!("{}/", self.folder.path().display());
        train_config_of(layers, &|_| None)
            .map(Some)
            .map_err(|problems| problems.to_string().replace(&folder, ""))
    }

    /// The run that a command means.
    fn plan(&self, line: &str) -> ResolvedConfig {
        self.try_plan(self.resolve(line)).unwrap_or_else(|problems| panic!("{line}: {problems}")).unwrap()
    }
}

/// The variables of a rank of this machine.
fn variables(resolved: &Resolved, rank: usize) -> Vec<(String, String)> {
    environment::variables(&resolved.launch, &resolved.launch.worker(0, rank))
}
