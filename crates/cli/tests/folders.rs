//! Every command that writes, in every kind of folder: what it did not write itself has the same bytes afterward, or is
//! what it was told to overwrite.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{CommandOutput, Site, run};

/// Files by their path in a folder.
type Files = BTreeMap<String, Vec<u8>>;

/// All files below a folder; of a link, where it leads.
fn files(folder: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                    let content = match fs::read_link(&path) {
                        Ok(target) => format!("link to {}", target.display()).into_bytes(),
                        Err(_) => fs::read(&path).unwrap(),
                    };
                    found.insert(name, content);
                }
            }
        }
    }
    found
}

const TRAIN: &[&str] =
    &["train", "train.yaml", "output_dir=out", "max_steps=1", "num_processes=1", "save_strategy=no"];
const LORA: &[&str] = &[
    "train",
    "train.yaml",
    "output_dir=out",
    "max_steps=1",
    "num_processes=1",
    "save_strategy=no",
    "finetuning_type=lora",
];
const EVALUATE: &[&str] = &[
    "train",
    "train.yaml",
    "output_dir=out",
    "num_processes=1",
    "do_train=false",
    "eval_dataset=text.jsonl",
];
const EXPORT: &[&str] = &["export", "model_name_or_path=model", "export_dir=out"];
const MERGE: &[&str] = &["merge-weights", "whole/checkpoint-1", "out"];
const MERGE_SHARDS: &[&str] = &["merge-weights", "whole/checkpoint-1", "out", "--max-shard-size", "40KB"];
const ACCELERATE: &[&str] = &["accelerate", "merge-weights", "whole/checkpoint-1", "out"];
const GATHER: &[&str] = &["gather-checkpoint", "whole/checkpoint-1", "--out", "out"];
const TOKENIZER: &[&str] =
    &["tokenizer", "train", "--dataset", "text.jsonl", "--output-dir", "out", "--vocab-size", "300"];
const LINKS: &[&str] = &["link-tools", "out"];

/// Each command with what lets it overwrite, where it can.
const COMMANDS: [(&[&str], Option<&str>); 10] = [
    (TRAIN, Some("overwrite_output_dir=true")),
    (LORA, Some("overwrite_output_dir=true")),
    (EVALUATE, Some("overwrite_output_dir=true")),
    (EXPORT, Some("overwrite_output_dir=true")),
    (MERGE, Some("--overwrite")),
    (MERGE_SHARDS, Some("--overwrite")),
    (ACCELERATE, Some("--overwrite")),
    (GATHER, Some("--overwrite")),
    (TOKENIZER, Some("--overwrite")),
    (LINKS, None),
];

