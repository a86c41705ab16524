//! Memory known before the start: what each part of a training run takes, for every stage, without running it.
//!
//! Model states follow from the layout of the units by formula. Activations follow from the model's own code, run on a
//! dry device. The sum is compared with what the machine has before anything is loaded, and with what was used at the end.
//!
//! Of a training run on GPUs, states and activations are in their memory, and the host has the rest.
//!
//! All figures are proportional set sizes (PSS): a page that n processes share counts 1/n for each, so the figures of
//! the ranks add up to what the machine needs.

mod activations;
mod deepspeed;
mod forecast;
mod gathering;
mod gpu;
mod limits;
mod part;
mod prediction;
mod settings;
mod size;
mod states;

#[cfg(test)]
mod tests;

pub use activations::{DryRun, Longest, LongestOf, MicroBatch, Pass, StepShape, decoder_step, dry_run};
pub use deepspeed::{zero2, zero3};
pub(crate) use forecast::settings_of;
pub use forecast::{Forecast, Known, Models, Training, program_bytes};
pub use gpu::{GpuMemory, OnGpu, USUAL_GPU_BYTES};
pub use limits::Limits;
pub use oarlock_engine::report::error::{Limit, NotEnoughMemory};
pub use oarlock_engine::report::terminal::readable;
pub use part::Part;
pub use prediction::{Estimate, estimate};
pub use settings::{Optim, Settings, Stage, offload_to_files};
pub use size::ModelSize;
pub(crate) use size::UnitGroup;
pub use states::model_states;
