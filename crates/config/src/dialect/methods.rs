//! DeepSpeed's `optimizer` and `scheduler` blocks as settings of ours: optim, optim_args, lr_scheduler_type,
//! lr_scheduler_kwargs, and the rates and moments that have keys of their own.

use super::block::Dialect;
use super::deepspeed_keys;
use crate::config::table as keys;
use crate::settings::location::Location;
use crate::settings::node::{Entry, Node};
use crate::settings::problem::{Problem, Problems};
use crate::settings::resolve::{AUTO, Setting, Settings, at};
use crate::settings::value::{self, Value};

/// An optimizer: its names in DeepSpeed, its name as `optim`, and the parameters it takes.
struct Method {
    names: &'static [&'static str],
    optim: &'static str,
    params: &'static [&'static str],
}

const METHODS: &[Method] = &[
    Method {
        names: &["AdamW", "Adam"],
        optim: "adamw_torch",
        params: &[
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "adam_w_mode",
            "torch_adam",
            "fused",
            "bias_correction",
            "amsgrad",
            "fp32_optimizer_states",
        ],
    },
    Method {
        names: &["SGD"],
        optim: "sgd",
        params: &["lr", "momentum", "dampening", "nesterov", "weight_decay"],
    },
    Method {
        names: &["Adagrad"],
        optim: "adagrad",
        params: &["lr", "lr_decay", "eps", "initial_accumulator_value", "weight_decay"],
    },
    Method {
        names: &["Lamb"],
        optim: "lamb",
        params: &[
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "max_coeff",
            "min_coeff",
            "bias_correction",
            "eps_inside_sqrt",
        ],
    },
    Method { names: &["Lion"], optim: "lion", params: &["lr", "betas", "weight_decay"] },
    Method {
        names: &["Muon"],
        optim: "muon",
        params: &[
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "momentum",
            "nesterov",
            "ns_steps",
            "muon_lr",
            "adam_lr",
        ],
    },
    Method {
        names: &["OneBitAdam"],
        optim: "onebit_adam",
        params: &[
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "freeze_step",
            "cuda_aware",
            "comm_backend_name",
            "bias_correction",
            "eps_inside_sqrt",
            "amsgrad",
        ],
    },
    Method {
        names: &["ZeroOneAdam"],
        optim: "zero_one_adam",
        params: &[
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "var_freeze_step",
            "var_update_scaler",
            "local_step_scaler",
            "local_step_clipper",
            "cuda_aware",
            "comm_backend_name",
            "bias_correction",
            "eps_inside_sqrt",
            "amsgrad",
        ],
    },
    Method {
        names: &["OneBitLamb"],
        optim: "onebit_lamb",
        params: &[
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "freeze_step",
            "max_coeff",
            "min_coeff",
            "coeff_beta",
            "factor_max",
            "factor_min",
            "factor_threshold",
            "cuda_aware",
            "comm_backend_name",
            "bias_correction",
            "eps_inside_sqrt",
            "amsgrad",
        ],
    },
    // DeepSpeed takes what it does not have itself from torch.
    Method {
        names: &["Adafactor"],
        optim: "adafactor_torch",
        params: &["lr", "weight_decay", "beta2_decay", "d"],
    },
];

/// Parameters that have keys of ours.
const SAME: &[(&str, &str)] = &[("eps", "adam_epsilon"), ("weight_decay", "weight_decay")];

/// Parameters that say something about the kernels or are taken apart here, so never in `optim_args`.
const NOT_ARGUMENTS: &[&str] = &[
    "lr",
    "muon_lr",
    "adam_lr",
    "betas",
    "adam_w_mode",
    "torch_adam",
    "fused",
    "amsgrad",
    "fp32_optimizer_states",
    "max_grad_norm",
    "cuda_aware",
    "comm_backend_name",
];

/// Schedules of DeepSpeed, under their names there.
const SCHEDULES: &[&str] = &["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"];

