//! Reads `optim`, `optim_args` and AdamW's keys into the rule of the optimizer.

use oarlock_tensor::ops::optimizer::{
    AdEmaMixArgs, AdafactorArgs, AdjustLr, OneBit, OneBitKind, RmsPropArgs, Rule,
};

use super::shard::{Elems, Placement, ShardingConfig};
use super::table as keys;
use super::train::OptimizerArgs;
use crate::settings::keys::{Key, Range};
use crate::settings::kwargs::Kwargs;
use crate::settings::node::Entry;
use crate::settings::problem::Problems;
use crate::settings::resolve::Settings;

/// The optimizer that takes the same steps as one whose name begins so, with states in f32.
const STAND_INS: [(&str, &str); 4] =
    [("adamw_", "adamw"), ("lion_", "lion"), ("rmsprop_", "rmsprop"), ("ademamix_", "ademamix")];

/// The optimizer of a name: itself, or the one that stands in for it.
fn method(name: &str) -> &str {
    let name = name.strip_prefix("paged_").unwrap_or(name);
    STAND_INS.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(name, |(_, method)| method)
}

/// Whether the states of an optimizer of this name have 8 bits, also where they have 4 elsewhere.
fn has_8_bits(name: &str) -> bool {
    name.ends_with("_8bit") || name.ends_with("_4bit")
}

/// Warnings about an optimizer whose states take less memory elsewhere.
pub fn memory_note(settings: &Settings) -> Option<String> {
    let name = settings.get(keys::OPTIM);
    let other = match (name.ends_with("_4bit"), name.starts_with("paged_")) {
        (true, _) => "have 8 bits, not 4",
        (_, true) => "are not paged",
        _ => return None,
    };
    let bits = if has_8_bits(name) { "_8bit" } else { "" };
    Some(format!("optim: {name} takes the steps of {}{bits}: its states {other}", method(name)))
}

/// The optimizer; what is wrong with it goes to `problems`.
pub fn optimizer(settings: &Settings, problems: &mut Problems) -> OptimizerArgs {
    let name = settings.get(keys::OPTIM);
    let fields = pairs(settings, problems);
    let mut kwargs = Kwargs::new(
        name,
        [settings.setting(keys::OPTIM_ARGS), settings.setting(keys::OPTIM)],
        &fields,
        problems,
    );
    let (beta1, beta2, eps) =
        (settings.get(keys::ADAM_BETA1), settings.get(keys::ADAM_BETA2), settings.get(keys::ADAM_EPSILON));
    let rule = match method(name) {
        "adam" => Rule::Adam { beta1, beta2, eps },
        "sgd" => sgd(&mut kwargs),
        "adagrad" => Rule::Adagrad {
            lr_decay: kwargs.number("lr_decay", Range::NotNegative).unwrap_or(0.0),
            initial_accumulator_value: kwargs
                .number("initial_accumulator_value", Range::NotNegative)
                .unwrap_or(0.0),
            eps: kwargs.number("eps", Range::Positive).unwrap_or(1e-10),
        },
        "lion" => Rule::Lion { beta1, beta2 },
        "rmsprop" => rms_prop(&mut kwargs).rule(),
        "ademamix" => ad_ema_mix(&mut kwargs, [beta1, beta2], eps).rule(),
        "lamb" => {
            let max_coeff = kwargs.number("max_coeff", Range::Positive).unwrap_or(10.0);
            let min_coeff = kwargs.number("min_coeff", Range::NotNegative).unwrap_or(0.01);
            if min_coeff > max_coeff {
                kwargs.reject("`min_coeff` of `lamb` is greater than `max_coeff`".to_owned());
            }
            Rule::Lamb {
                beta1,
                beta2,
                eps,
                eps_inside_sqrt: kwargs.flag("eps_inside_sqrt").unwrap_or(false),
                bias_correction: kwargs.flag("bias_correction").unwrap_or(true),
                max_coeff,
                min_coeff,
            }
        }
        "adafactor" => adafactor(&mut kwargs, &AdafactorArgs::TRANSFORMERS),
        "adafactor_torch" => adafactor(&mut kwargs, &AdafactorArgs::TORCH),
        "muon" => Rule::Muon {
            momentum: kwargs.number("momentum", Range::BelowOne).unwrap_or(0.95),
            nesterov: kwargs.flag("nesterov").unwrap_or(true),
            ns_coefficients: [3.4445, -4.775, 2.0315],
            ns_steps: kwargs.count("ns_steps").map_or(5, |steps| steps.min(99) as usize),
            eps: kwargs.number("eps", Range::Positive).unwrap_or(1e-7),
            adjust_lr: kwargs.choice("adjust_lr_fn", ADJUST_LR).unwrap_or(AdjustLr::Original),
            adam_lr_ratio: kwargs.number("adam_lr_ratio", Range::NotNegative).unwrap_or(1.0),
            adam_beta1: beta1,
            adam_beta2: beta2,
            adam_eps: eps,
        },
        "onebit_adam" | "zero_one_adam" | "onebit_lamb" => {
            Rule::OneBit(OneBit { beta1, beta2, eps, kind: one_bit(name, &mut kwargs) })
        }
        // AdamW, and the stand-in for a name that was refused before.
        _ => Rule::AdamW { beta1, beta2, eps },
    };
    kwargs.finish();
    let rule = match has_8_bits(name) {
        true => rule.clone().in_8_bits().unwrap_or(rule),
        false => rule,
    };
    OptimizerArgs { rule, weight_decay: settings.get(keys::WEIGHT_DECAY), targets: Vec::new() }
}

