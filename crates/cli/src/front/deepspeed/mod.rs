//! `deepspeed`: starts a program, or an Oarlock run, on this machine or on those of a hostfile, as DeepSpeed's
//! launcher does; and `ds_report`.

mod exports;
pub mod filter;
mod flags;
pub mod hostfile;
mod launch;
mod launcher;
mod multinode;
mod remote;
mod report;

#[cfg(test)]
mod tests;

use self::flags as keys;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

pub use flags::FLAGS;
pub(crate) use report::{FLAGS as REPORT, report};

use self::exports::{Exports, Machine};
use self::filter::Slots;
use self::hostfile::Pool;
use self::launcher::{Launcher, RUN_NAME};
use self::multinode::{Start, ssh_port};
use self::remote::Remote;
use super::variable::env_var;
use crate::config::environment;
use crate::config::flags::Parsed;
use crate::config::keys::Row;
use crate::config::location::Location;
use crate::config::resolve::{self, Settings};
use crate::config::written::{Authority, Entry, Layer};
use crate::config::{Problem, Problems, Words};
use crate::console::{Failure, Outcome, print};
use crate::front::job::{Job, too_few_gpus};
use crate::front::script::{self, Call, Script};
use crate::launch::agents::random_name;
use crate::launch::devices::Devices;
use crate::launch::spec::Master;
use crate::launch::{is_our_rank, is_rank};

/// What a command starts.
enum Action {
    /// Ranks of this machine.
    Local(Box<Job>),
    /// Ranks of several machines, through a multinode launcher.
    Multinode(Box<Remote>),
    /// This process becomes a rank.
    Exec(Vec<String>),
}

/// Runs `deepspeed`.
pub(crate) fn run(words: &[String], started: SystemTime) -> Outcome {
    let mut problems = Problems::default();
    let parsed = FLAGS.parse(&Words::new(words), &mut problems);
    if parsed.help || words.is_empty() {
        print(&FLAGS.help())?;
        return if parsed.help { Ok(()) } else { Err(Failure::Reported(2)) };
    }
    let program = std::env::current_exe().map_err(crate::error::Error::io("find", "this program"))?;
    let folder = std::env::current_dir().map_err(crate::error::Error::io("find", "the working directory"))?;
    let machine = Machine {
        // The list of visible GPUs is a filter of the slots, so all of them count first.
        devices: Devices::here(None),
        read: &env_var,
        variables: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        program: program.display().to_string(),
        folder,
        address: &address,
    };
    match action(&parsed, words, problems, &machine)? {
        Action::Local(job) => {
            let starts = !(is_rank() || job.dry_run || job.print_config);
            let writes = starts && parsed.settings.get(keys::SAVE_PID);
            let _file = writes.then(launch::pid_file).transpose()?;
            job.run(started)
        }
        Action::Multinode(remote) => remote.run(&machine),
        Action::Exec(argv) => launch::become_program(&argv, launch::mpi_rank(machine.read)?),
    }
}

/// The first address of a machine, which `hostname -I` prints there through ssh.
fn address(host: &str, port: Option<i64>) -> Option<String> {
    let mut command = Command::new("ssh");
    let output =
        command.args(ssh_port(port)).args([host, "hostname", "-I"]).stdin(Stdio::null()).output().ok()?;
    let addresses = String::from_utf8(output.stdout).ok()?;
    addresses.split_whitespace().next().filter(|_| output.status.success()).map(str::to_owned)
}

/// What the flags, the script and the machine come to; `problems` are those of the flags.
fn action(
    parsed: &Parsed,
    words: &[String],
    mut problems: Problems,
    machine: &Machine,
) -> Result<Action, Problems> {
    let mut settings = parsed.settings.clone();
    resolve::refuse(&mut settings, &mut problems);
    let call = Call { module: settings.get(keys::MODULE), no_python: settings.get(keys::NO_PYTHON) }.checked(
        &settings,
        [keys::MODULE.row, keys::NO_PYTHON.row],
        &mut problems,
    );
    let script =
        script::resolve(&parsed.rest, call, FLAGS.command).map_err(|wrong| problems.append(wrong)).ok();
    let becomes_rank = settings.get(keys::MPI_RANK);
    let found = (!becomes_rank).then(|| find(&mut settings, machine)).transpose();
    let found = found.map_err(|problem| problems.push(problem)).ok().flatten();
    let launcher = Launcher::of(&settings).map_err(|problem| problems.push(problem)).ok();
    let (Some(script), Some(launcher), true) = (script, launcher, problems.is_empty()) else {
        return Err(problems);
    };
    match found {
        None => Ok(Action::Exec(argv(&script, &parsed.rest, &machine.program))),
        Some(found) => found.action(parsed, &settings, words, script, launcher, machine),
    }
}

