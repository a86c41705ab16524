//! Memory: giving back what was prepared, and finding the batch size that fits.

use crate::accelerator::handle::Accelerator;
use crate::accelerator::ranks::collectives::{decode_all, encode};
use crate::{Error, Result};

/// Where the search for a batch size begins in Accelerate.
pub const STARTING_BATCH_SIZE: usize = 128;

impl Accelerator {
    /// Releases all that this accelerator has prepared: `objects` (models, optimizers, schedules and loaders, with the
    /// engines behind them) end here, what checkpoints would keep is forgotten, and buffers that are free go back to the
    /// system. Other handles on the same objects keep them alive until they are dropped. Accelerate calls it `clear`,
    /// too.
    pub fn free_memory<T>(&self, objects: T) {
        drop(objects);
        self.inner.forget();
        self.device().arena().trim();
    }

    /// Runs `body` with a batch size, and with nine tenths of it (rounded down) each time it runs out of memory on any
    /// rank, as Accelerate does; [`STARTING_BATCH_SIZE`] is where that begins. The ranks agree after each attempt, so
    /// that none goes on alone. Between two attempts all that was prepared is released; `body` prepares again.
    ///
    /// A rank that runs out of memory while the others wait for it inside of a collective cannot go on from there: all
    /// ranks then end with an error that names the calls.
    ///
    /// # Errors
    /// When not even one sample fits. What else `body` reports; the other ranks report the rank that failed.
    #[track_caller]
    pub fn find_executable_batch_size<R>(
        &self,
        starting_batch_size: usize,
        mut body: impl FnMut(usize) -> Result<R>,
    ) -> Result<R> {
        let mut batch_size = starting_batch_size;
        let mut last = String::new();
        while batch_size > 0 {
            let result = body(batch_size);
            let outcome = match &result {
                Ok(_) => Outcome::Done,
                Err(error) if is_out_of_memory(error) => Outcome::OutOfMemory(error.to_string()),
                // The others are in the collective that reports it, and come to no other.
                Err(Error::Comm(_)) => return result,
                Err(error) => Outcome::Failed(error.to_string()),
            };
            let call = format!("find_executable_batch_size ({batch_size})");
            let said = match self.exchange(&call, encode(&outcome)) {
                Ok(said) => said,
                // What happened here is nearer to the cause.
                Err(error) => return result.and(Err(error)),
            };
            let outcomes: Vec<Outcome> = decode_all(&call, &said)?;
            for (rank, outcome) in outcomes.iter().enumerate() {
                if let Outcome::Failed(cause) = outcome {
                    let cause = cause.clone();
                    return result.and(Err(Error::Comm(oarlock_comm::Error::PeerFailed { rank, cause })));
                }
            }
            let failed = outcomes.into_iter().find_map(|outcome| match outcome {
                Outcome::OutOfMemory(cause) => Some(cause),
                _ => None,
            });
            match failed {
                None => return result,
                Some(cause) => last = format!(": {cause}"),
            }
            self.free_memory(result.ok());
            batch_size -= batch_size.div_ceil(10);
        }
        Err(Error::Usage(format!(
            "find_executable_batch_size: no batch size fits, from {starting_batch_size} down to 1{last}"
        )))
    }
}

/// How an attempt ended on a rank.
#[derive(serde::Serialize, serde::Deserialize)]
enum Outcome {
    Done,
    OutOfMemory(String),
    Failed(String),
}

/// Whether memory was refused, by the system or by the estimate before training.
fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::Memory(_) => true,
        Error::Tensor(error) => oarlock_tensor::is_out_of_memory(error),
        _ => false,
    }
}