/// DeepSpeed's defaults.
fn one_bit(name: &str, kwargs: &mut Kwargs<'_>) -> OneBitKind {
    match name {
        "zero_one_adam" => OneBitKind::ZeroOneAdam {
            var_freeze_step: kwargs.count("var_freeze_step").unwrap_or(100_000),
            var_update_scaler: kwargs.size("var_update_scaler").unwrap_or(16),
            local_step_scaler: kwargs.size("local_step_scaler").unwrap_or(32_678),
            local_step_clipper: kwargs.size("local_step_clipper").unwrap_or(16),
        },
        "onebit_lamb" => {
            let kind = OneBitKind::Lamb {
                freeze_step: kwargs.count("freeze_step").unwrap_or(100_000),
                max_coeff: kwargs.number("max_coeff", Range::Positive).unwrap_or(10.0),
                min_coeff: kwargs.number("min_coeff", Range::NotNegative).unwrap_or(0.01),
                coeff_beta: kwargs.number("coeff_beta", Range::BelowOne).unwrap_or(0.9),
                factor_max: kwargs.number("factor_max", Range::Positive).unwrap_or(4.0),
                factor_min: kwargs.number("factor_min", Range::Positive).unwrap_or(0.5),
                factor_threshold: kwargs.number("factor_threshold", Range::NotNegative).unwrap_or(0.1),
            };
            if let OneBitKind::Lamb { max_coeff, min_coeff, factor_max, factor_min, .. } = kind {
                if min_coeff > max_coeff {
                    kwargs.reject("`min_coeff` of `onebit_lamb` is greater than `max_coeff`".to_owned());
                }
                if factor_min > factor_max {
                    kwargs.reject("`factor_min` of `onebit_lamb` is greater than `factor_max`".to_owned());
                }
            }
            kind
        }
        _ => OneBitKind::Adam { freeze_step: kwargs.count("freeze_step").unwrap_or(100_000) },
    }
}

/// Whether the optimizer can have this placement; what is wrong goes to `problems`.
pub fn check_placement(
    settings: &Settings,
    optimizer: &OptimizerArgs,
    shard: &ShardingConfig<Elems>,
    problems: &mut Problems,
) {
    if matches!(optimizer.rule, Rule::OneBit(_)) && shard.placements.optimizer == Placement::Sharded {
        let message = format!("`{}` is not compatible with ZeRO or FSDP", optimizer.rule.name());
        let help = "each rank has errors of its own for the whole model: write a DeepSpeed block with \
                    \"zero_optimization\": {\"stage\": 0}";
        settings.report(problems, message, &[keys::OPTIM.row], help);
    }
}

