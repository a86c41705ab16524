//! Checkpoints of a run, and what becomes of one that fails.

use oarlock_config::config::{Placement, Resume, StateDict};
use oarlock_engine::checkpoint::weights::ModelFiles;
use oarlock_engine::checkpoint::{self, CheckpointError, ClientState, Contents};
use oarlock_engine::report::terminal::eprint;
use oarlock_engine::{Error, Result};

use super::state::Run;
use crate::train::best;
use crate::train::final_files::final_files;
use crate::train::lock::OutputLock;
use crate::train::model::ReferenceModel;

impl Run<'_> {
    /// Begins a checkpoint; training goes on while it is written.
    pub(super) fn save(&mut self, done: u64) -> Result<()> {
        let comm = self.accelerator.communicator();
        comm.set_phase(&format!("step {done}: saving"));
        let saved = self.saver.finish(comm).map(|_| ());
        self.go_on_without(saved)?;
        self.lock.iter_mut().try_for_each(OutputLock::renew)?;
        let output = self.config.save.output_dir.clone();
        let dir = output.join(format!("checkpoint-{done}"));
        let files = self.model_files()?;
        let save = &self.config.save;
        let with_model = save.only_model
            || self.adaptation.is_some()
            || self.config.shard.placements.parameters == Placement::Whole
            || save.whole_weights
            || save.state_dict == StateDict::Full;
        let (model, beside) = match with_model {
            true => (Some(files), None),
            false => (None, Some(files.without_weights())),
        };
        if let (Some(args), Some(journal)) = (&self.config.save.best, &mut self.journal) {
            best::saving(args, journal.state_mut(), &dir);
        }
        let state = self.journal.as_ref().map(|journal| journal.state().clone());
        let best = state.as_ref().and_then(|state| best::checkpoint(state, &output));
        let mut best = best.filter(|_| self.config.save.best.is_some());
        if self.config.save.best.is_some() && !self.accelerator.stores().are_one() {
            // The other machines keep their parts of it.
            let path = best.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
            let path = self.accelerator.communicator().broadcast_bytes(0, path.as_bytes())?;
            best = Some(path)
                .filter(|path| !path.is_empty())
                .map(|path| String::from_utf8_lossy(&path).into_owned().into());
        }
        let keep = self.config.save.keep;
        let save = &self.config.save;
        let replaces = (save.overwrite || save.begin_anew) && save.resume == Resume::Never;
        let mut client = ClientState {
            step: done,
            epoch: self.loader.position() / self.loader.sampler().len,
            consumed_samples: self.loader.position(),
            seeds: [("seed", self.config.train.seed), ("data_seed", self.config.train.data_seed)]
                .map(|(name, seed)| (name.to_string(), seed))
                .into(),
            ..ClientState::default()
        };
        self.record.keep(&mut client)?;
        let contents = Contents {
            client,
            state: !self.config.save.only_model,
            // A second model never changes; fingerprints say whether a resumed run has the same one.
            frozen: match self.compared {
                ReferenceModel::Second => checkpoint::Frozen::Exclude,
                _ => checkpoint::Frozen::default(),
            },
            model,
            extra: Box::new(move |dir| {
                beside.map_or(Ok(()), |files| files.write_rest(&|name| dir.join(name)))?;
                state.map_or(Ok(()), |state| Ok(state.save(dir)?))
            }),
            then: Box::new(move |_| {
                if replaces {
                    checkpoint::remove_later(&output, done)?;
                }
                let retain = |keep| checkpoint::retain_beside(&output, keep, best.as_deref());
                keep.map_or(Ok(()), |keep| retain(keep).map(|_| ()))
            }),
        };
        let begun = self.accelerator.begin_save(&mut self.saver, &dir, contents);
        self.go_on_without(begun)
    }

    /// A checkpoint that failed stops nothing but itself: the state is as it was, and the next one may succeed.
    pub(super) fn go_on_without(&mut self, saved: Result<()>) -> Result<()> {
        match saved {
            Err(Error::Checkpoint(
                error @ (CheckpointError::NotSaved { .. } | CheckpointError::AfterSave { .. }),
            )) => {
                let Some(journal) = &mut self.journal else { return Ok(()) };
                let warnings = format!("warning: {error}; training goes on");
                // Where nobody listens the run goes on all the same.
                eprint(&format!("{warnings}\n"));
                journal.note(&warnings)
            }
            saved => saved,
        }
    }

    /// Whether the final model may come into the output folder, before anything is trained.
    pub(super) fn check_output(&self) -> Result<()> {
        let mine = match self.config.train.enabled && self.leads() {
            true => self.model_files()?.check(&self.config.save.output_dir),
            false => Ok(()),
        };
        let warnings =
            checkpoint::share(self.accelerator.communicator(), mine.map_err(|error| error.to_string()))?;
        warnings.map(|_| ()).map_err(|(_, warnings)| Error::Usage(warnings))
    }

    /// Whether this rank is the one that names the files of its output folder.
    fn leads(&self) -> bool {
        let rank = self.accelerator.process_index();
        self.accelerator.stores().leader_of(rank) == rank
    }

    pub(super) fn model_files(&self) -> Result<ModelFiles> {
        let trained = (&**self.model.module(), self.adaptation.as_ref());
        let texts = &self.data.template_files;
        final_files(self.config, &self.hf, trained, texts, self.accelerator.dtype())
    }
}
