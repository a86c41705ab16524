//! Optimizers and DeepSpeed's schedules as users name them.

use super::*;

fn rule(text: &str) -> Rule {
    good(text).train.optimizer.rule.clone()
}

#[test]
fn optimizers_have_the_names_of_transformers_and_deepspeed() {
    let adamw = Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    for name in ["adamw_torch", "adamw_hf", "adamw_torch_fused", "adamw"] {
        assert_eq!(rule(&format!("optim: {name}\n")), adamw);
    }
    assert_eq!(rule("optim: adam\nadam_beta1: 0.8\n"), Rule::Adam { beta1: 0.8, beta2: 0.999, eps: 1e-8 });
    assert_eq!(rule("optim: sgd\n"), Rule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false });
    assert_eq!(
        rule("optim: sgd\noptim_args: momentum=0.9, nesterov=true\n"),
        Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true }
    );
    assert_eq!(
        rule("optim: adagrad\noptim_args: initial_accumulator_value=0.1\n"),
        Rule::Adagrad { lr_decay: 0.0, initial_accumulator_value: 0.1, eps: 1e-10 }
    );
    assert_eq!(rule("optim: lion_32bit\nadam_beta2: 0.99\n"), Rule::Lion { beta1: 0.9, beta2: 0.99 });
    // Under one name two algorithms: the key has that of transformers.
    assert_eq!(rule("optim: adafactor\n"), Rule::Adafactor(AdafactorArgs::TRANSFORMERS));
    assert_eq!(
        rule("optim: adafactor_torch\noptim_args: eps1=1e-30,d=2\n"),
        Rule::Adafactor(AdafactorArgs { eps1: 1e-30, d: 2.0, ..AdafactorArgs::TORCH })
    );
    let Rule::Lamb { max_coeff, min_coeff, eps_inside_sqrt, .. } =
        rule("optim: lamb\noptim_args: max_coeff=5,eps_inside_sqrt=true\n")
    else {
        panic!("not Lamb");
    };
    assert_eq!((max_coeff, min_coeff, eps_inside_sqrt), (5.0, 0.01, true));
    let Rule::Muon { momentum, adjust_lr, adam_beta2, .. } =
        rule("optim: muon\nadam_beta2: 0.95\noptim_args: adjust_lr_fn=match_rms_adamw\n")
    else {
        panic!("not Muon");
    };
    assert_eq!((momentum, adjust_lr, adam_beta2), (0.95, AdjustLr::MatchRmsAdamW, 0.95));
    assert_eq!(good("weight_decay: 0.1\n").train.optimizer.weight_decay, 0.1);
}

#[test]
fn optimizers_of_other_programs_have_stand_ins_that_the_run_names() {
    let notes = |optim: &str| good(&format!("optim: {optim}\n")).description().notes.join("\n");
    for (name, same, message) in [
        ("adamw_bnb_8bit", "adamw_8bit", ""),
        ("adamw_torch_8bit", "adamw_8bit", ""),
        (
            "adamw_torch_4bit",
            "adamw_8bit",
            "optim: adamw_torch_4bit takes the steps of adamw_8bit: its states have 8 bits, not 4",
        ),
        ("paged_adamw_8bit", "adamw_8bit", "takes the steps of adamw_8bit: its states are not paged"),
        ("paged_adamw_32bit", "adamw", "takes the steps of adamw: its states are not paged"),
        ("paged_adamw", "adamw", "its states are not paged"),
        ("paged_lion_8bit", "lion_8bit", "takes the steps of lion_8bit: its states are not paged"),
        ("adamw_apex_fused", "adamw", ""),
        ("adamw_torch", "adamw", ""),
        ("lion_32bit", "lion", ""),
    ] {
        assert_eq!(rule(&format!("optim: {name}\n")), rule(&format!("optim: {same}\n")), "{name}");
        let notes = notes(name);
        assert!(
            notes.contains(message) && message.is_empty() != notes.contains("takes the steps"),
            "{name}: {notes}"
        );
    }
    let written = |text: &str| format!("{:?}", rule(text));
    for (name, method) in [("rmsprop_bnb_8bit", "rmsprop"), ("paged_ademamix_8bit", "ademamix")] {
        let plain = written(&format!("optim: {method}\n"));
        assert_eq!(written(&format!("optim: {name}\n")), format!("EightBit(EightBit({plain}))"));
    }
    assert!(notes("paged_ademamix_8bit").contains("takes the steps of ademamix_8bit"));
    let args = written("optim: rmsprop\noptim_args: alpha=0.9,momentum=0.5,centered=true,eps=1e-6\n");
    assert!(args.contains("alpha: 0.9, eps: 1e-6, momentum: 0.5, centered: true"), "{args}");
    let args = written("optim: ademamix\nadam_beta2: 0.99\noptim_args: beta3=0.999,alpha=2,t_alpha=10\n");
    assert!(args.contains("betas: [0.9, 0.99, 0.999], alpha: 2.0, eps: 1e-8, t_alpha: Some(10)"), "{args}");
}

