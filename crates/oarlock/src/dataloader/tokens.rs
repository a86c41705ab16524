//! The batches of a training run in a custom training loop: what `prepare` makes of a `TokenLoader`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::data::{ConsumedSamples, Loader, TokenLoader};
use crate::error::{Error, Result};
use crate::{Plan, Prepare, Stateful};

impl Prepare for TokenLoader {
    type Prepared = Loader;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        plan.add_batch_size(self.batch_size);
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<Loader> {
        let accelerator = &plan.accelerator;
        accelerator.communicator().agree("the number of rows of a data set", self.rows.n_rows())?;
        let sampler = self.sampler(accelerator.process_index(), accelerator.num_processes());
        let loader = Loader::new(self.rows, sampler, 0)?;
        accelerator.inner.add_stateful("token loader", Arc::new(loader.consumed_samples().clone()));
        Ok(loader)
    }
}

/// Samples do not depend on the number of ranks, so a run goes on with any other.
impl Stateful for ConsumedSamples {
    fn state_dict(&self) -> Result<Value> {
        Ok(json!({ "consumed_samples": self.get() }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let consumed = state.get("consumed_samples").and_then(Value::as_u64).ok_or_else(|| {
            Error::Usage(format!("{state} is no state of a token loader, which has consumed_samples"))
        })?;
        self.set(consumed);
        Ok(())
    }
}
