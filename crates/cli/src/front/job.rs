//! Runs what a front end made of its words: shows it, starts the ranks, or is one of them.

use oarlock::{Accelerator, train};
use oarlock_comm::{Exit, available_cores, gloo_obstacle};
use oarlock_config::settings::secret::{HIDDEN, is_secret_name, shown_command};
use oarlock_engine::distributed::rank;

use crate::config::table as keys;
use std::time::SystemTime;

use super::variable::env_var;
use crate::config::environment::{number_of_ranks, said_by};
use crate::config::flags::Parsed;
use crate::config::render::visible;
use crate::config::written::{Authority, Layer};
use crate::config::{Origin, Problem, Problems, ResolvedConfig, TrainConfig, paths, texts, train_config_of};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::Error;
use crate::front::fetch;
use crate::front::script::{self, Script};
use crate::front::training::Training;
use crate::launch::spec::{Nodes, Output};
use crate::launch::{self, FINAL, Launch, STARTED, environment, exit_code};
use crate::plots;

/// What to start.
#[derive(Clone, Debug)]
pub struct Job {
    /// The words by which this program comes to the same job again, in a rank.
    pub words: Vec<String>,
    /// The processes.
    pub launch: Launch,
    /// What each of them runs.
    pub program: Program,
    /// What the user should know before it begins.
    pub notes: Vec<String>,
    /// Stop before anything is started.
    pub dry_run: bool,
    /// Show every value of the run, and stop.
    pub print_config: bool,
    /// A launcher of MPI starts the ranks, who so can be on several machines.
    pub through_mpi: bool,
    /// What was written about a training run, by which it is resolved again once machines have met and know all ranks.
    pub layers: Vec<Layer>,
}

/// What a rank runs.
#[derive(Clone, Debug)]
pub enum Program {
    /// An Oarlock run.
    Training(Box<ResolvedConfig>),
    /// A program with its arguments.
    Command(Vec<String>),
}

impl Job {
    /// The job that starts a script. `layers` are what the front end itself says about a training run; they weigh after
    /// the run's own words.
    ///
    /// # Errors
    /// Everything that is wrong with the run.
    pub fn new(
        words: Vec<String>,
        launch: Launch,
        script: Script,
        layers: Vec<Layer>,
        flags: &Parsed,
    ) -> Result<Job, Problems> {
        let mut job = match script {
            Script::Command(argv) => Job {
                words,
                launch,
                notes: script::note(&argv).into_iter().collect(),
                program: Program::Command(argv),
                dry_run: false,
                print_config: false,
                through_mpi: false,
                layers: Vec::new(),
            },
            Script::Training(mut training) => {
                training.layers.extend(layers);
                Job::of_training(words, training, &env_var, |_| Ok(launch))?
            }
        };
        job.dry_run |= flags.dry_run;
        job.print_config |= flags.print_config;
        Ok(job)
    }

    /// The job of a training run, whose configuration describes the launch. `environment` looks up a variable.
    ///
    /// # Errors
    /// Everything that is wrong with the run.
    pub fn of_training(
        words: Vec<String>,
        training: Training,
        environment: &dyn Fn(&str) -> Option<String>,
        launch: impl FnOnce(&ResolvedConfig) -> Result<Launch, Problem>,
    ) -> Result<Job, Problems> {
        let Training { layers, notes, dry_run, print_config, stands_for, flags, .. } = training;
        let explained = |problems| Training::explain(stands_for.as_ref(), problems);
        let mut config = train_config_of(layers.clone(), environment).map_err(explained)?;
        config.flags = flags;
        let launch = launch(&config)?;
        enough(&config, &launch)?;
        Ok(Job {
            words,
            launch,
            program: Program::Training(Box::new(config)),
            notes,
            dry_run,
            print_config,
            through_mpi: false,
            layers,
        })
    }

