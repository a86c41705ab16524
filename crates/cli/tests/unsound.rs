//! Runs that come to nothing, although no step fails: they end in an error that says so, and never in success.

use std::fs;

use crate::common::{CommandOutput, Site, run, weights::change};
use serde_json::Value;

const WEIGHT: &str = "model.layers.1.mlp.up_proj.weight";
const F16: [&str; 3] = ["num_processes=1", "fp16=true", "max_steps=3"];

/// A model that f16 can hold, and cannot compute.
fn beyond_f16() -> Site {
    let site = Site::new();
    change(&site.path("model/model.safetensors"), WEIGHT, |values| values.fill(6e4));
    site
}

fn ended(said: &CommandOutput) -> String {
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(!said.stdout.contains("done:"), "{said:?}");
    // Messages are wrapped where a terminal is narrow.
    said.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_training_without_a_step_that_changed_a_weight_is_none() {
    let site = beyond_f16();
    for (output, words) in [
        ("dynamic", &F16[..]),
        ("two", &["num_processes=2", "fp16=true", "max_steps=3"]),
        ("fixed", &["num_processes=1", "max_steps=20", "deepspeed=fixed.json", "fp16=true"]),
    ] {
        site.write(
            "fixed.json",
            r#"{"fp16": {"enabled": true, "loss_scale": 128}, "zero_optimization": {"stage": 0}}"#,
        );
        let said = run(site.training(output, words));
        let text = ended(&said);
        assert!(text.contains("nothing was trained: all"), "{output}: {text}");
        assert!(
            text.contains("steps were skipped, because their gradients were not finite in f16"),
            "{text}"
        );
        assert!(!site.path(output).join("model.safetensors").exists(), "{output}");
    }
    // The same model trains in bf16, and where it was trained before, a skipped step is none.
    let said = site.train("bf16", &["num_processes=1", "bf16=true", "max_steps=2"]);
    assert!(said.stdout.contains("done:"), "{said:?}");
}

#[test]
fn a_weight_that_f16_cannot_hold_is_named_before_the_training() {
    let site = Site::new();
    change(&site.path("model/model.safetensors"), WEIGHT, |values| values[9] = 1e6);
    let text = ended(&run(site.training("out", &F16)));
    assert!(text.contains(&format!("too large for f16 and would become infinite, so they are not computed with: \"{WEIGHT}\" (1 of 2560)")), "{text}");
    change(&site.path("model/model.safetensors"), WEIGHT, |values| values[9] = f32::NAN);
    for words in [&F16[..], &["num_processes=2", "bf16=true"], &["num_processes=1"]] {
        let text = ended(&run(site.training("out", words)));
        assert!(
            text.contains(&format!("\"{WEIGHT}\" holds 1 of 2560 elements that are NaN or infinite")),
            "{text}"
        );
    }
}

#[test]
fn an_evaluation_that_is_not_finite_is_told_and_fails_the_run() {
    let site = beyond_f16();
    for (output, words) in [
        ("only", &["num_processes=1", "fp16=true", "do_train=false", "do_eval=true", "val_size=4"][..]),
        ("two", &["num_processes=2", "fp16=true", "do_train=false", "do_eval=true", "val_size=4"]),
    ] {
        let said = run(site.training(output, words));
        let text = ended(&said);
        assert!(text.contains("results are not finite: evaluation at step 0: eval_loss is NaN"), "{text}");
        assert!(said.stdout.contains("warning: evaluation at step 0: eval_loss is NaN"), "{said:?}");
        assert!(said.stdout.contains("ended: nothing was trained"), "{said:?}");
    }
    let results: Value = serde_json::from_slice(&site.read("only/eval_results.json")).unwrap();
    assert_eq!(results["eval_loss"], Value::Null);
}

#[test]
fn scores_that_are_not_finite_fail_the_run() {
    let site = beyond_f16();
    for name in ["pairs.jsonl", "dataset_info.json"] {
        let from = crate::common::golden().with_file_name("preference").join(name);
        fs::copy(from, site.path(name)).unwrap();
    }
    let head = crate::common::golden().with_file_name("preference").join("value_head.safetensors");
    fs::copy(head, site.path("model/value_head.safetensors")).unwrap();
    let words = [
        "stage=rm",
        "finetuning_type=full",
        "dataset=pairs",
        "dataset_dir=.",
        "template=default",
        "cutoff_len=56",
        "num_processes=1",
        "fp16=true",
        "do_train=false",
        "do_predict=true",
        "val_size=4",
    ];
    let text = ended(&run(site.training("scores", &words)));
    assert!(text.contains("predictions: the score of") && text.contains("of 4 pairs is NaN"), "{text}");
}

/// Evaluations every second step and checkpoints every fourth: what is said of the best checkpoint is its own score.
#[test]
fn the_score_of_the_best_checkpoint_is_that_of_its_step() {
    let site = Site::new();
    let words = [
        "num_processes=1",
        "max_steps=12",
        "learning_rate=0.3",
        "lr_scheduler_type=constant",
        "eval_strategy=steps",
        "eval_steps=2",
        "val_size=4",
        "save_strategy=steps",
        "save_steps=4",
        "load_best_model_at_end=true",
    ];
    // The best by either sense, one of which lies between checkpoints.
    let mut between = 0;
    for greater in ["true", "false"] {
        let output = format!("out-{greater}");
        let said = site.train(&output, &[&words[..], &[&format!("greater_is_better={greater}")]].concat());
        let state: Value =
            serde_json::from_slice(&site.read(&format!("{output}/trainer_state.json"))).unwrap();
        let log = state["log_history"].as_array().unwrap();
        let of = |step: u64| {
            let at = log.iter().find(|record| record["step"] == step && record.get("eval_loss").is_some());
            at.unwrap()["eval_loss"].as_f64().unwrap()
        };
        let better = |a: f64, b: f64| if greater == "true" { a > b } else { a < b };
        let best_of = |steps: &[u64]| {
            steps
                .iter()
                .copied()
                .reduce(|best, step| if better(of(step), of(best)) { step } else { best })
                .unwrap()
        };
        let best = best_of(&[4, 8, 12]);
        between += u64::from(best_of(&[2, 4, 6, 8, 10, 12]) != best);
        assert_eq!(state["best_global_step"], best, "{greater}");
        assert_eq!(state["best_metric"], of(best), "{greater}");
        assert_eq!(state["best_model_checkpoint"], format!("{output}/checkpoint-{best}"));
        let message = format!("Loading best model from {output}/checkpoint-{best} (score: {}).", of(best));
        assert!(said.stdout.contains(&message), "{message}: {said:?}");
        // Steps behind that checkpoint were taken all the same.
        assert!(!said.stdout.contains("steps were skipped"), "{said:?}");
    }
    assert!(between > 0, "no evaluation between checkpoints was the best one");
}
