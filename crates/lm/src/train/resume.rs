//! Where a run goes on: the newest checkpoint that is whole on all machines together, past those that are damaged, and saved
//! by a run that computes the same.

use std::path::PathBuf;

use oarlock_config::config::{Resume, TrainConfig};
use oarlock_engine::checkpoint::{self, Agreed, CheckpointError, ClientState, Manifest, Problem, by_root};
use oarlock_engine::report::terminal::eprint;
use oarlock_engine::{Accelerator, Error, Result};

use crate::train::record::RunRecord;

/// A checkpoint to go on from.
pub struct Found {
    /// Its folder.
    pub dir: PathBuf,
    /// Whether an older one will do where it is damaged: nobody named it.
    may_be_older: bool,
}

/// What there is to know of a run that goes on.
pub struct Resumed {
    /// What its checkpoint kept.
    pub client: ClientState,
    /// What is other than in the run that saved it.
    pub messages: Vec<String>,
}

/// The checkpoint to go on from; all machines look, and all take the same.
///
/// # Errors
/// None where one must be, damaged ones alone where nobody said to begin anew, a disk that cannot be read, the failure of
/// another rank.
pub fn checkpoint_to_resume(config: &TrainConfig, accelerator: &Accelerator) -> Result<Option<Found>> {
    let resume = &config.save.resume;
    let begins_apart = matches!(resume, Resume::Never | Resume::From(_));
    // What this run has saved itself is newer than what it began from.
    if !begins_apart || config.save.restarted.is_some() {
        let newest = newest(config, accelerator, &[])?;
        refuse_to_replace(config, &newest)?;
        if accelerator.is_main_process() {
            for (path, problem) in &newest.skipped {
                eprint(&format!("warning: {} is left aside: {problem}\n", path.display()));
            }
        }
        if let Some(dir) = newest.path {
            return Ok(Some(Found { dir, may_be_older: true }));
        }
    }
    Ok(match resume {
        Resume::From(dir) => Some(Found { dir: dir.clone(), may_be_older: false }),
        _ => None,
    })
}

/// Where checkpoints are there of which none is whole, a run that would begin anew beside them is refused: its saves would take
/// their places. So is one that was to go on from one.
fn refuse_to_replace(config: &TrainConfig, newest: &Agreed) -> Result<()> {
    let output = config.save.output_dir.display();
    if newest.path.is_some() {
        return Ok(());
    }
    if config.save.resume == Resume::Newest {
        return Err(none_to_resume(config));
    }
    let Some((path, problem)) = newest.skipped.first() else { return Ok(()) };
    Err(Error::Refused(format!(
        "{} cannot be resumed: {problem}{}, and {output} holds no other checkpoint to resume; to begin anew, write \
         `overwrite_output_dir: true`",
        path.display(),
        machines_apart(newest),
    )))
}

/// The error of a run that is to go on, and finds nothing to go on from.
pub fn none_to_resume(config: &TrainConfig) -> Error {
    let output = config.save.output_dir.display();
    Error::Usage(format!("resume_from_checkpoint is true, but {output} holds no whole checkpoint"))
}

/// The newest whole checkpoint in the output folder that is none of `aside`: of those that this run has saved itself, where it
/// began without regard to what was there.
fn newest(config: &TrainConfig, accelerator: &Accelerator, aside: &[PathBuf]) -> Result<Agreed> {
    let begins_apart = matches!(config.save.resume, Resume::Never | Resume::From(_));
    let since = config.save.restarted.filter(|_| begins_apart);
    let (comm, stores) = (accelerator.communicator(), accelerator.stores());
    checkpoint::newest_of_all(&config.save.output_dir, comm, &stores, since, aside)
}

/// Which machines hold checkpoints, where others hold none.
fn machines_apart(agreed: &Agreed) -> String {
    let with = agreed.apart.iter().map(|(rank, host, names)| {
        format!("rank {rank} on {host} has {} in a folder of its own", names.join(", "))
    });
    let without =
        agreed.without.iter().map(|(rank, host)| format!("rank {rank} on {host} has no checkpoint at all"));
    let all: Vec<String> = with.chain(without).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
}

/// Loads a checkpoint, if it is of a run that computes the same; where it is damaged and nobody named it, the newest older one
/// that is not. `record` is this run's on rank 0.
///
/// # Errors
/// As [`Accelerator::load_state`]; a run that computes something else ([`Error::Refused`]).
pub fn load_undamaged(
    config: &TrainConfig,
    accelerator: &Accelerator,
    record: &RunRecord,
    found: &mut Found,
) -> Result<Resumed> {
    let comm = accelerator.communicator();
    let mut aside = Vec::new();
    loop {
        let dir = found.dir.clone();
        let compared = |client: &ClientState| match config.train.enabled {
            true => record.compare(client, config, &dir),
            // Nothing is computed with it that another checkpoint would know.
            false => Ok(Vec::new()),
        };
        // Before anything is loaded, where the folder of rank 0 says it: what does not fit is then named as it was written.
        let messages = by_root(comm, || match Manifest::read(&dir) {
            Ok(manifest) if manifest.has_state() => compared(&manifest.client_state).map(Some),
            _ => Ok(None),
        })?;
        let messages = messages.map_err(Error::Refused)?;
        let error = match accelerator.load_checkpoint(&dir) {
            Ok(client) => {
                let messages = match messages {
                    Some(messages) => messages,
                    None => by_root(comm, || compared(&client))?.map_err(Error::Refused)?,
                };
                return Ok(Resumed { client, messages });
            }
            // All ranks were told the same, so all look for another one, or none does.
            Err(error) if found.may_be_older && is_damage(&error) => error,
            Err(error) => return Err(error),
        };
        aside.push(dir);
        if accelerator.is_main_process() {
            eprint(&format!("warning: {error}; it is left aside\n"));
        }
        match newest(config, accelerator, &aside)?.path {
            Some(older) => found.dir = older,
            None => return Err(error),
        }
    }
}

/// Whether a checkpoint is not what was saved, of which an older one says nothing.
fn is_damage(error: &Error) -> bool {
    use Problem::{BadManifest, Checksum, MissingFile, NoManifest, OnePart, Size};
    let Error::Checkpoint(CheckpointError::NotLoaded { problem, .. }) = error else { return false };
    matches!(
        problem,
        BadManifest { .. } | Checksum { .. } | MissingFile { .. } | NoManifest | OnePart { .. } | Size { .. }
    )
}
