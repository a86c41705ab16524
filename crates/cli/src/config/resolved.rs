//! A training configuration with what is known of its writing: where every value comes from, and what changes nothing.

use super::table as keys;
use std::fmt::Write as _;
use std::ops::Deref;

use oarlock::config::{RunDescription, TrainConfig};
use oarlock_config::config::optimizer_keys as optimizer;
use oarlock_config::dialect::Dialects;
use oarlock_config::settings::keys::{Group, Key, Row, Status};
use oarlock_config::settings::location::{Origin, ValueSource};
use oarlock_config::settings::node::to_yaml;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{self, Setting, Settings};
use oarlock_config::settings::secret::masked_lines;
use oarlock_config::settings::value::{Value, quoted};

use super::hub::OnHub;
use super::hub_data::DataOnHub;
use super::{objective, other_methods, table};

/// Keys that change something on GPUs alone.
const OF_GPUS: [&str; 2] = ["activation_checkpointing.cpu_checkpointing", "activation_checkpointing_offload"];

/// Keys of older configurations, for which there are others: they are there where they are written.
const OLDER: [&str; 1] = ["fsdp_transformer_layer_cls_to_wrap"];

/// A training configuration whose values know their origins.
#[derive(Clone, Debug)]
pub struct ResolvedConfig {
    /// The values, which are all that a training run reads.
    pub values: TrainConfig,
    pub(super) settings: Settings,
    pub(super) dialects: Dialects,
    /// The flags of a script of another program under which its settings are written; empty for those of our own names.
    pub flags: &'static [(&'static Row, &'static str)],
}

impl Deref for ResolvedConfig {
    type Target = TrainConfig;

    fn deref(&self) -> &TrainConfig {
        &self.values
    }
}

