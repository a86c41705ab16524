//! Saving in the background: training goes on while a thread of each rank writes what the rank owns.
//!
//! ```text
//! rank 0   begin ─ training … poll ─ training … poll ─ …      collectives, only on the ranks' own threads
//!            └ own slices ─ small files ─ parts of the others ─ manifest ─ rename
//! rank 1   begin ─ training … poll ─ training … poll ─ …
//!            └ own slices ─ state/rank-00001.done
//! ```
//!
//! The threads meet in the folder alone: a rank that is done leaves a note there, and rank 0 waits for all notes.
//! Where machines do not see one folder ([`Stores`]) each rank keeps its note, and the ranks exchange them at the poll at which all
//! have written; what is not a rank's own is brought to every machine then, and every machine gives its folder the name.
//! Whether it succeeded the ranks learn together at the next poll; so does rank 0 of a rank that could not even leave
//! its note, as on a full disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_comm::Communicator;
use serde::{Deserialize, Serialize};

use super::folder::{TempFolder, temporary};
use super::frozen::Frozen;
use super::job::{Job, RankFiles, entry_of};
use super::manifest::{ClientState, FileEntry, Manifest, ModelEntry, PlanEntry};
use super::outcome::share;
use super::parts::{Parts, RANKS};
use super::publish::{Deed, await_report, publish, report, seal_rest, write_rest};
use super::stores::Stores;
use super::weights::ModelFiles;
use crate::report::error::CheckpointError;
use crate::shard::{Engine, Placement, Placements};
use crate::{Error, Result};

/// How often [`Saver::finish`] asks.
const ASK: Duration = Duration::from_millis(2);

/// How long rank 0 still waits for the others' parts when its training has ended without asking for them.
const LEAVING: Duration = Duration::from_secs(2);

/// What a checkpoint is to hold besides the optimizer's state.
pub struct Contents {
    /// What the training loop keeps. Counts on rank 0.
    pub client: ClientState,
    /// Whether the state is saved: without it there is only the model, and nothing to resume.
    pub state: bool,
    /// Whether the state includes frozen parameters.
    pub frozen: Frozen,
    /// The model in Hugging Face form.
    pub model: Option<ModelFiles>,
    /// Writes more files into the folder that it is given, on rank 0; they belong to the checkpoint as all others do.
    pub extra: Deed,
    /// Done on rank 0 when the checkpoint is whole and has its name, which it is given; on the leader of each store where ranks see
    /// several ([`Stores`]).
    pub then: Deed,
}

impl Contents {
    /// The state alone.
    pub fn state(client: ClientState) -> Contents {
        Contents {
            client,
            state: true,
            frozen: Frozen::default(),
            model: None,
            extra: Box::new(|_| Ok(())),
            then: Box::new(|_| Ok(())),
        }
    }
}

/// Saves everything that the run needs to go on: weights, optimizer state, and what the caller keeps. The folder appears
/// when it is complete; an older checkpoint of that name is replaced only then. All ranks call it, and it returns when
/// the checkpoint is whole; a [`Saver`] does the same while training goes on.
///
/// # Errors
/// When a file cannot be written on some rank; then nothing is left of it, and training can go on.
#[track_caller]
pub fn save(dir: &Path, comm: &Communicator, engine: &Engine, contents: Contents) -> Result<()> {
    let mut saver = Saver::default();
    saver.begin(dir, comm, engine, contents)?;
    saver.finish(comm).map(|_| ())
}

/// Saves in the background, one checkpoint at a time. Each rank has one, and all ranks call the same methods in the same
/// order. Dropping it waits for what this rank writes, and lets the save succeed if all ranks do their part.
#[derive(Default)]
pub struct Saver {
    running: Option<Running>,
    /// Who sees which folder, where that is not one for all.
    stores: Option<Stores>,
}

/// The folder of a save that has begun; dropping it on all ranks gives the save up.
pub struct Begun {
    dir: PathBuf,
    folder: PathBuf,
    /// On the leader of each store, with the files that were written when it was made.
    begun: Option<(TempFolder, Vec<FileEntry>)>,
}

