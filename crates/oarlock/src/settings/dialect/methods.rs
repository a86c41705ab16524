//! DeepSpeed's `optimizer` and `scheduler` blocks as settings of ours: optim, optim_args, lr_scheduler_type,
//! lr_scheduler_kwargs, and the rates and moments that have keys of their own.

use super::super::entry::{Entry, Layer};
use super::super::node::{Data, Node};
use super::super::problem::{Problem, Problems};
use super::super::resolve::AUTO;
use super::super::resolve::Settings;
use super::super::resolve::at;
use super::super::source::Place;
use super::super::value::{self, Value};
use super::Dialect;
use crate::nearest::nearest_of;

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
    Method { names: &["Adafactor"], optim: "adafactor", params: &["lr", "weight_decay", "beta2_decay", "d"] },
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
    "bias_correction",
    "amsgrad",
    "fp32_optimizer_states",
    "max_grad_norm",
];

/// Schedules of DeepSpeed, under their names there.
const SCHEDULES: &[&str] = &["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"];

/// Adds what the block `optimizer` says.
pub fn optimizer(block: &Dialect, settings: &Settings, layer: &mut Layer, problems: &mut Problems) {
    let params =
        || block.settings.iter().filter_map(|s| Some((s, s.key.name.strip_prefix("optimizer.params.")?)));
    let said = |setting: &super::Setting| block.settings.said(setting.key.name).is_some() && !setting.broken;
    if let Some(setting) = block.settings.said("optimizer.params.max_grad_norm")
        && let Some(place) = setting.place()
    {
        problems.push(
            Problem::new("`max_grad_norm` is no parameter of an optimizer")
                .at(place, "")
                .help(format!("write \"gradient_clipping\": {} at the top", setting.value)),
        );
    }
    let method = match block.settings.said("optimizer.type").and_then(|kind| Some((kind, kind.place()?))) {
        None => None,
        Some((kind, place)) => {
            let name = kind.value.to_string();
            let found =
                METHODS.iter().find(|method| method.names.iter().any(|n| n.eq_ignore_ascii_case(&name)));
            if found.is_none() {
                let names = METHODS.iter().flat_map(|method| method.names).copied();
                let help = match nearest_of(&name, names.clone()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
                };
                problems.push(Problem::new(format!("no optimizer `{name}`")).at(place, "").help(help));
            }
            found.map(|method| (method, name, place))
        }
    };
    let mut args = Vec::new();
    let mut args_place = None;
    for (setting, name) in params().filter(|(setting, _)| said(setting)) {
        let Some(place) = setting.place() else { continue };
        if let Some((method, named, _)) = &method
            && !method.params.contains(&name)
            && name != "max_grad_norm"
        {
            let message = format!("`{named}` takes no parameter `{name}`");
            problems.push(
                Problem::new(message).at(place, "").help(format!("it takes {}", method.params.join(", "))),
            );
        } else if let Some((_, ours)) = SAME.iter().find(|(theirs, _)| *theirs == name)
            && !(name == "eps" && method.as_ref().is_some_and(|(method, ..)| method.optim == "adagrad"))
        {
            layer.entries.push(Entry::new(ours, setting.value.to_string(), place));
        } else if !NOT_ARGUMENTS.contains(&name) {
            args.push(format!("{name}={}", setting.value));
            args_place.get_or_insert(place);
        }
    }
    betas(block, layer, problems);
    if let Some((ratio, place)) = rates(block, settings, layer) {
        args.push(format!("adam_lr_ratio={ratio}"));
        args_place.get_or_insert(place);
    }
    if let Some(place) = args_place {
        layer.entries.push(Entry::new("optim_args", args.join(","), place));
    }
    if let Some((method, name, place)) = method {
        let plain = name.eq_ignore_ascii_case("Adam") && !block.settings.bool("optimizer.params.adam_w_mode");
        let optim = if plain { "adam" } else { method.optim };
        // AdamW has several names, which agree.
        let written = settings.get("optim");
        let same = optim.starts_with("adamw")
            && written.is_written()
            && matches!(&written.value, Value::Text(name) if name.starts_with("adamw"));
        if !same {
            layer.entries.push(Entry::new("optim", optim, place));
        }
    }
}

/// The learning rate, and what Muon's other parameters have of it where they have one of their own.
fn rates<'b>(block: &'b Dialect, settings: &Settings, layer: &mut Layer) -> Option<(f64, &'b Place)> {
    let [lr, muon, adam] = ["lr", "muon_lr", "adam_lr"].map(|name| {
        let setting = block.settings.said(&format!("optimizer.params.{name}"))?;
        match setting.value {
            Value::Float(rate) => Some((rate, setting.place()?)),
            _ => None,
        }
    });
    let main = muon.or(lr);
    if let Some((rate, place)) = main {
        layer.entries.push(Entry::new("learning_rate", value::number(rate), place));
    }
    let written = match settings.get("learning_rate").value {
        Value::Float(rate) => rate,
        _ => return None,
    };
    let main = main.map_or(written, |(rate, _)| rate);
    // With a rate of its own for the matrices alone, the shared one is that of the others.
    let (rate, place) = adam.or(lr.filter(|_| muon.is_some()))?;
    (rate != main && main > 0.0).then_some((rate / main, place))
}

