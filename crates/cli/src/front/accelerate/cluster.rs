//! The configuration of a machine or several, as `accelerate config` keeps it in a file: its keys, their defaults, and
//! where it lies.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{dump, scalar};
use crate::config::accelerate::keys::DISTRIBUTED_TYPES;
use crate::config::written::{self, Entry};
use crate::config::yaml::{Data, Node};
use crate::config::{Problem, Problems};
use crate::console::{Failure, Outcome, say};
use crate::error::Error;
pub use oarlock::distributed::default_config_file as default_file;
use oarlock::nearest::nearest_of;

/// A value that stands in this program.
#[derive(Clone, Copy, Debug)]
pub enum Lit {
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

impl Lit {
    /// The value.
    pub fn value(self) -> Value {
        match self {
            Lit::Nothing => Value::Null,
            Lit::Bool(truth) => Value::Bool(truth),
            Lit::Int(number) => Value::from(number),
            Lit::Text(word) => Value::from(word),
            Lit::EmptyList => Value::Array(Vec::new()),
        }
    }
}

/// The keys in the order in which `accelerate env` shows them, with what a file that lacks them means.
const FIELDS: &[(&str, Lit)] = &[
    ("compute_environment", Lit::Text("LOCAL_MACHINE")),
    ("distributed_type", Lit::Nothing),
    ("mixed_precision", Lit::Nothing),
    ("use_cpu", Lit::Bool(false)),
    ("debug", Lit::Bool(false)),
    ("num_processes", Lit::Int(-1)),
    ("machine_rank", Lit::Int(0)),
    ("num_machines", Lit::Int(1)),
    ("gpu_ids", Lit::Nothing),
    ("main_process_ip", Lit::Nothing),
    ("main_process_port", Lit::Nothing),
    ("rdzv_backend", Lit::Text("static")),
    ("same_network", Lit::Bool(false)),
    ("main_training_function", Lit::Text("main")),
    ("enable_cpu_affinity", Lit::Bool(false)),
    ("fp8_config", Lit::Nothing),
    ("deepspeed_config", Lit::Nothing),
    ("fsdp_config", Lit::Nothing),
    ("parallelism_config", Lit::Nothing),
    ("megatron_lm_config", Lit::Nothing),
    ("mpirun_config", Lit::Nothing),
    ("downcast_bf16", Lit::Bool(false)),
    ("tpu_name", Lit::Nothing),
    ("tpu_zone", Lit::Nothing),
    ("tpu_use_cluster", Lit::Bool(false)),
    ("tpu_use_sudo", Lit::Bool(false)),
    ("command_file", Lit::Nothing),
    ("commands", Lit::Nothing),
    ("tpu_vm", Lit::Nothing),
    ("tpu_env", Lit::Nothing),
    ("dynamo_config", Lit::Nothing),
];

/// Keys of older files, which become others.
const OLD: [&str; 2] = ["fp16", "dynamo_backend"];

/// A configuration: keys with values, without those that say nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster(Map<String, Value>);

impl Cluster {
    /// What was said, with the defaults of the rest.
    pub fn of(mut said: Map<String, Value>) -> Cluster {
        let says = |value: &Value| match value {
            Value::Null => false,
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        let field = |(name, default): &(&str, Lit)| {
            let value = said.shift_remove(*name).unwrap_or_else(|| default.value());
            says(&value).then(|| ((*name).to_owned(), value))
        };
        Cluster(FIELDS.iter().filter_map(field).collect())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, with the places.
    pub fn read(path: &Path) -> Result<Cluster, Problems> {
        let entries = written::file(path)?.entries;
        let (mut said, mut problems) = (Map::new(), Problems::default());
        for entry in &entries {
            if said.insert(entry.key.clone(), value(&entry.value, is_json(path))).is_some() {
                problems.push(
                    Problem::new(format!("`{}` is written twice", entry.key)).at(&entry.location, "again"),
                );
            } else if !FIELDS.iter().any(|(name, _)| *name == entry.key) && !OLD.contains(&entry.key.as_str())
            {
                problems.push(unknown(entry));
            }
        }
        if let Err(problem) = check(path, &entries, &said) {
            problems.push(problem);
        }
        problems.into_result(|| modernised(said))
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

fn is_json(path: &Path) -> bool {
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
fn check(path: &Path, entries: &[Entry], said: &Map<String, Value>) -> Result<(), Problem> {
    let location =
        |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value.location);
    if let (Some(environment), Some(location)) =
        (said.get("compute_environment"), location("compute_environment"))
        && environment != "LOCAL_MACHINE"
    {
        let message =
            format!("the compute environment {environment} is a service, and nothing is started there");
        return Err(Problem::new(message).at(location, "").help("write LOCAL_MACHINE"));
    }
    match (said.get("distributed_type"), location("distributed_type")) {
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
fn modernised(mut said: Map<String, Value>) -> Cluster {
    if said.get("distributed_type") == Some(&Value::Bool(false)) {
        said.insert("distributed_type".to_owned(), Value::from("NO"));
    }
    if said.get("distributed_type").is_some_and(|name| name == "NO") {
        said.entry("num_processes").or_insert(Value::from(1));
    }
    if said.shift_remove("fp16") == Some(Value::Bool(true)) {
        said.entry("mixed_precision").or_insert(Value::from("fp16"));
    }
    if let Some(backend) = said.shift_remove("dynamo_backend") {
        let named = backend.as_str().is_some_and(|name| name != "NO");
        let config = if named { serde_json::json!({ "dynamo_backend": backend }) } else { Value::Null };
        said.insert("dynamo_config".to_owned(), config);
    }
    Cluster::of(said)
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
    // Behind a link, the file that it leads to is replaced, not the link.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let written = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(folder)
        .and_then(|mut file| {
            file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map(|()| file)
        });
    written.and_then(|file| file.persist(path).map_err(|e| e.error)).map_err(Error::io("write", path))?;
    Ok(())
}

/// Writes a file and says so; a dry run shows the text instead.
pub(super) fn save_or_show(path: &Path, text: &str, dry_run: bool, done: &str) -> Outcome {
    if dry_run {
        return say(text);
    }
    save(path, text).map_err(Failure::Error)?;
    say(&format!("{done}\n"))
}
