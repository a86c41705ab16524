//! Reads what a step optimizes: the stage and the keys of its loss.

use super::table as keys;
use std::path::PathBuf;

use oarlock::config::{ExampleKind, KtoArgs, ObjectiveArgs, PreferenceArgs, PreferenceLoss, ReferenceArgs};
use oarlock_config::settings::keys::Key;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::{quantization, raft};

/// What a step optimizes. What is wrong with it goes to `problems`.
pub fn objective(settings: &Settings, problems: &mut Problems) -> ObjectiveArgs {
    let number = |key: Key<f64>| settings.get(key) as f32;
    match settings.get(keys::STAGE) {
        "dpo" => ObjectiveArgs::Preference(PreferenceArgs {
            loss: match settings.get(keys::PREF_LOSS) {
                "hinge" => PreferenceLoss::Hinge,
                "ipo" => PreferenceLoss::Ipo,
                "orpo" => PreferenceLoss::Orpo,
                "simpo" => PreferenceLoss::Simpo,
                _ => PreferenceLoss::Sigmoid,
            },
            beta: number(keys::PREF_BETA),
            ftx: number(keys::PREF_FTX),
            bco_weight: number(keys::PREF_BCO_WEIGHT),
            label_smoothing: number(keys::DPO_LABEL_SMOOTHING),
            simpo_gamma: number(keys::SIMPO_GAMMA),
            ld_alpha: settings.get(keys::LD_ALPHA).map(|alpha| alpha as f32),
            reference: reference(settings),
        }),
        "kto" => ObjectiveArgs::Kto(KtoArgs {
            beta: number(keys::PREF_BETA),
            chosen_weight: number(keys::KTO_CHOSEN_WEIGHT),
            rejected_weight: number(keys::KTO_REJECTED_WEIGHT),
            ftx: number(keys::PREF_FTX),
            reference: reference(settings),
        }),
        "rm" => ObjectiveArgs::Rewards,
        "raft" => ObjectiveArgs::Raft(raft::raft(settings, problems)),
        _ => ObjectiveArgs::NextToken,
    }
}

/// Which rows the stage trains on, where it trains on conversations.
pub fn examples(settings: &Settings) -> Option<ExampleKind> {
    match settings.get(keys::STAGE) {
        "pt" => None,
        "dpo" | "rm" => Some(ExampleKind::Pairs),
        "kto" => Some(ExampleKind::UnpairedPreferences),
        _ => Some(ExampleKind::Answers),
    }
}

fn reference(settings: &Settings) -> ReferenceArgs {
    ReferenceArgs {
        model: settings.said(keys::REF_MODEL).map(|_| PathBuf::from(settings.word(keys::REF_MODEL))),
        adapters: settings.get(keys::REF_MODEL_ADAPTERS).iter().map(PathBuf::from).collect(),
        quantization: settings.get(keys::REF_MODEL_QUANTIZATION_BIT).map(|bits| {
            quantization::format(
                bits,
                settings.get(keys::QUANTIZATION_TYPE),
                settings.get(keys::DOUBLE_QUANTIZATION),
            )
        }),
    }
}
