//! Blocks of other programs, from the written text to the configuration.

mod batch;
mod fsdp;
mod left_out;
mod long_sequences;

use oarlock_tensor::ops::optimizer::Rule;
use proptest::prelude::*;

use oarlock_tensor::DType;

use super::dialect::{deepspeed_keys, fsdp_keys};
use super::tests::{MINIMUM, bad, good, train};
use super::{
    Elems, Length, Lifetime, LossScale, Offload, Placement, Placements, Quantized, Recompute, ResolvedConfig,
    ShardingConfig, train_config_of, written,
};

/// The configuration of a DeepSpeed file beside training settings.
fn try_file(json: &str, text: &str) -> Result<ResolvedConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ds.json");
    std::fs::write(&path, json).unwrap();
    let text = format!("{MINIMUM}deepspeed: {}\n{text}", path.display());
    train(&text, &[], &[]).map_err(|problems| {
        problems.to_string().replace(&path.display().to_string(), "ds.json").replace("t.yaml", "t")
    })
}

fn file(json: &str, text: &str) -> ResolvedConfig {
    try_file(json, text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn wrong(json: &str, text: &str) -> String {
    match try_file(json, text) {
        Ok(_) => "nothing is wrong".to_owned(),
        Err(problems) => problems,
    }
}

fn placements(shard: &ShardingConfig<Elems>) -> [Placement; 3] {
    [shard.placements.optimizer, shard.placements.gradients, shard.placements.parameters]
}

const W: Placement = Placement::Whole;
const S: Placement = Placement::Sharded;

/// LLaMA-Factory's first file; the others change `zero_optimization`.
fn llama_factory(zero: &str) -> String {
    format!(
        r#"{{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_allow_untested_optimizer": true,
  "fp16": {{
    "enabled": "auto",
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1
  }},
  "bf16": {{ "enabled": "auto" }},
  "zero_optimization": {{ {zero} }}
}}"#
    )
}

const ZERO_2: &str = r#"
    "allgather_partitions": true, "allgather_bucket_size": 5e8, "overlap_comm": true, "reduce_scatter": true,
    "reduce_bucket_size": 5e8, "contiguous_gradients": true, "round_robin_gradients": true"#;
const ZERO_3: &str = r#"
    "stage": 3, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true"#;
const CPU: &str = r#"{ "device": "cpu", "pin_memory": true }"#;

#[test]
fn the_five_files_of_llama_factory_are_read_as_they_stand() {
    for (zero, expected, offloads) in [
        (format!("\"stage\": 0, {ZERO_2}"), [W, W, W], (false, false)),
        (format!("\"stage\": 2, {ZERO_2}"), [S, S, W], (false, false)),
        (format!("\"stage\": 2, \"offload_optimizer\": {CPU}, {ZERO_2}"), [S, S, W], (true, false)),
        (ZERO_3.to_owned(), [S, S, S], (false, false)),
        (
            format!("\"offload_optimizer\": {CPU}, \"offload_param\": {CPU}, {ZERO_3}"),
            [S, S, S],
            (true, true),
        ),
    ] {
        let config = file(&llama_factory(&zero), "bf16: true\nper_device_train_batch_size: 3\n");
        let shard = &config.shard;
        assert_eq!(placements(shard), expected, "{zero}");
        // In main memory they are anyway, which a note says.
        assert_eq!((&shard.offload_optimizer, &shard.offload_params), (&None, &None));
        assert_eq!(config.notes().len(), usize::from(offloads.0) + usize::from(offloads.1));
        assert_eq!((config.train.batch_size, config.train.accumulation), (3, 1));
        assert_eq!(config.train.dtype, DType::BF16);
        assert_eq!(config.train.loss_scale, LossScale::UNSET);
        if expected == [S, S, S] {
            assert_eq!(shard.prefetch_elems, Elems::NineTenthsOfHiddenSquared);
            assert_eq!(shard.persistence_elems, Elems::TenHidden);
            assert_eq!(shard.reduce_bucket_elems, Elems::HiddenSquared);
            assert_eq!(shard.reuse_elems, Elems::Count(1_000_000_000));
            assert!(config.save.whole_weights && shard.lifetime == Lifetime::OneUse);
        } else {
            assert_eq!(shard.reduce_bucket_elems, Elems::Count(500_000_000));
            assert_eq!(shard.reuse_elems, Elems::Count(0));
        }
        assert!(shard.overlap);
        let idle = config.without_effect_line().unwrap();
        assert!(!idle.contains("overlap_comm"), "{idle}");
    }
}

