//! The order of a step: what happens around the passes of the units, and in the end to gradients that are still there.
//!
//! A [`Schedule`] decides and an [`Executor`] carries out: the engine with buffers and collectives, the planner with a clock, the
//! estimate of memory with the sizes of buffers. So this order stands here alone.
//!
//! All ranks do the same in the same order, the order in which the model declares its units. A rank that skips units (a branch
//! not taken) joins in when it comes to a later one, or at the end of the pass.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::shard::early::Early;
use crate::shard::plan::{GradientUse, Plan};

/// What carries out a schedule. Groups go by their numbers in the plan.
pub trait Executor {
    /// Why something could not be done.
    type Error;

    /// Begins to gather the weights of a group, or those of its second copy.
    ///
    /// # Errors
    /// As all methods: what was not possible; the schedule then ends.
    fn gather(&mut self, group: usize, second_copy: bool) -> Result<(), Self::Error>;
    /// A unit is about to use the weights of a group, whether they are gathered or always there.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn await_weights(&mut self, group: usize) -> Result<(), Self::Error>;
    /// Nobody uses the gathered weights of a group any more.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn release(&mut self, group: usize) -> Result<(), Self::Error>;
    /// Keeps this rank's part of the second copy of a group that is gathered.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn keep_second_copy(&mut self, group: usize) -> Result<(), Self::Error>;
    /// Forgets that part.
    fn drop_second_copy(&mut self, group: usize);
    /// Begins to sum the gradients of a group over the ranks; `adds` says that the step has sums to which these are added.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn reduce(&mut self, group: usize, adds: bool) -> Result<(), Self::Error>;
    /// Waits for the reduction of a group, the oldest that was begun.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn finish_reduction(&mut self, group: usize) -> Result<(), Self::Error>;
    /// Begins to add up the sums of a group across groups of ranks.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn reduce_across(&mut self, group: usize) -> Result<(), Self::Error>;
    /// Waits for that, in the order in which it was begun.
    ///
    /// # Errors
    /// See [`Executor::gather`].
    fn finish_across(&mut self, group: usize) -> Result<(), Self::Error>;
}

/// An executor that computes nothing, and is told what a model would compute.
pub trait DryRun: Executor {
    /// The forward pass of a unit.
    fn forward(&mut self, unit: usize);
    /// The backward pass of a unit.
    fn backward(&mut self, unit: usize);
}

/// Where a step is.
#[derive(Debug)]
pub struct Schedule {
    plan: Arc<Plan>,
    /// The unit that the forward pass comes to next.
    forward: usize,
    /// Whether a backward pass will follow.
    trains: bool,
    /// The unit that the backward pass has left last; `None` outside of one.
    backward: Option<usize>,
    /// Units that hold their groups open.
    holds: Vec<bool>,
    groups: Vec<GroupState>,
    /// Gradients in flight, in the order in which they left.
    in_flight: VecDeque<ReductionInFlight>,
    /// How often a backward pass has left a unit.
    n_left: u64,
    early: Early,
}

#[derive(Clone, Debug, Default)]
struct GroupState {
    /// Units that hold it open.
    n_holds: usize,
    is_gathered: bool,
    has_second_copy: bool,
    /// Whether gradients that will leave have a buffer.
    has_buffer: bool,
    /// Whether the sums hold something of this step.
    is_summed: bool,
}

#[derive(Debug)]
struct ReductionInFlight {
    group: usize,
    /// How often a backward pass had left a unit.
    left: u64,
}

impl Schedule {
    /// Before the first step.
    pub fn new(plan: Arc<Plan>) -> Schedule {
        Schedule {
            forward: 0,
            trains: false,
            backward: None,
            holds: vec![false; plan.units.len()],
            groups: vec![GroupState::default(); plan.groups.len()],
            in_flight: VecDeque::new(),
            n_left: 0,
            early: Early::new(&plan.units, plan.groups.len()),
            plan,
        }
    }

