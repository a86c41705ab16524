//! The best model of a run: evaluations compared by any metric, an early end, the best checkpoint as the final model, and
//! all of it after a crash.

use std::fs;

use crate::common::{Site, golden, run, start, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TRAINING: [&str; 9] = [
    "val_size=4",
    "eval_strategy=steps",
    "eval_steps=2",
    "save_strategy=steps",
    "save_steps=2",
    "max_steps=40",
    "learning_rate=0.05",
    "lr_scheduler_type=constant",
    "load_best_model_at_end=true",
];

fn state(site: &Site, output: &str) -> Value {
    serde_json::from_slice(&site.read(&format!("{output}/trainer_state.json"))).unwrap()
}

/// The evaluations of a run, the last one left out: that is one of the final model.
fn evaluations(state: &Value, metric: &str) -> Vec<(u64, f64)> {
    let log = state["log_history"].as_array().unwrap();
    let value = |record: &Value| Some((record["step"].as_u64()?, record[metric].as_f64()?));
    let mut all: Vec<(u64, f64)> = log.iter().filter_map(value).collect();
    let last = all.pop().unwrap();
    assert!(
        all.iter().any(|(_, value)| *value == last.1),
        "the final model is one that was evaluated: {all:?} {last:?}"
    );
    all
}

#[test]
fn a_run_ends_early_with_its_best_model_also_after_a_crash() {
    let site = Site::new();
    // The loss falls, so that with the other sense the best evaluation comes early.
    let words = ["early_stopping_steps=3", "save_total_limit=1", "greater_is_better=true"];
    let words = [&TRAINING[..], &words].concat();
    let said = site.train("whole", &words);
    assert!(said.stdout.contains("early stopping: eval_loss has not improved on"), "{said:?}");
    let whole = state(&site, "whole");
    let evaluated = evaluations(&whole, "eval_loss");
    let &(step, best) = evaluated.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert_eq!(evaluated.last().unwrap().0, step + 6, "three evaluations without progress: {evaluated:?}");
    assert_eq!((whole["best_global_step"].as_u64(), whole["best_metric"].as_f64()), (Some(step), Some(best)));
    assert_eq!(whole["global_step"], step + 6);
    let dir = format!("whole/checkpoint-{step}");
    assert_eq!(whole["best_model_checkpoint"], dir);
    assert!(said.stdout.contains(&format!("Loading best model from {dir} (score: {best}).")), "{said:?}");
    assert!(site.model("whole") == site.model(&dir));
    let mut kept: Vec<String> = fs::read_dir(site.path("whole"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("checkpoint-"))
        .collect();
    kept.sort_unstable();
    let mut expected = [format!("checkpoint-{step}"), format!("checkpoint-{}", step + 6)];
    expected.sort_unstable();
    assert_eq!(kept, expected);

    // Killed between the best evaluation and the end.
    let running = start(site.training("killed", &words));
    let ranks = running.ranks(2);
    until("the step", || (site.log("killed").last()?["current_steps"].as_u64()? > step + 2).then_some(()));
    kill_process(Pid::from_raw(ranks[1] as i32).unwrap(), Signal::KILL).unwrap();
    running.wait();
    site.train("killed", &words);
    let killed = state(&site, "killed");
    for key in ["best_metric", "best_global_step", "stateful_callbacks", "global_step"] {
        assert_eq!(killed[key], whole[key], "{key}");
    }
    assert_eq!(evaluations(&killed, "eval_loss"), evaluated);
    assert!(site.model("killed") == site.model("whole"));

    // Once more: it has ended.
    let steps = site.log("killed").len();
    site.train("killed", &words);
    assert_eq!(state(&site, "killed")["global_step"], whole["global_step"]);
    assert!(site.log("killed").len() <= steps, "nothing was trained");
    assert!(site.model("killed") == site.model("whole"));
}

#[test]
fn each_stage_has_its_metrics_and_adapters_are_the_best_ones() {
    let site = Site::new();
    for name in ["pairs.jsonl", "judged.jsonl", "dataset_info.json"] {
        fs::copy(golden().with_file_name("preference").join(name), site.path(name)).unwrap();
    }
    let chat = [
        "dataset_dir=.",
        "template=default",
        "cutoff_len=56",
        "per_device_train_batch_size=3",
        "max_steps=8",
    ];
    for (stage, dataset, metric, method) in [
        ("dpo", "pairs", "eval_rewards/accuracies", "lora"),
        ("kto", "judged", "eval_rewards/chosen", "lora"),
        ("rm", "pairs", "accuracy", "full"),
        ("rm", "pairs", "loss", "lora"),
    ] {
        let own = [
            &format!("stage={stage}"),
            &format!("dataset={dataset}"),
            &format!("metric_for_best_model={metric}"),
            &format!("finetuning_type={method}"),
        ];
        let free = TRAINING.iter().filter(|word| !word.starts_with("max_steps"));
        let words: Vec<&str> = free.chain(&chat).copied().chain(own.map(|word| word.as_str())).collect();
        let output = format!("{stage} {metric}").replace('/', " ");
        let said = site.train(&output, &words);
        let state = state(&site, &output);
        let metric = format!("eval_{}", metric.trim_start_matches("eval_"));
        let evaluated = evaluations(&state, &metric);
        let better = |a: f64, b: f64| if metric.ends_with("loss") { a < b } else { a > b };
        let best = evaluated.iter().copied().reduce(|a, b| if better(b.1, a.1) { b } else { a }).unwrap();
        assert_eq!(state["best_global_step"], best.0, "{evaluated:?}");
        assert!(said.stdout.contains(&format!("checkpoint-{} (score: ", best.0)), "{said:?}");
        let file = if method == "lora" { "adapter_model.safetensors" } else { "model.safetensors" };
        let of = |dir: &str| site.read(&format!("{dir}/{file}"));
        assert!(of(&output) == of(&format!("{output}/checkpoint-{}", best.0)), "{output}");
    }
}

#[test]
fn chat_models_are_compared_by_accuracy_or_by_one_of_several_data_sets() {
    let site = Site::new();
    for (name, place, n) in [("a.json", "the weir", 16), ("b.json", "the lock", 6)] {
        let row = |i| format!(r#"{{"instruction": "Who was at {place} {i}?", "output": "Wren {i}."}}"#);
        site.write(name, &format!("[{}]", (0..n).map(row).collect::<Vec<_>>().join(",")));
    }
    let chat = ["stage=sft", "template=default", "dataset=a.json", "cutoff_len=64", "max_steps=12"];
    let held_out = ["val_size=4", "compute_accuracy=true", "metric_for_best_model=accuracy"];
    let each = [
        "eval_dataset=a.json,b.json",
        "eval_on_each_dataset=true",
        "metric_for_best_model=eval_b.json_loss",
        "finetuning_type=lora",
    ];
    for (output, metric, own) in
        [("accuracy", "eval_accuracy", &held_out[..]), ("each", "eval_b.json_loss", &each[..])]
    {
        let is_own = |word: &&&str| !word.starts_with("max_steps") && !word.starts_with("val_size");
        let words: Vec<&str> = TRAINING.iter().filter(is_own).chain(&chat).chain(own).copied().collect();
        site.train(output, &words);
        let state = state(&site, output);
        let evaluated = evaluations(&state, metric);
        let better = |a: f64, b: f64| if metric.ends_with("loss") { a < b } else { a > b };
        let best = evaluated.iter().copied().reduce(|a, b| if better(b.1, a.1) { b } else { a }).unwrap();
        assert_eq!(state["best_global_step"], best.0, "{evaluated:?}");
        assert_eq!(state["best_metric"], best.1, "{evaluated:?}");
    }
}

#[test]
fn a_metric_that_is_not_there_is_refused_before_the_first_step() {
    let site = Site::new();
    let said = run(site.training("out", &[&TRAINING[..], &["metric_for_best_model=eval_accuracy"]].concat()));
    assert_eq!(said.code, Some(2), "{said:?}");
    let words = "metric_for_best_model is eval_accuracy, and the evaluations of this run have eval_loss";
    assert!(said.message().contains(words), "{said:?}");
    assert!(site.log("out").is_empty());
}

#[test]
fn only_the_best_evaluations_are_saved_where_that_is_asked_for() {
    let site = Site::new();
    let free = TRAINING.iter().filter(|word| !word.starts_with("save_") && !word.starts_with("max_steps"));
    let words: Vec<&str> = free.copied().chain(["save_strategy=best", "max_steps=12"]).collect();
    site.train("out", &words);
    let evaluated = evaluations(&state(&site, "out"), "eval_loss");
    let mut best = f64::INFINITY;
    for (step, loss) in evaluated {
        let is_saved = site.path(&format!("out/checkpoint-{step}")).exists();
        assert_eq!(is_saved, loss < best, "step {step}");
        best = best.min(loss);
    }
}