#[test]
fn sizes_follow_from_the_hidden_size() {
    assert_eq!(Elems::HiddenSquared.of(1024), 1_048_576);
    assert_eq!(Elems::NineTenthsOfHiddenSquared.of(1024), 943_718);
    assert_eq!(Elems::TenHidden.of(1024), 10_240);
    assert_eq!(Elems::Count(7).of(1024), 7);
    assert_eq!(Elems::HiddenSquared.of(usize::MAX), usize::MAX);
    for hidden in [1, 7, 63, 513, 4096, 12288] {
        let original = (0.9 * hidden as f64 * hidden as f64) as usize;
        assert_eq!(Elems::NineTenthsOfHiddenSquared.of(hidden), original, "{hidden}");
    }
}

#[test]
fn files_for_two_models_are_read_as_they_stand() {
    let inference = r#"{
"bf16": { "enabled": "auto" },
"zero_optimization": {
"stage": 3,
"overlap_comm": true,
"reduce_bucket_size": "auto",
"stage3_prefetch_bucket_size": "auto",
"stage3_param_persistence_threshold": "auto",
"stage3_max_live_parameters": "auto",
"stage3_max_reuse_distance": "auto",
},
"train_micro_batch_size_per_gpu": 1
}"#;
    let config = file(inference, "");
    assert_eq!(config.shard.max_live_elems, Elems::Count(1_000_000_000));
    assert_eq!(config.train.batch_size, 1);
    assert_eq!(
        config.origin("per_device_train_batch_size").unwrap().to_string().rsplit(':').next(),
        Some("12")
    );
}

#[test]
fn a_boolean_zero_optimization_is_stage_one() {
    let json = r#"{ "train_batch_size": 8, "gradient_accumulation_steps": 1, "fp16": { "enabled": true },
        "optimizer": { "type": "Adam", "params": { "lr": 0.00015 } }, "zero_optimization": true }"#;
    let config = file(json, "num_processes: 2\n");
    assert_eq!(placements(&config.shard), [S, W, W]);
    assert_eq!((config.train.batch_size, config.train.accumulation), (4, 1));
    assert_eq!(config.train.dtype, DType::F16);
    assert_eq!(config.train.schedule.learning_rate, 1.5e-4);
    assert!(config.notes()[0].contains("older form"), "{:?}", config.notes());
    assert_eq!(placements(&file("{\"zero_optimization\": false}", "").shard), [W, W, W]);
}

#[test]
fn the_batch_follows_from_what_was_said() {
    let batch = |json: &str, text: &str| {
        try_file(json, &format!("num_processes: 2\n{text}"))
            .map(|config| (config.train.batch_size, config.train.accumulation))
    };
    const TB: &str = "\"train_batch_size\": 24,";
    const MB: &str = "\"train_micro_batch_size_per_gpu\": 3,";
    const GA: &str = "\"gradient_accumulation_steps\": 4,";
    for (json, expected) in [
        (format!("{TB}{MB}{GA}"), (3, 4)),
        (format!("{TB}{MB}"), (3, 4)),
        (format!("{TB}{GA}"), (3, 4)),
        (format!("{MB}{GA}"), (3, 4)),
        (TB.to_owned(), (12, 1)),
        (MB.to_owned(), (3, 1)),
        (GA.to_owned(), (8, 4)),
        (String::new(), (8, 1)),
    ] {
        assert_eq!(batch(&format!("{{{json}}}"), ""), Ok(expected), "{json}");
    }
    // What the run says counts as said, and "8" is 8.
    assert_eq!(batch("{\"train_batch_size\": \"24\"}", "gradient_accumulation_steps: 4"), Ok((3, 4)));
    assert_eq!(batch("{\"train_batch_size\": 24}", "per_device_train_batch_size: 6"), Ok((6, 2)));
    for (json, text, expected) in [
        (
            "{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 3,\n\"gradient_accumulation_steps\": 5}",
            "",
            "ds.json:1:22: `train_batch_size` is 24, but a batch of 3 x 5 accumulation steps x 2 ranks is 30 (write \
             \"auto\" for one of the three, and it follows from the others)",
        ),
        (
            "{\"train_batch_size\": 25}",
            "",
            "ds.json:1:22: `train_batch_size` (25) is not a multiple of 2 ranks (write \"auto\" for one of the three, and \
             it follows from the others)",
        ),
        (
            "{\"train_batch_size\": 24}",
            "per_device_train_batch_size: 5",
            "ds.json:1:22: `train_batch_size` (24) is not a multiple of a batch of 5 x 2 ranks (t:6:30: per_device_train_batch_size: 5; write \"auto\" for \
             one of the three, and it follows from the others)",
        ),
    ] {
        assert_eq!(batch(json, text), Err(expected.to_owned()), "{json}");
    }
}

