//! How an accelerator runs: what `Accelerator::with` is given.

use oarlock_config::config::PipelineArgs;
use oarlock_tensor::cpu::Path;
use oarlock_tensor::{DType, DeviceKind};

use super::deepspeed_plugin::DeepSpeedPlugin;
use super::project::ProjectConfiguration;
use crate::accelerator::monitoring::trackers::LogWith;
use crate::shard::ShardingConfig;

/// How an [`Accelerator`](crate::Accelerator) runs.
#[derive(Clone, Debug, Default)]
pub struct AcceleratorConfig {
    /// What is sharded over the ranks, and in which dtype the model computes; master weights, moments and gradient
    /// sums are f32 whatever that is.
    pub shard: ShardingConfig,
    /// The ranks over which each sequence is divided; 0 and 1: none. See [`Accelerator::sequence_parallel`].
    ///
    /// [`Accelerator::sequence_parallel`]: crate::Accelerator::sequence_parallel
    pub sequence_parallel_size: usize,
    /// The dtype of the arithmetic, over that of `shard`.
    pub mixed_precision: Option<DType>,
    /// Inputs of prepared models and batches of prepared loaders come to this rank's device by themselves.
    pub device_placement: DevicePlacement,
    /// How micro-batches make a step.
    pub gradient_accumulation: GradientAccumulation,
    /// The DeepSpeed configuration that everything prepared follows.
    pub deepspeed_plugin: Option<DeepSpeedPlugin>,
    /// Several of them, by name; the first is the active one until another is selected.
    pub deepspeed_plugins: Vec<(String, DeepSpeedPlugin)>,
    /// How the models that are trained are divided into stages; by default they are not.
    pub pipeline: PipelineArgs,
    /// How the schedule follows the optimizer.
    pub scheduler_steps: SchedulerSteps,
    /// How loaders are distributed to the ranks.
    pub dataloader: DataLoaderConfiguration,
    /// Where checkpoints and logs go.
    pub project: ProjectConfiguration,
    /// The trackers that `Accelerator::init_trackers` begins.
    pub log_with: Vec<LogWith>,
    /// The seed of initial weights and of dropout. By default 42.
    pub seed: Option<u64>,
    /// Threads of this rank; by default its share of the machine's cores.
    pub threads: Option<usize>,
    /// Where tensors lie and ops run: on the CPU by default. With [`DeviceKind::Cuda`], the ranks of a machine take GPUs from
    /// this one on, in turns; with [`DeviceKind::Auto`] from the first one on where there are any, unless
    /// `ACCELERATE_USE_CPU` or `DS_ACCELERATOR=cpu` says otherwise. The others are for tests.
    pub device: DeviceKind,
    /// Products of f32 on a GPU are in TF32, as `torch.backends.cuda.matmul.allow_tf32`: see
    /// [`Device::set_tf32`](oarlock_tensor::Device::set_tf32).
    pub tf32: bool,
    /// The CPU path; by default the fastest.
    pub cpu_path: Option<Path>,
}

impl AcceleratorConfig {
    /// Whether the batch size that a loader names is that of all ranks together: Accelerate's `split_batches`.
    #[must_use]
    pub fn split_batches(mut self, split_batches: bool) -> AcceleratorConfig {
        self.dataloader.split_batches = split_batches;
        self
    }
}

/// Who brings tensors to the device of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DevicePlacement {
    /// The accelerator.
    #[default]
    Automatic,
    /// The loop: Accelerate's `device_placement=False`.
    ByHand,
}

/// How micro-batches make an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientAccumulation {
    /// Micro-batches of a step, on each rank.
    pub num_steps: usize,
    /// End the window with the loader's last batch, however many came before it.
    pub sync_with_dataloader: bool,
    /// What the sum of the micro-batches' gradients is divided by.
    pub divide_by: DivideBy,
}

impl Default for GradientAccumulation {
    fn default() -> GradientAccumulation {
        GradientAccumulation { num_steps: 1, sync_with_dataloader: true, divide_by: DivideBy::MicroBatches }
    }
}

impl GradientAccumulation {
    /// Windows of `num_steps` micro-batches.
    pub fn steps(num_steps: usize) -> GradientAccumulation {
        GradientAccumulation { num_steps, ..GradientAccumulation::default() }
    }
}

/// What the sum of a window's gradients is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DivideBy {
    /// The micro-batches that there were, over all ranks: each weighs the same, also in a short last window. All that
    /// runs outside of `accumulate` is one.
    #[default]
    MicroBatches,
    /// The micro-batches of a full window, as Accelerate does: a short last window weighs less.
    NumSteps,
}

/// How a schedule follows the optimizer's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SchedulerSteps {
    /// One step of the schedule for each step of the optimizer.
    #[default]
    Once,
    /// As Accelerate without `split_batches`: one step for each process.
    PerProcess,
}

/// How loaders are distributed to the ranks. The fields are those of Accelerate's `DataLoaderConfiguration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLoaderConfiguration {
    /// The batch size that a loader names is that of all ranks together, and each gets an equal piece.
    pub split_batches: bool,
    /// Rank 0 reads all batches and sends the others theirs. By default where the data set can only be iterated over.
    pub dispatch_batches: Option<bool>,
    /// Fill up the end, so that all ranks have as many full batches.
    pub even_batches: bool,
    /// When ranks stop whose loaders would give them different numbers of batches.
    pub ends: Ends,
    /// The seed of shuffled orders; by default the accelerator's.
    pub data_seed: Option<u64>,
}

/// When ranks stop whose loaders would give them different numbers of batches, as can be without `even_batches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ends {
    /// All together, after as many batches as the rank with the fewest has; the loader tells what was left out.
    #[default]
    Together,
    /// Each when it has no more, as Accelerate does: a collective in such a loop then waits for ranks that are gone.
    EachItsOwn,
}

impl Default for DataLoaderConfiguration {
    fn default() -> DataLoaderConfiguration {
        DataLoaderConfiguration {
            split_batches: false,
            dispatch_batches: None,
            even_batches: true,
            ends: Ends::Together,
            data_seed: None,
        }
    }
}
