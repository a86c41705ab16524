//! `llamafactory-cli`: training runs as LLaMA-Factory starts them, alone or as ranks of one or more machines by the
//! variables of its launcher; `oarlock train` is the same. What else the command does is answered plainly.

mod answers;
mod export;

use crate::config::table as keys;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use super::follows::Follows;
use super::variable::env_var;
use crate::config::environment;
use crate::config::language::Language;
use crate::config::value::boolean;
use crate::config::written::{self, Authority, Layer};
use crate::config::yaml::Node;
use crate::config::{Problem, Problems, ResolvedConfig, Words, explain};
use crate::console::{Failure, Outcome, eprint, print};
use crate::front::job::Job;
use crate::front::recipes;
use crate::front::script;
use crate::front::training::Training;
use crate::launch::Launch;
use crate::launch::devices::Devices;
use crate::launch::spec::{Master, Nodes};

pub(crate) use export::export;

/// What each subcommand does, for the help.
const USAGE: &str = "\
Usage: llamafactory-cli COMMAND …

  train FILE.yaml [key=value …]  train (the same as `oarlock train`)
  chat FILE.yaml                 talk to a model (`oarlock chat`)
  eval FILE.yaml                 ask it the questions of MMLU, C-Eval or CMMLU (`oarlock eval`)
  export FILE.yaml               merge adapters into a model and write it (`oarlock export`)
  env                            print the version and the machine
  version                        print the version
  help                           print this
  api FILE.yaml                  serve it to programs (`oarlock serve`); API_HOST, API_PORT, API_KEY, API_MODEL_NAME
  webchat, webui: not there yet

FORCE_TORCHRUN=1 starts a rank for every GPU, or else for every core. CUDA_VISIBLE_DEVICES chooses the GPUs; where
there is none, as many CPU ranks start as it names. NPROC_PER_NODE says how many ranks, NNODES, NODE_RANK, MASTER_ADDR
and MASTER_PORT on which machines, RDZV_ID, MIN_NNODES and MAX_NNODES how many machines may come. MAX_RESTARTS says how
often failed ranks are started again.
";

/// The subcommands that train or answer here, for completion.
const COMMANDS: [(&str, &str); 8] = [
    ("train", "Train, as `oarlock train` does"),
    ("chat", "Talk to a model"),
    ("eval", "Ask it the questions of MMLU, C-Eval or CMMLU"),
    ("export", "Merge adapters into a model and write it"),
    ("api", "Serve a model to programs"),
    ("env", "Print the version and the machine"),
    ("version", "Print the version"),
    ("help", "Print the commands"),
];

/// What may follow these words behind `llamafactory-cli`.
pub(super) fn follows(words: &[String]) -> Follows {
    match words.first().map(String::as_str) {
        None => Follows::Commands(COMMANDS.to_vec()),
        Some("train" | "chat" | "eval" | "export" | "api") => Follows::Training,
        Some(_) => Follows::Unknown,
    }
}

/// Runs `llamafactory-cli`.
pub(crate) fn run(words: &[String], started: SystemTime) -> Outcome {
    let (command, rest) = words.split_first().map_or(("help", words), |(first, rest)| (first.as_str(), rest));
    match command {
        "train" => train(rest, &Called::LLAMA_FACTORY, started),
        "chat" => answers::answer(&answers::CHAT, &Words::new(rest)),
        "eval" => answers::answer(&answers::EVAL, &Words::new(rest)),
        "export" => export(rest),
        "api" => answers::answer(&answers::API, &Words::new(rest)),
        "env" => print(&answers::environment(&Devices::visible())?),
        "version" => print(&format!("oarlock {}, for llamafactory-cli\n", env!("CARGO_PKG_VERSION"))),
        "help" | "--help" | "-h" => print(USAGE),
        _ => {
            eprint(&answers::refusal(command));
            Err(Failure::Reported(2))
        }
    }
}

/// A command that trains.
pub(crate) struct Called {
    /// The words by which it is called again, for the ranks.
    words: &'static [&'static str],
    /// How it is called, for the help.
    command: &'static str,
    /// What its arguments describe.
    training: fn(&written::Arguments) -> Result<Training, Problems>,
}

impl Called {
    /// LLaMA-Factory's own, under which its defaults hold.
    const LLAMA_FACTORY: Called = Called {
        words: &["llamafactory-cli", "train"],
        command: "llamafactory-cli train",
        training: script::llama_factory,
    };
    /// `oarlock train`.
    pub(crate) const OARLOCK: Called =
        Called { words: &["train"], command: "oarlock train", training: recipes::training };
}