#[test]
fn what_differs_is_reported_all_at_once_with_both_places() {
    let json = r#"{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_clipping": 0.5,
  "bf16": { "enabled": false },
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-3, "betas": [0.9, 0.95], "eps": "1e-8" } }
}"#;
    let problems = wrong(
        json,
        "per_device_train_batch_size: 2\nmax_grad_norm: 1.0\nbf16: true\nlearning_rate: 1e-4\nadam_epsilon: 1e-8\n",
    );
    let lines: Vec<&str> = problems.lines().collect();
    assert_eq!(lines.len(), 4, "{problems}");
    assert_eq!(
        lines[0],
        "t:5:30: `per_device_train_batch_size` is 2, but ds.json:2:37 says 4 (remove one of them, or write the same \
         value in both; \"auto\" in the block takes the other)"
    );
    assert!(lines[1].contains("`max_grad_norm` is 1, but ds.json:3:24 says 0.5"), "{problems}");
    assert!(lines[2].contains("`bf16` is true, but ds.json:4:24 says false"), "{problems}");
    assert!(lines[3].contains("`learning_rate` is 1e-4, but ds.json:5:53 says 0.001"), "{problems}");
    let same = file(json, "per_device_train_batch_size: \"4\"\nlearning_rate: 0.001\n");
    assert_eq!(same.train.max_grad_norm, Some(0.5));
    assert!(
        matches!(same.train.optimizer.rule, Rule::AdamW { beta1: 0.9, beta2: 0.95, .. }),
        "{:?}",
        same.train.optimizer
    );
}

#[test]
fn keys_that_begin_with_an_underscore_are_comments() {
    let json = "{\"_comment\": \"all models\", \"zero_optimization\": {\"_why\": 1, \"stage\": 2}}";
    assert_eq!(placements(&file(json, "").shard), [S, S, W]);
}

