//! Rejection sampling fine-tuning from a configuration file: what is learned, what resumes, what is refused.

use std::fs;

use crate::common::{Site, run};
use serde_json::Value;

const RAFT: [&str; 14] = [
    "stage=raft",
    "template=default",
    "dataset=prompts.json",
    "cutoff_len=48",
    "num_generations=4",
    "reward_function=regex",
    "reward_pattern=e",
    "temperature=1",
    "top_p=1",
    "top_k=0",
    "max_new_tokens=6",
    "per_device_train_batch_size=4",
    "learning_rate=2e-2",
    "logging_steps=1",
];

fn site() -> Site {
    let site = Site::new();
    let row = |i: usize| {
        format!("{{\"instruction\": \"Who was at the weir {i}?\", \"output\": \"the ferry {i}\"}}")
    };
    site.write("prompts.json", &format!("[{}]", (0..24).map(row).collect::<Vec<_>>().join(",\n")));
    site
}

/// These words, and those of `RAFT` with other keys.
fn words<'w>(more: &[&'w str]) -> Vec<&'w str> {
    let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let is_free = |own: &&str| more.iter().all(|word| key(word) != key(own));
    RAFT.into_iter().filter(is_free).chain(more.iter().copied()).collect()
}

/// A metric at each step.
fn series(site: &Site, output: &str, name: &str) -> Vec<f64> {
    let log: Vec<Value> = site.log(output).into_iter().filter(|line| line.get("loss").is_some()).collect();
    log.iter().map(|line| line[name].as_f64().unwrap_or_else(|| panic!("no {name}: {line}"))).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn a_model_learns_what_is_rewarded_from_its_own_answers() {
    let site = site();
    site.train("raft", &words(&["max_steps=24"]));
    let rewards = series(&site, "raft", "rewards/mean");
    let (first, last) = (mean(&rewards[..4]), mean(&rewards[20..]));
    assert!(first < 0.3 && last > 0.8, "{rewards:?}");
    let best = series(&site, "raft", "rewards/best");
    let none = series(&site, "raft", "rewards/none");
    for (best, none) in best.iter().zip(&none) {
        assert!((best + none - 1.0).abs() < 1e-6, "of a rule, the best answer is right or there is none");
    }
}

#[test]
fn rounds_are_those_of_any_number_of_ranks_and_resume_with_the_same_bits() {
    let site = site();
    // Of the first round the weights are the same everywhere, and so are the answers.
    let first = |output: &str, more: &[&str]| {
        site.train(output, &words(&[&["max_steps=1"], more].concat()));
        ["rewards/mean", "rewards/best", "rewards/none", "answers/tokens"]
            .map(|name| series(&site, output, name)[0])
    };
    let zero3 = "deepspeed={zero_optimization: {stage: 3}}";
    let one = first("one", &["num_processes=1", "per_device_train_batch_size=8"]);
    assert!(one[0] > 0.0 && one[3] > 1.0, "{one:?}");
    for (output, more) in [
        ("two", &["num_processes=2"][..]),
        ("four", &["num_processes=4", "per_device_train_batch_size=2", zero3]),
        ("sequence", &["num_processes=2", "sequence_parallel_size=2", "per_device_train_batch_size=8"]),
    ] {
        assert_eq!(first(output, more), one, "{output}");
    }
    let run_of = [zero3, "num_processes=2", "save_strategy=steps", "save_steps=3"];
    site.train("whole", &words(&[&run_of[..], &["max_steps=6"]].concat()));
    let short = [&run_of[..], &["max_steps=6", "resume_from_checkpoint=part/checkpoint-3"]].concat();
    fs::create_dir(site.path("part")).unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-r"])
        .args([site.path("whole/checkpoint-3"), site.path("part/checkpoint-3")])
        .status();
    assert!(copied.unwrap().success());
    site.train("part", &words(&short));
    assert!(site.model("whole") == site.model("part"), "a resumed run has other bits");
}

#[test]
fn a_reward_model_scores_answers() {
    let site = site();
    let pair = |i: usize| {
        format!(
            "{{\"instruction\": \"Who {i}?\", \"chosen\": \"the ferry the ferry\", \"rejected\": \"x {i}\"}}"
        )
    };
    site.write("pairs.json", &format!("[{}]", (0..8).map(pair).collect::<Vec<_>>().join(",\n")));
    site.write(
        "dataset_info.json",
        "{\"pairs\": {\"file_name\": \"pairs.json\", \"ranking\": true, \
         \"columns\": {\"prompt\": \"instruction\", \"chosen\": \"chosen\", \"rejected\": \"rejected\"}}}",
    );
    let rm =
        ["stage=rm", "dataset=pairs", "dataset_dir=.", "template=default", "cutoff_len=48", "max_steps=4"];
    site.train("rm", &[&rm[..], &["learning_rate=1e-3"]].concat());
    let with = |more: &[&'static str]| -> Vec<&'static str> {
        words(&[&["reward_model=rm", "max_steps=2"], more].concat())
            .into_iter()
            .filter(|word| !word.starts_with("reward_function") && !word.starts_with("reward_pattern"))
            .collect()
    };
    site.train("one", &with(&["num_processes=1", "per_device_train_batch_size=8"]));
    site.train("two", &with(&["num_processes=2", "deepspeed={zero_optimization: {stage: 3}}"]));
    let rewards = |output: &str| series(&site, output, "rewards/mean")[0];
    assert!((rewards("one") - rewards("two")).abs() < 1e-4, "{} {}", rewards("one"), rewards("two"));
    assert_eq!(series(&site, "one", "rewards/best").len(), 2);
    assert!(series(&site, "one", "rewards/best")[0] > rewards("one"));
    // A model without a value head scores nothing.
    let said = run(site.training(
        "none",
        &with(&[])
            .into_iter()
            .map(|word| if word == "reward_model=rm" { "reward_model=model" } else { word })
            .collect::<Vec<_>>(),
    ));
    assert!(said.code == Some(2) && said.stderr.contains("has no value head"), "{said:?}");
}

#[test]
fn a_step_without_a_right_answer_ends_the_run_with_what_to_do() {
    let site = site();
    let said = run(site.training("none", &words(&["reward_pattern=never this", "max_steps=2"])));
    assert!(said.code != Some(0) && said.stderr.contains("there is nothing to train on"), "{said:?}");
    let said = run(site.oarlock(&["llamafactory-cli", "train", "train.yaml", "output_dir=lf", "stage=raft"]));
    assert!(said.code == Some(2) && said.stderr.contains("LLaMA-Factory has no `stage: raft`"), "{said:?}");
}
