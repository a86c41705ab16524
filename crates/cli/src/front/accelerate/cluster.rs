//! The configuration of a machine or several, as `accelerate config` keeps it in a file: its keys, their defaults, and
//! where it lies.

use crate::config::accelerate::keys;
use std::path::{Path, PathBuf};

use oarlock_config::nearest::nearest_of;
use serde_json::{Map, Value};

use super::{dump, scalar};
use crate::config::accelerate::File;
use crate::config::accelerate::keys::DISTRIBUTED_TYPES;
use crate::config::resolve::Settings;
use crate::config::written::{self, Entry};
use crate::config::yaml::{Data, Node};
use crate::config::{Problem, Problems};
use crate::console::{Failure, Outcome, print};
use crate::error::Error;
use crate::front::variable::env_var;
pub use oarlock::distributed::default_config_file as default_file;

/// A value that stands in this program.
#[derive(Clone, Copy, Debug)]
pub enum Literal {
    /// Nothing: the key is not written.
    Nothing,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A word.
    Text(&'static str),
    /// A list of nothing.
    EmptyList,
}

impl Literal {
    /// The value.
    pub fn value(self) -> Value {
        match self {
            Literal::Nothing => Value::Null,
            Literal::Bool(truth) => Value::Bool(truth),
            Literal::Int(number) => Value::from(number),
            Literal::Text(word) => Value::from(word),
            Literal::EmptyList => Value::Array(Vec::new()),
        }
    }
}

/// The keys in the order in which `accelerate env` shows them, with what a file that lacks them means.
const FIELDS: &[(&str, Literal)] = &[
    ("compute_environment", Literal::Text("LOCAL_MACHINE")),
    ("distributed_type", Literal::Nothing),
    ("mixed_precision", Literal::Nothing),
    ("use_cpu", Literal::Bool(false)),
    ("debug", Literal::Bool(false)),
    ("num_processes", Literal::Int(-1)),
    ("machine_rank", Literal::Int(0)),
    ("num_machines", Literal::Int(1)),
    ("gpu_ids", Literal::Nothing),
    ("main_process_ip", Literal::Nothing),
    ("main_process_port", Literal::Nothing),
    ("rdzv_backend", Literal::Text("static")),
    ("same_network", Literal::Bool(false)),
    ("main_training_function", Literal::Text("main")),
    ("enable_cpu_affinity", Literal::Bool(false)),
    ("fp8_config", Literal::Nothing),
    ("deepspeed_config", Literal::Nothing),
    ("fsdp_config", Literal::Nothing),
    ("parallelism_config", Literal::Nothing),
    ("megatron_lm_config", Literal::Nothing),
    ("mpirun_config", Literal::Nothing),
    ("downcast_bf16", Literal::Bool(false)),
    ("tpu_name", Literal::Nothing),
    ("tpu_zone", Literal::Nothing),
    ("tpu_use_cluster", Literal::Bool(false)),
    ("tpu_use_sudo", Literal::Bool(false)),
    ("command_file", Literal::Nothing),
    ("commands", Literal::Nothing),
    ("tpu_vm", Literal::Nothing),
    ("tpu_env", Literal::Nothing),
    ("dynamo_config", Literal::Nothing),
];

/// Keys of older files, which become others.
const OLD: [&str; 2] = ["fp16", "dynamo_backend"];

/// A configuration: keys with values, without those that say nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster(Map<String, Value>);

impl Cluster {
    /// The configuration with these values, and the defaults of the other keys.
    pub fn of(mut values: Map<String, Value>) -> Cluster {
        let says = |value: &Value| match value {
            Value::Null => false,
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        let field = |(name, default): &(&str, Literal)| {
            let value = values.shift_remove(*name).unwrap_or_else(|| default.value());
            says(&value).then(|| ((*name).to_owned(), value))
        };
        Cluster(FIELDS.iter().filter_map(field).collect())
    }

    /// Reads the file that the flag `--config_file` names, else the default file; `None` if there is neither.
    ///
    /// # Errors
    /// Everything that is wrong with the file, with the places.
    pub fn configured(flags: &Settings) -> Result<Option<Cluster>, Problems> {
        let path = config_file(flags);
        let is_there = flags.get(keys::CONFIG_FILE).is_some() || path.is_file();
        is_there.then(|| Cluster::read(&path)).transpose()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, with the places.
    pub fn read(path: &Path) -> Result<Cluster, Problems> {
        let entries = written::file(path)?.entries;
        let (mut values, mut problems) = (Map::new(), Problems::default());
        for entry in &entries {
            if values.insert(entry.key.clone(), value(&entry.value, is_json(path))).is_some() {
                problems.push(
                    Problem::new(format!("`{}` is written twice", entry.key)).at(&entry.location, "again"),
                );
            } else if !FIELDS.iter().any(|(name, _)| *name == entry.key) && !OLD.contains(&entry.key.as_str())
            {
                problems.push(unknown(entry));
            }
        }
        if let Err(problem) = check(path, &entries, &values) {
            problems.push(problem);
        }
        problems.into_result(|| modernised(values))
    }

    /// A word.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    /// A whole number.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.0.get(key).and_then(Value::as_i64)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, key: &str) -> bool {
        self.0.get(key) == Some(&Value::Bool(true))
    }

    /// The lines of `accelerate env`.
    pub fn shown(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| scalar::python(value), str::to_owned);
        self.0.iter().map(|(key, value)| format!("\t- {key}: {}\n", text(value))).collect()
    }

