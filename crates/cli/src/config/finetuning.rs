//! Reads which parameters are trained: all, some layers, or an adapter with its settings.

use super::{hub, table as keys};
use std::path::PathBuf;

use oarlock::config::{
    AdapterArgs, AdapterConfig, AdapterKind, Finetuning, FreezeArgs, LoraConfig, LoraInit, LoraPlus,
    OftBlocks, OftConfig, Targets, TrainedLayers,
};
use oarlock_config::settings::keys::{Key, Row};
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

/// What is trained; what is wrong with it goes to `problems`.
pub fn finetuning(settings: &Settings, problems: &mut Problems) -> Finetuning {
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    match settings.get(keys::FINETUNING_TYPE) {
        "lora" => {
            if settings.get(keys::USE_LLAMA_PRO) {
                report(
                    "`use_llama_pro` with adapters is not supported: it is there for finetuning_type freeze",
                    &[keys::USE_LLAMA_PRO.row, keys::FINETUNING_TYPE.row],
                    "remove it, or name the layers in lora_target",
                );
            }
            if settings.get(keys::PISSA_CONVERT) && settings.get(keys::USE_DORA) {
                report(
                    "`pissa_convert` does not go with `use_dora`: the lengths of rows are of the base without what PiSSA took \
                     out of it",
                    &[keys::PISSA_CONVERT.row, keys::USE_DORA.row],
                    "remove one of them",
                );
            }
            Finetuning::Adapter(AdapterArgs {
                config: adapter(settings, keys::LORA_TARGET, AdapterKind::Lora(lora(settings))),
                convert_pissa: settings.get(keys::PISSA_CONVERT),
                plus: settings.said(keys::LORAPLUS_LR_RATIO).map(|_| LoraPlus {
                    lr_ratio: settings.get(keys::LORAPLUS_LR_RATIO).unwrap_or_default(),
                }),
                ..begin_with(settings)
            })
        }
        "freeze" => Finetuning::Freeze(freeze(settings)),
        "oft" => {
            let (count, size) = (settings.get(keys::OFT_RANK), settings.get(keys::OFT_BLOCK_SIZE));
            if (count == 0) == (size == 0) {
                report(
                    "one of `oft_rank` (blocks of a layer) and `oft_block_size` (inputs of a block) is 0, and the other one is \
                     not",
                    &[keys::OFT_RANK.row, keys::OFT_BLOCK_SIZE.row],
                    if count == 0 { "write `oft_block_size: 32`" } else { "write `oft_block_size: 0`" },
                );
            }
            let blocks = if size == 0 { OftBlocks::Count(count) } else { OftBlocks::Size(size) };
            let dropout = settings.get(keys::MODULE_DROPOUT) as f32;
            let kind = AdapterKind::Oft(OftConfig { blocks, dropout, ..OftConfig::default() });
            let config = adapter(settings, keys::OFT_TARGET, kind);
            Finetuning::Adapter(AdapterArgs { config, ..begin_with(settings) })
        }
        _ => Finetuning::Full,
    }
}

/// The adapters that a training run begins with.
fn begin_with(settings: &Settings) -> AdapterArgs {
    AdapterArgs {
        adapters: adapters(settings),
        create_new: settings.get(keys::CREATE_NEW_ADAPTER),
        ..AdapterArgs::default()
    }
}

fn adapter(settings: &Settings, target: Key<Vec<String>>, kind: AdapterKind) -> AdapterConfig {
    AdapterConfig {
        kind,
        targets: match settings.get(target) {
            [] => Targets::All,
            [all] if all == "all" => Targets::All,
            names => Targets::Named(names.to_vec()),
        },
        modules_to_save: settings.get(keys::ADDITIONAL_TARGET).to_vec(),
    }
}

fn lora(settings: &Settings) -> LoraConfig {
    LoraConfig {
        rank: settings.get(keys::LORA_RANK),
        // The original takes 0 for unset.
        alpha: settings.get(keys::LORA_ALPHA).filter(|alpha| *alpha > 0).map(|alpha| alpha as f64),
        dropout: settings.get(keys::LORA_DROPOUT) as f32,
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        use_rslora: settings.get(keys::USE_RSLORA),
        use_dora: settings.get(keys::USE_DORA),
        init: match settings.get(keys::PISSA_INIT) {
            true => LoraInit::Pissa { iterations: usize::try_from(settings.get(keys::PISSA_ITER)).ok() },
            false => LoraInit::Kaiming,
        },
    }
}

/// The folders of `adapter_name_or_path`, below `adapter_folder` each where that is written.
pub fn adapters(settings: &Settings) -> Vec<PathBuf> {
    let below = settings.said(keys::ADAPTER_FOLDER).map(|_| settings.word(keys::ADAPTER_FOLDER));
    let folder = |name: &String| match below {
        Some(below) => hub::local(settings, name).join(below),
        None => hub::local(settings, name),
    };
    settings.get(keys::ADAPTER_NAME_OR_PATH).iter().map(folder).collect()
}

fn freeze(settings: &Settings) -> FreezeArgs {
    let n = settings.get(keys::FREEZE_TRAINABLE_LAYERS);
    let count = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
    FreezeArgs {
        layers: match settings.get(keys::USE_LLAMA_PRO) {
            true => TrainedLayers::Spread(count),
            false if n < 0 => TrainedLayers::First(count),
            false => TrainedLayers::Last(count),
        },
        modules: match settings.get(keys::FREEZE_TRAINABLE_MODULES) {
            [all] if all == "all" => Vec::new(),
            names => names.to_vec(),
        },
        extra: settings.get(keys::FREEZE_EXTRA_MODULES).to_vec(),
    }
}
