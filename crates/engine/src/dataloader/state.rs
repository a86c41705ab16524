//! What a checkpoint keeps of a loader.

use std::sync::Arc;

use serde_json::{Value, json};

use super::plan::Source;
use super::position::Position;
use crate::{Error, Result, Stateful};

/// The order of a loader, and where it stands in it.
pub(super) struct LoaderState<B> {
    pub source: Arc<dyn Source<B>>,
    pub position: Arc<Position>,
    /// Of shuffled orders.
    pub seed: Option<u64>,
    /// Among how many ranks the sampler or the data set is divided by itself: the rule is then for this rank alone.
    pub divided: Option<usize>,
    /// The samples of rank 0's data set, where that rank reads for all: the others' may be empty.
    pub n_at_root: Option<usize>,
}

impl<B> Clone for LoaderState<B> {
    fn clone(&self) -> LoaderState<B> {
        LoaderState { source: self.source.clone(), position: self.position.clone(), ..*self }
    }
}

impl<B> LoaderState<B> {
    /// What an epoch is made of, all ranks together.
    pub fn n_units(&self, epoch: u64) -> Result<Option<usize>> {
        self.n_at_root.map_or_else(|| self.source.n_units(epoch), |n| Ok(Some(n)))
    }

    /// As [`LoaderState::n_units`], where that is the same on all ranks.
    fn n_common(&self, epoch: u64) -> Result<Option<usize>> {
        if self.divided.is_some() { Ok(None) } else { self.n_units(epoch) }
    }

    /// Samples of the data set.
    pub fn n_samples(&self) -> Option<usize> {
        self.n_at_root.or_else(|| self.source.n_samples())
    }
}

/// Epoch and position, counted in samples: a run on another number of ranks, or with another batch size, goes on at the
/// sample after the last one that was given.
impl<B: Send + 'static> Stateful for LoaderState<B> {
    fn state_dict(&self) -> Result<Value> {
        let LoaderState { divided, seed, position, .. } = self;
        let place = position.get();
        Ok(json!({
            "epoch": place.epoch,
            "given": place.given,
            "of": self.n_common(place.epoch)?,
            "seed": seed,
            "ranks": divided,
        }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let LoaderState { divided, seed, position, .. } = self;
        let refused =
            |why: String| Err(Error::Usage(format!("the data loader cannot go on from {state}: {why}")));
        let number = |key: &str| state.get(key).and_then(Value::as_u64);
        let (Some(epoch), Some(given)) = (number("epoch"), number("given")) else {
            return refused("it is not a state of a data loader".to_owned());
        };
        let n_units = self.n_common(epoch)?;
        let known = |n: Option<u64>, none: &str| n.map_or(none.to_owned(), |n| n.to_string());
        for (key, ours, what) in [
            ("of", n_units.map(|n| n as u64), "its epochs have {} samples, and this loader's {}"),
            ("seed", *seed, "it was shuffled with the seed {}, and this loader is with {}"),
            ("ranks", divided.map(|n| n as u64), "its data was distributed to {} ranks, and now it is {}"),
        ] {
            if number(key) != ours {
                let message = what.replacen("{}", &known(number(key), "no"), 1);
                return refused(message.replacen("{}", &known(ours, "no"), 1));
            }
        }
        let given = usize::try_from(given).unwrap_or(usize::MAX);
        if n_units.is_some_and(|n| given > n) {
            return refused("it gave more samples than there are".to_owned());
        }
        position.resume(epoch, given);
        Ok(())
    }
}
