//! Files and variables of Accelerate, read.

use proptest::prelude::*;

use oarlock_tensor::DType;

use super::super::tests::{MINIMUM, bad, train};
use super::super::{Lifetime, Placement};
use super::keys::{BLOCKS, DEEPSPEED, FILE_ONLY, FLAGS, OF_DEEPSPEED, OF_FSDP, TOP};
use super::{File, exported};

#[test]
fn every_name_is_declared_once() {
    let names = || FLAGS.iter().chain(FILE_ONLY).map(|key| key.name);
    for (i, name) in names().enumerate() {
        assert!(names().take(i).all(|other| other != name), "{name} stands twice");
    }
    let flag = |name: &str| FLAGS.iter().any(|key| key.name == name);
    for name in TOP.iter().chain(DEEPSPEED) {
        assert!(flag(name), "{name}");
    }
    for variable in OF_DEEPSPEED.iter().chain(OF_FSDP) {
        assert!(flag(variable.flag.name), "{}", variable.flag);
    }
    // Names of two blocks never meet.
    for (block, prefix) in BLOCKS.iter().filter(|(_, prefix)| !prefix.is_empty()) {
        let others = BLOCKS.iter().filter(|(other, other_prefix)| other != block && !other_prefix.is_empty());
        assert!(others.clone().all(|(_, other)| !other.starts_with(prefix)), "{block}");
        assert!(DEEPSPEED.iter().all(|name| !name.starts_with(prefix)), "{block}");
    }
}

#[test]
fn values_are_handed_on_as_python_writes_them() {
    let file = File::text(
        "c.yaml",
        "distributed_type: DEEPSPEED\nfsdp_config: {offload_params: yes, min_num_params: 5}\ndeepspeed_config:\n  \
         gradient_clipping: 1\n  zero_stage: 3\n  deepspeed_moe_layer_cls_names: A,B\n  gradient_accumulation_steps: auto\n",
    )
    .unwrap();
    let text = |name: &str| exported(file.settings.find(name).unwrap());
    for (name, expected) in [
        ("gradient_clipping", Some("1")),
        ("zero_stage", Some("3")),
        ("deepspeed_moe_layer_cls_names", Some("A,B")),
        ("gradient_accumulation_steps", Some("auto")),
        ("fsdp_offload_params", Some("True")),
        ("fsdp_min_num_params", Some("5")),
        ("fsdp_sharding_strategy", Some("FULL_SHARD")),
        ("fsdp_state_dict_type", None),
        ("debug", Some("False")),
        ("monitor_interval", Some("0.1")),
    ] {
        assert_eq!(text(name).as_deref(), expected, "{name}");
    }
    assert_eq!(
        file.deepspeed,
        ["gradient_clipping", "zero_stage", "deepspeed_moe_layer_cls_names", "gradient_accumulation_steps"]
    );
}