    /// Says what is known before anything is started, and whether it is to be started.
    ///
    /// # Errors
    /// What is missing to run it, unless it is only to be shown.
    pub(crate) fn examine(&self) -> Result<bool, Failure> {
        if !launch::is_rank() {
            self.notes.iter().for_each(|note| eprint(&format!("note: {note}\n")));
        }
        let shown = self.dry_run || self.print_config;
        if let Program::Training(config) = &self.program {
            // What is shown is shown as if all machines had as many ranks as this one.
            let alike = (shown && self.launch.machines() > 1 && config.known_ranks().is_none())
                .then(|| self.on(&self.launch.worker(0, 0).local_ranks).ok());
            let alike = alike.flatten();
            let config = alike.as_ref().unwrap_or(config);
            if shown {
                print(&config.table())?;
            }
            let mut missing = self.missing(config);
            let can_run = missing.is_empty();
            missing.append(paths::check(config).err().unwrap_or_default());
            if self.begins() {
                missing.append(paths::check_output(config)?);
            }
            // The launcher has seen to it for its ranks; what is not there would only be reported twice.
            if missing.is_empty() && !launch::is_our_rank() && !self.print_config {
                missing.append(paths::check_before_start(config));
            }
            if can_run || !shown {
                // What cannot be run here can still be shown.
                missing.into_result(|| ())?;
            } else {
                missing.iter().for_each(|one| eprint(&format!("missing to run it: {}\n", one.line())));
            }
        }
        Ok(!shown)
    }

    /// Whether this process is where the run begins, so that what lies in its output folder is not of itself: the
    /// launcher, or the ranks where another one starts them. Of machines that may come later, the ranks of the first
    /// round.
    fn begins(&self) -> bool {
        let is_elastic = matches!(self.launch.nodes, Nodes::Elastic { .. });
        match launch::is_our_rank() {
            true => is_elastic && !launch::is_later_round(),
            false if launch::is_rank() => {
                !env_var("TORCHELASTIC_RESTART_COUNT").is_some_and(|count| !count.is_empty() && count != "0")
            }
            false => !is_elastic,
        }
    }

    /// The same with what it names as on a hub in the cache, where that was not there.
    ///
    /// # Errors
    /// Everything else that is missing, before anything is fetched, and what the hub says.
    fn with_hub(&self) -> Result<Option<Job>, Failure> {
        let Program::Training(config) = &self.program else { return Ok(None) };
        // Our launcher has seen to it for its ranks.
        if self.dry_run || self.print_config || launch::is_our_rank() {
            return Ok(None);
        }
        let (models, data) = (config.models_on_hub(), config.data_on_hub());
        if models.is_empty() && data.is_empty() {
            return Ok(None);
        }
        let mut missing = self.missing(config);
        let to_come = |name: &str| {
            models.iter().any(|(model, _)| model.name() == name)
                || data.iter().any(|data| data.name() == name)
        };
        missing.append(paths::check_beside_hub(config, &to_come));
        missing.into_result(|| ())?;
        let mut problems = Problems::default();
        for (model, key) in &models {
            if let Err(error) = fetch::fetch(model) {
                let name = visible(model.name(), fetch::MOST_SHOWN);
                let message = format!("no model folder `{name}`, and none comes from a hub: {error}");
                let help = "name a folder, a GGUF file, or a model as OWNER/NAME";
                problems.push(config.problem(message, &[key]).help(help));
            }
        }
        for data in &data {
            if let Err(error) = fetch::fetch_data(data) {
                let name = visible(data.name(), fetch::MOST_SHOWN);
                let message = format!("no data set `{name}`, and none comes from a hub: {error}");
                let help = "name a file, a folder, a name in dataset_info.json, or a data set as OWNER/NAME";
                problems.push(config.problem(message, &[data.key()]).help(help));
            }
        }
        problems.into_result(|| ())?;
        let mut fetched = train_config_of(self.layers.clone(), &env_var)?;
        fetched.flags = config.flags;
        Ok(Some(Job { program: Program::Training(Box::new(fetched)), ..self.clone() }))
    }

    /// Runs it; `started` is when this process began.
    pub(crate) fn run(&self, started: SystemTime) -> Outcome {
        let Some(job) = self.with_hub()? else { return self.run_here(started) };
        // A table of data sets that has come may name some of a hub.
        match job.with_hub()? {
            Some(job) => job.run_here(started),
            None => job.run_here(started),
        }
    }

