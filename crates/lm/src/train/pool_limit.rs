//! Holds the pool of a rank to what was predicted, where batches of many lengths leave blocks that fit none of the next.

use oarlock_comm::Scalar;
use oarlock_engine::{Accelerator, Result};
use oarlock_tensor::Arena;

use crate::estimate::Forecast;

/// What a step may take of memory besides what is kept between steps.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimit {
    step_bytes: usize,
}

impl PoolLimit {
    /// The limit of all ranks, from the forecast of rank 0. All ranks call it together.
    ///
    /// # Errors
    /// The failure of another rank.
    pub fn agreed(accelerator: &Accelerator, forecast: Option<&Forecast>) -> Result<PoolLimit> {
        let mut bytes = [forecast.map_or(0.0, |forecast| forecast.pool_bytes() as f64)];
        accelerator.communicator().all_reduce_f64(&mut bytes, Scalar::Max)?;
        Ok(PoolLimit { step_bytes: bytes[0] as usize })
    }

    /// Limits a pool between two steps.
    pub fn set(&self, arena: &Arena) {
        arena.set_limit(arena.occupied().saturating_add(self.step_bytes));
    }
}