fn betas(block: &Dialect, layer: &mut Layer, problems: &mut Problems) {
    let Some(setting) = block.settings.said("optimizer.params.betas").filter(|setting| !setting.broken)
    else {
        return;
    };
    let (Value::List(betas), Some(place)) = (&setting.value, setting.place()) else { return };
    match betas.as_slice() {
        [first, second] => {
            for (key, beta) in [("adam_beta1", first), ("adam_beta2", second)] {
                if beta != AUTO {
                    layer.entries.push(Entry::new(key, beta.as_str(), place));
                }
            }
        }
        _ => problems.push(
            Problem::new(format!("`betas` are two numbers, not {}", betas.len()))
                .at(place, "")
                .help("write [0.9, 0.999]"),
        ),
    }
}

/// Adds what the block `scheduler` says. The peak and the warm-up have keys of ours; the rest are arguments of the
/// schedule. What is "auto" or missing follows from the training.
pub fn scheduler(block: &Dialect, settings: &Settings, layer: &mut Layer, problems: &mut Problems) {
    let Some(kind) = block.settings.said("scheduler.type") else {
        if block.settings.said("scheduler.params").is_some() {
            problems.push(
                block
                    .settings
                    .problem("`scheduler.params` stands without `scheduler.type`", &["scheduler.params"])
                    .help(format!("there are {}; DeepSpeed would ignore the block", SCHEDULES.join(", "))),
            );
        }
        return;
    };
    let Some(place) = kind.place() else { return };
    let name = kind.value.to_string();
    if !SCHEDULES.contains(&name.as_str()) {
        let help = match nearest_of(&name, SCHEDULES.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", SCHEDULES.join(", ")),
        };
        problems.push(Problem::new(format!("no schedule `{name}`")).at(place, "").help(help));
        return;
    }
    layer.entries.push(Entry::new("lr_scheduler_type", name, place));
    let params = block.settings.get("scheduler.params");
    let Value::Map(fields) = &params.value else { return };
    let mut arguments = Vec::new();
    for field in fields.iter().filter(|field| !field.value.is_null()) {
        let text = match &field.value.data {
            Data::Scalar { text, .. } => text.trim(),
            _ => "",
        };
        match field.name.as_str() {
            _ if text == AUTO => {}
            "warmup_max_lr" => layer.entries.push(parameter("learning_rate", &field.value)),
            "warmup_num_steps" => {
                let ratio = settings.get("warmup_ratio");
                if ratio.is_written() && !ratio.value.agrees(&value::default(ratio.key)) {
                    let problem = Problem::new("`warmup_num_steps` and `warmup_ratio` exclude each other");
                    problems.push(
                        at(problem.at(&field.value.place, ""), &[ratio])
                            .help("write \"auto\" for warmup_num_steps, and it follows from warmup_ratio"),
                    );
                } else {
                    layer.entries.push(parameter("warmup_steps", &field.value));
                }
            }
            _ => {
                arguments.push((Node::scalar(field.name.as_str(), field.place.clone()), field.value.clone()))
            }
        }
    }
    if let Some(place) = arguments.first().map(|(name, _): &(Node, Node)| name.place.clone()) {
        let value = Node { data: Data::Map(arguments), place: place.clone() };
        layer.entries.push(Entry { key: "lr_scheduler_kwargs".to_owned(), inner: None, place, value });
    }
}

fn parameter(key: &str, value: &Node) -> Entry {
    let place: Place = value.place.clone();
    Entry { key: key.to_owned(), inner: None, place, value: value.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::super::json;
    use super::super::{Dialect, deepspeed_keys};
    use super::*;

    /// What a block says, as `key=value` words.
    fn said(json: &str) -> String {
        let mut problems = Problems::default();
        let fields = json::text_of_file("ds.json", json.to_owned(), "the file").unwrap();
        let block = Dialect::new("DeepSpeed", deepspeed_keys::KEYS, &fields, &str::to_owned, &mut problems);
        let mut layer = super::super::layer();
        let settings = Settings::of(super::super::super::table::TRAINING);
        optimizer(&block, &settings, &mut layer, &mut problems);
        scheduler(&block, &settings, &mut layer, &mut problems);
        assert!(problems.is_empty(), "{json}: {problems}");
        let words: Vec<String> =
            layer.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value.to_yaml())).collect();
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
            ("Adafactor", r#""d": 1.5"#, "optim_args=d=1.5 optim=adafactor"),
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