/// Adds what the block `optimizer` says.
pub fn optimizer(block: &Dialect, settings: &Settings, entries: &mut Vec<Entry>, problems: &mut Problems) {
    let params =
        || block.settings.iter().filter_map(|s| Some((s, s.key.name.strip_prefix("optimizer.params.")?)));
    let said = |setting: &Setting| block.settings.said(setting.key).is_some() && !setting.broken;
    if let Some((setting, location)) = block.settings.said_at(deepspeed_keys::OPTIMIZER_PARAMS_MAX_GRAD_NORM)
    {
        problems.push(
            Problem::new("`max_grad_norm` is not a parameter of an optimizer")
                .at(location, "")
                .help(format!("write \"gradient_clipping\": {} at the top", setting.value)),
        );
    }
    let method = block.settings.said_at(deepspeed_keys::OPTIMIZER_TYPE).and_then(|(kind, location)| {
        let name = kind.value.to_string();
        let found = METHODS.iter().find(|method| method.names.iter().any(|n| n.eq_ignore_ascii_case(&name)));
        if found.is_none() {
            let names: Vec<&str> = METHODS.iter().flat_map(|method| method.names).copied().collect();
            let problem = Problem::new(format!("no optimizer `{name}`")).at(location, "");
            let otherwise = format!("there are {}", names.join(", "));
            problems.push(problem.did_you_mean(&name, names, otherwise));
        }
        Some((found?, name, location))
    });
    let optim = match &method {
        Some((method, ..)) => Some(method.optim.to_owned()),
        None => Some(settings.get(keys::OPTIM).to_owned()),
    };
    let is_lamb = optim.as_deref() == Some("lamb");
    // DeepSpeed takes these of its 1-bit optimizers and does not read them.
    let is_unread = |name: &str| {
        matches!(name, "bias_correction" | "eps_inside_sqrt")
            && matches!(optim.as_deref(), Some("onebit_adam" | "zero_one_adam" | "onebit_lamb"))
    };
    let mut args = Vec::new();
    let mut args_place = None;
    for (setting, name) in params().filter(|(setting, _)| said(setting)) {
        let Some(location) = setting.location() else { continue };
        if let Some((method, named, _)) = &method
            && !method.params.contains(&name)
            && name != "max_grad_norm"
        {
            let message = format!("`{named}` takes no parameter `{name}`");
            problems.push(
                Problem::new(message).at(location, "").help(format!("it takes {}", method.params.join(", "))),
            );
        } else if let Some((_, ours)) = SAME.iter().find(|(theirs, _)| *theirs == name)
            && !(name == "eps" && method.as_ref().is_some_and(|(method, ..)| method.optim == "adagrad"))
        {
            entries.push(Entry::new(ours, setting.value.to_string(), location));
        } else if name == "bias_correction" && !is_lamb {
            if matches!(setting.value, Value::Bool(false)) && !is_unread(name) {
                let problem = Problem::new("`bias_correction: false` is not supported yet").at(location, "");
                problems.push(
                    problem.help("only Lamb can leave it out; the moments of others are always corrected"),
                );
            }
        } else if !NOT_ARGUMENTS.contains(&name) && !is_unread(name) {
            args.push(format!("{name}={}", setting.value));
            args_place.get_or_insert(location);
        }
    }
    betas(block, entries, problems);
    if let Some((ratio, location)) = rates(block, settings, entries) {
        args.push(format!("adam_lr_ratio={ratio}"));
        args_place.get_or_insert(location);
    }
    if let Some(location) = args_place {
        entries.push(Entry::new("optim_args", args.join(","), location));
    }
    if let Some((method, name, location)) = method {
        let plain = name.eq_ignore_ascii_case("Adam")
            && !block.settings.get(deepspeed_keys::OPTIMIZER_PARAMS_ADAM_W_MODE);
        let optim = if plain { "adam" } else { method.optim };
        // AdamW has several names, which agree.
        let written = settings.setting(keys::OPTIM);
        let same = optim.starts_with("adamw")
            && written.is_written()
            && matches!(&written.value, Value::Text(name) if name.starts_with("adamw"));
        if !same {
            entries.push(Entry::new("optim", optim, location));
        }
    }
}

