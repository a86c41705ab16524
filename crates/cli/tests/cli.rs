//! The command as its user meets it: what it writes and where, and a clear word for every wrong input.

use oarlock_tensor::cpu::difference::largest_difference;
use std::fs;

use crate::common::{CommandOutput, Site, golden, run};
use serde_json::Value;

fn names(site: &Site, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(site.path(folder)).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn json(site: &Site, file: &str) -> Value {
    serde_json::from_slice(&site.read(file)).unwrap()
}

/// Asserts that a command failed with this code and said all of this, as one error.
fn assert_refused(said: &CommandOutput, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    for word in words {
        assert!(said.message().contains(word), "it does not say {word:?}: {}", said.stderr);
    }
    assert!(!said.stderr.contains("panicked") && said.stderr.matches("error:").count() <= 1, "{said:?}");
}

#[test]
fn a_wrong_configuration_is_refused_before_anything_is_written() {
    let site = Site::new();
    site.write(
        "wrong.yaml",
        "model_name_or_path: model\ndataset: text.jsonl\noutput_dir: out\nbf16: maybe\nlearning_rat: 1\n",
    );
    let cases: &[(&[&str], &[&str])] = &[
        // All that is wrong is reported at once, with its file and line.
        (
            &["wrong.yaml"],
            &[
                "wrong.yaml:4:7",
                "`bf16` takes true or false, not `maybe`",
                "wrong.yaml:5:1",
                "did you mean `learning_rate`?",
            ],
        ),
        (
            &["train.yaml", "output_dir=out", "learning_rat=1"],
            &["unknown key `learning_rat`", "did you mean `learning_rate`?"],
        ),
        (
            &["train.yaml", "output_dir=out", "cutoff_len=1"],
            &["`cutoff_len` takes a whole number, at least 2"],
        ),
        (&["train.yaml", "output_dir=out", "--learning_rat", "1"], &["did you mean `learning_rate`?"]),
        (&["train.yaml"], &["`output_dir` is missing"]),
        (
            &["nowhere.yaml"],
            &["cannot read the configuration `nowhere.yaml`", "relative to the working directory"],
        ),
        (&["train.yaml", "output_dir=out", "model_name_or_path=nowhere"], &["no model folder `nowhere`"]),
        (&["train.yaml", "output_dir=out", "dataset=nowhere.jsonl"], &["no data set `nowhere.jsonl`"]),
        (&["train.yaml", "output_dir=text.jsonl"], &["`text.jsonl` is a file, not a folder"]),
        (
            &["train.yaml", "output_dir=out", "resume_from_checkpoint=nowhere"],
            &["no checkpoint folder `nowhere`"],
        ),
        (&["train.yaml", "output_dir=out", "stage=ppo"], &["stage", "ppo"]),
    ];
    for (words, expected) in cases {
        let said = run(site.oarlock(&[&["train"][..], words].concat()));
        assert_refused(&said, 2, expected);
        assert!(!site.path("out").exists() && said.stdout.is_empty(), "{words:?}");
    }
    let mut clash = site.training("out", &[]);
    assert_refused(
        &run({
            clash.env("NPROC_PER_NODE", "3");
            clash
        }),
        2,
        &["`num_processes` is 2, but NPROC_PER_NODE says 3"],
    );
}

#[test]
fn wrong_data_and_models_are_named_with_file_and_line() {
    let site = Site::new();
    site.write("empty.jsonl", "");
    site.write("untitled.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"txt\": \"c\"}\n");
    site.write("broken.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\n");
    site.write("words.docx", "a");
    for (folder, file, content) in [
        ("cut", "model.safetensors", &site.read("model/model.safetensors")[..60_000]),
        ("noise", "model.safetensors", &[0x5a; 300]),
        ("settings", "config.json", b"{\"hidden_size\": "),
        ("words", "tokenizer.json", b"{"),
        (
            "small",
            "config.json",
            String::from_utf8(site.read("model/config.json")).unwrap().replace("300", "280").as_bytes(),
        ),
    ] {
        fs::create_dir(site.path(folder)).unwrap();
        for name in names(&site, "model") {
            fs::copy(site.path("model").join(&name), site.path(folder).join(&name)).unwrap();
        }
        fs::write(site.path(folder).join(file), content).unwrap();
    }
    fs::create_dir(site.path("bare")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(site.path("model").join(name), site.path("bare").join(name)).unwrap();
    }
    let cases: &[(&[&str], &[&str])] = &[
        (&["dataset=empty.jsonl"], &["empty.jsonl", "holds no record"]),
        (&["dataset=untitled.jsonl"], &["untitled.jsonl:3: no column \"text\"", "the columns are \"txt\""]),
        (&["dataset=broken.jsonl"], &["broken.jsonl:2: broken JSON", "repair or remove the record"]),
        (&["dataset=words.docx"], &["words.docx"]),
        (&["model_name_or_path=cut"], &["cut/model.safetensors", "damaged or cut off (60000 bytes)"]),
        (&["model_name_or_path=noise"], &["noise/model.safetensors", "damaged or cut off (300 bytes)"]),
        (&["model_name_or_path=settings"], &["settings/config.json", "EOF while parsing"]),
        (&["model_name_or_path=words"], &["words/tokenizer.json", "is it a whole tokenizer.json?"]),
        (&["model_name_or_path=bare"], &["bare", "holds no model.safetensors", "train_from_scratch: true"]),
        (
            &["model_name_or_path=small"],
            &["the tokenizer knows 300 tokens, the model only 280", "small/config.json"],
        ),
        (&["val_size=46"], &["val_size", "46", "(argument)"]),
    ];
    for (words, expected) in cases {
        // What the rows alone show is found by the ranks; a setting that does not go with them is one of the configuration.
        let by_ranks = words[0].contains(".jsonl") || words[0].starts_with("val_size");
        let code = if words[0].contains(".jsonl") { 1 } else { 2 };
        // One rank, and two of which the first to fail is named.
        assert_refused(
            &run(site.training("out", &[words, &["num_processes=1"][..]].concat())),
            code,
            expected,
        );
        let said = run(site.training("out", words));
        assert_refused(&said, code, expected);
        assert_eq!(said.stderr.starts_with("error: rank "), by_ranks, "{said:?}");
    }
    let said = run(site.oarlock(&["generate", "--model", "nowhere", "--prompt", "a"]));
    assert_refused(&said, 1, &["nowhere/tokenizer.json"]);
    let said = run(site.oarlock(&["generate", "--model", "model", "--prompt", ""]));
    assert_refused(&said, 1, &["the prompt is empty"]);
    let said = run(site.oarlock(&["generate", "--model", "model", "--prompt", "a", "--temperature", "-1"]));
    assert_refused(&said, 1, &["temperature"]);
    assert_eq!(said.stdout, "", "an error stands alone");
    let said = run(site.oarlock(&["chat", "--model", "model"]));
    assert_refused(&said, 1, &["has no chat template"]);
    let said = run(site.oarlock(&[
        "tokenizer",
        "train",
        "--dataset",
        "text.jsonl",
        "--output-dir",
        "t",
        "--vocab-size",
        "9",
    ]));
    assert_refused(&said, 1, &["give at least 292"]);
    assert_refused(&run(site.oarlock(&["trian"])), 2, &["unrecognized subcommand 'trian'"]);
}

#[test]
fn help_and_plans_are_printed_and_nothing_is_written() {
    let site = Site::new();
    for words in
        [&["--help"][..], &["train", "--help"], &["generate", "--help"], &["tokenizer", "train", "--help"]]
    {
        let said = run(site.oarlock(words));
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{words:?}");
        assert!(said.stdout.starts_with("Example: "), "{words:?}");
    }
    let narrowed = run(site.oarlock(&["train", "--help", "lora"])).stdout;
    assert!(narrowed.starts_with("Example: ") && narrowed.contains("lora_rank=N"), "{narrowed}");
    assert!(!narrowed.contains("learning_rate=X"), "{narrowed}");
    assert_refused(&run(site.oarlock(&["train", "--help", "wombat"])), 2, &["no key contains `wombat`"]);
    let help = run(site.oarlock(&["train", "-h"])).stdout;
    assert!(
        help.contains("per_device_train_batch_size=N") && help.contains("Peak learning rate [5e-5]"),
        "{help}"
    );
    assert_eq!(run(site.oarlock(&["train"])).code, Some(2));
    let version = run(site.oarlock(&["--version"])).stdout;
    assert_eq!(version, format!("oarlock {}\n", env!("CARGO_PKG_VERSION")));
    let environment = run(site.oarlock(&["env"])).stdout;
    assert!(environment.contains("- CPU paths: ") && environment.contains("GFLOP/s"), "{environment}");

    let said = run(site.training("out", &["--print-config", "max_steps=7", "--bf16"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let line = |key: &str| {
        let found = said.stdout.lines().find(|line| line.split_whitespace().next() == Some(key));
        found.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    assert_eq!(line("max_steps"), "7 argument");
    assert_eq!(line("bf16"), "true argument");
    assert_eq!(line("learning_rate"), "0.003 train.yaml:5");
    assert_eq!(line("adam_beta1"), "0.9 default");
    assert_eq!(run(site.training("out", &["--dry-run"])).code, Some(0));
    assert!(!site.path("out").exists());
}

#[test]
fn a_run_leaves_the_files_of_llama_factory() {
    let site = Site::new();
    let said = site.train(
        "out",
        &[
            "val_size=0.2",
            "eval_strategy=steps",
            "eval_steps=4",
            "plot_loss=true",
            "save_strategy=steps",
            "save_steps=2",
            "save_total_limit=2",
        ],
    );
    // Standard output is not a terminal: plain lines, one a record.
    assert!(!said.stdout.contains(['\r', '\x1b']), "{said:?}");
    assert_eq!(said.stdout.lines().filter(|line| line.starts_with("step ")).count(), 10, "{said:?}");
    assert_eq!(said.stderr, "");

    let expected = [
        "README.md",
        "all_results.json",
        "cache",
        "checkpoint-10",
        "checkpoint-8",
        "config.json",
        "eval_results.json",
        "generation_config.json",
        "model.safetensors",
        "oarlock_files.json",
        "running_log.txt",
        "tokenizer.json",
        "tokenizer_config.json",
        "train_results.json",
        "trainer_log.jsonl",
        "trainer_state.json",
        "training_args.yaml",
        "training_eval_loss.png",
        "training_loss.png",
    ];
    assert_eq!(names(&site, "out"), expected);
    let checkpoint = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "state",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer_state.json",
    ];
    assert_eq!(names(&site, "out/checkpoint-8"), checkpoint);
    for picture in ["training_loss.png", "training_eval_loss.png"] {
        assert!(site.read(&format!("out/{picture}")).starts_with(b"\x89PNG"));
    }

    let log = site.log("out");
    assert_eq!(log.len(), 10 + 3);
    for key in [
        "current_steps",
        "total_steps",
        "loss",
        "lr",
        "epoch",
        "percentage",
        "elapsed_time",
        "remaining_time",
        "throughput",
        "total_tokens",
    ] {
        assert!(log[0].get(key).is_some(), "{key}: {}", log[0]);
    }
    let evaluated: Vec<_> = log.iter().filter(|record| record.get("eval_loss").is_some()).collect();
    let steps: Vec<_> = evaluated.iter().map(|record| record["current_steps"].as_u64().unwrap()).collect();
    assert_eq!(steps, [4, 8, 10]);
    let results = json(&site, "out/eval_results.json");
    let (loss, perplexity) =
        (results["eval_loss"].as_f64().unwrap(), results["perplexity"].as_f64().unwrap());
    assert!((perplexity - loss.exp()).abs() < 1e-9 * perplexity);
    assert_eq!(evaluated[2]["eval_loss"].as_f64(), Some(loss));
    let all = json(&site, "out/all_results.json");
    assert_eq!(all["perplexity"], results["perplexity"]);
    assert!(all["train_loss"].as_f64().unwrap() < log[0]["loss"].as_f64().unwrap());
    assert_eq!(json(&site, "out/trainer_state.json")["global_step"], 10);
    assert_eq!(json(&site, "out/config.json")["model_type"], "llama");

    // What it wrote of its configuration starts the same run again.
    let args = String::from_utf8(site.read("out/training_args.yaml")).unwrap();
    site.write("again.yaml", &args);
    let again = run(site.oarlock(&["train", "again.yaml", "output_dir=again"]));
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(site.model("again") == site.model("out"));
}

#[test]
fn a_full_disk_under_the_output_costs_lines_and_not_the_training() {
    let site = Site::new();
    let said = run(site.shell("exec \"$0\" train train.yaml output_dir=out > /dev/full"));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.stderr.matches("warning: cannot write to standard output").count(), 1, "{said:?}");
    assert!(site.path("out/model.safetensors").exists());
    assert_eq!(site.losses("out").len(), 10, "the log of the run has every step");
}

#[test]
fn evaluations_begin_when_they_are_asked_to() {
    let site = Site::new();
    let evaluated = |output: &str, words: &[&str]| -> Vec<u64> {
        site.train(output, &[&["val_size=0.1", "do_eval=false", "max_steps=6"], words].concat());
        let log = site.log(output).into_iter().filter(|record| record.get("eval_loss").is_some());
        log.map(|record| record["current_steps"].as_u64().unwrap()).collect()
    };
    let steps = ["eval_strategy=steps", "eval_steps=2"];
    assert_eq!(evaluated("a", &steps), [2, 4, 6]);
    assert_eq!(evaluated("b", &[&steps[..], &["eval_on_start=true", "eval_delay=3"]].concat()), [0, 4, 6]);
    assert_eq!(evaluated("c", &["eval_on_start=true"]), [0]);
    assert_eq!(site.losses("a"), site.losses("b"), "an evaluation changes nothing");
}

#[test]
fn what_deepspeed_has_and_we_lack_is_shown_and_not_started() {
    let site = Site::new();
    site.write(
        "ds.json",
        r#"{"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"amsgrad": true}}}"#,
    );
    let said = run(site.training("out", &["deepspeed=ds.json", "--dry-run"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("zero_optimization.stage"), "{said:?}");
    let missing = "`optimizer.params.amsgrad: true` is not supported yet";
    assert!(
        said.stderr.contains("missing to run it: ds.json:1:") && said.stderr.contains(missing),
        "{said:?}"
    );
    assert_refused(&run(site.training("out", &["deepspeed=ds.json"])), 2, &[missing]);
    assert!(!site.path("out").exists());
}

#[test]
fn a_model_evaluates_alike_on_any_number_of_ranks() {
    let site = Site::new();
    site.write(
        "held.jsonl",
        "{\"text\": \"the ferryman found a rope below the reed beds. The lamp was lit.\"}\n",
    );
    let mut losses = Vec::new();
    for ranks in ["num_processes=1", "num_processes=3"] {
        let words = [
            "do_train=false",
            "do_eval=true",
            "eval_dataset=held.jsonl",
            "per_device_eval_batch_size=1",
            ranks,
        ];
        site.train(ranks, &words);
        assert!(!site.path(ranks).join("model.safetensors").exists());
        losses.push(json(&site, &format!("{ranks}/eval_results.json"))["eval_loss"].as_f64().unwrap());
    }
    assert!((losses[0] - losses[1]).abs() < 1e-5 && losses[0] > 1.0, "{losses:?}");
}

#[test]
fn a_tokenizer_of_ones_own_trains_a_model_from_scratch() {
    let site = Site::new();
    let words =
        ["tokenizer", "train", "--dataset", "text.jsonl", "--output-dir", "own", "--vocab-size", "300"];
    let said = run(site.oarlock(&words));
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (Some(0), "wrote own/tokenizer.json and own/tokenizer_config.json\n")
    );
    fs::copy(golden().join("config.json"), site.path("own/config.json")).unwrap();
    let words = ["model_name_or_path=own", "train_from_scratch=true", "packing=false"];
    site.train("two", &words);
    site.train("one", &[&words[..], &["num_processes=1", "per_device_train_batch_size=12"]].concat());
    let losses = |output: &str| -> Vec<f64> {
        site.losses(output).into_iter().map(|(_, loss, _)| f64::from_bits(loss)).collect()
    };
    let (first, last) = (losses("two")[0], *losses("two").last().unwrap());
    assert!((first - 300f64.ln()).abs() < 0.5 && last < first, "{first} {last}");
    // Initial weights do not depend on the number of ranks.
    assert!(largest_difference(&losses("one"), &losses("two")).unwrap() < 1e-5);
}

#[test]
fn ranks_come_from_the_environment_and_data_from_dataset_dir() {
    let site = Site::new();
    let config = String::from_utf8(site.read("train.yaml")).unwrap().replace("num_processes: 2\n", "");
    site.write("train.yaml", &config);
    fs::create_dir(site.path("data")).unwrap();
    fs::rename(site.path("text.jsonl"), site.path("data/text.jsonl")).unwrap();
    let mut command = site.training("out", &[]);
    let said = run({
        command.env("NPROC_PER_NODE", "2");
        command
    });
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("; 2 rank(s) of "), "{said:?}");
    // The same file under a name of dataset_info.json.
    site.write(
        "data/dataset_info.json",
        "{\"river\": {\"file_name\": \"text.jsonl\", \"columns\": {\"prompt\": \"text\"}}}",
    );
    site.train("named", &["dataset=river", "num_processes=2"]);
    assert!(site.model("named") == site.model("out"));
    let said = run(site.training("out2", &["dataset=rivre", "num_processes=2"]));
    assert_refused(&said, 2, &["Undefined dataset rivre", "river"]);
}

#[test]
fn tokens_are_cached_until_the_text_changes() {
    let site = Site::new();
    let written = || {
        let names = names(&site, "out/cache");
        names
            .iter()
            .map(|name| {
                (name.clone(), fs::metadata(site.path("out/cache").join(name)).unwrap().modified().unwrap())
            })
            .collect::<Vec<_>>()
    };
    let words = ["overwrite_output_dir=true", "max_steps=1"];
    site.train("out", &words);
    let first = written();
    assert_eq!(first.len(), 1);
    site.train("out", &words);
    assert_eq!(written(), first, "a warm cache was built anew");
    site.train("out", &[&words[..], &["overwrite_cache=true"]].concat());
    assert_ne!(written(), first, "overwrite_cache kept the cache");
    let rows = |said: &CommandOutput| {
        said.stdout.split(" rows of ").next().unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let before = rows(&site.train("out", &words));
    let mut text = site.read("text.jsonl");
    text.extend_from_slice(&site.read("text.jsonl"));
    fs::write(site.path("text.jsonl"), text).unwrap();
    let after = rows(&site.train("out", &words));
    assert!(after > before + before / 2, "{before} rows, then {after}");
}

#[test]
fn damaged_checkpoints_are_left_aside_and_named() {
    let site = Site::new();
    let words = ["save_strategy=steps", "save_steps=5"];
    site.train("out", &words);
    let model = site.model("out");
    let damaged = "out/checkpoint-10/state/rank-00001-of-00002.safetensors";
    let whole = site.read(damaged);
    fs::write(site.path(damaged), &whole[..whole.len() / 2]).unwrap();
    let said = site.train("out", &words);
    assert!(said.stderr.contains("warning: out/checkpoint-10 is left aside"), "{said:?}");
    assert!(said.stderr.contains("rank-00001-of-00002.safetensors has"), "{said:?}");
    assert!(said.stdout.contains("Resuming training from out/checkpoint-5."), "{said:?}");
    assert!(site.model("out") == model);

    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(site.path(damaged), &flipped).unwrap();
    let said = run(site.training("out", &["resume_from_checkpoint=out/checkpoint-10"]));
    assert_refused(&said, 2, &["out/checkpoint-10 cannot be loaded", "has changed since it was written"]);
    let said = site.train("out", &words);
    assert!(said.stderr.contains("has changed since it was written"), "{said:?}");
    assert!(said.stdout.contains("Resuming training from out/checkpoint-5."), "{said:?}");
    assert!(site.model("out") == model);
    // Where no other one is left, the run does not begin anew in silence.
    fs::write(site.path(damaged), &flipped).unwrap();
    fs::remove_dir_all(site.path("out/checkpoint-5")).unwrap();
    let said = run(site.training("out", &words));
    assert_refused(&said, 2, &["out/checkpoint-10 cannot be loaded", "has changed since it was written"]);
}

#[test]
fn a_data_set_that_nothing_names_is_told_before_the_ranks_start() {
    let site = Site::new();
    site.write("dataset_info.json", "{\"corpus\": {\"file_name\": \"text.jsonl\"}}");
    let words = ["dataset=corpse", "dataset_dir=."];
    for more in [&["--dry-run"][..], &[]] {
        let said = run(site.training("out", &[&words[..], more].concat()));
        assert_refused(&said, 2, &["Undefined dataset corpse in dataset_info.json. Did you mean corpus?"]);
        assert!(!said.stderr.contains("rank"), "{said:?}");
    }
    site.train("out", &["dataset=corpus", "dataset_dir=.", "max_steps=1"]);
}

#[test]
fn a_run_does_not_begin_anew_beside_a_damaged_checkpoint_unless_it_is_told_to() {
    let site = Site::new();
    let words = ["save_strategy=steps", "save_steps=5", "save_total_limit=1"];
    site.train("out", &words);
    let damaged = "out/checkpoint-10/state/rank-00001-of-00002.safetensors";
    let whole = site.read(damaged);
    let refused = |expected: &str| {
        let said = run(site.training("out", &words));
        assert_refused(&said, 2, &["out/checkpoint-10 cannot be resumed", expected]);
        assert!(said.stderr.contains("to begin anew, write `overwrite_output_dir: true`"), "{said:?}");
    };
    fs::write(site.path(damaged), &whole[..whole.len() / 2]).unwrap();
    refused("rank-00001-of-00002.safetensors has");
    fs::remove_file(site.path(damaged)).unwrap();
    refused("rank-00001-of-00002.safetensors is missing");
    fs::write(site.path("out/checkpoint-10/state/manifest.json"), "{}").unwrap();
    refused("manifest.json is damaged");
    let said = site.train("out", &[&words[..], &["overwrite_output_dir=true"]].concat());
    assert!(said.stdout.contains("done: 10 steps") && !said.stdout.contains("Resuming"), "{said:?}");
}

#[test]
fn weights_alone_are_saved_where_only_they_are_asked_for() {
    let site = Site::new();
    site.train("out", &["save_only_model=true", "save_strategy=steps", "save_steps=5"]);
    let state: Vec<_> = fs::read_dir(site.path("out/checkpoint-10/state")).unwrap().collect();
    assert_eq!(state.len(), 1, "the manifest alone");
    assert!(site.read("out/checkpoint-10/model.safetensors") == site.model("out"));
    assert!(site.read("out/checkpoint-5/model.safetensors") != site.model("out"));
    // Nothing to put together, and nothing to go on from.
    let said = run(site.oarlock(&["merge-weights", "out/checkpoint-10", "merged"]));
    assert_refused(&said, 1, &["out/checkpoint-10", "holds the model alone, in Hugging Face form already"]);
    let said = run(site.training("out", &["resume_from_checkpoint=out/checkpoint-10"]));
    assert_refused(&said, 2, &["out/checkpoint-10", "holds the model alone (save_only_model)"]);
}

#[test]
fn weights_come_out_of_a_checkpoint() {
    let site = Site::new();
    site.train("out", &["bf16=true", "save_strategy=steps", "save_steps=5", "save_total_limit=1"]);
    let said = run(site.oarlock(&["merge-weights", "out", "merged", "--max-shard-size", "40KB"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("parameters of out/checkpoint-10 in bf16 to merged: "), "{said:?}");
    let read = |files: &[&str]| {
        let mut all = std::collections::BTreeMap::new();
        for file in files {
            let bytes = site.read(file);
            for (name, tensor) in safetensors::SafeTensors::deserialize(&bytes).unwrap().iter() {
                all.insert(name.to_string(), (tensor.shape().to_vec(), tensor.data().to_vec()));
            }
        }
        all
    };
    let shards: Vec<String> = fs::read_dir(site.path("merged"))
        .unwrap()
        .map(|entry| format!("merged/{}", entry.unwrap().file_name().to_str().unwrap()))
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    assert!(shards.len() > 1);
    let shards: Vec<&str> = shards.iter().map(String::as_str).collect();
    assert!(read(&shards) == read(&["out/model.safetensors"]));
    let said = run(site.oarlock(&["generate", "--model", "merged", "--prompt", "the"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = run(site.oarlock(&["merge-weights", "model", "elsewhere"]));
    assert_refused(&said, 1, &["model is not a checkpoint, and holds neither"]);
    let said = run(site.oarlock(&["merge-weights", "out", "elsewhere", "-t", "best"]));
    assert_refused(&said, 1, &["out holds no checkpoint \"best\""]);
}
