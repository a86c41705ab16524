//! Starts the commands that reach other machines, and watches them.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use oarlock_comm::{Exit, Grace, RankGroup, StopSignals};

use super::exports::{Machine, shell};
use super::hostfile::Pool;
use super::multinode::Launcher;
use crate::config::{Problem, Problems};
use crate::console::{Failure, Outcome, say, tell};
use crate::error::Error;
use crate::front::job::{self, Job};
use crate::launch::Launch;

/// From SIGTERM to SIGKILL, as in the original.
const GRACE: Grace = Grace { term: Duration::from_secs(1), kill: Duration::from_secs(30) };

/// A start on other machines.
pub struct Remote {
    /// What each of them does.
    pub job: Job,
    /// The program that reaches them.
    pub launcher: Launcher,
    /// Its commands.
    pub commands: Vec<Vec<String>>,
    /// What ends the ranks there.
    pub ending: Vec<Vec<String>>,
    /// A file of machines that the commands read, and what belongs into it.
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
            say(&self.outline())?;
        }
        if !goes_on {
            return Ok(());
        }
        self.can_start().map_err(|problem| Failure::Problems(Problems::from(problem)))?;
        let _file = self.machines.as_ref().map(|(path, pool)| MachineFile::write(path, pool)).transpose()?;
        let signals = StopSignals::catch()?;
        let commands: Vec<Command> = self.commands.iter().map(|words| self.command(words, machine)).collect();
        // The commands are launchers, not ranks: nothing is handed down to them.
        let ending = RankGroup::spawn(None, commands, GRACE, &signals)?.wait()?;
        if let Some(signal) = ending.signal {
            for words in &self.ending {
                // Where nothing is left to end, it says so, and that is well.
                let _ = self.command(words, machine).stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
            tell(&format!("stopped by signal {signal}\n"));
            return Err(Failure::Told(128 + (signal & 0x7f) as u8));
        }
        match ending.failed.map(|failed| failed.end.exit) {
            None => Ok(()),
            Some(exit) => {
                let program = self.launcher.program();
                tell(&format!("error: {program} failed: {exit}\n"));
                let code = match exit {
                    Exit::Code(code) => u8::try_from(code).unwrap_or(1).max(1),
                    Exit::Signal(signal) => 128 + (signal & 0x7f) as u8,
                };
                Err(Failure::Told(code))
            }
        }
    }

    /// The commands, and the environment of every rank.
    pub fn outline(&self) -> String {
        let mut out = format!("{} by {}:\n", job::would_start(&self.job.launch), self.launcher.program());
        for words in &self.commands {
            let words: Vec<String> = words.iter().map(|word| shell(word)).collect();
            out.push_str(&format!("  {}\n", words.join(" ")));
        }
        out + &job::ranks(&|node| self.launches[node].clone())
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
        if !is_there(program) {
            let problem = Problem::new(format!("there is no `{program}` on this machine"));
            return Err(problem.help(
                "install it, choose another --launcher (ssh needs nothing else), or start each machine by hand with \
                 --no_ssh --node_rank N",
            ));
        }
        let Some(host) = &self.check else { return Ok(()) };
        let mut ssh = Command::new("ssh");
        ssh.args(["-o", "PasswordAuthentication=no"]);
        if let Some(port) = self.port {
            ssh.args(["-p", &port.to_string()]);
        }
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

/// Whether a program can be found.
fn is_there(program: &str) -> bool {
    let can_run =
        |path: PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|folder| can_run(folder.join(program))))
}

/// A file with a machine a line, while it lives.
struct MachineFile(PathBuf);

impl MachineFile {
    fn write(path: &PathBuf, pool: &Pool) -> Result<MachineFile, Error> {
        // Nobody else may have put a file or a link there.
        let mut file = std::fs::File::create_new(path).map_err(Error::io("create", path))?;
        let own = MachineFile(path.clone());
        let lines: String = pool.iter().map(|(host, _)| format!("{host}\n")).collect();
        file.write_all(lines.as_bytes()).map_err(Error::io("write", path))?;
        Ok(own)
    }
}

impl Drop for MachineFile {
    fn drop(&mut self) {
        // Nothing is left to do where it cannot be removed.
        let _ = std::fs::remove_file(&self.0);
    }
}
