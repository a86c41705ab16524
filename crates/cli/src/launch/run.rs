//! Starts the ranks of this machine, round after round, until they are done or have failed too often.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use oarlock_comm::shm::ShmHost;
use oarlock_comm::wire::{ENCRYPTION, TOKEN, TOKEN_FILE};
use oarlock_comm::{
    Ended as RankEnd, Ending, Exit, Grace, RankGroup, RankState, RankStatus, StopSignals, bind,
};
use oarlock_config::settings::Problems;
use oarlock_engine::distributed::launch::{Memory, WorkerEnv, default_omp_threads, port};

use super::agents::{Agent, Decision, Event, Round};
use super::cores;
use super::environment::variables;
use super::failure::{self, Failure, exit_code};
use super::logs::{ErrorFile, Logs, Message};
use super::output::Outputs;
use super::rounds::{Known, Rounds, meeting, unless_stopped};
use super::spec::Launch;
use super::variables::{ERROR_FILE, FINAL, ROUND, STARTED};
use crate::console::eprint;
use crate::error::{Error, Result};
use oarlock_engine::distributed::launch::devices::{Devices, MACHINE_GPUS};

/// The file of the program that a process is, also when another one has taken its path.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How a launch ended.
#[derive(Debug)]
pub enum Outcome {
    /// All ranks as they should.
    Done,
    /// A rank failed first; the others were ended.
    Failed {
        /// The message for the user.
        message: String,
        /// The code to exit with: that of the rank.
        code: u8,
    },
    /// A signal to this process ended them.
    Stopped(i32),
}

/// Whether a training run can be on machines with so many ranks each.
pub type Fits<'a> = &'a dyn Fn(&[usize]) -> std::result::Result<(), Problems>;

/// Runs a program as the ranks of this machine, and waits until all have ended. Nothing is left of them, whatever
/// happens to any of them or to this process. A `training` of this program meets in shared memory, ends quickly, reports errors
/// itself, and may not fit the ranks of all machines; `started` is when the command began.
pub fn run(
    launch: &Launch,
    program: &[String],
    training: Option<Fits>,
    started: SystemTime,
) -> Result<Outcome> {
    let own = training.is_some();
    let signals = StopSignals::these(&launch.signals)?;
    let run = Run {
        launch,
        program,
        own,
        training,
        started,
        signals: &signals,
        logs: Logs::create(&launch.output, &launch.run_id)?,
        memory: Memory::now(),
    };
    if !own && launch.threads.is_none() && default_omp_threads(launch.local_ranks()).is_some() {
        run.note("OMP_NUM_THREADS is 1 for each rank, since nobody has set it; more may be faster");
    }
    if let Some(logs) = &run.logs {
        run.note(&format!("output of ranks is in {}", logs.folder().display()));
    }
    let Some(meeting) = meeting(launch, own)? else { return run.all(&mut Known::new(launch)?) };
    meeting.waits().iter().for_each(|note| run.note(note));
    meeting.warnings().iter().for_each(|warning| run.say(&format!("warning: {warning}\n")));
    let stop = || signals.received().is_some();
    match unless_stopped(Agent::join(&meeting, &stop))? {
        Some(mut agent) => run.all(&mut agent),
        None => Ok(Outcome::Stopped(signals.received().unwrap_or(0))),
    }
}

struct Run<'a> {
    launch: &'a Launch,
    program: &'a [String],
    own: bool,
    training: Option<Fits<'a>>,
    started: SystemTime,
    signals: &'a StopSignals,
    logs: Option<Logs>,
    memory: Memory,
}

/// How a round ended.
struct Ended {
    ending: Ending,
    workers: Vec<WorkerEnv>,
    errors: Vec<ErrorFile>,
    /// What the other machines wanted.
    event: Event,
}