#[test]
fn every_wrong_deepspeed_file_says_where_and_what_to_do() {
    let mut failed = String::new();
    for (json, expected) in [
        (
            "{\"gradient_clipp1ng\": 1}",
            "ds.json:1:2: unknown key `gradient_clipp1ng` in the DeepSpeed configuration (did you mean \
             `gradient_clipping`?)",
        ),
        (
            "{\"zero_optimization\": {\"stge\": 3}}",
            "ds.json:1:24: unknown key `stge` in `zero_optimization` (did you mean `stage`?)",
        ),
        (
            "{\"zero_optimization\": {\"offload_param\": {\"devise\": \"cpu\"}}}",
            "ds.json:1:42: unknown key `devise` in `zero_optimization.offload_param` (did you mean `device`?)",
        ),
        (
            "{\"stage\": 3}",
            "ds.json:1:2: unknown key `stage` in the DeepSpeed configuration (`stage` belongs in \
             `zero_optimization`)",
        ),
        (
            "{\"wombat\": {}}",
            "ds.json:1:2: unknown key `wombat` in the DeepSpeed configuration (there are train_batch_size, …",
        ),
        (
            "{\"train_batch_size\": 8,\n \"train_batch_size\": 8}",
            "ds.json:2:2: `train_batch_size` is written twice (remove one of them)",
        ),
        (
            "{\"fp16\": {\"enabled\": true, \"enabled\": true}}",
            "ds.json:1:28: `enabled` is written twice (remove one of them)",
        ),
        ("{\"fp16\": true}", "ds.json:1:10: `fp16` takes a mapping, not `true`"),
        (
            "{\"zero_optimization\": {\"stage\": \"two\"}}",
            "ds.json:1:33: `zero_optimization.stage` takes a whole number, at least 0, not `two` (the default is 0)",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 4}}",
            "ds.json:1:33: there is no stage 4 (stages are 0 (replicated), 1 (optimizer state sharded), 2 (also gradients), \
             3 (also parameters))",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}}",
            "ds.json:1:64: `zero_optimization.offload_param` needs stage 3, and the stage is 2 (write \"stage\": 3, or \
             \"device\": \"none\")",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 0, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
            "ds.json:1:68: `zero_optimization.offload_optimizer` needs stage 1 or higher, and the stage is 0 (write \
             \"stage\": 1, or \"device\": \"none\")",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
            "ds.json:1:68: `zero_optimization.offload_optimizer` to nvme needs `nvme_path` (write \"nvme_path\": \"…\", a \
             folder on a fast disk)",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"gpu\"}}}",
            "ds.json:1:68: `zero_optimization.offload_optimizer.device` takes one of none, cpu, nvme, not `gpu` (did you \
             mean `cpu`?)",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2}}",
            "ds.json:1:63: `zero_optimization.zero_hpz_partition_size` (2) does not divide the 1 ranks (groups of ranks \
             are of one size)",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 2, \"mics_shard_size\": 1}}",
            "ds.json:1:55: `zero_optimization.mics_shard_size` needs stage 3, and the stage is 2",
        ),
        (
            "{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}",
            "ds.json:1:49: `bf16` and `fp16` are mutually exclusive (keep one of them)",
        ),
        (
            "{\"fp16\": {\"initial_scale_power\": 200}}",
            "ds.json:1:34: `fp16.initial_scale_power` is 200, and 2^200 times a loss is infinite (the default is 16)",
        ),
        (
            "{\"fp16\": {\"initial_scale_power\": 1, \"min_loss_scale\": 4}}",
            "ds.json:1:55: `fp16.min_loss_scale` (4) is greater than the first scale (2) (the default is 1)",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 2, \"zero_quantized_weights\": true}}",
            "ds.json:1:62: `zero_optimization.zero_quantized_weights` needs stage 3, and the stage is 2 (write \
             \"stage\": 3; other stages send gradients and weights as they are)",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 1, \"zero_quantized_gradients\": true}}",
            "ds.json:1:64: `zero_optimization.zero_quantized_gradients` needs stage 3, and the stage is 1 (write \
             \"stage\": 3; other stages send gradients and weights as they are)",
        ),
        (
            "{\"sparse_attention\": {\"mode\": \"bigbird\", \"num_random_blocks\": 500}}",
            "ds.json:1:31: `sparse_attention`: num_random_blocks is 500, but a sequence has 128 blocks (the layout is for \
             cutoff_len, 2048 tokens)",
        ),
        (
            "{\"optimizer\": {\"type\": \"MuSGD\"}}",
            "ds.json:1:24: no optimizer `MuSGD` (there are AdamW, Adam, SGD, Adagrad, Lamb, Lion, Muon, OneBitAdam, \
             ZeroOneAdam, OneBitLamb, Adafactor)",
        ),
        (
            "{\"optimizer\": {\"type\": \"OneBitAdam\"}, \"zero_optimization\": {\"stage\": 1}}",
            "ds.json:1:24: `onebit_adam` is not compatible with ZeRO or FSDP (each rank has errors of its own for the \
             whole model: write a DeepSpeed block with \"zero_optimization\": {\"stage\": 0})",
        ),
        (
            "{\"optimizer\": {\"type\": \"AdamX\"}}",
            "ds.json:1:24: no optimizer `AdamX` (did you mean `AdamW`?)",
        ),
        (
            "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"max_grad_norm\": 1.0}}}",
            "ds.json:1:61: `max_grad_norm` is not a parameter of an optimizer (write \"gradient_clipping\": 1 at the top)",
        ),
        (
            "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"momentum\": 0.9}}}",
            "ds.json:1:56: `AdamW` takes no parameter `momentum` (it takes lr, betas, eps, weight_decay, adam_w_mode, \
             torch_adam, fused, bias_correction, amsgrad, fp32_optimizer_states)",
        ),
        (
            "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9]}}}",
            "ds.json:1:53: `betas` are two numbers, not 1 (write [0.9, 0.999])",
        ),
        (
            "{\"scheduler\": {\"type\": \"WarmupLr\"}}",
            "ds.json:1:24: no schedule `WarmupLr` (did you mean `WarmupLR`?)",
        ),
        ("[1]", "ds.json:1:1: the DeepSpeed configuration is a mapping of keys to values, not a list"),
    ] {
        let problems = wrong(json, "");
        let begins = expected.strip_suffix('…').is_some_and(|begin| problems.starts_with(begin));
        if problems != expected && !begins {
            failed += &format!("{json}\n  gives    {problems}\n  expected {expected}\n");
        }
    }
    assert!(failed.is_empty(), "{failed}");
    let both = wrong(
        "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}}}",
        "warmup_ratio: 0.1",
    );
    assert!(both.contains("`warmup_num_steps` and `warmup_ratio` are mutually exclusive"), "{both}");
}