/// Trains: a file, flags and `key=value`.
pub(crate) fn train(words: &[String], called: &Called, started: SystemTime) -> Outcome {
    let written = Words::new(words);
    // What follows `--help` are not arguments: they narrow the help.
    let help =
        |words: &Words| explain::help(called.command, words, Language::of(&env_var)).map_err(Problems::from);
    if let Some(at) = words.iter().position(|word| matches!(word.as_str(), "--help" | "-h")) {
        return print(&help(&written.from(at + 1))?);
    }
    if words.is_empty() {
        print(&help(&written)?)?;
        return Err(Failure::Reported(2));
    }
    let arguments = written::arguments(&written)?;
    let again = called.words.iter().map(|word| (*word).to_owned()).chain(words.iter().cloned()).collect();
    let devices = Devices::of_training();
    job((called.training)(&arguments)?, again, &devices, &env_var)?.run(started)
}

/// The job of a training run, and of what the environment says; `words` lead to it again.
fn job(
    mut training: Training,
    words: Vec<String>,
    devices: &Devices,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<Job, Problems> {
    let gpus = if environment::asks_for_cpu(&training.layers, read) { 0 } else { devices.gpus };
    let LauncherEnv { default_ranks, required_ranks, ranks, is_distributed, told } =
        LauncherEnv::read(read, &Devices { gpus, ..*devices })?;
    training.layers.splice(0..0, default_ranks);
    training.layers.extend(required_ranks);
    let mut job = Job::of_training(words, training, read, |config| ranks.launch(config))?;
    if is_distributed {
        job.notes.extend(notes(&job.launch));
    }
    job.notes.extend(told);
    Ok(job)
}

/// What the variables of LLaMA-Factory's launcher say.
struct LauncherEnv {
    /// The number of ranks where the configuration names none.
    default_ranks: Option<Layer>,
    /// The number of ranks with which the configuration must agree.
    required_ranks: Option<Layer>,
    /// Where the ranks are.
    ranks: Ranks,
    /// Whether LLaMA-Factory would start them by torchrun.
    is_distributed: bool,
    /// What to say of variables that are not followed, or otherwise than there.
    told: Vec<String>,
}

/// Where the ranks of a training run are.
struct Ranks {
    /// How many machines.
    machines: RangeInclusive<usize>,
    /// Which one this is.
    this: usize,
    /// How many ranks this one has, if that is said; else they are divided among the machines.
    here: Option<usize>,
    /// Where they meet.
    master: Master,
    /// The name of an elastic run.
    elastic: Option<String>,
    max_restarts: u32,
}

impl LauncherEnv {
    /// Reads the variables of LLaMA-Factory's launcher.
    fn read(read: &dyn Fn(&str) -> Option<String>, devices: &Devices) -> Result<LauncherEnv, Problems> {
        // A launcher has set all of them.
        let launched = environment::said_in("WORLD_SIZE", read).is_some();
        let mut variables = Variables {
            read: &|name| if launched { None } else { read(name) },
            problems: Problems::default(),
        };
        let machines = variables.number("NNODES", 1..=MOST);
        let per_machine = variables.number("NPROC_PER_NODE", 1..=MOST);
        // Before NODE_RANK it was RANK, which many guides still have.
        let this = variables.number("NODE_RANK", 0..=MOST).or_else(|| variables.number("RANK", 0..=MOST));
        let port = variables.number("MASTER_PORT", 1..=usize::from(u16::MAX));
        let max_restarts = variables.number("MAX_RESTARTS", 0..=MOST);
        let fewest = variables.number("MIN_NNODES", 1..=MOST);
        let most = variables.number("MAX_NNODES", 1..=MOST);
        let elastic = variables.text("RDZV_ID");
        let addr = variables.text("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".to_owned());
        // GPUs that are named and not there are stood for by as many CPU ranks.
        let named = match devices.gpus {
            0 => variables.text("CUDA_VISIBLE_DEVICES").map_or(0, |list| Devices::named(&list)),
            _ => 0,
        };
        let forced = variables.text("FORCE_TORCHRUN").is_some_and(|text| boolean(&text) == Some(true));

        let count = machines.unwrap_or(1);
        let range = match (&elastic, fewest, most) {
            (Some(_), Some(fewest), Some(most)) if fewest > most => {
                let message = format!("`MIN_NNODES` is {fewest}, more than `MAX_NNODES`, which is {most}");
                variables.problems.push(Problem::new(message).help("write the smaller number in MIN_NNODES"));
                most..=most
            }
            (Some(_), Some(fewest), Some(most)) => fewest..=most,
            _ => count..=count,
        };
        let this = this.unwrap_or(0);
        if elastic.is_none() && this >= count {
            let message = format!("`NODE_RANK` is {this}, and there are {count} machine(s)");
            let problem =
                Problem::new(message).help("machines are numbered from 0; NNODES says how many there are");
            variables.problems.push(problem);
        }
        let count = *range.start();
        let total = |name: &str, per_machine: usize| {
            let (name, total) = match count {
                1 => (name.to_owned(), per_machine),
                _ => (format!("{name} on {count} machines"), per_machine.saturating_mul(count)),
            };
            environment::said_by(&name, &total.to_string())
        };
        let layer = |authority, value: Node| {
            Some(Layer { authority, entries: vec![environment::number_of_ranks(value)] })
        };
        let stands_in = !launched && per_machine.is_none() && (named > 1 || named == 1 && forced);
        // Other machines may have other numbers of ranks.
        let [required, default] = match *range.end() {
            1 => [Authority::MustAgree, Authority::Replaces],
            _ => [Authority::Assumed; 2],
        };
        let (default_ranks, required_ranks) = match per_machine {
            Some(n) => (None, layer(required, total("NPROC_PER_NODE", n))),
            None if launched => (None, None),
            None if stands_in => (layer(default, total("CUDA_VISIBLE_DEVICES", named)), None),
            None if forced => (layer(default, total("FORCE_TORCHRUN", devices.count())), None),
            None if devices.gpus > 1 => (layer(default, total("the GPUs", devices.gpus)), None),
            None if count > 1 => (layer(default, total("one rank each", 1)), None),
            None => (None, None),
        };
        let stand_in = stands_in.then(|| {
            format!("CUDA_VISIBLE_DEVICES names {named} GPU(s), and none is used here: by default as many CPU ranks start")
        });
        let is_set = |name: &&str| variables.text(name).is_some_and(|text| boolean(&text) == Some(true));
        let engines = ENGINES.into_iter().filter(|(name, _)| is_set(name));
        let engines = engines.map(|(name, what)| format!("{name} is not followed: {what}"));
        let told = stand_in.into_iter().chain(engines).collect();
        let is_distributed = default_ranks.is_some() || required_ranks.is_some();
        let master = Master::at(&addr, port.map_or(29500, |port| port as u16));
        let max_restarts = u32::try_from(max_restarts.unwrap_or(0)).unwrap_or(u32::MAX);
        let ranks = Ranks { machines: range, this, here: per_machine, master, elastic, max_restarts };
        variables.problems.into_result(|| LauncherEnv {
            default_ranks,
            required_ranks,
            ranks,
            is_distributed,
            told,
        })
    }
}

/// Variables by which LLaMA-Factory trains with another engine, and what happens here.
const ENGINES: [(&str, &str); 4] = [
    ("USE_RAY", "ranks are started by this program, without Ray"),
    ("USE_V1", "files are read in LLaMA-Factory's older format"),
    ("USE_MCA", "Megatron is not there, and this program trains"),
    ("USE_KT", "KTransformers is not there, and this program trains"),
];

/// The most machines, ranks of a machine and restarts that make sense.
const MOST: usize = 1 << 20;

struct Variables<'r> {
    read: &'r dyn Fn(&str) -> Option<String>,
    problems: Problems,
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.read)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number(&mut self, name: &str, range: RangeInclusive<usize>) -> Option<usize> {
        let value = environment::said_in(name, self.read)?.value;
        let text = value.location.text().to_owned();
        let number = text.parse().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let message =
                format!("`{name}` takes a whole number, {} to {}, not `{text}`", range.start(), range.end());
            self.problems.push(Problem::new(message).at(&value.location, ""));
        }
        number
    }
}

