//! Reads which parameters are trained: all, some layers, or an adapter with its settings.

use std::path::PathBuf;

use oarlock::config::{
    Finetuning, FreezeArgs, LoraArgs, LoraConfig, LoraInit, LoraPlus, Targets, TrainedLayers,
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
            Finetuning::Lora(lora(settings))
        }
        "freeze" => Finetuning::Freeze(freeze(settings)),
        "oft" => {
            report(
                "`finetuning_type: oft` is not supported: rotations of weights (OFT) are not there",
                &["finetuning_type"],
                "write `finetuning_type: lora`",
            );
            Finetuning::Full
        }
        _ => Finetuning::Full,
    }
}

fn lora(settings: &Settings) -> LoraArgs {
    LoraArgs {
        config: LoraConfig {
            rank: settings.usize("lora_rank"),
            // The original takes 0 for unset.
            alpha: settings.count("lora_alpha").filter(|alpha| *alpha > 0).map(|alpha| alpha as f64),
            dropout: settings.f64("lora_dropout") as f32,
            targets: match settings.list("lora_target") {
                [] => Targets::All,
                [all] if all == "all" => Targets::All,
                names => Targets::Named(names.to_vec()),
            },
            modules_to_save: settings.list("additional_target").to_vec(),
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            use_rslora: settings.bool("use_rslora"),
            use_dora: settings.bool("use_dora"),
            init: match settings.bool("pissa_init") {
                true => LoraInit::Pissa { iterations: usize::try_from(settings.int("pissa_iter")).ok() },
                false => LoraInit::Kaiming,
            },
        },
        adapters: adapters(settings),
        create_new: settings.bool("create_new_adapter"),
        convert_pissa: settings.bool("pissa_convert"),
        plus: settings
            .said("loraplus_lr_ratio")
            .map(|_| LoraPlus { lr_ratio: settings.f64("loraplus_lr_ratio") }),
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
