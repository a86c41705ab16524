//! The files of the guides, as small equivalents: each loads, says what it means, and prints its table.

use oarlock_tensor::DType;

use super::{Site, guide};

use crate::config::{Elems, Placement, ResolvedConfig};
use crate::launch::spec::Nodes;

const W: Placement = Placement::Whole;
const S: Placement = Placement::Sharded;

/// A folder in which the files of the guides lie.
fn site(gpus: usize) -> Site {
    let site = Site::new(gpus);
    for entry in std::fs::read_dir(guide("")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), site.path(entry.file_name().to_str().unwrap())).unwrap();
    }
    // Files name each other as seen from the working directory.
    let text = std::fs::read_to_string(guide("minimind_accelerate.yaml")).unwrap();
    site.write("minimind_accelerate.yaml", &text.replace("minimind_ds.json", &site.path("minimind_ds.json")));
    site
}

fn placements(config: &ResolvedConfig) -> [Placement; 3] {
    [config.shard.placements.optimizer, config.shard.placements.gradients, config.shard.placements.parameters]
}

/// A row of the table: a key's value and origin.
fn row(config: &ResolvedConfig, key: &str, folder: &str) -> String {
    let table = config.table().replace(&format!("{folder}/"), "");
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(key));
    line.unwrap_or_else(|| panic!("no row {key} in\n{table}"))
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn minimind_by_its_file() {
    let site = site(4);
    site.write(
        "train.yaml",
        "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: out\nper_device_train_batch_size: 24\n\
         gradient_accumulation_steps: 32\nlearning_rate: 2e-4\nmax_grad_norm: 1.0\nbf16: true\n\
         max_steps: 100\nwarmup_ratio: 0.1\n",
    );
    let line = "--config_file minimind_accelerate.yaml src/train.py train.yaml";
    let resolved = site.resolve(line);
    assert_eq!(resolved.launch.local_ranks(), 4);
    let config = site.plan(line);
    assert_eq!(placements(&config), [S, S, W]);
    assert_eq!(config.train.dtype, DType::BF16);
    assert_eq!((config.train.batch_size, config.train.accumulation), (24, 32));
    assert_eq!(config.ranks.num_processes, 4);
    let folder = site.folder.path().display().to_string();
    assert_eq!(row(&config, "bf16", &folder), "bf16 true minimind_accelerate.yaml:10");
    assert_eq!(row(&config, "num_processes", &folder), "num_processes 4 minimind_accelerate.yaml:12");
    assert_eq!(row(&config, "deepspeed", &folder), "deepspeed minimind_ds.json minimind_accelerate.yaml:5");
    for (key, expected) in [
        ("train_batch_size", "train_batch_size auto: 3072, batch x accumulation x ranks minimind_ds.json:2"),
        (
            "train_micro_batch_size_per_gpu",
            "train_micro_batch_size_per_gpu auto: 24, per_device_train_batch_size minimind_ds.json:3",
        ),
        ("gradient_clipping", "gradient_clipping auto: 1, max_grad_norm minimind_ds.json:5"),
        ("optimizer.params.lr", "optimizer.params.lr auto: 2e-4, learning_rate minimind_ds.json:8"),
        ("optimizer.params.betas", "optimizer.params.betas auto: 0.9, 0.999 minimind_ds.json:8"),
        ("bf16.enabled", "bf16.enabled auto: true, bf16 minimind_ds.json:20"),
        (
            "scheduler.params",
            "scheduler.params {warmup_min_lr: auto: 0, warmup_max_lr: auto: 2e-4, warmup_num_steps: auto: 10, \
             total_num_steps: auto: 100} minimind_ds.json:12",
        ),
    ] {
        assert_eq!(row(&config, key, &folder), expected);
    }
}

#[test]
fn sizes_follow_from_the_model() {
    let site = site(2);
    std::fs::create_dir(site.path("m")).unwrap();
    site.write("m/config.json", "{\"hidden_size\": 512}");
    let model = site.path("m");
    site.write("train.yaml", &format!("model_name_or_path: {model}\ndataset: d.jsonl\noutput_dir: out\n"));
    let line = "--use_deepspeed --num_processes 2 --deepspeed_config_file teacher_zero3.json src/train.py train.yaml";
    let config = site.plan(line);
    let folder = site.folder.path().display().to_string();
    for (key, expected) in [
        ("reduce_bucket_size", "auto: 262144, h x h"),
        ("stage3_prefetch_bucket_size", "auto: 235929, 0.9 x h x h"),
        ("stage3_param_persistence_threshold", "auto: 5120, 10 x h"),
        ("stage3_max_live_parameters", "auto: 1e9"),
    ] {
        let key = format!("zero_optimization.{key}");
        let found = row(&config, &key, &folder);
        assert!(found.starts_with(&format!("{key} {expected} teacher_zero3.json:")), "{found}");
    }
}

#[test]
fn minimind_by_flags_uses_the_file_of_deepspeed_and_says_what_accelerate_does() {
    let site = site(4).variables(&[("CUDA_VISIBLE_DEVICES", "0,1,2,3")]);
    let line = "--multi_gpu --num_processes=4 --mixed_precision=bf16 --main_process_port=29500 \
                --deepspeed_config_file minimind_ds.json src/train.py train.yaml";
    let resolved = site.resolve(line);
    let note = resolved.notes.iter().find(|note| note.contains("--deepspeed_config_file")).unwrap();
    assert!(
        note.contains("Accelerate divides nothing and never reads the flag without --use_deepspeed"),
        "{note}"
    );
    let config = site.plan(line);
    assert_eq!(placements(&config), [S, S, W]);
    assert_eq!(config.train.dtype, DType::BF16);
    assert!(config.table().contains("minimind_ds.json"), "{}", config.table());
}