impl Run<'_> {
    fn note(&self, text: &str) {
        self.say(&format!("note: {text}\n"));
    }

    fn say(&self, text: &str) {
        if !self.launch.quiet {
            eprint(text);
        }
    }

    fn all(&self, rounds: &mut dyn Rounds) -> Result<Outcome> {
        let stop = || self.signals.received().is_some();
        loop {
            let Some(round) = rounds.next(&stop)? else {
                return Ok(Outcome::Stopped(self.signals.received().unwrap_or(0)));
            };
            if let Some(fits) = self.training.filter(|_| round.local_ranks.len() > 1) {
                fits(&round.local_ranks)?;
            }
            let ended = self.round(rounds, round)?;
            if let Some(signal) = ended.ending.signal {
                return Ok(Outcome::Stopped(signal));
            }
            let failures = ended.failures(self.own);
            let ends_so = |failure: &Failure| failure.end.exit == Exit::Code(i32::from(FINAL));
            let is_final = self.own
                && failures.iter().any(|(first, others)| ends_so(first) || others.iter().any(ends_so));
            let event = match (&ended.event, &failures) {
                (Event::Nothing, None) => rounds.done(&stop)?,
                (event, _) => event.clone(),
            };
            // What others say of this machine counts less than the signal that is seen here.
            let killed = failures.as_ref().filter(|(first, _)| was_killed(&first.end));
            let killed = killed.map_or(String::new(), |(first, others)| self.message(&ended, first, others));
            match (event, failures) {
                (Event::Restart { reason }, _) => {
                    self.say(&killed);
                    self.note(&format!("{reason}; all ranks start again when enough nodes are here"));
                }
                (Event::Abort { .. }, Some((first, others))) if is_final => {
                    let message = self.message(&ended, &first, &others);
                    return Ok(Outcome::Failed { message, code: FINAL });
                }
                (Event::Abort { reason }, _) => {
                    return Ok(Outcome::Failed { message: format!("{killed}error: {reason}\n"), code: 1 });
                }
                (Event::Nothing | Event::AllDone, None) => return Ok(Outcome::Done),
                (Event::Nothing | Event::AllDone, Some((first, others))) => {
                    let message = self.message(&ended, &first, &others);
                    let Some(decision) = rounds.failed(&first, is_final, &stop)? else {
                        return Ok(Outcome::Stopped(self.signals.received().unwrap_or(0)));
                    };
                    if let Decision::Abort { reason } = decision {
                        let reason = reason
                            .filter(|_| !is_final)
                            .map_or(String::new(), |reason| format!("error: {reason}\n"));
                        let message = message + &reason;
                        let code = match self.own {
                            true if is_final => FINAL,
                            true => 1,
                            false => exit_code(first.end.exit),
                        };
                        return Ok(Outcome::Failed { message, code });
                    }
                    eprint(&message);
                    let restart = ended.workers.first().map_or(0, |worker| worker.restart) + 1;
                    let max = self.launch.restarts.max;
                    let from = if self.own { " from the newest checkpoint" } else { "" };
                    self.note(&format!("all ranks start again{from}: restart {restart} of {max}"));
                }
            }
        }
    }

    /// The message about failures: the error of an Oarlock run, and torchrun's table for another program.
    fn message(&self, ended: &Ended, first: &Failure, others: &[Failure]) -> String {
        if self.own {
            let cause = match (&first.message, &ended.ending.failed) {
                (Some(message), _) => message.text.clone(),
                (None, Some(failed)) if ended.machines() == 1 => failed.cause.to_string(),
                (None, _) => format!("rank {} failed: {}", first.rank, first.end.exit),
            };
            return match self.memory.explain(&first.end) {
                Some(likely) => format!("error: {cause}; {likely}\n"),
                None => format!("error: {cause}\n"),
            };
        }
        failure::table(&self.memory, title(self.program), first, others)
    }

    fn round(&self, rounds: &mut dyn Rounds, round: Round) -> Result<Ended> {
        let n_ranks = round.local_ranks.get(round.node_rank).copied().unwrap_or(0);
        let machines = round.local_ranks.len();
        let mut master_port = round.master_port;
        let (chosen, note) = port::choose(master_port, machines, round.node_rank)?;
        if !self.own || master_port == 0 {
            master_port = chosen;
            note.iter().for_each(|note| self.note(note));
        }
        // What is one machine can meet in its memory; a program that knows nothing of it is not disturbed, so not even
        // by a machine that refuses the memory: one of ours then meets as under any launcher.
        let host = match (machines, self.own) {
            (1, true) => Some(ShmHost::create(n_ranks)?),
            (1, false) => ShmHost::create(n_ranks).ok(),
            _ => None,
        };
        let host = host.map(Arc::new);
        let worker = |local_rank| WorkerEnv {
            local_rank,
            node_rank: round.node_rank,
            local_ranks: round.local_ranks.clone(),
            restart: round.restart,
            master: (round.master_addr.clone(), master_port),
        };
        let workers: Vec<WorkerEnv> = (0..n_ranks).map(worker).collect();
        let attempt = self.logs.as_ref().map(|logs| logs.attempt(round.restart, n_ranks)).transpose()?;
        let mut outputs =
            Outputs::new(&self.launch.output, &self.launch.role, &workers, self.own, attempt.as_ref())?;
        let mut errors = Vec::new();
        let mut commands = Vec::new();
        for worker in &workers {
            let file = ErrorFile::create(attempt.as_ref(), worker.local_rank)?;
            let mut command = self.command(worker, &round, &file)?;
            outputs.attach(worker.local_rank, &mut command);
            commands.push(command);
            errors.push(file);
        }
        let grace = match self.own {
            true => Grace::SHORT,
            false => Grace { term: std::time::Duration::ZERO, kill: self.launch.grace },
        };
        let mut group = RankGroup::spawn(host.clone(), commands, grace, self.signals)?;
        outputs.read(&mut group)?;
        let mut event = Event::Nothing;
        let ending = loop {
            if let Some(ending) = group.wait_for(self.launch.restarts.monitor_interval)? {
                break ending;
            }
            if let Some(stopped) = group.stopped_for(self.launch.stopped_notice) {
                self.note(&stopped.to_string());
            }
            if event == Event::Nothing {
                event = rounds.poll().unwrap_or_else(|error| Event::Abort { reason: error.to_string() });
                if event != Event::Nothing {
                    group.stop();
                }
            }
        };
        outputs.finish(self.signals, ending.signal.is_some());
        if self.own && ending.is_success() && event == Event::Nothing {
            // Whatever ended well there, it was not a training run.
            let is_absent = |status: &RankStatus| status.state == RankState::Absent;
            if host.is_some_and(|host| host.statuses().iter().all(is_absent)) {
                let text =
                    "the ranks ended with exit code 0, but never joined each other: nothing was trained";
                return Err(Error::Usage(text.to_owned()));
            }
        }
        Ok(Ended { ending, workers, errors, event })
    }

    fn command(&self, worker: &WorkerEnv, round: &Round, error_file: &ErrorFile) -> Result<Command> {
        let launch = self.launch;
        let program = match launch.local_rank_argument && !self.own {
            true => with_local_rank(self.program, &worker.local_rank.to_string()),
            false => self.program.to_vec(),
        };
        let Some((name, arguments)) = program.split_first() else {
            return Err(Error::Usage("there is no program to start".to_owned()));
        };
        let mut command = match self.own {
            // The program that this process is, whatever has taken its place at its path meanwhile.
            true => {
                let mut command = Command::new(THIS_PROGRAM);
                command.arg0(name);
                command
            }
            false => Command::new(name),
        };
        command.args(arguments).envs(variables(launch, worker));
        // What keeps others out of the meeting keeps them from its ranks, whatever program those run.
        if round.local_ranks.len() > 1 && !round.token.is_empty() {
            command.env(TOKEN, &round.token).env_remove(TOKEN_FILE);
            if !round.encrypts {
                command.env(ENCRYPTION, "0");
            }
        }
        if self.own {
            let micros = self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            command.env(STARTED, micros.to_string()).stdin(Stdio::null());
            command.env(ROUND, round.number.to_string());
            if round.local_ranks.len() > 1 {
                // Its ranks say here why they failed, as there is no memory that all of them share.
                command.env(ERROR_FILE, error_file.path());
            }
            if launch.env.iter().any(|(name, _)| name == "CUDA_VISIBLE_DEVICES") {
                command.env(MACHINE_GPUS, Devices::here(None).gpus.to_string());
            }
        } else {
            command.env(ERROR_FILE, error_file.path());
            if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
                // Ranks are in process groups of their own, which may not read from it.
                command.stdin(Stdio::null());
            }
        }
        if let Some(cores) = cores::of(&launch.binding, worker.local_rank, worker.local_world_size()) {
            bind(&mut command, &cores)?;
        }
        Ok(command)
    }
}

