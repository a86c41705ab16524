//! `stage: sft` and the keys that belong to it.

use oarlock::config::Packing;

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
    assert!(bad("stage: dpo", &[], &[]).contains("`stage: dpo` is not supported yet"));
    assert!(
        bad("split_special_tokens: true", &[], &[]).contains("`split_special_tokens` belongs to stage sft")
    );
    assert!(bad("stage: sft\nminimind_rows: true", &[], &[]).contains("`minimind_rows` are rows of texts"));
    assert!(
        bad("stage: sft\nuse_asft_loss: true", &[], &[])
            .contains("`use_asft_loss: true` is not supported yet")
    );
}
