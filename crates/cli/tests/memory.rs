//! Memory as the user meets it: predicted before the start, refused where it cannot fit, compared at the end.

use crate::common::{Site, run, start, until};
use serde_json::Value;

#[test]
fn a_run_tells_what_it_predicted_and_what_it_took() {
    let site = Site::new();
    site.train("out", &["memory_steps=4", "max_steps=8"]);
    let log = String::from_utf8(site.read("out/running_log.txt")).unwrap();
    let line =
        |word: &str| log.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {log}"));
    assert!(line("memory: predicted").contains("for all 2 (working weights"));
    assert_eq!(log.matches("memory after step").count(), 2, "{log}");
    // The model is so small that the program is nearly all of it: this is a line that is there, and no measure of predictions,
    // which `rows_without_padding_are_predicted_by_the_longest_batch_that_comes` holds within 3 and 10 %.
    let compared = line("a rank, measured peak");
    let percent = compared.rsplit_once('(').and_then(|(_, end)| end.split(' ').next()?.parse::<f64>().ok());
    assert!((30.0..300.0).contains(&percent.unwrap()), "{compared}");
}

/// A model whose activations take more than the program does.
const SMALL: &str = r#"{
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 192, "intermediate_size": 768,
  "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu",
  "rope_theta": 10000.0, "torch_dtype": "float32"
}"#;

#[test]
#[ignore = "heavy"]
fn rows_without_padding_are_predicted_by_the_longest_batch_that_comes() {
    let site = Site::with_own_program();
    let config: Value = serde_json::from_slice(&site.read("model/config.json")).unwrap();
    site.write("model/config.json", &SMALL.replace("VOCAB", &config["vocab_size"].to_string()));
    let row = |i: usize| {
        let answer = "the ferry crosses at noon ".repeat(1 + i * i % 17);
        format!("{{\"instruction\": \"When, {i}?\", \"input\": \"\", \"output\": \"{}\"}}", answer.trim())
    };
    site.write("rows.json", &format!("[{}]", (0..48).map(row).collect::<Vec<_>>().join(",")));
    let common = [
        "stage=sft",
        "template=default",
        "dataset=rows.json",
        "cutoff_len=512",
        "per_device_train_batch_size=8",
        "gradient_accumulation_steps=2",
        "train_from_scratch=true",
        "max_steps=3",
        "num_processes=1",
        "eval_dataset=rows.json",
        "per_device_eval_batch_size=4",
    ];
    let from_scratch = common.iter().filter(|word| !word.starts_with("train_from"));
    let from_scratch: Vec<&str> = from_scratch.copied().collect();
    for (output, words) in [
        ("full", common.to_vec()),
        ("lora", [&from_scratch[..], &["model_name_or_path=full", "finetuning_type=lora"]].concat()),
    ] {
        site.train(output, &words);
        let log = String::from_utf8(site.read(&format!("{output}/running_log.txt"))).unwrap();
        assert!(log.contains("; the largest micro-batch has "), "{log}");
        let compared = log.lines().find(|line| line.contains("a rank, measured peak")).unwrap();
        let megabytes = compared.split(" MB").filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok());
        let [predicted, measured] = megabytes.collect::<Vec<_>>()[..] else { panic!("{compared}") };
        assert!(measured <= 1.03 * predicted && predicted <= 1.1 * measured, "{output}: {compared}");
    }
    // Without the data the longest conversations are assumed.
    let said = run(site.training("dry", &[&common[..], &["--dry-run"]].concat()));
    assert!(said.stdout.contains("every conversation counts with cutoff_len 512 tokens here"), "{said:?}");
}

