//! Starts the commands that reach other machines, and watches them.

use std::fs::File;
use std::io::{Seek, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use oarlock_comm::{Exit, Grace, RankGroup, StopSignals};
use oarlock_config::settings::secret::masked_words;
use rustix::fs::MemfdFlags;
use tempfile::TempPath;

use super::exports::{Machine, shell};
use super::hostfile::Pool;
use super::launcher::Launcher;
use super::multinode::{Commands, ssh_port};
use crate::config::{Problem, Problems};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::Error;
use crate::front::job::{self, Job};
use crate::front::script::program_in_path;
use crate::launch::{Launch, exit_code};

/// From SIGTERM to SIGKILL, as in the original.
const GRACE: Grace = Grace { term: Duration::from_secs(1), kill: Duration::from_secs(30) };

/// A start on other machines.
pub struct Remote {
    /// What each of them does.
    pub job: Job,
    /// The program that reaches them.
    pub launcher: Launcher,
    /// Its commands.
    pub commands: Commands,
    /// What ends the ranks there.
    pub ending: Vec<Vec<String>>,
    /// A file of machines that the commands read, and what belongs in it.
    pub machines: Option<(PathBuf, Pool)>,
    /// The ranks of each machine.
    pub launches: Vec<Launch>,
    /// A machine to try first.
    pub check: Option<String>,
    /// The port of ssh.
    pub port: Option<i64>,
}

impl Remote {
    /// Runs it.
    pub fn run(&self, machine: &Machine) -> Outcome {
        let goes_on = self.job.examine()?;
        if self.job.dry_run {
            print(&self.outline())?;
        }
        if !goes_on {
            return Ok(());
        }
        self.can_start().map_err(Problems::from)?;
        let _file = self.machines.as_ref().map(|(path, pool)| machine_file(path, pool)).transpose()?;
        let signals = StopSignals::catch()?;
        for words in &self.commands.leave {
            self.leave(words, machine)?;
        }
        let start = self.commands.start.iter().map(|words| self.with_secrets(words, machine));
        let commands = start.collect::<Result<Vec<Command>, Error>>()?;
        // The commands are launchers, not ranks: nothing is handed down to them.
        let ending = RankGroup::spawn(None, commands, GRACE, &signals)?.wait()?;
        if let Some(signal) = ending.signal {
            for words in &self.ending {
                // Where nothing is left to end, it says so, and that is well.
                let _ = self.command(words, machine).stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
            eprint(&format!("stopped by signal {signal}\n"));
            return Err(Failure::Reported(exit_code(Exit::Signal(signal))));
        }
        match ending.failed.map(|failed| failed.end.exit) {
            None => Ok(()),
            Some(exit) => {
                let program = self.launcher.program();
                eprint(&format!("error: {program} failed: {exit}\n"));
                Err(Failure::Reported(exit_code(exit)))
            }
        }
    }

    /// The commands, and the environment of every rank.
    pub fn outline(&self) -> String {
        let mut out = format!("{} by {}:\n", job::would_start(&self.job.launch), self.launcher.program());
        for words in &self.commands.start {
            out.push_str(&format!("  {}\n", shown(words)));
        }
        out + &job::ranks(&|node| self.launches[node].clone())
    }

    /// Leaves the secrets on a machine.
    fn leave(&self, words: &[String], machine: &Machine) -> Result<(), Error> {
        let status = self.reading(words, machine)?.stdout(Stdio::null()).status();
        match status.map_err(Error::io("start", &words[0]))? {
            status if status.success() => Ok(()),
            status => Err(Error::Usage(format!(
                "a machine did not take the secrets of the run: `{}` ended with {status}; set up ssh without a password, or use \
                 --launcher ssh",
                shown(words)
            ))),
        }
    }

    /// A command that starts ranks, with the secrets where it expects them.
    fn with_secrets(&self, words: &[String], machine: &Machine) -> Result<Command, Error> {
        let mut command = match self.commands.leave.is_empty() {
            true => self.reading(words, machine)?,
            false => self.command(words, machine),
        };
        command.envs(self.commands.environment.iter().map(|(name, value)| (name, value.reveal())));
        Ok(command)
    }

    /// A command that reads the secrets, if there are any.
    fn reading(&self, words: &[String], machine: &Machine) -> Result<Command, Error> {
        let mut command = self.command(words, machine);
        if let Some(input) = &self.commands.input {
            let failed = || Error::io("write", "the input of a command");
            let file = rustix::fs::memfd_create("input", MemfdFlags::CLOEXEC);
            let mut file = File::from(file.map_err(|error| failed()(error.into()))?);
            file.write_all(input.reveal().as_bytes()).and_then(|()| file.rewind()).map_err(failed())?;
            command.stdin(file);
        }
        Ok(command)
    }

    fn command(&self, words: &[String], machine: &Machine) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let folder = machine.folder.display();
        let path = match (machine.read)("PYTHONPATH") {
            Some(path) => format!("{folder}:{path}"),
            None => folder.to_string(),
        };
        command.env("PYTHONPATH", path);
        if self.launcher == Launcher::Pdsh {
            command.env("PDSH_RCMD_TYPE", "ssh");
            if let Some(port) = self.port {
                let before = (machine.read)("PDSH_SSH_ARGS_APPEND").unwrap_or_default();
                command.env("PDSH_SSH_ARGS_APPEND", format!("{before} -p {port}"));
            }
        }
        command
    }

    /// The launcher is there, and the first machine can be reached.
    fn can_start(&self) -> Result<(), Problem> {
        let program = self.launcher.program();
        if program_in_path(program).is_none() {
            let problem = Problem::new(format!("there is no `{program}` on this machine"));
            return Err(problem.help(
                "install it, choose another --launcher (ssh needs nothing else), or start each machine by hand with \
                 --no_ssh --node_rank N",
            ));
        }
        let Some(host) = &self.check else { return Ok(()) };
        let mut ssh = Command::new("ssh");
        ssh.args(["-o", "PasswordAuthentication=no"]);
        ssh.args(ssh_port(self.port));
        let status =
            ssh.args([host, "hostname"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match status.status() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(Problem::new(format!("the machine `{host}` of the hostfile cannot be reached by ssh"))
                .help(
                    "set up ssh without a password, remove the hostfile to use this machine alone, or write \
                 --no_ssh_check",
                )),
        }
    }
}

/// A file with one machine a line, which is removed when the value is dropped.
fn machine_file(path: &Path, pool: &Pool) -> Result<TempPath, Error> {
    let mut file = oarlock_files::create_new(path).map_err(Error::io("create", path))?;
    let own = TempPath::try_from_path(path).map_err(Error::io("find", path))?;
    let lines: String = pool.iter().map(|(host, _)| format!("{host}\n")).collect();
    file.write_all(lines.as_bytes()).map_err(Error::io("write", path))?;
    Ok(own)
}

/// A command as it would be written in a shell, with its secrets hidden.
fn shown(words: &[String]) -> String {
    let hidden = masked_words(words.iter().map(String::as_str));
    hidden.iter().map(|word| shell(word)).collect::<Vec<_>>().join(" ")
}
