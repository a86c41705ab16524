//! Every flag that `accelerate launch --help` lists, against the table.

use super::super::launch::LAUNCH;
use super::super::launch::Resolved;
use super::Site;
use crate::config::accelerate::keys::FLAGS;
use crate::config::keys::Status;
use crate::front::script::Script;

/// The names in the help of Accelerate 1.15.
fn documented() -> Vec<&'static str> {
    let text = include_str!("../../../../tests/golden/accelerate/launch_help.txt");
    let options = text.split_once("options:").unwrap().1;
    let lines = options.lines().filter(|line| line.starts_with("  -"));
    let names = lines.flat_map(|line| line.split([' ', ',']).filter_map(|word| word.strip_prefix("--")));
    names.filter(|name| *name != "help").collect()
}

#[test]
fn every_documented_flag_is_in_the_table_and_no_other() {
    let names = documented();
    assert!(names.len() > 120, "{}", names.len());
    for name in &names {
        assert!(FLAGS.iter().any(|key| key.name == *name), "--{name}");
    }
    for key in FLAGS {
        assert!(names.contains(&key.name), "--{} is not Accelerate's", key.name);
    }
}

#[test]
fn only_what_is_of_other_devices_and_engines_has_no_meaning() {
    const WITHOUT: [&str; 9] = [
        "tpu_",
        "no_tpu_",
        "vm",
        "env",
        "main_training_function",
        "downcast_bf16",
        "dynamo_",
        "fp8_",
        "megatron_lm_",
    ];
    for key in FLAGS {
        let without = WITHOUT.iter().any(|prefix| key.name.starts_with(prefix)) && key.name != "tpu";
        match key.status {
            Status::NoEffect(_) => assert!(without, "{}", key.name),
            Status::Used => assert!(!without, "{}", key.name),
            _ => {}
        }
    }
}

/// What a command means, without the places of its words.
fn meaning(site: &Site, line: &str) -> String {
    let Resolved { launch, script, layers, .. } = site.resolve(line);
    let layers: Vec<String> = layers
        .iter()
        .flat_map(|layer| &layer.entries)
        .map(|entry| format!("{}={}", entry.key, entry.value.to_yaml()))
        .collect();
    let program = match script {
        Script::Command(argv) => argv,
        Script::Training(_) => Vec::new(),
    };
    format!("{launch:?} {program:?} {layers:?}")
}

