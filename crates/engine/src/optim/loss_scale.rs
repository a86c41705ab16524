//! The scale of the loss in f16: small gradients would vanish there, so the loss is multiplied before the backward pass
//! and gradients are divided after it. A step whose gradients overflow is skipped by all ranks, and the scale follows.
//!
//! The rule is that of DeepSpeed's `DynamicLossScaler`. It knows nothing of tensors: whoever reduces the gradients says
//! whether any rank saw an overflow, the same on all ranks, so that all scalers stay equal.

use oarlock_config::config::LossScale;
use serde::{Deserialize, Serialize};

use crate::report::error::ScaleAtMinimum;

/// The scale of the loss and its history.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    rule: LossScale,
    state: LossScalerState,
}

/// What a checkpoint keeps of a [`LossScaler`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerState {
    /// The scale of the next step.
    pub scale: f64,
    /// Updates done.
    pub iteration: i64,
    /// The update that saw the last overflow; -1 for none.
    pub last_overflow: i64,
    /// Overflows, counted with the one that lowers the scale, until it falls.
    pub hysteresis: u32,
}

/// What becomes of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The gradients are finite: the optimizer steps.
    Step,
    /// They are not: neither the optimizer nor the learning rate moves.
    Skip {
        /// The line for the log.
        line: String,
    },
}

impl LossScaler {
    /// A scaler at its beginning.
    pub fn new(rule: LossScale) -> Self {
        let (scale, hysteresis) = match rule {
            LossScale::Static(scale) => (scale, 1),
            LossScale::Dynamic { initial_power, hysteresis, .. } => {
                (2f64.powi(i32::try_from(initial_power).unwrap_or(i32::MAX)), hysteresis)
            }
        };
        let state = LossScalerState { scale, iteration: 0, last_overflow: -1, hysteresis };
        LossScaler { rule, state }
    }

    /// How it follows overflows.
    pub fn rule(&self) -> &LossScale {
        &self.rule
    }

    /// The factor of the loss; gradients are divided by it.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// What a checkpoint keeps.
    pub fn state(&self) -> LossScalerState {
        self.state
    }

    /// Goes on where a checkpoint ended. A fixed scale stays what the configuration says.
    pub fn resume(&mut self, state: LossScalerState) {
        if matches!(self.rule, LossScale::Dynamic { .. }) {
            self.state = state;
        }
    }

    /// Closes a step in which gradients overflowed on some rank, or did not.
    ///
    /// # Errors
    /// If they overflowed and the scale is at its minimum.
    pub fn update(&mut self, overflow: bool) -> Result<Verdict, ScaleAtMinimum> {
        let LossScale::Dynamic { growth_interval, hysteresis, consecutive_hysteresis, min_scale, .. } =
            self.rule
        else {
            return Ok(match overflow {
                true => Verdict::Skip {
                    line: "[deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated."
                        .to_owned(),
                },
                false => Verdict::Step,
            });
        };
        let state = &mut self.state;
        let mut verdict = Verdict::Step;
        if overflow {
            let scale = state.scale.trunc();
            let what = if hysteresis == 1 || state.hysteresis == 1 {
                if state.scale == min_scale {
                    return Err(ScaleAtMinimum { scale: min_scale, found_in: None });
                }
                state.scale = (state.scale / 2.0).max(min_scale);
                format!("reducing to {}", state.scale.trunc())
            } else {
                let left = state.hysteresis.saturating_sub(1);
                let line = format!("but hysteresis is {}. Reducing hysteresis to {left}", state.hysteresis);
                state.hysteresis = left;
                line
            };
            state.last_overflow = state.iteration;
            let line =
                format!("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, {what}");
            verdict = Verdict::Skip { line };
        } else {
            let stable = u64::try_from(state.iteration - state.last_overflow - 1).unwrap_or(0);
            let doubles = stable > 0 && stable.is_multiple_of(growth_interval.max(1));
            if consecutive_hysteresis || doubles {
                state.hysteresis = hysteresis;
            }
            if doubles {
                state.scale *= 2.0;
            }
        }
        state.iteration += 1;
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Case {
        power: u32,
        window: u64,
        hysteresis: u32,
        consecutive: bool,
        least: f64,
        steps: String,
        scales: Vec<f64>,
        left: Vec<u32>,
        lines: Vec<String>,
        fails: bool,
    }

    fn dynamic(initial_power: u32, growth_interval: u64, hysteresis: u32) -> LossScale {
        LossScale::Dynamic {
            initial_power,
            growth_interval,
            hysteresis,
            consecutive_hysteresis: false,
            min_scale: 1.0,
        }
    }

    #[test]
    fn traces_are_those_of_deepspeed() {
        let text =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../oarlock/tests/golden/loss_scaler.json"));
        let cases: Vec<Case> = serde_json::from_str(text).unwrap();
        assert!(cases.iter().any(|case| case.fails) && cases.len() > 10);
        for (i, case) in cases.iter().enumerate() {
            let mut scaler = LossScaler::new(LossScale::Dynamic {
                initial_power: case.power,
                growth_interval: case.window,
                hysteresis: case.hysteresis,
                consecutive_hysteresis: case.consecutive,
                min_scale: case.least,
            });
            let (mut scales, mut left, mut lines, mut fails) = (Vec::new(), Vec::new(), Vec::new(), false);
            for step in case.steps.chars() {
                // A checkpoint after every step changes nothing.
                let kept = serde_json::to_string(&scaler.state()).unwrap();
                scaler.resume(serde_json::from_str(&kept).unwrap());
                match scaler.update(step == '1') {
                    Ok(Verdict::Step) => assert_eq!(step, '0'),
                    Ok(Verdict::Skip { line }) => lines.push(line),
                    Err(error) => {
                        assert_eq!(error.scale, case.least);
                        fails = true;
                        break;
                    }
                }
                scales.push(scaler.scale());
                left.push(scaler.state().hysteresis);
            }
            assert_eq!((&scales, &left, fails), (&case.scales, &case.left, case.fails), "case {i}");
            assert_eq!(lines, case.lines, "case {i}");
        }
    }

    #[test]
    fn a_fixed_scale_stays() {
        let mut scaler = LossScaler::new(LossScale::Static(128.0));
        assert_eq!(scaler.update(false), Ok(Verdict::Step));
        assert!(matches!(scaler.update(true), Ok(Verdict::Skip { line }) if line.contains("OVERFLOW")));
        scaler.resume(LossScaler::new(dynamic(3, 1, 1)).state());
        assert_eq!(scaler.scale(), 128.0);
    }

    #[test]
    fn the_last_overflow_says_what_to_do_and_where_it_was() {
        let mut scaler = LossScaler::new(dynamic(0, 1, 1));
        let error = scaler.update(true).unwrap_err();
        let found = error.clone().found_in("layers.3: self_attn.q_proj.weight").to_string();
        let expected = "gradients overflow although the loss scale is at its minimum (1), first in \
                        layers.3: self_attn.q_proj.weight; the run diverges: lower learning_rate, write bf16: \
                        true instead of fp16, or lower fp16.min_loss_scale";
        assert_eq!(found, expected);
        assert!(error.to_string().contains("minimum (1); the run"), "{error}");
        assert!(matches!(crate::Error::from(error), crate::Error::LossScale(cause) if cause.scale == 1.0));
    }
}
