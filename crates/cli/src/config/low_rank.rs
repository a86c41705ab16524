//! Reads the keys of optimizers that work in subspaces of gradients: GaLore and APOLLO.

use oarlock::config::OptimizerArgs;
use oarlock::settings::resolve::Settings;
use oarlock_tensor::ops::optimizer::{LowRankArgs, Method, Rule, Sides};

/// The optimizer with the subspaces that the settings ask for; what cannot go with them the checks between keys report.
pub fn low_rank(settings: &Settings, args: OptimizerArgs) -> OptimizerArgs {
    let Rule::AdamW { beta1, beta2, eps } = args.rule else { return args };
    let (name, method) = match (settings.bool("use_galore"), settings.bool("use_apollo")) {
        (true, _) => ("galore", Method::GaLore),
        (false, true) => (
            "apollo",
            Method::Apollo {
                is_random: settings.word("apollo_proj") == "random",
                by_tensor: settings.word("apollo_scale_type") == "tensor",
                scale_front: settings.bool("apollo_scale_front"),
            },
        ),
        (false, false) => return args,
    };
    let key = |of: &str| format!("{name}_{of}");
    let low = LowRankArgs {
        beta1,
        beta2,
        eps,
        rank: settings.usize(&key("rank")),
        interval: settings.usize(&key("update_interval")) as u64,
        scale: settings.f64(&key("scale")),
        sides: match settings.word(&key("proj_type")) {
            "reverse_std" => Sides::Larger,
            "right" => Sides::Right,
            "left" => Sides::Left,
            "full" => Sides::Both,
            _ => Sides::Smaller,
        },
        method,
    };
    let targets = match settings.list(&key("target")) {
        [] => Vec::new(),
        [all] if all == "all" => Vec::new(),
        names => names.to_vec(),
    };
    OptimizerArgs { rule: Rule::LowRank(low), targets, ..args }
}
