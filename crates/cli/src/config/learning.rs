//! Reads which tokens of which rows count in the loss: the loss of a token, how data sets are mixed, how sequences are
//! drawn.

use super::{objective, table as keys};

use oarlock::config::{Mix, MixEnd, TokenLossArgs};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;
use oarlock_tensor::ops::TokenLoss;

/// How far from 1 the sum of written probabilities may be.
const SLACK: f64 = 1e-6;

/// The loss of a token; what is wrong with it goes to `problems`.
pub fn token_loss(settings: &Settings, problems: &mut Problems) -> TokenLossArgs {
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    let smoothing = settings.get(keys::LABEL_SMOOTHING_FACTOR) as f32;
    let losses = [
        (keys::USE_DFT_LOSS.row, settings.get(keys::USE_DFT_LOSS), TokenLoss::ByProbability),
        (
            keys::USE_EAFT_LOSS.row,
            settings.get(keys::USE_EAFT_LOSS),
            TokenLoss::ByEntropy { alpha: settings.get(keys::EAFT_ALPHA) as f32 },
        ),
        (keys::LABEL_SMOOTHING_FACTOR.row, smoothing > 0.0, TokenLoss::Smoothed(smoothing)),
    ];
    let chosen: Vec<_> = losses.iter().filter(|(_, on, _)| *on).collect();
    if let [first, second, ..] = chosen[..] {
        let message = format!("`{}` and `{}` are two losses of a token", second.0, first.0);
        report(&message, &[second.0, first.0], "keep one of them");
    }
    for (key, ..) in &chosen {
        if key.name != keys::LABEL_SMOOTHING_FACTOR.name() && !objective::of(settings).is_supervised() {
            let message = format!("`{key}` belongs to stage sft");
            report(&message, &[*key, keys::STAGE.row], "remove it; stage pt trains by plain cross-entropy");
        }
    }
    TokenLossArgs {
        kind: chosen.first().map_or(TokenLoss::CrossEntropy, |(_, _, kind)| *kind),
        neftune_alpha: settings.get(keys::NEFTUNE_NOISE_ALPHA).filter(|alpha| *alpha > 0.0),
        accuracy: settings.get(keys::COMPUTE_ACCURACY),
    }
}

/// How several data sets become one; what is wrong with it goes to `problems`.
pub fn mix(settings: &Settings, problems: &mut Problems) -> Mix {
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    let written = settings.get(keys::INTERLEAVE_PROBS);
    let end = match settings.get(keys::MIX_STRATEGY) {
        "interleave_under" => MixEnd::FirstExhausted,
        "interleave_over" => MixEnd::AllExhausted,
        "interleave_once" => MixEnd::Once,
        _ => {
            if !written.is_empty() {
                report(
                    "`interleave_probs` is only valid for interleaved mixing",
                    &[keys::INTERLEAVE_PROBS.row, keys::MIX_STRATEGY.row],
                    "write `mix_strategy: interleave_under`, interleave_over or interleave_once, or remove interleave_probs",
                );
            }
            return Mix::Concat;
        }
    };
    let read: Option<Vec<f64>> = written.iter().map(|text| text.trim().parse().ok()).collect();
    let Some(probabilities) = read else {
        report(
            "`interleave_probs` are not all numbers",
            &[keys::INTERLEAVE_PROBS.row],
            "write one for each data set, such as 0.7,0.3",
        );
        return Mix::Concat;
    };
    let n_datasets = settings.get(keys::DATASET).len();
    if !probabilities.is_empty() {
        if probabilities.len() != n_datasets {
            let message =
                format!("`interleave_probs` has {} values for {n_datasets} data sets", probabilities.len());
            report(&message, &[keys::INTERLEAVE_PROBS.row, keys::DATASET.row], "write one for each data set");
        } else if probabilities.iter().any(|p| !(*p > 0.0 && p.is_finite()))
            || (probabilities.iter().sum::<f64>() - 1.0).abs() > SLACK
        {
            let help =
                "write probabilities above 0 that add up to 1; leave a data set out instead of giving it 0";
            report("`interleave_probs` are not probabilities", &[keys::INTERLEAVE_PROBS.row], help);
        }
    }
    Mix::Interleave { end, probabilities: (!probabilities.is_empty()).then_some(probabilities) }
}

