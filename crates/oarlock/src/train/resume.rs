//! Where a run goes on: the newest whole checkpoint, past those that are damaged.

use std::path::{Path, PathBuf};

use crate::accelerator::Accelerator;
use crate::checkpoint::{self, CheckpointError, ClientState, Listed, Problem};
use crate::config::{Resume, TrainConfig};
use crate::error::{Error, Result};
use crate::terminal::tell;

/// The checkpoint to go on from: rank 0 looks, all take the same.
///
/// # Errors
/// None where one must be, damaged ones alone where nobody said to begin anew, a disk that cannot be read, the failure of
/// another rank.
pub fn checkpoint_to_resume(config: &TrainConfig, accelerator: &Accelerator) -> Result<Option<PathBuf>> {
    let output = &config.save.output_dir;
    let found = match &config.save.resume {
        Resume::Never => None,
        Resume::From(dir) => Some(dir.clone()),
        Resume::IfPresent | Resume::Newest => {
            let newest = match accelerator.is_main_process() {
                true => newest_whole(output, &config.save.resume)?,
                false => None,
            };
            let chosen =
                accelerator.communicator().broadcast_bytes(0, newest.unwrap_or_default().as_bytes())?;
            let chosen = String::from_utf8_lossy(&chosen).into_owned();
            (!chosen.is_empty()).then(|| PathBuf::from(chosen))
        }
    };
    if found.is_none() && config.save.resume == Resume::Newest {
        return Err(Error::Usage(format!(
            "resume_from_checkpoint is true, but {} holds no whole checkpoint",
            output.display()
        )));
    }
    Ok(found)
}

/// The newest checkpoint that is whole; says which newer ones are not, and why. A run that would begin anew beside damaged
/// ones is refused: its saves would take their places.
fn newest_whole(output: &Path, resume: &Resume) -> Result<Option<String>> {
    let newest = checkpoint::newest(output)?;
    if let (Resume::IfPresent, None, Some(Listed { path, problem: Some(problem), .. })) =
        (resume, &newest.path, newest.skipped.first())
    {
        return Err(Error::Usage(format!(
            "{} cannot be resumed: {problem}, and {} holds no other checkpoint to resume; to begin anew, write \
             `resume_from_checkpoint: false`",
            path.display(),
            output.display()
        )));
    }
    for listed in &newest.skipped {
        if let Some(problem) = &listed.problem {
            // Where nobody listens the run goes on all the same.
            tell(&format!("warning: {} is left aside: {problem}\n", listed.path.display()));
        }
    }
    Ok(newest.path.map(|path| path.to_string_lossy().into_owned()))
}

/// Loads a checkpoint; where its contents are damaged and nobody named it, the newest older one that is not.
///
/// # Errors
/// As [`Accelerator::load_state`].
pub fn load_undamaged(
    config: &TrainConfig,
    accelerator: &Accelerator,
    dir: &mut PathBuf,
) -> Result<ClientState> {
    let mut aside = Vec::new();
    loop {
        let error = match accelerator.load_checkpoint(dir) {
            // All ranks were told the same, so all look for another one, or none does.
            Err(error) if !matches!(config.save.resume, Resume::From(_)) && is_damage(&error) => error,
            loaded => return loaded,
        };
        aside.push(dir.clone());
        let older = match accelerator.is_main_process() {
            true => {
                tell(&format!("warning: {error}; it is left aside\n"));
                whole_apart_from(&config.save.output_dir, &aside)?
            }
            false => None,
        };
        let chosen = accelerator.communicator().broadcast_bytes(0, older.unwrap_or_default().as_bytes())?;
        if chosen.is_empty() {
            return Err(error);
        }
        *dir = PathBuf::from(String::from_utf8_lossy(&chosen).into_owned());
    }
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Checkpoint(CheckpointError::NotLoaded { problem: Problem::Checksum { .. }, .. }))
}

fn whole_apart_from(output: &Path, aside: &[PathBuf]) -> Result<Option<String>> {
    let mut listed = checkpoint::list(output)?.into_iter().rev();
    let found = listed.find(|one| one.problem.is_none() && !one.only_model && !aside.contains(&one.path));
    Ok(found.map(|one| one.path.to_string_lossy().into_owned()))
}

/// What to say where the configuration draws from other seeds than the run that is resumed did.
pub fn other_seeds(config: &TrainConfig, client: &ClientState) -> Option<String> {
    let now = [("seed", config.train.seed), ("data_seed", config.train.data_seed)];
    let differ = now.into_iter().filter_map(|(name, now)| {
        let then = *client.seeds.get(name)?;
        (then != now).then(|| format!("{name} is {now}, and was {then} when the checkpoint was saved"))
    });
    let differ: Vec<String> = differ.collect();
    (!differ.is_empty())
        .then(|| format!("warning: {}; what is drawn from now on follows the new one", differ.join("; ")))
}
