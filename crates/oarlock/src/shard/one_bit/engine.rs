//! What the engine does with a 1-bit optimizer.

use crate::error::{Error, Result};
use crate::shard::engine::Engine;

impl Engine {
    /// After it all ranks have the same weights: local steps of 0/1 Adam end before their time. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn end_local_steps(&mut self) -> Result<()> {
        match &mut self.one_bit {
            Some(one_bit) => one_bit.end_local_steps(&self.core),
            None => Ok(()),
        }
    }

    /// From now on the first moment of a parameter is multiplied with `mask` whenever ranks have exchanged signs of it:
    /// DeepSpeed's `exp_avg_mask`. One bit cannot say zero, so elements whose gradient is always zero need a 0 here.
    ///
    /// # Errors
    /// Another optimizer than a 1-bit one, an unknown parameter, another number of elements.
    pub fn set_exp_avg_mask(&mut self, name: &str, mask: &[f32]) -> Result<()> {
        match &mut self.one_bit {
            Some(one_bit) => one_bit.set_mask(&self.core, name, mask),
            None => Err(Error::Usage(format!(
                "exp_avg_mask is for 1-bit optimizers, not for {}",
                self.rule.name()
            ))),
        }
    }
}