/// A batch larger than the data is the batch of all of them, in memory and in what is computed.
#[test]
fn rows_that_the_data_do_not_have_are_neither_predicted_nor_computed() {
    let site = Site::with_own_program();
    let n_texts = String::from_utf8(site.read("text.jsonl")).unwrap().lines().count();
    let common = ["packing=false", "num_processes=1", "max_steps=2", "eval_dataset=text.jsonl"];
    let mut found = Vec::new();
    for (output, batch) in [("all", n_texts), ("more", 4_000)] {
        let sizes = ["train", "eval"].map(|what| format!("per_device_{what}_batch_size={batch}"));
        let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
        site.train(output, &[&common[..], &sizes].concat());
        let log = String::from_utf8(site.read(&format!("{output}/running_log.txt"))).unwrap();
        let compared = log.lines().find(|line| line.contains("a rank, measured peak")).unwrap();
        let megabytes = compared.split(" MB").filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok());
        let results: Value =
            serde_json::from_slice(&site.read(&format!("{output}/eval_results.json"))).unwrap();
        found.push((megabytes.collect::<Vec<_>>(), site.losses(output), results["eval_loss"].clone()));
    }
    let [all, more] = &found[..] else { panic!("two runs") };
    // What the program itself takes is measured once more when the data are there.
    let is_alike = all.0.iter().zip(&more.0).all(|(all, more)| *more < 1.6 * all);
    assert!(is_alike && more.0.len() == 2, "{:?} {:?}", all.0, more.0);
    assert_eq!((&more.1, &more.2), (&all.1, &all.2));
    assert_eq!(site.model("more"), site.model("all"));
}

/// The memory of a run that is its own, in bytes; other than PSS it does not depend on who else runs the program.
fn private_memory(site: &Site) -> u64 {
    let running = start(site.training("out", &["max_steps=100000", "num_processes=1"]));
    until("the third step", || (site.log("out").len() > 2).then_some(()));
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", running.pid())).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    1024 * line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
}

#[test]
fn a_run_keeps_nothing_of_what_tokenizing_took() {
    let site = Site::new();
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/corpus/pretrain.jsonl");
    std::fs::copy(corpus, site.path("text.jsonl")).unwrap();
    let with_the_cache_to_build = private_memory(&site);
    std::fs::remove_file(site.path("out/trainer_log.jsonl")).unwrap();
    let with_the_cache = private_memory(&site);
    let more = with_the_cache_to_build.saturating_sub(with_the_cache);
    assert!(more < 3 << 20, "{more} bytes more than {with_the_cache}");
}