impl Begun {
    /// Where it lies until it is whole.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

struct Running {
    dir: PathBuf,
    shared: Arc<Shared>,
    /// Returns the folder of a save that failed, to be removed when nobody writes into it any more.
    thread: Option<JoinHandle<Option<TempFolder>>>,
    /// What is left to do when all have written into their own stores.
    parts: Option<Parts>,
}

#[derive(Default)]
struct Shared {
    status: Mutex<Status>,
    /// The save has failed elsewhere.
    canceled: Arc<AtomicBool>,
    /// Nobody will ask any more.
    leaving: AtomicBool,
    /// What this rank has written into its own store.
    written: Mutex<Option<RankFiles>>,
}

/// How far a rank is.
#[derive(Clone, Default, Serialize, Deserialize)]
enum Status {
    #[default]
    Running,
    /// All of this rank is in its own store.
    Written,
    Done,
    Failed(String),
    /// The checkpoint is whole, but what was to be done then failed.
    AfterSave(String),
}

impl Shared {
    fn set(&self, status: Status) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

impl Saver {
    /// Says who sees which folder, for all saves that begin later. All ranks call it with the same.
    pub fn set_stores(&mut self, stores: Stores) {
        self.stores = Some(stores).filter(|stores| !stores.are_one());
    }

    /// Begins to save the state of the engine as the folder `dir`, which appears when it is complete; an older checkpoint
    /// of that name is replaced only then. Returns at once: the state stays as it is now until it is written, and the next
    /// optimizer step waits for that, unit by unit. An earlier save that still runs is waited for.
    ///
    /// # Errors
    /// When the folder cannot be made ([`CheckpointError::NotSaved`], the same on all ranks) or an earlier save failed;
    /// then nothing was begun, and training can go on. Or when a rank is gone.
    #[track_caller]
    pub fn begin(
        &mut self,
        dir: &Path,
        comm: &Communicator,
        engine: &Engine,
        contents: Contents,
    ) -> Result<()> {
        let begun = self.create(dir, comm, &contents)?;
        self.write(begun, comm, &[engine], contents)
    }

    /// Begins the folder of a save: the first half of [`Saver::begin`], after which ranks may put files of their own into
    /// [`Begun::folder`]. All of them call [`Saver::write`] when they are done, or drop it.
    ///
    /// # Errors
    /// As [`Saver::begin`].
    #[track_caller]
    pub fn create(&mut self, dir: &Path, comm: &Communicator, contents: &Contents) -> Result<Begun> {
        self.finish(comm)?;
        let mut begun = None;
        let mut create = || {
            let (folder, _) = begun.insert(begin_folder(dir, contents.model.as_ref())?);
            Ok(folder.token().to_string())
        };
        let leader = self.stores.as_ref().map_or(0, |stores| stores.leader_of(comm.rank()));
        let made = if leader == comm.rank() {
            create().map_err(|error: Error| error.to_string())
        } else {
            Ok(String::new())
        };
        let not_saved = |(rank, cause)| CheckpointError::NotSaved { path: dir.to_path_buf(), rank, cause };
        let token = share(comm, made)?.map_err(not_saved)?.swap_remove(leader);
        Ok(Begun { dir: dir.to_path_buf(), folder: temporary(dir, &token), begun })
    }

    /// Begins to write the state of all models of a loop, the second half of [`Saver::begin`]; with the same contents as
    /// [`Saver::create`].
    ///
    /// # Errors
    /// When there is no model.
    pub fn write(
        &mut self,
        begun: Begun,
        comm: &Communicator,
        engines: &[&Engine],
        contents: Contents,
    ) -> Result<()> {
        let Begun { dir, folder, begun } = begun;
        let Contents { client, state, frozen, model, extra, then } = contents;
        let model = model.map(Arc::new);
        let [engine, further @ ..] = engines else {
            return Err(Error::Usage("a checkpoint of no model: there is nothing to save".to_string()));
        };
        let shared = Arc::new(Shared::default());
        let job = Job {
            models: engines.iter().map(|engine| engine.snapshot()).collect(),
            folder,
            rank: comm.rank(),
            world_size: comm.world_size(),
            state,
            left_out: engines.iter().map(|engine| frozen.left_out(engine)).collect(),
            model: model.clone(),
            canceled: shared.canceled.clone(),
        };
        let mut manifest = Manifest::new(comm.world_size(), plan_of(engine), engine.n_steps(), client);
        let entry =
            |engine: &&Engine| ModelEntry { plan: plan_of(engine), optimizer_steps: engine.n_steps() };
        manifest.models = further.iter().map(entry).collect();
        let for_thread = shared.clone();
        let (mut parts, thread) = (None, std::thread::Builder::new().name("checkpoint".to_string()));
        let spawned = match &self.stores {
            None => {
                let end = begun.map(|(folder, begun_files)| End {
                    dir: dir.clone(),
                    folder,
                    begun_files,
                    manifest,
                    model,
                    extra,
                    then,
                });
                thread.spawn(move || write(job, end, &for_thread))
            }
            Some(stores) => {
                manifest.stores = stores.leaders().to_vec();
                let (folder, begun_files) =
                    begun.map_or((None, Vec::new()), |(folder, files)| (Some(folder), files));
                let rest = (comm.rank() == 0).then(|| (begun_files.clone(), model, extra));
                parts =
                    Some(Parts::new(stores.clone(), job.folder.clone(), folder, begun_files, manifest, then));
                thread.spawn(move || write_part(job, rest, &for_thread))
            }
        };
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(cause) => {
                shared.set(Status::Failed(format!("cannot start a thread: {cause}")));
                None
            }
        };
        self.running = Some(Running { dir, shared, thread, parts });
        Ok(())
    }