/// Whether sequences are drawn in a random order, and those of similar length together.
pub fn order(settings: &Settings, problems: &mut Problems) -> (bool, bool) {
    let strategy = settings.get(keys::TRAIN_SAMPLING_STRATEGY);
    let grouped = settings.get(keys::GROUP_BY_LENGTH) || strategy == "group_by_length";
    let in_order = settings.get(keys::DISABLE_SHUFFLING) || strategy == "sequential";
    if grouped && in_order {
        let by_length = match settings.get(keys::GROUP_BY_LENGTH) {
            true => keys::GROUP_BY_LENGTH.row,
            false => keys::TRAIN_SAMPLING_STRATEGY.row,
        };
        let in_order = match strategy {
            "sequential" => keys::TRAIN_SAMPLING_STRATEGY.row,
            _ => keys::DISABLE_SHUFFLING.row,
        };
        settings.report(
            problems,
            "sequences cannot be drawn both by their length and in the order of the files",
            &[by_length, in_order],
            "keep one of them",
        );
    }
    (!in_order, grouped)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MINIMUM, good, train};
    use super::*;

    fn error(text: &str) -> String {
        train(&format!("{MINIMUM}{text}"), &[], &[]).map(|_| String::new()).unwrap_or_else(|p| p.to_string())
    }

    #[test]
    fn losses_are_read() {
        assert_eq!(good("").train.loss, TokenLossArgs::default());
        let kind = |text: &str| good(text).train.loss.kind;
        assert_eq!(kind("label_smoothing_factor: 0.1"), TokenLoss::Smoothed(0.1));
        assert_eq!(kind("stage: sft\nuse_dft_loss: true"), TokenLoss::ByProbability);
        assert_eq!(
            kind("stage: sft\nuse_eaft_loss: true\neaft_alpha: 0.5"),
            TokenLoss::ByEntropy { alpha: 0.5 }
        );
        assert_eq!(good("neftune_noise_alpha: 5").train.loss.neftune_alpha, Some(5.0));
        assert_eq!(good("neftune_noise_alpha: 0").train.loss.neftune_alpha, None);
        assert!(error("use_dft_loss: true").contains("`use_dft_loss` belongs to stage sft"));
        let both = error("stage: sft\nuse_dft_loss: true\nlabel_smoothing_factor: 0.1");
        assert!(both.contains("are two losses of a token"), "{both}");
    }

    #[test]
    fn mixes_are_read_and_checked() {
        assert_eq!(good("").data.mix, Mix::Concat);
        let mix = |words: &[&str]| {
            train(MINIMUM, &[&["dataset=a,b"][..], words].concat(), &[]).unwrap().data.mix.clone()
        };
        let drawn = mix(&["mix_strategy=interleave_under", "interleave_probs=0.7,0.3"]);
        let probabilities = Some(vec![0.7, 0.3]);
        assert_eq!(drawn, Mix::Interleave { end: MixEnd::FirstExhausted, probabilities });
        let turns = mix(&["mix_strategy=interleave_once"]);
        assert_eq!(turns, Mix::Interleave { end: MixEnd::Once, probabilities: None });
        for (text, expected) in [
            ("interleave_probs: 0.7,0.3", "only valid for interleaved mixing"),
            ("mix_strategy: interleave_over\ninterleave_probs: 0.7,0.3", "has 2 values for 1 data sets"),
            ("mix_strategy: interleave_over\ninterleave_probs: x", "are not all numbers"),
            ("mix_strategy: interleave_over\ninterleave_probs: 0.5", "are not probabilities"),
        ] {
            let error = error(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn orders_are_read() {
        let order = |text: &str| (good(text).data.shuffle, good(text).data.group_by_length);
        assert_eq!(order(""), (true, false));
        assert_eq!(order("group_by_length: true"), (true, true));
        assert_eq!(order("train_sampling_strategy: group_by_length"), (true, true));
        assert_eq!(order("train_sampling_strategy: sequential"), (false, false));
        let both = error("group_by_length: true\ndisable_shuffling: true");
        assert!(both.contains("both by their length and in the order of the files"), "{both}");
    }
}
