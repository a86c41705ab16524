//! Stages beyond pretraining, half precision and transports by name on the fake libraries of CUDA, beside the CPU.

use std::fs;

use crate::common::{Site, golden};
use crate::gpu::{fakes, losses, on_gpu, on_gpu_with};

/// A site with conversations, pairs and unpaired preferences.
fn site() -> Site {
    let site = Site::new();
    for name in ["pairs.jsonl", "judged.jsonl", "dataset_info.json"] {
        fs::copy(golden().with_file_name("preference").join(name), site.path(name)).unwrap();
    }
    site
}

const DATA: [&str; 5] = [
    "dataset_dir=.",
    "template=default",
    "cutoff_len=56",
    "per_device_train_batch_size=3",
    "learning_rate=1e-3",
];

/// Trains four steps on this device with these settings; its losses and what it said.
fn trained(
    site: &Site,
    name: &str,
    device: &str,
    settings: &[&str],
    variables: &[(&str, &str)],
) -> (Vec<f64>, String) {
    let output = format!("{name} {device}");
    let (device, output_dir) = (format!("device={device}"), format!("output_dir={output}"));
    let words = [&["train", "train.yaml", "max_steps=4", "logging_steps=1", &device, &output_dir], settings];
    let said = on_gpu_with(site, &words.concat(), variables);
    assert_eq!(said.contains("Emulated H100"), device == "device=cuda", "{name}: {said}");
    assert!(!said.contains("without a form for the GPU"), "{name}: {said}");
    (losses(site, &output), said)
}

/// The losses of both devices differ by at most this.
fn compare(site: &Site, name: &str, settings: &[&str], bound: f64) {
    let [cpu, cuda] = ["cpu", "cuda"].map(|device| trained(site, name, device, settings, &[]).0);
    assert_eq!((cpu.len(), cuda.len()), (4, 4), "{name}: {cpu:?} {cuda:?}");
    assert_ne!(cpu[0], cpu[3], "{name}: nothing is learned");
    for (step, (a, b)) in cpu.iter().zip(&cuda).enumerate() {
        assert!((a - b).abs() <= bound, "{name}, step {step}: {a} on the CPU, {b} on the GPU");
    }
}

#[test]
fn preferences_and_rewards_follow_the_cpus_losses() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    let zero3 = r#"deepspeed={"zero_optimization":{"stage":3}}"#;
    let lora = ["finetuning_type=lora", "lora_rank=4", "lora_target=all"];
    for (name, stage, settings) in [
        ("dpo", ["stage=dpo", "dataset=pairs"], &["num_processes=1"][..]),
        ("dpo lora", ["stage=dpo", "dataset=pairs"], &[&["num_processes=1"][..], &lora].concat()),
        ("dpo zero 3", ["stage=dpo", "dataset=pairs"], &[zero3]),
        ("kto", ["stage=kto", "dataset=judged"], &["num_processes=1"]),
        ("kto zero 3", ["stage=kto", "dataset=judged"], &[zero3]),
        ("rm", ["stage=rm", "dataset=pairs"], &["num_processes=1"]),
        ("rm zero 3", ["stage=rm", "dataset=pairs"], &[zero3]),
    ] {
        compare(&site, name, &[&DATA[..], &stage, settings].concat(), 1e-5);
    }
}

/// A reward model of the GPU gives pairs the scores that the CPU gives them.
#[test]
fn a_reward_model_of_the_gpu_scores_as_on_the_cpu() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    let reward = ["stage=rm", "dataset=pairs", "num_processes=1"];
    trained(&site, "reward", "cuda", &[&DATA[..], &reward].concat(), &[]);
    let scores = |device: &str| {
        let (device_is, output) = (format!("device={device}"), format!("output_dir=scores {device}"));
        let score = [
            "train",
            "train.yaml",
            "stage=rm",
            "dataset=pairs",
            "eval_dataset=pairs",
            "do_train=false",
            "do_predict=true",
            "num_processes=1",
            "model_name_or_path=reward cuda",
            &device_is,
            &output,
        ];
        on_gpu(&site, &[&score[..], &DATA].concat());
        let text =
            String::from_utf8(site.read(&format!("scores {device}/generated_predictions.jsonl"))).unwrap();
        let rows = text.lines().map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            ["chosen", "rejected"].map(|answer| row[answer].as_f64().unwrap())
        });
        rows.collect::<Vec<_>>()
    };
    let (cpu, cuda) = (scores("cpu"), scores("cuda"));
    assert!(!cpu.is_empty() && cpu.len() == cuda.len(), "{cpu:?} {cuda:?}");
    for (a, b) in cpu.iter().flatten().zip(cuda.iter().flatten()) {
        assert!((a - b).abs() <= 1e-4, "{cpu:?} on the CPU, {cuda:?} on the GPU");
    }
}

#[test]
fn half_precision_with_its_loss_scale_follows_the_cpus_losses() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    compare(&site, "fp16", &["num_processes=1", "fp16=true"], 2e-3);
    let scaled =
        r#"deepspeed={"fp16":{"enabled":true,"initial_scale_power":8},"zero_optimization":{"stage":2}}"#;
    compare(&site, "fp16 zero 2", &[scaled], 2e-3);
}

/// NCCL is taken where each rank has a GPU of its own; a transport that is named instead gives the same run.
#[test]
fn transports_by_name_carry_gradients_of_gpus() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let zero3 = r#"deepspeed={"zero_optimization":{"stage":3}}"#;
    let (nccl, said) = trained(&site, "nccl", "cuda", &[zero3], &[]);
    assert!(said.contains("collectives by NCCL 2."), "{said}");
    let (shm, said) = trained(&site, "shm", "cuda", &[zero3], &[("OARLOCK_TRANSPORT", "shm")]);
    assert!(!said.contains("collectives by NCCL"), "{said}");
    assert_eq!((nccl.len(), shm.len()), (4, 4), "{nccl:?} {shm:?}");
    for (a, b) in nccl.iter().zip(&shm) {
        assert!((a - b).abs() <= 1e-5, "{nccl:?} by NCCL, {shm:?} in shared memory");
    }
}
