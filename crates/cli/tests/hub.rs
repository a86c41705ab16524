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