#[test]
fn a_training_reads_what_the_launcher_of_accelerate_hands_on() {
    let deepspeed = [
        ("ACCELERATE_USE_DEEPSPEED", "true"),
        ("ACCELERATE_MIXED_PRECISION", "bf16"),
        ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"),
        ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"),
        ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "disk"),
        ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"),
        ("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false"),
        ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"),
        ("ACCELERATE_GRADIENT_CLIPPING", "0.5"),
        ("WORLD_SIZE", "2"),
    ];
    let config = train(MINIMUM, &[], &deepspeed).unwrap();
    assert_eq!(config.shard.placements.parameters, Placement::Sharded);
    assert!(matches!(&config.shard.offload_optimizer, Some(files) if files.dir == Some("disk".into())));
    assert!(config.shard.offload_params.is_none() && config.save.whole_weights);
    assert_eq!((config.train.accumulation, config.train.max_grad_norm), (8, Some(0.5)));
    assert_eq!((config.train.dtype, config.ranks.num_processes), (DType::BF16, 2));
    assert_eq!(config.origin("bf16").unwrap().to_string(), "ACCELERATE_MIXED_PRECISION");

    // Both keys of FSDP are always handed on; the version says which one counts.
    for (version, expected) in [("1", Lifetime::ForwardToBackward), ("2", Lifetime::OneUse)] {
        let fsdp = [
            ("ACCELERATE_USE_FSDP", "true"),
            ("ACCELERATE_MIXED_PRECISION", "no"),
            ("FSDP_VERSION", version),
            ("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"),
            ("FSDP_RESHARD_AFTER_FORWARD", "true"),
            ("FSDP_OFFLOAD_PARAMS", "false"),
            ("FSDP_MIN_NUM_PARAMS", "100000000"),
            ("FSDP_TRANSFORMER_CLS_TO_WRAP", "LlamaDecoderLayer"),
            ("FSDP_ACTIVATION_CHECKPOINTING", "true"),
            ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"),
        ];
        let config = train(&format!("{MINIMUM}bf16: true\n"), &[], &fsdp).unwrap();
        assert_eq!(
            (config.shard.lifetime, config.shard.placements.gradients),
            (expected, Placement::Sharded)
        );
        assert_eq!((config.train.accumulation, config.train.dtype), (4, DType::BF16));
    }
}

#[test]
fn what_is_handed_on_must_agree_with_the_training() {
    for (text, variables, expected) in [
        (
            "gradient_accumulation_steps: 4",
            &[("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")][..],
            "t.yaml:4:30: `gradient_accumulation_steps` is 4, but ACCELERATE_GRADIENT_ACCUMULATION_STEPS says 8 (remove \
             one of them, or write the same number for `gradient_accumulation_steps` in both)",
        ),
        (
            "fp16: true",
            &[("ACCELERATE_MIXED_PRECISION", "bf16")],
            "ACCELERATE_MIXED_PRECISION: `bf16` and `fp16` are mutually exclusive (t.yaml:4:7: fp16: true; keep one of them)",
        ),
        (
            "",
            &[("ACCELERATE_MIXED_PRECISION", "fp8")],
            "ACCELERATE_MIXED_PRECISION: an Oarlock run does not compute in fp8 (write bf16)",
        ),
        (
            "",
            &[("ACCELERATE_USE_DEEPSPEED", "true"), ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "two")],
            "ACCELERATE_DEEPSPEED_ZERO_STAGE: `zero_stage` takes a whole number, at least 0, not `two`",
        ),
        (
            "",
            &[
                ("ACCELERATE_USE_FSDP", "true"),
                ("FSDP_VERSION", "1"),
                ("FSDP_SHARDING_STRATEGY", "FULL_SHART"),
            ],
            "FSDP_SHARDING_STRATEGY: `sharding_strategy` takes one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, \
             HYBRID_SHARD_ZERO2, not `FULL_SHART` (did you mean `FULL_SHARD`?)",
        ),
    ] {
        assert_eq!(bad(text, &[], variables), expected);
    }
    // What stays unset changes nothing.
    let config =
        train(MINIMUM, &[], &[("ACCELERATE_MIXED_PRECISION", "no"), ("ACCELERATE_USE_FSDP", "false")]);
    assert_eq!(config.unwrap().train.dtype, DType::F32);
}

proptest! {
    #[test]
    fn no_text_panics(text in "(\\PC|[\\n\\t:\\[\\]{}#'\"/*,\\\\]){0,120}") {
        let _ = File::text("c.yaml", &text);
    }

    #[test]
    fn no_block_panics(
        block in prop::sample::select(BLOCKS.iter().map(|(block, _)| *block).collect::<Vec<_>>()),
        key in prop::sample::select(FLAGS.iter().map(|key| key.name).collect::<Vec<_>>()),
        value in "(\\PC|[:\\[\\]{}',]){0,20}",
    ) {
        let text = format!("distributed_type: NO\n{block}:\n  {key}: {value}\n{key}: {value}\n");
        if let Err(problems) = File::text("c.yaml", &text) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }
}