    /// Asks whether the save that runs is done, and returns the checkpoint once, when it is whole. Costs nothing while
    /// none runs.
    ///
    /// # Errors
    /// When a rank has failed to save ([`CheckpointError::NotSaved`], the same on all ranks); nothing of it is left then,
    /// and training can go on. [`CheckpointError::AfterSave`] where only what was to follow failed. Or when a rank is
    /// gone.
    #[track_caller]
    pub fn poll(&mut self, comm: &Communicator) -> Result<Option<PathBuf>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        let statuses = share::<_, String>(comm, Ok(running.status()))?.map_err(|(_, e)| Error::Usage(e))?;
        let failed = statuses.iter().enumerate().find_map(|(rank, status)| match status {
            Status::Failed(cause) => Some((rank, cause.clone())),
            _ => None,
        });
        let all_written = statuses.iter().all(|status| matches!(status, Status::Written));
        let outcome = match (failed, statuses.into_iter().next()) {
            (Some((rank, cause)), _) => {
                running.shared.canceled.store(true, Ordering::Relaxed);
                Err(CheckpointError::NotSaved { path: running.dir.clone(), rank, cause })
            }
            (None, _) if all_written => running.end_parts(comm)?.map(|()| running.dir.clone()),
            (None, Some(Status::Done)) => Ok(running.dir.clone()),
            (None, Some(Status::AfterSave(cause))) => {
                Err(CheckpointError::AfterSave { path: running.dir.clone(), cause })
            }
            (None, _) => return Ok(None),
        };
        let folder = (running.join(), running.parts.take());
        self.running = None;
        if matches!(outcome, Err(CheckpointError::NotSaved { .. })) {
            // The folder goes when no rank writes into it any more.
            comm.barrier()?;
            drop(folder);
            comm.barrier()?;
        }
        Ok(Some(outcome?))
    }

    /// Waits for the save that runs, if one does, and returns the checkpoint when it is whole.
    ///
    /// # Errors
    /// As [`Saver::poll`].
    #[track_caller]
    pub fn finish(&mut self, comm: &Communicator) -> Result<Option<PathBuf>> {
        while self.running.is_some() {
            if let Some(saved) = self.poll(comm)? {
                return Ok(Some(saved));
            }
            std::thread::sleep(ASK);
        }
        Ok(None)
    }

    /// Whether a save runs; the same on all ranks.
    pub fn is_saving(&self) -> bool {
        self.running.is_some()
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            running.shared.leaving.store(true, Ordering::Relaxed);
            running.join();
        }
    }
}

impl Running {
    /// Joins what all have written into their own stores.
    fn end_parts(&mut self, comm: &Communicator) -> Result<std::result::Result<(), CheckpointError>> {
        let written = self.shared.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (&mut self.parts, written) {
            (Some(parts), Some(written)) => parts.publish(comm, &self.dir, written),
            _ => Err(Error::Usage("a save in parts has none".to_string())),
        }
    }

