//! The flags of MiniMind's `train_pretrain` as settings of ours, with MiniMind's own defaults.

use std::path::Path;
use std::sync::Arc;

use crate::config::flags::Parsed;
use crate::config::keys::{Row, Status};
use crate::config::location::{Location, SourceText, ValueSource};
use crate::config::value::{self, Value};
use crate::config::written::{Authority, Entry, Layer};
use crate::config::yaml::Node;
use crate::config::{Problem, Problems, Words};
use crate::front::training::Training;

use super::flags::{
    self, BOTH_FIXED, COMMAND, FLAGS, INTERVALS, MINIMIND2_FIXED, MINIMIND3_FIXED, NEWEST, RENAMED,
};

/// The names of the scripts.
pub const SCRIPTS: [&str; 3] = ["train_pretrain", "train_pretrain.py", "train_pretrain_accelerate.py"];

/// What stands here for one of MiniMind's other scripts.
enum Instead {
    /// A training run of this stage and kind.
    Training(&'static str),
    /// What this sentence says.
    Message(&'static str),
}

/// MiniMind's other scripts.
const OTHERS: [(&[&str], Instead); 9] = [
    (&["train_full_sft", "train_reason"], Instead::Training("stage=sft finetuning_type=full")),
    (&["train_lora"], Instead::Training("stage=sft finetuning_type=lora")),
    (&["train_dpo"], Instead::Training("stage=dpo finetuning_type=full")),
    (&["train_tokenizer"], Instead::Message("`oarlock tokenizer train` does the same")),
    (
        &["train_distillation"],
        Instead::Message("no command does the same; the library's example `distillation` is such a program"),
    ),
    (
        &["train_ppo", "train_grpo", "train_spo"],
        Instead::Message("reinforcement learning is not there; `oarlock train stage=dpo` trains on pairs"),
    ),
    (
        &["train_agent"],
        Instead::Message(
            "reinforcement learning is not there; `oarlock train stage=sft` learns calls of functions",
        ),
    ),
    (&["eval_llm", "eval_model"], Instead::Message("`oarlock chat --model FOLDER` talks to a model")),
    (
        &["serve_openai_api"],
        Instead::Message("`oarlock serve_openai_api` with its flags answers at its port"),
    ),
];

/// What does the same as one of MiniMind's scripts that is not a file.
pub fn counterpart(name: &str) -> Option<String> {
    let file = Path::new(name).file_name()?.to_str()?;
    let stem = file.strip_suffix(".py").unwrap_or(file);
    let (_, instead) = OTHERS.iter().find(|(scripts, _)| scripts.contains(&stem))?;
    let error = match instead {
        Instead::Training(words) => format!(
            "`oarlock train {words} model_name_or_path=FOLDER dataset=FILE.jsonl output_dir=OUT` does the same"
        ),
        Instead::Message(error) => (*error).to_owned(),
    };
    Some(format!("MiniMind has a script of this name; {error}"))
}

/// Where MiniMind keeps its tokenizer, seen from its root and from its folder of scripts.
const TOKENIZERS: [&str; 3] = ["./model/minimind_tokenizer", "./model", "../model"];

/// Which of the two scripts is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Era {
    Minimind2,
    Minimind3,
}

impl Era {
    /// The flags that only one of the scripts has; those of the model come first, and decide. A launcher may add
    /// `--local_rank`, so that one says nothing.
    const MINIMIND2: [&Row; 6] = [
        flags::DIM.row,
        flags::N_LAYERS.row,
        flags::OUT_DIR.row,
        flags::DDP.row,
        flags::WARMUP_ITERS.row,
        flags::USE_FLASH_ATTN.row,
    ];
    const MINIMIND3: [&Row; 7] = [
        flags::HIDDEN_SIZE.row,
        flags::NUM_HIDDEN_LAYERS.row,
        flags::SAVE_DIR.row,
        flags::SAVE_WEIGHT.row,
        flags::FROM_WEIGHT.row,
        flags::FROM_RESUME.row,
        flags::USE_COMPILE.row,
    ];
    const N_OF_MODEL: usize = 2;

    /// Whether the texts that its script reads by default are there.
    fn has_data(self) -> bool {
        let place = defaults(self).into_iter().find(|(key, _)| key.text() == flags::DATA_PATH.name());
        place.is_some_and(|(_, path)| Path::new(path.text()).is_file())
    }

