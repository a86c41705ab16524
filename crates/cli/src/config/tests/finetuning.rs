//! Methods of fine-tuning and their keys.

use oarlock::config::{
    AdapterArgs, AdapterConfig, AdapterKind, Finetuning, FreezeArgs, LoraConfig, LoraPlus, OftBlocks,
    OftConfig, Targets, TrainedLayers,
};

use super::good;

#[test]
fn methods_of_fine_tuning_are_those_of_llama_factory() {
    let read = |text: &str| good(text).train.finetuning.clone();
    assert_eq!(read(""), Finetuning::Full);
    let plain = AdapterArgs::default();
    assert_eq!(read("finetuning_type: lora\nlora_alpha: 0"), Finetuning::Adapter(plain));
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let kind = AdapterKind::Lora(LoraConfig {
        rank: 4,
        alpha: Some(16.0),
        dropout: 0.25,
        use_rslora: true,
        use_dora: true,
        ..LoraConfig::default()
    });
    let lora = AdapterArgs {
        config: AdapterConfig {
            kind,
            targets: Targets::Named(named(&["q_proj", "v_proj"])),
            modules_to_save: named(&["lm_head"]),
        },
        adapters: vec!["a/sub".into(), "b/sub".into()],
        create_new: true,
        convert_pissa: false,
        plus: Some(LoraPlus { lr_ratio: 16.0 }),
    };
    let text = "finetuning_type: lora\nlora_rank: 4\nlora_alpha: 16\nlora_dropout: 0.25\nlora_target: q_proj,v_proj\n\
        additional_target: lm_head\nuse_rslora: true\nuse_dora: true\nadapter_name_or_path: a,b\nadapter_folder: sub\n\
        create_new_adapter: true\nloraplus_lr_ratio: 16";
    assert_eq!(read(text), Finetuning::Adapter(lora));
    for (text, oft) in [
        ("", OftConfig::default()),
        (
            "oft_rank: 4\noft_block_size: 0\nmodule_dropout: 0.5",
            OftConfig { blocks: OftBlocks::Count(4), dropout: 0.5, ..OftConfig::default() },
        ),
    ] {
        let mut config = AdapterConfig::from(oft);
        config.targets = Targets::Named(named(&["q_proj"]));
        let read = read(&format!("finetuning_type: oft\noft_target: q_proj\nlora_rank: 3\n{text}"));
        assert_eq!(read, Finetuning::Adapter(AdapterArgs { config, ..AdapterArgs::default() }));
    }
    for (text, layers, modules) in [
        ("", TrainedLayers::Last(2), &[][..]),
        (
            "freeze_trainable_layers: -3\nfreeze_trainable_modules: mlp,self_attn",
            TrainedLayers::First(3),
            &["mlp", "self_attn"],
        ),
        ("freeze_trainable_layers: 4\nuse_llama_pro: true", TrainedLayers::Spread(4), &[]),
    ] {
        let expected = FreezeArgs { layers, modules: named(modules), extra: named(&["norm"]) };
        let read = read(&format!("finetuning_type: freeze\nfreeze_extra_modules: norm\n{text}"));
        assert_eq!(read, Finetuning::Freeze(expected));
    }
}

#[test]
fn keys_of_a_method_that_the_run_does_not_use_are_told() {
    let told = |text: &str| -> Vec<String> {
        let config = good(text);
        config.without_effect().map(|(setting, why)| format!("{}: {why}", setting.key.name)).collect()
    };
    let lora = "it belongs to `finetuning_type: lora`";
    assert_eq!(
        told("lora_rank: 8\nlora_target: all"),
        [format!("lora_rank: {lora}"), format!("lora_target: {lora}")]
    );
    assert_eq!(told("finetuning_type: freeze\nlora_alpha: 8"), [format!("lora_alpha: {lora}")]);
    assert!(told("finetuning_type: lora\nlora_rank: 8\nadditional_target: lm_head").is_empty());
    assert_eq!(
        told("freeze_trainable_layers: 2"),
        ["freeze_trainable_layers: it belongs to `finetuning_type: freeze`"]
    );
    assert_eq!(told("galore_rank: 4"), ["galore_rank: it belongs to `use_galore: true`"]);
    for (text, is_told) in [
        ("quantization_type: fp4", true),
        ("finetuning_type: lora\nquantization_bit: 4\nquantization_type: fp4", false),
        ("stage: sft\nmax_new_tokens: 7", true),
        (
            "stage: sft\neval_dataset: e\ndo_predict: true\npredict_with_generate: true\nmax_new_tokens: 7",
            false,
        ),
        ("eval_steps: 7", true),
        ("eval_strategy: steps\neval_steps: 7\nval_size: 0.1\nmetric_for_best_model: loss", false),
    ] {
        assert_eq!(told(text).len(), usize::from(is_told), "{text}: {:?}", told(text));
    }
    assert!(
        !good("lora_rank: 8").table().split("Accepted without effect").next().unwrap().contains("lora_rank")
    );
}