#[test]
fn pure_bf16_says_what_stays_in_f32() {
    let notes = |text: &str| good(text).description().notes.join("\n");
    let said = "pure_bf16: master weights, gradients and the optimizer's states stay in f32";
    assert!(notes("pure_bf16: true\n").contains(said));
    // Elsewhere, too, adapters are trained in f32.
    for text in ["bf16: true\n", "pure_bf16: true\nstage: sft\nfinetuning_type: lora\n"] {
        assert!(!notes(text).contains("pure_bf16:"), "{text}");
    }
}

#[test]
fn wrong_arguments_say_where_and_what_to_do() {
    let mut wrong = String::new();
    for (text, expected) in [
        (
            "optim: sgd\noptim_args: momentun=0.9",
            "t.yaml:5:13: `sgd` takes no argument `momentun` (did you mean `momentum`?)",
        ),
        (
            "optim_args: momentum=0.9",
            "t.yaml:4:13: `adamw_torch` takes no argument `momentum` (it takes none)",
        ),
        (
            "optim: sgd\noptim_args: momentum=1",
            "t.yaml:5:13: `momentum` takes a number from 0 to below 1, not `1`",
        ),
        (
            "optim: sgd\noptim_args: momentum",
            "t.yaml:5:13: `optim_args` takes pairs such as momentum=0.9, not `momentum` (write key=value, separated \
             by commas)",
        ),
        (
            "optim: sgd\noptim_args: momentum=0.9,momentum=0.8",
            "t.yaml:5:13: `momentum` is written twice in `optim_args` (remove one of them)",
        ),
        (
            "optim: sgd\noptim_args: nesterov=true",
            "t.yaml:5:13: `nesterov` of `sgd` needs a `momentum` and no `dampening`",
        ),
        ("optim: adafactor\noptim_args: d=0.5", "t.yaml:5:13: `d` of `adafactor` is a threshold, at least 1"),
        (
            "optim: adafactor\noptim_args: beta2_decay=0.8",
            "t.yaml:5:13: `beta2_decay` of `adafactor` is an exponent, at most 0",
        ),
        (
            "optim: adafactor\noptim_args: eps2=0.1",
            "t.yaml:5:13: `adafactor` takes no argument `eps2` (did you mean `eps1`?)",
        ),
        (
            "optim: lamb\noptim_args: min_coeff=11",
            "t.yaml:5:13: `min_coeff` of `lamb` is greater than `max_coeff`",
        ),
        (
            "optim: muon\noptim_args: nesterov=maybe",
            "t.yaml:5:13: `nesterov` takes true or false, not `maybe`",
        ),
        (
            "optim: muon\noptim_args: adjust_lr_fn=best",
            "t.yaml:5:13: `adjust_lr_fn` takes one of original, match_rms_adamw, not `best`",
        ),
        (
            "lr_scheduler_type: WarmupLR\nlr_scheduler_kwargs: {warmup_steps: 3}",
            "t.yaml:5:23: `WarmupLR` takes no argument `warmup_steps`",
        ),
        (
            "lr_scheduler_type: WarmupLR\nlr_scheduler_kwargs: {warmup_num_steps: 0}",
            "t.yaml:5:22: `warmup_num_steps` of `WarmupLR` is 0; it takes at least one step",
        ),
        (
            "lr_scheduler_type: OneCycle\nlr_scheduler_kwargs: {cycle_max_lr: 1}",
            "t.yaml:5:22: `OneCycle` needs `cycle_min_lr` in lr_scheduler_kwargs",
        ),
    ] {
        let found = bad(&format!("{text}\n"), &[], &[]);
        if !found.starts_with(expected) {
            wrong.push_str(&format!("{text}\n  expected {expected}\n  found    {found}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_bias_correction_of_deepspeeds_lamb_can_be_left_out() {
    let config = |kind: &str| {
        let block = format!("{{optimizer: {{type: {kind}, params: {{bias_correction: false}}}}}}");
        train(&format!("{MINIMUM}deepspeed: {block}\n"), &[], &[])
    };
    let Rule::Lamb { bias_correction, .. } = config("Lamb").unwrap().train.optimizer.rule else {
        panic!("not Lamb");
    };
    assert!(!bias_correction);
    let said = config("AdamW").unwrap_err().to_string();
    assert!(
        said.contains("`bias_correction: false` is not supported yet (only Lamb can leave it out"),
        "{said}"
    );
}
