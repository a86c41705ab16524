//! The learning rates of an optimizer, which its scheduler sets and its steps read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// The learning rates of an optimizer's groups, what its schedule says of the moments, and whether the last step was
/// skipped: shared by the optimizer and its scheduler. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct LrState(Arc<Mutex<LrGroups>>);

#[derive(Debug)]
struct LrGroups {
    /// Where schedules begin in groups without a rate of their own.
    base: f64,
    groups: Vec<Rate>,
    /// The decays of the moments of the next step, where a schedule sets them.
    betas: Option<[f64; 2]>,
    /// Whether the last step was skipped.
    skipped: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Where its schedule begins, if the group says it.
    own: Option<f64>,
    /// The learning rate of the next step.
    lr: f64,
}

impl LrState {
    pub fn new(lr: f64) -> LrState {
        let groups = vec![Rate { own: None, lr }];
        LrState(Arc::new(Mutex::new(LrGroups { base: lr, groups, betas: None, skipped: false })))
    }

    pub fn begin(&self, lr: f64) {
        self.state().base = lr;
        self.set_lrs(|_, base| base);
    }

    pub fn add_group(&self, own: Option<f64>) {
        let mut state = self.state();
        let lr = own.unwrap_or(state.base);
        state.groups.push(Rate { own, lr });
    }

    /// Where the schedule of group 0 begins.
    pub fn base(&self) -> f64 {
        self.state().base
    }

    /// The learning rate of group 0.
    pub fn lr(&self) -> f64 {
        self.lrs().first().copied().unwrap_or_default()
    }

    /// Those of all groups.
    pub fn lrs(&self) -> Vec<f64> {
        self.state().groups.iter().map(|group| group.lr).collect()
    }

    /// What a function makes of each group's number and of the rate where its schedule begins.
    pub fn lrs_by(&self, lr: impl Fn(usize, f64) -> f64) -> Vec<f64> {
        let state = self.state();
        let groups = state.groups.iter().enumerate();
        groups.map(|(index, group)| lr(index, group.own.unwrap_or(state.base))).collect()
    }

    /// Sets what [`LrState::lrs_by`] says.
    pub fn set_lrs(&self, lr: impl Fn(usize, f64) -> f64) {
        let lrs = self.lrs_by(lr);
        for (group, lr) in self.state().groups.iter_mut().zip(lrs) {
            group.lr = lr;
        }
    }

    /// Sets the learning rate of one group, if there is such a one.
    pub fn set_group_lr(&self, group: usize, lr: f64) -> Option<()> {
        self.state().groups.get_mut(group).map(|group| group.lr = lr)
    }

    /// Goes on with the learning rates that a checkpoint kept.
    pub fn resume(&self, lrs: &[f64]) -> Result<()> {
        let (saved, own) = (lrs.len(), self.lrs().len());
        if saved != own {
            return Err(Error::Usage(other_groups(saved, own)));
        }
        self.set_lrs(|group, base| lrs.get(group).copied().unwrap_or(base));
        Ok(())
    }

    /// The decays of the moments of the next step, where a schedule sets them.
    pub fn betas(&self) -> Option<[f64; 2]> {
        self.state().betas
    }

    /// Sets them; `None` leaves them to the groups.
    pub fn set_betas(&self, betas: Option<[f64; 2]>) {
        self.state().betas = betas;
    }

    /// Whether the last step was skipped.
    pub fn skipped(&self) -> bool {
        self.state().skipped
    }

    /// Notes whether the step that ended was skipped.
    pub fn set_skipped(&self, skipped: bool) {
        self.state().skipped = skipped;
    }

    fn state(&self) -> MutexGuard<'_, LrGroups> {
        // Numbers, each whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to say of a checkpoint with another number of parameter groups.
pub(crate) fn other_groups(saved: usize, own: usize) -> String {
    format!(
        "the checkpoint is of an optimizer with {saved} parameter groups, and this one has {own}; load it with the groups \
         that saved it"
    )
}