/// A script as a program of its own.
fn argv(script: &Script, words: &Words, program: &str) -> Vec<String> {
    match script {
        Script::Command(argv) => argv.clone(),
        Script::Training(_) => {
            let name = words.get(0).unwrap_or_default();
            let command = if name.contains("train_pretrain") { "train_pretrain" } else { "train" };
            let head = [program.to_owned(), command.to_owned()];
            head.into_iter().chain(words.from(1).to_vec()).collect()
        }
    }
}

/// The machines and slots that are used.
struct Found {
    /// Those of the hostfile.
    pool: Pool,
    slots: Slots,
    /// Whether there is a hostfile, or another list of machines.
    listed: bool,
    cpu: bool,
    notes: Vec<String>,
    /// What says the number of slots.
    location: Location,
}

/// Finds the slots: of the list that another launcher made, of the hostfile, or of this machine.
fn find(settings: &mut Settings, machine: &Machine) -> Result<Found, Problem> {
    let mut cpu =
        settings.get(keys::CPU) || (machine.read)("DS_ACCELERATOR").is_some_and(|name| name == "cpu");
    let mut notes = Vec::new();
    if let Some(text) = settings.get(keys::WORLD_INFO) {
        let slots = filter::of_world(text)
            .map_err(|error| settings.problem(error.to_string(), &[keys::WORLD_INFO.row]))?;
        let pool = slots.iter().map(|(host, slots)| (host.clone(), slots.len())).collect();
        let location = location(settings, &[keys::WORLD_INFO.row], "the launcher");
        return Ok(Found { pool, slots, listed: true, cpu, notes, location });
    }
    let path = settings.get(keys::HOSTFILE).to_owned();
    let hostfile = hostfile::read(Path::new(&path))?;
    if hostfile.is_none() && settings.setting(keys::HOSTFILE).is_written() {
        notes.push(format!("there is no hostfile `{path}`, so this machine is used alone"));
    }
    let (num_nodes, num_gpus) = (settings.get(keys::NUM_NODES), settings.get(keys::NUM_GPUS));
    let filters = [keys::INCLUDE, keys::EXCLUDE];
    if (num_nodes >= 0 || num_gpus >= 0) && filters.iter().any(|key| settings.get(*key).is_some()) {
        let both = [keys::NUM_NODES.row, keys::NUM_GPUS.row, keys::INCLUDE.row, keys::EXCLUDE.row];
        let problem = settings
            .problem("--num_nodes and --num_gpus are mutually exclusive with --include and --exclude", &both);
        return Err(problem.help("keep one kind of them"));
    }
    if num_gpus > MOST_SLOTS {
        return Err(settings.problem(format!("no machine has {num_gpus} GPUs"), &[keys::NUM_GPUS.row]));
    }
    let filters = filters.map(|key| key.row);
    let mut include = settings.get(keys::INCLUDE).unwrap_or_default().to_owned();
    let exclude = settings.get(keys::EXCLUDE).unwrap_or_default().to_owned();
    let visible = (machine.read)("CUDA_VISIBLE_DEVICES").filter(|list| !list.is_empty());
    if let (None, Some(list)) = (&hostfile, visible) {
        if include.is_empty() && exclude.is_empty() && num_nodes <= 1 && num_gpus <= 0 {
            include = format!("localhost:{list}");
            notes.push(format!("CUDA_VISIBLE_DEVICES={list} counts as --include={include}"));
        } else {
            notes.push(format!(
                "CUDA_VISIBLE_DEVICES={list} does not count where --include, --exclude, --num_gpus or --num_nodes \
                 is written"
            ));
        }
    }
    let listed = hostfile.is_some();
    let wrong = |settings: &Settings, error: filter::Error| {
        let problem = settings.problem(error.to_string(), &filters);
        match error {
            filter::Error::Both | filter::Error::BadSpec(_) => {
                problem.help("write NAME[:SLOT[,SLOT …]][@NAME…], as in worker-0@worker-1:0,2")
            }
            _ if listed => problem.help(format!("`{path}` lists the machines")),
            _ => problem.help("without a hostfile there is `localhost` alone, with a slot for each GPU"),
        }
    };
    let pool = match hostfile {
        Some(pool) => pool,
        None => {
            if num_nodes > 1 {
                let message =
                    format!("{num_nodes} machines are asked for, and there is no hostfile `{path}`");
                let problem = settings.problem(message, &[keys::NUM_NODES.row]);
                return Err(
                    problem.help("write `--hostfile FILE`, with a line `NAME slots=N` for each machine")
                );
            }
            let specs = filter::specs(&include).map_err(|error| wrong(settings, error))?;
            let named = specs.iter().flat_map(|(_, slots)| slots);
            let needed = match usize::try_from(num_gpus) {
                Ok(gpus @ 1..) => gpus,
                _ => named.clone().count(),
            };
            let gpus = machine.devices.gpus;
            if !cpu && (gpus == 0 && needed > 0 || num_gpus > gpus as i64) {
                return Err(too_few_gpus(needed, gpus, "add --cpu, or set DS_ACCELERATOR=cpu"));
            }
            cpu |= gpus == 0;
            let last = named.max().and_then(|slot| usize::try_from(*slot).ok());
            // Slots of CPU ranks are what they are called.
            let slots = match last.filter(|last| cpu && (*last as i64) < MOST_SLOTS) {
                Some(last) => machine.devices.cores.max(last + 1),
                None if cpu => machine.devices.cores,
                None => gpus,
            };
            vec![("localhost".to_owned(), slots)]
        }
    };
    let slots = filter::apply(&pool, &include, &exclude).map_err(|error| wrong(settings, error))?;
    let slots = filter::trim(slots, num_nodes, num_gpus);
    if slots.iter().all(|(_, slots)| slots.is_empty()) {
        return Err(settings.problem("no slot is left to run on", &filters).help("leave at least one"));
    }
    if listed && let Some((host, there)) = pool.iter().find(|(_, slots)| num_gpus > *slots as i64) {
        notes.push(format!("--num_gpus {num_gpus} counts, though `{path}` gives `{host}` {there} slot(s)"));
    }
    if settings.setting(keys::BIND_CORE_LIST).is_written() && !settings.get(keys::BIND_CORES_TO_RANK) {
        notes.push("--bind_core_list changes nothing without --bind_cores_to_rank".to_owned());
    }
    let default = match (listed, cpu) {
        (true, _) => path.as_str(),
        (false, true) => "the cores",
        (false, false) => "the GPUs",
    };
    let location = location(
        settings,
        &[keys::NUM_GPUS.row, keys::INCLUDE.row, keys::EXCLUDE.row, keys::NUM_NODES.row],
        default,
    );
    Ok(Found { pool, slots, listed, cpu, notes, location })
}