#[test]
fn groups_of_ranks_hold_the_states_of_so_many_ranks() {
    let site = Site::new();
    // So many parameters that megabytes show them.
    let config = std::fs::read_to_string(site.path("model/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["intermediate_size"] = Value::from(20_000);
    site.write("model/config.json", &config.to_string());
    let states = |ranks: &str, group: &str| {
        let zero = format!("deepspeed={{zero_optimization: {{stage: 3{group}}}}}");
        let ranks = format!("num_processes={ranks}");
        let words = ["max_steps=1", "train_from_scratch=true", "overwrite_output_dir=true", &zero, &ranks];
        site.train("out", &words);
        let log = String::from_utf8(site.read("out/running_log.txt")).unwrap();
        let line = log.lines().rfind(|line| line.contains("(working weights ")).unwrap();
        let parts = line.split(['(', ',', ')']).map(str::trim);
        ["working weights", "optimizer state"]
            .map(|name| parts.clone().find_map(|part| part.strip_prefix(name)).unwrap().trim().to_owned())
    };
    let (two, four) = (states("2", ""), states("4", ""));
    assert_ne!(two, four);
    assert_eq!(states("4", ", mics_shard_size: 2"), two);
    assert_eq!(states("4", ", zero_hpz_partition_size: 2"), four, "nothing is gathered in one memory");
}

#[test]
fn a_training_that_cannot_fit_is_refused_before_anything_is_loaded() {
    let site = Site::new();
    // 500 MB: enough for the program, not for 4096 sequences of 64 tokens at a time.
    let train = "exec \"$0\" train train.yaml output_dir=out cutoff_len=64 per_device_train_batch_size=4096";
    for (limit, ranks) in [("-v", 1), ("-d", 2)] {
        let said = run(site.shell(&format!("ulimit {limit} 500000 && {train} num_processes={ranks}")));
        assert_eq!(said.code, Some(1), "{said:?}");
        for word in [
            "not enough memory to train",
            &format!("ulimit {limit}"),
            "what would fit",
            "memory_check: false",
        ] {
            assert!(said.stderr.contains(word), "it does not say {word:?}: {said:?}");
        }
        assert!(said.stderr.contains("per_device_train_batch_size: "), "{said:?}");
        assert!(!site.path("out").exists(), "nothing was written");
    }
}

#[test]
fn the_estimate_is_printed_without_loading_the_model() {
    let site = Site::new();
    std::fs::remove_file(site.path("model/model.safetensors")).unwrap();
    let words = ["estimate-memory", "model", "--cutoff-len", "32", "--num-processes", "2", "--dtype", "f32"];
    let said = run(site.oarlock(&words));
    assert_eq!(said.code, Some(0), "{said:?}");
    for word in ["DDP", "ZeRO-3", "working weights", "activations, logits, scratch", "all ranks"] {
        assert!(said.stdout.contains(word), "it does not say {word:?}: {said:?}");
    }
    let said = run(site.oarlock(&[&words[..], &["--json"]].concat()));
    let json: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(json["stages"].as_array().unwrap().len(), 4);
    let stage = &json["stages"][1];
    let parts: u64 =
        stage["parts"].as_array().unwrap().iter().map(|part| part["rank"].as_u64().unwrap()).sum();
    assert_eq!(stage["rank"].as_u64(), Some(parts));

    let said = run(site.oarlock(&[
        "estimate-memory",
        "--params",
        "7B",
        "--num-processes",
        "8",
        "--compare",
        "deepspeed",
    ]));
    for word in ["model states only", "126000.0", " 312.92GB |  27.71GB | offload_optimizer=none"] {
        assert!(said.stdout.contains(word), "it does not say {word:?}: {said:?}");
    }
    let said = run(site.oarlock(&["estimate-memory", "--hidden", "512", "--layers", "8", "--stage", "3"]));
    assert!(said.code == Some(0) && !said.stdout.contains("DDP"), "{said:?}");
    for wrong in [
        &["--params", "many"][..],
        &["--hidden", "512"],
        &["--params", "7B", "--offload-param", "nvme"],
        &["model", "--cutoff-len", "32", "--batch", "0"],
        &["model", "--cutoff-len", "32", "--batch", "99999999999999"],
        &[],
    ] {
        assert_ne!(run(site.oarlock(&[&["estimate-memory"], wrong].concat())).code, Some(0), "{wrong:?}");
    }
}

#[test]
fn beside_a_gpu_each_kind_of_state_is_where_it_was_asked_to_be() {
    let site = Site::new();
    let words = ["estimate-memory", "--params", "1M", "--stage", "3", "--dtype", "f32", "--device", "cuda"];
    let names = |more: &[&str]| -> [Vec<String>; 2] {
        let said = run(site.oarlock(&[&words[..], &["--json", "--num-processes", "2"], more].concat()));
        let json: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
        let stage = &json["stages"][0];
        let on_gpu = stage["gpu_parts"].as_array().unwrap();
        let bytes: u64 = on_gpu.iter().map(|part| part["rank"].as_u64().unwrap()).sum();
        assert_eq!(stage["gpu_rank"].as_u64(), Some(bytes));
        // Context, workspace of products, and kernels that are loaded later.
        let more = stage["gpu_in_use"].as_u64().unwrap() - bytes;
        assert_eq!(more, (480 << 20) + (32 << 20) + (8 << 20));
        [on_gpu, stage["parts"].as_array().unwrap()]
            .map(|parts| parts.iter().map(|part| part["name"].as_str().unwrap().to_owned()).collect())
    };
    let state = |names: &[String]| names.iter().any(|name| name == "optimizer state");
    let weights = |names: &[String]| names.iter().any(|name| name == "weights in main memory");
    let [gpu, host] = names(&[]);
    assert!(state(&gpu) && !state(&host) && !weights(&host), "{gpu:?} {host:?}");
    let [gpu, host] = names(&["--offload-optimizer", "cpu"]);
    assert!(!state(&gpu) && state(&host) && !weights(&host), "{gpu:?} {host:?}");
    let [gpu, host] = names(&["--offload-optimizer", "cpu", "--offload-param", "cpu"]);
    assert!(!state(&gpu) && state(&host) && weights(&host), "{gpu:?} {host:?}");
    let said = run(site.oarlock(&words));
    assert!(said.stdout.contains("ZeRO-3  GPU memory: predicted "), "{said:?}");
}
