//! What a launcher starts: a program, a Python script, or Oarlock runs under the name of a script of the
//! originals.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::variable::env_var;
use crate::config::keys::Row;
use crate::config::resolve::Settings;
use crate::config::written::{self, Entry, Layer};
use crate::config::yaml::Data;
use crate::config::{Arguments, Problem, Problems, Words};
use crate::config::{defaults, objective};
use crate::front::minimind::translation;
use crate::front::training::Training;

/// What is to be started.
#[derive(Clone, Debug)]
pub enum Script {
    /// An Oarlock run.
    Training(Training),
    /// A program with its arguments.
    Command(Vec<String>),
}

/// How a program is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// It is a Python module (`-m`).
    pub module: bool,
    /// It is a program of its own (`--no_python`).
    pub no_python: bool,
}

impl Call {
    /// Checks that the flags that say both, which are mutually exclusive, are not both written.
    pub fn checked(self, settings: &Settings, keys: [&'static Row; 2], problems: &mut Problems) -> Call {
        if self.module && self.no_python {
            let message = "`--module` and `--no_python` are mutually exclusive";
            let problem = settings.problem(message, &keys);
            problems.push(problem.help("a module is run by Python; keep one of them"));
        }
        self
    }
}

/// The names of LLaMA-Factory's training script.
const LLAMA_FACTORY: [&str; 3] = ["src/train.py", "train.py", "src/llamafactory/launcher.py"];

/// The program that words name, the first of which is the program. A file is run; where there is none, a name of an
/// original's training script stands for an Oarlock run.
///
/// # Errors
/// If there is no program, or the run's words are wrong.
pub fn resolve(words: &Words, call: Call, command: &str) -> Result<Script, Problems> {
    let Some(name) = words.get(0) else {
        let problem = Problem::new("missing argument: script");
        return Err(problem.help(format!("write `{command} [flags] SCRIPT [arguments]`")).into());
    };
    if !call.module && !Path::new(name).is_file() {
        if let Some(training) = built_in(name, &words.from(1)) {
            // Any program may have a script of this name.
            let stands_for = (name.trim_start_matches("./") == "train.py").then(|| words.location(0));
            return match training {
                Ok(training) => Ok(Script::Training(Training { stands_for, ..training })),
                Err(problems) => Err(Training::explain(stands_for.as_ref(), problems)),
            };
        }
        if !call.no_python {
            let problem = match Path::new(name).is_dir() {
                true => Problem::new(format!("`{name}` is a folder, not a script")),
                false => Problem::new(format!("there is no file `{name}`")),
            };
            let problem = problem.at(&words.location(0), "");
            let help = "name a script that exists; src/train.py (LLaMA-Factory) and train_pretrain.py (MiniMind) are built in";
            let help = translation::counterpart(name).unwrap_or_else(|| help.to_owned());
            return Err(problem.help(help).into());
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

/// What to say where Python runs a script whose training run is built in.
pub fn note(argv: &[String]) -> Option<String> {
    let script = argv.iter().find(|word| word.ends_with(".py"))?;
    let instead = if LLAMA_FACTORY[..1].contains(&script.trim_start_matches("./")) {
        "the same command in a folder without it, as `llamafactory-cli train` with its arguments,".to_owned()
    } else {
        let file = Path::new(script).file_name()?.to_str()?;
        let name = file.strip_suffix(".py").filter(|_| translation::SCRIPTS.contains(&file))?;
        format!("`{name}` without .py")
    };
    Some(format!("`{script}` is a file here, and Python runs it; {instead} trains with this program"))
}

/// Whether a file is one that the processor runs, which Python can only choke on.
fn is_executable(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = oarlock_comm::open_file(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// The run that a script's name stands for.
fn built_in(name: &str, words: &Words) -> Option<Result<Training, Problems>> {
    if LLAMA_FACTORY.contains(&name.trim_start_matches("./")) {
        return Some(written::arguments(words).and_then(|arguments| llama_factory(&arguments)));
    }
    let file = Path::new(name).file_name()?.to_str()?;
    translation::SCRIPTS.contains(&file).then(|| translation::training(words, &env_var))
}

/// LLaMA-Factory's training: what arguments describe, and its defaults for what they do not write.
///
/// # Errors
/// As [`training`].
pub fn llama_factory(arguments: &Arguments) -> Result<Training, Problems> {
    let mut training = training(arguments)?;
    let stages = training.layers.iter().flat_map(|layer| &layer.entries).filter(|entry| entry.key == "stage");
    for stage in stages {
        if let Data::Scalar { text, .. } = &stage.value.data
            && objective::named(text).is_ours
        {
            return Err(Problem::new(format!("LLaMA-Factory has no `stage: {text}`"))
                .at(&stage.value.location, "")
                .help("run it with `oarlock train`")
                .into());
        }
    }
    let (defaults, notes) = defaults::of_llama_factory(&training.layers);
    training.layers.insert(0, defaults);
    training.notes.extend(notes);
    Ok(training)
}

/// The run that arguments describe.
///
/// # Errors
/// If the file cannot be read, or DeepSpeed is chosen without its configuration.
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
        own_precision_decides: true,
        stands_for: None,
        flags: &[],
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
    let is_there = |name: &&str| program_in_path(name).is_some();
    let found = || ["python3", "python"].into_iter().find(is_there).unwrap_or("python3").to_owned();
    std::env::var("PYTHON_EXEC").unwrap_or_else(|_| found())
}

/// Where a shell finds a program.
pub fn program_in_path(program: &str) -> Option<PathBuf> {
    let can_run =
        |path: &PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join(program)).find(can_run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trains_in_place_of_a_script_is_a_command_that_works() {
        let error = |script: &str| note(&["python".to_owned(), script.to_owned()]).unwrap_or_default();
        assert_eq!(
            error("src/train.py"),
            "`src/train.py` is a file here, and Python runs it; the same command in a folder without it, as \
             `llamafactory-cli train` with its arguments, trains with this program"
        );
        assert!(error("train_pretrain.py").contains("`train_pretrain` without .py"));
        assert_eq!(error("mine.py"), "");
    }
}
