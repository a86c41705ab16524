//! Reads `lr_scheduler_type` and its arguments, checked as strictly as the other keys.

use super::schedule::{
    Curve, CycleMomentum, DeepSpeedShape, OneCycle, Shape, StableSteps, Warmup, WarmupType,
};
use super::table as keys;
use crate::settings::keys::Range;
use crate::settings::kwargs::Kwargs;
use crate::settings::problem::Problems;
use crate::settings::resolve::Settings;
use crate::settings::value::number;

const CURVES: &[(&str, Curve)] =
    &[("linear", Curve::Linear), ("cosine", Curve::Cosine), ("1-sqrt", Curve::OneMinusSqrt)];

/// The shape of the learning rate; what is wrong with it goes to `problems`.
pub fn shape(settings: &Settings, learning_rate: f64, problems: &mut Problems) -> Shape {
    let name = settings.get(keys::LR_SCHEDULER_TYPE);
    let locations = [settings.setting(keys::LR_SCHEDULER_KWARGS), settings.setting(keys::LR_SCHEDULER_TYPE)];
    let mut kwargs = Kwargs::new(name, locations, settings.get(keys::LR_SCHEDULER_KWARGS), problems);
    let shape = match name {
        "constant" => Shape::Constant,
        "constant_with_warmup" => Shape::ConstantWithWarmup,
        "cosine" => {
            Shape::Cosine { num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5) }
        }
        "cosine_with_restarts" => Shape::CosineWithRestarts {
            num_cycles: kwargs.number("num_cycles", Range::Positive).unwrap_or(1.0),
        },
        "polynomial" => {
            let lr_end = kwargs.number("lr_end", Range::NotNegative).unwrap_or(1e-7);
            let power = kwargs.number("power", Range::Positive).unwrap_or(1.0);
            if lr_end >= learning_rate {
                kwargs.reject(format!(
                    "`lr_end` ({}) must be smaller than `learning_rate` ({})",
                    number(lr_end),
                    number(learning_rate)
                ));
            }
            Shape::Polynomial { lr_end, power }
        }
        "inverse_sqrt" => Shape::InverseSqrt { timescale: kwargs.number("timescale", Range::Positive) },
        "cosine_with_min_lr" => Shape::CosineWithMinLr {
            num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5),
            min_lr_rate: floor(&mut kwargs, settings, learning_rate),
        },
        "cosine_warmup_with_min_lr" => Shape::CosineWarmupWithMinLr {
            num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5),
            min_lr_rate: floor(&mut kwargs, settings, learning_rate),
            warmup_lr_rate: kwargs.number("warmup_lr_rate", Range::Share),
        },
        "warmup_stable_decay" => {
            let min_lr_ratio = kwargs.number("min_lr_ratio", Range::Share);
            let own = own_floor(settings);
            if min_lr_ratio.is_some() && own.is_some() {
                kwargs.reject("`min_lr_ratio` stands both as a key and in lr_scheduler_kwargs".to_owned());
            }
            Shape::WarmupStableDecay {
                num_stable_steps: kwargs
                    .count("num_stable_steps")
                    .map_or(StableSteps::Third, StableSteps::Steps),
                num_decay_steps: kwargs.count("num_decay_steps"),
                warmup_type: kwargs.choice("warmup_type", CURVES).unwrap_or(Curve::Linear),
                decay_type: kwargs.choice("decay_type", CURVES).unwrap_or(Curve::Cosine),
                min_lr_ratio: min_lr_ratio.or(own).unwrap_or(0.0),
                num_cycles: kwargs.number("num_cycles", Range::NotNegative).unwrap_or(0.5),
            }
        }
        "minimind_seed" | "minimind" => Shape::MinimindSeed,
        "minimind3" => Shape::Minimind3,
        "WarmupLR" => Shape::DeepSpeed(DeepSpeedShape::WarmupLr(warmup(&mut kwargs))),
        "WarmupDecayLR" => Shape::DeepSpeed(DeepSpeedShape::WarmupDecayLr {
            warmup: warmup(&mut kwargs),
            total_num_steps: kwargs.count("total_num_steps"),
        }),
        "WarmupCosineLR" => Shape::DeepSpeed(DeepSpeedShape::WarmupCosineLr {
            warmup_min_ratio: kwargs.number("warmup_min_ratio", Range::NotNegative).unwrap_or(0.0),
            warmup_num_steps: positive(&mut kwargs, "warmup_num_steps"),
            warmup_type: kwargs.choice("warmup_type", WARMUP_TYPES).unwrap_or(WarmupType::Log),
            cos_min_ratio: kwargs.number("cos_min_ratio", Range::NotNegative).unwrap_or(1e-4),
            total_num_steps: kwargs.count("total_num_steps"),
        }),
        "LRRangeTest" => Shape::DeepSpeed(DeepSpeedShape::LrRangeTest {
            min_lr: kwargs.number("lr_range_test_min_lr", Range::NotNegative).unwrap_or(1e-3),
            step_size: positive(&mut kwargs, "lr_range_test_step_size").unwrap_or(2000),
            step_rate: kwargs.number("lr_range_test_step_rate", Range::NotNegative).unwrap_or(1.0),
            staircase: kwargs.flag("lr_range_test_staircase").unwrap_or(false),
        }),
        "OneCycle" => Shape::DeepSpeed(DeepSpeedShape::OneCycle(one_cycle(&mut kwargs))),
        // `linear`, and the stand-in for a name that was refused before.
        _ => Shape::Linear,
    };
    kwargs.finish();
    let floored = matches!(
        shape,
        Shape::CosineWithMinLr { .. } | Shape::CosineWarmupWithMinLr { .. } | Shape::WarmupStableDecay { .. }
    );
    if own_floor(settings).is_some() && !floored && !settings.setting(keys::LR_SCHEDULER_TYPE).broken {
        let message = format!("`min_lr_ratio` has no meaning for `{name}`");
        let names = [keys::MIN_LR_RATIO.row, keys::LR_SCHEDULER_TYPE.row];
        settings.report(problems, message, &names, "use lr_scheduler_type: cosine_with_min_lr");
    }
    shape
}

