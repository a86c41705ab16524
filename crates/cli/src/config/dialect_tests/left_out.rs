//! What DeepSpeed's blocks leave out.

use super::super::tests::good;
use super::super::{ScheduleArgs, Steps};

fn schedule(text: &str) -> ScheduleArgs {
    good(text).train.schedule
}

#[test]
fn a_warm_up_that_nobody_speaks_of_is_deepspeeds() {
    for kind in ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"] {
        for (param, more, expected) in [
            // transformers fills in its own 0, of which the schedule makes 2.
            ("warmup_num_steps: auto", "", Steps::Share(0.0)),
            ("warmup_num_steps: auto", "warmup_ratio: 0.1", Steps::Share(0.1)),
            ("warmup_num_steps: 0", "", Steps::Share(0.0)),
            ("warmup_num_steps: 7", "", Steps::Count(7)),
            ("", "", Steps::Count(1000)),
            ("", "warmup_steps: 5", Steps::Count(5)),
            ("", "warmup_steps: 0", Steps::Share(0.0)),
        ] {
            let text = format!("deepspeed: {{scheduler: {{type: {kind}, params: {{{param}}}}}}}\n{more}");
            assert_eq!(schedule(&text).warmup, expected, "{text}");
        }
    }
    assert_eq!(schedule("lr_scheduler_type: WarmupLR").warmup, Steps::Count(1000));
    let own = schedule("lr_scheduler_type: WarmupLR\nlr_scheduler_kwargs: {warmup_num_steps: 9}");
    assert_eq!(own.warmup, Steps::Share(0.0));
    assert_eq!(schedule("lr_scheduler_type: linear").warmup, Steps::Share(0.0));
}

#[test]
fn defaults_that_differ_are_noted() {
    for (block, more, expected) in [
        (
            "optimizer: {type: AdamW}",
            "",
            "the DeepSpeed file leaves out what the run's settings say here: \
             lr (learning_rate, 5e-5; DeepSpeed's default is 0.001)",
        ),
        (
            "optimizer: {type: Adam, params: {lr: 0.01, torch_adam: true}}",
            "adam_beta2: 0.95",
            "the DeepSpeed file leaves out what the run's settings say here: \
             betas (adam_beta2, 0.95; DeepSpeed's default is 0.999), \
             weight_decay (weight_decay, 0; DeepSpeed's default is 0.01)",
        ),
        (
            "scheduler: {type: WarmupDecayLR, params: {total_num_steps: auto}}",
            "warmup_ratio: 0.1",
            "the DeepSpeed file leaves out what the run's settings say here: \
             warmup_max_lr (learning_rate, 5e-5; DeepSpeed's default is 0.001), \
             warmup_num_steps (warmup_ratio, 0.1; DeepSpeed's default is 1000)",
        ),
        ("optimizer: {type: AdamW, params: {lr: auto}}", "", ""),
        ("optimizer: {type: AdamW}", "learning_rate: 0.001", ""),
        (
            "scheduler: {type: WarmupLR, params: {warmup_max_lr: auto, warmup_num_steps: auto}}",
            "warmup_steps: 3",
            "",
        ),
        ("optimizer: {type: AdamW}, scheduler: {type: WarmupLR, params: {warmup_max_lr: 1e-4}}", "", ""),
        ("optimizer: {type: AdamW}", "lr_scheduler_type: minimind", ""),
    ] {
        let config = good(&format!("deepspeed: {{{block}}}\n{more}"));
        assert_eq!(config.notes().join("\n"), expected, "{block} {more}");
    }
}
