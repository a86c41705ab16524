//! How many ranks on how many machines, and where they meet.

use crate::config::accelerate::File;
use crate::config::accelerate::keys;
use crate::config::keys::Key;
use crate::config::location::Location;
use crate::config::resolve::Settings;
use crate::config::{Problem, Problems};
use crate::front::job::too_few_gpus;
use crate::launch::devices::Devices;
use crate::launch::spec::{Master, Nodes};

use super::strategy::{DistributedType, Strategy};

/// The default port of rank 0.
pub(super) const PORT: u16 = 29500;

/// More ranks than any run has; it bounds what is made of a slip.
const MAX_RANKS: i64 = 1 << 20;

/// The settings of a launch, and the devices for it.
pub(super) struct LaunchSettings<'a> {
    /// The flags alone.
    pub flags: &'a Settings,
    /// Flags over the file.
    pub all: &'a Settings,
    /// The file.
    pub file: Option<&'a File>,
    /// The devices of this machine that may be used.
    pub devices: &'a Devices,
}

/// The ranks of all machines together.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    /// How many.
    pub count: usize,
    /// Where the number is written.
    pub location: Option<Location>,
}

impl LaunchSettings<'_> {
    /// The ranks of all machines together; `defaulted` collects the values that nobody has set.
    pub fn ranks(&self, strategy: &Strategy, defaulted: &mut Vec<String>, problems: &mut Problems) -> Ranks {
        let setting = self.all.setting(keys::NUM_PROCESSES);
        let location = setting.location().filter(|_| setting.is_written()).cloned();
        if location.is_some() && setting.broken {
            return Ranks { count: 1, location: None };
        }
        let Some(written_at) = location else {
            return Ranks { count: self.default_ranks(strategy, defaulted, problems), location: None };
        };
        let count = self.all.get(keys::NUM_PROCESSES).unwrap_or_default();
        if count < 1 {
            problems.push(
                Problem::new(format!("`num_processes` is {count}, so the number of ranks must be set"))
                    .at(&written_at, "")
                    .help("add `--num_processes N`"),
            );
            // What the run says is no second mistake.
            return Ranks { count: 1, location: None };
        } else if count < 2
            && self.flags.get(keys::MULTI_GPU)
            && self.flags.said(keys::NUM_PROCESSES).is_some()
        {
            let both = [keys::MULTI_GPU.row, keys::NUM_PROCESSES.row];
            problems.push(
                self.flags
                    .problem("`--multi_gpu` is for 2 processes or more", &both)
                    .help("leave `--multi_gpu` out, or ask for more processes"),
            );
        }
        if count > MAX_RANKS {
            problems.push(
                Problem::new(format!("`num_processes` is {count}, and nothing has so many devices"))
                    .at(&written_at, "")
                    .help("it counts the ranks of all machines together"),
            );
        }
        Ranks { count: usize::try_from(count.clamp(1, MAX_RANKS)).unwrap_or(1), location: Some(written_at) }
    }

    /// The default number of ranks: one with a file that distributes nothing, else one for each GPU.
    fn default_ranks(
        &self,
        strategy: &Strategy,
        defaulted: &mut Vec<String>,
        problems: &mut Problems,
    ) -> usize {
        if let Some(file) = self.file {
            if file.own.get(keys::DISTRIBUTED_TYPE) != Some("NO") {
                problems.push(
                    Problem::new(format!("`{}` does not say `num_processes`", file.name))
                        .help("write it there, or add `--num_processes N`"),
                );
            }
            return 1;
        }
        let count = if strategy.cpu { 1 } else { self.devices.gpus.max(1) };
        defaulted.push(format!("`--num_processes` was set to a value of `{count}`"));
        count
    }

    /// The machines, each with its ranks.
    pub fn nodes(
        &self,
        ranks: &Ranks,
        defaulted: &mut Vec<String>,
        problems: &mut Problems,
    ) -> (Nodes, Master) {
        let setting = self.all.setting(keys::NUM_MACHINES);
        if setting.location().is_none() && self.file.is_none() {
            defaulted.push("`--num_machines` was set to a value of `1`".to_owned());
        }
        let machines = self.all.get(keys::NUM_MACHINES).unwrap_or(1);
        let port = match self.all.said(keys::MAIN_PROCESS_PORT) {
            None => PORT,
            Some(_) => u16::try_from(self.all.get(keys::MAIN_PROCESS_PORT).unwrap_or_default())
                .unwrap_or_else(|_| {
                    let message = format!(
                        "there is no port {}",
                        self.all.get(keys::MAIN_PROCESS_PORT).unwrap_or_default()
                    );
                    problems.push(
                        self.all.problem(message, &[keys::MAIN_PROCESS_PORT.row]).help("ports end at 65535"),
                    );
                    PORT
                }),
        };
        if machines == 1 {
            let master = Master { addr: "127.0.0.1".to_owned(), port };
            return (Nodes::Static { ranks: vec![ranks.count], this: 0 }, master);
        }
        if !ranks.count.is_multiple_of(machines) {
            let message =
                format!("`num_processes` ({}) is not a multiple of `num_machines` ({machines})", ranks.count);
            let (less, more) = (ranks.count / machines * machines, ranks.count.next_multiple_of(machines));
            let right = if less == 0 { more.to_string() } else { format!("{less} or {more}") };
            let help =
                format!("`num_processes` counts the ranks of all machines, as many on each: write {right}");
            problems.push(
                self.all.problem(message, &[keys::NUM_PROCESSES.row, keys::NUM_MACHINES.row]).help(help),
            );
        }
        let machines = machines.min(ranks.count);
        let each = ranks.count / machines;
        let this = self.this(machines, problems);
        let addr = self.all.get(keys::MAIN_PROCESS_IP).map(str::to_owned).unwrap_or_else(|| {
            let message = format!("{machines} machines are asked for, and nobody says where they meet");
            problems.push(
                self.all
                    .problem(message, &[keys::NUM_MACHINES.row])
                    .help("add `--main_process_ip ADDRESS`, the address of machine 0"),
            );
            String::new()
        });
        let master = Master::at(&addr, port);
        (self.meeting(machines, each, this, (master.addr.clone(), port), problems), master)
    }

    /// Which of the machines this is.
    fn this(&self, machines: usize, problems: &mut Problems) -> usize {
        let this = self.all.get(keys::MACHINE_RANK).unwrap_or_default();
        if self.all.said(keys::MACHINE_RANK).is_none() && self.file.is_none() {
            let message = format!("this is one of {machines} machines, and nobody says which");
            problems.push(
                self.all
                    .problem(message, &[keys::NUM_MACHINES.row])
                    .help("add `--machine_rank N`, from 0 on machine 0"),
            );
        } else if this >= machines {
            let message = format!("there is no machine {this} among {machines}");
            problems.push(
                self.all
                    .problem(message, &[keys::MACHINE_RANK.row, keys::NUM_MACHINES.row])
                    .help(format!("machines count from 0 to {}", machines - 1)),
            );
        }
        this.min(machines - 1)
    }

    fn meeting(
        &self,
        machines: usize,
        each: usize,
        this: usize,
        endpoint: (String, u16),
        problems: &mut Problems,
    ) -> Nodes {
        let backend = self.all.get(keys::RDZV_BACKEND);
        match backend {
            "c10d" => Nodes::Elastic { ranks: each, count: machines..=machines, endpoint },
            "etcd" | "etcd-v2" => {
                let message = format!("machines do not meet by `{backend}` here");
                problems
                    .push(self.all.problem(message, &[keys::RDZV_BACKEND.row]).help("write static or c10d"));
                Nodes::Static { ranks: vec![each; machines], this }
            }
            _ => Nodes::Static { ranks: vec![each; machines], this },
        }
    }

    /// `key=value,key=value`.
    pub fn conf(&self, problems: &mut Problems) -> String {
        let text = self.all.get(keys::RDZV_CONF).unwrap_or_default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty() && !part.contains('=')) {
            let problem = self
                .all
                .problem(format!("`{part}` in `rdzv_conf` is not a `key=value`"), &[keys::RDZV_CONF.row]);
            problems.push(problem.help("as in timeout=900,join_timeout=60"));
        }
        text.to_owned()
    }

    /// The problem if this machine has fewer GPUs than ranks.
    pub fn gpus(&self, each: usize, strategy: &Strategy) -> Option<Problem> {
        let there = self.devices.gpus;
        if strategy.cpu || strategy.kind == DistributedType::No || each <= there {
            return None;
        }
        let problem = too_few_gpus(each, there, "add `--cpu`");
        Some(match self.all.said(keys::GPU_IDS).and_then(|setting| setting.location()) {
            Some(location) if self.all.get(keys::GPU_IDS) != Some("all") => {
                problem.at(location, "of these GPUs")
            }
            _ => problem,
        })
    }

    /// The command of DeepSpeed that starts the machines of a hostfile, which Accelerate would run.
    pub fn deepspeed_command(
        &self,
        launcher: &str,
        each: usize,
        master: &Master,
        script: &[String],
    ) -> String {
        let text = |key: Key<Option<String>>| self.all.get(key).map(str::to_owned);
        let mut words = vec!["deepspeed".to_owned(), "--hostfile".to_owned()];
        words.push(text(keys::DEEPSPEED_HOSTFILE).unwrap_or_else(|| "HOSTFILE".to_owned()));
        if launcher == "nossh" {
            words.extend([
                "--node_rank".to_owned(),
                self.all.get(keys::MACHINE_RANK).unwrap_or_default().to_string(),
                "--no_ssh".to_owned(),
            ]);
        } else {
            words.extend(["--no_local_rank", "--launcher", launcher].map(str::to_owned));
        }
        match (text(keys::DEEPSPEED_EXCLUSION_FILTER), text(keys::DEEPSPEED_INCLUSION_FILTER)) {
            (Some(filter), _) => words.extend(["--exclude".to_owned(), filter]),
            (None, Some(filter)) => words.extend(["--include".to_owned(), filter]),
            (None, None) => words.extend(["--num_gpus".to_owned(), each.to_string()]),
        }
        if !master.addr.is_empty() {
            words.extend(["--master_addr".to_owned(), master.addr.clone()]);
        }
        words.extend(["--master_port".to_owned(), master.port.to_string()]);
        words.extend(
            [keys::MODULE, keys::NO_PYTHON]
                .into_iter()
                .filter(|key| self.all.get(*key))
                .map(|key| format!("--{key}")),
        );
        words.extend(script.iter().cloned());
        words.join(" ")
    }
}
