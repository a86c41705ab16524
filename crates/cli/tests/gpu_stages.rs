//! Stages beyond pretraining, half precision and transports by name on the fake libraries of CUDA, beside the CPU.

use crate::common::Site;
use crate::gpu::{compare, fakes, losses, on_gpu, on_gpu_with};
use crate::preference::{scores, site};

const DATA: [&str; 5] = [
    "dataset_dir=.",
    "template=default",
    "cutoff_len=56",
    "per_device_train_batch_size=3",
    "learning_rate=1e-3",
];
const ALONE: &str = "num_processes=1";
const ZERO_3: &str = r#"deepspeed={"zero_optimization":{"stage":3}}"#;

#[test]
#[ignore = "heavy"]
fn preferences_and_rewards_follow_the_cpus_losses() {
    if fakes().is_none() {
        return;
    }
    let site = site();
    let lora = [ALONE, "finetuning_type=lora", "lora_rank=4", "lora_target=all"];
    for (name, stage, settings) in [
        ("dpo", ["stage=dpo", "dataset=pairs"], &[ALONE][..]),
        ("dpo lora", ["stage=dpo", "dataset=pairs"], &lora),
        ("dpo zero 3", ["stage=dpo", "dataset=pairs"], &[ZERO_3]),
        ("kto", ["stage=kto", "dataset=judged"], &[ALONE]),
        ("kto zero 3", ["stage=kto", "dataset=judged"], &[ZERO_3]),
        ("rm", ["stage=rm", "dataset=pairs"], &[ALONE]),
        ("rm zero 3", ["stage=rm", "dataset=pairs"], &[ZERO_3]),
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
    let reward = ["train", "train.yaml", "stage=rm", "dataset=pairs", ALONE];
    let trains = ["device=cuda", "max_steps=4", "output_dir=reward"];
    on_gpu(&site, &[&reward[..], &trains, &DATA].concat());
    let [cpu, cuda] = ["cpu", "cuda"].map(|device| {
        let (device_is, output) = (format!("device={device}"), format!("output_dir=scores {device}"));
        let model = ["eval_dataset=pairs", "do_train=false", "do_predict=true", "model_name_or_path=reward"];
        on_gpu(&site, &[&reward[..], &model, &[&device_is, &output], &DATA].concat());
        scores(&site, &format!("scores {device}"))
    });
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
    compare(&site, "fp16", &[ALONE, "fp16=true"], 2e-3);
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
    let [nccl, shm] = ["nccl", "shm"].map(|output| {
        let output_dir = format!("output_dir={output}");
        let words = ["train", "train.yaml", "device=cuda", "max_steps=4", ZERO_3, &output_dir];
        let named = [("OARLOCK_TRANSPORT", "shm")];
        let is_named = output == "shm";
        let said = on_gpu_with(&site, &words, if is_named { &named } else { &[] });
        assert_eq!(said.contains("collectives by NCCL 2."), !is_named, "{said}");
        losses(&site, output)
    });
    assert_eq!((nccl.len(), shm.len()), (4, 4), "{nccl:?} {shm:?}");
    for (a, b) in nccl.iter().zip(&shm) {
        assert!((a - b).abs() <= 1e-5, "{nccl:?} by NCCL, {shm:?} in shared memory");
    }
}
