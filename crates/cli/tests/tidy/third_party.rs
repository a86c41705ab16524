//! The notices of `oarlock licenses` are those of the crates that the program is linked from.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// The crates of others that the program is linked from without features: name and version, source, license.
fn linked() -> BTreeMap<String, (String, String)> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]);
    cargo.current_dir(super::root());
    let said = cargo.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let data: Value = serde_json::from_slice(&said.stdout).unwrap();
    let by_id = |list: &Value| -> BTreeMap<String, Value> {
        let one = |value: &Value| (value["id"].as_str().unwrap().to_owned(), value.clone());
        list.as_array().unwrap().iter().map(one).collect()
    };
    let (packages, nodes) = (by_id(&data["packages"]), by_id(&data["resolve"]["nodes"]));
    let is_program = |id: &&String| packages[*id]["name"] == "oarlock-cli";
    let mut todo: Vec<String> = packages.keys().filter(is_program).cloned().collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        for dependency in nodes[&id]["deps"].as_array().unwrap() {
            let kinds = dependency["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                todo.push(dependency["pkg"].as_str().unwrap().to_owned());
            }
        }
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_others = seen.iter().map(|id| &packages[id]).filter(|package| !package["source"].is_null());
    let named = |package: &Value| {
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        (name, (text(&package["source"]), text(&package["license"])))
    };
    of_others.map(named).collect()
}

#[test]
fn every_crate_that_is_linked_has_its_notice() {
    let path = super::root().join("crates/cli/src/commands/licenses/third-party.txt");
    let notices = std::fs::read_to_string(path).unwrap();
    let listed: BTreeSet<&str> = notices
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    let linked = linked();
    assert!(linked.len() > 100, "{} crates", linked.len());
    for (name, (source, license)) in &linked {
        assert!(listed.contains(name.as_str()), "{name} ({license}) has no notice: run .ci/third-party");
        assert!(
            source.starts_with("registry+https://github.com/rust-lang/crates.io-index"),
            "{name}: {source}"
        );
    }
}