    fn of(parsed: &Parsed, problems: &mut Problems) -> Era {
        let written = |keys: &[&'static Row]| {
            keys.iter().copied().find(|key| parsed.settings.setting(*key).is_written())
        };
        let of_model =
            (written(&Era::MINIMIND2[..Era::N_OF_MODEL]), written(&Era::MINIMIND3[..Era::N_OF_MODEL]));
        match of_model {
            (Some(old), Some(new)) => {
                let message = format!(
                    "`--{old}` is of MiniMind2's script, `--{new}` of minimind-3's: they make different models"
                );
                problems.push(parsed.settings.problem(message, &[old, new]).help(
                    "write --dim and --n_layers for MiniMind2, --hidden_size and --num_hidden_layers for minimind-3",
                ));
                Era::Minimind2
            }
            (Some(_), None) => Era::Minimind2,
            (None, Some(_)) => Era::Minimind3,
            (None, None) if written(&Era::MINIMIND2).is_some() => Era::Minimind2,
            (None, None) if written(&Era::MINIMIND3).is_some() => Era::Minimind3,
            // Whoever names nothing stands in the folder of one of them.
            (None, None) if Era::has_data(Era::Minimind3) && !Era::has_data(Era::Minimind2) => Era::Minimind3,
            (None, None) => Era::Minimind2,
        }
    }
}

/// The run that MiniMind's flags ask for. `environment` looks up a variable: of ACCELERATE_MIXED_PRECISION, which
/// `accelerate launch` sets, MiniMind's script makes more than of its own `--dtype`.
///
/// # Errors
/// Everything that is wrong with the flags.
pub fn training(words: &Words, environment: &dyn Fn(&str) -> Option<String>) -> Result<Training, Problems> {
    let mut problems = Problems::default();
    let parsed = FLAGS.parse(words, &mut problems);
    if parsed.help {
        let help = format!("`oarlock {COMMAND} --help` shows its flags");
        problems.push(Problem::new("`--help` starts no training run").help(help));
    }
    if let Some(word) = parsed.rest.get(0) {
        let message = format!("`{COMMAND}` takes flags only, not `{word}`");
        problems.push(Problem::new(message).at(&parsed.rest.location(0), ""));
    }
    let era = Era::of(&parsed, &mut problems);
    let mut reader =
        Reader { parsed: &parsed, era, defaults: defaults(era), entries: Vec::new(), notes: Vec::new() };
    reader.refuse(&mut problems);
    reader.rename();
    reader.intervals();
    reader.precision(environment, &mut problems);
    reader.output();
    reader.tokenizer(&mut problems);
    reader.without_effect();
    let Reader { entries, notes, .. } = reader;
    let (dry_run, print_config) = (parsed.dry_run, parsed.print_config);
    let flags = Layer { authority: Authority::Replaces, entries };
    problems.into_result(|| Training {
        layers: vec![fixed(era), flags],
        notes,
        dry_run,
        print_config,
        own_precision_decides: false,
        stands_for: None,
        flags: &RENAMED,
    })
}

/// Defaults as lines `name: value`, with the places of both.
fn lines(text: String) -> Vec<(Location, Location)> {
    let source = Arc::new(SourceText {
        read_from: ValueSource::Defaults,
        name: COMMAND.to_owned(),
        text,
        words: Vec::new(),
    });
    let mut start = 0;
    let mut out = Vec::new();
    for line in source.text.split_inclusive('\n') {
        if let Some((key, value)) = line.trim_end().split_once(": ") {
            let location = |bytes| Location { source: source.clone(), bytes };
            let value_at = start + key.len() + 2;
            out.push((location(start..start + key.len()), location(value_at..value_at + value.len())));
        }
        start += line.len();
    }
    out
}

fn entry(key: &str, location: Location, value: &str, at: Location) -> Entry {
    Entry { key: key.to_owned(), location, value: Node::scalar(value, at) }
}

/// The settings that MiniMind's script writes into itself.
fn fixed(era: Era) -> Layer {
    let own = if era == Era::Minimind2 { MINIMIND2_FIXED } else { MINIMIND3_FIXED };
    let lines = lines(format!("{own}{BOTH_FIXED}"));
    let entries =
        lines.into_iter().map(|(key, value)| entry(key.text(), key.clone(), value.text(), value.clone()));
    Layer { authority: Authority::Replaces, entries: entries.collect() }
}

/// The default of every flag, as a text in which each has its place.
fn defaults(era: Era) -> Vec<(Location, Location)> {
    let default = |key: &Row| match NEWEST.iter().find(|(name, _)| *name == key.name) {
        Some((_, newest)) if era == Era::Minimind3 => format!("{}: {newest}\n", key.name),
        _ => format!("{}: {}\n", key.name, key.default),
    };
    lines(FLAGS.keys.iter().map(default).collect())
}

/// Turns flags into settings.
struct Reader<'p> {
    parsed: &'p Parsed,
    era: Era,
    defaults: Vec<(Location, Location)>,
    entries: Vec<Entry>,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn is_written(&self, flag: impl Into<&'static Row>) -> bool {
        self.parsed.settings.setting(flag).is_written()
    }

