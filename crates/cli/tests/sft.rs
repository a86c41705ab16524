//! Supervised fine-tuning from a configuration file: losses, mixed and tokenized data sets, evaluation of each data set,
//! answers that are scored, and what is saved with the model.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{CommandOutput, Site, run, start, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Questions with answers of different lengths.
fn rows(n: usize, place: &str) -> String {
    let row = |i: usize| {
        let answer = "the ferry ".repeat(1 + i % 4);
        format!(
            "{{\"instruction\": \"Who was at {place} {i}?\", \"input\": \"\", \"output\": \"{}\"}}",
            answer.trim()
        )
    };
    format!("[{}]", (0..n).map(row).collect::<Vec<_>>().join(",\n"))
}

fn site() -> Site {
    let site = Site::new();
    site.write("a.json", &rows(16, "the weir"));
    site.write("b.json", &rows(6, "the lock"));
    site
}

const SFT: [&str; 6] = [
    "stage=sft",
    "template=default",
    "dataset=a.json",
    "cutoff_len=64",
    "per_device_train_batch_size=2",
    "max_steps=4",
];

/// These words, and those of `SFT` with other keys.
fn completed<'w>(words: &[&'w str]) -> Vec<&'w str> {
    let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let is_free = |own: &&str| words.iter().all(|word| key(word) != key(own));
    SFT.into_iter().filter(is_free).chain(words.iter().copied()).collect()
}

fn train(site: &Site, output: &str, words: &[&str]) -> CommandOutput {
    site.train(output, &completed(words))
}

fn json(site: &Site, name: &str) -> Value {
    serde_json::from_slice(&site.read(name)).unwrap()
}

fn losses(site: &Site, output: &str) -> Vec<f64> {
    site.log(output).iter().filter_map(|record| record["loss"].as_f64()).collect()
}

#[test]
fn losses_are_those_that_were_asked_for_and_noise_resumes_to_the_bit() {
    let site = site();
    train(&site, "plain", &[]);
    let plain = losses(&site, "plain");
    for (output, words) in [
        ("smooth", &["label_smoothing_factor=0.1"][..]),
        ("dft", &["use_dft_loss=true"]),
        ("eaft", &["use_eaft_loss=true"]),
        ("noise", &["neftune_noise_alpha=5"]),
    ] {
        train(&site, output, words);
        let other = losses(&site, output);
        assert!(other.len() == 4 && other[0] != plain[0] && other[0] > 0.0, "{output}: {other:?}");
    }
    // One rank sees the noise of two.
    let alone = ["neftune_noise_alpha=5", "num_processes=1", "per_device_train_batch_size=4"];
    train(&site, "alone", &alone);
    for (ours, theirs) in losses(&site, "alone").iter().zip(losses(&site, "noise")) {
        assert!((ours - theirs).abs() < 1e-4, "{ours} {theirs}");
    }
    let begin = ["neftune_noise_alpha=5", "save_strategy=steps", "save_steps=2"];
    let half = ["max_steps=2", "lr_scheduler_type=constant"];
    train(&site, "halves", &[&begin[..], &half].concat());
    train(&site, "halves", &[&begin[..], &["lr_scheduler_type=constant"]].concat());
    train(&site, "whole", &[&begin[..], &["lr_scheduler_type=constant"]].concat());
    assert!(site.model("halves") == site.model("whole"));
}

#[test]
fn data_sets_are_mixed_and_evaluated_by_themselves() {
    let site = site();
    let mixed = [
        "dataset=a.json,b.json",
        "mix_strategy=interleave_over",
        "interleave_probs=0.5,0.5",
        "streaming=true",
    ];
    let evaluated = [
        "eval_dataset=a.json,b.json",
        "eval_on_each_dataset=true",
        "group_by_length=true",
        "compute_accuracy=true",
        "per_device_eval_batch_size=1",
    ];
    train(&site, "out", &[&mixed[..], &evaluated, &["preprocessing_num_workers=1"]].concat());
    let results = json(&site, "out/eval_results.json");
    for name in ["a.json", "b.json"] {
        assert!(results[format!("eval_{name}_loss")].as_f64().is_some(), "{results}");
        assert!(results[format!("eval_{name}_runtime")].as_f64().is_some(), "{results}");
        let accuracy = results[format!("eval_{name}_accuracy")].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&accuracy), "{results}");
    }
    assert!(results.get("eval_loss").is_none(), "{results}");
    // On the two ranks a batch of the evaluation has rows of other lengths, and so other means.
    let [loss, per_token] =
        ["loss", "loss_per_token"].map(|name| results[format!("eval_a.json_{name}")].as_f64().unwrap());
    assert!(loss != per_token && (loss - per_token).abs() < 0.5, "{loss} {per_token}");
    // Every step counts alike in the mean of the run, however many targets it has.
    let trained = losses(&site, "out");
    let mean = trained.iter().sum::<f64>() / trained.len() as f64;
    let message = json(&site, "out/train_results.json")["train_loss"].as_f64().unwrap();
    assert!((message - mean).abs() < 1e-9, "{message} {mean}");
    let under =
        ["dataset=a.json,b.json", "mix_strategy=interleave_under", "max_steps=-1", "num_train_epochs=1"];
    train(&site, "under", &under);
    // Six turns of two data sets, four rows a step.
    assert_eq!(site.log("under").last().unwrap()["total_steps"], 3);
}

