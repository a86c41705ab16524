//! Reads the keys of optimizers that work in subspaces of gradients: GaLore and APOLLO.

use oarlock::config::OptimizerArgs;
use oarlock_config::settings::keys::Key;
use oarlock_config::settings::resolve::Settings;
use oarlock_tensor::ops::optimizer::{LowRankArgs, Method, Rule, Sides};

use super::table as keys;

/// The keys that both methods have.
struct Keys {
    rank: Key<usize>,
    update_interval: Key<u64>,
    scale: Key<f64>,
    proj_type: Key<String>,
    target: Key<Vec<String>>,
}

const GALORE: Keys = Keys {
    rank: keys::GALORE_RANK,
    update_interval: keys::GALORE_UPDATE_INTERVAL,
    scale: keys::GALORE_SCALE,
    proj_type: keys::GALORE_PROJ_TYPE,
    target: keys::GALORE_TARGET,
};

const APOLLO: Keys = Keys {
    rank: keys::APOLLO_RANK,
    update_interval: keys::APOLLO_UPDATE_INTERVAL,
    scale: keys::APOLLO_SCALE,
    proj_type: keys::APOLLO_PROJ_TYPE,
    target: keys::APOLLO_TARGET,
};

/// The optimizer with the subspaces that the settings ask for; what cannot go with them the checks between keys report.
pub fn low_rank(settings: &Settings, args: OptimizerArgs) -> OptimizerArgs {
    let Rule::AdamW { beta1, beta2, eps } = args.rule else { return args };
    let (of, method) = match (settings.get(keys::USE_GALORE), settings.get(keys::USE_APOLLO)) {
        (true, _) => (GALORE, Method::GaLore),
        (false, true) => (
            APOLLO,
            Method::Apollo {
                is_random: settings.get(keys::APOLLO_PROJ) == "random",
                by_tensor: settings.get(keys::APOLLO_SCALE_TYPE) == "tensor",
                scale_front: settings.get(keys::APOLLO_SCALE_FRONT),
            },
        ),
        (false, false) => return args,
    };
    let low = LowRankArgs {
        beta1,
        beta2,
        eps,
        rank: settings.get(of.rank),
        interval: settings.get(of.update_interval),
        scale: settings.get(of.scale),
        sides: match settings.get(of.proj_type) {
            "reverse_std" => Sides::Larger,
            "right" => Sides::Right,
            "left" => Sides::Left,
            "full" => Sides::Both,
            _ => Sides::Smaller,
        },
        method,
    };
    let targets = match settings.get(of.target) {
        [] => Vec::new(),
        [all] if all == "all" => Vec::new(),
        names => names.to_vec(),
    };
    OptimizerArgs { rule: Rule::LowRank(low), targets, ..args }
}
