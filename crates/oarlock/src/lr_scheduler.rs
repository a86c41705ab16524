//! Learning-rate schedules of a loop of one's own: the formulas of `train::schedule`, or any function of the step.

use std::sync::Arc;

use crate::config::{ScheduleArgs, Shape, Steps};
use crate::optim::{Optim, Pace};
use crate::train::Schedule;

/// A schedule that is not prepared yet. It sets the first learning rate at once, as torch's schedulers do.
#[derive(Clone)]
pub struct Scheduler {
    pub(crate) pace: Pace,
    pub(crate) lr: Arc<dyn Fn(u64) -> f64 + Send + Sync>,
}

impl Scheduler {
    /// `torch.optim.lr_scheduler.LambdaLR`: the learning rate is the optimizer's times `factor` of the steps done.
    pub fn lambda(optimizer: &Optim, factor: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Scheduler {
        let base = optimizer.pace.base();
        Scheduler::of(optimizer, move |step| base * factor(step))
    }

    /// A shape of transformers or DeepSpeed, with its warm-up, over `total` optimizer steps.
    pub fn shaped(optimizer: &Optim, shape: Shape, warmup: u64, total: u64) -> Scheduler {
        let args = ScheduleArgs { learning_rate: optimizer.pace.base(), shape, warmup: Steps::Count(warmup) };
        let schedule = Schedule::new(&args, total, 1);
        Scheduler::of(optimizer, move |step| schedule.lr(step))
    }

    /// The learning rate as a function of the steps done.
    pub(crate) fn of(optimizer: &Optim, lr: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Scheduler {
        optimizer.pace.set_lr(lr(0));
        Scheduler { pace: optimizer.pace.clone(), lr: Arc::new(lr) }
    }
}

/// `get_scheduler("linear", ..)` of transformers: up over the warm-up, then down to zero at `total`.
pub fn linear(optimizer: &Optim, warmup: u64, total: u64) -> Scheduler {
    Scheduler::shaped(optimizer, Shape::Linear, warmup, total)
}

/// `get_scheduler("cosine", ..)` of transformers.
pub fn cosine(optimizer: &Optim, warmup: u64, total: u64) -> Scheduler {
    Scheduler::shaped(optimizer, Shape::Cosine { num_cycles: 0.5 }, warmup, total)
}

/// `get_scheduler("constant", ..)` of transformers.
pub fn constant(optimizer: &Optim) -> Scheduler {
    Scheduler::shaped(optimizer, Shape::Constant, 0, 1)
}