/// A folder of somebody: its files with what is in them.
const FOLDERS: [(&str, &[&str]); 11] = [
    ("nothing", &[]),
    ("one model", &["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]),
    (
        "a model in parts",
        &[
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ],
    ),
    ("an adapter", &["adapter_config.json", "adapter_model.safetensors"]),
    ("a model of torch", &["config.json", "pytorch_model.bin"]),
    (
        "other files",
        &["notes.txt", "data/rows.jsonl", "model.fp16.safetensors", "modelcard.md", "train.yaml"],
    ),
    ("logs", &["trainer_log.jsonl", "trainer_state.json", "all_results.json"]),
    ("a tokenizer", &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]),
    ("a checkpoint of transformers", &["checkpoint-1/model.safetensors", "checkpoint-1/optimizer.pt"]),
    ("names of ours", &["run.lock", "torchrun", "oarlock_files.json", "results.json"]),
    (
        "a folder in a place",
        &["model.safetensors/notes.txt", "tokenizer.json/notes.txt", "state/manifest.json"],
    ),
];

fn site() -> Site {
    let site = Site::new();
    site.train("whole", &["max_steps=1", "num_processes=1", "save_strategy=steps"]);
    site
}

fn lay_out(site: &Site, names: &[&str]) {
    if site.path("out").exists() {
        fs::remove_dir_all(site.path("out")).unwrap();
    }
    for name in names {
        fs::create_dir_all(site.path("out").join(name).parent().unwrap()).unwrap();
        site.write(&format!("out/{name}"), &format!("somebody's {name}"));
    }
}

/// What a command did to the files that were there; panics where it lost one without being told to.
fn examine(
    site: &Site,
    what: &str,
    before: &Files,
    said: &CommandOutput,
    may_overwrite: bool,
    is_adapter: bool,
) {
    let after = files(&site.path("out"));
    let lost: Vec<&String> =
        before.iter().filter(|(name, bytes)| after.get(*name) != Some(bytes)).map(|(name, _)| name).collect();
    if !may_overwrite || said.code != Some(0) {
        assert!(lost.is_empty(), "{what}: lost {lost:?}: {said:?}");
    }
    let removed: Vec<&&String> = lost.iter().filter(|name| !after.contains_key(**name)).collect();
    assert!(removed.is_empty(), "{what}: removed {removed:?}: {said:?}");
    if is_adapter {
        assert!(!lost.iter().any(|name| name.starts_with("model")), "{what}: {lost:?}");
    }
    // Weights of two models are never in one folder.
    let is_new = |name: &&String| !before.contains_key(*name) || lost.contains(name);
    let weights = |keep: &dyn Fn(&&String) -> bool| {
        let shard = |name: &&String| name.starts_with("model-0") || *name == "model.safetensors";
        after.keys().filter(|name| shard(name) && keep(name)).count()
    };
    assert!(weights(&is_new) == 0 || weights(&|name| !is_new(name)) == 0, "{what}: mixed {:?}", after.keys());
    if said.code != Some(0) {
        assert!(said.code == Some(2) || said.code == Some(1), "{what}: {said:?}");
        assert!(said.stderr.contains("out"), "{what}: {said:?}");
        assert!(!after.keys().any(|name| name.ends_with(".part")), "{what}: {:?}", after.keys());
    }
}

#[test]
fn what_a_command_did_not_write_it_neither_replaces_nor_removes() {
    let site = site();
    for (command, overwrite) in COMMANDS {
        for (kind, names) in FOLDERS {
            for overwrite in [None, overwrite].into_iter().take(1 + usize::from(overwrite.is_some())) {
                lay_out(&site, names);
                let before = files(&site.path("out"));
                let words: Vec<&str> = command.iter().copied().chain(overwrite).collect();
                let said = run(site.oarlock(&words));
                let what = format!("{} in a folder with {kind}", words.join(" "));
                examine(&site, &what, &before, &said, overwrite.is_some(), command == LORA);
                if names.is_empty() || (kind == "other files" && command != GATHER) {
                    assert_eq!(said.code, Some(0), "{what}: {said:?}");
                }
            }
        }
    }
}

#[test]
fn a_result_gives_way_to_the_next_of_the_same_command_until_somebody_changes_it() {
    let site = site();
    for (command, overwrite) in
        [(EXPORT, "overwrite_output_dir=true"), (MERGE, "--overwrite"), (TOKENIZER, "--overwrite")]
    {
        lay_out(&site, &["notes.txt"]);
        for _ in 0..2 {
            let said = run(site.oarlock(command));
            assert_eq!(said.code, Some(0), "{command:?}: {said:?}");
        }
        let name = if command == TOKENIZER { "tokenizer.json" } else { "model.safetensors" };
        // Of the same size: a bit in the last byte.
        let mut bytes = site.read(&format!("out/{name}"));
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(site.path("out").join(name), &bytes).unwrap();
        let before = files(&site.path("out"));
        let said = run(site.oarlock(command));
        assert_eq!(said.code, Some(2), "{command:?}: {said:?}");
        assert!(said.stderr.contains(name) && said.stderr.contains("overwrite"), "{command:?}: {said:?}");
        assert_eq!(files(&site.path("out")), before, "{command:?}");
        let words: Vec<&str> = command.iter().copied().chain([overwrite]).collect();
        let said = run(site.oarlock(&words));
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        assert_ne!(site.read(&format!("out/{name}")), bytes, "{words:?}");
        assert_eq!(site.read("out/notes.txt"), b"somebody's notes.txt");
    }
    // Parts of an earlier result that have no successor go; another command's result stays.
    lay_out(&site, &[]);
    assert_eq!(run(site.oarlock(MERGE_SHARDS)).code, Some(0));
    assert!(site.path("out/model.safetensors.index.json").exists());
    assert_eq!(run(site.oarlock(MERGE)).code, Some(0));
    let names: Vec<String> = files(&site.path("out")).into_keys().collect();
    assert!(!names.iter().any(|name| name.contains("-of-") || name.contains("index")), "{names:?}");
    let before = files(&site.path("out"));
    assert_eq!(run(site.oarlock(EXPORT)).code, Some(2));
    assert_eq!(files(&site.path("out")), before);
}

#[test]
fn a_finished_run_is_not_begun_anew_and_goes_on_where_it_has_a_checkpoint() {
    let site = Site::new();
    let run_of = |words: &[&str]| run(site.training("out", &[&["num_processes=1"], words].concat()));
    // Without a checkpoint nothing goes on.
    assert_eq!(run_of(&["max_steps=2"]).code, Some(0));
    let before = files(&site.path("out"));
    let said = run_of(&["max_steps=4"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    for part in [
        "Output directory already exists and is not empty",
        "model.safetensors",
        "output_dir=out",
        "overwrite_output_dir: true",
    ] {
        assert!(said.stderr.contains(part), "{part}: {said:?}");
    }
    assert_eq!(files(&site.path("out")), before);
    // An adapter never takes the place of a model, whatever it is told.
    for words in [&["finetuning_type=lora"][..], &["finetuning_type=oft"]] {
        let refused = run_of(words);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let beside = run_of(&[words, &["overwrite_output_dir=true", "max_steps=1"]].concat());
        assert_eq!(beside.code, Some(0), "{beside:?}");
        assert_eq!(site.model("out"), before["model.safetensors"]);
        assert!(site.path("out/adapter_model.safetensors").exists());
    }
    // Told to, a training run of all weights replaces what runs wrote: the model, and the adapter that would lie on it.
    let anew = run_of(&["max_steps=4", "overwrite_output_dir=true", "save_strategy=steps", "save_steps=3"]);
    assert_eq!(anew.code, Some(0), "{anew:?}");
    assert_ne!(site.model("out"), before["model.safetensors"]);
    assert!(!site.path("out/adapter_model.safetensors").exists());
    // The last step has a checkpoint, from which a longer training goes on, and it replaces its own model.
    assert!(site.path("out/checkpoint-3").exists() && site.path("out/checkpoint-4").exists());
    let four = site.model("out");
    let longer = run_of(&["max_steps=6", "save_strategy=steps", "save_steps=3"]);
    assert_eq!(longer.code, Some(0), "{longer:?}");
    assert!(longer.stdout.contains("Resuming training from out/checkpoint-4."), "{longer:?}");
    assert_ne!(site.model("out"), four);
    // Not if somebody has put another model in its place.
    fs::write(site.path("out/model.safetensors"), "another").unwrap();
    let said = run_of(&["max_steps=8", "save_strategy=steps", "save_steps=3"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.stderr.contains("model.safetensors") && said.stderr.contains("resume_from_checkpoint: PATH")
    );
    assert_eq!(site.model("out"), b"another");
    // Checkpoints are no less of a result.
    for words in [&["resume_from_checkpoint=false"][..], &["resume_from_checkpoint=elsewhere"]] {
        fs::create_dir_all(site.path("elsewhere")).unwrap();
        let before = files(&site.path("out"));
        let said = run_of(words);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(
            said.stderr.contains("holds checkpoints of an earlier run, the newest checkpoint-6"),
            "{said:?}"
        );
        assert_eq!(files(&site.path("out")), before);
    }
}

/// What a message says, without the lines around it.
fn plain(said: &CommandOutput) -> String {
    said.stderr.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_could_not_be_written_at_the_end_is_told_before_a_run_starts() {
    let site = Site::new();
    let pissa: &[&str] = &["finetuning_type=lora", "pissa_init=true", "pissa_convert=true"];
    // Folders of the run that lead elsewhere.
    fs::create_dir(site.path("elsewhere")).unwrap();
    site.write("elsewhere/notes", "somebody's notes");
    for (name, words) in [("cache", &[][..]), ("pissa_converted", pissa), ("runs", &["report_to=jsonl,csv"])]
    {
        lay_out(&site, &[]);
        fs::create_dir(site.path("out")).unwrap();
        std::os::unix::fs::symlink(site.path("elsewhere"), site.path("out").join(name)).unwrap();
        let said = run(site.training("out", words));
        assert_eq!(said.code, Some(2), "{name}: {said:?}");
        assert!(plain(&said).contains(&format!("`out/{name}` is a link to")), "{name}: {said:?}");
        assert_eq!(files(&site.path("elsewhere")).len(), 1, "{name}");
    }
    // An adapter where pissa_convert writes one.
    let names = ["pissa_converted/adapter_model.safetensors", "pissa_converted/notes.txt"];
    lay_out(&site, &names);
    let before = files(&site.path("out"));
    let said = run(site.training("out", pissa));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(plain(&said).contains("`out/pissa_converted` holds adapter_model.safetensors"), "{said:?}");
    assert_eq!(files(&site.path("out")), before);
    let beside = ["tokenizer.json", "tokenizer_config.json"].map(|name| format!("pissa_converted/{name}"));
    for name in &beside {
        lay_out(&site, &[name]);
        let said = run(site.training("out", pissa));
        assert_eq!(said.code, Some(2), "{name}: {said:?}");
        assert_eq!(site.read(&format!("out/{name}")), format!("somebody's {name}").into_bytes());
        assert_eq!(files(&site.path("out")).len(), 1, "{said:?}");
    }
    // What the template of a run, its value head and its method add to the files of a model.
    site.write("sft.jsonl", r#"{"instruction": "a", "output": "b"}"#);
    site.write("pairs.jsonl", r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#);
    let sft: &[&str] = &["stage=sft", "template=default", "dataset=sft.jsonl"];
    let rm: &[&str] = &["stage=rm", "template=default", "dataset=pairs.jsonl"];
    for (name, words) in [
        ("chat_template.jinja", sft),
        ("generation_config.json", sft),
        ("generation_config.json", &[]),
        ("value_head.safetensors", rm),
        ("cache", &[]),
        ("pissa_converted", pissa),
        ("runs", &["report_to=jsonl,csv"]),
    ] {
        lay_out(&site, &[name]);
        let said = run(site.training("out", words));
        assert_eq!(said.code, Some(2), "{name}: {said:?}");
        assert!(plain(&said).contains(name), "{name}: {said:?}");
        assert_eq!(site.read(&format!("out/{name}")), format!("somebody's {name}").into_bytes());
        assert_eq!(files(&site.path("out")).len(), 1, "{name}: {said:?}");
    }
    // A checkpoint.
    site.train("trained", &["max_steps=1", "num_processes=1", "save_strategy=steps"]);
    let before = files(&site.path("trained"));
    for words in
        [&[][..], &["overwrite_output_dir=true"], &["finetuning_type=lora", "overwrite_output_dir=true"]]
    {
        let said = run(site.training("trained/checkpoint-1", words));
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
        assert!(
            plain(&said).contains("`trained/checkpoint-1`, which is a checkpoint"),
            "{words:?}: {said:?}"
        );
        assert_eq!(files(&site.path("trained")), before, "{words:?}");
    }
}

#[test]
fn what_a_killed_removal_left_goes_with_the_next_start() {
    let site = Site::new();
    site.train("out", &["max_steps=1", "num_processes=1", "save_strategy=steps"]);
    for name in ["checkpoint-5.tmp-0123456789abcdef/state/x", "checkpoint-5.tmp-mine/x", "checkpoint-5.old/x"]
    {
        fs::create_dir_all(site.path("out").join(name).parent().unwrap()).unwrap();
        site.write(&format!("out/{name}"), "x");
    }
    // A run that is at its end makes no step, and so saves nothing.
    let said = site.train("out", &["max_steps=1", "num_processes=1", "save_strategy=steps"]);
    assert!(said.stdout.contains("nothing was trained"), "{said:?}");
    assert!(!site.path("out/checkpoint-5.tmp-0123456789abcdef").exists());
    assert!(
        site.path("out/checkpoint-5.tmp-mine/x").exists() && site.path("out/checkpoint-5.old/x").exists()
    );
}

#[test]
fn a_run_never_writes_into_what_it_reads() {
    let site = Site::new();
    site.train("adapter", &["max_steps=1", "finetuning_type=lora"]);
    let cases: [(&str, &[&str]); 5] = [
        ("model", &[]),
        ("model", &["overwrite_output_dir=true"]),
        ("model", &["finetuning_type=lora", "overwrite_output_dir=true"]),
        ("./model/../model", &["finetuning_type=oft"]),
        ("adapter", &["finetuning_type=lora", "adapter_name_or_path=adapter", "overwrite_output_dir=true"]),
    ];
    for (folder, words) in cases {
        let before = files(&site.path(folder));
        let said = run(site.training(folder, words));
        assert_eq!(said.code, Some(2), "{folder} {words:?}: {said:?}");
        assert!(said.stderr.contains("which the run reads as"), "{said:?}");
        assert_eq!(files(&site.path(folder)), before, "{folder} {words:?}");
    }
    // An evaluation goes on behind the logs of the run, and leaves its configuration and its model.
    site.train("out", &["max_steps=2", "num_processes=1"]);
    let before = files(&site.path("out"));
    let words = ["do_train=false", "eval_dataset=text.jsonl", "num_processes=1", "model_name_or_path=out"];
    site.train("out", &words);
    let after = files(&site.path("out"));
    for (name, bytes) in before.iter().filter(|(name, _)| !name.starts_with("cache/")) {
        let is_log = ["trainer_log.jsonl", "running_log.txt"].contains(&name.as_str());
        match name.as_str() {
            "oarlock_files.json" | "all_results.json" => {}
            _ if is_log => assert!(after[name].starts_with(bytes), "{name}"),
            _ => assert_eq!(after.get(name), Some(bytes), "{name}"),
        }
    }
    // What is evaluated is the model that is named, not the last checkpoint of the folder.
    let words = ["do_train=false", "eval_dataset=text.jsonl", "num_processes=1"];
    let of_model = |output: &str| {
        let said = site.train(output, &words);
        assert!(!said.stdout.contains("Resuming"), "{said:?}");
        let mut evals = site.log(output).into_iter().filter_map(|record| record["eval_loss"].as_f64());
        evals.next_back().unwrap()
    };
    assert_eq!(of_model("out"), of_model("apart"));
    // It writes its results beside a model of somebody, and no more.
    let before = files(&site.path("model"));
    site.train("model", &words);
    site.train("model", &words);
    let after = files(&site.path("model"));
    assert!(after.contains_key("eval_results.json"));
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)));
}

#[test]
fn what_lies_in_a_file_under_the_name_of_the_folder_stays() {
    let site = site();
    for (command, overwrite) in COMMANDS {
        for overwrite in [None, overwrite].into_iter().take(1 + usize::from(overwrite.is_some())) {
            site.write("out", "somebody's");
            let words: Vec<&str> = command.iter().copied().chain(overwrite).collect();
            let said = run(site.oarlock(&words));
            assert_ne!(said.code, Some(0), "{words:?}");
            assert!(said.stderr.contains("out"), "{words:?}: {said:?}");
            assert_eq!(site.read("out"), b"somebody's", "{words:?}: {said:?}");
        }
    }
}
