//! Models that are named as on a hub: they are fetched once, and a run from the cache is that from the folder.

use std::fs;
use std::process::Command;

#[path = "../../hub/tests/fake_hub/mod.rs"]
#[allow(dead_code, reason = "tests of the hub itself use more of it")]
mod fake_hub;

use fake_hub::{FakeHub, repo};

use crate::common::{CommandOutput, Site, run};

/// A hub with the model of a site.
fn hub_of(site: &Site) -> FakeHub {
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let files = names.map(|name| (name, site.read(&format!("model/{name}"))));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    FakeHub::start(vec![repo("models", "owner/tiny", &files)])
}

/// With a network that has this hub alone.
fn online(site: &Site, hub: &FakeHub, mut command: Command) -> CommandOutput {
    let endpoint = hub.environment(&site.path("home"), &[]).endpoint;
    command.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", endpoint).env("HF_HUB_CACHE", "cache");
    run(command)
}

#[test]
fn a_model_of_a_hub_is_fetched_once_and_trains_as_its_folder() {
    let site = Site::new();
    let hub = hub_of(&site);
    let words = ["max_steps=2", "model_name_or_path=owner/tiny"];
    // Whatever else is missing is said before anything is fetched, and a dry run fetches nothing.
    let said = online(&site, &hub, site.training("out", &["dataset=nothing.jsonl", words[1]]));
    assert!(said.code != Some(0) && said.message().contains("no data set `nothing.jsonl`"), "{said:?}");
    let said = online(&site, &hub, site.training("out", &["--dry-run", words[1]]));
    assert!(said.message().contains("no model folder `owner/tiny`"), "{said:?}");
    assert_eq!(hub.take_log().len(), 0);

    let said = online(&site, &hub, site.training("out", &words));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("owner/tiny lies in cache/models--owner--tiny/snapshots/"), "{said:?}");
    site.train("folder", &words[..1]);
    assert!(site.model("out") == site.model("folder"));
    // From then on without the hub.
    hub.take_log();
    let said = online(&site, &hub, site.training("again", &words));
    assert_eq!((said.code, hub.take_log().len()), (Some(0), 0), "{said:?}");
    let ask = ["generate", "--model", "owner/tiny", "--prompt", "the", "--max-new-tokens", "3"];
    let said = online(&site, &hub, site.oarlock(&ask));
    assert!(said.code == Some(0) && said.stdout.starts_with("the"), "{said:?}");
    let export = ["export", "model_name_or_path=owner/tiny", "export_dir=exported"];
    let said = online(&site, &hub, site.oarlock(&export));
    assert_eq!((said.code, hub.take_log().len()), (Some(0), 0), "{said:?}");
    let said = run(site.oarlock(&["export", "model_name_or_path=model", "export_dir=of_folder"]));
    assert!(said.code == Some(0) && site.model("exported") == site.model("of_folder"), "{said:?}");
}

#[test]
fn what_no_hub_has_is_said_with_both_meanings_of_the_name() {
    let site = Site::new();
    let hub = hub_of(&site);
    let said = online(&site, &hub, site.training("out", &["model_name_or_path=owner/tinny"]));
    let message = said.message();
    assert!(
        said.code != Some(0) && message.contains("no model folder `owner/tinny`, and none comes from a hub"),
        "{message}"
    );
    assert!(message.contains("train.yaml:1") || message.contains("command line:1"), "{message}");
    // In a folder that is there, it is a path.
    hub.take_log();
    fs::create_dir(site.path("owner")).unwrap();
    let said = online(&site, &hub, site.training("out", &["model_name_or_path=owner/tiny"]));
    assert!(said.message().contains("no model folder `owner/tiny`"), "{said:?}");
    assert_eq!(hub.take_log().len(), 0);
    fs::remove_dir(site.path("owner")).unwrap();
    // Without a network.
    let said = run(site.training("out", &["model_name_or_path=owner/tiny"]));
    assert!(said.message().contains("outgoing traffic has been disabled"), "{said:?}");
    // A token is shown to nobody but the hub, and not at all where it would be printed.
    let words = ["model_name_or_path=owner/tinny", "hf_hub_token=hf_marker"];
    let said = online(&site, &hub, site.training("out", &words));
    assert!(!format!("{said:?}").contains("hf_marker"), "{said:?}");
    let asked = hub.take_log();
    assert!(asked.iter().any(|request| request.header("authorization") == Some("Bearer hf_marker")));
}

