//! What a launcher starts: a program, a Python script, or one of our trainings under the name of a script of the
//! originals.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::config::written::{self, Entry, Layer};
use crate::config::yaml::Data;
use crate::config::{Arguments, Problem, Problems, Words};
use crate::front::minimind;

/// What is to be started.
#[derive(Clone, Debug)]
pub enum Script {
    /// An Oarlock run.
    Training(Training),
    /// A program with its arguments.
    Command(Vec<String>),
}

/// An Oarlock run, as its arguments describe it.
#[derive(Clone, Debug)]
pub struct Training {
    /// What was written, in the order of its weight.
    pub layers: Vec<Layer>,
    /// What the user should know about how it was read.
    pub notes: Vec<String>,
    /// `--dry-run` among the words.
    pub dry_run: bool,
    /// `--print-config` among the words.
    pub print_config: bool,
}

/// How a program is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// It is a Python module (`-m`).
    pub module: bool,
    /// It is a program of its own (`--no_python`).
    pub no_python: bool,
}

/// The names of LLaMA-Factory's training script.
const LLAMA_FACTORY: [&str; 3] = ["src/train.py", "train.py", "src/llamafactory/launcher.py"];

/// The program that words name, the first of which is the program. A file is run; where there is none, a name of an
/// original's training script stands for our training.
///
/// # Errors
/// If there is no program, or the training's words are wrong.
pub fn resolve(words: &Words, call: Call, command: &str) -> Result<Script, Problems> {
    let Some(name) = words.get(0) else {
        let problem = Problem::new(format!("`{command}` is told no program to start"));
        return Err(problem.help(format!("write `{command} [flags] SCRIPT [arguments]`")).into());
    };
    if !call.module && !Path::new(name).is_file() {
        if let Some(training) = built_in(name, &words.from(1)) {
            return training.map(Script::Training);
        }
        if !call.no_python {
            let problem = match Path::new(name).is_dir() {
                true => Problem::new(format!("`{name}` is a folder, not a script")),
                false => Problem::new(format!("there is no file `{name}`")),
            };
            let problem = problem.at(&words.location(0), "");
            return Err(problem
                .help(
                    "name a script that exists; src/train.py (LLaMA-Factory) and train_pretrain.py (MiniMind) are \
                     built in",
                )
                .into());
        }
    }
    if call == Call::default() && is_executable(Path::new(name)) {
        let problem = Problem::new(format!("`{name}` is a program, not a Python script"));
        return Err(problem.at(&words.location(0), "").help("write --no_python before it").into());
    }
    let mut argv = match (call.no_python, call.module) {
        (true, _) => Vec::new(),
        (false, false) => vec![python(), "-u".to_owned()],
        (false, true) => vec![python(), "-u".to_owned(), "-m".to_owned()],
    };
    argv.extend(words.to_vec());
    Ok(Script::Command(argv))
}

/// Whether a file is one that the processor runs, which Python can only choke on.
fn is_executable(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// The training that a script's name stands for.
fn built_in(name: &str, words: &Words) -> Option<Result<Training, Problems>> {
    if LLAMA_FACTORY.contains(&name.trim_start_matches("./")) {
        return Some(llama_factory(words));
    }
    let file = Path::new(name).file_name()?.to_str()?;
    minimind::SCRIPTS.contains(&file).then(|| minimind::training(words, &|name| std::env::var(name).ok()))
}

/// LLaMA-Factory's training: a file, flags and `key=value`.
///
/// # Errors
/// If a word is neither, or the file cannot be read.
pub fn llama_factory(words: &Words) -> Result<Training, Problems> {
    training(&written::arguments(words)?)
}

/// The training that arguments describe.
///
/// # Errors
/// If the file cannot be read, or DeepSpeed is asked for without its configuration.
pub fn training(arguments: &Arguments) -> Result<Training, Problems> {
    let mut layers = arguments.layers()?;
    for layer in &mut layers {
        join_deepspeed_flags(layer)?;
    }
    Ok(Training {
        layers,
        notes: Vec::new(),
        dry_run: arguments.dry_run,
        print_config: arguments.print_config,
    })
}

/// Scripts of DeepSpeed take `--deepspeed --deepspeed_config FILE`; our key says both in one.
fn join_deepspeed_flags(layer: &mut Layer) -> Result<(), Problem> {
    let is_switch = |entry: &Entry| {
        entry.key == "deepspeed" && matches!(&entry.value.data, Data::Scalar { text, .. } if text == "true")
    };
    let has_file = layer.entries.iter().any(|entry| entry.key == "deepspeed_config");
    if let Some(switch) = layer.entries.iter().find(|entry| is_switch(entry))
        && !has_file
    {
        return Err(Problem::new("`--deepspeed` names no configuration")
            .at(&switch.location, "")
            .help("write `--deepspeed FILE.json`, or `--deepspeed --deepspeed_config FILE.json`"));
    }
    layer.entries.retain(|entry| !is_switch(entry));
    let named = layer.entries.iter_mut().filter(|entry| entry.key == "deepspeed_config");
    named.for_each(|entry| entry.key = "deepspeed".to_owned());
    Ok(())
}

/// The Python that runs scripts: the one that PYTHON_EXEC names, as in torchrun, else the first in PATH.
fn python() -> String {
    let there = |name: &&str| {
        std::env::var_os("PATH")
            .is_some_and(|paths| std::env::split_paths(&paths).any(|folder| folder.join(name).is_file()))
    };
    let found = || ["python3", "python"].iter().find(|name| there(name)).unwrap_or(&"python3").to_string();
    std::env::var("PYTHON_EXEC").unwrap_or_else(|_| found())
}
