//! The same answers make the same files as in accelerate itself, and a file of any age becomes the same file.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::prompter::{LinePrompter, PromptError};
use super::{basic, configuration};
use crate::front::accelerate::cluster::{Cluster, default_file};
use crate::front::accelerate::{dump, golden};
use crate::launch::devices::Devices;

fn with(answers: &Value) -> Result<Cluster, PromptError> {
    let lines: String =
        answers.as_array().unwrap().iter().map(|line| format!("{}\n", line.as_str().unwrap())).collect();
    let mut prompter = LinePrompter { input: lines.as_bytes(), output: Vec::new() };
    let cluster = configuration(&mut prompter)?;
    assert!(
        prompter.input.is_empty(),
        "not all answers were asked for: {:?}",
        String::from_utf8_lossy(prompter.input)
    );
    Ok(cluster)
}

#[test]
fn the_same_answers_make_the_same_file() {
    let golden = golden();
    let cases = golden["config"].as_object().unwrap();
    assert!(cases.len() > 30);
    for (name, case) in cases {
        let cluster = with(&case["answers"]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(cluster.to_text(Path::new("a.yaml")), case["file"], "{name}");
        assert_eq!(cluster.shown(), shown_in_order(case["shown"].as_str().unwrap(), &cluster), "{name}");
    }
    let json = with(&golden["json"]["answers"]).unwrap();
    assert_eq!(json.to_text(Path::new("a.json")), golden["json"]["file"]);
}

/// Mappings inside are shown in the order of the file, which a fresh configuration has not been through.
fn shown_in_order(shown: &str, cluster: &Cluster) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    fs::write(&path, cluster.to_text(&path)).unwrap();
    let read = Cluster::read(&path).unwrap();
    assert_eq!(read.shown(), shown);
    assert_eq!(&read, cluster);
    cluster.shown()
}

#[test]
fn answers_that_the_original_does_not_take_make_no_file() {
    for (name, case) in golden()["fails"].as_object().unwrap() {
        let error = with(&case["answers"]).unwrap_err();
        let ended = matches!(error, PromptError::Ended(_));
        assert_eq!(ended, case["error"] == "EOFError", "{name}: {error}");
        assert!(ended || matches!(error, PromptError::Refused(_)), "{name}: {error}");
    }
    let sagemaker = with(&json!(["1"])).unwrap_err();
    assert!(sagemaker.to_string().contains("SageMaker is a service"), "{sagemaker}");
}

#[test]
fn many_machines_are_no_menu() {
    let ranks = |answer: &str| {
        json!(["0", "4", "1000000000", answer, "a", "29500", "", "", "", "", "", "", "8", "", "", "2"])
    };
    let cluster = with(&ranks("999999999")).unwrap();
    assert_eq!(cluster.int("machine_rank"), Some(999_999_999));
    // Neither so many ranks nor so high a port.
    assert!(with(&ranks("1000000000")).is_err());
    let port = json!(["0", "4", "2", "0", "a", "70000", "1", "", "", "", "", "", "", "8", "", "", "2"]);
    assert_eq!(with(&port).unwrap().int("main_process_port"), Some(1));
}

#[test]
fn a_file_of_any_age_is_read_as_the_original_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    for (name, case) in golden()["read"].as_object().unwrap() {
        fs::write(&path, case["before"].as_str().unwrap()).unwrap();
        let cluster = Cluster::read(&path).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(cluster.to_text(&path), case["after"], "{name}");
        assert_eq!(cluster.shown(), case["shown"], "{name}");
    }
}

#[test]
fn the_default_is_what_the_machine_has() {
    let default = &golden()["default"];
    let of = |gpus| basic(&Devices { gpus, cores: 8 }, default["mixed_precision"].as_str().unwrap());
    assert_eq!(of(0).to_json(), default["file"]);
    assert_eq!((of(1).text("distributed_type"), of(1).int("num_processes")), (Some("NO"), Some(1)));
    assert_eq!((of(4).text("distributed_type"), of(4).int("num_processes")), (Some("MULTI_GPU"), Some(4)));
    assert!(of(0).is_on("use_cpu") && !of(4).is_on("use_cpu"));
}