#[test]
fn every_flag_with_a_meaning_changes_what_is_started() {
    const GPUS: &str = "--multi_gpu --num_processes 2";
    const TWO: &str = "--multi_gpu --num_processes 4 --num_machines 2 --machine_rank 0 --main_process_ip h";
    const ZERO: &str = "--use_deepspeed --num_processes 2";
    const FSDP: &str = "--use_fsdp --num_processes 2";
    const PARALLEL: &str = "--use_fsdp --num_processes 2 --fsdp_version 2 --use_parallelism_config";
    let changes: &[(&str, &str)] = &[
        ("", "--config_file c.yaml"),
        (GPUS, "--quiet"),
        (GPUS, "--module"),
        (GPUS, "--no_python"),
        (GPUS, "--debug"),
        (GPUS, "--cpu"),
        ("--num_processes 1", "--use_deepspeed"),
        ("--num_processes 1", "--use_fsdp"),
        ("--num_processes 1", "--use_megatron_lm"),
        ("--config_file one.yaml", "--multi_gpu"),
        (GPUS, "--mixed_precision bf16"),
        (GPUS, "--num_processes 3"),
        ("--multi_gpu --num_processes 4 --machine_rank 0 --main_process_ip h", "--num_machines 2"),
        (GPUS, "--num_cpu_threads_per_process 3"),
        (GPUS, "--enable_cpu_affinity"),
        ("--use_fsdp --num_processes 2 --fsdp_version 2", "--use_parallelism_config"),
        (GPUS, "--gpu_ids 0,1"),
        (TWO, "--machine_rank 1"),
        (TWO, "--main_process_ip other"),
        (GPUS, "--main_process_port 1234"),
        (GPUS, "--tee 3"),
        (GPUS, "--log_dir logs"),
        (GPUS, "--role worker"),
        (TWO, "--rdzv_backend c10d"),
        (
            "--multi_gpu --num_processes 4 --num_machines 2 --machine_rank 0 --main_process_ip h --rdzv_backend c10d",
            "--rdzv_conf timeout=9",
        ),
        (GPUS, "--max_restarts 2"),
        (GPUS, "--monitor_interval 3"),
        (ZERO, "--deepspeed_config_file ./ds.json"),
        (ZERO, "--zero_stage 1"),
        (ZERO, "--offload_optimizer_device cpu"),
        (ZERO, "--offload_param_device cpu"),
        (ZERO, "--offload_optimizer_nvme_path p"),
        (ZERO, "--offload_param_nvme_path p"),
        (ZERO, "--gradient_accumulation_steps 2"),
        (ZERO, "--gradient_clipping 2"),
        (ZERO, "--zero3_save_16bit_model true"),
        (ZERO, "--zero3_init_flag true"),
        (ZERO, "--deepspeed_moe_layer_cls_names Experts"),
        (FSDP, "--fsdp_version 2"),
        (FSDP, "--fsdp_offload_params true"),
        (FSDP, "--fsdp_min_num_params 5"),
        (FSDP, "--fsdp_sharding_strategy NO_SHARD"),
        (FSDP, "--fsdp_reshard_after_forward false"),
        (FSDP, "--fsdp_auto_wrap_policy NO_WRAP"),
        (FSDP, "--fsdp_transformer_layer_cls_to_wrap Block"),
        (FSDP, "--fsdp_backward_prefetch NO_PREFETCH"),
        (FSDP, "--fsdp_state_dict_type FULL_STATE_DICT"),
        (FSDP, "--fsdp_forward_prefetch true"),
        (FSDP, "--fsdp_use_orig_params false"),
        (FSDP, "--fsdp_cpu_ram_efficient_loading false"),
        (FSDP, "--fsdp_sync_module_states false"),
        (FSDP, "--fsdp_activation_checkpointing true"),
        (FSDP, "--fsdp_activation_checkpointing_offload true"),
        (PARALLEL, "--parallelism_config_dp_replicate_size 2"),
        (PARALLEL, "--parallelism_config_dp_shard_size 2"),
        (PARALLEL, "--parallelism_config_tp_size 2"),
        (PARALLEL, "--parallelism_config_cp_size 2"),
        (PARALLEL, "--parallelism_config_cp_backend other"),
        (
            "--use_fsdp --num_processes 2 --fsdp_version 2 --use_parallelism_config --parallelism_config_cp_size 2",
            "--parallelism_config_cp_comm_strategy alltoall",
        ),
        (PARALLEL, "--parallelism_config_sp_size 2"),
        (PARALLEL, "--parallelism_config_sp_backend other"),
        (
            "--use_fsdp --num_processes 2 --use_parallelism_config --parallelism_config_sp_size 2",
            "--parallelism_config_sp_seq_length 64",
        ),
        (
            "--use_fsdp --num_processes 2 --use_parallelism_config --parallelism_config_sp_size 2",
            "--parallelism_config_sp_seq_length_is_variable False",
        ),
        (
            "--use_fsdp --num_processes 2 --use_parallelism_config --parallelism_config_sp_size 2",
            "--parallelism_config_sp_attn_implementation flash_attention_2",
        ),
    ];
    let site = Site::new(4);
    site.write("c.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n");
    site.write("one.yaml", "distributed_type: NO\nnum_processes: 1\n");
    let mut tested = Vec::new();
    for (base, flag) in changes {
        assert_ne!(
            meaning(&site, &format!("{base} env.py")),
            meaning(&site, &format!("{base} {flag} env.py")),
            "{flag}"
        );
        tested.push(flag.trim_start_matches('-').split(' ').next().unwrap());
    }
    // Where machines are known by their address they meet there, in one network or not; others start nothing here.
    // The command that the refusal of a multi-node launcher shows: tests/rules.rs.
    let further = [
        "same_network",
        "deepspeed_multinode_launcher",
        "deepspeed_hostfile",
        "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter",
    ];
    for key in FLAGS.iter().filter(|key| matches!(key.status, Status::Used)) {
        assert!(tested.contains(&key.name) || further.contains(&key.name), "--{} is not tested", key.name);
    }
    assert_eq!(
        meaning(&site, &format!("{TWO} --same_network env.py")),
        meaning(&site, &format!("{TWO} env.py"))
    );
}

#[test]
fn help_lists_what_the_table_has() {
    let help = LAUNCH.help();
    for name in documented() {
        assert!(help.contains(&format!("--{name}")), "{name}");
    }
}
