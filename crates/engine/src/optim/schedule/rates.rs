//! The learning rate of each step of a run, by the shape of its schedule.

use super::course::Schedule;
use super::deepspeed;
use oarlock_config::config::{ScheduleArgs, Shape};

impl Schedule {
    /// The schedule of a run of `total` optimizer steps, each of `accumulation` micro-steps.
    pub fn new(args: &ScheduleArgs, total: u64, accumulation: u64) -> Self {
        let warmup = args.warmup.of(total);
        let warmup = match args.shape {
            Shape::DeepSpeed(shape) => deepspeed::warmup_steps(&shape, warmup).unwrap_or(0),
            _ => warmup,
        };
        Schedule {
            peak: args.learning_rate,
            shape: args.shape,
            warmup,
            total,
            accumulation: accumulation.max(1),
        }
    }

    /// Warm-up steps.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup
    }

    /// The learning rate of the optimizer step `step`, counted from 0; a step that was skipped does not count. As in the
    /// Trainer of transformers the schedule moves on after the optimizer, so the first step runs at the schedule's value
    /// at 0 (which is 0 with a warm-up).
    pub fn lr(&self, step: u64) -> f64 {
        self.lr_from(self.peak, step)
    }

    /// The same for parameters whose own rate is `base`, while the schedule's peak shapes it.
    pub fn lr_from(&self, base: f64, step: u64) -> f64 {
        let factor = match self.shape {
            Shape::DeepSpeed(shape) => {
                return deepspeed::lr(&shape, step, base, self.warmup, self.total);
            }
            Shape::MinimindSeed => self.factor_of_minimind_seed(step),
            Shape::Minimind3 => self.factor_of_minimind3(step),
            _ => self.factor_of_transformers(step),
        };
        base * factor
    }

    /// The decays of the moments that the schedule sets for a step, for
    /// [`Rule::with_betas`](oarlock_tensor::ops::optimizer::Rule::with_betas); `None` where it leaves them alone.
    pub fn betas(&self, step: u64) -> Option<[f64; 2]> {
        match self.shape {
            Shape::DeepSpeed(shape) => deepspeed::betas(&shape, step),
            _ => None,
        }
    }

    /// What to say where the run ends before its warm-up does.
    pub fn unfinished(&self) -> Option<String> {
        (self.warmup > 0 && self.warmup >= self.total).then(|| {
            format!(
                "the warm-up takes {} steps, and the run ends after {}: {}",
                self.warmup,
                self.total,
                self.outline()
            )
        })
    }

    /// The course in one line: its first, its last, and at the end of the warm-up its highest learning rate.
    fn outline(&self) -> String {
        let last = self.total.saturating_sub(1);
        let mut steps = vec![0, self.warmup.min(last), last];
        steps.dedup();
        let points = steps.iter().map(|step| format!("{:.2e} at step {}", self.lr(*step), step + 1));
        format!("learning rate {}", points.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use oarlock_config::config::{DeepSpeedShape, Steps, Warmup, WarmupType};

    pub(in crate::optim::schedule) fn schedule(
        shape: Shape,
        peak: f64,
        warmup: u64,
        total: u64,
        accumulation: u64,
    ) -> Schedule {
        let args = ScheduleArgs { learning_rate: peak, shape, warmup: Steps::Count(warmup) };
        Schedule::new(&args, total, accumulation)
    }

    pub(in crate::optim::schedule) fn assert_close(ours: f64, theirs: f64, what: &str) {
        assert!((ours - theirs).abs() <= 1e-15 + 1e-12 * theirs.abs(), "{what}: {ours:e}, not {theirs:e}");
    }

    #[test]
    fn the_outline_names_the_corners() {
        assert_eq!(
            schedule(Shape::Linear, 1e-3, 5, 10, 1).outline(),
            "learning rate 0.00e0 at step 1, 1.00e-3 at step 6, 2.00e-4 at step 10"
        );
        assert_eq!(schedule(Shape::Constant, 1e-3, 0, 1, 1).outline(), "learning rate 1.00e-3 at step 1");
    }

    #[test]
    fn a_warm_up_that_the_run_does_not_finish_is_told() {
        assert_eq!(
            schedule(Shape::ConstantWithWarmup, 1e-3, 20, 10, 1).unfinished().unwrap(),
            "the warm-up takes 20 steps, and the run ends after 10: learning rate 0.00e0 at step 1, 4.50e-4 at step 10"
        );
        assert_eq!(schedule(Shape::ConstantWithWarmup, 1e-3, 9, 10, 1).unfinished(), None);
        assert_eq!(schedule(Shape::Constant, 1e-3, 0, 1, 1).unfinished(), None);
    }

    #[test]
    fn a_share_of_steps_is_rounded_up() {
        let args = ScheduleArgs { learning_rate: 1.0, shape: Shape::Linear, warmup: Steps::Share(0.1) };
        assert_eq!(Schedule::new(&args, 101, 1).warmup_steps(), 11);
    }

    #[test]
    fn rates_stay_finite_beyond_the_ends() {
        let warmup = Warmup { min_lr: 0.0, max_lr: None, num_steps: None, warmup_type: WarmupType::Log };
        let shapes = [
            Shape::Linear,
            Shape::Polynomial { lr_end: 1e-7, power: 2.0 },
            Shape::InverseSqrt { timescale: Some(1.0) },
            Shape::CosineWithRestarts { num_cycles: 2.0 },
            Shape::MinimindSeed,
            Shape::DeepSpeed(DeepSpeedShape::WarmupLr(warmup)),
            Shape::DeepSpeed(DeepSpeedShape::WarmupDecayLr { warmup, total_num_steps: None }),
            Shape::DeepSpeed(DeepSpeedShape::WarmupCosineLr {
                warmup_min_ratio: 0.0,
                warmup_num_steps: None,
                warmup_type: WarmupType::Linear,
                cos_min_ratio: 0.1,
                total_num_steps: None,
            }),
        ];
        for shape in shapes {
            for (warmup, total) in [(0, 0), (5, 2), (0, 1), (3, 3)] {
                for step in [0, 1, 2, 7, u64::MAX] {
                    let rate = schedule(shape, 1e-3, warmup, total, 2).lr(step);
                    assert!(rate.is_finite() && rate >= 0.0, "{shape:?} {warmup} {total} {step}: {rate}");
                }
            }
        }
    }
}
