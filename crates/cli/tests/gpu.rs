//! Training runs and text on a GPU over fake libraries of CUDA, beside the CPU.

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;

use crate::common::{Site, run};

/// The folder of the fake libraries; none where there is no C++ compiler, as each test says that finds none.
pub fn fakes() -> Option<&'static PathBuf> {
    static FAKES: OnceLock<PathBuf> = OnceLock::new();
    match FAKES.get() {
        Some(fakes) => Some(fakes),
        None => oarlock_fakes::shared_fakes(env!("CARGO_TARGET_TMPDIR").as_ref(), &["32", "64"])
            .unwrap()
            .map(|made| FAKES.get_or_init(|| made)),
    }
}

/// Runs a command over the fake libraries, which must succeed; what it says on stdout.
pub fn on_gpu(site: &Site, words: &[&str]) -> String {
    on_gpu_with(site, words, &[])
}

/// The same with these variables.
pub fn on_gpu_with(site: &Site, words: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = site.oarlock(words);
    command.envs(variables.iter().copied());
    command.env("OARLOCK_CUDA_LIBRARIES", fakes().unwrap()).env("XDG_CACHE_HOME", site.path("cache"));
    // Each tensor has memory of its own, so that the fake driver counts it, and sees what goes beyond.
    command.env("OARLOCK_FAKE_PEAKS", site.path("peaks")).env("OARLOCK_NO_CUDA_MEMORY_CACHING", "1");
    let said = run(command);
    assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
    said.stdout
}