/// The learning rate, and what Muon's other parameters have of it where they have one of their own.
fn rates<'b>(
    block: &'b Dialect,
    settings: &Settings,
    entries: &mut Vec<Entry>,
) -> Option<(f64, &'b Location)> {
    let [lr, muon, adam] = [
        deepspeed_keys::OPTIMIZER_PARAMS_LR,
        deepspeed_keys::OPTIMIZER_PARAMS_MUON_LR,
        deepspeed_keys::OPTIMIZER_PARAMS_ADAM_LR,
    ]
    .map(|key| {
        let (setting, location) = block.settings.said_at(key)?;
        match setting.value {
            Value::Float(rate) => Some((rate, location)),
            _ => None,
        }
    });
    let main = muon.or(lr);
    if let Some((rate, location)) = main {
        entries.push(Entry::new("learning_rate", value::number(rate), location));
    }
    let written = match settings.setting(keys::LEARNING_RATE).value {
        Value::Float(rate) => rate,
        _ => return None,
    };
    let main = main.map_or(written, |(rate, _)| rate);
    // With a rate of its own for the matrices alone, the shared one is that of the others.
    let (rate, location) = adam.or(lr.filter(|_| muon.is_some()))?;
    (rate != main && main > 0.0).then_some((rate / main, location))
}

fn betas(block: &Dialect, entries: &mut Vec<Entry>, problems: &mut Problems) {
    let Some((setting, location)) = block.settings.said_at(deepspeed_keys::OPTIMIZER_PARAMS_BETAS) else {
        return;
    };
    let (Value::List(betas), false) = (&setting.value, setting.broken) else { return };
    match betas.as_slice() {
        [first, second] => {
            for (key, beta) in [("adam_beta1", first), ("adam_beta2", second)] {
                if beta != AUTO {
                    entries.push(Entry::new(key, beta.as_str(), location));
                }
            }
        }
        _ => problems.push(
            Problem::new(format!("`betas` are two numbers, not {}", betas.len()))
                .at(location, "")
                .help("write [0.9, 0.999]"),
        ),
    }
}

