//! Memory as the user meets it: predicted before the start, refused where it cannot fit, compared at the end.

use crate::common::{Site, run};
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
    // The model is so small that the program is nearly all of it.
    let compared = line("a rank, measured peak");
    let percent = compared.rsplit_once('(').and_then(|(_, end)| end.split(' ').next()?.parse::<f64>().ok());
    assert!((30.0..300.0).contains(&percent.unwrap()), "{compared}");
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
