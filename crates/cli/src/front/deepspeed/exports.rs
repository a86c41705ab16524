//! What the launcher's machine gives to the others: variables, and words for their shells.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::multinode::Launcher;
use crate::config::Problem;
use crate::config::location::{Location, SourceText, ValueSource};
use crate::launch::devices::Devices;

/// Variables that other machines get: those whose names begin so.
const FORWARDED: [&str; 5] = ["MLFLOW", "PYTHON", "MV2", "UCX", "NCCL"];

/// Variables that differ from machine to machine where this one is set.
const OF_ONE_MACHINE: (&str, [&str; 2]) = ("AISC_JOB_NAME", ["NCCL_IB_HCA", "UCX_NET_DEVICES"]);

/// What the launcher knows of the machine that it runs on.
pub struct Machine<'m> {
    /// What there is to run on.
    pub devices: Devices,
    /// Looks up a variable.
    pub read: &'m dyn Fn(&str) -> Option<String>,
    /// All variables, in their order.
    pub variables: Vec<(String, String)>,
    /// This program.
    pub program: String,
    /// The working directory.
    pub folder: PathBuf,
    /// Asks another machine for its address; `None` if it does not answer.
    pub address: &'m dyn Fn(&str, Option<i64>) -> Option<String>,
}

impl Machine<'_> {
    /// What other machines get of the environment: variables by their names, then the lines of `.deepspeed_env`, in
    /// the home folder and here.
    pub fn exports(&self, mut exports: Exports) -> Result<Exports, Problem> {
        let folder = self.folder.display().to_string();
        let mut variables = self.variables.clone();
        match variables.iter_mut().find(|(name, _)| name == "PYTHONPATH") {
            Some((_, path)) => *path = format!("{folder}:{path}"),
            None => variables.push(("PYTHONPATH".to_owned(), folder)),
        }
        let (job, left_out) = OF_ONE_MACHINE;
        let differs = |name: &str| (self.read)(job).is_some() && left_out.contains(&name);
        for (name, value) in &variables {
            if FORWARDED.iter().any(|start| name.starts_with(start)) && !differs(name) {
                exports.add(name, value);
            }
        }
        let file = (self.read)("DS_ENV_FILE").unwrap_or_else(|| ".deepspeed_env".to_owned());
        for folder in (self.read)("HOME").map(PathBuf::from).into_iter().chain([self.folder.clone()]) {
            exports.add_file(&folder.join(&file))?;
        }
        Ok(exports)
    }
}

/// Variables for other machines, each once.
#[derive(Clone, Debug, Default)]
pub struct Exports(Vec<(String, String)>);

impl Exports {
    /// Those that a launcher sets by itself.
    pub fn of(launcher: Launcher, cpu: bool) -> Exports {
        let mut exports = Exports::default();
        match launcher {
            Launcher::OpenMpi => exports.add("UCX_TLS", "tcp"),
            Launcher::Mvapich => {
                exports.add("MV2_SMP_USE_CMA", "0");
                exports.add("MV2_DEBUG_SHOW_BACKTRACE", "1");
                if !cpu {
                    exports.add("MV2_USE_CUDA", "1");
                }
                exports.add("MV2_SUPPORT_DL", "1");
                exports.add("MV2_ENABLE_AFFINITY", "0");
                exports.add("MV2_INTER_ALLGATHER_TUNING", "5");
                exports.add("MV2_CUDA_USE_NAIVE", "0");
            }
            _ => {}
        }
        exports
    }

    /// Adds one, in double quotes where a shell would not take it as it is.
    pub fn add(&mut self, name: &str, value: &str) {
        let value = value.trim();
        let value = if value.chars().all(is_plain) { value.to_owned() } else { format!("\"{value}\"") };
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, before)) => *before = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Problem> {
        if !path.is_file() {
            return Ok(());
        }
        let name = path.display().to_string();
        let text = oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES)
            .map_err(|error| Problem::new(format!("cannot read the variables in `{name}`: {error}")))?;
        let source = Arc::new(SourceText { read_from: ValueSource::File, name, text });
        let mut start = 0;
        for line in source.text.split_inclusive('\n') {
            let bytes = start..start + line.trim_end().len();
            start += line.len();
            match line.split_once('=') {
                _ if line.trim().is_empty() || line.starts_with('#') => {}
                Some((name, value)) => self.add(name.trim(), value),
                None => {
                    let location = Location { source: source.clone(), bytes };
                    return Err(Problem::new("a line of variables is NAME=VALUE").at(&location, ""));
                }
            }
        }
        Ok(())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter()
    }

    /// Each as an argument that follows a flag.
    pub fn words(&self, flag: &str) -> Vec<String> {
        self.0.iter().flat_map(|(name, value)| [flag.to_owned(), format!("{name}={value}")]).collect()
    }

    /// All of them as a shell exports them.
    pub fn script(&self) -> String {
        self.0.iter().map(|(name, value)| format!("export {name}={value}; ")).collect()
    }
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "_@%+=:,./-".contains(c)
}

/// A word for the shell of another machine, as DeepSpeed writes it where that is right.
pub fn quoted(word: &str) -> String {
    let has_blank = word.contains(' ');
    if has_blank && word.chars().all(|c| is_plain(c) || c == ' ' || c == '"') {
        format!("\"{}\"", word.replace('"', "\\\""))
    } else {
        shell(word)
    }
}

/// A word that a shell takes for itself.
pub fn shell(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    // Only a zero byte cannot be quoted, and no argument holds one.
    shlex::try_quote(word).map_or_else(|_| String::new(), |word| word.into_owned())
}