/// Adds what the block `scheduler` says. The peak and the warm-up have keys of ours; the rest are arguments of the
/// schedule. What is "auto" or missing follows from the run.
pub fn scheduler(block: &Dialect, settings: &Settings, entries: &mut Vec<Entry>, problems: &mut Problems) {
    let Some((kind, location)) = block.settings.said_at(deepspeed_keys::SCHEDULER_TYPE) else {
        if block.settings.said(deepspeed_keys::SCHEDULER_PARAMS).is_some() {
            let message = "`scheduler.params` stands without `scheduler.type`";
            let help = format!("there are {}; DeepSpeed would ignore the block", SCHEDULES.join(", "));
            block.settings.report(problems, message, &[deepspeed_keys::SCHEDULER_PARAMS.row], help);
        }
        return;
    };
    let name = kind.value.to_string();
    if !SCHEDULES.contains(&name.as_str()) {
        let problem = Problem::new(format!("no schedule `{name}`")).at(location, "");
        let otherwise = format!("there are {}", SCHEDULES.join(", "));
        problems.push(problem.did_you_mean(&name, SCHEDULES.iter().copied(), otherwise));
        return;
    }
    entries.push(Entry::new("lr_scheduler_type", name, location));
    let mut arguments = Vec::new();
    for entry in
        block.settings.get(deepspeed_keys::SCHEDULER_PARAMS).iter().filter(|entry| !entry.value.is_null())
    {
        match entry.key.as_str() {
            _ if entry.value.word() == Some(AUTO) => {}
            "warmup_max_lr" => entries.push(Entry::of("learning_rate", entry.value.clone())),
            "warmup_num_steps" => {
                let ratio = settings.setting(keys::WARMUP_RATIO);
                if ratio.is_written() && !ratio.value.agrees(&value::default(ratio.key)) {
                    let problem =
                        Problem::new("`warmup_num_steps` and `warmup_ratio` are mutually exclusive");
                    problems.push(
                        at(problem.at(&entry.value.location, ""), &[ratio])
                            .help("write \"auto\" for warmup_num_steps, and it follows from warmup_ratio"),
                    );
                } else {
                    entries.push(Entry::of("warmup_steps", entry.value.clone()));
                }
            }
            _ => arguments.push(entry.clone()),
        }
    }
    if let Some(location) = arguments.first().map(|entry| entry.location.clone()) {
        entries.push(Entry::of("lr_scheduler_kwargs", Node::map(arguments, &location)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::json;

    /// What a block says, as `key=value` words.
    fn said(json: &str) -> String {
        let mut problems = Problems::default();
        let block = json::text("ds.json", json.to_owned(), "the file").unwrap();
        let block = Dialect::deepspeed(&block, &mut problems);
        let mut entries = Vec::new();
        let settings = Settings::of(crate::config::table::TRAINING);
        optimizer(&block, &settings, &mut entries, &mut problems);
        scheduler(&block, &settings, &mut entries, &mut problems);
        assert!(problems.is_empty(), "{json}: {problems}");
        let words: Vec<String> =
            entries.iter().map(|entry| format!("{}={}", entry.key, entry.value.to_yaml())).collect();
        words.join(" ")
    }

    #[test]
    fn optimizers_become_settings() {
        for (kind, params, expected) in [
            ("AdamW", r#""lr": "auto", "betas": "auto", "torch_adam": true"#, "optim=adamw_torch"),
            (
                "Adam",
                r#""lr": 1e-3, "betas": [0.8, "auto"], "eps": 1e-7, "weight_decay": 0"#,
                "adam_epsilon=1e-7 weight_decay=0 adam_beta1=0.8 learning_rate=0.001 optim=adamw_torch",
            ),
            ("adam", r#""adam_w_mode": false"#, "optim=adam"),
            (
                "SGD",
                r#""lr": 0.1, "momentum": 0.9, "nesterov": true"#,
                "learning_rate=0.1 optim_args=momentum=0.9,nesterov=true optim=sgd",
            ),
            ("Adagrad", r#""eps": 1e-9"#, "optim_args=eps=1e-9 optim=adagrad"),
            (
                "Lamb",
                r#""max_coeff": 10, "min_coeff": 0.01"#,
                "optim_args=max_coeff=10,min_coeff=0.01 optim=lamb",
            ),
            ("Lion", r#""betas": [0.9, 0.99]"#, "adam_beta1=0.9 adam_beta2=0.99 optim=lion"),
            (
                "OneBitAdam",
                r#""lr": 0.1, "freeze_step": 400, "cuda_aware": false, "comm_backend_name": "nccl", "bias_correction": false"#,
                "learning_rate=0.1 optim_args=freeze_step=400 optim=onebit_adam",
            ),
            (
                "ZeroOneAdam",
                r#""var_freeze_step": 9, "var_update_scaler": 2, "local_step_scaler": 3, "local_step_clipper": 4"#,
                "optim_args=var_freeze_step=9,var_update_scaler=2,local_step_scaler=3,local_step_clipper=4 \
                 optim=zero_one_adam",
            ),
            (
                "onebitlamb",
                r#""coeff_beta": 0.8, "factor_max": 4.0, "factor_min": 0.5, "factor_threshold": 0.1"#,
                "optim_args=coeff_beta=0.8,factor_max=4,factor_min=0.5,factor_threshold=0.1 optim=onebit_lamb",
            ),
            ("Adafactor", r#""d": 1.5"#, "optim_args=d=1.5 optim=adafactor_torch"),
            (
                "Muon",
                r#""lr": 0.02, "adam_lr": 0.005, "momentum": 0.95"#,
                "learning_rate=0.02 optim_args=momentum=0.95,adam_lr_ratio=0.25 optim=muon",
            ),
            (
                "Muon",
                r#""lr": 0.01, "muon_lr": 0.02"#,
                "learning_rate=0.02 optim_args=adam_lr_ratio=0.5 optim=muon",
            ),
        ] {
            let json = format!("{{\"optimizer\": {{\"type\": \"{kind}\", \"params\": {{{params}}}}}}}");
            assert_eq!(said(&json), expected, "{json}");
        }
    }

    #[test]
    fn schedules_become_settings() {
        for (kind, params, expected) in [
            (
                "WarmupLR",
                r#""warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto""#,
                "lr_scheduler_type=WarmupLR",
            ),
            (
                "WarmupDecayLR",
                r#""warmup_min_lr": 1e-6, "warmup_max_lr": 1e-3, "warmup_num_steps": 20, "total_num_steps": 90"#,
                "lr_scheduler_type=WarmupDecayLR learning_rate=1e-3 warmup_steps=20 \
                 lr_scheduler_kwargs={\"warmup_min_lr\": 1e-6, \"total_num_steps\": 90}",
            ),
            (
                "OneCycle",
                r#""cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3"#,
                "lr_scheduler_type=OneCycle \
                 lr_scheduler_kwargs={\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": 1e-3}",
            ),
        ] {
            let json = format!("{{\"scheduler\": {{\"type\": \"{kind}\", \"params\": {{{params}}}}}}}");
            assert_eq!(said(&json).replace("\"", ""), expected.replace("\"", ""), "{json}");
        }
    }
}
