//! Preferences: which of two answers is better (stage dpo), and whether single answers are wanted (stage kto).

use crate::config::reference::ReferenceArgs;
use crate::settings::keys::Range::{BelowOne, NotNegative, Positive};
use crate::settings::keys::Status::{Among, Used};
use crate::settings::keys::ValueType::{Choice, Float, Int, List, Path};
use crate::settings::keys::{Group::Method, key, key_table};
use crate::settings::resolve::Settings;
use crate::settings::section::{Effect, Recorded, number, section};

section! {
    /// A loss of pairs of answers, with the defaults of LLaMA-Factory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PreferenceArgs of Method with PreferenceParts {
        /// `ld_alpha`: what tokens count that the longer answer has beyond the length of the shorter one.
        ld_alpha: Option<f32>,
        /// The model that the trained one is compared with.
        reference: ReferenceArgs,
    }

    /// The keys of stage dpo.
    pub const PREFERENCE_KEYS = [
        PREF_BETA: f64 = (Float(Positive), "pref_beta", "0.1", Used, "Stages dpo and kto: beta, the factor of the log-probability ratios")
            => Rounded beta: f32, "What differences of log-probabilities are multiplied with." = |settings| settings.get(PREF_BETA) as f32;
        PREF_FTX: f64 = (Float(NotNegative), "pref_ftx", "0", Used, "Stages dpo and kto: weight of the SFT loss of the chosen answers")
            => Rounded ftx: f32, "What the mean loss of a token of the chosen answer counts besides." = |settings| settings.get(PREF_FTX) as f32;
        PREF_LOSS: String = (Choice(&["sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo"]), "pref_loss", "sigmoid", Among(&["sigmoid", "hinge", "ipo", "orpo", "simpo"], "kto_pair is no longer in TRL; write stage: kto, with unpaired preferences"), "Loss of stage dpo: sigmoid is DPO; orpo and simpo need no reference model")
            => ByHand loss: PreferenceLoss, "How two answers are compared." = |settings| PreferenceLoss::named(settings.get(PREF_LOSS));
        PREF_BCO_WEIGHT: f64 = (Float(NotNegative), "pref_bco_weight", "0", Used, "Stage dpo: weight of the BCO loss")
            => Rounded bco_weight: f32, "What the loss of a classifier of single answers counts besides." = |settings| settings.get(PREF_BCO_WEIGHT) as f32;
        DPO_LABEL_SMOOTHING: f64 = (Float(BelowOne), "dpo_label_smoothing", "0", Used, "Stage dpo with pref_loss sigmoid: label smoothing, the probability that the labels of a pair are swapped")
            => Rounded label_smoothing: f32, "How probable it is that a pair is the wrong way round." = |settings| settings.get(DPO_LABEL_SMOOTHING) as f32;
        SIMPO_GAMMA: f64 = (Float(NotNegative), "simpo_gamma", "0.5", Used, "Margin of pref_loss simpo")
            => Rounded simpo_gamma: f32, "The margin of SimPO." = |settings| settings.get(SIMPO_GAMMA) as f32;
    ];
}

section! {
    /// KTO (Ethayarajh et al. 2024), with the defaults of LLaMA-Factory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KtoArgs of Method with KtoParts {
        /// `pref_beta`: what differences of log-probabilities are multiplied with.
        beta: f32,
        /// `pref_ftx`: what the mean loss of a token of a wanted answer counts besides.
        ftx: f32,
        /// The model that the trained one is compared with.
        reference: ReferenceArgs,
    }

    /// The keys of stage kto.
    pub const KTO_KEYS = [
        KTO_CHOSEN_WEIGHT: f64 = (Float(NotNegative), "kto_chosen_weight", "1", Used, "Stage kto: weight of desirable answers")
            => Rounded chosen_weight: f32, "What a wanted answer counts." = |settings| settings.get(KTO_CHOSEN_WEIGHT) as f32;
        KTO_REJECTED_WEIGHT: f64 = (Float(NotNegative), "kto_rejected_weight", "1", Used, "Stage kto: weight of undesirable answers")
            => Rounded rejected_weight: f32, "What an unwanted answer counts." = |settings| settings.get(KTO_REJECTED_WEIGHT) as f32;
    ];
}