    fn run_here(&self, started: SystemTime) -> Outcome {
        let is_rank = launch::is_rank();
        let examined = self.examine();
        if self.dry_run && !is_rank {
            print(&self.outline())?;
        }
        if !examined? {
            return self.dry_run.then(|| self.forecast()).map_or(Ok(()), |line| print(&line));
        }
        match &self.program {
            Program::Training(config) if is_rank || self.is_alone() => {
                let stamp = std::env::var(STARTED).ok();
                let started = stamp.as_deref().map_or(started, |stamp| train::started(Some(stamp)));
                if !is_rank {
                    let config = config.clone();
                    launch::on_stop(move |signal| {
                        train::clear_lock(&config.save.output_dir);
                        train::end_trackers(&config, started, true, &stopped_by(signal));
                        let outcome = ended(launch::Outcome::Stopped(signal)).err();
                        std::process::exit(outcome.map_or(1, |failure| i32::from(failure.code())));
                    })?;
                }
                run_rank(config, started)
            }
            Program::Training(config) => {
                let this = std::env::current_exe().map_err(Error::io("find", "this program"))?;
                let program = std::iter::once(this.to_string_lossy().into_owned());
                let program: Vec<String> = program.chain(self.words.iter().cloned()).collect();
                let crowded = crowded(self.launch.local_ranks(), available_cores().len());
                if let Some(note) = crowded.filter(|_| !self.launch.quiet && !config.ranks.device.is_gpu()) {
                    eprint(&format!("note: {note}\n"));
                }
                let stopped_notice = self.launch.stopped_notice.min(config.ranks.timeout);
                let mut launch = Launch { same: same_on_all(config), stopped_notice, ..self.launch.clone() };
                let texts = texts::hand_down().map_err(Error::io("keep", "the configuration"))?;
                launch.env.push(texts.variable.clone());
                let outcome = launch::run(&launch, &program, Some(&|ranks| self.fits(ranks)), started)?;
                match &outcome {
                    launch::Outcome::Done => {}
                    launch::Outcome::Failed { message, .. } => {
                        train::end_trackers(config, started, false, message);
                    }
                    launch::Outcome::Stopped(signal) => {
                        train::clear_lock(&config.save.output_dir);
                        train::end_trackers(config, started, true, &stopped_by(*signal));
                    }
                }
                ended(outcome)
            }
            Program::Command(argv) => ended(launch::run(&self.launch, argv, None, started)?),
        }
    }

    /// Whether the run can be on machines with these ranks, now that they have met.
    fn fits(&self, ranks: &[usize]) -> Result<(), Problems> {
        self.on(ranks).map(drop)
    }

    /// The run on machines with these ranks.
    pub(in crate::front) fn on(&self, ranks: &[usize]) -> Result<ResolvedConfig, Problems> {
        let (n, machines) = (ranks.iter().sum::<usize>(), ranks.len());
        let each = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ");
        let value = said_by(&format!("{each} ranks on {machines} machines"), &n.to_string());
        let entries = vec![number_of_ranks(value)];
        let layer = Layer { authority: Authority::MustAgree, entries };
        let layers = self.layers.iter().cloned().chain([layer]).collect();
        train_config_of(layers, &env_var)
    }

    /// Whether the run is one process that needs no launcher.
    fn is_alone(&self) -> bool {
        let launch = &self.launch;
        launch.machines() == 1
            && launch.worker(0, 0).world_size() == 1
            && launch.restarts.max == 0
            && launch.output == Output::default()
            && !self.selects_a_gpu()
    }

    /// Whether the launch gives its ranks other GPUs than this process sees.
    fn selects_a_gpu(&self) -> bool {
        const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
        let Program::Training(config) = &self.program else { return false };
        let visible = self.launch.env.iter().find(|(name, _)| name == VISIBLE);
        visible.is_some_and(|(_, list)| env_var(VISIBLE).as_ref() != Some(list))
            && config.values.ranks.device.is_gpu()
    }
}

impl Job {
    /// What it takes to run a training run that is not there.
    pub(crate) fn missing(&self, config: &ResolvedConfig) -> Problems {
        let mut missing = config.missing();
        if self.launch.machines() > 1
            && !self.through_mpi
            && let Some(why) = gloo_obstacle()
        {
            let message = format!("an Oarlock run on {} machines needs Gloo or MPI", self.launch.machines());
            let help = format!(
                "{why}; or build with `--features mpi`, and start it with mpirun, srun or `deepspeed --launcher openmpi`; or \
                 start all ranks on one machine"
            );
            missing.push(config.problem(message, &[keys::NUM_PROCESSES.row]).help(help));
        }
        if let Some(message) = train::missing_class(config) {
            let problem = config.problem(message, &[keys::FSDP_CONFIG.row, keys::FSDP.row]);
            missing.push(problem.help("write one of these, or leave the classes out"));
        }
        missing
    }

    /// What a training run would take of memory, if it can be run here.
    fn forecast(&self) -> String {
        let line = match &self.program {
            Program::Training(config) if self.missing(config).is_empty() => train::forecast(config).ok(),
            _ => None,
        };
        line.map_or(String::new(), |line| line + "\n")
    }

