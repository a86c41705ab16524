//! Learning-rate schedulers of a custom training loop: the formulas of [`Schedule`], or any function of the step.

use std::sync::Arc;

use oarlock_config::config::{ScheduleArgs, Shape, Steps};

use super::groups::Optim;
use super::lr_state::LrState;
use super::schedule::Schedule;
use crate::{Error, Result};

/// A schedule that is not prepared yet. It sets the first learning rate at once, as torch's schedulers do.
#[derive(Clone)]
pub struct Scheduler {
    pub(crate) lr_state: LrState,
    lr: Arc<dyn Fn(u64, usize, f64) -> f64 + Send + Sync>,
    /// The decays of the moments after so many steps, where the schedule moves them.
    betas: Arc<dyn Fn(u64) -> Option<[f64; 2]> + Send + Sync>,
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
        let args =
            ScheduleArgs { learning_rate: optimizer.lr_state.base(), shape, warmup: Steps::Count(warmup) };
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
        let (n_shapes, n_groups) = (shapes.len(), optimizer.lr_state.lrs().len());
        if n_shapes != n_groups {
            return Err(Error::Usage(format!(
                "shaped_by_group: {n_shapes} shapes for an optimizer of {n_groups} parameter groups; give one for each, \
                 beginning with group 0"
            )));
        }
        let learning_rate = optimizer.lr_state.base();
        let schedule = |shape: &Shape| {
            let args = ScheduleArgs { learning_rate, shape: *shape, warmup: Steps::Count(warmup) };
            Schedule::new(&args, total, 1)
        };
        let schedules: Vec<Schedule> = shapes.iter().map(schedule).collect();
        Ok(Scheduler::of(optimizer, move |step, group, base| {
            schedules.get(group).map_or(base, |schedule| schedule.lr_from(base, step))
        }))
    }

    /// A schedule over an optimizer. Where the schedule moves the decays of the moments, as DeepSpeed's `OneCycle` does,
    /// the steps take them from there.
    pub fn scheduled(optimizer: &Optim, schedule: Schedule) -> Scheduler {
        let scheduler = Scheduler {
            betas: Arc::new(move |step| schedule.betas(step)),
            ..Scheduler::of(optimizer, move |step, _, base| schedule.lr_from(base, step))
        };
        scheduler.set_betas(0);
        scheduler
    }

    /// The learning rate as a function of the steps done, the number of the group, and its own rate.
    fn of(optimizer: &Optim, lr: impl Fn(u64, usize, f64) -> f64 + Send + Sync + 'static) -> Scheduler {
        let scheduler =
            Scheduler { lr_state: optimizer.lr_state.clone(), lr: Arc::new(lr), betas: Arc::new(|_| None) };
        scheduler.go_to(0);
        scheduler
    }

    /// The learning rates of all groups after so many steps.
    pub(crate) fn lrs(&self, steps: u64) -> Vec<f64> {
        self.lr_state.lrs_by(|group, base| (self.lr)(steps, group, base))
    }

    /// Sets the decays of the moments after so many steps.
    pub(crate) fn set_betas(&self, steps: u64) {
        self.lr_state.set_betas((self.betas)(steps));
    }

    /// Sets learning rates and decays after so many steps.
    pub(crate) fn go_to(&self, steps: u64) {
        self.set_betas(steps);
        self.lr_state.set_lrs(|group, base| (self.lr)(steps, group, base));
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
