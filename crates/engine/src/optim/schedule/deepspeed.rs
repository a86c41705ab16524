//! DeepSpeed's schedules. They count from -1 and move on after each optimizer step that was not skipped, so the step
//! that is the n-th counted from 0 runs at their value at n - 1.

use std::f64::consts::PI;

use oarlock_config::config::{CycleMomentum, DeepSpeedShape, OneCycle, Warmup, WarmupType};

/// The second beta that `OneCycle` sets beside the momentum.
const CYCLE_BETA2: f64 = 0.99;

/// The steps of the way up, given the warm-up of the run; `None` for a shape without one.
pub(super) fn warmup_steps(shape: &DeepSpeedShape, of_run: u64) -> Option<u64> {
    let own = match shape {
        DeepSpeedShape::WarmupLr(warmup) | DeepSpeedShape::WarmupDecayLr { warmup, .. } => warmup.num_steps,
        DeepSpeedShape::WarmupCosineLr { warmup_num_steps, .. } => *warmup_num_steps,
        DeepSpeedShape::LrRangeTest { .. } => return None,
        DeepSpeedShape::OneCycle(cycle) => return Some(cycle.first_step_size),
    };
    // As short as DeepSpeed makes it.
    Some(own.unwrap_or(of_run).max(2))
}

/// The learning rate of the step `step`, counted from 0; `rate` is the optimizer's own.
pub(super) fn lr(shape: &DeepSpeedShape, step: u64, rate: f64, warmup_steps: u64, total_of_run: u64) -> f64 {
    let t = step as f64 - 1.0;
    let steps = warmup_steps as f64;
    let rest = |total: Option<u64>| (total.unwrap_or(total_of_run) as f64, steps);
    let ramp = |Warmup { min_lr, max_lr, .. }: Warmup, share: f64| {
        if t < 0.0 { min_lr } else { min_lr + (max_lr.unwrap_or(rate) - min_lr) * share }
    };
    match *shape {
        DeepSpeedShape::WarmupLr(warmup) => {
            ramp(warmup, if t < steps { rise(warmup.warmup_type, t, steps) } else { 1.0 })
        }
        DeepSpeedShape::WarmupDecayLr { warmup, total_num_steps } => {
            let (total, steps) = rest(total_num_steps);
            let share = if t < steps {
                rise(warmup.warmup_type, t, steps)
            } else {
                ((total - t) / (total - steps).max(1.0)).max(0.0)
            };
            ramp(warmup, share)
        }
        DeepSpeedShape::WarmupCosineLr {
            warmup_min_ratio,
            warmup_type,
            cos_min_ratio,
            total_num_steps,
            ..
        } => {
            let (total, steps) = rest(total_num_steps);
            rate * if t < 0.0 {
                0.0
            } else if t < steps {
                warmup_min_ratio + rise(warmup_type, t, steps) * (1.0 - warmup_min_ratio)
            } else {
                let progress = ((t - steps + 1.0) / (total - steps).max(1.0)).min(1.0);
                let wave = (1.0 + libm::cos(PI * progress)) / 2.0;
                (cos_min_ratio + (1.0 - cos_min_ratio) * wave).max(0.0)
            }
        }
        DeepSpeedShape::LrRangeTest { min_lr, step_size, step_rate, staircase } => {
            let intervals = (t + 1.0) / step_size as f64;
            min_lr * (1.0 + step_rate * if staircase { intervals.floor() } else { intervals })
        }
        DeepSpeedShape::OneCycle(cycle) => cycle_lr(&cycle, t),
    }
}

/// The share of the way up after step `t`, from 0 on.
fn rise(curve: WarmupType, t: f64, steps: f64) -> f64 {
    match curve {
        WarmupType::Log => 1.0 / libm::log(steps) * libm::log(t + 1.0),
        WarmupType::Linear => t / steps,
    }
}

/// The betas of the step `step`, counted from 0, where the schedule sets them.
pub(super) fn betas(shape: &DeepSpeedShape, step: u64) -> Option<[f64; 2]> {
    let DeepSpeedShape::OneCycle(cycle) = shape else { return None };
    let CycleMomentum { min, max, decay_rate } = cycle.momentum?;
    let t = step as f64 - 1.0;
    let momentum = if step == 0 {
        // DeepSpeed starts at the lower end and jumps to the upper one after the first step.
        min
    } else if t < total_steps(cycle) {
        max - (max - min) * height(cycle, t)
    } else {
        max * (1.0 + decay_rate * decay_intervals(cycle, t))
    };
    Some([momentum, CYCLE_BETA2])
}

fn cycle_lr(cycle: &OneCycle, t: f64) -> f64 {
    if t < 0.0 {
        cycle.min_lr
    } else if t < total_steps(cycle) {
        cycle.min_lr + (cycle.max_lr - cycle.min_lr) * height(cycle, t)
    } else {
        cycle.min_lr / (1.0 + cycle.decay_lr_rate * decay_intervals(cycle, t))
    }
}

fn total_steps(cycle: &OneCycle) -> f64 {
    cycle.first_step_size as f64 + cycle.second_step_size as f64
}

/// Intervals of the decay that are over; none where it is off.
fn decay_intervals(cycle: &OneCycle, t: f64) -> f64 {
    match cycle.decay_step_size {
        0 => 0.0,
        size => (t - total_steps(cycle) + 1.0) / size as f64,
    }
}

/// How high step `t` of the cycle stands, from 0 to 1, on a slope or on stairs.
fn height(cycle: &OneCycle, t: f64) -> f64 {
    let (first, second) = (cycle.first_step_size as f64, cycle.second_step_size as f64);
    let total = first + second;
    let x = (t + 1.0) / total;
    let x = 1.0 + x - (1.0 + x).floor();
    let top = first / total;
    let (slope, stairs) = if x <= top {
        (x / top, cycle.first_stair_count)
    } else {
        ((x - 1.0) / (top - 1.0), cycle.second_stair_count)
    };
    if stairs == 0 {
        return slope;
    }
    let (stairs, at) = (stairs as f64, (t + 1.0) % total);
    let stair = if at <= first { at * stairs / first } else { (total - at) * stairs / second };
    stair.floor() / stairs
}