/// More slots than any machine has.
const MOST_SLOTS: i64 = 1 << 16;

/// The place of the first of some flags that is written, or words for what else says it.
fn location(settings: &Settings, keys: &[&'static Row], otherwise: &str) -> Location {
    let written = keys.iter().find_map(|key| settings.said(*key)?.location().cloned());
    written.unwrap_or_else(|| environment::said_by(otherwise, "").location)
}

impl Found {
    fn action(
        mut self,
        parsed: &Parsed,
        settings: &Settings,
        words: &[String],
        script: Script,
        launcher: Launcher,
        machine: &Machine,
    ) -> Result<Action, Problems> {
        let no_ssh = settings.get(keys::NO_SSH);
        let shown = parsed.dry_run || parsed.print_config;
        let elsewhere = self.listed && (settings.get(keys::FORCE_MULTI) || self.slots.len() > 1) && !no_ssh;
        let node = self.node(settings)?;
        if self.listed {
            launcher.check(settings, &self.pool, &self.slots)?;
        }
        let addr = self.master(settings, elsewhere && !shown, machine)?;
        let port = u16::try_from(settings.get(keys::MASTER_PORT))
            .map_err(|_| settings.problem("a port is at most 65535", &[keys::MASTER_PORT.row]))?;
        let master = Master::at(&addr, port);
        let is_training = matches!(script, Script::Training(_));
        let launch_of = |node: usize| {
            launch::launch(settings, &self.slots, node, &master, self.cpu).map(|mut launch| {
                // An Oarlock run reads its rank from the environment.
                launch.local_rank_argument &= !is_training;
                if let Some(name) = (machine.read)(RUN_NAME).filter(|name| is_training && !name.is_empty()) {
                    launch.run_id = name;
                }
                launch
            })
        };
        let argv = argv(&script, &parsed.rest, &machine.program);
        let total: usize = self.slots.iter().map(|(_, slots)| slots.len()).sum();
        // In a rank the launcher's variables say how many came.
        let ranks = Entry::new("num_processes", total.to_string(), &self.location);
        let ranks = (!is_our_rank()).then_some(ranks);
        let cpu = settings.setting(keys::CPU).location().filter(|_| settings.get(keys::CPU));
        let entries = ranks.into_iter().chain(cpu.map(environment::device_cpu)).collect();
        let layer = Layer { authority: Authority::MustAgree, entries };
        let again = std::iter::once(FLAGS.command.to_owned()).chain(words.iter().cloned()).collect();
        let mut job = Job::new(again, launch_of(node)?, script, vec![layer], parsed)?;
        job.notes.append(&mut self.notes);
        if !elsewhere {
            return Ok(Action::Local(Box::new(job)));
        }
        job.through_mpi = oarlock_comm::HAS_MPI && launcher.is_of_mpi();
        let machines = format!("/tmp/deepspeed_mvapich_hostfile.{}", std::process::id());
        let mut exports = machine.exports(Exports::of(launcher, self.cpu))?;
        // The name by which the machines of a training run find each other, where nobody gave it one.
        let run_name = (is_training && !launcher.is_of_mpi() && !shown)
            .then(|| (machine.read)(RUN_NAME).map_or_else(random_name, Ok))
            .transpose()
            .map_err(|error| Problem::new(error.to_string()))?
            .filter(|name| !name.is_empty());
        run_name.iter().for_each(|name| exports.add(RUN_NAME, name));
        job.notes.extend(exports.note().cloned());
        let label = (!launcher.is_of_mpi() && !shown).then(oarlock_files::token).transpose();
        let label =
            label.map_err(|error| Problem::new(format!("the run cannot be named at random: {error}")))?;
        let start = Start {
            settings,
            pool: &self.pool,
            slots: &self.slots,
            script: &parsed.rest,
            argv: &argv,
            master: &master,
            cpu: self.cpu,
            machines: &machines,
            exports,
            label,
        };
        let port = multinode::port_of_ssh(settings);
        // mpirun starts the ranks of this machine without ssh.
        let needs_none = self.is_here() && launcher.is_of_mpi();
        let asks_ssh = !needs_none && !settings.get(keys::NO_SSH_CHECK);
        let launches = (0..self.slots.len()).map(launch_of).collect::<Result<_, _>>()?;
        Ok(Action::Multinode(Box::new(Remote {
            job,
            launcher,
            commands: start.commands(launcher, machine)?,
            ending: start.ending(launcher),
            machines: (launcher == Launcher::Mvapich).then(|| (machines.clone().into(), self.pool.clone())),
            launches,
            check: asks_ssh.then(|| self.slots[0].0.clone()),
            port,
        })))
    }

    /// Which machine this is.
    fn node(&self, settings: &Settings) -> Result<usize, Problem> {
        if !settings.get(keys::NO_SSH) {
            return Ok(0);
        }
        let node = settings.get(keys::NODE_RANK);
        usize::try_from(node).ok().filter(|node| *node < self.slots.len()).ok_or_else(|| {
            let message =
                format!("invalid value {node} of --node_rank: each node has its own number with --no_ssh");
            let last = self.slots.len() - 1;
            settings
                .problem(message, &[keys::NODE_RANK.row, keys::NO_SSH.row])
                .help(format!("write `--node_rank N`, 0 to {last}"))
        })
    }

    /// Whether no machine but this one has ranks.
    fn is_here(&self) -> bool {
        self.slots.iter().all(|(host, _)| host == "localhost")
    }

    /// Where rank 0 listens: this machine, what is written, or what the first machine says of itself.
    fn master(&mut self, settings: &Settings, asks: bool, machine: &Machine) -> Result<String, Problem> {
        if !self.listed {
            return Ok("127.0.0.1".to_owned());
        }
        if let Some(addr) = settings.get(keys::MASTER_ADDR) {
            return Ok(addr.to_owned());
        }
        if self.is_here() {
            return Ok("127.0.0.1".to_owned());
        }
        let host = self.slots[0].0.clone();
        if !asks {
            self.notes.push(format!(
                "--master_addr is not written; `{host}` stands for the address of that machine"
            ));
            return Ok(host);
        }
        let port = multinode::port_of_ssh(settings);
        (machine.address)(&host, port).ok_or_else(|| {
            let problem =
                Problem::new(format!("`ssh {host} hostname -I` gives no address of the first machine"));
            problem.help("write `--master_addr ADDRESS`, or set up ssh without a password")
        })
    }
}
