//! The shapes of transformers' `get_scheduler`.

use std::f64::consts::PI;

use oarlock_config::config::{Curve, Shape, StableSteps};

use super::course::Schedule;

impl Schedule {
    /// The learning rate of a step as a share of the peak.
    pub(super) fn factor_of_transformers(&self, step: u64) -> f64 {
        let t = step as f64;
        let warmup = self.warmup as f64;
        let total = self.total as f64;
        let rest = (total - warmup).max(1.0);
        let rising = t / warmup.max(1.0);
        let is_rising = step < self.warmup;
        match self.shape {
            Shape::Constant => 1.0,
            // These have formulas of their own.
            Shape::MinimindSeed | Shape::Minimind3 | Shape::DeepSpeed(_) => 1.0,
            Shape::CosineWarmupWithMinLr { warmup_lr_rate, .. } if is_rising => match warmup_lr_rate {
                None => (t + 1.0) / warmup.max(1.0),
                Some(first) => first + (1.0 - first) * t / (warmup - 1.0).max(1.0),
            },
            Shape::WarmupStableDecay { warmup_type, min_lr_ratio, .. } if is_rising => {
                let factor = match warmup_type {
                    Curve::Linear => rising,
                    Curve::Cosine => 0.5 * (1.0 - libm::cos(PI * rising)),
                    Curve::OneMinusSqrt => 1.0 - (1.0 - rising).sqrt(),
                };
                factor * (1.0 - min_lr_ratio) + min_lr_ratio
            }
            _ if is_rising => rising,
            Shape::ConstantWithWarmup => 1.0,
            Shape::Linear => ((total - t) / rest).max(0.0),
            Shape::Cosine { num_cycles } => cosine((t - warmup) / rest, num_cycles, 0.0),
            Shape::CosineWithRestarts { num_cycles } => {
                let progress = (t - warmup) / rest;
                if progress >= 1.0 {
                    0.0
                } else {
                    (0.5 * (1.0 + libm::cos(PI * ((num_cycles * progress) % 1.0)))).max(0.0)
                }
            }
            Shape::Polynomial { lr_end, power } => {
                let left = if step > self.total { 0.0 } else { 1.0 - (t - warmup) / rest };
                ((self.peak - lr_end) * libm::pow(left, power) + lr_end) / self.peak
            }
            Shape::InverseSqrt { timescale } => {
                let scale = timescale.unwrap_or(if self.warmup == 0 { 10_000.0 } else { warmup });
                1.0 / ((t + scale - warmup) / scale).sqrt()
            }
            Shape::CosineWithMinLr { num_cycles, min_lr_rate } => {
                cosine((t - warmup) / rest, num_cycles, min_lr_rate)
            }
            Shape::CosineWarmupWithMinLr { num_cycles, min_lr_rate, .. } => {
                cosine((t - warmup + 1.0) / rest, num_cycles, min_lr_rate)
            }
            Shape::WarmupStableDecay {
                num_stable_steps,
                num_decay_steps,
                decay_type,
                min_lr_ratio,
                num_cycles,
                ..
            } => {
                let after_warmup = self.total.saturating_sub(self.warmup);
                let third = after_warmup / 3;
                let decay = num_decay_steps.unwrap_or(after_warmup - third) as f64;
                let stable = match num_stable_steps {
                    StableSteps::Steps(steps) => steps as f64,
                    StableSteps::Rest => total - warmup - decay,
                    StableSteps::Third => third as f64,
                };
                let gone = t - warmup - stable;
                if gone < 0.0 {
                    1.0
                } else if gone < decay {
                    let progress = gone / decay.max(1.0);
                    let factor = match decay_type {
                        Curve::Linear => 1.0 - progress,
                        Curve::Cosine => 0.5 * (1.0 + libm::cos(PI * num_cycles * 2.0 * progress)),
                        Curve::OneMinusSqrt => 1.0 - progress.sqrt(),
                    };
                    (factor * (1.0 - min_lr_ratio) + min_lr_ratio).max(0.0)
                } else {
                    min_lr_ratio
                }
            }
        }
    }
}

