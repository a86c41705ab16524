//! The commands that start ranks on other machines: by ssh, pdsh, an MPI or Slurm, as DeepSpeed's runners build them.
//! Where DeepSpeed would start its own launcher on each machine, this program is started.

use oarlock_config::settings::secret::Secret;

use super::flags as keys;

use super::exports::{Exports, Machine, quoted, shell};
use super::filter::{self, Slots};
use super::hostfile::Pool;
use super::launcher::Launcher;
use crate::config::keys::Key;
use crate::config::resolve::Settings;
use crate::config::{Problem, Words};
use crate::launch::spec::Master;

/// What is to be started on other machines.
pub struct Start<'s> {
    /// The flags.
    pub settings: &'s Settings,
    /// The machines of the hostfile.
    pub pool: &'s Pool,
    /// The slots that are used.
    pub slots: &'s Slots,
    /// The script and its arguments.
    pub script: &'s Words,
    /// The same as a program with its arguments.
    pub argv: &'s [String],
    /// Where rank 0 listens.
    pub master: &'s Master,
    /// Whether ranks are on the CPU.
    pub cpu: bool,
    /// The file of machines that MVAPICH reads.
    pub machines: &'s str,
    /// What other machines get of the environment.
    pub exports: Exports,
    /// What tells the processes of this run from all others of a machine.
    pub label: Option<String>,
}

/// How a start reaches the machines.
pub struct Commands {
    /// What starts the ranks: one command, or of ssh one for each machine.
    pub start: Vec<Vec<String>>,
    /// Commands before it, one for each machine, which leave the secrets there.
    pub leave: Vec<Vec<String>>,
    /// What the commands that bring secrets read from their input.
    pub input: Option<Secret>,
    /// The secrets in the environment of a launcher that hands them on.
    pub environment: Vec<(String, Secret)>,
}