const ADJUST_LR: &[(&str, AdjustLr)] =
    &[("original", AdjustLr::Original), ("match_rms_adamw", AdjustLr::MatchRmsAdamW)];

fn sgd(kwargs: &mut Kwargs<'_>) -> Rule {
    let momentum = kwargs.number("momentum", Range::BelowOne).unwrap_or(0.0);
    let dampening = kwargs.number("dampening", Range::Any).unwrap_or(0.0);
    let nesterov = kwargs.flag("nesterov").unwrap_or(false);
    if nesterov && (momentum == 0.0 || dampening != 0.0) {
        kwargs.reject("`nesterov` of `sgd` needs a `momentum` and no `dampening`".to_owned());
    }
    Rule::Sgd { momentum, dampening, nesterov }
}

/// The trainer of transformers makes Adafactor with steps that are not relative, so nothing is relative to `eps2` there.
fn adafactor(kwargs: &mut Kwargs<'_>, defaults: &AdafactorArgs) -> Rule {
    let of = kwargs.of().to_owned();
    let beta2_decay = kwargs.number("beta2_decay", Range::Any).unwrap_or(defaults.beta2_decay);
    let d = kwargs.number("d", Range::Positive).unwrap_or(defaults.d);
    if beta2_decay > 0.0 {
        kwargs.reject(format!("`beta2_decay` of `{of}` is an exponent, at most 0"));
    }
    if d < 1.0 {
        kwargs.reject(format!("`d` of `{of}` is a threshold, at least 1"));
    }
    let eps2 = if defaults.relative { kwargs.number("eps2", Range::Positive) } else { None };
    Rule::Adafactor(AdafactorArgs {
        beta2_decay,
        eps1: kwargs.number("eps1", Range::Positive).unwrap_or(defaults.eps1),
        eps2: eps2.unwrap_or(defaults.eps2),
        d,
        relative: defaults.relative,
    })
}

fn rms_prop(kwargs: &mut Kwargs<'_>) -> RmsPropArgs {
    let defaults = RmsPropArgs::default();
    RmsPropArgs {
        alpha: kwargs.number("alpha", Range::BelowOne).unwrap_or(defaults.alpha),
        eps: kwargs.number("eps", Range::Positive).unwrap_or(defaults.eps),
        momentum: kwargs.number("momentum", Range::BelowOne).unwrap_or(defaults.momentum),
        centered: kwargs.flag("centered").unwrap_or(defaults.centered),
    }
}

/// With the defaults of transformers.
fn ad_ema_mix(kwargs: &mut Kwargs<'_>, [beta1, beta2]: [f64; 2], eps: f64) -> AdEmaMixArgs {
    let mut below_one = |name, default| kwargs.number(name, Range::BelowOne).unwrap_or(default);
    let betas = [below_one("beta1", beta1), below_one("beta2", beta2), below_one("beta3", 0.9999)];
    AdEmaMixArgs {
        betas,
        alpha: kwargs.number("alpha", Range::NotNegative).unwrap_or(5.0),
        eps: kwargs.number("eps", Range::Positive).unwrap_or(eps),
        t_alpha: kwargs.size("t_alpha"),
        t_beta3: kwargs.size("t_beta3"),
    }
}

/// The pairs of `optim_args`, written `key=value,key=value`.
fn pairs(settings: &Settings, problems: &mut Problems) -> Vec<Entry> {
    const KEY: Key<Option<String>> = keys::OPTIM_ARGS;
    let Some(location) = settings.setting(KEY).location() else { return Vec::new() };
    let mut entries: Vec<Entry> = Vec::new();
    let words = settings.get(KEY).unwrap_or_default();
    for pair in words.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((name, text)) = pair.split_once('=') else {
            let message = format!("`{KEY}` takes pairs such as momentum=0.9, not `{pair}`");
            settings.report(problems, message, &[KEY.row], "write key=value, separated by commas");
            continue;
        };
        let name = name.trim();
        if entries.iter().any(|entry| entry.key == name) {
            let message = format!("`{name}` is written twice in `{KEY}`");
            settings.report(problems, message, &[KEY.row], "remove one of them");
            continue;
        }
        entries.push(Entry::new(name, text.trim(), location));
    }
    entries
}
