//! `save_state` and `load_state`: everything that a loop needs to go on, in one checkpoint that is whole or absent.
//!
//! All is read and checked on all ranks before the first element of a model changes. Parts of the loop (schedules,
//! loaders, the user's own) are asked first whether they go on from what was kept; if one does not, on any rank, all
//! go back to where they were.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::buffers;
use super::hooks::{HookHandle, Hooks};
use super::stateful::Stateful;
use crate::accelerator::handle::{Accelerator, Hook};
use crate::accelerator::models::prepared_state::PreparedState;
use crate::checkpoint::{self, CheckpointError, ClientState, Contents, Problem, Saver, share};
use crate::nn::{self, Module};
use crate::optim::Optimizer;
use crate::shard::Engine;
use crate::{Error, Result};

/// Where the state of the loop lies in a checkpoint's `client`.
const LOOP: &str = "loop";

/// Where the loss scale lies in one that has no state of a loop.
const LOSS_SCALE: &str = "loss_scale";

/// The state of a loop besides weights and moments.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LoopState {
    /// Micro-batches of the window that was open.
    step: usize,
    models: Vec<ModelState>,
    parts: Vec<PartState>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ModelState {
    /// The name of its type.
    name: String,
    /// The seed of its random numbers.
    seed: u64,
    /// The forward passes on each rank, which random numbers depend on.
    passes: Vec<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PartState {
    /// "scheduler", "dataloader" …
    kind: String,
    state: Value,
}

/// What a rank brings to a save.
#[derive(Serialize, Deserialize)]
struct Brought {
    passes: Vec<u64>,
    /// The models whose gradients wait for a step.
    open: Vec<String>,
    /// Of rank 0.
    parts: Vec<PartState>,
}

impl Accelerator {
    /// Saves everything that the loop needs to go on: all prepared models and optimizers, loss scales, schedules,
    /// loaders, persistent buffers, what was registered with [`Accelerator::register_for_checkpointing`], the place in
    /// the accumulation window, and where random numbers are. All ranks call it.
    ///
    /// Returns the checkpoint's folder, which is whole or absent: `dir`, or with
    /// [`automatic_checkpoint_naming`](crate::ProjectConfiguration::automatic_checkpoint_naming) and no `dir` the next of
    /// the project. (Accelerate takes no notice of a `dir` then.) An older checkpoint in `dir` is replaced when the new
    /// one is whole.
    ///
    /// Of a model with adapters, frozen parameters are left out by default ([`ProjectConfiguration::frozen`](crate::ProjectConfiguration::frozen)):
    /// the checkpoint has fingerprints of them, and a loop that resumes loads the same base first.
    ///
    /// It belongs between two steps. While gradients wait for theirs it is an error, because no checkpoint keeps them;
    /// Accelerate loses them without a word, as
    /// [`save_inside_window`](crate::ProjectConfiguration::save_inside_window) does.
    ///
    /// # Errors
    /// When a file cannot be written on some rank ([`CheckpointError::NotSaved`], the same on all ranks; nothing is left
    /// of it, and training can go on); a numbered checkpoint that exists already; no model, or one whose gradients wait.
    #[track_caller]
    pub fn save_state(&self, dir: Option<&Path>) -> Result<PathBuf> {
        let numbered = dir.is_none();
        let dir = match dir {
            Some(dir) => dir.to_path_buf(),
            None => self.next_checkpoint()?,
        };
        let limit = self.inner.config.project.total_limit.filter(|_| numbered);
        let mut client = ClientState::default();
        for prepared in self.inner.models.all() {
            client.step = client.step.max(prepared.optimizer()?.n_steps());
        }
        client.seeds.insert("seed".to_owned(), self.seed());
        let then = Box::new(move |saved: &Path| match (limit, saved.parent()) {
            (Some(limit), Some(folder)) => checkpoint::retain(folder, limit).map(|_| ()),
            _ => Ok(()),
        });
        let mut saver = Saver::default();
        let frozen = self.inner.config.project.frozen;
        self.begin_save(&mut saver, &dir, Contents { then, frozen, ..Contents::state(client) })?;
        let saved = saver.finish(self.communicator());
        let is_whole = matches!(&saved, Ok(_) | Err(Error::Checkpoint(CheckpointError::AfterSave { .. })));
        if numbered && is_whole {
            self.set_save_iteration(self.save_iteration() + 1);
        }
        saved.map(|_| dir)
    }

    /// Begins to save what [`Accelerator::save_state`] saves, and `contents` besides; training goes on while it is written.
    /// [`Saver::poll`] and [`Saver::finish`] say when it is whole. All ranks call it.
    ///
    /// # Errors
    /// As [`Accelerator::save_state`] while it begins; nothing was begun then.
    #[track_caller]
    pub fn begin_save(&self, saver: &mut Saver, dir: &Path, mut contents: Contents) -> Result<()> {
        let models = self.inner.models.all();
        let brought = self.brought(&models).map_err(|error| error.to_string());
        let not_saved = |(rank, cause)| CheckpointError::NotSaved { path: dir.to_path_buf(), rank, cause };
        let brought = share(self.communicator(), brought)?.map_err(not_saved)?;
        self.refuse_open_windows(&brought)?;
        contents.client.client.insert(LOOP.to_owned(), self.loop_state(&models, brought)?);
        let (modules, extra) = (modules_of(&models)?, contents.extra);
        contents.extra = Box::new(move |folder: &Path| {
            if let Some(bytes) = buffers::write(modules.iter().map(|module| &**module))? {
                let path = folder.join(buffers::FILE);
                oarlock_files::replace(&path, bytes).map_err(Error::io("write", &path))?;
            }
            extra(folder)
        });
        saver.set_stores(self.stores());
        let begun = saver.create(dir, self.communicator(), &contents)?;
        let hooked = self.run_hooks(&self.inner.saved.before_save, begun.folder());
        share(self.communicator(), hooked.map_err(|error| error.to_string()))?.map_err(not_saved)?;
        let locked = lock_all(&models)?;
        let engines: Vec<&Engine> = locked.iter().map(|optimizer| optimizer.engine()).collect();
        saver.write(begun, self.communicator(), &engines, contents)
    }

    /// Says who sees which output folder, for checkpoints and models that are saved or loaded from now on; by default all ranks see
    /// one. All ranks call it with the same. Where they are several, each machine writes its part of a checkpoint
    /// ([`checkpoint::gather`]) and the whole of a model.
    pub fn set_stores(&self, stores: checkpoint::Stores) {
        self.inner.saved.set_stores(stores);
    }

    /// Who sees which output folder.
    pub fn stores(&self) -> checkpoint::Stores {
        self.inner.saved.stores().unwrap_or_else(|| checkpoint::Stores::one(self.communicator().world_size()))
    }

    /// Goes on from what [`Accelerator::save_state`] saved, on any number of ranks and in any placement: the state is the
    /// same bitwise. Without `dir` it is the newest whole checkpoint of the project, and numbering goes on after it.
    /// Returns its folder. All ranks call it, after everything is prepared and registered as it was in the loop that
    /// saved. Gradients that have come together are forgotten.
    ///
    /// # Errors
    /// When the checkpoint is incomplete, damaged, of other models, of another base ([`Problem::OtherBase`]) or of a loop
    /// with other parts, which is named
    /// ([`CheckpointError::NotLoaded`], the same on all ranks): models and loop are as they were. Only where a rank fails
    /// while it reads what all had found to be in order they are not, and the message says so.
    #[track_caller]
    pub fn load_state(&self, dir: Option<&Path>) -> Result<PathBuf> {
        let dir = match dir {
            Some(dir) => dir.to_path_buf(),
            None => self.newest_checkpoint()?,
        };
        self.load(&dir, Err(Problem::NoLoop))?;
        self.go_on_numbering(&dir)?;
        Ok(dir)
    }

    /// As [`Accelerator::load_state`], also from a checkpoint that has models, optimizers and loss scale alone, such as one
    /// that was imported. Returns what was saved beside the state.
    ///
    /// # Errors
    /// As [`Accelerator::load_state`].
    #[track_caller]
    pub fn load_checkpoint(&self, dir: &Path) -> Result<ClientState> {
        self.load(dir, Ok(()))
    }

    /// Goes on from a checkpoint; `without_loop` says what becomes of one that has no state of the loop.
    #[track_caller]
    fn load(&self, dir: &Path, without_loop: std::result::Result<(), Problem>) -> Result<ClientState> {
        let refused = |problem| CheckpointError::NotLoaded { path: dir.to_path_buf(), problem };
        let hooked = self.run_hooks(&self.inner.saved.before_load, dir);
        share(self.communicator(), hooked.map_err(|error| error.to_string()))?.map_err(|(_, cause)| {
            refused(Problem::Part { what: "a hook before the load".to_owned(), cause })
        })?;
        let models = self.inner.models.all();
        let checked = {
            let locked = lock_all(&models)?;
            let engines: Vec<&Engine> = locked.iter().map(|optimizer| optimizer.engine()).collect();
            let stores = Some(self.stores()).filter(|stores| !stores.are_one());
            checkpoint::check_in(dir, self.communicator(), stores.as_ref(), &engines)?
        };
        let client = checked.client_state().clone();
        let state: Option<LoopState> = read(&client, LOOP, "the state of the loop").map_err(refused)?;
        if state.is_none() {
            without_loop.map_err(refused)?;
        }
        let modules = modules_of(&models)?;
        let buffers = buffers::read(dir, modules.iter().map(|module| &**module));
        let ours = buffers.as_ref().map(|_| ()).map_err(Problem::clone);
        share(self.communicator(), ours)?.map_err(|(_, problem)| refused(problem))?;
        let buffers = buffers.map_err(refused)?;
        match &state {
            Some(state) => self.restore_parts(&self.inner.saved.parts(), &state.parts)?.map_err(refused)?,
            None => {
                if let Some(scale) = read(&client, LOSS_SCALE, "the loss scale").map_err(refused)? {
                    models.iter().try_for_each(|prepared| {
                        prepared.optimizer().map(|mut optimizer| optimizer.resume_loss_scale(scale))
                    })?;
                }
            }
        }
        {
            let mut locked = lock_all(&models)?;
            let mut engines: Vec<&mut Engine> =
                locked.iter_mut().map(|optimizer| optimizer.engine_mut()).collect();
            checked.restore(self.communicator(), &mut engines)?;
            locked.iter_mut().for_each(|optimizer| optimizer.forget());
        }
        let kept = state.as_ref().map_or(&[][..], |state| &state.models);
        for ((prepared, module), kept) in models.iter().zip(&modules).zip(kept) {
            let same_ranks = kept.passes.len() == self.num_processes();
            let own = kept.passes.get(self.process_index()).filter(|_| same_ranks).or(kept.passes.first());
            prepared.seed.store(kept.seed, Relaxed);
            nn::seed_layers(&**module, kept.seed, self.process_index());
            nn::set_passes(&**module, own.copied().unwrap_or(0));
        }
        models.iter().for_each(|prepared| prepared.update());
        for (buffer, values) in buffers {
            buffer.set(values)?;
        }
        let step = state.map_or(0, |state| state.step);
        self.inner
            .window
            .with_gradients(|gradients| (gradients.step, gradients.sync_gradients) = (step, true));
        Ok(client)
    }

    /// Has [`Accelerator::save_state`] keep the state of an object, and [`Accelerator::load_state`] give it back. A loop
    /// that loads registers as many objects as the one that saved, in the same order. Any serde value can be registered
    /// as a [`Checkpointed`](crate::Checkpointed).
    pub fn register_for_checkpointing<T: Stateful + 'static>(&self, object: Arc<T>) {
        self.inner.saved.add_part("custom", object);
    }

    /// Has [`Accelerator::save_state`] call `hook` on every rank before it writes, with the folder in which the checkpoint
    /// comes into being: what the hook puts there belongs to the checkpoint, as all its files do. Hooks of different ranks
    /// write files of different names, or one of them writes. They may run collectives, all ranks the same. What a hook
    /// captures lives as long as the accelerator, or until [`HookHandle::remove`].
    pub fn register_save_state_pre_hook(
        &self,
        hook: impl Fn(&Accelerator, &Path) -> Result<()> + Send + Sync + 'static,
    ) -> HookHandle {
        self.inner.saved.before_save.add(Arc::new(hook))
    }

    /// Has [`Accelerator::load_state`] call `hook` on every rank before it reads, with the folder of the checkpoint.
    pub fn register_load_state_pre_hook(
        &self,
        hook: impl Fn(&Accelerator, &Path) -> Result<()> + Send + Sync + 'static,
    ) -> HookHandle {
        self.inner.saved.before_load.add(Arc::new(hook))
    }

    fn run_hooks(&self, hooks: &Hooks<Hook>, dir: &Path) -> Result<()> {
        hooks.all().iter().try_for_each(|hook| hook(self, dir))
    }

    fn brought(&self, models: &[Arc<PreparedState>]) -> Result<Brought> {
        if models.is_empty() {
            return Err(Error::Usage("no model is prepared yet, so there is nothing to save".to_owned()));
        }
        let mut brought = Brought { passes: Vec::new(), open: Vec::new(), parts: Vec::new() };
        for prepared in models {
            prepared.check_together("save_state")?;
            brought.passes.push(nn::n_passes(&**prepared.module()?));
            if prepared.has_gradients() {
                brought.open.push(prepared.name.to_owned());
            }
        }
        if self.is_main_process() {
            let parts = self.inner.saved.parts();
            let state = |(kind, part): &(&str, Arc<dyn Stateful>)| {
                Ok(PartState { kind: (*kind).to_owned(), state: part.state_dict()? })
            };
            brought.parts = parts.iter().map(state).collect::<Result<_>>()?;
        }
        Ok(brought)
    }

    fn refuse_open_windows(&self, brought: &[Brought]) -> Result<()> {
        let open = brought.iter().flat_map(|rank| &rank.open).next();
        match open.filter(|_| !self.inner.config.project.save_inside_window) {
            None => Ok(()),
            Some(model) => Err(Error::Usage(format!(
                "save_state inside of an accumulation window: {model} holds gradients that no step has used, and no \
                 checkpoint keeps them; save after `optimizer.step()` of a window's last micro-batch (when \
                 `accelerator.sync_gradients()`), or set save_inside_window in the ProjectConfiguration to lose them"
            ))),
        }
    }

    fn loop_state(&self, models: &[Arc<PreparedState>], mut brought: Vec<Brought>) -> Result<Value> {
        let passes_of =
            |index: usize| brought.iter().filter_map(|rank| rank.passes.get(index).copied()).collect();
        let kept = (models.iter().enumerate())
            .map(|(index, prepared)| ModelState {
                name: prepared.name.to_owned(),
                seed: prepared.seed.load(Relaxed),
                passes: passes_of(index),
            })
            .collect();
        let parts = brought.first_mut().map(|first| std::mem::take(&mut first.parts)).unwrap_or_default();
        let state = LoopState { step: self.gradient_state().step, models: kept, parts };
        serde_json::to_value(state)
            .map_err(|error| Error::Usage(format!("the state of the loop cannot be written: {error}")))
    }

    /// Gives the parts of the loop their states, or leaves all of them on all ranks as they are. The outer result is that
    /// of the communication.
    #[track_caller]
    fn restore_parts(
        &self,
        parts: &[(&'static str, Arc<dyn Stateful>)],
        states: &[PartState],
    ) -> Result<std::result::Result<(), Problem>> {
        let mut before = Vec::new();
        let mine = same_parts(parts, states).and_then(|()| go_on(parts, states, &mut before));
        let outcome = share(self.communicator(), mine)?;
        if outcome.is_err() {
            for ((_, part), state) in parts.iter().zip(&before) {
                // It was its own state a moment ago.
                let _ = part.load_state_dict(state);
            }
        }
        Ok(outcome.map(|_| ()).map_err(|(_, problem)| problem))
    }
}

fn modules_of(models: &[Arc<PreparedState>]) -> Result<Vec<Arc<dyn Module>>> {
    models.iter().map(|prepared| prepared.module().cloned()).collect()
}

/// The optimizers of all models.
fn lock_all(models: &[Arc<PreparedState>]) -> Result<Vec<MutexGuard<'_, Optimizer>>> {
    models.iter().map(|prepared| prepared.optimizer()).collect()
}

/// What a checkpoint keeps for a loop under a key, if it has that.
fn read<T: DeserializeOwned>(
    client: &ClientState,
    key: &str,
    what: &str,
) -> std::result::Result<Option<T>, Problem> {
    let read = client.client.get(key).map(T::deserialize).transpose();
    read.map_err(|error| Problem::Part { what: what.to_owned(), cause: error.to_string() })
}

/// Whether as many parts of each kind were saved.
fn same_parts(
    parts: &[(&'static str, Arc<dyn Stateful>)],
    states: &[PartState],
) -> std::result::Result<(), Problem> {
    let kinds = states.iter().map(|state| state.kind.as_str()).chain(parts.iter().map(|(kind, _)| *kind));
    for kind in kinds {
        let found = states.iter().filter(|state| state.kind == kind).count();
        let expected = parts.iter().filter(|(own, _)| *own == kind).count();
        if found != expected {
            return Err(Problem::OtherNumber { what: plural(kind), found, expected });
        }
    }
    Ok(())
}

/// What several parts of a kind are called.
fn plural(kind: &str) -> String {
    match kind {
        "dataloader" => "data loaders".to_owned(),
        "custom" => "objects registered for checkpointing".to_owned(),
        "untouched" => "optimizers that skip untouched parameters".to_owned(),
        kind => format!("{kind}s"),
    }
}

/// Gives each part the state of the same place among those of its kind; `before` gets what all of them were.
fn go_on(
    parts: &[(&'static str, Arc<dyn Stateful>)],
    states: &[PartState],
    before: &mut Vec<Value>,
) -> std::result::Result<(), Problem> {
    let place = |index: usize| {
        let (kind, _) = parts[index];
        (kind, parts[..index].iter().filter(|(own, _)| *own == kind).count())
    };
    let failed = |index: usize, error: Error| {
        let (kind, place) = place(index);
        Problem::Part { what: format!("{kind} {place}"), cause: error.to_string() }
    };
    // Before any of them moves.
    for (index, (_, part)) in parts.iter().enumerate() {
        before.push(part.state_dict().map_err(|error| failed(index, error))?);
    }
    for (index, (_, part)) in parts.iter().enumerate() {
        let (kind, place) = place(index);
        let state = states.iter().filter(|state| state.kind == kind).nth(place);
        if let Some(PartState { state, .. }) = state {
            part.load_state_dict(state).map_err(|error| failed(index, error))?;
        }
    }
    Ok(())
}