#[test]
fn offloading_and_groups_reach_the_configuration() {
    let json = r#"{ "communication_data_type": "fp32", "activation_checkpointing": { "number_checkpoints": 4 },
        "zero_optimization": { "stage": 3, "sub_group_size": 1e6, "zero_hpz_partition_size": 2,
        "zero_quantized_weights": true, "zero_quantized_gradients": true,
        "offload_optimizer": { "device": "nvme", "nvme_path": "disk/a", "buffer_count": 3 },
        "offload_param": { "device": "nvme", "nvme_path": "disk/b" } } } // all of it"#;
    let config = file(json, "num_processes: 4\n");
    let nvme =
        |path: &str, buffers| Some(Offload { dir: Some(path.into()), sub_group_elems: 1_000_000, buffers });
    let expected = ShardingConfig {
        placements: Placements::PARAMETERS,
        secondary: Some(2),
        reduce_dtype: Some(DType::F32),
        quantized: Quantized { weights: true, gradients: true, ..Quantized::NONE },
        offload_optimizer: nvme("disk/a", 3),
        offload_params: nvme("disk/b", 5),
        ..ShardingConfig::default()
    };
    assert_eq!(config.shard, expected);
    assert_eq!(config.train.recompute, Recompute::Units { every: 1 });

    let mics = file("{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}}", "num_processes: 4\n");
    assert_eq!(mics.shard.group, Some(2));
    let older = file("{\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}}", "");
    assert_eq!(older.shard.offload_optimizer, None);
    assert_eq!(older.notes().len(), 2);
    let older = file(
        "{\"zero_optimization\": {\"stage\": 3, \"stage3_gather_fp16_weights_on_model_save\": true}}",
        "",
    );
    assert!(older.save.whole_weights);
}

#[test]
fn the_loss_scale_reaches_the_configuration() {
    let json = r#"{ "fp16": { "enabled": true, "initial_scale_power": 12, "loss_scale_window": 50,
        "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 0.5 } }"#;
    let config = file(json, "");
    assert_eq!(config.train.dtype, DType::F16);
    let expected = LossScale::Dynamic {
        initial_power: 12,
        growth_interval: 50,
        hysteresis: 3,
        consecutive_hysteresis: true,
        min_scale: 0.5,
    };
    assert_eq!(config.train.loss_scale, expected);
    let config = file("{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}", "");
    assert_eq!(config.train.loss_scale, LossScale::Static(128.0));
    let config = good("fp16: true");
    assert_eq!((config.train.dtype, config.train.loss_scale), (DType::F16, LossScale::UNSET));
}

#[test]
fn an_inline_map_is_a_file() {
    let text = "deepspeed: {zero_optimization: {stage: 2}, gradient_clipping: 0.5}\nmax_steps: 5\n";
    let config = good(text);
    assert_eq!(placements(&config.shard), [S, S, W]);
    assert_eq!(config.train.length, Length::Steps(5));
    let again = train(&config.as_yaml(), &[], &[]).unwrap();
    assert_eq!((&again.shard, &again.train), (&config.shard, &config.train));
    let json = "deepspeed={\"zero_optimization\": {\"stage\": 3}}";
    let config = train(MINIMUM, &[json], &[]).unwrap();
    assert_eq!(placements(&config.shard), [S, S, S]);
    assert!(config.table().contains("DeepSpeed\n  zero_optimization.stage"), "{}", config.table());
}

#[test]
fn the_written_values_repeat_a_run_with_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ds.json");
    let json = r#"{ "train_batch_size": 24, "gradient_accumulation_steps": 3, "bf16": { "enabled": true },
        "optimizer": { "type": "AdamW", "params": { "lr": 0.0003, "betas": [0.9, 0.95] } } }"#;
    std::fs::write(&path, json).unwrap();
    let config = good(&format!("deepspeed: {}\nnum_processes: 2\n", path.display()));
    assert_eq!((config.train.batch_size, config.train.accumulation), (4, 3));
    let again = train(&config.as_yaml(), &[], &[]).unwrap();
    assert_eq!((&again.train, &again.shard), (&config.train, &config.shard));
    assert_eq!(again.as_yaml(), config.as_yaml());
}

