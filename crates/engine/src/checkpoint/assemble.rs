//! Writes a checkpoint of state that comes from elsewhere, such as another program's checkpoint: one state file, the model
//! in Hugging Face form, and what the caller adds. Elements come a chunk at a time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use oarlock_tensor::Shape;

use super::folder::TempFolder;
use super::job::{RankFiles, entry_of};
use super::manifest::{ClientState, FileEntry, Manifest, PlanEntry};
use super::publish::{publish, write_rest};
use super::state_file::StateFile;
use super::weights::{ModelFiles, ModelWriter};
use crate::shard::{MASTER, Slice};
use crate::{Error, Result};

/// A checkpoint that is written. Nothing is in its place before [`finish`](Assembler::finish).
pub struct Assembler {
    folder: TempFolder,
    begun: Vec<FileEntry>,
    model: Arc<ModelFiles>,
    writer: ModelWriter,
    state: StateFile,
    /// What is to come, the current slice first.
    slices: VecDeque<Slice>,
    /// Elements of the current slice so far.
    written: usize,
}

impl Assembler {
    /// Begins the checkpoint `to` with the files of its model. Parameters have a name, their sizes, and the kinds of state
    /// that there are of them.
    ///
    /// # Errors
    /// When a file cannot be made; impossible sizes.
    pub fn create<'p>(
        to: &Path,
        model: ModelFiles,
        parameters: impl Iterator<Item = (&'p str, &'p [usize], Vec<&'static str>)>,
    ) -> Result<Assembler> {
        let model = Arc::new(model);
        let mut slices = VecDeque::new();
        for (name, shape, kinds) in parameters {
            let shape = Shape::new(shape)?;
            let whole = |kind| Slice { kind, name: name.to_string(), shape, elements: 0..shape.n_elems() };
            slices.extend(kinds.into_iter().map(whole).filter(|slice| !slice.elements.is_empty()));
        }
        let folder = TempFolder::create(to)?;
        let path = folder.path().to_path_buf();
        let begun = model.create(&|name| path.join(name))?;
        let begun = begun.into_iter().map(entry_of).collect();
        let state = StateFile::create(&path, "state/rank-00000-of-00001.safetensors".into(), slices.iter())?;
        let writer = model.clone().writer(move |name| path.join(name));
        Ok(Assembler { folder, begun, model, writer, state, slices, written: 0 })
    }

    /// The next elements of the current slice: of each parameter in turn its kinds of state, each whole.
    ///
    /// # Errors
    /// When they cannot be written; more elements than the slice has.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        let Some(slice) = self.slices.front().filter(|s| values.len() <= s.elements.len() - self.written)
        else {
            return Err(Error::Usage("more elements than the state of the parameter has".to_string()));
        };
        self.state.write(bytemuck::cast_slice(values))?;
        if slice.kind == MASTER {
            self.writer.write(&slice.name, self.written, values)?;
        }
        self.written += values.len();
        if self.written == slice.elements.len() {
            self.state.end_slice()?;
            self.slices.pop_front();
            self.written = 0;
        }
        Ok(())
    }

    /// Puts the checkpoint into its place; `rest` writes what else belongs in its folder.
    ///
    /// # Errors
    /// When a file cannot be written; elements that are missing.
    pub fn finish(
        mut self,
        plan: PlanEntry,
        optimizer_steps: u64,
        client: ClientState,
        rest: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        if let Some(slice) = self.slices.front() {
            return Err(Error::Usage(format!(
                "elements of {} of \"{}\" are missing",
                slice.kind, slice.name
            )));
        }
        let path = self.folder.path().to_path_buf();
        let (file, pieces) = self.state.finish()?;
        let mut files = vec![file];
        files.extend(self.writer.finish()?.into_iter().map(entry_of));
        write_rest(&path, Some(&self.model), rest)?;
        let manifest = Manifest::new(1, plan, optimizer_steps, client);
        publish(manifest, &mut self.folder, self.begun, vec![RankFiles { files, pieces, frozen: Vec::new() }])
    }
}