/// The losses of a training run by its log.
pub fn losses(site: &Site, output: &str) -> Vec<f64> {
    let log = String::from_utf8(site.read(&format!("{output}/trainer_log.jsonl"))).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

/// Trains on both devices with these settings and compares the losses.
pub fn compare(site: &Site, name: &str, settings: &[&str], bound: f64) {
    let [cpu, cuda] = ["cpu", "cuda"].map(|device| {
        let (output, device_is) = (format!("{name} {device}"), format!("device={device}"));
        let output_is = format!("output_dir={output}");
        let words = [&["train", "train.yaml", "max_steps=4", &device_is, &output_is], settings].concat();
        let said = on_gpu(site, &words);
        assert_eq!(said.contains("Emulated H100"), device == "cuda", "{said}");
        assert!(!said.contains("without a form for the GPU"), "{said}");
        let has_two_gpus = device == "cuda" && !settings.contains(&"num_processes=1");
        assert_eq!(said.contains("collectives by NCCL 2."), has_two_gpus, "{said}");
        losses(site, &output)
    });
    assert_eq!((cpu.len(), cuda.len()), (4, 4), "{name}: {cpu:?} {cuda:?}");
    assert_ne!(cpu[0], cpu[3], "{name}: nothing is learned");
    for (step, (a, b)) in cpu.iter().zip(&cuda).enumerate() {
        assert!((a - b).abs() <= bound, "{name}, step {step}: {a} on the CPU, {b} on the GPU");
    }
}

#[test]
#[ignore = "heavy"]
fn a_training_follows_the_cpus_losses_in_every_placement() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    compare(&site, "one rank", &["num_processes=1"], 1e-5);
    compare(&site, "bf16", &["num_processes=1", "bf16=true"], 1e-3);
    for stage in ["0", "1", "2", "3"] {
        let zero = format!(r#"deepspeed={{"zero_optimization":{{"stage":{stage}}}}}"#);
        compare(&site, &format!("zero {stage}"), &[&zero], 1e-5);
    }
    compare(&site, "accumulation", &["gradient_accumulation_steps=2"], 1e-5);
    compare(&site, "zero 3 in bf16", &[r#"deepspeed={"zero_optimization":{"stage":3}}"#, "bf16=true"], 1e-3);
    compare(&site, "fsdp", &["fsdp=full_shard auto_wrap", "gradient_accumulation_steps=2"], 1e-5);
    compare(&site, "hybrid", &[r#"deepspeed={"zero_optimization":{"stage":3,"mics_shard_size":1}}"#], 1e-5);
}

/// Models of which one product makes queries, keys and values on a GPU: of layers with biases, and of layers that are one.
#[test]
fn models_with_biases_and_with_fused_layers_follow_the_cpus_losses() {
    if fakes().is_none() {
        return;
    }
    let config = |kind: &str, class: &str, more: &str| {
        format!(
            r#"{{"architectures": ["{class}ForCausalLM"], "model_type": "{kind}", "vocab_size": 320, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
            "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32"{more}}}"#
        )
    };
    let scratch = ["num_processes=1", "train_from_scratch=true"];
    let site = Site::new();
    site.write("model/config.json", &config("phi3", "Phi3", r#", "pad_token_id": 0"#));
    compare(&site, "fused layers", &scratch, 1e-5);
    site.write("model/config.json", &config("qwen2", "Qwen2", r#", "tie_word_embeddings": true"#));
    compare(&site, "biases", &[&scratch[..], &["save_steps=2", "save_strategy=steps"]].concat(), 1e-5);
    // The order in memory is the GPU's own: a checkpoint of the CPU goes on there.
    std::fs::remove_dir_all(site.path("biases cpu/checkpoint-4")).unwrap();
    let more = [
        "device=cuda",
        "max_steps=4",
        "output_dir=resumed",
        "resume_from_checkpoint=biases cpu/checkpoint-2",
    ];
    on_gpu(&site, &[&["train", "train.yaml"][..], &scratch, &more].concat());
    let (whole, resumed) = (losses(&site, "biases cpu"), losses(&site, "resumed"));
    assert_eq!(resumed.len(), 2, "{resumed:?}");
    for (want, got) in whole[2..].iter().zip(&resumed) {
        assert!((want - got).abs() <= 1e-5, "{whole:?} on the CPU, {resumed:?} on the GPU from step 2 on");
    }
}

#[test]
fn ranks_with_a_gpu_each_go_on_from_their_checkpoint() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let zero = r#"deepspeed={"zero_optimization":{"stage":3}}"#;
    let train = |output: &str, more: &[&str]| {
        let output = format!("output_dir={output}");
        let words = [
            "train",
            "train.yaml",
            "device=cuda",
            "max_steps=4",
            "save_steps=2",
            "save_strategy=steps",
            zero,
        ];
        on_gpu(&site, &[&words[..], &[&output], more].concat())
    };
    train("whole", &[]);
    train("parts", &[]);
    std::fs::remove_dir_all(site.path("parts/checkpoint-4")).unwrap();
    let resumed = train("parts", &["resume_from_checkpoint=parts/checkpoint-2"]);
    assert!(resumed.contains("step 3/4") && !resumed.contains("step 2/4"), "{resumed}");
    assert_eq!(site.read("whole/model.safetensors"), site.read("parts/model.safetensors"));
}

#[test]
fn adapters_train_and_a_run_goes_on_from_its_checkpoint() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let lora = ["finetuning_type=lora", "lora_rank=4", "lora_target=all", "num_processes=1"];
    compare(&site, "lora", &lora, 1e-5);
    let quantized = ["quantization_bit=4", "double_quantization=true", "lora_dropout=0.2"];
    compare(&site, "quantized, with dropout", &[&lora[..], &quantized].concat(), 1e-5);
    compare(&site, "adafactor", &["optim=adafactor", "num_processes=1"], 1e-5);
    let train = |output: &str, steps: &str| {
        let output = format!("output_dir={output}");
        on_gpu(
            &site,
            &[
                "train",
                "train.yaml",
                "device=cuda",
                "num_processes=1",
                "save_steps=2",
                "save_strategy=steps",
                steps,
                &output,
            ],
        );
    };
    train("whole", "max_steps=4");
    // The first half, with the learning rates of the whole.
    train("parts", "max_steps=4");
    std::fs::remove_dir_all(site.path("parts/checkpoint-4")).unwrap();
    let resumed = on_gpu(
        &site,
        &[
            "train",
            "train.yaml",
            "device=cuda",
            "num_processes=1",
            "save_strategy=no",
            "max_steps=4",
            "output_dir=parts",
            "resume_from_checkpoint=parts/checkpoint-2",
        ],
    );
    assert!(resumed.contains("step 3/4") && !resumed.contains("step 2/4"), "{resumed}");
    assert_eq!(site.read("whole/model.safetensors"), site.read("parts/model.safetensors"));
}

#[test]
fn text_is_that_of_the_cpu() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let text = |device: &str| {
        let words = ["generate", "--model", "model", "--prompt", "the ferry", "--temperature", "0"];
        on_gpu(&site, &[&words[..], &["--max-new-tokens", "6", "--device", device]].concat())
    };
    assert_eq!(text("cuda"), text("cpu"));
}

#[test]
fn where_no_gpu_is_the_error_says_what_is_missing() {
    let site = Site::new();
    std::fs::create_dir(site.path("nothing")).unwrap();
    let mut command =
        site.oarlock(&["train", "train.yaml", "device=cuda", "output_dir=out", "num_processes=1"]);
    command.env("OARLOCK_CUDA_LIBRARIES", site.path("nothing"));
    let said = run(command);
    assert_ne!(said.code, Some(0), "{said:?}");
    let error = said.stderr;
    assert!(
        error.contains("libcuda") && error.contains("was not found") && error.contains("nothing"),
        "{error}"
    );
}