#[test]
fn a_tokenized_data_set_is_written_once_and_read_without_its_sources() {
    let site = site();
    let first = train(&site, "first", &["tokenized_path=tokens"]);
    assert!(first.stdout.contains("the tokenized data set is kept in tokens/train.tokens"), "{first:?}");
    fs::remove_file(site.path("a.json")).unwrap();
    let second = train(&site, "second", &["tokenized_path=tokens"]);
    assert!(second.stdout.contains("is read; dataset and its formats are not looked at"), "{second:?}");
    assert!(site.model("first") == site.model("second"));
    let other = train(&site, "third", &["tokenized_path=tokens", "template=alpaca"]);
    assert!(other.stdout.contains("was tokenized with other settings"), "{other:?}");
}

#[test]
fn answers_are_generated_and_scored_whatever_the_number_of_ranks() {
    let site = site();
    let ask = [
        "eval_dataset=b.json",
        "do_predict=true",
        "predict_with_generate=true",
        "do_sample=false",
        "max_new_tokens=6",
        "per_device_eval_batch_size=4",
        "max_steps=30",
    ];
    let said = train(&site, "two", &ask);
    assert!(said.stdout.contains("6 answers generated: BLEU-4"), "{said:?}");
    let lines = String::from_utf8(site.read("two/generated_predictions.jsonl")).unwrap();
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["prompt"], "Human: Who was at the lock 0?<|end|>\nAssistant:");
    assert_eq!(first["label"], "the ferry\n");
    assert_eq!(lines.lines().count(), 6);
    let results = json(&site, "two/predict_results.json");
    let keys: Vec<&String> = results.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "predict_bleu-4",
            "predict_loss",
            "predict_rouge-1",
            "predict_rouge-2",
            "predict_rouge-l",
            "predict_runtime",
            "predict_samples_per_second",
            "predict_steps_per_second"
        ]
    );
    // The same model on one rank and one row at a time.
    let again =
        ["model_name_or_path=two", "do_train=false", "num_processes=1", "per_device_eval_batch_size=1"];
    let ask: Vec<&str> = ask.into_iter().filter(|word| !word.starts_with("per_device_eval")).collect();
    train(&site, "one", &[&ask[..], &again].concat());
    assert_eq!(String::from_utf8(site.read("one/generated_predictions.jsonl")).unwrap(), lines);
    assert_eq!(json(&site, "one/predict_results.json")["predict_bleu-4"], results["predict_bleu-4"]);
}

