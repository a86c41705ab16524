//! Learning-rate schedules of a loop of one's own: the formulas of `train::schedule`, or any function of the step.

use std::sync::Arc;

use crate::config::{ScheduleArgs, Shape, Steps};
use crate::error::{Error, Result};
use crate::optim::{Optim, Pace};
use crate::train::Schedule;

/// A schedule that is not prepared yet. It sets the first learning rate at once, as torch's schedulers do.
#[derive(Clone)]
pub struct Scheduler {
    pub(crate) pace: Pace,
    lr: Arc<dyn Fn(u64, usize, f64) -> f64 + Send + Sync>,
}

impl Scheduler {
    /// `torch.optim.lr_scheduler.LambdaLR`: the learning rate of each group is its own times `factor` of the steps done.
    pub fn lambda(optimizer: &Optim, factor: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Scheduler {
        Scheduler::of(optimizer, move |step, _, base| base * factor(step))
    }

    /// The same with a factor of the steps done and the number of the group: `LambdaLR` of a list of functions.
    pub fn lambda_by_group(
        optimizer: &Optim,
        factor: impl Fn(u64, usize) -> f64 + Send + Sync + 'static,
    ) -> Scheduler {
        Scheduler::of(optimizer, move |step, group, base| base * factor(step, group))
    }

    /// A shape of transformers or DeepSpeed, with its warm-up, over `total` optimizer steps. As there, each group has its
    /// own learning rate times the shape's factor, and the rates that a shape of DeepSpeed names hold for all groups.
    pub fn shaped(optimizer: &Optim, shape: Shape, warmup: u64, total: u64) -> Scheduler {
        let args = ScheduleArgs { learning_rate: optimizer.pace.base(), shape, warmup: Steps::Count(warmup) };
        Scheduler::scheduled(optimizer, Schedule::new(&args, total, 1))
    }

    /// The same with a shape for each group, such as DeepSpeed's warm-ups whose rates are lists.
    ///
    /// # Errors
    /// Another number of shapes than the optimizer has groups.
    pub fn shaped_by_group(
        optimizer: &Optim,
        shapes: &[Shape],
        warmup: u64,
        total: u64,
    ) -> Result<Scheduler> {
        let (n_shapes, n_groups) = (shapes.len(), optimizer.pace.lrs().len());
        if n_shapes != n_groups {
            return Err(Error::Usage(format!(
                "shaped_by_group: {n_shapes} shapes for an optimizer of {n_groups} parameter groups; give one for each, \
                 beginning with group 0"
            )));
        }
        let learning_rate = optimizer.pace.base();
        let schedule = |shape: &Shape| {
            let args = ScheduleArgs { learning_rate, shape: *shape, warmup: Steps::Count(warmup) };
            Schedule::new(&args, total, 1)
        };
        let schedules: Vec<Schedule> = shapes.iter().map(schedule).collect();
        Ok(Scheduler::of(optimizer, move |step, group, base| {
            schedules.get(group).map_or(base, |schedule| schedule.lr_from(base, step))
        }))
    }

    pub(crate) fn scheduled(optimizer: &Optim, schedule: Schedule) -> Scheduler {
        Scheduler::of(optimizer, move |step, _, base| schedule.lr_from(base, step))
    }

    /// The learning rate as a function of the steps done, the number of the group, and its own rate.
    fn of(optimizer: &Optim, lr: impl Fn(u64, usize, f64) -> f64 + Send + Sync + 'static) -> Scheduler {
        let scheduler = Scheduler { pace: optimizer.pace.clone(), lr: Arc::new(lr) };
        scheduler.go_to(0);
        scheduler
    }

    /// The learning rates of all groups after so many steps.
    pub(crate) fn lrs(&self, steps: u64) -> Vec<f64> {
        self.pace.lrs_by(|group, base| (self.lr)(steps, group, base))
    }

    /// Sets them.
    pub(crate) fn go_to(&self, steps: u64) {
        self.pace.set_lrs(|group, base| (self.lr)(steps, group, base));
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
