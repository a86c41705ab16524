//! Training runs of a model in the stages of a pipeline: the losses of one process, evaluation, checkpoints, answers at
//! the end.

use oarlock_tensor::cpu::difference::largest_difference_by;
use serde_json::Value;

use crate::common::{Site, run};

const TWO: [&str; 2] = ["pipeline_model_parallel_size=2", "gradient_accumulation_steps=4"];

fn losses(site: &Site, output: &str, key: &str) -> Vec<f64> {
    site.log(output).iter().filter_map(|record| record[key].as_f64()).collect()
}

#[test]
fn two_stages_train_evaluate_and_resume_as_one_process() {
    let site = Site::new();
    let common =
        ["per_device_train_batch_size=2", "val_size=6", "eval_strategy=steps", "eval_steps=5", "max_steps=6"];
    site.train("one", &[&common[..], &["num_processes=1", "gradient_accumulation_steps=4"]].concat());
    let saved = ["save_strategy=steps", "save_steps=4"];
    for (output, words) in [
        ("two", &["num_processes=2"][..]),
        ("interleaved", &["num_processes=2", "pipeline_schedule=interleaved"]),
        ("again", &["num_processes=2", "partition_method=type:decoderlayer"]),
    ] {
        site.train(output, &[&common[..], &TWO, &saved, words].concat());
        for key in ["loss", "eval_loss", "grad_norm"] {
            let (ours, theirs) = (losses(&site, output, key), losses(&site, "one", key));
            let far = largest_difference_by(&ours, &theirs, |a, b| (a - b).abs() / b).unwrap();
            assert!(!ours.is_empty() && far < 1e-4, "{output} {key}: {ours:?} {theirs:?}");
        }
    }
    // In half the steps with a checkpoint, and on from it in one process.
    let common_but_steps = &common[..4];
    let short = ["max_steps=4", "lr_scheduler_type=constant"];
    site.train("halves", &[common_but_steps, &TWO, &saved, &short, &["num_processes=2"]].concat());
    let rest =
        ["max_steps=6", "lr_scheduler_type=constant", "num_processes=1", "gradient_accumulation_steps=4"];
    site.train("halves", &[common_but_steps, &saved, &rest].concat());
    let constant = ["lr_scheduler_type=constant", "num_processes=1", "gradient_accumulation_steps=4"];
    site.train("whole", &[&common[..], &constant].concat());
    let last = |output| losses(&site, output, "loss").last().copied().unwrap();
    assert!((last("halves") - last("whole")).abs() < 1e-4, "{} {}", last("halves"), last("whole"));
}

#[test]
fn answers_are_generated_by_the_whole_model() {
    let site = Site::new();
    let row =
        |i: usize| format!("{{\"instruction\": \"Who was at the weir {i}?\", \"output\": \"the ferry\"}}");
    site.write("a.json", &format!("[{}]", (0..8).map(row).collect::<Vec<_>>().join(",\n")));
    let common = [
        "stage=sft",
        "template=default",
        "dataset=a.json",
        "eval_dataset=a.json",
        "cutoff_len=64",
        "max_steps=2",
        "per_device_train_batch_size=1",
        "predict_with_generate=true",
        "do_predict=true",
        "max_new_tokens=4",
        "num_processes=2",
        "temperature=0.01",
        "finetuning_type=lora",
        "lora_rank=4",
    ];
    site.train("plain", &[&common[..], &["gradient_accumulation_steps=2"]].concat());
    site.train("piped", &[&common[..], &TWO].concat());
    let answers = |output: &str| {
        let text = String::from_utf8(site.read(&format!("{output}/generated_predictions.jsonl"))).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(answers("piped").len(), 8);
    assert_eq!(answers("piped"), answers("plain"));
}

#[test]
fn what_does_not_go_with_stages_is_told_with_its_place() {
    let site = Site::new();
    let message = |words: &[&str]| {
        let said = run(site.training("refused", words));
        assert_ne!(said.code, Some(0), "{said:?}");
        said.stderr
    };
    site.write("ds.json", "{ \"zero_optimization\": { \"stage\": 2 } }");
    let text = message(&[&TWO[..], &["num_processes=2", "deepspeed=ds.json"]].concat());
    assert!(text.contains("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"), "{text}");
    let text = message(&[&TWO[..], &["num_processes=3"]].concat());
    assert!(text.contains("2 stages must divide the 3 ranks"), "{text}");
    let text = message(&[
        "pipeline_model_parallel_size=2",
        "num_processes=2",
        "num_virtual_stages=2",
        "gradient_accumulation_steps=3",
    ]);
    assert!(text.contains("in groups of as many as there are stages"), "{text}");
    let text = message(&[&TWO[..], &["num_processes=2", "partition_method=profile"]].concat());
    assert!(text.contains("write parameters, uniform or type:REGEX"), "{text}");
    let text = message(&["pp_degree=2"]);
    assert!(text.contains("pipeline_model_parallel_size"), "{text}");
}