impl Start<'_> {
    /// The commands. No list of processes shows a secret: ssh takes them through its input; pdsh gives none to the machines, so
    /// each finds them in a file, which ssh leaves there and the first shell that reads it removes; MPIs and Slurm hand on
    /// variables of their own.
    pub fn commands(&self, launcher: Launcher, machine: &Machine) -> Result<Commands, Problem> {
        let exports = &self.exports;
        let text = self.settings.get(keys::LAUNCHER_ARGS).unwrap_or_default();
        let arguments = shlex::split(text).ok_or_else(|| {
            self.settings
                .problem(format!("`{text}` is not a list of arguments"), &[keys::LAUNCHER_ARGS.row])
                .help("close its quotes")
        })?;
        let start = match launcher {
            Launcher::Ssh => self.ssh(machine, exports, &arguments),
            Launcher::Pdsh => vec![self.pdsh(machine, exports, &arguments)],
            Launcher::OpenMpi => vec![self.open_mpi(exports, arguments)],
            Launcher::Mpich => vec![self.mpich(machine, exports, arguments)],
            Launcher::Impi => vec![self.impi(exports, arguments)?],
            Launcher::Mvapich => vec![self.mvapich(exports, arguments)],
            Launcher::Slurm => vec![self.slurm(exports, arguments)],
        };
        let input = exports.secret_script().filter(|_| !launcher.is_of_mpi());
        let leaves = launcher == Launcher::Pdsh && input.is_some();
        let leave = if leaves { self.leave() } else { Vec::new() };
        let environment = if launcher.is_of_mpi() { exports.secrets().to_vec() } else { Vec::new() };
        Ok(Commands { start, leave, input, environment })
    }

    /// The file in the home folder of a machine in which it finds the secrets. Machines may share the folder.
    fn secret_file(&self, node: &str) -> String {
        format!("~/.oarlock-{}-{node}", self.label.as_deref().unwrap_or_default())
    }

    fn leave(&self) -> Vec<Vec<String>> {
        let port = ssh_port(port_of_ssh(self.settings));
        let one = |(node, (host, _)): (usize, &(String, Vec<usize>))| {
            let mut command = words(&["ssh"]);
            command.extend(port.iter().cloned());
            let file = self.secret_file(&node.to_string());
            command.extend(words(&[host, &format!("umask 077; set -C; cat > {file}")]));
            command
        };
        self.slots.iter().enumerate().map(one).collect()
    }

    /// What ends the ranks of other machines when this process is to end; where the launcher program does that
    /// by itself, nothing.
    pub fn ending(&self, launcher: Launcher) -> Vec<Vec<String>> {
        let Some(label) = &self.label else { return Vec::new() };
        // The brackets keep the pattern from meeting the command that it stands in; the label is of hexadecimal digits.
        let pattern = format!("pkill -u \"$(id -u)\" -f '[r]un_label={label}'");
        let hosts = self.slots.iter().map(|(host, _)| host.clone());
        let port = ssh_port(port_of_ssh(self.settings));
        match launcher {
            Launcher::Pdsh => {
                let hosts = hosts.collect::<Vec<_>>().join(",");
                vec![words(&["pdsh", "-S", "-w", &hosts, &pattern])]
            }
            Launcher::Ssh => hosts
                .map(|host| {
                    let mut command = words(&["ssh"]);
                    command.extend(port.iter().cloned());
                    command.extend(words(&[&host, &pattern]));
                    command
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The words that start this program on a machine. `secrets` is the command that prints what exports them.
    fn on_machine(&self, machine: &Machine, exports: &Exports, node: &str, secrets: &str) -> Vec<String> {
        let on = |key: &&Key<bool>| self.settings.get(**key);
        let mut command = Vec::new();
        if exports.secret_names().next().is_some() {
            command.push(format!("eval \"$({secrets})\";"));
        }
        if let Some(script) = self.settings.get(keys::VENV_SCRIPT) {
            command.push(format!("source {};", shell(script)));
        }
        command.push(exports.script());
        command.push(format!("cd {};", shell(&machine.folder.display().to_string())));
        command.extend([shell(&machine.program), "deepspeed".to_owned(), "--no_ssh".to_owned()]);
        command.extend(self.label.iter().map(|label| format!("--run_label={label}")));
        command.push(format!("--world_info={}", filter::world(self.slots)));
        command.push(format!("--node_rank={node}"));
        command.push(format!("--master_addr={}", shell(&self.master.addr)));
        command.push(format!("--master_port={}", self.master.port));
        let switches = [keys::NO_PYTHON, keys::MODULE, keys::NO_LOCAL_RANK, keys::SAVE_PID];
        command.extend(switches.iter().filter(on).map(|key| format!("--{key}")));
        // The original forgets those after the log folder.
        for key in [
            keys::ENABLE_EACH_RANK_LOG.row,
            keys::BIND_CORE_LIST.row,
            keys::LOG_LEVEL.row,
            keys::MIN_ELASTIC_NODES.row,
            keys::MAX_ELASTIC_NODES.row,
        ] {
            let setting = self.settings.setting(key);
            if setting.is_written() {
                command.push(format!("--{key}={}", shell(&setting.value.to_string())));
            }
        }
        let switches = [keys::BIND_CORES_TO_RANK, keys::ELASTIC_TRAINING, keys::QUIET];
        command.extend(switches.iter().filter(on).map(|key| format!("--{key}")));
        if self.cpu {
            command.push("--cpu".to_owned());
        }
        command.extend(self.script.iter().map(quoted));
        command
    }

    fn ssh(&self, machine: &Machine, exports: &Exports, arguments: &[String]) -> Vec<Vec<String>> {
        let port = ssh_port(port_of_ssh(self.settings));
        let one = |(node, (host, _)): (usize, &(String, Vec<usize>))| {
            let mut command = words(&["ssh"]);
            command.extend(port.iter().cloned());
            command.extend(arguments.iter().cloned());
            command.push(host.clone());
            command.push(self.on_machine(machine, exports, &node.to_string(), "cat").join(" "));
            command
        };
        self.slots.iter().enumerate().map(one).collect()
    }

    fn pdsh(&self, machine: &Machine, exports: &Exports, arguments: &[String]) -> Vec<String> {
        let mut command = words(&["pdsh", "-S", "-f", "1024", "-w", &hosts(self.slots)]);
        command.extend(arguments.iter().cloned());
        let file = self.secret_file("%n");
        command.extend(self.on_machine(machine, exports, "%n", &format!("cat {file} && rm {file}")));
        command
    }

    fn open_mpi(&self, exports: &Exports, arguments: Vec<String>) -> Vec<String> {
        let hostfile = self.settings.get(keys::HOSTFILE);
        let mut command = words(&["mpirun", "-n", &self.total(), "-hostfile", hostfile]);
        command.extend(words(&["--mca", "btl", "^openib"]));
        let says_interface = arguments
            .windows(2)
            .any(|two| ["-mca", "--mca"].contains(&two[0].as_str()) && two[1] == "btl_tcp_if_include");
        if !says_interface {
            command.extend(words(&["--mca", "btl_tcp_if_include", "eth0"]));
        }
        command.extend(arguments);
        command.extend(exports.words("-x", "-x"));
        command.extend(self.argv.iter().cloned());
        command
    }

    fn mpich(&self, machine: &Machine, exports: &Exports, arguments: Vec<String>) -> Vec<String> {
        let mut command = words(&["mpirun", "-n", &self.total(), "-ppn", &self.per_machine().to_string()]);
        command.extend(arguments);
        command.extend(exports.words("-genv", "-genvlist"));
        command.extend(self.contract());
        command.extend(words(&["-hosts", &hosts(self.pool)]));
        command.extend(words(&[&machine.program, "deepspeed", "--mpi_rank"]));
        let switches = [keys::MODULE, keys::NO_PYTHON];
        let on = |key: &&Key<bool>| self.settings.get(**key);
        command.extend(switches.iter().filter(on).map(|key| format!("--{key}")));
        command.extend(self.script.to_vec());
        command
    }

    fn impi(&self, exports: &Exports, arguments: Vec<String>) -> Result<Vec<String>, Problem> {
        let per_machine = self.per_machine();
        let mut command = words(&["mpirun", "-ppn", &per_machine.to_string()]);
        command.extend(arguments);
        for (name, value) in exports.iter() {
            command.extend(words(&["-genv", name, &value]));
        }
        for name in exports.secret_names() {
            command.extend(words(&["-genvlist", name]));
        }
        let cores = self.cores(per_machine)?;
        if let Some(cores) = &cores {
            command.extend(words(&["-genv", "OMP_NUM_THREADS", &(cores.len() / per_machine).to_string()]));
        }
        command.extend(self.contract());
        command.extend(words(&["-genv", "I_MPI_PIN", "0", "-hosts", &hosts(self.pool)]));
        for rank in 0..per_machine * self.pool.len() {
            let local_rank = rank % per_machine;
            let colon = if rank == 0 { &[][..] } else { &[":"] };
            command.extend(words(colon));
            command.extend(words(&["-n", "1", "-env", "RANK", &rank.to_string()]));
            command.extend(words(&["-env", "LOCAL_RANK", &local_rank.to_string()]));
            if let Some(cores) = &cores {
                let share = cores.len() / per_machine;
                let own: Vec<String> = cores[share * local_rank..share * (local_rank + 1)]
                    .iter()
                    .map(usize::to_string)
                    .collect();
                command.extend(words(&["numactl", "-C", &own.join(",")]));
            }
            command.extend(self.argv.iter().cloned());
        }
        Ok(command)
    }

    /// The cores to bind ranks to, if they are to be bound.
    fn cores(&self, per_machine: usize) -> Result<Option<Vec<usize>>, Problem> {
        if !self.settings.get(keys::BIND_CORES_TO_RANK) {
            return Ok(None);
        }
        let listed = self.settings.get(keys::BIND_CORE_LIST);
        let cores = listed.map_or_else(|| Some(oarlock_comm::available_cores()), super::launch::core_list);
        match cores.filter(|cores| per_machine > 0 && cores.len() >= per_machine) {
            Some(cores) => Ok(Some(cores)),
            None => {
                let message = format!("there is not a core for each of {per_machine} ranks");
                let problem =
                    self.settings.problem(message, &[keys::BIND_CORE_LIST.row, keys::BIND_CORES_TO_RANK.row]);
                Err(problem.help("write numbers and ranges that rise, as in --bind_core_list 0-7"))
            }
        }
    }

    fn mvapich(&self, exports: &Exports, arguments: Vec<String>) -> Vec<String> {
        let mut command = words(&["mpirun", "-np", &self.total(), "-ppn", &self.per_machine().to_string()]);
        command.extend(words(&["--hostfile", self.machines]));
        command.extend(arguments);
        command.extend(exports.words("-env", "-envlist"));
        command.extend(self.argv.iter().cloned());
        command
    }

    fn slurm(&self, exports: &Exports, arguments: Vec<String>) -> Vec<String> {
        let total: usize = self.slots.iter().map(|(_, slots)| slots.len()).sum();
        let mut command = words(&["srun", "-n", &total.to_string()]);
        command.extend(arguments);
        if self.settings.setting(keys::INCLUDE).is_written()
            || self.settings.setting(keys::EXCLUDE).is_written()
        {
            command.extend(words(&[
                "--nodelist",
                &hosts(self.slots),
                "--nodes",
                &self.slots.len().to_string(),
            ]));
        }
        for (flag, key) in [("--nodes", keys::NUM_NODES), ("--gpus-per-node", keys::NUM_GPUS)] {
            let count = self.settings.get(key);
            if count > 0 {
                command.extend(words(&[flag, &count.to_string()]));
            }
        }
        let exported: String = exports.iter().map(|(name, value)| format!(",{name}={value}")).collect();
        // ALL hands on the variables of srun itself, among them the secrets.
        command.push(format!("--export=ALL{exported}"));
        command.extend(self.argv.iter().cloned());
        command
    }

    /// The variables of the run for MPICH and its relatives.
    fn contract(&self) -> Vec<String> {
        let pairs = [
            ("MASTER_ADDR", self.master.addr.clone()),
            ("MASTER_PORT", self.master.port.to_string()),
            ("WORLD_SIZE", self.total()),
            ("LOCAL_SIZE", self.per_machine().to_string()),
        ];
        pairs.into_iter().flat_map(|(name, value)| words(&["-genv", name, &value])).collect()
    }

    fn total(&self) -> String {
        self.pool.iter().map(|(_, slots)| slots).sum::<usize>().to_string()
    }

    fn per_machine(&self) -> usize {
        self.pool.first().map_or(0, |(_, slots)| *slots)
    }
}

/// The port of ssh that the flags name.
pub fn port_of_ssh(settings: &Settings) -> Option<i64> {
    settings.setting(keys::SSH_PORT).is_written().then(|| settings.get(keys::SSH_PORT).unwrap_or_default())
}

/// The arguments with which ssh uses a port.
pub fn ssh_port(port: Option<i64>) -> Vec<String> {
    port.map_or(Vec::new(), |port| vec!["-p".to_owned(), port.to_string()])
}

fn hosts<T>(machines: &[(String, T)]) -> String {
    machines.iter().map(|(host, _)| host.as_str()).collect::<Vec<_>>().join(",")
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
