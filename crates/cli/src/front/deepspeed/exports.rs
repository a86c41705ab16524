//! What the launcher's machine gives to the others: variables, and words for their shells.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock_config::settings::secret::{Secret, is_secret_name};

use super::launcher::{Launcher, RUN_NAME};
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
    /// the home folder and here, as the original looks for them. Of a file here, which may have come with what somebody
    /// else wrote, the exports say what it sets.
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
            // A name that no shell takes, as an exported function of bash has, is not for other machines.
            if FORWARDED.iter().any(|start| name.starts_with(start)) && !differs(name) && is_name(name) {
                exports.add(name, value);
            }
        }
        let file = (self.read)("DS_ENV_FILE").unwrap_or_else(|| ".deepspeed_env".to_owned());
        let home = (self.read)("HOME").map(PathBuf::from);
        if let Some(home) = &home {
            exports.add_file(&home.join(&file))?;
        }
        let here = self.folder.join(&file);
        let names = exports.add_file(&here)?;
        if !names.is_empty() && home.as_ref() != Some(&self.folder) {
            exports.note = Some(format!("{} sets {} on all machines", here.display(), names.join(", ")));
        }
        Ok(exports)
    }
}

/// Variables for other machines, each once.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    /// Those that a list of processes may show.
    shown: Vec<(String, String)>,
    /// Those that none may.
    secret: Vec<(String, Secret)>,
    /// What to say about them.
    note: Option<String>,
}

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

    /// Adds one.
    pub fn add(&mut self, name: &str, value: &str) {
        let value = value.trim();
        // The name of a run is what its machines know each other by.
        if is_secret_name(name) || name == RUN_NAME {
            set(&mut self.secret, name, Secret::new(value));
        } else {
            set(&mut self.shown, name, value.to_owned());
        }
    }

    /// Adds the lines of a file; their names.
    fn add_file(&mut self, path: &Path) -> Result<Vec<String>, Problem> {
        let mut names = Vec::new();
        if !path.is_file() {
            return Ok(names);
        }
        let name = path.display().to_string();
        let text = oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES)
            .map_err(|error| Problem::new(format!("cannot read the variables in `{name}`: {error}")))?;
        let source = Arc::new(SourceText { read_from: ValueSource::File, name, text, words: Vec::new() });
        let mut start = 0;
        for line in source.text.split_inclusive('\n') {
            let bytes = start..start + line.trim_end().len();
            start += line.len();
            match line.split_once('=') {
                _ if line.trim().is_empty() || line.starts_with('#') => {}
                Some((name, value)) if is_name(name.trim()) => {
                    self.add(name.trim(), value);
                    names.push(name.trim().to_owned());
                }
                named => {
                    let location = Location { source: source.clone(), bytes };
                    let message = match named {
                        Some(_) => "the name of a variable has letters, digits and _ alone",
                        None => "a line of variables is NAME=VALUE",
                    };
                    return Err(Problem::new(message).at(&location, ""));
                }
            }
        }
        Ok(names)
    }

    /// What the user is to know about them.
    pub fn note(&self) -> Option<&String> {
        self.note.as_ref()
    }

    /// Those that may be shown, as the original gives them to a program.
    pub fn iter(&self) -> impl Iterator<Item = (&String, String)> {
        self.shown.iter().map(|(name, value)| (name, double_quoted(value, false)))
    }

    /// The names of the others.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        self.secret.iter().map(|(name, _)| name.as_str())
    }

    /// The others, for the environment of a program that hands them on by their names.
    pub fn secrets(&self) -> &[(String, Secret)] {
        &self.secret
    }

    /// Each as an argument that follows a flag; of secrets the name alone follows `flag_of_names`.
    pub fn words(&self, flag: &str, flag_of_names: &str) -> Vec<String> {
        let shown = self.iter().flat_map(|(name, value)| [flag.to_owned(), format!("{name}={value}")]);
        let secret = self.secret_names().flat_map(|name| [flag_of_names.to_owned(), name.to_owned()]);
        shown.chain(secret).collect()
    }

    /// Those that may be shown, as a shell exports them.
    pub fn script(&self) -> String {
        self.shown.iter().map(|(name, value)| export(name, value)).collect()
    }

    /// The others as a shell exports them, if there are any.
    pub fn secret_script(&self) -> Option<Secret> {
        let script: String = self.secret.iter().map(|(name, value)| export(name, value.reveal())).collect();
        (!script.is_empty()).then(|| Secret::new(script))
    }
}

fn set<T>(variables: &mut Vec<(String, T)>, name: &str, value: T) {
    match variables.iter_mut().find(|(other, _)| other == name) {
        Some((_, before)) => *before = value,
        None => variables.push((name.to_owned(), value)),
    }
}

/// Whether a shell takes a word as the name of a variable.
fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn export(name: &str, value: &str) -> String {
    format!("export {name}={}; ", double_quoted(value, true))
}

/// A value in double quotes where it needs some, as the original writes it. For a shell it stays what it is: nothing in it is
/// replaced or run.
fn double_quoted(value: &str, for_shell: bool) -> String {
    if value.chars().all(is_plain) {
        return value.to_owned();
    }
    let mut out = String::from("\"");
    for c in value.chars() {
        if for_shell && matches!(c, '"' | '\\' | '$' | '`') {
            out.push('\\');
        }
        out.push(c);
    }
    out + "\""
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