#[test]
fn data_sets_of_a_hub_are_fetched_once_and_train_as_their_files() {
    let site = Site::new();
    let rows = site.read("text.jsonl");
    // Half of the rows in each file of a split, and other rows in files that nobody asks for.
    let end = rows.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let ends: Vec<usize> = end.collect();
    let (first, second) = rows.split_at(ends[ends.len() / 2]);
    let other: &[u8] = b"{\"text\": \"other rows\"}\n";
    let readme: &[u8] = b"---\nconfigs:\n- config_name: whole\n  data_files:\n  - {split: train, path: a/*}\n  - {split: test, path: b/*}\n- config_name: rest\n  data_files: b/*\n---\n";
    let table: &[u8] = b"{\"there\": {\"hf_hub_url\": \"owner/plain\"}}";
    let hub = FakeHub::start(vec![
        repo(
            "datasets",
            "owner/plain",
            &[("train-0.jsonl", first), ("train-1.jsonl", second), ("test.jsonl", other)],
        ),
        repo(
            "datasets",
            "owner/named",
            &[("README.md", readme), ("a/0.jsonl", first), ("a/1.jsonl", second), ("b/0.jsonl", other)],
        ),
        repo("datasets", "owner/tables", &[("dataset_info.json", table)]),
    ]);
    fs::create_dir(site.path("data")).unwrap();
    site.write(
        "data/dataset_info.json",
        r#"{"whole": {"hf_hub_url": "owner/named", "subset": "whole"},
            "eight": {"ms_hub_url": "nobody/x", "hf_hub_url": "owner/plain", "split": "train[:8]"},
            "few": {"hf_hub_url": "owner/plain", "split": "train[3:]"},
            "script": {"script_url": "here"}}"#,
    );
    site.train("file", &["max_steps=2"]);
    for (out, words) in [
        ("plain", vec!["dataset=owner/plain"]),
        ("whole", vec!["dataset=whole"]),
        ("online", vec!["dataset=owner/plain", "dataset_dir=ONLINE"]),
        ("table", vec!["dataset=there", "dataset_dir=REMOTE:owner/tables"]),
    ] {
        let words: Vec<&str> = words.into_iter().chain(["max_steps=2"]).collect();
        // A dry run says what is not here, and fetches nothing.
        let dry: Vec<&str> = words.iter().copied().chain(["--dry-run"]).collect();
        hub.take_log();
        let said = online(&site, &hub, site.training("dry", &dry));
        assert_eq!(hub.take_log().len(), 0, "{said:?}");
        let said = online(&site, &hub, site.training(out, &words));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(site.model(out) == site.model("file"), "{out}");
        // From then on without the hub.
        hub.take_log();
        let said = online(&site, &hub, site.training("again", &words));
        assert_eq!((said.code, hub.take_log().len()), (Some(0), 0), "{said:?}");
        fs::remove_dir_all(site.path("again")).unwrap();
    }
    // The first rows of a split are those of a limit.
    let said = online(&site, &hub, site.training("eight", &["dataset=eight", "max_steps=2"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    site.train("limit", &["max_steps=2", "max_samples=8"]);
    assert!(site.model("eight") == site.model("limit"));
    for (words, message) in [
        (["dataset=few", "max_steps=2"], "split train[3:] asks for other rows than the first"),
        (["dataset=script", "max_steps=2"], "is remote (script_url: here)"),
        (["dataset=owner/nothing", "max_steps=2"], "no data set `owner/nothing`, and none comes from a hub"),
        (["dataset=owner/named", "max_steps=2"], "it has several configurations; name one of whole, rest"),
    ] {
        let said = online(&site, &hub, site.training("out", &words));
        assert!(said.code != Some(0) && said.message().contains(message), "{said:?}");
    }
}

#[test]
fn an_adapter_of_a_hub_is_fetched_for_a_run_and_for_a_chat() {
    let site = Site::new();
    site.train("lora", &["max_steps=2", "finetuning_type=lora", "model_name_or_path=model"]);
    let names = ["adapter_config.json", "adapter_model.safetensors"];
    let files = names.map(|name| (name, site.read(&format!("lora/{name}"))));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let hub = FakeHub::start(vec![repo("models", "owner/adapter", &files)]);
    let of = |name: &str| {
        let adapter = format!("adapter_name_or_path={name}");
        ["max_steps=2", "finetuning_type=lora", "model_name_or_path=model", &adapter].map(str::to_owned)
    };
    let [on_hub, here] = [of("owner/adapter"), of("lora")];
    let words: Vec<&str> = on_hub.iter().map(String::as_str).collect();
    let said = online(&site, &hub, site.training("hub", &words));
    assert_eq!(said.code, Some(0), "{said:?}");
    site.train("here", &here.iter().map(String::as_str).collect::<Vec<_>>());
    let adapter = "adapter_model.safetensors";
    assert!(site.read(&format!("hub/{adapter}")) == site.read(&format!("here/{adapter}")));
    hub.take_log();
    let ask = |adapter| {
        [
            "generate",
            "model",
            "--adapter",
            adapter,
            "--prompt",
            "the",
            "--max-new-tokens",
            "3",
            "--temperature",
            "0",
        ]
    };
    let said = online(&site, &hub, site.oarlock(&ask("owner/adapter")));
    assert_eq!((said.code, hub.take_log().len()), (Some(0), 0), "{said:?}");
    assert_eq!(said.stdout, run(site.oarlock(&ask("lora"))).stdout);
}
