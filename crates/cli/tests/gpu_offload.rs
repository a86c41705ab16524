//! Training runs on a GPU whose state lies in main memory or in files, over fake libraries of CUDA.

use crate::common::Site;
use crate::gpu::{fakes, losses, on_gpu};

/// What a training run leaves.
struct Run {
    losses: Vec<f64>,
    weights: Vec<u8>,
    /// The most bytes of device memory that a rank had.
    peak_bytes: usize,
}

/// Trains for four steps on a device.
fn train(site: &Site, device: &str, name: &str, settings: &[&str]) -> Run {
    let [device_is, output_is] = [format!("device={device}"), format!("output_dir={name}")];
    // The peaks of this run alone.
    std::fs::write(site.path("peaks"), "").unwrap();
    let anew = "overwrite_output_dir=true";
    let words = [&["train", "train.yaml", "max_steps=4", &device_is, &output_is, anew], settings].concat();
    let said = on_gpu(site, &words);
    let is_noted = said.contains("which have it in main memory anyway") || device == "cuda";
    assert!(is_noted && !(device == "cuda" && said.contains("CPU processes")), "{said}");
    let peaks = String::from_utf8(site.read("peaks")).unwrap();
    let peak_bytes = peaks.lines().filter_map(|line| line.split(' ').nth(1)?.parse().ok()).max();
    let weights = site.read(&format!("{name}/model.safetensors"));
    Run { losses: losses(site, name), weights, peak_bytes: peak_bytes.unwrap_or(0) }
}

/// DeepSpeed's block for a stage with these further words.
fn zero(stage: u8, words: &str) -> String {
    format!(r#"deepspeed={{"zero_optimization":{{"stage":{stage},"sub_group_size":3000{words}}}}}"#)
}

const OPTIMIZER_TO_CPU: &str = r#","offload_optimizer":{"device":"cpu"}"#;

#[track_caller]
fn assert_near(name: &str, cpu: &Run, gpu: &Run, bound: f64) {
    assert_eq!((cpu.losses.len(), gpu.losses.len()), (4, 4), "{name}");
    for (step, (a, b)) in cpu.losses.iter().zip(&gpu.losses).enumerate() {
        assert!((a - b).abs() <= bound, "{name}, step {step}: {a} on the CPU, {b} on the GPU");
    }
}

#[test]
#[ignore = "heavy"]
fn the_cpu_updates_what_a_gpu_trains() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    for (ranks, stage) in [("1", 3), ("2", 1), ("2", 2), ("2", 3)] {
        let (name, offload) = (format!("{ranks} ranks, ZeRO-{stage}"), zero(stage, OPTIMIZER_TO_CPU));
        let ranks = format!("num_processes={ranks}");
        let settings = [offload.as_str(), &ranks];
        let cpu = train(&site, "cpu", &format!("{name} cpu"), &settings);
        let gpu = train(&site, "cuda", &format!("{name} cuda"), &settings);
        assert_near(&name, &cpu, &gpu, 1e-5);
    }
}

#[test]
fn state_in_main_memory_is_not_in_the_gpus() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let run = |name: &str, words: &str, more: &[&str]| {
        let block = zero(2, words);
        train(&site, "cuda", name, &[&[block.as_str(), "num_processes=1"], more].concat())
    };
    let n_params = n_params(&site);
    let (there, offloaded) = (run("there", "", &[]), run("offloaded", OPTIMIZER_TO_CPU, &[]));
    // Two moments of each parameter.
    let saved = there.peak_bytes - offloaded.peak_bytes;
    assert!((8 * n_params..9 * n_params).contains(&saved), "{saved} bytes of {n_params} parameters");
    assert_near("f32", &there, &offloaded, 1e-5);
    let half = ["bf16=true"];
    let (there, offloaded) = (run("there", "", &half), run("offloaded", OPTIMIZER_TO_CPU, &half));
    // And the weights in f32, but for five norms, which the GPU has in f32.
    let saved = there.peak_bytes - offloaded.peak_bytes + 5 * 32 * 4;
    assert!((12 * n_params..13 * n_params).contains(&saved), "{saved} bytes of {n_params} parameters");
    assert_near("bf16", &there, &offloaded, 1e-2);
}

/// The parameters of the model, by its file.
fn n_params(site: &Site) -> usize {
    let file = site.read("model/model.safetensors");
    let header = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    (file.len() - 8 - header) / 4
}