    /// What would be started.
    fn outline(&self) -> String {
        let command = match &self.program {
            Program::Training(_) => format!("oarlock {}", shown_command(&self.words)),
            Program::Command(argv) if self.launch.local_rank_argument => {
                shown_command(&launch::with_local_rank(argv, "N"))
            }
            Program::Command(argv) => shown_command(argv),
        };
        format!("{}: {command}\n{}", would_start(&self.launch), ranks(&|_| self.launch.clone()))
    }
}

/// Refuses a number of all ranks that this machine and one rank on each of the others exceed.
fn enough(config: &ResolvedConfig, launch: &Launch) -> Result<(), Problem> {
    let (here, machines) = (launch.local_ranks(), launch.worker(0, 0).local_ranks.len());
    let all = config.known_ranks().filter(|all| machines > 1 && *all < here + machines - 1);
    all.map_or(Ok(()), |all| {
        let message = format!(
            "`num_processes` is {all}, but this machine has {here} of the ranks of {machines} machines"
        );
        let help = "`num_processes` counts the ranks of all machines; correct it, or remove it";
        Err(config.problem(message, &[keys::NUM_PROCESSES.row]).help(help))
    })
}

/// What to say of many more ranks than cores: they compute one after the other, and each has memory of its own.
fn crowded(ranks: usize, cores: usize) -> Option<String> {
    const TOLERATED: usize = 2;
    (ranks > TOLERATED * cores).then(|| {
        format!(
            "{ranks} ranks share {cores} core(s) of this machine, and take turns; about one rank a core is fastest \
             (num_processes, --nproc-per-node)"
        )
    })
}

/// The run as the ranks of this round do it.
fn goes_on(config: &TrainConfig, started: SystemTime) -> TrainConfig {
    let mut config = config.clone();
    config.save.restarted = launch::is_later_round().then_some(started);
    config
}

/// How many ranks a launch starts.
pub(crate) fn would_start(launch: &Launch) -> String {
    let first = launch.worker(0, 0);
    format!("would start {} rank(s) on {} machine(s)", first.world_size(), first.local_ranks.len())
}

/// The most ranks whose environments are shown.
const SHOWN: usize = 256;

/// The environment of each rank of each machine, given the launch of a machine: what all have in common, then what
/// differs. Of very many ranks, the first ones.
pub(crate) fn ranks(launch_of: &dyn Fn(usize) -> Launch) -> String {
    let first = launch_of(0).worker(0, 0);
    let mut all = Vec::new();
    for (node, local_ranks) in first.local_ranks.iter().enumerate() {
        let launch = launch_of(node);
        let left = SHOWN.saturating_sub(all.len());
        let workers = (0..*local_ranks).take(left).map(|local| launch.worker(node, local));
        all.extend(workers.map(|worker| (environment::variables(&launch, &worker), worker)));
        if all.len() == SHOWN {
            break;
        }
    }
    let same = |name: &str, value: &str| {
        all.iter().all(|(one, _)| one.iter().any(|(other, its)| other == name && its == value))
    };
    let line = |keep: &dyn Fn(&str, &str) -> bool, variables: &[(String, String)]| {
        let kept = variables.iter().filter(|(name, value)| keep(name, value));
        let shown = |name: &str, value: &str| if is_secret_name(name) { HIDDEN } else { value }.to_owned();
        kept.map(|(name, value)| format!(" {name}={}", shown(name, value))).collect::<String>()
    };
    let mut out = String::new();
    if let Some((variables, _)) = all.first() {
        out.push_str(&format!("  every rank:{}\n", line(&same, variables)));
    }
    for (variables, worker) in all.iter().filter(|_| all.len() > 1) {
        let own = line(&|name, value| !same(name, value), variables);
        out.push_str(&format!("  machine {}, rank {}:{own}\n", worker.node_rank, worker.rank()));
    }
    if first.world_size() > all.len() {
        out.push_str(&format!("  … and {} more\n", first.world_size() - all.len()));
    }
    out
}

/// The problem of a launch that needs more GPUs than the machine has.
pub fn too_few_gpus(needed: usize, there: usize, instead: &str) -> Problem {
    let many = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let has = if there == 0 { "none".to_owned() } else { there.to_string() };
    let are = if needed == 1 { "is" } else { "are" };
    Problem::new(format!("{} {are} asked for, and this machine has {has}", many(needed, "GPU")))
        .help(format!("to run the same on {}: {instead}", many(needed, "CPU rank")))
}