#[test]
fn a_file_without_a_dataset_evaluates_and_answers_alone() {
    let site = site();
    let file = "model_name_or_path: model\nstage: sft\ntemplate: default\neval_dataset: b.json\ncutoff_len: 64\n\
                do_predict: true\npredict_with_generate: true\nmax_new_tokens: 4\nper_device_eval_batch_size: 2\n\
                output_dir: answers\n";
    site.write("predict.yaml", file);
    let said = run(site.oarlock(&["train", "predict.yaml"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(
        String::from_utf8(site.read("answers/generated_predictions.jsonl")).unwrap().lines().count(),
        6
    );
    assert!(json(&site, "answers/eval_results.json")["eval_loss"].as_f64().unwrap() > 1.0);
    assert!(!site.path("answers/model.safetensors").exists());
    // Without data to evaluate on either, there is nothing to do.
    site.write("predict.yaml", &file.replace("eval_dataset: b.json\n", ""));
    let said = run(site.oarlock(&["train", "predict.yaml"]));
    assert!(said.code == Some(2) && said.stderr.contains("`dataset` is missing"), "{said:?}");
}

#[test]
fn a_saved_model_is_talked_to_as_it_was_trained() {
    let site = site();
    let words = ["default_system=Be brief.", "finetuning_type=lora", "lora_rank=2"];
    train(&site, "adapter", &words);
    let template = String::from_utf8(site.read("adapter/chat_template.jinja")).unwrap();
    assert!(template.contains("Be brief.") && template.contains("Assistant:"), "{template}");
    let chat = |words: &[&str]| {
        let mut command = site.oarlock(&["chat", "--max-new-tokens", "4", "--temperature", "0"]);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"Who was at the weir?\nexit\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let adapted = chat(&["--model", "model", "--adapter", "adapter"]);
    assert!(adapted.starts_with("User: Assistant: "), "{adapted}");
    let mut export = site.oarlock(&["export", "model_name_or_path=model", "adapter_name_or_path=adapter"]);
    export.arg("export_dir=merged");
    let said = run(export);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(site.read("merged/chat_template.jinja"), site.read("adapter/chat_template.jinja"));
    let modelfile = String::from_utf8(site.read("merged/Modelfile")).unwrap();
    assert!(modelfile.contains("Human: {{ .Content }}"), "{modelfile}");
    assert_eq!(chat(&["--model", "merged"]), adapted);
    // The tokenizer of this model has a template now, and another one is named.
    let other = train(&site, "other", &["model_name_or_path=merged", "template=alpaca"]);
    assert!(
        other.stdout.contains("warning: template alpaca and the chat template of the tokenizer"),
        "{other:?}"
    );
}

#[test]
fn a_killed_run_of_an_adapter_goes_on_to_the_bit() {
    let site = site();
    let words = [
        "finetuning_type=lora",
        "lora_rank=4",
        "lora_dropout=0.1",
        "dataset=a.json,b.json",
        "packing=true",
        "deepspeed={zero_optimization: {stage: 3}}",
        "max_steps=200",
        "save_strategy=steps",
        "save_steps=5",
    ];
    train(&site, "whole", &words);
    let running = start(site.training("killed", &completed(&words)));
    let ranks = running.ranks(2);
    until("a checkpoint", || site.path("killed/checkpoint-5").is_dir().then_some(()));
    kill_process(Pid::from_raw(ranks[0] as i32).unwrap(), Signal::KILL).unwrap();
    assert_ne!(running.wait().code, Some(0));
    let again = train(&site, "killed", &words);
    assert!(again.stdout.contains("Resuming training"), "{again:?}");
    assert_eq!(site.losses("killed"), site.losses("whole"));
    let adapter = |output: &str| site.read(&format!("{output}/adapter_model.safetensors"));
    assert!(adapter("killed") == adapter("whole"));
}

/// All files of a folder and of those in it, but for the log of what was said.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false if path.ends_with("running_log.txt") => {}
            false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

#[test]
fn a_run_that_cannot_begin_leaves_an_earlier_one_as_it_was() {
    let site = site();
    train(&site, "out", &["save_strategy=steps", "save_steps=2"]);
    let before = files(&site.path("out"));
    assert!(before.keys().any(|path| path.ends_with("checkpoint-4/model.safetensors")));
    site.write("cut.json", "[{\"instruction\": \"a\", \"output\"");
    site.write("useless.jsonl", "{\"instruction\": \"a\"}\n{\"instruction\": \"b\", \"output\": null}\n");
    fs::create_dir(site.path("cats")).unwrap();
    site.write("cats/dataset_info.json", "{\"cats\": {\"file_name\": \"gone.json\"}}");
    for (words, message) in [
        (&["dataset=cut.json"][..], &["cut.json:1: the file ends inside the array"][..]),
        (
            &["dataset=useless.jsonl"],
            &["Cannot find valid samples", "2 dropped: it has no answer (the first is", "useless.jsonl:1"],
        ),
        (&["dataset=cats", "dataset_dir=cats"], &["dataset cats in", "gone.json: No such file"]),
        (&["dataset=dogs"], &["no data set `dogs`"]),
        (&["dataset=a.json", "template=chatmll"], &["chatmll", "did you mean chatml?"]),
        (&["dataset=a.json", "template=llama3"], &["<|eot_id|> is not a token of this tokenizer"]),
        (&["dataset=a.json", "cutoff_len=1"], &["`cutoff_len` takes a whole number, at least 2"]),
    ] {
        for more in [&["overwrite_output_dir=true"][..], &[]] {
            let words = completed(&[words, more, &["max_steps=9"]].concat());
            let said = run(site.training("out", &words));
            assert!(said.code.is_some_and(|code| code != 0), "{words:?}: {said:?}");
            for message in message {
                assert!(said.stderr.contains(message), "{message}: {said:?}");
            }
            assert!(!said.stderr.contains("panicked"), "{said:?}");
            let after = files(&site.path("out"));
            for (path, bytes) in &before {
                assert!(after.get(path) == Some(bytes), "{words:?} {more:?}: {} has changed", path.display());
            }
        }
    }
}