    /// The value of a flag, and where it stands: on the command line, or among the defaults.
    fn value(&self, flag: impl Into<&'static Row>) -> Option<(String, Location)> {
        let setting = self.parsed.settings.setting(flag);
        match setting.location().filter(|_| setting.is_written()) {
            Some(location) => Some((setting.value.to_string(), location.clone())),
            None => {
                let (_, value) = self.defaults.iter().find(|(key, _)| key.text() == setting.key.name)?;
                Some((value.text().to_owned(), value.clone())).filter(|(value, _)| !value.is_empty())
            }
        }
    }

    fn count(&self, flag: impl Into<&'static Row>) -> u64 {
        self.value(flag).and_then(|(text, _)| value::float(&text)).map_or(1, |x| x as u64)
    }

    /// Adds a setting that says what a flag says in another way.
    fn put(&mut self, key: &str, value: &str, location: Location) {
        self.entries.push(entry(key, location.clone(), value, location));
    }

    /// The flags of the model belong to one of the scripts.
    fn is_of_era(&self, flag: &Row) -> bool {
        let of_other: &[&Row] = match self.era {
            Era::Minimind2 => &Era::MINIMIND3,
            Era::Minimind3 => &Era::MINIMIND2,
        };
        !of_other.iter().any(|other| other.name == flag.name)
    }

    /// What MiniMind has and this program has not.
    fn refuse(&mut self, problems: &mut Problems) {
        let settings = &self.parsed.settings;
        if matches!(settings.get(flags::USE_MOE), "1" | "true" | "True") {
            let problem = settings
                .problem("mixtures of experts (`--use_moe`) are not supported", &[flags::USE_MOE.row]);
            problems.push(problem.help("remove it to train the dense model"));
        }
        if self.is_written(flags::USE_MOE) && settings.get(flags::USE_MOE).eq_ignore_ascii_case("false") {
            let note = "`--use_moe False` is read as false; MiniMind2's script takes every word for true";
            self.notes.push(note.to_owned());
        }
        if settings.said(flags::FROM_WEIGHT).is_some() && settings.get(flags::FROM_WEIGHT) != "none" {
            let problem = settings.problem(
                "weights of MiniMind's .pth files (`--from_weight`) are not read",
                &[flags::FROM_WEIGHT.row],
            );
            problems.push(problem.help(
                "convert them with MiniMind's scripts/convert_model.py, then `oarlock train model_name_or_path=FOLDER …`",
            ));
        }
        let device = settings.get(flags::DEVICE).unwrap_or_default();
        if settings.said(flags::DEVICE).is_some() && !["cpu", "cuda", "cuda:0"].contains(&device) {
            let problem = settings.problem(format!("ranks do not run on `{device}`"), &[flags::DEVICE.row]);
            problems.push(problem.help(
                "write --device cuda or --device cpu; CUDA_VISIBLE_DEVICES=N selects another GPU than the first",
            ));
        }
        if self.is_written(flags::OUT_DIR) && self.is_written(flags::SAVE_DIR) {
            let message = "`--out_dir` and `--save_dir` are one setting of two scripts";
            problems.push(
                settings
                    .problem(message, &[flags::OUT_DIR.row, flags::SAVE_DIR.row])
                    .help("keep one of them"),
            );
        }
    }

    fn rename(&mut self) {
        for (flag, key) in RENAMED {
            if let Some((value, location)) = self.value(flag).filter(|_| self.is_of_era(flag)) {
                self.put(key, &value, location);
            }
        }
        if let Some((value, location)) = self.value(flags::DEVICE) {
            let device = value.split(':').next().unwrap_or_default().to_owned();
            self.put("device", &device, location);
        }
        if let Some((_, location)) = self.value(flags::USE_WANDB).filter(|(value, _)| value == "true") {
            self.put("report_to", "wandb", location);
        }
    }

    fn intervals(&mut self) {
        let accumulation = self.count(flags::ACCUMULATION_STEPS).max(1);
        let mut rounded = Vec::new();
        for (flag, key) in INTERVALS {
            let Some((value, location)) = self.value(flag) else { continue };
            let steps = ((self.count(flag) as f64 / accumulation as f64).round() as u64).max(1);
            self.put(key, &steps.to_string(), location);
            if flag.name != flags::PROFILE_INTERVAL.name() || self.parsed.settings.get(flags::PROFILE) {
                rounded.push(format!("--{flag} {value} is every {steps}"));
            }
        }
        if accumulation > 1 {
            self.notes.push(format!(
                "MiniMind's intervals count micro-steps, {accumulation} of which make an optimizer step: {}",
                rounded.join(", ")
            ));
        }
    }