    /// The text of the file of this name.
    pub fn to_text(&self, path: &Path) -> String {
        if is_json(path) { dump::json(&self.0) } else { dump::yaml(&self.0) }
    }

    /// The text of a JSON file.
    pub fn to_json(&self) -> String {
        dump::json(&self.0)
    }
}

/// The file that the flag `--config_file` names, else the default file.
pub fn config_file(flags: &Settings) -> PathBuf {
    flags.get(keys::CONFIG_FILE).map_or_else(|| default_file(&env_var), PathBuf::from)
}

/// Reads the settings of `accelerate launch` from the named file, else from the default file if there is one.
///
/// # Errors
/// Everything that is wrong with the file, with the places.
pub(super) fn launch_settings(
    named: Option<&str>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<File>, Problems> {
    let default = default_file(environment);
    match named {
        Some(path) => File::read(path).map(Some),
        None if default.is_file() => File::read(&default.display().to_string()).map(Some),
        None => Ok(None),
    }
}

/// Whether a file is JSON, by its name.
pub fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

fn unknown(entry: &Entry) -> Problem {
    let problem = Problem::new(format!("unknown key `{}`", entry.key)).at(&entry.location, "");
    match nearest_of(&entry.key, FIELDS.iter().map(|(name, _)| *name)) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem.help("remove it: accelerate 1.15 knows no such key either"),
    }
}

/// What the file as a whole must say.
fn check(path: &Path, entries: &[Entry], values: &Map<String, Value>) -> Result<(), Problem> {
    let location =
        |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value.location);
    if let (Some(environment), Some(location)) =
        (values.get("compute_environment"), location("compute_environment"))
        && environment != "LOCAL_MACHINE"
    {
        let message =
            format!("the compute environment {environment} is a service, and nothing is started there");
        return Err(Problem::new(message).at(location, "").help("write LOCAL_MACHINE"));
    }
    match (values.get("distributed_type"), location("distributed_type")) {
        (Some(Value::String(name)), _) if DISTRIBUTED_TYPES.contains(&name.as_str()) => Ok(()),
        // `NO` without quotes is false in YAML; its meaning is plain.
        (Some(Value::Bool(false)), _) => Ok(()),
        (Some(_), Some(location)) => Err(Problem::new("an unknown `distributed_type`")
            .at(location, format!("one of {}", DISTRIBUTED_TYPES.join(", ")))),
        _ => Err(Problem::new(format!("`{}` does not say `distributed_type`", path.display()))
            .help(format!("add it: one of {}", DISTRIBUTED_TYPES.join(", ")))),
    }
}

/// A file of any age, as files are written today.
fn modernised(mut values: Map<String, Value>) -> Cluster {
    if values.get("distributed_type") == Some(&Value::Bool(false)) {
        values.insert("distributed_type".to_owned(), Value::from("NO"));
    }
    if values.get("distributed_type").is_some_and(|name| name == "NO") {
        values.entry("num_processes").or_insert(Value::from(1));
    }
    if values.shift_remove("fp16") == Some(Value::Bool(true)) {
        values.entry("mixed_precision").or_insert(Value::from("fp16"));
    }
    if let Some(backend) = values.shift_remove("dynamo_backend") {
        let named = backend.as_str().is_some_and(|name| name != "NO");
        let config = if named { serde_json::json!({ "dynamo_backend": backend }) } else { Value::Null };
        values.insert("dynamo_config".to_owned(), config);
    }
    Cluster::of(values)
}

/// The value of a node. In JSON a word without quotes is JSON's, in YAML it is resolved as the originals do.
pub fn value(node: &Node, json: bool) -> Value {
    match &node.data {
        Data::Scalar { text, plain: true } if json => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
        }
        Data::Scalar { text, plain: true } => scalar::resolve(text),
        Data::Scalar { text, plain: false } => Value::from(text.as_str()),
        Data::List(items) => items.iter().map(|item| value(item, json)).collect(),
        Data::Map(entries) => Value::Object(
            entries.iter().map(|entry| (entry.key.clone(), value(&entry.value, json))).collect(),
        ),
    }
}

/// A path with the home folder in the place of a leading `~`.
pub fn expand_home(path: &Path, environment: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    match (path.strip_prefix("~"), environment("HOME")) {
        (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => PathBuf::from(home),
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.to_path_buf(),
    }
}

/// Writes a file that is whole or not there: under another name first. Its folder is made where it is missing.
///
/// # Errors
/// When it cannot be written; then nothing has changed.
pub fn save(path: &Path, text: &str) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    // A link that the user made is not to become a file without a word.
    oarlock_files::refuse_link(path)
        .and_then(|()| oarlock_files::replace(path, text))
        .map_err(Error::io("write", path))
}

/// Writes a file and says so; a dry run shows the text instead.
pub(super) fn save_or_show(path: &Path, text: &str, dry_run: bool, done: &str) -> Outcome {
    if dry_run {
        return print(text);
    }
    save(path, text).map_err(Failure::Error)?;
    print(&format!("{done}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_lies_in_the_cache_of_hugging_face() {
        for (variables, expected) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/accelerate/default_config.yaml"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")], "/c/huggingface/accelerate/default_config.yaml"),
            (
                &[("HOME", "/u"), ("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/hf")],
                "/hf/accelerate/default_config.yaml",
            ),
            (&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/accelerate/default_config.yaml"),
            (&[("HOME", "/u"), ("HF_HOME", "")], "/u/.cache/huggingface/accelerate/default_config.yaml"),
        ] {
            let look_up = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(default_file(&look_up), Path::new(expected), "{variables:?}");
        }
    }
}