impl Ended {
    fn machines(&self) -> usize {
        self.workers.first().map_or(1, |worker| worker.local_ranks.len())
    }

    /// The rank that a failed one means: it found the process of another of this machine gone, and the signal is seen here.
    fn killed_that(&self, failed: usize) -> Option<usize> {
        let word = self.errors.get(failed)?.message()?.text;
        let is_meant =
            |rank: usize| word.starts_with(&format!("rank {} failed: ", self.workers[rank].rank()));
        (0..self.ending.ranks.len().min(self.workers.len()))
            .find(|&rank| rank != failed && was_killed(&self.ending.ranks[rank]) && is_meant(rank))
    }

    /// The rank that failed first, and the other ranks that failed. The ranks of an Oarlock run
    /// agree which was first. Another program is believed by the times that it wrote, since one that waits for a rank
    /// that has failed may end before it.
    fn failures(&self, own: bool) -> Option<(Failure, Vec<Failure>)> {
        let failure = |local_rank: usize| {
            let (worker, end) = (&self.workers[local_rank], self.ending.ranks[local_rank]);
            Failure::new(worker.rank(), local_rank, end, self.errors.get(local_rank))
        };
        let bad = |rank: &usize| !self.ending.ranks[*rank].exit.is_success();
        let n_ranks = self.ending.ranks.len().min(self.workers.len());
        let seen = self.ending.failed.as_ref().map(|failed| failed.rank);
        let killed = |rank: &usize| was_killed(&self.ending.ranks[*rank]);
        let seen = seen.or_else(|| (0..n_ranks).find(killed)).or_else(|| (0..n_ranks).find(bad))?;
        let seen = if own { self.killed_that(seen).unwrap_or(seen) } else { seen };
        let mut all: Vec<Failure> =
            (0..n_ranks).filter(|rank| *rank == seen || bad(rank)).map(failure).collect();
        all.sort_by_key(|failure| (if own { 0 } else { failure.began() }, failure.local_rank != seen));
        let mut all = all.into_iter();
        let mut first = all.next()?;
        if let Some(failed) = self.ending.failed.as_ref().filter(|_| first.end.exit.is_success()) {
            // Its exit does not say what the other ranks waited for.
            first.message.get_or_insert_with(|| Message { text: failed.cause.to_string(), seconds: None });
        }
        Some((first, all.collect()))
    }
}