#[test]
#[ignore = "heavy"]
fn offloaded_state_has_the_same_bits_in_all_places_and_after_a_checkpoint() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let nvme = format!(
        r#","offload_optimizer":{{"device":"nvme","nvme_path":"{}","buffer_count":3}}"#,
        site.path("nvme").display()
    );
    for ranks in ["num_processes=1", "num_processes=2"] {
        let memory = train(&site, "cuda", "memory", &[&zero(2, OPTIMIZER_TO_CPU), ranks]);
        let files = train(&site, "cuda", "files", &[&zero(2, &nvme), ranks]);
        assert_eq!(memory.losses, files.losses);
        assert!(memory.weights == files.weights, "{ranks}: the bits depend on where the state lies");
        if ranks == "num_processes=1" {
            let large = zero(2, OPTIMIZER_TO_CPU).replace("3000", "1e9");
            let large = train(&site, "cuda", "large", &[&large, ranks]);
            assert!(memory.weights == large.weights, "the bits depend on the size of the pieces");
        }
        let saves = ["save_strategy=steps", "save_steps=2"];
        let block = zero(2, OPTIMIZER_TO_CPU);
        let output = format!("parts {ranks}");
        train(&site, "cuda", &output, &[&[block.as_str(), ranks], &saves[..]].concat());
        std::fs::remove_dir_all(site.path(&format!("{output}/checkpoint-4"))).unwrap();
        let from = format!("resume_from_checkpoint={output}/checkpoint-2");
        let resumed = train(&site, "cuda", &output, &[block.as_str(), ranks, "save_strategy=no", &from]);
        assert!(memory.weights == resumed.weights, "{ranks}: a resumed run has other bits");
    }
}

#[test]
#[ignore = "heavy"]
fn parameters_come_from_where_they_lie_when_they_are_used() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let nvme = format!(
        r#","offload_optimizer":{{"device":"cpu"}},"offload_param":{{"device":"nvme","nvme_path":"{}"}}"#,
        site.path("nvme").display()
    );
    const SMALL: &str = r#","stage3_param_persistence_threshold":0"#;
    let param = r#","offload_param":{"device":"cpu"}"#;
    for ranks in ["num_processes=1", "num_processes=2"] {
        let run = |device: &str, name: &str, words: &str| {
            train(&site, device, name, &[&zero(3, &format!("{SMALL}{words}")), ranks])
        };
        let cpu = run("cpu", "cpu", param);
        // The GPU updates weights that come and go.
        let alone = run("cuda", "parameters", param);
        assert_near(ranks, &cpu, &alone, 1e-5);
        let both = run("cuda", "both", &format!("{OPTIMIZER_TO_CPU}{param}"));
        assert_near(ranks, &cpu, &both, 1e-5);
        let files = run("cuda", "files", &nvme);
        assert!(both.weights == files.weights, "{ranks}: the bits depend on where the parameters lie");
    }
    let run = |name: &str, words: &str, more: &[&str]| {
        let block = zero(3, &format!(r#"{SMALL},"stage3_prefetch_bucket_size":0{words}"#));
        train(&site, "cuda", name, &[&[block.as_str(), "num_processes=1"], more].concat())
    };
    let (there, away) = (run("there", "", &[]), run("away", param, &[]));
    assert!(away.peak_bytes < there.peak_bytes, "{} bytes, {} without", away.peak_bytes, there.peak_bytes);
}

#[test]
fn fsdp_offloads_both_kinds_of_state() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let settings = ["fsdp=full_shard offload", "num_processes=2", "bf16=true"];
    let [cpu, gpu] = ["cpu", "cuda"].map(|device| train(&site, device, device, &settings));
    assert_near("bf16", &cpu, &gpu, 1e-2);
}

#[test]
fn kept_inputs_wait_in_main_memory() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let block = |is_on: bool| {
        format!(
            r#"deepspeed={{"zero_optimization":{{"stage":2}},"activation_checkpointing":{{"number_checkpoints":2,"cpu_checkpointing":{is_on}}}}}"#
        )
    };
    let run = |is_on: bool| {
        let (block, output) = (block(is_on), format!("output_dir={is_on}"));
        let said = on_gpu(
            &site,
            &["train", "train.yaml", "max_steps=4", "num_processes=1", "device=cuda", &output, &block],
        );
        assert!(!said.contains("cpu_checkpointing"), "{said}");
        (losses(&site, &is_on.to_string()), site.read(&format!("{is_on}/model.safetensors")))
    };
    let (there, away) = (run(false), run(true));
    assert_eq!((there.0.len(), &there.0), (4, &away.0));
    assert!(there.1 == away.1, "the bits depend on where inputs wait");
}
