//! Reads what a step optimises: the stage and the keys of its loss.

use std::path::PathBuf;

use oarlock::config::{JudgementArgs, Learned, ObjectiveArgs, PreferenceArgs, PreferenceLoss, ReferenceArgs};
use oarlock::settings::problem::Problems;
use oarlock::settings::resolve::Settings;

use super::{quantization, raft};

/// What a step optimizes. What is wrong with it goes to `problems`.
pub fn objective(settings: &Settings, problems: &mut Problems) -> ObjectiveArgs {
    let number = |name: &str| settings.f64(name) as f32;
    match settings.word("stage") {
        "dpo" => ObjectiveArgs::Preferences(PreferenceArgs {
            loss: match settings.word("pref_loss") {
                "hinge" => PreferenceLoss::Hinge,
                "ipo" => PreferenceLoss::Ipo,
                "orpo" => PreferenceLoss::Orpo,
                "simpo" => PreferenceLoss::Simpo,
                _ => PreferenceLoss::Sigmoid,
            },
            beta: number("pref_beta"),
            ftx: number("pref_ftx"),
            bco_weight: number("pref_bco_weight"),
            label_smoothing: number("dpo_label_smoothing"),
            simpo_gamma: number("simpo_gamma"),
            ld_alpha: settings.said("ld_alpha").map(|_| number("ld_alpha")),
            reference: reference(settings),
        }),
        "kto" => ObjectiveArgs::Judgements(JudgementArgs {
            beta: number("pref_beta"),
            chosen_weight: number("kto_chosen_weight"),
            rejected_weight: number("kto_rejected_weight"),
            ftx: number("pref_ftx"),
            reference: reference(settings),
        }),
        "rm" => ObjectiveArgs::Rewards,
        "raft" => ObjectiveArgs::Raft(raft::raft(settings, problems)),
        _ => ObjectiveArgs::NextToken,
    }
}

/// Which rows the stage learns from, where it learns from conversations.
pub fn learned(settings: &Settings) -> Option<Learned> {
    match settings.word("stage") {
        "pt" => None,
        "dpo" | "rm" => Some(Learned::Pairs),
        "kto" => Some(Learned::Judgements),
        _ => Some(Learned::Answers),
    }
}

fn reference(settings: &Settings) -> ReferenceArgs {
    ReferenceArgs {
        model: settings.said("ref_model").map(|_| PathBuf::from(settings.word("ref_model"))),
        adapters: settings.list("ref_model_adapters").iter().map(PathBuf::from).collect(),
        quantization: settings.count("ref_model_quantization_bit").map(|bits| {
            quantization::format(
                bits,
                settings.word("quantization_type"),
                settings.bool("double_quantization"),
            )
        }),
    }
}
