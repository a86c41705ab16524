//! `oarlock serve_openai_api`: MiniMind's server with the flags of its script, as `oarlock serve`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use oarlock_lm::gguf::has_file;

use crate::config::flags::{Abbreviations, Flags, Parsed};
use crate::config::keys::Status::{NoEffect, Used};
use crate::config::keys::ValueType::{Bool, Choice, Int, Path as File, Text};
use crate::config::keys::{Row, Status};
use crate::config::{Problem, Problems, Words};
use crate::console::{Outcome, print};
use crate::front::ours;
use crate::front::variable::env_var;

const IN_FOLDER: Status = NoEffect("the folder of the model says it");

oarlock_config::key_table! {
    /// The flags.
    pub const KEYS = [
        LOAD_FROM: String = Row::flag(Text, "load_from", "../model", Used, "The model's folder; one with `model` in its name stands for {save_dir}/{weight}_{hidden_size}"),
        SAVE_DIR: String = Row::flag(File, "save_dir", "out", Used, "The folder of trained models, seen from the folder above"),
        WEIGHT: String = Row::flag(Text, "weight", "full_sft", Used, "The first part of the model's name"),
        LORA_WEIGHT: String = Row::flag(Text, "lora_weight", "None", Used, "An adapter {save_dir}/lora/{lora_weight}_{hidden_size}"),
        HIDDEN_SIZE: usize = Row::flag(Int(1), "hidden_size", "768", Used, "The second part of the model's name"),
        NUM_HIDDEN_LAYERS: usize = Row::flag(Int(1), "num_hidden_layers", "8", IN_FOLDER, "Its layers"),
        MAX_SEQ_LEN: usize = Row::flag(Int(1), "max_seq_len", "8192", IN_FOLDER, "Its longest sequence"),
        USE_MOE: String = Row::flag(Choice(&["0", "1"]), "use_moe", "0", IN_FOLDER, "Whether it is a mixture of experts"),
        INFERENCE_ROPE_SCALING: bool = Row::flag(Bool, "inference_rope_scaling", "false", Used, "Texts that are longer than those of the training, by YaRN"),
        DEVICE: Option<String> = Row::flag(Text, "device", "", Used, "cuda or cpu [a GPU where there is one]"),
    ];
}

/// The flags.
pub const FLAGS: Flags = Flags {
    command: "serve_openai_api",
    bare_switches: true,
    operands: "",
    example: "oarlock serve_openai_api --load_from ../minimind-3",
    about: "Serves a MiniMind at port 8998. API_HOST names another address than that of this machine alone, API_PORT another \
            port, API_KEY a key that requests have to show.",
    keys: KEYS,
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

/// What MiniMind's server means where a request does not say.
const DEFAULTS: [&str; 12] = [
    "--name",
    "minimind",
    "--any-name",
    "true",
    "--streams",
    "true",
    "--temperature",
    "0.7",
    "--top-p",
    "0.92",
    "--max-tokens",
    "8192",
];

/// Runs `oarlock serve_openai_api`.
pub(crate) fn run(words: &[String], _: SystemTime) -> Outcome {
    let mut problems = Problems::default();
    let parsed = FLAGS.parse(&Words::new(words), &mut problems);
    if parsed.help {
        return print(&FLAGS.help());
    }
    let (words, idle) = meant(&parsed, problems, &env_var)?;
    ours::run(&words, &idle)
}

/// The words of our command that mean the same, and the flags that change nothing.
fn meant(
    parsed: &Parsed,
    mut problems: Problems,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(Vec<String>, Vec<&'static str>), Problems> {
    let read = &parsed.settings;
    if let Some(word) = parsed.rest.get(0) {
        let message = format!("`serve_openai_api` takes flags only, not `{word}`");
        problems.push(Problem::new(message).at(&parsed.rest.location(0), ""));
    }
    let above = Path::new("..").join(read.get(SAVE_DIR));
    let named = |folder: PathBuf, name: &str| folder.join(format!("{name}_{}", read.get(HIDDEN_SIZE)));
    let written = read.get(LOAD_FROM);
    // MiniMind looks at the word in the same way. A folder with a model in it is meant as it stands here.
    let model = match written.contains("model") && !has_file(Path::new(written), "config.json") {
        true => named(above.clone(), read.get(WEIGHT)),
        false => PathBuf::from(written),
    };
    if Path::new(written) != model && !has_file(&model, "config.json") {
        let message = format!("there is no model in `{}`", model.display());
        let help = "train one, or write --load_from FOLDER; MiniMind's own files .pth are converted by its \
                    scripts/convert_model.py";
        problems.push(read.problem(message, &[LOAD_FROM.row, SAVE_DIR.row, WEIGHT.row]).help(help));
    }
    let mut words = vec!["serve".to_owned(), model.display().to_string()];
    let mut say = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    say("--port", variable("API_PORT").unwrap_or_else(|| "8998".to_owned()));
    if let Some(host) = variable("API_HOST") {
        say("--host", host);
    }
    if let Some(name) = Some(read.get(LORA_WEIGHT)).filter(|name| *name != "None") {
        say("--merge", named(above.join("lora"), name).display().to_string());
    }
    if read.get(INFERENCE_ROPE_SCALING) {
        say("--rope-scaling", "yarn".to_owned());
    }
    if let Some(device) = read.get(DEVICE) {
        // A GPU of torch has a number as well.
        say("--device", device.split(':').next().unwrap_or(device).to_owned());
    }
    words.extend(DEFAULTS.map(str::to_owned));
    let is_idle = |key: &&'static Row| matches!(key.status, NoEffect(_)) && read.setting(*key).is_written();
    let idle = KEYS.iter().filter(is_idle).map(|key| key.name).collect();
    problems.into_result(|| (words, idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut problems = Problems::default();
        let parsed = FLAGS.parse(&Words::new(&words), &mut problems);
        let look_up =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let meant = meant(&parsed, problems, &look_up).map_err(|problems| problems.to_string());
        meant.map(|(words, idle)| format!("{} ({})", words.join(" "), idle.join(" ")))
    }

    #[test]
    fn the_flags_of_the_script_are_words_of_serve() {
        let defaults = DEFAULTS.join(" ");
        assert_eq!(
            words("--load_from ../minimind-3 --max_seq_len 512", &[]).unwrap(),
            format!("serve ../minimind-3 --port 8998 {defaults} (max_seq_len)")
        );
        let variables = [("API_HOST", "0.0.0.0"), ("API_PORT", "9000")];
        let line = "--load_from here --lora_weight lora_medical --hidden_size 512 --device cuda:0 \
                    --inference_rope_scaling";
        assert_eq!(
            words(line, &variables).unwrap(),
            format!(
                "serve here --port 9000 --host 0.0.0.0 --merge ../out/lora/lora_medical_512 --rope-scaling yarn \
                 --device cuda {defaults} ()"
            )
        );
    }

    #[test]
    fn a_model_that_is_not_there_is_told() {
        let error = words("--weight reason", &[]).unwrap_err();
        assert!(error.contains("there is no model in `../out/reason_768`"), "{error}");
        assert!(words("serve.py", &[]).unwrap_err().contains("takes flags only"));
    }
}