key_table! {
    /// The keys of what answers are compared with.
    pub const COMPARISON_KEYS = [
        REF_MODEL: Option<String> = key(Method, Path, "ref_model", "", Used, "Stages dpo and kto: folder of the reference model; unset: the initial weights of the run"),
        REF_MODEL_ADAPTERS: Vec<String> = key(Method, List, "ref_model_adapters", "", Used, "Adapters to merge into ref_model"),
        REF_MODEL_QUANTIZATION_BIT: Option<usize> = key(Method, Int(2), "ref_model_quantization_bit", "", Used, "Quantize the linear layers of ref_model to 4 or 8 bits, with quantization_type and double_quantization"),
        LD_ALPHA: Option<f64> = key(Method, Float(NotNegative), "ld_alpha", "", Used, "Stage dpo: weight of the tokens of the longer answer beyond the length of the shorter one (LD-DPO); unset: 1"),
    ];
}

impl Default for PreferenceArgs {
    fn default() -> PreferenceArgs {
        let parts = PreferenceParts { ld_alpha: None, reference: ReferenceArgs::default() };
        PreferenceArgs::read(&Settings::of(PREFERENCE_KEYS), parts)
    }
}

impl PreferenceArgs {
    /// What a run records of them.
    pub(super) fn record(&self) -> Vec<Recorded> {
        let PreferenceParts { ld_alpha, reference } = self.parts();
        let own = vec![
            Recorded::computes("objective", "pairs of answers"),
            Recorded::printed("pref_loss", Some(&self.loss), Effect::Computes),
            Recorded::computes("ld_alpha", ld_alpha.map(number)),
        ];
        [own, self.recorded(), reference.record()].concat()
    }
}

impl Default for KtoArgs {
    fn default() -> KtoArgs {
        let parts = KtoParts { beta: 0.1, ftx: 0.0, reference: ReferenceArgs::default() };
        KtoArgs::read(&Settings::of(KTO_KEYS), parts)
    }
}

impl KtoArgs {
    /// What a run records of them.
    pub(super) fn record(&self) -> Vec<Recorded> {
        let KtoParts { beta, ftx, reference } = self.parts();
        let own = vec![
            Recorded::computes("objective", "unpaired preferences"),
            Recorded::computes("pref_beta", number(beta)),
            Recorded::computes("pref_ftx", number(ftx)),
        ];
        [own, self.recorded(), reference.record()].concat()
    }
}

/// How two answers are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferenceLoss {
    /// DPO (Rafailov et al. 2023).
    #[default]
    Sigmoid,
    /// Of a margin of 1 (Zhao et al. 2023).
    Hinge,
    /// IPO, on means over tokens (Azar et al. 2023).
    Ipo,
    /// ORPO, without a reference (Hong et al. 2024).
    Orpo,
    /// SimPO, without a reference (Meng et al. 2024).
    Simpo,
}

impl PreferenceLoss {
    /// The one of this name.
    pub fn named(name: &str) -> PreferenceLoss {
        match name {
            "hinge" => PreferenceLoss::Hinge,
            "ipo" => PreferenceLoss::Ipo,
            "orpo" => PreferenceLoss::Orpo,
            "simpo" => PreferenceLoss::Simpo,
            _ => PreferenceLoss::Sigmoid,
        }
    }

    /// Whether the model is compared with a frozen one.
    pub fn has_reference(self) -> bool {
        matches!(self, PreferenceLoss::Sigmoid | PreferenceLoss::Hinge | PreferenceLoss::Ipo)
    }

    /// Whether answers count by the mean of their tokens' log-probabilities instead of the sum.
    pub fn takes_means(self) -> bool {
        !matches!(self, PreferenceLoss::Sigmoid | PreferenceLoss::Hinge)
    }
}
