//! Blocks of FSDP, from the written text to the configuration.

use oarlock_tensor::DType;

use super::super::tests::{bad, good};
use super::super::{Elems, Lifetime, Recompute, ShardingConfig, StateDict, Wrap};
use super::{S, W, placements};

#[test]
fn fsdp_strategies_are_placements() {
    for (text, parameters, lifetime, by_machine) in [
        ("full_shard auto_wrap", S, Lifetime::OneUse, false),
        ("[full_shard, auto_wrap]", S, Lifetime::OneUse, false),
        ("\"true\"", S, Lifetime::OneUse, false),
        ("shard_grad_op", S, Lifetime::ForwardToBackward, false),
        ("no_shard", W, Lifetime::OneUse, false),
        ("hybrid_shard auto_wrap", S, Lifetime::OneUse, true),
        ("hybrid_shard_zero2", S, Lifetime::ForwardToBackward, true),
        ("\"\"\nfsdp_config: {sharding_strategy: 5}", S, Lifetime::ForwardToBackward, true),
        ("full_shard\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}", S, Lifetime::OneUse, false),
        ("\"true\"\nfsdp_config: {reshard_after_forward: false}", S, Lifetime::ForwardToBackward, false),
    ] {
        let config = good(&format!("fsdp: {text}\n"));
        let shard = &config.shard;
        assert_eq!(placements(shard), [parameters; 3], "{text}");
        assert_eq!((shard.lifetime, shard.by_machine, shard.group), (lifetime, by_machine, None), "{text}");
        assert_eq!(shard.persistence_elems, Elems::Count(0));
    }
    let config = good("num_processes: 4\nfsdp: \"true\"\nfsdp_config: {reshard_after_forward: 2}\n");
    assert_eq!(config.shard.secondary, Some(2));
    assert_eq!(good("fsdp: \"false\"\nfsdp_config: {version: 1}").shard, ShardingConfig::default());
    let config = good("fsdp: full_shard offload\n");
    assert_eq!(config.shard.offload_optimizer, None);
    assert_eq!(config.shard.offload_params, None);
}

#[test]
fn the_fsdp_block_of_llama_factory_is_read_as_it_stands() {
    let text = "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n  \
        fsdp_forward_prefetch: false\n  fsdp_cpu_ram_efficient_loading: true\n  \
        fsdp_offload_params: true # offload may affect training speed\n  fsdp_sharding_strategy: FULL_SHARD\n  \
        fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\n";
    let config = good(text);
    assert_eq!(placements(&config.shard), [S, S, S]);
    assert_eq!(config.save.state_dict, StateDict::Full);
    assert_eq!(config.shard.offload_params, None);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fsdp.yaml");
    let block: String = text.lines().skip(1).map(|line| format!("{}\n", line.trim())).collect();
    std::fs::write(&path, block).unwrap();
    let from_file = good(&format!("fsdp: full_shard\nfsdp_config: {}\n", path.display()));
    assert_eq!(from_file.shard, config.shard);
    let newer = "fsdp_config: {state_dict_type: sharded_state_dict, backward_prefetch: NO_PREFETCH, \
        mixed_precision_policy: {reduce_dtype: bf16}, activation_checkpointing: true}";
    let config = good(newer);
    assert_eq!((config.save.state_dict, config.shard.prefetch_elems), (StateDict::Sharded, Elems::Count(0)));
    assert_eq!(config.shard.reduce_dtype, Some(DType::BF16));
    assert_eq!(config.train.recompute, Recompute::Units { every: 1 });
}