#[test]
fn recomputation_has_one_answer() {
    for (text, expected) in [
        ("", Recompute::None),
        ("gradient_checkpointing: true", Recompute::Units { every: 1 }),
        ("gradient_checkpointing: false", Recompute::None),
        ("disable_gradient_checkpointing: true", Recompute::None),
        ("activation_checkpointing: full\ngradient_checkpointing: true", Recompute::Units { every: 1 }),
        ("activation_checkpointing: every-3", Recompute::Units { every: 3 }),
        ("activation_checkpointing: mlp", Recompute::Parts { attention: false, mlp: true }),
        ("activation_checkpointing: attention,mlp", Recompute::Parts { attention: true, mlp: true }),
        ("activation_checkpointing: none\ndisable_gradient_checkpointing: true", Recompute::None),
    ] {
        assert_eq!(good(text).train.recompute, expected, "{text}");
    }
}

#[test]
fn every_key_is_declared_once_and_well() {
    for keys in [deepspeed_keys::KEYS, fsdp_keys::KEYS] {
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other.name != key.name), "{} stands twice", key.name);
            assert!(!key.doc.is_empty() && !key.doc.ends_with('.') && !key.doc.contains('|'), "{}", key.name);
            let default = super::value::default(key);
            assert_eq!(matches!(default, super::value::Value::Null), key.default.is_empty(), "{}", key.name);
        }
    }
}

proptest! {
    #[test]
    fn no_deepspeed_file_panics(
        i in 0..deepspeed_keys::KEYS.len(),
        value in "([0-9eE.+_-]{1,12}|\\PC{0,20}|\"auto\"|true|\\{\"[a-z_]{0,9}\": [0-9.e-]{0,9}\\})",
        text in "(\\PC|[\\n\\t:\\[\\]{}#'\",*/\\\\]){0,80}",
    ) {
        let json = deepspeed_keys::KEYS[i].name.split('.').rev().fold(value, |inner, name| format!("{{\"{name}\": {inner}}}"));
        for json in [json, text] {
            if let Err(problems) = try_file(&json, "") {
                prop_assert!(!problems.is_empty());
            }
        }
    }

    #[test]
    fn no_fsdp_block_panics(
        i in 0..fsdp_keys::KEYS.len(),
        value in "([0-9eE.+_-]{1,12}|\\PC{0,20}|auto|true|[A-Z_0-9]{0,20})",
        options in "\\PC{0,20}",
    ) {
        let _ = bad(&format!("fsdp: {options}\nfsdp_config:\n  {}: {value}\n", fsdp_keys::KEYS[i].name), &[], &[]);
    }
}

#[test]
fn of_two_rates_in_the_file_the_schedulers_counts_and_is_noted() {
    let json = |rate: &str| {
        format!(
            "{{\"optimizer\": {{\"type\": \"AdamW\", \"params\": {{\"lr\": 1e-4}}}},\n\"scheduler\": {{\"type\": \"WarmupLR\", \
             \"params\": {{\"warmup_max_lr\": {rate}, \"warmup_num_steps\": 5}}}}}}"
        )
    };
    let config = file(&json("3e-4"), "");
    assert_eq!(config.train.schedule.learning_rate, 3e-4);
    let [note] = config.notes() else { panic!("{:?}", config.notes()) };
    for part in
        ["its warmup_max_lr 3e-4 (", "ds.json:2:63) counts, not the optimizer's lr 1e-4 (", "ds.json:1:50)"]
    {
        assert!(note.contains(part), "{note}");
    }
    assert!(file(&json("0.0001"), "").notes().is_empty());
    // What the run says itself must agree with both, as in transformers.
    for own in ["1e-4", "3e-4"] {
        let reported = try_file(&json("3e-4"), &format!("learning_rate: {own}\n")).unwrap_err();
        assert!(reported.contains("`learning_rate` is"), "{own}: {reported}");
    }
}

#[test]
fn what_is_not_there_resolves_and_is_missing() {
    let json =
        r#"{"zero_optimization": {"stage": 2, "zeropp_loco_param": {"a": 1}}, "amp": {"enabled": true}}"#;
    let text = format!("{MINIMUM}deepspeed: {json}\n");
    let layers = vec![written::text_of_file("t.yaml", text).unwrap()];
    let config = train_config_of(layers, &|_| None).unwrap();
    assert_eq!(placements(&config.shard), [S, S, W]);
    let missing = config.missing().to_string();
    assert_eq!(missing.lines().count(), 2, "{missing}");
    assert!(missing.contains("`zero_optimization.zeropp_loco_param"), "{missing}");
    assert!(config.complete().is_err());
}
