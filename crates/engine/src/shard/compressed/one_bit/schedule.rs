//! Which step of a 1-bit optimizer sends what, from the number of the step alone, so that a resumed run goes on alike.
//!
//! DeepSpeed's first step only prepares: its count is one ahead of the steps that change weights, and so is `count` here.

use oarlock_tensor::ops::optimizer::OneBitKind;

/// What the ranks do with their gradients in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// They sum them, and both moments take up the sum.
    Sums,
    /// They exchange signs: of the first moment, or of gradients in 0/1 Adam.
    Signs,
    /// Each steps on its own (0/1 Adam); whether they meet behind the step.
    Local { meets: bool },
}

/// The intervals of 0/1 Adam before the next step; of the others only the step counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    kind: OneBitKind,
    /// Steps done.
    n_steps: u64,
    var_interval: u64,
    var_counter: u64,
    local_interval: u64,
    local_counter: u64,
}

impl Schedule {
    /// After `n_steps` steps.
    pub fn after(kind: OneBitKind, n_steps: u64) -> Schedule {
        let mut schedule = Schedule {
            kind,
            n_steps: 0,
            var_interval: 1,
            var_counter: 0,
            local_interval: 1,
            local_counter: 0,
        };
        match kind {
            OneBitKind::ZeroOneAdam { .. } => (0..n_steps).for_each(|_| schedule.advance()),
            _ => schedule.n_steps = n_steps,
        }
        schedule
    }

    /// What the next step does.
    pub fn stage(&self) -> Stage {
        let step = self.n_steps + 1;
        let count = step + 1;
        match self.kind {
            OneBitKind::Adam { freeze_step } | OneBitKind::Lamb { freeze_step, .. } => {
                if step >= freeze_step.max(2) { Stage::Signs } else { Stage::Sums }
            }
            OneBitKind::ZeroOneAdam { .. } if self.is_frozen() => {
                Stage::Local { meets: count.is_multiple_of(self.local_interval) }
            }
            OneBitKind::ZeroOneAdam { .. } if count.is_multiple_of(self.var_interval) => Stage::Sums,
            OneBitKind::ZeroOneAdam { .. } => Stage::Signs,
        }
    }

    /// Whether the next step is the last that sums gradients (1-bit Adam and LAMB).
    pub fn is_last_sum(&self) -> bool {
        let mut next = *self;
        next.n_steps += 1;
        self.stage() == Stage::Sums && next.stage() != Stage::Sums
    }

    /// Whether the next step is the first with a frozen second moment (0/1 Adam).
    pub fn is_first_frozen(&self) -> bool {
        let mut last = *self;
        last.n_steps = last.n_steps.saturating_sub(1);
        self.is_frozen() && !last.is_frozen()
    }

    fn is_frozen(&self) -> bool {
        let step = self.n_steps + 1;
        matches!(self.kind, OneBitKind::ZeroOneAdam { var_freeze_step, .. } if step >= 2 && step > var_freeze_step)
    }

    /// A step is done.
    pub fn advance(&mut self) {
        let stage = self.stage();
        self.n_steps += 1;
        let OneBitKind::ZeroOneAdam { var_update_scaler, local_step_scaler, local_step_clipper, .. } =
            self.kind
        else {
            return;
        };
        match stage {
            Stage::Sums => {
                self.var_counter += 1;
                if self.var_counter == var_update_scaler {
                    (self.var_counter, self.var_interval) = (0, self.var_interval.saturating_mul(2));
                }
            }
            Stage::Signs => {}
            Stage::Local { .. } => {
                self.local_counter += 1;
                if self.local_counter == local_step_scaler {
                    self.local_counter = 0;
                    self.local_interval = local_step_clipper.min(self.local_interval * 2).max(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(kind: OneBitKind, n: u64) -> String {
        let mut schedule = Schedule::after(kind, 0);
        let mut stages_so_far = String::new();
        for step in 0..n {
            assert_eq!(Schedule::after(kind, step).stage(), schedule.stage(), "after {step} steps");
            stages_so_far.push(match schedule.stage() {
                Stage::Sums => 'S',
                Stage::Signs => 's',
                Stage::Local { meets: true } => 'M',
                Stage::Local { meets: false } => '-',
            });
            schedule.advance();
        }
        stages_so_far
    }

    #[test]
    fn stages_follow_deepspeeds_counts() {
        assert_eq!(stages(OneBitKind::Adam { freeze_step: 4 }, 6), "SSSsss");
        assert_eq!(stages(OneBitKind::Adam { freeze_step: 0 }, 3), "Sss");
        let zero_one = OneBitKind::ZeroOneAdam {
            var_freeze_step: 9,
            var_update_scaler: 2,
            local_step_scaler: 3,
            local_step_clipper: 4,
        };
        // Counts are 2, 3, ...: sums at 2 and 3, then at multiples of 2 (4, 6), then of 4 (8); frozen from 11 on.
        assert_eq!(stages(zero_one, 20), "SSSsSsSssMMMM-M---M-");
        let first = (0..20).filter(|n| Schedule::after(zero_one, *n).is_first_frozen()).collect::<Vec<_>>();
        assert_eq!(first, [9]);
        assert!(Schedule::after(OneBitKind::Adam { freeze_step: 4 }, 2).is_last_sum());
    }
}