    fn precision(&mut self, environment: &dyn Fn(&str) -> Option<String>, problems: &mut Problems) {
        const VARIABLE: &str = "ACCELERATE_MIXED_PRECISION";
        let Some((mut dtype, mut location)) = self.value(flags::DTYPE) else { return };
        if let Some(precision) = environment(VARIABLE).filter(|value| !value.is_empty()) {
            let text = format!("{VARIABLE}={precision}");
            let bytes = VARIABLE.len() + 1..text.len();
            let source = SourceText {
                read_from: ValueSource::Environment,
                name: "environment".to_owned(),
                text,
                words: Vec::new(),
            };
            location = Location { source: Arc::new(source), bytes };
            let decided = match precision.as_str() {
                "bf16" => "bfloat16",
                "fp16" => "float16",
                "no" => "float32",
                _ => {
                    let problem = Problem::new(format!("{VARIABLE} is `{precision}`")).at(&location, "");
                    problems.push(problem.help("--mixed_precision is no, fp16 or bf16 here"));
                    return;
                }
            };
            if decided != dtype {
                self.notes.push(format!(
                    "accelerate's --mixed_precision {precision} decides over --dtype {dtype}, as it does in the original"
                ));
            }
            dtype = decided.to_owned();
        }
        for (key, name) in [("bf16", "bfloat16"), ("fp16", "float16")] {
            self.put(key, if dtype == name { "true" } else { "false" }, location.clone());
        }
    }

    /// MiniMind's file `{folder}/{name}_{width}.pth` is a folder here. Without `--from_resume 1` its training begins
    /// anew and replaces what an earlier one left, and nothing of somebody else.
    fn output(&mut self) {
        let written = |flag: &&'static Row| self.is_written(*flag);
        let by_era = if self.era == Era::Minimind2 { flags::OUT_DIR.row } else { flags::SAVE_DIR.row };
        let name = [flags::OUT_DIR.row, flags::SAVE_DIR.row].into_iter().find(written).unwrap_or(by_era);
        let width = if self.era == Era::Minimind2 { flags::DIM.row } else { flags::HIDDEN_SIZE.row };
        if let (Some((dir, location)), Some((weight, _)), Some((width, _))) =
            (self.value(name), self.value(flags::SAVE_WEIGHT), self.value(width))
        {
            let folder = Path::new(&dir).join(format!("{weight}_{width}"));
            self.put("output_dir", &folder.display().to_string(), location);
        }
        if let Some((value, location)) = self.value(flags::FROM_RESUME).filter(|(value, _)| value == "0") {
            self.put("resume_from_checkpoint", &value, location.clone());
            self.put("begin_anew", "true", location);
        }
        if let Some((value, location)) = self.value(flags::RESUME_ANYWAY).filter(|(value, _)| value == "true")
        {
            self.put("resume_anyway", &value, location);
        }
    }

    fn tokenizer(&mut self, problems: &mut Problems) {
        if let Some((path, location)) = self.value(flags::TOKENIZER_PATH) {
            return self.put("tokenizer_path", &path, location);
        }
        let holds = |dir: &&str| Path::new(dir).join("tokenizer.json").is_file();
        match TOKENIZERS.into_iter().find(holds) {
            Some(dir) => {
                let location = lines(format!("tokenizer_path: {dir}\n")).remove(0).1;
                self.put("tokenizer_path", dir, location);
            }
            None => problems.push(
                Problem::new(format!("no tokenizer.json in {}", TOKENIZERS.join(", "))).help(
                    "write --tokenizer_path FOLDER, or run it in MiniMind's folder; `oarlock tokenizer train` makes one",
                ),
            ),
        }
    }

    /// One note for what was written and changes nothing.
    fn without_effect(&mut self) {
        let mut idle: Vec<String> = Vec::new();
        for setting in self.parsed.settings.iter().filter(|setting| setting.is_written()) {
            let off = matches!(setting.value, Value::Bool(false));
            if let (Status::NoEffect(reason), false) = (setting.key.status, off) {
                idle.push(format!("--{} ({reason})", setting.key.name));
            }
        }
        if !idle.is_empty() {
            self.notes.push(format!("accepted without effect: {}", idle.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests;
