//! Weights from files or from memory into a prepared model, whatever the placement: each rank reads only what it holds.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock_comm::Scalar;
use oarlock_tensor::Tensor;

use super::prepared::Prepared;
use crate::accelerator::handle::Accelerator;
use crate::checkpoint::weights::{Differences, SafetensorsSource, StateDictSource, Strict};
use crate::checkpoint::{BASE_KEY, compare_base};
use crate::nn::Module;
use crate::report::terminal::eprint;
use crate::shard::WeightSource;
use crate::{Error, Result};

impl Accelerator {
    /// Loads the weights of a safetensors file, or of a folder of them (`model.safetensors`, or several with their
    /// index), into a prepared model, under the names that the model shows them by: those of `state_dict` in torch for
    /// a model whose fields are named alike. All ranks call it; the moments of the optimizer stay as they are, and
    /// accumulated gradients are forgotten.
    ///
    /// # Errors
    /// A file that one of the ranks cannot read; weights that are missing, unexpected or of another shape. The model
    /// is then as it was.
    #[track_caller]
    pub fn load_model<M: Module>(&self, model: &Prepared<M>, path: impl AsRef<Path>) -> Result<()> {
        self.load_model_with(model, path, Strict::Yes).map(|_| ())
    }

    /// As [`Accelerator::load_model`]; with [`Strict::No`], torch's `strict=False`, what the files lack stays as it is,
    /// what the model lacks is left out, and the result says what that was, and whether adapters were trained beside other
    /// frozen parameters than the model holds.
    ///
    /// # Errors
    /// As [`Accelerator::load_model`].
    #[track_caller]
    pub fn load_model_with<M: Module>(
        &self,
        model: &Prepared<M>,
        path: impl AsRef<Path>,
        strict: Strict,
    ) -> Result<Differences> {
        let path = path.as_ref();
        let opened = SafetensorsSource::of_module(path, &**model.module(), strict);
        let elsewhere = || Error::bad_file(path, "another rank could not load it; its message says why");
        let (mut source, mut differences) = self.opened_by_all(opened, elsewhere)?;
        if let Some(base) = source.metadata(BASE_KEY) {
            differences.other_base =
                compare_base(self.communicator(), model.state.optimizer()?.engine(), base)?;
        }
        fill(model, &mut source)?;
        source.fill_buffers()?;
        model.state.update();
        Ok(differences)
    }

    /// Loads weights that lie in memory into a prepared model, under the names that the model shows them by (those of
    /// [`Accelerator::get_state_dict`]): torch's `load_state_dict`. All ranks call it with the same tensors; each copies
    /// what it holds. The moments of the optimizer stay as they are, and accumulated gradients are forgotten.
    ///
    /// # Errors
    /// Weights that are missing, unexpected or of another shape, on any rank. The model is then as it was.
    #[track_caller]
    pub fn load_state_dict<M: Module>(
        &self,
        model: &Prepared<M>,
        state: &BTreeMap<String, Tensor>,
    ) -> Result<()> {
        self.load_state_dict_with(model, state, Strict::Yes).map(|_| ())
    }

    /// As [`Accelerator::load_state_dict`]; with [`Strict::No`], torch's `strict=False`, the result names what was missing
    /// (it stays as it is) and what was unexpected (it is left out).
    ///
    /// # Errors
    /// As [`Accelerator::load_state_dict`].
    #[track_caller]
    pub fn load_state_dict_with<M: Module>(
        &self,
        model: &Prepared<M>,
        state: &BTreeMap<String, Tensor>,
        strict: Strict,
    ) -> Result<Differences> {
        let opened = StateDictSource::of_module(state, &**model.module(), strict);
        let elsewhere = || {
            Error::Model("load_state_dict: another rank could not load it; its message says why".to_owned())
        };
        let (mut source, differences) = self.opened_by_all(opened, elsewhere)?;
        fill(model, &mut source)?;
        source.fill_buffers()?;
        model.state.update();
        Ok(differences)
    }

    /// What this rank has opened, if all could open it. A meeting as well: from here on no rank reads the weights that
    /// the others overwrite.
    #[track_caller]
    fn opened_by_all<T>(&self, opened: Result<T>, elsewhere: impl FnOnce() -> Error) -> Result<T> {
        let mut failed = [f64::from(u8::from(opened.is_err()))];
        self.communicator().all_reduce_f64(&mut failed, Scalar::Max)?;
        let opened = opened?;
        if failed[0] == 0.0 { Ok(opened) } else { Err(elsewhere()) }
    }

    /// Loads what a Hugging Face folder (or a file) has of a model's weights: `from_pretrained` for a model with a fresh
    /// head, such as a `SequenceClassifier` on a language model. Process 0 says on
    /// stderr which weights keep their initial values, and that adapters belong to another base; the result has more.
    ///
    /// # Errors
    /// As [`Accelerator::load_model`], but for missing and unexpected weights; files without any weight of the model.
    #[track_caller]
    pub fn load_pretrained<M: Module>(
        &self,
        model: &Prepared<M>,
        path: impl AsRef<Path>,
    ) -> Result<Differences> {
        let (path, kind) = (path.as_ref(), model.module().kind());
        let differences = self.load_model_with(model, path, Strict::No)?;
        if self.is_main_process() {
            let missing = (!differences.missing.is_empty()).then(|| kept(kind, path, &differences));
            let other = differences.other_base.as_ref();
            let other = other.map(|other| format!("{kind}: {} is of another base: {other}", path.display()));
            for reported in missing.into_iter().chain(other) {
                // A reader that went away is no reason to stop.
                eprint(&format!("{reported}\n"));
            }
        }
        Ok(differences)
    }
}

/// What to say of a `kind` of model that keeps some of its initial weights.
fn kept(kind: &str, path: &Path, differences: &Differences) -> String {
    format!(
        "{kind}: {} has no {}; they keep their values, which are random if nothing else was loaded before",
        path.display(),
        differences.missing_in_short()
    )
}

fn fill<M: Module>(model: &Prepared<M>, source: &mut dyn WeightSource) -> Result<()> {
    let mut optimizer = model.state.optimizer()?;
    let engine = optimizer.engine_mut();
    engine.clear_grads()?;
    engine.initialize(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_weights_is_told_in_short() {
        let reported = |n: usize| {
            let missing = (0..n).map(|i| format!("blocks.{i}.lora_a.weight")).collect();
            kept("Decoder", Path::new("base"), &Differences { missing, ..Differences::default() })
        };
        let few = "blocks.0.lora_a.weight, blocks.1.lora_a.weight; they keep their values";
        assert!(reported(2).starts_with(&format!("Decoder: base has no {few}")), "{}", reported(2));
        assert!(reported(96).contains(", blocks.4.lora_a.weight and 91 more; they keep"), "{}", reported(96));
    }
}