#[test]
fn texts_are_written_as_the_original_writes_them() {
    for case in golden()["scalars"].as_array().unwrap() {
        let inner: Map<String, Value> = Map::from_iter([("key".to_owned(), case[0].clone())]);
        let map = Map::from_iter([("fsdp_config".to_owned(), Value::Object(inner))]);
        assert_eq!(dump::yaml(&map), case[1], "{:?}", case[0]);
    }
}

#[test]
fn a_wrong_file_is_told_with_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    let refusal = |text: &str| {
        fs::write(&path, text).unwrap();
        Cluster::read(&path).unwrap_err().to_string()
    };
    let both = refusal("num_proceses: 2\nuse_cpu: true\nuse_cpu: false\n");
    for part in
        ["did you mean `num_processes`?", "`use_cpu` is written twice", "does not say `distributed_type`"]
    {
        assert!(both.contains(part), "{part}: {both}");
    }
    assert!(refusal("distributed_type: MANY\n").contains("an unknown `distributed_type`"));
    assert!(
        refusal("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n").contains("is a service")
    );
    assert!(refusal("- a\n").contains("a configuration is a mapping"));
    let missing = Cluster::read(&folder.path().join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("cannot read the configuration"), "{missing}");
}

#[test]
fn the_file_lies_where_the_original_looks_for_it() {
    let at = |variables: &'static [(&str, &str)]| {
        let found = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        default_file(&found).display().to_string()
    };
    assert_eq!(at(&[("HOME", "/h")]), "/h/.cache/huggingface/accelerate/default_config.yaml");
    assert_eq!(
        at(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]),
        "/c/huggingface/accelerate/default_config.yaml"
    );
    assert_eq!(at(&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/hf")]), "/hf/accelerate/default_config.yaml");
    assert_eq!(at(&[("HOME", "/h"), ("HF_HOME", "")]), at(&[("HOME", "/h")]));
    assert_eq!(at(&[("HOME", "/h"), ("HF_HOME", "~/hf")]), "/h/hf/accelerate/default_config.yaml");
}

proptest! {
    /// Numbers and words that lead far into the questions, and whatever else is typed.
    #[test]
    fn no_answer_panics(lines in vec(prop_oneof!["", "[0-9]{1,2}", "yes", "no", "\\PC{0,20}"], 0..60)) {
        let said = lines.join("\n");
        let mut prompter = LinePrompter { input: said.as_bytes(), output: Vec::new() };
        if let Ok(cluster) = configuration(&mut prompter) {
            prop_assert!(cluster.text("distributed_type").is_some());
        }
    }

    #[test]
    fn no_file_panics(text in "(distributed_type: 'NO'\n)?(\\PC|[ \n:#'\"\\[{}-]){0,200}") {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "a.json"] {
            let path = folder.path().join(name);
            fs::write(&path, &text).unwrap();
            if let Ok(cluster) = Cluster::read(&path) {
                cluster.shown();
                cluster.to_text(&path);
            }
        }
    }

    #[test]
    fn what_is_written_is_read(text in "(\\PC|[ \n\t']){0,200}", number in any::<f64>(), whole in any::<i64>()) {
        let folder = tempfile::tempdir().unwrap();
        let said = json!({
            "distributed_type": "FSDP", "fsdp_config": { "text": text, "number": number, "whole": whole },
            "commands": [text, { "a": text }],
        });
        let cluster = Cluster::of(said.as_object().unwrap().clone());
        for name in ["a.yaml", "a.json"] {
            let path = folder.path().join(name);
            fs::write(&path, cluster.to_text(&path)).unwrap();
            let read = Cluster::read(&path).unwrap();
            prop_assert_eq!(&read, &cluster, "{}", cluster.to_text(&path));
        }
    }
}