#[test]
fn one_machine_of_eight() {
    let site = site(8);
    let line = "--config_file single_node.yaml src/train.py train.yaml";
    let resolved = site.resolve(line);
    assert_eq!(resolved.launch.nodes, Nodes::Static { ranks: vec![8], this: 0 });
    let idle = resolved.notes.iter().find(|note| note.starts_with("accepted without meaning here")).unwrap();
    for name in ["downcast_bf16", "main_training_function", "tpu_env", "tpu_use_cluster", "tpu_use_sudo"] {
        assert!(idle.contains(name), "{idle}");
    }
    let config = site.plan(line);
    assert_eq!(placements(&config), placements(&Site::new(1).plan("src/train.py train.yaml")));
    assert_eq!((config.train.dtype, config.ranks.num_processes), (DType::F16, 8));
}

#[test]
fn two_machines_of_eight_are_known_by_rank() {
    for this in [0, 1] {
        let site = site(8);
        let line = format!("--config_file multi_node.yaml --machine_rank {this} env.py llm_config.yaml");
        let resolved = site.resolve(&line);
        assert_eq!(resolved.launch.nodes, Nodes::Static { ranks: vec![8, 8], this });
        assert_eq!(
            (resolved.launch.master.addr.as_str(), resolved.launch.master.port),
            ("192.168.0.1", 29500)
        );
        assert_eq!(resolved.launch.worker(1, 7).rank(), 15);
    }
}

#[test]
fn stage_3_on_two_machines_without_a_file_of_deepspeed() {
    let site = site(8);
    let config = site.plan("--config_file deepspeed_multi_node.yaml src/train.py train.yaml");
    assert_eq!(placements(&config), [S, S, S]);
    assert_eq!(config.train.accumulation, 8);
    assert_eq!((config.train.dtype, config.ranks.num_processes), (DType::F16, 16));
    assert!(config.shard.offload_optimizer.is_none() && config.shard.offload_params.is_none());
    let folder = site.folder.path().display().to_string();
    let expected = "gradient_accumulation_steps 8 deepspeed_multi_node.yaml:5";
    assert_eq!(row(&config, "gradient_accumulation_steps", &folder), expected);
    assert!(config.table().contains("deepspeed_multi_node.yaml:9"), "{}", config.table());
}

#[test]
fn fsdp_by_its_file() {
    let site = site(2);
    let config = site.plan("--config_file fsdp.yaml src/train.py train.yaml");
    assert_eq!(placements(&config), [S, S, S]);
    assert_eq!(config.shard.offload_params, None);
    assert_eq!((config.train.dtype, config.ranks.num_processes), (DType::F16, 2));
    for (line, expected) in [
        ("--fsdp_sharding_strategy SHARD_GRAD_OP", [S, S, S]),
        ("--fsdp_sharding_strategy NO_SHARD", [W, W, W]),
        ("--fsdp_version 2 --fsdp_reshard_after_forward false", [S, S, S]),
    ] {
        let config = site.plan(&format!("--config_file fsdp.yaml {line} src/train.py train.yaml"));
        assert_eq!(placements(&config), expected, "{line}");
    }
}

#[test]
fn every_file_of_deepspeed_goes_with_a_launch() {
    for (name, expected) in [
        ("ds_z0.json", [W, W, W]),
        ("ds_z2.json", [S, S, W]),
        ("ds_z2_offload.json", [S, S, W]),
        ("ds_z3.json", [S, S, S]),
        ("ds_z3_offload.json", [S, S, S]),
        ("student_zero2.json", [S, S, W]),
        ("teacher_zero3.json", [S, S, S]),
        ("zero_as_a_switch.json", [S, W, W]),
    ] {
        let site = site(4);
        let line = format!(
            "--use_deepspeed --num_processes 4 --deepspeed_config_file {name} src/train.py train.yaml"
        );
        let config = site.plan(&line);
        assert_eq!(placements(&config), expected, "{name}");
        let said = |what: &str| config.notes().iter().any(|note| note.contains(&format!("{what} to cpu")));
        assert_eq!(said("offload_optimizer"), name.contains("offload") || name.contains("student"));
        assert_eq!(said("offload_param"), name == "ds_z3_offload.json");
        assert!(config.table().contains(name), "{name}: {}", config.table());
        match name {
            // What Accelerate cannot resolve.
            "teacher_zero3.json" => {
                assert_eq!(config.shard.max_live_elems, Elems::Count(1_000_000_000));
                assert_eq!(config.shard.prefetch_elems, Elems::NineTenthsOfHiddenSquared);
                assert_eq!(config.shard.persistence_elems, Elems::TenHidden);
                assert_eq!(config.train.batch_size, 1);
            }
            "zero_as_a_switch.json" => {
                assert_eq!((config.train.batch_size, config.train.dtype), (2, DType::F16));
            }
            "student_zero2.json" => assert_eq!(config.shard.reduce_bucket_elems, Elems::HiddenSquared),
            _ => {}
        }
    }
}
