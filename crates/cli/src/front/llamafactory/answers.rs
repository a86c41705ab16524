//! What `llamafactory-cli` answers besides training.

use oarlock_comm::{MachineMemory, available_cores};
use oarlock_config::settings::keys::{Group, Status};
use oarlock_engine::report::terminal::readable;
use oarlock_lm::gguf::has_file;
use oarlock_tensor::cpu::Isa;

use crate::config::hub::OnHub;
use crate::config::written::{self, Entry};
use crate::config::yaml::Data;
use crate::config::{Problem, Problems, Words, table};
use crate::console::Outcome;
use crate::error;
use crate::front::variable::env_var;
use crate::front::{gpus, ours};
use crate::launch::devices::Devices;

/// A command of LLaMA-Factory that one of ours stands for.
pub(super) struct Answered {
    /// Ours.
    command: &'static str,
    /// Its keys beside [`READING`], and what our command calls them.
    flags: &'static [(&'static str, &'static str)],
    /// Keys that say nothing to our command: the values that change nothing, or none for all.
    idle: &'static [Idle],
    /// What LLaMA-Factory means where nothing is written and our command something else: flags with their values.
    defaults: &'static [(&'static str, &'static str)],
    /// Keys that must be there.
    needed: &'static [&'static str],
    /// Variables of the environment, and what our command calls them; nothing for those that change nothing.
    variables: &'static [(&'static str, Option<&'static str>)],
}

pub(super) const CHAT: Answered = Answered {
    command: "chat",
    flags: &[
        ("model_name_or_path", "--model"),
        ("adapter_name_or_path", "--adapter"),
        ("default_system", "--system"),
        ("enable_thinking", "--enable-thinking"),
        ("max_new_tokens", "--max-new-tokens"),
        ("temperature", "--temperature"),
        ("top_p", "--top-p"),
        ("top_k", "--top-k"),
        ("repetition_penalty", "--repetition-penalty"),
        ("seed", "--seed"),
    ],
    idle: &[BACKEND, METHOD, QUANTIZATION, STAGE, BEAMS, THOUGHTS, SPECIAL],
    defaults: &[
        ("--temperature", "0.95"),
        ("--top-p", "0.7"),
        ("--top-k", "50"),
        ("--max-new-tokens", "1024"),
    ],
    needed: &["model_name_or_path"],
    variables: &[],
};

pub(super) const API: Answered = Answered {
    command: "serve",
    flags: &[
        ("model_name_or_path", "--model"),
        ("adapter_name_or_path", "--merge"),
        ("enable_thinking", "--enable-thinking"),
        ("max_new_tokens", "--max-tokens"),
        ("temperature", "--temperature"),
        ("top_p", "--top-p"),
        ("top_k", "--top-k"),
        ("repetition_penalty", "--repetition-penalty"),
    ],
    // Each request has a seed of its own there, too.
    idle: &[BACKEND, METHOD, QUANTIZATION, STAGE, BEAMS, THOUGHTS, SPECIAL, ("seed", &[])],
    defaults: &[
        ("--temperature", "0.95"),
        ("--top-p", "0.7"),
        ("--top-k", "50"),
        ("--max-tokens", "1024"),
        ("--name", "gpt-3.5-turbo"),
        ("--any-name", "true"),
    ],
    needed: &["model_name_or_path"],
    variables: &[
        ("API_HOST", Some("--host")),
        ("API_PORT", Some("--port")),
        ("API_MODEL_NAME", Some("--name")),
        ("API_VERBOSE", None),
        ("FASTAPI_ROOT_PATH", None),
        ("MAX_CONCURRENT", None),
    ],
};

pub(super) const EVAL: Answered = Answered {
    command: "eval",
    flags: &[
        ("model_name_or_path", "--model"),
        ("adapter_name_or_path", "--adapter"),
        ("task", "--task"),
        ("task_dir", "--task-dir"),
        ("lang", "--lang"),
        ("n_shot", "--n-shot"),
        ("save_dir", "--save-dir"),
    ],
    // Questions are asked one after the other, behind shots in their order.
    idle: &[("batch_size", &[]), ("seed", &[]), ("download_mode", &[]), BACKEND, METHOD, QUANTIZATION, STAGE],
    defaults: &[],
    needed: &["model_name_or_path", "task"],
    variables: &[],
};