impl ResolvedConfig {
    /// Where the value of a key comes from; `None` for an unknown key.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.settings.iter().find(|setting| setting.key.name == name).map(|setting| &setting.origin)
    }

    /// The number of all ranks, unless other machines are still to say how many they have.
    pub fn known_ranks(&self) -> Option<usize> {
        self.settings.known(keys::NUM_PROCESSES)
    }

    /// The models and adapters that are named as on a hub while the cache does not have all of them, with their keys.
    pub fn models_on_hub(&self) -> Vec<(OnHub, &'static Row)> {
        let settings = &self.settings;
        let one = |key: Key<Option<String>>| settings.said(key).map(|_| (settings.word(key), key.row));
        let many = |key: Key<Vec<String>>| settings.get(key).iter().map(move |word| (word.as_str(), key.row));
        let words =
            [keys::MODEL_NAME_OR_PATH, keys::REF_MODEL, keys::REWARD_MODEL].into_iter().filter_map(one);
        let words = words.chain(many(keys::ADAPTER_NAME_OR_PATH)).chain(many(keys::REF_MODEL_ADAPTERS));
        let on_hub = words.filter_map(|(word, key)| Some((OnHub::of_settings(settings, word)?, key)));
        on_hub.filter(|(model, _)| model.cached().is_none()).collect()
    }

    /// The data sets that lie on a hub while the cache does not have all of them.
    pub fn data_on_hub(&self) -> Vec<DataOnHub> {
        // What is tokenized already is read without its sources.
        let is_tokenized = self.data.tokenized.as_ref().is_some_and(|dir| dir.exists());
        let data = DataOnHub::of_settings(&self.settings).into_iter().filter(|_| !is_tokenized);
        data.filter(|data| data.cached().is_none()).collect()
    }

    /// A problem of these keys, at the locations at which they are written.
    pub fn problem(&self, message: impl Into<String>, keys: &[&'static Row]) -> Problem {
        self.settings.problem(message, keys)
    }

    /// A text in which settings stand as `key: value`, as they are written in the command in use: as flags of its script, and
    /// under the name that another program's file has for one.
    pub fn spelled(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (flag, key) in self.flags {
            out = out.replace(&format!("{key}: "), &format!("--{flag} "));
        }
        let batch = keys::PER_DEVICE_TRAIN_BATCH_SIZE;
        match self.foreign_name(batch) {
            Some((name, file)) => out
                .lines()
                .map(|line| match line.contains(&format!("{batch}: ")) {
                    true => line.replace(batch.name(), &name).replacen(" (", &format!(" in {file} ("), 1),
                    false => line.to_owned(),
                })
                .collect::<Vec<_>>()
                .join("\n"),
            None => out,
        }
    }

    /// What a file of another program calls a setting that it says, and the file.
    fn foreign_name<T>(&self, key: Key<T>) -> Option<(String, &str)> {
        let location =
            self.settings.setting(key).location().filter(|at| at.source.read_from == ValueSource::File)?;
        let (name, _) = location.line_text().split_once(':')?;
        let name = name.trim().trim_matches(['"', '\'', '{', ' ']);
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (is_name && name != key.name()).then(|| (name.to_owned(), location.source.name.as_str()))
    }

    /// What is asked for and is not there: the configuration can be shown, but not run.
    pub fn missing(&self) -> Problems {
        let mut missing = resolve::missing(&self.settings);
        missing.append(self.dialects.missing());
        missing
    }

    /// The configuration, if all that it asks for is there.
    ///
    /// # Errors
    /// What is not there.
    pub fn complete(self) -> Result<Self, Problems> {
        self.missing().into_result(|| self)
    }

    /// What somebody wrote although it changes nothing here, each with the reason.
    pub fn without_effect(&self) -> impl Iterator<Item = (&Setting, &'static str)> {
        let on_gpus = self.values.ranks.device.is_gpu();
        self.all().filter_map(move |setting| match setting.key.status {
            _ if on_gpus && OF_GPUS.contains(&setting.key.name) => None,
            Status::NoEffect(reason) if setting.is_written() => Some((setting, reason)),
            _ if setting.key.name == "tf32" && self.values.train.tf32 && !on_gpus => {
                Some((setting, "products of f32 are in f32 on the CPU"))
            }
            _ if self.values.data.chat.is_none()
                && setting.is_written()
                && table::CHAT_KEYS.contains(&setting.key.name) =>
            {
                Some((setting, "stage pt uses no chat template"))
            }
            _ if setting.is_written() && !objective::reads(&self.settings, setting.key.name) => {
                let reason = match setting.key.name {
                    "do_predict" => "this stage predicts nothing; do_eval evaluates",
                    _ => "this stage does not read it",
                };
                Some((setting, reason))
            }
            _ if setting.is_written() => {
                other_methods::obstacle(&self.settings, setting.key.name).map(|reason| (setting, reason))
            }
            _ => None,
        })
    }

    /// Whether the value changes anything.
    fn has_meaning(&self, setting: &Setting) -> bool {
        let is_said = setting.is_written() || !OLDER.contains(&setting.key.name);
        let name = setting.key.name;
        let is_of_another = setting.is_written() && other_methods::obstacle(&self.settings, name).is_some();
        setting.key.is_used() && is_said && objective::reads(&self.settings, name) && !is_of_another
    }

    /// What the log should say of the configuration, such as older forms and what they mean.
    pub fn notes(&self) -> &[String] {
        &self.dialects.notes
    }

    /// The settings, and those of other programs' blocks.
    fn all(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter().chain(self.dialects.iter().flat_map(|block| block.settings.iter()))
    }

    /// What takes more memory here than in the program whose names it has.
    fn warnings(&self) -> impl Iterator<Item = String> {
        let trains_weights = ["full", "freeze"].contains(&self.settings.get(keys::FINETUNING_TYPE));
        let pure_bf16 = (self.settings.get(keys::PURE_BF16) && trains_weights).then(|| {
            "pure_bf16: master weights, gradients and the optimizer's states stay in f32; `optim: adamw_8bit` gives the states \
             8 bits"
                .to_owned()
        });
        optimizer::memory_note(&self.settings).into_iter().chain(pure_bf16)
    }

    /// The same in one line for the start of a run; `None` if there is nothing to say.
    pub fn without_effect_line(&self) -> Option<String> {
        let names: Vec<&str> = self.without_effect().map(|(setting, _)| setting.key.name).collect();
        (!names.is_empty())
            .then(|| format!("accepted without effect: {} (--print-config says why)", names.join(", ")))
    }

    /// Every value that has a meaning, with its origin, and what changes nothing, with the reason. Of other programs'
    /// blocks it shows what was written.
    pub fn table(&self) -> String {
        let mut parts: Vec<(&str, Vec<Line>)> = Vec::new();
        for group in Group::ALL {
            let of_group = |setting: &&Setting| self.has_meaning(setting) && setting.key.group == group;
            parts.push((group.title(), self.settings.iter().filter(of_group).map(Line::of).collect()));
        }
        for block in self.dialects.iter() {
            let written = |setting: &&Setting| setting.key.is_used() && setting.is_written();
            parts.push((block.title, block.settings.iter().filter(written).map(Line::of).collect()));
        }
        let ignored = self.without_effect().map(|(setting, reason)| {
            let row = Line::of(setting);
            Line { origin: format!("{}: {reason}", row.origin), ..row }
        });
        parts.push(("Accepted without effect", ignored.collect()));
        parts.retain(|(_, rows)| !rows.is_empty());

        let rows = || parts.iter().flat_map(|(_, rows)| rows);
        let names = rows().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let values = rows().map(|row| row.value.chars().count()).max().unwrap_or(0).min(48);
        let mut out = String::new();
        for (title, rows) in &parts {
            let _ = writeln!(out, "{title}");
            for Line { name, value, origin } in rows {
                let _ = writeln!(out, "  {name:names$}  {value:values$}  {origin}");
            }
        }
        for note in self.notes().iter().cloned().chain(self.warnings()) {
            let _ = writeln!(out, "Note: {note}");
        }
        out
    }

    /// Every value that has a meaning, and what was written in other programs' blocks, each under its name.
    pub fn values_by_name(&self) -> Vec<(&'static str, String)> {
        let own = self.settings.iter().filter(|setting| self.has_meaning(setting));
        let blocks = self.dialects.iter().flat_map(|block| block.settings.iter());
        let written = blocks.filter(|setting| setting.key.is_used() && setting.is_written());
        own.chain(written).map(|setting| (setting.key.name, setting.value.to_string())).collect()
    }

    /// What logs and trackers are to say about the configuration.
    pub fn description(&self) -> RunDescription {
        let notes = self.notes().iter().cloned().chain(self.warnings());
        let notes = self.without_effect_line().into_iter().chain(notes).collect();
        RunDescription { yaml: self.as_yaml(), values: self.as_json(), notes }
    }

    /// Every value that has a meaning, for trackers: numbers and switches as such, anything else in words.
    pub fn as_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let value = |setting: &Setting| match &setting.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(x) => (*x).into(),
            Value::Int(x) => (*x).into(),
            Value::Float(x) => (*x).into(),
            other => other.to_string().into(),
        };
        let used = self.settings.iter().filter(|setting| self.has_meaning(setting));
        used.map(|setting| (setting.key.name.to_owned(), value(setting))).collect()
    }

    /// The values that somebody wrote, as YAML lines: the file `training_args.yaml`, which repeats the run.
    pub fn as_yaml(&self) -> String {
        let mut out = String::new();
        for setting in self.settings.iter().filter(|setting| setting.is_written()) {
            let _ = writeln!(out, "{}: {}", setting.key.name, yaml_value(setting));
        }
        out
    }
}

/// A line of [`ResolvedConfig::table`].
struct Line {
    name: &'static str,
    value: String,
    origin: String,
}

impl Line {
    fn of(setting: &Setting) -> Self {
        Line { name: setting.key.name, value: setting.value.to_string(), origin: setting.origin.to_string() }
    }
}

fn yaml_value(setting: &Setting) -> String {
    match &setting.value {
        Value::Null => "null".to_owned(),
        Value::Text(x) => quoted(x),
        Value::Secret(x) => quoted(&x.to_string()),
        Value::List(names) => {
            format!("[{}]", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "))
        }
        Value::Map(entries) => masked_lines(&to_yaml(entries)),
        number => number.to_string(),
    }
}