impl Ranks {
    /// The launch, now that the number of all ranks is known.
    fn launch(self, config: &ResolvedConfig) -> Result<Launch, Problem> {
        let (total, machines) = (config.ranks.num_processes, *self.machines.start());
        let here = match self.here.filter(|_| *self.machines.end() > 1) {
            Some(here) => here,
            None if total % machines == 0 => total / machines,
            None => {
                let message = format!("{total} ranks cannot be divided among {machines} machines");
                let problem = config.problem(message, &[keys::NUM_PROCESSES.row]);
                return Err(problem
                    .help("write a multiple, or say with NPROC_PER_NODE how many ranks this machine has"));
            }
        };
        let mut launch = Launch::local(here);
        launch.restarts.max = self.max_restarts;
        launch.master = self.master;
        launch.nodes = match self.elastic {
            None => Nodes::Static { ranks: vec![here; machines], this: self.this },
            Some(run_id) => {
                launch.run_id = run_id;
                let endpoint = (launch.master.addr.clone(), launch.master.port);
                Nodes::Elastic { ranks: here, count: self.machines, endpoint }
            }
        };
        Ok(launch)
    }
}

/// The messages of LLaMA-Factory's launcher.
fn notes(launch: &Launch) -> Vec<String> {
    let Master { addr, port } = &launch.master;
    let mut notes =
        vec![format!("Initializing {} distributed tasks at: {addr}:{port}", launch.local_ranks())];
    match &launch.nodes {
        Nodes::Static { ranks, this } if ranks.len() > 1 => {
            notes.push(format!("Multi-node training enabled: num nodes: {}, node rank: {this}", ranks.len()));
        }
        Nodes::Elastic { count, .. } => notes.push(format!(
            "Elastic training enabled: {} to {} nodes meet as {}, up to {} restarts",
            count.start(),
            count.end(),
            launch.run_id,
            launch.restarts.max
        )),
        Nodes::Static { .. } => {}
    }
    notes
}

#[cfg(test)]
mod tests;
