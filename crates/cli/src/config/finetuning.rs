//! Reads which parameters are trained: all, some layers, or an adapter with its settings.

use std::path::PathBuf;

use oarlock::config::{
    AdapterArgs, AdapterConfig, AdapterKind, Finetuning, FreezeArgs, LoraConfig, LoraInit, LoraPlus,
    OftBlocks, OftConfig, Targets, TrainedLayers,
};
use oarlock::settings::problem::Problems;
use oarlock::settings::resolve::Settings;

/// What is trained; what is wrong with it goes to `problems`.
pub fn finetuning(settings: &Settings, problems: &mut Problems) -> Finetuning {
    let mut report = |message: &str, names: &[&str], help: &str| {
        settings.report(problems, message, names, help);
    };
    match settings.word("finetuning_type") {
        "lora" => {
            if settings.bool("use_llama_pro") {
                report(
                    "`use_llama_pro` with adapters is not supported: it is there for finetuning_type freeze",
                    &["use_llama_pro", "finetuning_type"],
                    "remove it, or name the layers in lora_target",
                );
            }
            if settings.bool("pissa_convert") && settings.bool("use_dora") {
                report(
                    "`pissa_convert` does not go with `use_dora`: the lengths of rows are of the base without what PiSSA took \
                     out of it",
                    &["pissa_convert", "use_dora"],
                    "remove one of them",
                );
            }
            Finetuning::Adapter(AdapterArgs {
                config: adapter(settings, "lora_target", AdapterKind::Lora(lora(settings))),
                convert_pissa: settings.bool("pissa_convert"),
                plus: settings
                    .said("loraplus_lr_ratio")
                    .map(|_| LoraPlus { lr_ratio: settings.f64("loraplus_lr_ratio") }),
                ..begin_with(settings)
            })
        }
        "freeze" => Finetuning::Freeze(freeze(settings)),
        "oft" => {
            let (count, size) = (settings.usize("oft_rank"), settings.usize("oft_block_size"));
            if (count == 0) == (size == 0) {
                report(
                    "one of `oft_rank` (blocks of a layer) and `oft_block_size` (inputs of a block) is 0, and the other one is \
                     not",
                    &["oft_rank", "oft_block_size"],
                    if count == 0 { "write `oft_block_size: 32`" } else { "write `oft_block_size: 0`" },
                );
            }
            let blocks = if size == 0 { OftBlocks::Count(count) } else { OftBlocks::Size(size) };
            let dropout = settings.f64("module_dropout") as f32;
            let kind = AdapterKind::Oft(OftConfig { blocks, dropout, ..OftConfig::default() });
            let config = adapter(settings, "oft_target", kind);
            Finetuning::Adapter(AdapterArgs { config, ..begin_with(settings) })
        }
        _ => Finetuning::Full,
    }
}

/// The adapters that a training begins with.
fn begin_with(settings: &Settings) -> AdapterArgs {
    AdapterArgs {
        adapters: adapters(settings),
        create_new: settings.bool("create_new_adapter"),
        ..AdapterArgs::default()
    }
}

fn adapter(settings: &Settings, target: &str, kind: AdapterKind) -> AdapterConfig {
    AdapterConfig {
        kind,
        targets: match settings.list(target) {
            [] => Targets::All,
            [all] if all == "all" => Targets::All,
            names => Targets::Named(names.to_vec()),
        },
        modules_to_save: settings.list("additional_target").to_vec(),
    }
}

fn lora(settings: &Settings) -> LoraConfig {
    LoraConfig {
        rank: settings.usize("lora_rank"),
        // The original takes 0 for unset.
        alpha: settings.count("lora_alpha").filter(|alpha| *alpha > 0).map(|alpha| alpha as f64),
        dropout: settings.f64("lora_dropout") as f32,
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        use_rslora: settings.bool("use_rslora"),
        use_dora: settings.bool("use_dora"),
        init: match settings.bool("pissa_init") {
            true => LoraInit::Pissa { iterations: usize::try_from(settings.int("pissa_iter")).ok() },
            false => LoraInit::Kaiming,
        },
    }
}

/// The folders of `adapter_name_or_path`, below `adapter_folder` each where that is written.
pub fn adapters(settings: &Settings) -> Vec<PathBuf> {
    let below = settings.said("adapter_folder").map(|_| settings.word("adapter_folder"));
    let folder = |name: &String| match below {
        Some(below) => PathBuf::from(name).join(below),
        None => PathBuf::from(name),
    };
    settings.list("adapter_name_or_path").iter().map(folder).collect()
}

fn freeze(settings: &Settings) -> FreezeArgs {
    let n = settings.int("freeze_trainable_layers");
    let count = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
    FreezeArgs {
        layers: match settings.bool("use_llama_pro") {
            true => TrainedLayers::Spread(count),
            false if n < 0 => TrainedLayers::First(count),
            false => TrainedLayers::Last(count),
        },
        modules: match settings.list("freeze_trainable_modules") {
            [all] if all == "all" => Vec::new(),
            names => names.to_vec(),
        },
        extra: settings.list("freeze_extra_modules").to_vec(),
    }
}
