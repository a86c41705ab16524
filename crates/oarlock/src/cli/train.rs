//! `oarlock train`: resolves the configuration, starts the ranks, or is one of them.

use std::time::SystemTime;

use crate::accelerator::Accelerator;
use crate::cli::{Failure, Outcome, say, tell};
use crate::config::{TrainConfig, explain, paths, train_config, written};
use crate::launch::{self, STARTED};
use crate::rank;
use crate::train;

/// Runs the command; `started` is when this process began.
pub(super) fn run(words: &[String], started: SystemTime) -> Outcome {
    let arguments = written::arguments(words).map_err(Failure::Problems)?;
    if arguments.help || words.is_empty() {
        say(&explain::help())?;
        return if arguments.help { Ok(()) } else { Err(Failure::Told(2)) };
    }
    let config = train_config(&arguments, &|name| std::env::var(name).ok()).map_err(Failure::Problems)?;
    if arguments.print_config {
        say(&config.table())?;
    }
    paths::check(&config).map_err(Failure::Problems)?;
    if arguments.dry_run || arguments.print_config {
        return Ok(());
    }
    if launch::is_rank() || config.ranks.num_processes == 1 {
        let stamp = std::env::var(STARTED).ok();
        let started = stamp.as_deref().map_or(started, |stamp| train::started(Some(stamp)));
        return run_rank(&config, started);
    }
    let mut again = vec!["train".to_string()];
    again.extend_from_slice(words);
    match launch::run_ranks(config.ranks.num_processes, &again, started)? {
        launch::Outcome::Done => Ok(()),
        launch::Outcome::Failed(failed) => {
            tell(&format!("error: {}\n", launch::explain(&failed)));
            Err(Failure::Told(1))
        }
        launch::Outcome::Stopped(signal) => {
            tell(&format!("stopped by signal {signal}; all ranks have ended\n"));
            Err(Failure::Told(128 + (signal & 0x7f) as u8))
        }
    }
}

/// One rank of the run. A failure is told to the other ranks and, among several, reported by the launcher alone if it
/// is ours; another's knows exit codes only, so there each rank says what it knows.
fn run_rank(config: &TrainConfig, started: SystemTime) -> Outcome {
    let comm = rank::join()?;
    let result = (|| {
        // A file that changed between the start of two ranks would be a different run on each.
        comm.agree("the configuration (did a file change just now?)", fingerprint(config))?;
        let accelerator = Accelerator::over(comm.clone(), &train::accelerator_config(config)?)?;
        train::run(config, &accelerator, started)
    })();
    match result {
        Ok(()) => {
            comm.finish();
            Ok(())
        }
        Err(error) if comm.world_size() == 1 => Err(Failure::Error(error)),
        Err(error) => {
            if error.began_on().is_some_and(|rank| rank != comm.rank()) {
                // The rank where it began is to be named: wait for its word, which fails this.
                let _ = comm.barrier();
            }
            comm.abort(&error.to_string());
            if !launch::is_our_rank() {
                tell(&format!("rank {}: error: {error}\n", comm.rank()));
            }
            Err(Failure::Told(1))
        }
    }
}

fn fingerprint(config: &TrainConfig) -> u64 {
    config
        .table()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
