//! The lines and scalars of DeepSpeed's engine: learning rate, moments, skipped steps, the times of the phases.

use std::time::Duration;

use super::python::repr;
use super::speed::{Phase, PhaseTimes};

/// What the moments of the optimizer keep of themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Momentum {
    /// One number.
    One(f64),
    /// Those of the first and the second moment.
    Two(f64, f64),
}

/// A step as the engine reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineStep {
    /// Steps so far, skipped ones included.
    pub step: u64,
    /// Those that were skipped.
    pub skipped: u64,
    /// Samples so far.
    pub samples: u64,
    /// The mean loss of the step.
    pub loss: f64,
    /// The learning rate of the next step, which the optimizer holds now.
    pub lr: f64,
    /// Its moments.
    pub momentum: Momentum,
    /// The factor of the loss, where it is scaled.
    pub loss_scale: Option<f64>,
    /// What the step took.
    pub times: PhaseTimes,
}

/// `step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]`
pub fn progress(step: &EngineStep) -> String {
    let momentum = match step.momentum {
        Momentum::One(momentum) => repr(momentum),
        Momentum::Two(first, second) => format!("({}, {})", repr(first), repr(second)),
    };
    format!("step={}, skipped={}, lr=[{}], mom=[{momentum}]", step.step, step.skipped, repr(step.lr))
}

/// The timers of the engine in milliseconds: `fwd`, `bwd` and its two parts, `step`.
fn timers(times: &PhaseTimes, parts: f64) -> [f64; 5] {
    [
        &[Phase::Forward][..],
        &[Phase::Backward, Phase::Reduce],
        &[Phase::Backward],
        &[Phase::Reduce],
        &[Phase::Clip, Phase::Optimizer],
    ]
    .map(|phases| {
        let time: Duration = phases.iter().map(|phase| times.of(*phase)).sum();
        1e3 * time.as_secs_f64() / parts
    })
}

/// The two lines of `wall_clock_breakdown`: means of a micro-step and of a step, over so many steps.
pub fn wall_clock(times: &PhaseTimes, steps: u64, accumulation: u64) -> String {
    const NAMES: [&str; 5] = ["fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"];
    let line = |parts: u64, suffix: &str| {
        let timers = timers(times, parts.max(1) as f64).into_iter().zip(NAMES);
        let timers: Vec<String> = timers.map(|(ms, name)| format!(" | {name}{suffix}: {ms:.2}")).collect();
        format!("time (ms){}", timers.concat())
    };
    format!("{}\n{}", line(steps * accumulation, "_microstep"), line(steps, ""))
}

/// The scalars of a step under their names; the times where they are wanted.
pub fn scalars(step: &EngineStep, with_times: bool) -> Vec<(&'static str, f64)> {
    const NAMES: [&str; 5] = [
        "Train/Samples/elapsed_time_ms_forward",
        "Train/Samples/elapsed_time_ms_backward",
        "Train/Samples/elapsed_time_ms_backward_inner",
        "Train/Samples/elapsed_time_ms_backward_allreduce",
        "Train/Samples/elapsed_time_ms_step",
    ];
    let mut out = vec![("Train/Samples/train_loss", step.loss), ("Train/Samples/lr", step.lr)];
    out.extend(step.loss_scale.map(|scale| ("Train/Samples/loss_scale", scale)));
    if with_times {
        out.extend(NAMES.into_iter().zip(timers(&step.times, 1.0)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_scalars_are_those_of_the_engine() {
        let ms = Duration::from_millis;
        let phases = [
            (Phase::Forward, ms(10)),
            (Phase::Backward, ms(20)),
            (Phase::Reduce, ms(4)),
            (Phase::Clip, ms(1)),
            (Phase::Optimizer, ms(3)),
            (Phase::Other, ms(100)),
        ];
        let step = EngineStep {
            step: 10,
            skipped: 2,
            samples: 80,
            loss: 2.5,
            lr: 5e-5,
            momentum: Momentum::Two(0.9, 0.999),
            loss_scale: Some(65536.0),
            times: PhaseTimes::from_iter(phases),
        };
        assert_eq!(progress(&step), "step=10, skipped=2, lr=[5e-05], mom=[(0.9, 0.999)]");
        let sgd = EngineStep { momentum: Momentum::One(0.0), loss_scale: None, ..step };
        assert_eq!(progress(&sgd), "step=10, skipped=2, lr=[5e-05], mom=[0.0]");
        assert_eq!(
            wall_clock(&step.times, 2, 5),
            "time (ms) | fwd_microstep: 1.00 | bwd_microstep: 2.40 | bwd_inner_microstep: 2.00 | \
             bwd_allreduce_microstep: 0.40 | step_microstep: 0.40\n\
             time (ms) | fwd: 5.00 | bwd: 12.00 | bwd_inner: 10.00 | bwd_allreduce: 2.00 | step: 2.00"
        );
        let names: Vec<&str> = scalars(&step, true).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(scalars(&step, true)[4], ("Train/Samples/elapsed_time_ms_backward", 24.0));
        assert_eq!(scalars(&sgd, false), [("Train/Samples/train_loss", 2.5), ("Train/Samples/lr", 5e-5)]);
    }
}
