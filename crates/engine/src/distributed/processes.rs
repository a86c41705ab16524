//! Ranks as processes: this program again, as far as the call that starts them.
//!
//! A rank is told the call by its place in the source and by how often the program came there before. It runs `main`
//! with the arguments of its parent; calls that come earlier return at once, since their ranks have ended; at its own
//! it runs the function and ends.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_comm::shm::ShmHost;
use oarlock_comm::{AllStopped, Ending, Exit, FailedRank, Grace, RankGroup, RankState, StopSignals};

use crate::distributed::launch::{Memory, WorkerEnv, default_omp_threads, port};
use crate::distributed::rank;
use crate::report::error::{Error, Result, SpawnError};
use crate::report::panics;
use crate::report::terminal::eprint;

/// The variable that makes a process a rank: who started it, and at which call.
const VARIABLE: &str = "OARLOCK_SPAWN";

/// How often it is looked whether all ranks are stopped.
const LOOK: Duration = Duration::from_secs(1);

/// The exit codes of a rank whose function returned an error, and of one that panicked: as of any Rust program.
const FAILED: i32 = 1;
const PANICKED: i32 = 101;

/// Where this process was. The calls of a program are the process's, in whatever thread they are made.
#[derive(Default)]
struct Calls {
    /// How often it came to each call.
    counts: Option<HashMap<&'static Location<'static>, usize>>,
    /// It came to the call that it is a rank of.
    is_rank: bool,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { counts: None, is_rank: false });

/// Runs `f(rank)` in `n_ranks` processes, which are the ranks of a group, and waits for all of them. Each is this
/// program anew, with the same arguments: it runs `main` up to this very call, where it runs `f` and ends. So what
/// stands before the call runs in every rank too, and must lead there again; what stands after it runs in this process
/// alone. Calls that this process has behind it return at once in a rank, as if they had succeeded.
///
/// Ranks have the variables of `torchrun` (`RANK`, `WORLD_SIZE`, `LOCAL_RANK` …). They read no standard input and write
/// where this process writes. When one fails, the others are ended; nothing is left of any, also when this process is
/// killed.
///
/// # Errors
/// [`SpawnError`] with the rank that failed first; when processes cannot be started; a call inside a rank of another.
#[track_caller]
pub fn spawn_processes<F>(n_ranks: usize, f: F) -> Result<()>
where
    F: FnOnce(usize) -> Result<()>,
{
    let call = name_of_call(Location::caller())?;
    match std::env::var(VARIABLE) {
        // What a rank starts inherits the variable, but has another parent.
        Ok(reported) if reported.starts_with(&parent(std::os::unix::process::parent_id())) => {
            if reported == format!("{}{call}", parent(std::os::unix::process::parent_id())) {
                CALLS.lock().unwrap_or_else(PoisonError::into_inner).is_rank = true;
                as_rank(f)
            }
            Ok(())
        }
        _ => start(n_ranks, &call),
    }
}

fn parent(pid: u32) -> String {
    format!("{pid} ")
}

/// The call that a process makes now, by place and number.
fn name_of_call(place: &'static Location<'static>) -> Result<String> {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    if calls.is_rank {
        return Err(Error::Usage(
            "spawn_processes was called by a rank that spawn_processes had started; start all ranks with one call, or \
             use `spawn`, whose ranks are threads, inside it"
                .to_owned(),
        ));
    }
    let count = calls.counts.get_or_insert_default().entry(place).or_default();
    *count += 1;
    Ok(match count {
        1 => place.to_string(),
        count => format!("{place} ({count}. time)"),
    })
}

/// The life of a rank.
fn as_rank(f: impl FnOnce(usize) -> Result<()>) -> ! {
    let comm = rank::join().unwrap_or_else(|error| {
        eprint(&format!("error: {error}\n"));
        std::process::exit(1)
    });
    let rank = comm.rank();
    // What a rank leaves half done, nobody sees: its process ends.
    let code = match catch_unwind(AssertUnwindSafe(|| f(rank))) {
        Ok(Ok(())) => {
            comm.finish();
            0
        }
        Ok(Err(error)) => {
            comm.abort(&error.to_string());
            eprint(&format!("rank {rank}: error: {error}\n"));
            FAILED
        }
        Err(panic) => {
            comm.abort(&format!("panicked: {}", panics::message(&*panic)));
            PANICKED
        }
    };
    std::process::exit(code)
}

/// Starts the ranks of a call, and waits.
fn start(n_ranks: usize, call: &str) -> Result<()> {
    if n_ranks == 0 {
        return Err(Error::Usage(
            "spawn_processes: 0 ranks were asked for; there is at least one".to_owned(),
        ));
    }
    let host = Arc::new(ShmHost::create(n_ranks)?);
    let master = ("127.0.0.1".to_owned(), port::free()?);
    let command = |local_rank| {
        let env = WorkerEnv {
            local_rank,
            node_rank: 0,
            local_ranks: vec![n_ranks],
            restart: 0,
            master: master.clone(),
        };
        // Not by its name, under which another program may lie by now.
        let mut command = Command::new("/proc/self/exe");
        let mut words = std::env::args_os();
        words.next().into_iter().for_each(|name| {
            command.arg0(name);
        });
        command
            .args(words)
            .envs(env.variables(0, "none", "default"))
            .envs(default_omp_threads(n_ranks).map(|threads| ("OMP_NUM_THREADS", threads.to_string())))
            .stdin(Stdio::null());
        command.env(VARIABLE, format!("{}{call}", parent(std::process::id())));
        command
    };
    let memory = Memory::now();
    let signals = StopSignals::catch()?;
    let commands = (0..n_ranks).map(command).collect();
    let mut ranks = RankGroup::spawn(host.clone(), commands, Grace::SHORT, &signals)?;
    let ending = loop {
        if let Some(ending) = ranks.wait_for(LOOK)? {
            break ending;
        }
        if let Some(stopped) = ranks.stopped_for(AllStopped::NOTICE) {
            eprint(&format!("note: {stopped}\n"));
        }
    };
    failure(ending, &memory, &host, call).map_or(Ok(()), |failure| Err(failure.into()))
}

/// What went wrong, if anything did.
fn failure(ending: Ending, memory: &Memory, host: &ShmHost, call: &str) -> Option<SpawnError> {
    if let Some(signal) = ending.signal {
        return Some(SpawnError::Stopped { signal });
    }
    if let Some(FailedRank { rank, end, cause }) = ending.failed {
        let said = match cause {
            oarlock_comm::Error::PeerFailed { cause, .. } => cause,
            cause => cause.to_string(),
        };
        // Of a rank that could say nothing the others saw only that it was gone.
        let spoke =
            matches!(end.exit, Exit::Code(FAILED | PANICKED)) || end.asked_to_end || end.exit.is_success();
        let said = if spoke { said } else { end.exit.to_string() };
        let likely = memory.explain(&end).filter(|_| !end.asked_to_end);
        let cause = likely.map_or_else(|| said.clone(), |likely| format!("{said}; {likely}"));
        return Some(SpawnError::Process { rank, cause });
    }
    let absent = host.statuses().into_iter().find(|status| status.state == RankState::Absent);
    absent.map(|status| SpawnError::NeverCame { rank: status.rank, call: call.to_owned() })
}