/// Keys of how a model is read, which all of our commands call alike, and the template of its prompts.
const READING: [(&str, &str); 6] = [
    ("quantization_bit", "--quantization-bit"),
    ("rope_scaling", "--rope-scaling"),
    ("quantization_type", "--quantization-type"),
    ("double_quantization", "--double-quantization"),
    DTYPE,
    ("template", "--template"),
];

type Idle = (&'static str, &'static [&'static str]);
const BACKEND: Idle = ("infer_backend", &["huggingface"]);
const METHOD: Idle = ("finetuning_type", &["full", "lora", "oft", "freeze"]);
const QUANTIZATION: Idle = ("quantization_method", &["bnb", "bitsandbytes"]);
const STAGE: Idle = ("stage", &["pt", "sft", "dpo", "kto"]);
const BEAMS: Idle = ("num_beams", &["1"]);
const THOUGHTS: Idle = ("preserve_thinking", &["false"]);
const SPECIAL: Idle = ("skip_special_tokens", &["true"]);

/// Keys that say how a model answers, none of which is passed over.
const OF_ANSWERS: [&str; 5] =
    ["adapter_folder", "tool_format", "default_system", "enable_thinking", "preserve_thinking"];

/// Whether a key is about how a model is trained, or changes nothing anywhere.
fn is_of_training(name: &str) -> bool {
    let Some(key) = table::find(name).filter(|_| !OF_ANSWERS.contains(&name)) else { return false };
    key.group != Group::Model || matches!(key.status, Status::NoEffect(_))
}

/// Ours takes other words: [`DTYPES`].
const DTYPE: (&str, &str) = ("infer_dtype", "--dtype");
/// The values of `infer_dtype` and what our commands call them; on a CPU f32 is what is chosen automatically.
const DTYPES: [(&str, &str); 3] = [("auto", "f32"), ("float32", "f32"), ("bfloat16", "bf16")];

/// Runs our command.
pub(super) fn answer(answered: &Answered, words: &Words) -> Outcome {
    let arguments = written::arguments(words)?;
    let layers = arguments.layers().map_err(Problems::from)?;
    let entries: Vec<Entry> = layers.into_iter().flat_map(|layer| layer.entries).collect();
    let (words, idle) = answered.words(&entries, &env_var)?;
    ours::run(&words, &idle)
}

impl Answered {
    /// The words of our command that mean the same, and the keys that change nothing; later entries count.
    fn words<'e>(
        &self,
        entries: &'e [Entry],
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Vec<String>, Vec<&'e str>), Problems> {
        let mut problems = Problems::default();
        let mut found: Vec<(&str, String)> = Vec::new();
        let (mut ignored, mut is_greedy) = (Vec::new(), false);
        // What is null says nothing.
        for entry in entries.iter().filter(|entry| !entry.value.is_null()) {
            let value = match &entry.value.data {
                Data::Scalar { text, .. } => text.clone(),
                _ => entry.value.describe(),
            };
            let idle = self.idle.iter().find(|(name, _)| *name == entry.key);
            let value = match (entry.key == DTYPE.0, DTYPES.iter().find(|(theirs, _)| *theirs == value)) {
                (true, Some((_, ours))) => (*ours).to_owned(),
                (true, None) => {
                    let message = format!("`{}: {value}` is not there in `{}`", entry.key, self.command);
                    let problem = Problem::new(message).at(&entry.location, "");
                    problems.push(problem.help("write auto, float32 or bfloat16"));
                    continue;
                }
                (false, _) => value,
            };
            if let Some((_, flag)) = self.flags.iter().chain(&READING).find(|(name, _)| *name == entry.key) {
                found.retain(|(other, _)| other != flag);
                found.push((flag, value));
            } else if entry.key == "do_sample"
                && self.flags.iter().chain(&READING).any(|(name, _)| *name == "temperature")
            {
                is_greedy = value == "false";
            } else if idle.is_some_and(|(_, values)| values.is_empty() || values.contains(&value.as_str()))
                || idle.is_none() && is_of_training(&entry.key)
            {
                ignored.push(entry.key.as_str());
            } else {
                let message = format!("`{}: {value}` is not there in `{}`", entry.key, self.command);
                problems.push(Problem::new(message).at(&entry.location, "").help("remove it"));
            }
        }
        for (name, flag) in self.variables {
            let Some(value) = variable(name).filter(|value| !value.is_empty()) else { continue };
            match flag {
                Some(flag) => found.push((flag, value)),
                None => ignored.push(name),
            }
        }
        if is_greedy {
            found.retain(|(flag, _)| *flag != "--temperature");
            found.push(("--temperature", "0".to_owned()));
        }
        for needed in self.needed {
            let flag =
                self.flags.iter().chain(&READING).find(|(name, _)| name == needed).map(|(_, flag)| *flag);
            if !found.iter().any(|(other, _)| Some(*other) == flag) {
                problems.push(
                    Problem::new(format!("`{needed}` is missing")).help(format!("write `{needed}: …`")),
                );
            }
        }
        if let Some((_, folder)) = found.iter().find(|(flag, _)| *flag == "--model")
            && !has_file(std::path::Path::new(folder), "config.json")
            && OnHub::of(folder).is_none()
        {
            let problem = Problem::new(format!("there is no model in `{folder}`"));
            problems
                .push(problem.help("name a folder with config.json, a GGUF file, or OWNER/NAME on a hub"));
        }
        let unwritten =
            self.defaults.iter().filter(|(flag, _)| !found.iter().any(|(other, _)| other == flag));
        let unwritten: Vec<(&str, String)> =
            unwritten.map(|(flag, value)| (*flag, (*value).to_owned())).collect();
        found.extend(unwritten);
        let words = found.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let words = std::iter::once(self.command.to_owned()).chain(words);
        problems.into_result(|| (words.collect(), ignored))
    }
}

/// What to say to a command that is not there.
pub(super) fn refusal(command: &str) -> String {
    let instead = match command {
        "webchat" | "webui" => {
            "`oarlock chat` talks to a model in the terminal, and `llamafactory-cli api` serves it"
        }
        _ => return format!("error: unknown command `{command}`; `llamafactory-cli help` lists them\n"),
    };
    format!("error: `llamafactory-cli {command}` is not there yet; {instead}\n")
}

/// The lines of `llamafactory-cli env`.
pub(super) fn environment(devices: &Devices) -> error::Result<String> {
    let kernels = Isa::detect().path();
    let memory = MachineMemory::current()?;
    let none = |what: &str| format!("none needed ({what})");
    let lines = [
        ("`llamafactory` version", format!("none; this is `oarlock` {}", env!("CARGO_PKG_VERSION"))),
        ("Platform", format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)),
        ("Python version", none("one binary")),
        ("PyTorch version", none(&format!("own kernels, {kernels}"))),
        ("Transformers version", none("own models")),
        ("Datasets version", none("own readers")),
        ("Accelerate version", none("`oarlock accelerate` answers for it")),
        ("PEFT version", none("own adapters, in its files")),
        ("DeepSpeed version", none("`oarlock deepspeed` answers for it")),
        ("CPU cores", available_cores().len().to_string()),
        ("System RAM", readable(memory.total)),
        ("GPU number", devices.gpus.to_string()),
    ];
    let lines = lines.map(|(key, value)| (key.to_owned(), value));
    let gpus = if devices.gpus > 0 { gpus::described() } else { Vec::new() };
    Ok(lines.into_iter().chain(gpus).map(|(key, value)| format!("- {key}: {value}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<String>, Problems> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let layers = written::arguments(&Words::new(&words)).unwrap().layers().unwrap();
        let entries: Vec<Entry> = layers.into_iter().flat_map(|layer| layer.entries).collect();
        CHAT.words(&entries, &|_| None).map(|(words, ignored)| {
            [words, ignored.into_iter().map(|key| format!("({key})")).collect()].concat()
        })
    }

    #[test]
    fn a_chat_is_translated_or_refused() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../oarlock/tests/golden/train-llama");
        let said = words(&format!(
            "model_name_or_path={model} template=llama3 infer_backend=huggingface temperature=0 temperature=0.5 \
             infer_dtype=bfloat16 top_k=0 max_new_tokens=9"
        ));
        let expected = format!(
            "chat --model {model} --template llama3 --temperature 0.5 --dtype bf16 --top-k 0 --max-new-tokens 9"
        );
        // What is not written is as in LLaMA-Factory.
        assert_eq!(said.unwrap().join(" "), format!("{expected} --top-p 0.7 (infer_backend)"));
        let refused = words("model_name_or_path=nowhere infer_dtype=float16 infer_backend=vllm").unwrap_err();
        assert_eq!(refused.len(), 3, "{refused}");
        let adapted =
            words(&format!("model_name_or_path={model} adapter_name_or_path=a,b finetuning_type=lora"));
        assert_eq!(adapted.unwrap()[..5], ["chat", "--model", model, "--adapter", "a,b"]);
        let quantized =
            words(&format!("model_name_or_path={model} quantization_bit=4 double_quantization=false"));
        let expected =
            ["chat", "--model", model, "--quantization-bit", "4", "--double-quantization", "false"];
        assert_eq!(quantized.unwrap()[..7], expected);
        assert!(
            words("template=llama3").unwrap_err().to_string().contains("`model_name_or_path` is missing")
        );
        // What LLaMA-Factory reads beside: keys of the run change nothing, null is not said.
        let said = words(&format!(
            "model_name_or_path={model} adapter_name_or_path=null do_sample=false temperature=0.5 enable_thinking=false \
             rope_scaling=yarn stage=sft lora_rank=8 cutoff_len=4096 flash_attn=fa2 num_beams=1 top_k=0 max_new_tokens=9"
        ));
        let expected = format!(
            "chat --model {model} --enable-thinking false --rope-scaling yarn --top-k 0 --max-new-tokens 9 --temperature 0 \
             --top-p 0.7 (stage) (lora_rank) (cutoff_len) (flash_attn) (num_beams)"
        );
        assert_eq!(said.unwrap().join(" "), expected);
        for refused in
            ["stage=rm", "num_beams=4", "adapter_folder=x", "resize_vocab=true", "skip_special_tokens=false"]
        {
            let said = words(&format!("model_name_or_path={model} {refused}")).unwrap_err().to_string();
            assert!(said.contains("is not there in `chat`"), "{said}");
        }
    }

    #[test]
    fn an_api_is_the_server_with_its_variables() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../oarlock/tests/golden/train-llama");
        let said =
            [format!("model_name_or_path={model}"), "adapter_name_or_path=a".into(), "top_p=0.9".into()];
        let layers = written::arguments(&Words::new(&said)).unwrap().layers().unwrap();
        let entries: Vec<Entry> = layers.into_iter().flat_map(|layer| layer.entries).collect();
        let variable = |name: &str| match name {
            "API_PORT" => Some("8001".to_owned()),
            "API_VERBOSE" => Some("1".to_owned()),
            _ => None,
        };
        let (words, ignored) = API.words(&entries, &variable).unwrap();
        let expected = format!(
            "serve --model {model} --merge a --top-p 0.9 --port 8001 --temperature 0.95 --top-k 50 --max-tokens 1024 \
             --name gpt-3.5-turbo --any-name true"
        );
        assert_eq!((words.join(" "), ignored), (expected, vec!["API_VERBOSE"]));
    }

    #[test]
    fn what_is_not_there_is_said_plainly() {
        for command in ["webchat", "webui"] {
            let said = refusal(command);
            assert!(said.contains(&format!("`llamafactory-cli {command}` is not there yet; ")), "{said}");
        }
        assert!(refusal("trane").contains("unknown command `trane`"));
    }

    #[test]
    fn the_environment_has_the_lines_of_the_original() {
        let said = environment(&Devices { gpus: 0, cores: 2 }).unwrap();
        for key in [
            "`llamafactory` version",
            "Platform",
            "Python version",
            "PyTorch version",
            "Transformers version",
            "Datasets version",
            "Accelerate version",
            "PEFT version",
            "GPU number",
        ] {
            assert!(said.lines().any(|line| line.starts_with(&format!("- {key}: "))), "{key}: {said}");
        }
    }
}