/// Whether a rank was ended by a signal that its launcher did not send.
fn was_killed(end: &RankEnd) -> bool {
    matches!(end.exit, Exit::Signal(_)) && !end.asked_to_end
}

/// A program with the argument that DeepSpeed's launcher gives each rank.
pub fn with_local_rank(program: &[String], local_rank: &str) -> Vec<String> {
    let mut program = program.to_vec();
    if let Some((_, arguments)) = program.split_first() {
        program.insert(1 + script(arguments), format!("--local_rank={local_rank}"));
    }
    program
}

/// What the table of failures is titled by, as in torchrun: the script or module that Python runs, else the program.
fn title(program: &[String]) -> &str {
    let at = program.split_first().map_or(0, |(_, arguments)| script(arguments));
    program.get(at).map_or("", String::as_str)
}

/// Where the arguments of a script begin, after what calls Python with it.
fn script(arguments: &[String]) -> usize {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["-u", "-m", _, ..] => 3,
        ["-u", _, ..] => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round on the second of two machines whose ranks 2 and 3 ended so.
    fn ended(ends: [(Exit, bool); 2], word: &str) -> Ended {
        let end =
            |(exit, asked_to_end)| RankEnd { pid: 7, exit, at: UNIX_EPOCH, resident: None, asked_to_end };
        let ranks: Vec<RankEnd> = ends.into_iter().map(end).collect();
        let cause = oarlock_comm::Error::PeerFailed { rank: 0, cause: ranks[0].exit.to_string() };
        let failed = oarlock_comm::FailedRank { rank: 0, end: ranks[0], cause };
        let failed = (!ranks[0].asked_to_end).then_some(failed);
        let worker = |local_rank| WorkerEnv {
            local_rank,
            node_rank: 1,
            local_ranks: vec![2, 2],
            restart: 0,
            master: ("10.0.0.1".to_owned(), 5),
        };
        let errors: Vec<ErrorFile> = (0..2).map(|rank| ErrorFile::create(None, rank).unwrap()).collect();
        std::fs::write(errors[0].path(), word).unwrap();
        let workers = (0..2).map(worker).collect();
        Ended { ending: Ending { failed, ranks, signal: None }, workers, errors, event: Event::Nothing }
    }

    #[test]
    fn a_signal_that_is_seen_here_counts_more_than_the_word_of_another_rank() {
        let first = |ended: Ended| ended.failures(true).unwrap().0.rank;
        let word = "rank 3 failed: its process 9 ended without saying why";
        let killed = (Exit::Signal(9), false);
        assert_eq!(first(ended([(Exit::Code(1), false), killed], word)), 3);
        // It says something of its own, or of another rank, or the launcher ended that one.
        assert_eq!(first(ended([(Exit::Code(1), false), killed], "no memory")), 2);
        assert_eq!(first(ended([(Exit::Code(1), false), killed], "rank 0 failed: no memory")), 2);
        assert_eq!(first(ended([(Exit::Code(1), false), (Exit::Signal(15), true)], word)), 2);
        // Other machines have ended the round before a failure of this one was told.
        assert_eq!(first(ended([(Exit::Signal(15), true), killed], "")), 3);
    }

    #[test]
    fn a_table_of_failures_is_titled_by_what_was_started() {
        let title = |line: &str| {
            super::title(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).to_owned()
        };
        assert_eq!(title("python3 -u src/train.py a.json"), "src/train.py");
        assert_eq!(title("python3 -u -m pkg.train a.json"), "pkg.train");
        assert_eq!(title("/bin/prog /data/arg.json"), "/bin/prog");
        assert_eq!(title("prog"), "prog");
    }

    #[test]
    fn the_arguments_of_a_script_begin_behind_it() {
        let begin = |line: &str| script(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(begin("-u train.py --lr 1"), 2);
        assert_eq!(begin("-u -m pkg.train --lr 1"), 3);
        assert_eq!(begin("--flag of a program"), 0);
        assert_eq!(begin(""), 0);
    }
}
