//! The updates of an adapter that is nothing else: what a file holds that knows updates of low rank alone.

use oarlock_engine::{Error, Result};

use super::adaptation::{AdaptedModule, LowRank};
use super::folder::{Adapter, PARTS};

/// The update of a layer.
pub(crate) struct PlainUpdate<'a> {
    /// The path of the layer.
    pub path: String,
    /// Its rank and its scale.
    pub module: LowRank,
    /// `[rank, inputs]`.
    pub a: &'a [f32],
    /// `[outputs, rank]`.
    pub b: &'a [f32],
}

impl Adapter {
    /// Its updates in the order of the layers' paths.
    ///
    /// # Errors
    /// An adapter that does more than to add them.
    pub(crate) fn plain_updates(&self) -> Result<Vec<PlainUpdate<'_>>> {
        let refuse = |what: &str| {
            Err(Error::Usage(format!("{what}; write a merged model instead: `gguf`, without `gguf_adapter`")))
        };
        match self.config().lora() {
            None => return refuse("an adapter of OFT turns weights and adds nothing to them"),
            Some(lora) if lora.use_dora => {
                return refuse("an adapter of DoRA changes the lengths of rows as well");
            }
            Some(_) if self.config().is_pissa() => {
                return refuse(
                    "an adapter of PiSSA has another base than the model's own (pissa_convert makes a usual one of it)",
                );
            }
            Some(_) => {}
        }
        if let Some(whole) = self.whole().first() {
            return refuse(&format!("the adapter has a trained copy of {whole}"));
        }
        let update = |(path, module): (String, AdaptedModule)| {
            let AdaptedModule::LowRank(module) = module else { return None };
            let [a, b] = [PARTS[0], PARTS[1]].map(|part| self.values(&path, part));
            Some(PlainUpdate { a: a?.1, b: b?.1, path, module })
        };
        Ok(self.modules().into_iter().filter_map(update).collect())
    }
}
