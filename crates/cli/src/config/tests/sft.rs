//! `stage: sft` and the keys that belong to it.

use oarlock::config::{ExampleKind, ObjectiveArgs, Packing, PreferenceLoss};

use super::*;

#[test]
fn conversations_are_read_with_the_defaults_of_the_stage() {
    assert_eq!(good("stage: pt").data.chat, None);
    let config = good("stage: sft\ntemplate: qwen3");
    let chat = config.data.chat.clone().unwrap();
    assert_eq!((config.data.packing, chat.template.as_deref()), (Packing::Examples, Some("qwen3")));
    assert_eq!(
        (chat.enable_thinking, chat.preserve_thinking, chat.split_special_tokens),
        (Some(true), false, true)
    );
    assert_eq!((chat.train_on_prompt, chat.mask_history), (false, false));
    let packing = |text: &str| good(&format!("stage: sft\n{text}")).data.packing;
    assert_eq!(
        (packing("packing: true"), packing("neat_packing: true")),
        (Packing::Knapsack, Packing::Knapsack)
    );
    assert_eq!(packing("packing: false"), Packing::Examples);
    let thinking =
        |text: &str| good(&format!("stage: sft\nenable_thinking: {text}")).data.chat.clone().unwrap();
    assert_eq!([thinking("false"), thinking("null")].map(|chat| chat.enable_thinking), [Some(false), None]);
    let chat = good("stage: sft\nmask_history: true\nsplit_special_tokens: false\ndefault_system: Hi")
        .data
        .chat
        .clone();
    let chat = chat.unwrap();
    assert!(chat.mask_history && !chat.split_special_tokens && chat.default_system.as_deref() == Some("Hi"));
}

#[test]
fn what_belongs_to_another_stage_is_told() {
    let ignored = |config: &ResolvedConfig| -> Vec<&str> {
        config.without_effect().map(|(setting, _)| setting.key.name).collect()
    };
    assert_eq!(ignored(&good("template: qwen")), ["template"]);
    assert!(ignored(&good("stage: sft\ntemplate: qwen")).is_empty());
    assert!(bad("stage: ppo", &[], &[]).contains("`stage: ppo` is not supported yet"));
    assert_eq!(ignored(&good("stage: sft\npref_beta: 0.2\nld_alpha: 0.5")), ["pref_beta", "ld_alpha"]);
    assert_eq!(ignored(&good("stage: kto\npref_beta: 0.2\nsimpo_gamma: 1")), ["simpo_gamma"]);
    assert!(
        bad("split_special_tokens: true", &[], &[]).contains("`split_special_tokens` belongs to stage sft")
    );
    assert!(bad("stage: sft\nminimind_rows: true", &[], &[]).contains("`minimind_rows` are rows of texts"));
    assert!(
        bad("stage: sft\nuse_asft_loss: true", &[], &[])
            .contains("`use_asft_loss: true` is not supported yet")
    );
}

#[test]
fn preferences_are_read_with_the_defaults_of_the_original() {
    let config = good("stage: dpo\npref_loss: ipo\nref_model: m\nref_model_adapters: a,b");
    let chat = config.data.chat.clone().unwrap();
    assert_eq!(
        (chat.examples, config.data.n_segments(), config.data.packing),
        (ExampleKind::Pairs, 2, Packing::Examples)
    );
    let ObjectiveArgs::Preference(args) = &config.train.objective else {
        panic!("{:?}", config.train.objective)
    };
    assert_eq!((args.loss, args.beta, args.ld_alpha), (PreferenceLoss::Ipo, 0.1, None));
    assert_eq!(args.reference.model.as_deref(), Some(std::path::Path::new("m")));
    assert_eq!(args.reference.adapters.len(), 2);
    let config = good("stage: dpo\npref_loss: orpo\nld_alpha:");
    assert!(config.train.objective.reference().is_none());
    let config = good("stage: kto\nkto_chosen_weight: 2");
    let ObjectiveArgs::Kto(args) = &config.train.objective else { panic!("{:?}", config.train.objective) };
    assert_eq!((args.chosen_weight, args.rejected_weight), (2.0, 1.0));
    assert_eq!(good("stage: rm").train.objective, ObjectiveArgs::Rewards);
    assert_eq!(good("stage: sft").train.objective, ObjectiveArgs::NextToken);
}
