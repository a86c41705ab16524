//! Reads the stages of preferences, dpo and kto, and the model that their losses compare with.

use oarlock::config::{
    ExampleKind, KtoArgs, KtoParts, ObjectiveArgs, PreferenceArgs, PreferenceParts, ReferenceArgs,
};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::stage::Stage;
use crate::config::{hub, quantization, table as keys};

/// Pairs of answers.
pub const DPO: Stage = Stage {
    examples: Some(ExampleKind::Pairs),
    keys: &[keys::PREFERENCE_KEYS, keys::COMPARISON_KEYS],
    read: dpo,
    ..Stage::new("stage dpo")
};

/// Unpaired preferences.
pub const KTO: Stage = Stage {
    examples: Some(ExampleKind::UnpairedPreferences),
    keys: &[keys::KTO_KEYS, SHARED],
    read: kto,
    ..Stage::new("stage kto")
};

/// The keys of stage dpo that stage kto reads as well.
const SHARED: &[Row] = &[
    *keys::PREF_BETA.row,
    *keys::PREF_FTX.row,
    *keys::REF_MODEL.row,
    *keys::REF_MODEL_ADAPTERS.row,
    *keys::REF_MODEL_QUANTIZATION_BIT.row,
];

fn dpo(settings: &Settings, _problems: &mut Problems) -> ObjectiveArgs {
    let ld_alpha = settings.get(keys::LD_ALPHA).map(|alpha| alpha as f32);
    let parts = PreferenceParts { ld_alpha, reference: reference(settings) };
    ObjectiveArgs::Preference(PreferenceArgs::read(settings, parts))
}

fn kto(settings: &Settings, _problems: &mut Problems) -> ObjectiveArgs {
    let [beta, ftx] = [keys::PREF_BETA, keys::PREF_FTX].map(|key| settings.get(key) as f32);
    let parts = KtoParts { beta, ftx, reference: reference(settings) };
    ObjectiveArgs::Kto(KtoArgs::read(settings, parts))
}

fn reference(settings: &Settings) -> ReferenceArgs {
    ReferenceArgs {
        model: settings.said(keys::REF_MODEL).map(|_| hub::local(settings, settings.word(keys::REF_MODEL))),
        adapters: settings
            .get(keys::REF_MODEL_ADAPTERS)
            .iter()
            .map(|word| hub::local(settings, word))
            .collect(),
        quantization: settings.get(keys::REF_MODEL_QUANTIZATION_BIT).map(|bits| {
            quantization::format(
                bits,
                settings.get(keys::QUANTIZATION_TYPE),
                settings.get(keys::DOUBLE_QUANTIZATION),
            )
        }),
    }
}