/// Why a run has no end of its own.
fn stopped_by(signal: i32) -> String {
    format!("stopped by signal {signal}")
}

/// Reports how a launch ended.
pub(crate) fn ended(outcome: launch::Outcome) -> Outcome {
    match outcome {
        launch::Outcome::Done => Ok(()),
        launch::Outcome::Failed { message, code } => {
            eprint(&message);
            Err(Failure::Reported(code))
        }
        launch::Outcome::Stopped(signal) => {
            eprint(&format!("{}; all ranks have ended\n", stopped_by(signal)));
            Err(Failure::Reported(exit_code(Exit::Signal(signal))))
        }
    }
}

/// Runs one rank. A failure goes to the other ranks. Our launcher reports it; another launcher knows exit codes only, so
/// each rank then reports it itself.
fn run_rank(config: &ResolvedConfig, started: SystemTime) -> Outcome {
    launch::take_name();
    let comm = rank::join().map_err(|error| match launch::leave_message(&error.to_string()) {
        true => Failure::Reported(1),
        false => Failure::from(Error::from(error)),
    })?;
    comm.set_timeout(config.ranks.timeout);
    let spelled = |error: &Error| match error {
        Error::Library(oarlock::Error::Memory(_)) => config.spelled(&error.to_string()),
        Error::Library(oarlock::Error::Setting { key, .. }) => match config.origin(key) {
            Some(origin @ Origin::Written(_)) => format!("{error} ({origin})"),
            _ => error.to_string(),
        },
        error => error.to_string(),
    };
    let result: Result<(), Error> = (|| {
        // A file that changed between the start of two ranks would be a different run on each.
        comm.agree(
            "the configuration (did a file change just now, or has each rank other words?)",
            fingerprint(config),
        )?;
        let config = &goes_on(config, started);
        let accelerator = Accelerator::over(comm.clone(), &train::accelerator_config(config)?)?;
        let state = train::run(config, &accelerator, started)?;
        if let Some(state) = state.filter(|_| config.log.plot_loss) {
            plots::of_run(&config.save.output_dir, &state)?;
        }
        Ok(())
    })();
    match result {
        Ok(()) => {
            comm.finish();
            Ok(())
        }
        Err(error) if comm.world_size() == 1 && !launch::is_our_rank() => match code_of(&error) {
            FINAL => {
                eprint(&format!("error: {}\n", spelled(&error)));
                Err(Failure::Reported(FINAL))
            }
            _ => Err(Failure::Error(Error::Usage(spelled(&error)))),
        },
        Err(error) => {
            let code = code_of(&error);
            let began_on = match &error {
                Error::Library(error) => error.began_on(),
                _ => None,
            };
            if began_on.is_some_and(|rank| rank != comm.rank()) {
                // The rank where it began is to be named: wait for its word, which fails this.
                let _ = comm.barrier();
            }
            comm.abort(&spelled(&error));
            launch::leave_message(&spelled(&error));
            if !launch::is_our_rank() {
                eprint(&format!("rank {}: error: {}\n", comm.rank(), spelled(&error)));
            }
            Err(Failure::Reported(code))
        }
    }
}

/// The exit code of a run that ends with an error: where it would end so however often it is started, that of a command that
/// is wrong.
fn code_of(error: &Error) -> u8 {
    match error {
        Error::Library(error) if error.is_final() => FINAL,
        _ => 1,
    }
}

/// A number for all values of a configuration. Where they are written is not part of it: machines may have files of their
/// own.
fn fingerprint(config: &ResolvedConfig) -> u64 {
    config.values_by_name().iter().flat_map(|(name, value)| [name, "=", value, "\n"]).fold(FNV, hash)
}

/// Where FNV-1a begins.
const FNV: u64 = 0xcbf2_9ce4_8422_2325;

fn hash(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What launchers of several machines compare before they start ranks: every value but the number of ranks, which they agree
/// on. Of long values, numbers.
fn same_on_all(config: &ResolvedConfig) -> Vec<(String, String)> {
    const LONG: usize = 100;
    let values = config.values_by_name().into_iter().filter(|(name, _)| *name != "num_processes");
    let short =
        |value: String| if value.len() > LONG { format!("{:016x}", hash(FNV, &value)) } else { value };
    values.map(|(name, value)| (name.to_owned(), short(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_more_ranks_than_cores_are_told() {
        assert!(crowded(64, 2).unwrap().starts_with("64 ranks share 2 core(s) of this machine"));
        assert_eq!((crowded(4, 2), crowded(1, 1)), (None, None));
    }
}