fn own_floor(settings: &Settings) -> Option<f64> {
    settings.get(keys::MIN_LR_RATIO)
}

/// The lowest rate as a share of the peak, from the one of three names that was written.
fn floor(kwargs: &mut Kwargs<'_>, settings: &Settings, learning_rate: f64) -> f64 {
    let absolute = kwargs.number("min_lr", Range::NotNegative);
    let share = kwargs.number("min_lr_rate", Range::Share);
    let own = own_floor(settings);
    let written = usize::from(absolute.is_some()) + usize::from(share.is_some()) + usize::from(own.is_some());
    if written != 1 {
        let word = if written == 0 { "needs one" } else { "takes only one" };
        kwargs.reject(format!(
            "`{}` {word} of min_lr and min_lr_rate in lr_scheduler_kwargs and min_lr_ratio as a key",
            kwargs.of()
        ));
    }
    match absolute {
        Some(min_lr) if min_lr > learning_rate => {
            kwargs.reject(format!(
                "`min_lr` ({}) is greater than `learning_rate` ({})",
                number(min_lr),
                number(learning_rate)
            ));
            1.0
        }
        Some(min_lr) if learning_rate > 0.0 => min_lr / learning_rate,
        _ => share.or(own).unwrap_or(0.0),
    }
}

const WARMUP_TYPES: &[(&str, WarmupType)] = &[("log", WarmupType::Log), ("linear", WarmupType::Linear)];

fn warmup(kwargs: &mut Kwargs<'_>) -> Warmup {
    Warmup {
        min_lr: kwargs.number("warmup_min_lr", Range::NotNegative).unwrap_or(0.0),
        max_lr: kwargs.number("warmup_max_lr", Range::NotNegative),
        num_steps: positive(kwargs, "warmup_num_steps"),
        warmup_type: kwargs.choice("warmup_type", WARMUP_TYPES).unwrap_or(WarmupType::Log),
    }
}

fn one_cycle(kwargs: &mut Kwargs<'_>) -> OneCycle {
    let [min_lr, max_lr] = ["cycle_min_lr", "cycle_max_lr"].map(|name| {
        let rate = kwargs.number(name, Range::NotNegative);
        if rate.is_none() {
            kwargs.reject(format!("`OneCycle` needs `{name}` in lr_scheduler_kwargs"));
        }
        rate.unwrap_or(0.0)
    });
    let first_step_size = positive(kwargs, "cycle_first_step_size").unwrap_or(2000);
    let first_stair_count = kwargs.count("cycle_first_stair_count").unwrap_or(0);
    let momentum = CycleMomentum {
        min: kwargs.number("cycle_min_mom", Range::BelowOne).unwrap_or(0.8),
        max: kwargs.number("cycle_max_mom", Range::BelowOne).unwrap_or(0.9),
        decay_rate: kwargs.number("decay_mom_rate", Range::NotNegative).unwrap_or(0.0),
    };
    OneCycle {
        min_lr,
        max_lr,
        first_step_size,
        second_step_size: kwargs.count("cycle_second_step_size").unwrap_or(first_step_size),
        first_stair_count,
        second_stair_count: kwargs.count("cycle_second_stair_count").unwrap_or(first_stair_count),
        decay_step_size: kwargs.count("decay_step_size").unwrap_or(0),
        decay_lr_rate: kwargs.number("decay_lr_rate", Range::NotNegative).unwrap_or(0.0),
        momentum: kwargs.flag("cycle_momentum").unwrap_or(true).then_some(momentum),
    }
}

/// A number of steps, at least 1.
fn positive(kwargs: &mut Kwargs<'_>, name: &'static str) -> Option<u64> {
    let steps = kwargs.count(name);
    if steps == Some(0) {
        kwargs.reject(format!("`{name}` of `{}` is 0; it takes at least one step", kwargs.of()));
    }
    steps.filter(|steps| *steps > 0)
}
