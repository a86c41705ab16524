//! What a program finds in its environment, as Accelerate 1.15 leaves it; `launch_environment.py` beside the golden
//! file made it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Site, variables};

/// What names a run of torchrun, or is the same always.
const LEFT_OUT: [&str; 3] =
    ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"];

#[test]
fn a_program_finds_what_accelerate_leaves_it() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../tests/golden/accelerate/launch_environment.json"))
            .unwrap();
    assert!(cases.len() >= 25);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let ranks = case["ranks"].as_array().unwrap();
        let more: Vec<(&str, &str)> = case["environment"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str().unwrap()))
            .collect();
        // There were no GPUs, of which Accelerate makes sure only where nothing is said.
        let site = Site::new(if ranks.len() == 1 { 0 } else { 8 }).variables(&more);
        if let Some(text) = case["file"].as_str() {
            site.write("c.yaml", text);
        }
        let words: Vec<&str> =
            case["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        // The word is a value that stays as it is.
        let line = words.join(" ").replace("ds_config.json", "./ds_config.json");
        let resolved = site.resolve(&line);
        assert_eq!(resolved.launch.local_ranks(), ranks.len(), "{name}");
        let here = std::env::current_dir().unwrap().display().to_string();
        for (rank, expected) in ranks.iter().enumerate() {
            let mut found: BTreeMap<String, String> = variables(&resolved, rank).into_iter().collect();
            found.retain(|name, value| {
                !LEFT_OUT.contains(&name.as_str()) && !more.contains(&(name.as_str(), value.as_str()))
            });
            if resolved.launch.threads.is_none() {
                found.insert("OMP_NUM_THREADS".to_owned(), "1".to_owned());
            }
            for value in found.values_mut() {
                *value = value.replace(&here, "FOLDER").replace("./ds_config", "ds_config");
            }
            let expected: BTreeMap<String, String> = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(found, expected, "{name}, rank {rank}");
        }
    }
}
