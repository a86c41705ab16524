//! Reads the configuration file of Accelerate, YAML or JSON: every key with its location, nested blocks with or without
//! the prefix of their keys, and what older versions wrote.

use oarlock_config::dialect::settle;
use oarlock_config::settings::keys::ValueType;
use oarlock_config::settings::node::Entry;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{Setting, Settings};
use oarlock_config::settings::value::{Value, boolean};

use super::keys;

use super::super::yaml::{self, Data};
use super::keys::{BLOCKS, DEEPSPEED, FILE_ONLY, FLAGS, TOP};

/// What a file says.
#[derive(Clone, Debug)]
pub struct File {
    /// Its name.
    pub name: String,
    /// What it says about the settings that are flags, too.
    pub settings: Settings,
    /// What only a file says.
    pub own: Settings,
    /// The keys of `deepspeed_config`, in the order of the text.
    pub deepspeed: Vec<String>,
}

/// The keys of blocks that are not flags.
const INNER_ONLY: &[&str] = &["fsdp_ignored_modules", "mpirun_ccl"];

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(path: &str) -> Result<File, Problems> {
        File::of(path, yaml::file(path, "the configuration of Accelerate")?)
    }

    /// Reads a text; `name` is for messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn text(name: &str, text: &str) -> Result<File, Problems> {
        File::of(name, yaml::text(name, text.to_owned(), "the configuration of Accelerate")?)
    }

    fn of(name: &str, entries: Vec<Entry>) -> Result<File, Problems> {
        let mut file = File {
            name: name.to_owned(),
            settings: Settings::of(FLAGS),
            own: Settings::of(FILE_ONLY),
            deepspeed: Vec::new(),
        };
        if let Some(entry) = entries.iter().find(|entry| is(entry, "compute_environment", "AMAZON_SAGEMAKER"))
        {
            let problem = Problem::new("SageMaker starts these processes, not this machine");
            return Err(problem
                .at(&entry.value.location, "")
                .help("write `compute_environment: LOCAL_MACHINE`, and what is to run here")
                .into());
        }
        let mut problems = Problems::default();
        for entry in entries {
            match BLOCKS.iter().find(|(block, _)| *block == entry.key) {
                Some((block, prefix)) => file.block(block, prefix, &entry, &mut problems),
                None => file.top(entry, &mut problems),
            }
        }
        file.older();
        if file.own.setting(keys::DISTRIBUTED_TYPE).location().is_none() {
            problems.push(
                Problem::new(format!("`distributed_type` is missing in `{name}`"))
                    .help("write `distributed_type: NO`, MULTI_CPU, MULTI_GPU, DEEPSPEED or FSDP"),
            );
        }
        problems.into_result(|| file)
    }

    /// What was written for a key of either table.
    fn setting(&mut self, name: &str) -> Option<&mut Setting> {
        match self.settings.find_mut(name) {
            Some(setting) => Some(setting),
            None => self.own.find_mut(name),
        }
    }

    fn top(&mut self, entry: Entry, problems: &mut Problems) {
        let own =
            FILE_ONLY.iter().any(|key| key.name == entry.key) && !INNER_ONLY.contains(&entry.key.as_str());
        if own || TOP.contains(&entry.key.as_str()) {
            let name = entry.key.clone();
            self.take(&name, entry, problems);
        } else {
            problems.push(unknown(&entry));
        }
    }

    fn block(&mut self, block: &str, prefix: &str, entry: &Entry, problems: &mut Problems) {
        let entries = match &entry.value.data {
            Data::Map(entries) => entries,
            _ if entry.value.is_null() => return,
            _ => {
                let message = format!("`{block}` takes a mapping, not {}", entry.value.describe());
                problems.push(Problem::new(message).at(&entry.value.location, ""));
                return;
            }
        };
        let names = inner_names(prefix);
        for entry in entries {
            let text = &entry.key;
            let name = if text.starts_with(prefix) { text.clone() } else { format!("{prefix}{text}") };
            if !names.contains(&name.as_str()) {
                let problem =
                    Problem::new(format!("unknown key `{text}` in `{block}`")).at(&entry.location, "");
                let otherwise = format!("it takes {}", names.join(", "));
                problems.push(problem.did_you_mean(&name, names.iter().copied(), otherwise));
                continue;
            }
            if block == "deepspeed_config" {
                self.deepspeed.push(text.clone());
            }
            self.take(&name, entry.clone(), problems);
        }
    }

    fn take(&mut self, name: &str, mut entry: Entry, problems: &mut Problems) {
        let Some(setting) = self.setting(name) else { return };
        if let Data::Scalar { text, plain } = &mut entry.value.data {
            match (setting.key.value_type, boolean(text)) {
                // The questions of Accelerate once took precisions in any letters.
                (ValueType::Choice(_), _) if name == "mixed_precision" => *text = text.to_ascii_lowercase(),
                // A word for true is handed on as Python writes it.
                (ValueType::Text, Some(flag)) if *plain && text.parse::<i64>().is_err() => {
                    *text = if flag { "True" } else { "False" }.to_owned();
                }
                _ => {}
            }
        }
        if let Err(problem) = settle(setting, &entry) {
            problems.push(problem);
        }
    }

    /// What older versions wrote.
    fn older(&mut self) {
        let fp16 = self.own.setting(keys::FP16);
        if !self.own.get(keys::FP16) || self.settings.setting(keys::MIXED_PRECISION).location().is_some() {
            return;
        }
        let origin = fp16.origin.clone();
        if let Some(setting) = self.settings.find_mut(keys::MIXED_PRECISION.name()) {
            setting.value = Value::Text("fp16".to_owned());
            setting.origin = origin;
        }
    }
}

fn is(entry: &Entry, name: &str, value: &str) -> bool {
    entry.key == name && entry.value.word() == Some(value)
}

/// The names that a block takes.
fn inner_names(prefix: &str) -> Vec<&'static str> {
    if prefix.is_empty() {
        return DEEPSPEED.to_vec();
    }
    let flags = FLAGS.iter().map(|key| key.name).chain(INNER_ONLY.iter().copied());
    flags.filter(|name| name.starts_with(prefix)).collect()
}

fn unknown(entry: &Entry) -> Problem {
    let name = entry.key.as_str();
    let problem = Problem::new(format!("unknown key `{name}` in the configuration of Accelerate"))
        .at(&entry.location, "");
    let home = BLOCKS.iter().find(|(_, prefix)| inner_names(prefix).contains(&name));
    if let Some((block, _)) = home {
        return problem.help(format!("`{name}` belongs in `{block}`"));
    }
    if FLAGS.iter().any(|key| key.name == name) {
        return problem.help(format!("`{name}` is a flag only: `accelerate launch --{name} …`"));
    }
    let names = FILE_ONLY.iter().map(|key| key.name).chain(TOP.iter().copied());
    let names: Vec<&str> = names.chain(BLOCKS.iter().map(|(block, _)| *block)).collect();
    let there = format!("there are {}", names.join(", "));
    problem.did_you_mean(name, names, there)
}