#[test]
fn policies_say_what_becomes_a_unit() {
    let classes = |names: &[&str]| Wrap::Transformer(names.iter().map(|name| (*name).to_owned()).collect());
    for (text, expected) in [
        ("", Wrap::Declared),
        ("auto_wrap_policy: TRANSFORMER_BASED_WRAP", Wrap::Declared),
        ("fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer", classes(&["LlamaDecoderLayer"])),
        ("transformer_cls_names_to_wrap: [A, B]", classes(&["A", "B"])),
        ("auto_wrap_policy: transformer_based_wrap, transformer_layer_cls_to_wrap: [A]", classes(&["A"])),
        ("fsdp_auto_wrap_policy: SIZE_BASED_WRAP", Wrap::Size(100_000_000)),
        ("fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 2e3", Wrap::Size(2000)),
        // As the originals have it.
        ("fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 0", Wrap::None),
        ("fsdp_min_num_params: 2000", Wrap::Declared),
        ("fsdp_auto_wrap_policy: NO_WRAP, fsdp_min_num_params: 2000", Wrap::None),
    ] {
        let config = good(&format!("fsdp_config: {{sharding_strategy: 1, {text}}}\n"));
        assert_eq!(config.shard.wrap, expected, "{text}");
        assert!(config.notes().is_empty(), "{text}: {:?}", config.notes());
    }
    let both = good("fsdp_config: {auto_wrap_policy: NO_WRAP, transformer_layer_cls_to_wrap: A}\n");
    assert_eq!(both.shard.wrap, Wrap::None);
    assert!(both.notes()[0].contains("`transformer_layer_cls_to_wrap` counts with"), "{:?}", both.notes());
}

#[test]
fn every_wrong_fsdp_block_says_where_and_what_to_do() {
    let mut failed = String::new();
    for (text, expected) in [
        ("fsdp: full_shrad", "t.yaml:4:7: no FSDP option `full_shrad` (did you mean `full_shard`?)"),
        (
            "fsdp_config: {fsdp_sharding_stratagy: 1}",
            "t.yaml:4:15: unknown key `sharding_stratagy` in the FSDP configuration (did you mean \
             `sharding_strategy`?)",
        ),
        (
            "fsdp_config: {sharding_strategy: 6}",
            "t.yaml:4:34: `sharding_strategy` takes one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, \
             HYBRID_SHARD_ZERO2, not `6`",
        ),
        (
            "fsdp: no_shard\nfsdp_config: {sharding_strategy: FULL_SHARD}",
            "t.yaml:4:7: `sharding_strategy` is written twice (remove one of them)",
        ),
        (
            "fsdp_config: {sharding_strategy: NO_SHARD, reshard_after_forward: true}",
            "t.yaml:4:34: `sharding_strategy` is NO_SHARD, but `reshard_after_forward` means FULL_SHARD (keep one of \
             them)",
        ),
        (
            "fsdp_config: {state_dict_type: FULL}",
            "t.yaml:4:32: `state_dict_type` takes one of FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT, not \
             `FULL`",
        ),
        (
            "fsdp_config: {auto_wrap_policy: LAYERS}",
            "t.yaml:4:33: `auto_wrap_policy` takes one of TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP, not `LAYERS`",
        ),
        (
            "fsdp_config: {reshard_after_forward: 3}",
            "t.yaml:4:38: `reshard_after_forward` (3) does not divide the 1 ranks (groups of ranks are of one size)",
        ),
        (
            "fsdp_config: {xla: true}",
            "t.yaml:4:20: `xla: true` is not supported yet (ranks are CPU processes)",
        ),
        (
            "deepspeed: {}\nfsdp: full_shard",
            "t.yaml:4:12: `deepspeed` and `fsdp` are mutually exclusive (keep one of them)",
        ),
        (
            "gradient_checkpointing: true\nfsdp_config: {activation_checkpointing: true}",
            "t.yaml:4:25: `gradient_checkpointing` and FSDP's `activation_checkpointing` are both on (keep one of them)",
        ),
        (
            "gradient_checkpointing: true\ndisable_gradient_checkpointing: true",
            "t.yaml:4:25: `gradient_checkpointing` and `disable_gradient_checkpointing` differ (both select the \
             recomputed activations; keep one of them)",
        ),
        (
            "activation_checkpointing: some",
            "t.yaml:4:27: `activation_checkpointing` takes none, full, every-N, attention or mlp, not `some` (every-2 \
             recomputes every second unit)",
        ),
    ] {
        let problems = bad(text, &[], &[]);
        if problems != expected {
            failed += &format!("{text}\n  gives    {problems}\n  expected {expected}\n");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}