/// A cosine that falls to `floor`.
fn cosine(progress: f64, num_cycles: f64, floor: f64) -> f64 {
    let factor = 0.5 * (1.0 + libm::cos(PI * num_cycles * 2.0 * progress));
    (factor * (1.0 - floor) + floor).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::{assert_close, schedule};
    use super::*;

    /// (shape, peak, warm-up, total, [(step, rate)]), written down by running `get_scheduler` of transformers 5.23
    /// with torch's AdamW, stepping the optimizer and then the schedule.
    #[test]
    #[allow(clippy::excessive_precision, clippy::type_complexity)]
    fn shapes_are_those_of_transformers() {
        let golden: &[(Shape, f64, u64, u64, &[(u64, f64)])] = &[
            (Shape::Constant, 0.0003, 0, 20, &[(0, 0.0003), (5, 0.0003), (19, 0.0003)]),
            (
                Shape::ConstantWithWarmup,
                0.0003,
                5,
                20,
                &[
                    (0, 0.0),
                    (1, 5.9999999999999995e-05),
                    (4, 0.00023999999999999998),
                    (5, 0.0003),
                    (19, 0.0003),
                ],
            ),
            (
                Shape::Linear,
                5e-05,
                3,
                17,
                &[
                    (0, 0.0),
                    (1, 1.6666666666666667e-05),
                    (2, 3.3333333333333335e-05),
                    (3, 5e-05),
                    (10, 2.5e-05),
                    (16, 3.5714285714285714e-06),
                    (17, 0.0),
                ],
            ),
            (Shape::Linear, 0.001, 0, 10, &[(0, 0.001), (3, 0.0007), (9, 0.0001)]),
            (
                Shape::Cosine { num_cycles: 0.5 },
                0.0005,
                10,
                100,
                &[
                    (0, 0.0),
                    (1, 5e-05),
                    (9, 0.00045000000000000004),
                    (10, 0.0005),
                    (55, 0.00025),
                    (99, 1.5229324522605948e-07),
                    (100, 0.0),
                ],
            ),
            (
                Shape::Cosine { num_cycles: 0.5 },
                0.0002,
                0,
                7,
                &[
                    (0, 0.0002),
                    (1, 0.0001900968867902419),
                    (3, 0.00012225209339563145),
                    (6, 9.903113209758096e-06),
                ],
            ),
            (
                Shape::CosineWithRestarts { num_cycles: 3.0 },
                0.001,
                4,
                40,
                &[
                    (0, 0.0),
                    (2, 0.0005),
                    (4, 0.001),
                    (15, 1.7037086855465843e-05),
                    (16, 0.001),
                    (39, 1.7037086855465955e-05),
                ],
            ),
            (
                Shape::Polynomial { lr_end: 1e-05, power: 2.0 },
                0.001,
                4,
                40,
                &[
                    (0, 0.0),
                    (3, 0.00075),
                    (4, 0.001),
                    (20, 0.00031555555555555563),
                    (39, 1.076388888888889e-05),
                    (41, 1e-05),
                ],
            ),
            (
                Shape::InverseSqrt { timescale: None },
                0.001,
                4,
                40,
                &[
                    (0, 0.0),
                    (3, 0.00075),
                    (4, 0.001),
                    (20, 0.00044721359549995795),
                    (39, 0.00032025630761017425),
                ],
            ),
            (
                Shape::InverseSqrt { timescale: None },
                0.001,
                0,
                40,
                &[(0, 0.001), (39, 0.0009980556852758496)],
            ),
            (
                Shape::CosineWithMinLr { num_cycles: 0.5, min_lr_rate: 0.1 },
                0.001,
                5,
                50,
                &[
                    (0, 0.0),
                    (4, 0.0008),
                    (5, 0.001),
                    (27, 0.0005657047735161256),
                    (49, 0.00010109617738307913),
                    (50, 0.0001),
                ],
            ),
            (
                Shape::CosineWithMinLr { num_cycles: 0.5, min_lr_rate: 0.25 },
                0.001,
                5,
                50,
                &[(0, 0.0), (5, 0.001), (27, 0.000638087311263438), (49, 0.00025091348115256594)],
            ),
            (
                Shape::CosineWarmupWithMinLr { num_cycles: 0.5, min_lr_rate: 0.1, warmup_lr_rate: None },
                0.001,
                5,
                50,
                &[
                    (0, 0.0002),
                    (4, 0.001),
                    (5, 0.000998903822616921),
                    (27, 0.0005342952264838748),
                    (49, 0.0001),
                ],
            ),
            (
                Shape::CosineWarmupWithMinLr {
                    num_cycles: 0.5,
                    min_lr_rate: 0.1,
                    warmup_lr_rate: Some(0.05),
                },
                0.001,
                5,
                50,
                &[(0, 5e-05), (4, 0.001), (5, 0.000998903822616921), (49, 0.0001)],
            ),
            (
                Shape::WarmupStableDecay {
                    num_stable_steps: StableSteps::Rest,
                    num_decay_steps: Some(30),
                    warmup_type: Curve::Linear,
                    decay_type: Curve::Cosine,
                    min_lr_ratio: 0.1,
                    num_cycles: 0.5,
                },
                0.001,
                10,
                100,
                &[
                    (0, 0.0001),
                    (5, 0.00055),
                    (9, 0.00091),
                    (10, 0.001),
                    (69, 0.001),
                    (70, 0.001),
                    (85, 0.00055),
                    (99, 0.00010246514708427702),
                    (100, 0.0001),
                ],
            ),
            (
                Shape::WarmupStableDecay {
                    num_stable_steps: StableSteps::Rest,
                    num_decay_steps: Some(30),
                    warmup_type: Curve::Linear,
                    decay_type: Curve::Linear,
                    min_lr_ratio: 0.0,
                    num_cycles: 0.5,
                },
                0.001,
                10,
                100,
                &[(0, 0.0), (5, 0.0005), (70, 0.001), (85, 0.0005), (99, 3.333333333333333e-05)],
            ),
            (
                Shape::WarmupStableDecay {
                    num_stable_steps: StableSteps::Steps(40),
                    num_decay_steps: Some(20),
                    warmup_type: Curve::Cosine,
                    decay_type: Curve::OneMinusSqrt,
                    min_lr_ratio: 0.2,
                    num_cycles: 0.5,
                },
                0.001,
                10,
                100,
                &[
                    (0, 0.0002),
                    (5, 0.0006),
                    (10, 0.001),
                    (49, 0.001),
                    (50, 0.001),
                    (60, 0.000434314575050762),
                    (69, 0.00022025645241528294),
                    (70, 0.0002),
                    (99, 0.0002),
                ],
            ),
            (
                Shape::WarmupStableDecay {
                    num_stable_steps: StableSteps::Rest,
                    num_decay_steps: Some(30),
                    warmup_type: Curve::OneMinusSqrt,
                    decay_type: Curve::Cosine,
                    min_lr_ratio: 0.0,
                    num_cycles: 0.5,
                },
                0.001,
                10,
                100,
                &[
                    (0, 0.0),
                    (3, 0.00016333997346592444),
                    (9, 0.0006837722339831621),
                    (10, 0.001),
                    (80, 0.00075),
                ],
            ),
            // The defaults of LLaMA-Factory 0.9.5 (`create_custom_scheduler`): with a decay of 8 steps, and without arguments.
            (
                Shape::WarmupStableDecay {
                    num_stable_steps: StableSteps::Third,
                    num_decay_steps: Some(8),
                    warmup_type: Curve::Linear,
                    decay_type: Curve::Cosine,
                    min_lr_ratio: 0.0,
                    num_cycles: 0.5,
                },
                0.001,
                3,
                20,
                &[
                    (2, 0.0006666666666666666),
                    (8, 0.001),
                    (9, 0.0009619397662556434),
                    (14, 0.00014644660940672628),
                    (16, 0.0),
                    (19, 0.0),
                ],
            ),
            (
                Shape::WarmupStableDecay {
                    num_stable_steps: StableSteps::Third,
                    num_decay_steps: None,
                    warmup_type: Curve::Linear,
                    decay_type: Curve::Cosine,
                    min_lr_ratio: 0.0,
                    num_cycles: 0.5,
                },
                0.001,
                3,
                20,
                &[(3, 0.001), (8, 0.001), (14, 0.0005), (19, 1.70370868554659e-05), (20, 0.0)],
            ),
        ];
        for (shape, peak, warmup, total, points) in golden {
            let schedule = schedule(*shape, *peak, *warmup, *total, 3);
            for (step, rate) in *points {
                assert_close(schedule.lr(*step), *rate, &format!("{shape:?} at {step}"));
            }
        }
    }
}