    fn status(&self) -> Status {
        let is_over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        match self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Status::Running if is_over => Status::Failed("the thread that writes has panicked".to_string()),
            status => status,
        }
    }

    /// Waits for the thread; what it panicked with it has told already.
    fn join(&mut self) -> Option<TempFolder> {
        self.thread.take()?.join().ok()?
    }
}

/// What rank 0 needs for the end of a save.
struct End {
    dir: PathBuf,
    folder: TempFolder,
    /// What was written when the folder was made.
    begun_files: Vec<FileEntry>,
    manifest: Manifest,
    model: Option<Arc<ModelFiles>>,
    extra: Deed,
    then: Deed,
}

/// Makes the folder, with the files in it that several ranks write into.
fn begin_folder(dir: &Path, model: Option<&ModelFiles>) -> Result<(TempFolder, Vec<FileEntry>)> {
    let folder = TempFolder::create(dir)?;
    let path_of = |name: &str| folder.path().join(name);
    let files = model.map_or(Ok(Vec::new()), |model| model.create(&path_of))?;
    Ok((folder, files.into_iter().map(entry_of).collect()))
}

fn plan_of(engine: &Engine) -> PlanEntry {
    let name = |placement| match placement {
        Placement::Whole => "whole".to_string(),
        Placement::Sharded => "sharded".to_string(),
    };
    let Placements { optimizer, gradients, parameters } = engine.options().placements;
    PlanEntry {
        dtype: engine.options().dtype.to_string(),
        optimizer: name(optimizer),
        gradients: name(gradients),
        parameters: name(parameters),
        rule: engine.rule().name().to_string(),
    }
}

/// The thread of a rank. A failed save's folder is returned, not removed: others may still write into it.
fn write(job: Job, end: Option<End>, shared: &Shared) -> Option<TempFolder> {
    let (path, rank, world_size) = (job.folder.clone(), job.rank, job.world_size);
    let written = job.run();
    let Some(end) = end else {
        let reported = written.and_then(|written| report(&path, rank, &written));
        shared.set(reported.map_or_else(|error| Status::Failed(error.to_string()), |()| Status::Done));
        return None;
    };
    let End { dir, mut folder, begun_files, manifest, model, extra, then } = end;
    let published = written
        .and_then(|own| write_rest(&path, model.as_ref(), extra).map(|()| own))
        .and_then(|own| all_parts(own, &path, world_size, shared))
        .and_then(|ranks| publish(manifest, &mut folder, begun_files, ranks));
    match published {
        Ok(()) => {
            let after = then(&dir).map_err(|error| error.to_string());
            shared.set(after.map_or_else(Status::AfterSave, |()| Status::Done));
            None
        }
        Err(error) => {
            shared.set(Status::Failed(error.to_string()));
            Some(folder)
        }
    }
}

/// The thread of a rank that writes into the store of its machine. `rest`: on rank 0, what is not a rank's own.
fn write_part(
    job: Job,
    rest: Option<(Vec<FileEntry>, Option<Arc<ModelFiles>>, Deed)>,
    shared: &Shared,
) -> Option<TempFolder> {
    let folder = job.folder.clone();
    let written = job.run().and_then(|mut own| {
        if let Some((begun, model, extra)) = rest {
            write_rest(&folder, model.as_ref(), extra)?;
            let listed: Vec<FileEntry> = begun.into_iter().chain(own.files.iter().cloned()).collect();
            // The other ranks of this machine may still write theirs.
            own.files.extend(seal_rest(&folder, &listed, Some(RANKS))?);
        }
        Ok(own)
    });
    match written {
        Ok(own) => {
            *shared.written.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
            shared.set(Status::Written);
        }
        Err(error) => shared.set(Status::Failed(error.to_string())),
    }
    None
}

/// What all ranks have written, in their order.
fn all_parts(own: RankFiles, folder: &Path, world_size: usize, shared: &Shared) -> Result<Vec<RankFiles>> {
    let left = std::cell::Cell::new(None);
    let given_up = || {
        if shared.leaving.load(Ordering::Relaxed) && left.get().is_none() {
            left.set(Some(Instant::now()));
        }
        shared.canceled.load(Ordering::Relaxed) || left.get().is_some_and(|since| since.elapsed() > LEAVING)
    };
    let mut ranks = vec![own];
    for rank in 1..world_size {
        ranks.push(await_report(folder, rank, &given_up)?);
    }
    Ok(ranks)
}