    /// A unit's forward pass is about to run; `trains` says whether a backward pass will follow.
    ///
    /// # Errors
    /// As all methods: those of the executor.
    pub fn before_forward<X: Executor>(
        &mut self,
        unit: usize,
        trains: bool,
        x: &mut X,
    ) -> Result<(), X::Error> {
        self.finish_backward(x)?;
        if unit < self.forward || self.trains != trains && self.forward > 0 {
            self.finish_forward(x)?;
            self.forward = 0;
        }
        self.trains = trains;
        if trains {
            self.early.recorded(unit);
        }
        while self.forward < unit {
            let skipped = self.forward;
            self.enter(skipped, true, x)?;
            self.after_forward(skipped, x)?;
        }
        self.enter(unit, true, x)
    }

    /// A unit's forward pass is over.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn after_forward<X: Executor>(&mut self, unit: usize, x: &mut X) -> Result<(), X::Error> {
        let plan = self.plan.clone();
        self.forward = unit + 1;
        let keep = self.trains && plan.keeps_for_backward(unit);
        if self.trains && plan.keeps_second_copy {
            for &group in &plan.units[unit].groups {
                let here = &mut self.groups[group];
                if here.is_gathered && !std::mem::replace(&mut here.has_second_copy, true) {
                    x.keep_second_copy(group)?;
                }
            }
        }
        if keep { Ok(()) } else { self.release(unit, x) }
    }

    /// A unit's backward pass is about to run.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn before_backward<X: Executor>(&mut self, unit: usize, x: &mut X) -> Result<(), X::Error> {
        self.finish_forward(x)?;
        if self.backward.is_some_and(|left| unit >= left) {
            self.finish_backward(x)?;
        }
        if self.backward.is_none() {
            // What left in the pass before had all the time since.
            self.finish_earlier(0, x)?;
        }
        for skipped in (unit + 1..self.backward.unwrap_or(self.plan.units.len())).rev() {
            self.enter(skipped, false, x)?;
            self.leave_backward(skipped, x)?;
        }
        self.backward = Some(unit + 1);
        self.early.ran(unit);
        self.enter(unit, false, x)
    }

    /// A unit's backward pass is over.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn after_backward<X: Executor>(&mut self, unit: usize, x: &mut X) -> Result<(), X::Error> {
        self.leave_backward(unit, x)?;
        if unit == 0 {
            self.end_backward();
        }
        Ok(())
    }

    /// Joins in what the others may have done in the units that this rank has skipped.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn finish_backward<X: Executor>(&mut self, x: &mut X) -> Result<(), X::Error> {
        let Some(left) = self.backward else { return Ok(()) };
        for unit in (0..left).rev() {
            self.enter(unit, false, x)?;
            self.leave_backward(unit, x)?;
        }
        self.end_backward();
        Ok(())
    }

    /// Has whole gradients leave while the backward passes run that are recorded now: no other adds to them before the step.
    pub fn expect_step(&mut self) {
        self.early.is_expected = self.plan.reduces_early();
    }

    /// After the passes of a step: sums what has not left.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn reduce_rest<X: Executor>(&mut self, x: &mut X) -> Result<(), X::Error> {
        let plan = self.plan.clone();
        while let Some(group) = self.early.next() {
            let here = &self.groups[group];
            // Outside of any unit, or in a step without a backward pass.
            let is_left_behind = here.has_buffer || !here.is_summed;
            if !plan.groups[group].gradients.are_sharded() || is_left_behind {
                self.reduce(group, x)?;
            }
        }
        self.finish_reductions(x)?;
        let is_across =
            |&group: &usize| plan.groups[group].gradients == GradientUse::Sharded { across: true };
        let across = || (0..plan.groups.len()).filter(is_across);
        across().try_for_each(|group| x.reduce_across(group))?;
        across().try_for_each(|group| x.finish_across(group))
    }

    /// The weights are about to change: every gathered copy is stale, and gradients begin again from zero.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn begin_step<X: Executor>(&mut self, x: &mut X) -> Result<(), X::Error> {
        self.finish_reductions(x)?;
        self.early.begin_step();
        for unit in 0..self.plan.units.len() {
            self.release(unit, x)?;
        }
        self.end_backward();
        for (group, here) in self.groups.iter_mut().enumerate() {
            here.is_summed = false;
            if std::mem::take(&mut here.has_second_copy) {
                x.drop_second_copy(group);
            }
        }
        Ok(())
    }

    /// The passes of a step and its sums, as they follow one another on a rank that skips no unit.
    ///
    /// # Errors
    /// See [`Schedule::before_forward`].
    pub fn dry_step<X: DryRun>(&mut self, micro_batches: usize, x: &mut X) -> Result<(), X::Error> {
        let plan = self.plan.clone();
        for micro_batch in 0..micro_batches {
            for unit in 0..plan.units.len() {
                self.before_forward(unit, true, x)?;
                x.forward(unit);
                self.after_forward(unit, x)?;
            }
            if micro_batch + 1 == micro_batches {
                self.expect_step();
            }
            for unit in (0..plan.units.len()).rev() {
                self.before_backward(unit, x)?;
                plan.units[unit].groups.iter().for_each(|&group| self.opened(group));
                x.backward(unit);
                self.after_backward(unit, x)?;
            }
        }
        self.finish_backward(x)?;
        self.reduce_rest(x)
    }

    /// Gradients of a group have a place now, from which they will leave where they are sharded.
    pub fn opened(&mut self, group: usize) {
        self.groups[group].has_buffer = self.plan.groups[group].gradients.are_sharded();
    }

    /// Whether whole gradients of a group have left in this step.
    pub fn has_left(&self, group: usize) -> bool {
        self.plan.reduces_early() && self.early.has_left(group)
    }

    /// Whether the gradients of a group are sums over the ranks, or about to be.
    pub fn is_summed(&self, group: usize) -> bool {
        match self.plan.groups[group].gradients.are_sharded() {
            true => self.groups[group].is_summed,
            // Where the ranks' own gradients were, their sums come to be.
            false => !self.in_flight.is_empty() && self.early.has_left(group),
        }
    }

    fn end_backward(&mut self) {
        self.backward = None;
        self.forward = 0;
        self.trains = false;
    }

    fn finish_forward<X: Executor>(&mut self, x: &mut X) -> Result<(), X::Error> {
        while self.forward > 0 && self.forward < self.plan.units.len() {
            let skipped = self.forward;
            self.enter(skipped, true, x)?;
            self.after_forward(skipped, x)?;
        }
        Ok(())
    }

    fn leave_backward<X: Executor>(&mut self, unit: usize, x: &mut X) -> Result<(), X::Error> {
        let plan = self.plan.clone();
        self.backward = Some(unit);
        self.n_left += 1;
        if self.early.is_expected {
            for &group in &plan.units[unit].completes {
                self.early.complete(group);
            }
            while let Some(group) = self.early.next_complete() {
                self.reduce(group, x)?;
            }
        }
        for &group in &plan.units[unit].completes {
            if plan.groups[group].gradients.are_sharded() {
                self.reduce(group, x)?;
            }
        }
        self.release(unit, x)?;
        for &group in &plan.units[unit].completes {
            if std::mem::take(&mut self.groups[group].has_second_copy) {
                x.drop_second_copy(group);
            }
        }
        Ok(())
    }

    /// Gathers the weights of a unit and waits for them, and begins to gather those of the units that come next.
    fn enter<X: Executor>(&mut self, unit: usize, forward: bool, x: &mut X) -> Result<(), X::Error> {
        let plan = self.plan.clone();
        if !forward {
            self.finish_earlier(1, x)?;
        }
        self.hold(unit, forward, x)?;
        for &group in &plan.units[unit].groups {
            x.await_weights(group)?;
        }
        let is_gathered = |schedule: &Schedule, group: usize| schedule.groups[group].is_gathered;
        let open = (0..plan.groups.len()).filter(|&group| is_gathered(self, group));
        let (mut live, mut ahead): (usize, usize) = (open.map(|group| plan.gathered_elems(group)).sum(), 0);
        let next: Vec<usize> = match forward {
            true => (unit + 1..plan.units.len()).collect(),
            false => (0..unit).rev().collect(),
        };
        for unit in next {
            let closed = plan.units[unit].groups.iter().filter(|&&group| !is_gathered(self, group));
            let more: usize = closed.map(|&group| plan.gathered_elems(group)).sum();
            live += more;
            if ahead >= plan.prefetch_elems || live > plan.max_live_elems {
                break;
            }
            ahead += more;
            self.hold(unit, forward, x)?;
        }
        Ok(())
    }

    fn hold<X: Executor>(&mut self, unit: usize, forward: bool, x: &mut X) -> Result<(), X::Error> {
        if std::mem::replace(&mut self.holds[unit], true) {
            return Ok(());
        }
        let plan = self.plan.clone();
        for &group in &plan.units[unit].groups {
            let here = &mut self.groups[group];
            here.n_holds += 1;
            if plan.groups[group].is_gathered && !here.is_gathered {
                x.gather(group, !forward && here.has_second_copy)?;
                here.is_gathered = true;
            }
        }
        Ok(())
    }

    fn release<X: Executor>(&mut self, unit: usize, x: &mut X) -> Result<(), X::Error> {
        if !std::mem::replace(&mut self.holds[unit], false) {
            return Ok(());
        }
        let plan = self.plan.clone();
        for &group in &plan.units[unit].groups {
            let here = &mut self.groups[group];
            here.n_holds -= 1;
            if here.n_holds == 0 && std::mem::take(&mut here.is_gathered) {
                x.release(group)?;
            }
        }
        Ok(())
    }

    /// Begins to sum the gradients of a group.
    fn reduce<X: Executor>(&mut self, group: usize, x: &mut X) -> Result<(), X::Error> {
        let here = &mut self.groups[group];
        match self.plan.groups[group].gradients {
            GradientUse::None => return Ok(()),
            GradientUse::Whole => x.reduce(group, false)?,
            GradientUse::Sharded { .. } => {
                here.has_buffer = false;
                x.reduce(group, std::mem::replace(&mut here.is_summed, true))?;
            }
        }
        self.in_flight.push_back(ReductionInFlight { group, left: self.n_left });
        if self.plan.overlaps { Ok(()) } else { self.finish_reductions(x) }
    }

    /// Waits for reductions in whose buffers the next unit's gradients leave: all but those of the `kept` units left last.
    /// With one that is kept, at most two units have buffers at a time.
    fn finish_earlier<X: Executor>(&mut self, kept: u64, x: &mut X) -> Result<(), X::Error> {
        let has_buffers =
            |group: usize| self.plan.converts_gradients || self.plan.groups[group].gradients.are_sharded();
        let is_earlier = |reduction: &ReductionInFlight| {
            reduction.left + kept <= self.n_left && has_buffers(reduction.group)
        };
        match self.in_flight.iter().rposition(is_earlier) {
            Some(last) => (0..=last).try_for_each(|_| self.finish_first(x)),
            None => Ok(()),
        }
    }

    fn finish_reductions<X: Executor>(&mut self, x: &mut X) -> Result<(), X::Error> {
        while !self.in_flight.is_empty() {
            self.finish_first(x)?;
        }
        Ok(())
    }

    fn finish_first<X: Executor>(&mut self, x: &mut X) -> Result<(), X::Error> {
        self.in_flight.pop_front().map_or(Ok(()), |reduction| x.finish_reduction(reduction.group))
    }
}
