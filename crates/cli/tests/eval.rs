//! Questions with a choice of answers: what is counted, and what is left behind.

use std::fs;

use serde_json::Value;

use crate::common::{Site, run};

fn site() -> Site {
    let site = Site::new();
    fs::create_dir_all(site.path("evaluation/mmlu/data/test")).unwrap();
    fs::create_dir_all(site.path("evaluation/mmlu/data/dev")).unwrap();
    let mut config: Value = serde_json::from_slice(&site.read("model/config.json")).unwrap();
    config["max_position_embeddings"] = 512.into();
    site.write("model/config.json", &config.to_string());
    let mapping = r#"{"boats": {"name": "boats", "category": "STEM"}, "banks": {"name": "banks", "category": "Other"}}"#;
    site.write("evaluation/mmlu/mapping.json", mapping);
    for subject in ["boats", "banks"] {
        site.write(&format!("evaluation/mmlu/data/dev/{subject}_dev.csv"), "Who rowed?,Ida,Wren,Tom,Ann,A\n");
        // One question, and each letter right once: a quarter of them is answered rightly, whatever the model says.
        let rows: String =
            ["A", "B", "C", "D"].map(|right| format!("Who was there?,Ida,Wren,Tom,Ann,{right}\n")).concat();
        site.write(&format!("evaluation/mmlu/data/test/{subject}_test.csv"), &rows);
    }
    site
}

#[test]
fn questions_are_counted_by_category_and_answers_are_kept() {
    let site = site();
    let words = ["--task", "mmlu_test", "--n-shot", "1", "--save-dir", "eval"];
    let said = run(site.oarlock(&[&["eval", "--model", "model"][..], &words].concat()));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.stdout, "        Average: 25.00\n           STEM: 25.00\n          Other: 25.00\n");
    assert!(
        said.stderr.contains("boats: 25.00, 4 questions") && said.stderr.contains("template fewshot"),
        "{said:?}"
    );
    assert_eq!(String::from_utf8(site.read("eval/results.log")).unwrap(), said.stdout.trim_end_matches('\n'));
    let results: Value = serde_json::from_slice(&site.read("eval/results.json")).unwrap();
    let answer = results["boats"]["0"].as_str().unwrap();
    assert!(["A", "B", "C", "D"].contains(&answer));
    assert!((0..4).all(|at| results["boats"][at.to_string()] == answer), "{results}");

    let again = run(site.oarlock(&[&["eval", "--model", "model"][..], &words].concat()));
    assert!(
        again.code != Some(0) && again.stderr.contains("`save_dir` eval already exists, use another one"),
        "{again:?}"
    );
    site.write(
        "eval.yaml",
        "model_name_or_path: model\ntask: mmlu_test\ntemplate: fewshot\nlang: en\nn_shot: 1\nbatch_size: 4\nsave_dir: again\n",
    );
    let theirs = run(site.oarlock(&["llamafactory-cli", "eval", "eval.yaml"]));
    assert_eq!(theirs.stdout, said.stdout, "{theirs:?}");
    assert_eq!(site.read("again/results.json"), site.read("eval/results.json"));
}

#[test]
fn what_cannot_be_asked_is_refused_with_a_reason() {
    let site = site();
    let said = |words: &[&str]| run(site.oarlock(&[&["eval", "--model", "model"][..], words].concat()));
    let missing = said(&["--task", "cmmlu_test"]);
    assert!(missing.code != Some(0) && missing.stderr.contains("cmmlu/mapping.json"), "{missing:?}");
    site.write("evaluation/mmlu/data/test/boats_test.csv", &"Who?,a,b,c,d,A\n".repeat(2));
    site.write("evaluation/mmlu/data/dev/boats_dev.csv", &format!("{},a,b,c,d,A\n", "long ".repeat(600)));
    let long = said(&["--task", "mmlu_test"]);
    assert!(long.code != Some(0) && long.stderr.contains("boats: the prompt has"), "{long:?}");
    site.write("evaluation/mmlu/mapping.json", r#"{"boats": {"name": "boats", "category": "Water"}}"#);
    let other = said(&["--task", "mmlu_test"]);
    assert!(other.stderr.contains("the category of boats is `Water`"), "{other:?}");
    let refused = run(site.oarlock(&["llamafactory-cli", "eval", "model_name_or_path=model", "num_beams=4"]));
    assert!(
        refused.stderr.contains("`num_beams: 4` is not there in `eval`")
            && refused.stderr.contains("`task` is missing"),
        "{refused:?}"
    );
}

#[test]
fn the_perplexity_of_a_text_is_that_of_its_folder_and_of_its_gguf_file() {
    let site = site();
    let text = String::from_utf8(site.read("text.jsonl")).unwrap();
    site.write("text.txt", &text);
    let measure =
        |words: &[&str]| run(site.oarlock(&[&["eval", "--perplexity", "text.txt"][..], words].concat()));
    let of = |words: &[&str]| {
        let said = measure(words);
        assert_eq!(said.code, Some(0), "{said:?}");
        let value = said.stdout.strip_prefix("PPL = ").and_then(|rest| rest.split(' ').next()).unwrap();
        (value.parse::<f64>().unwrap(), said)
    };
    let (whole, said) = of(&["--model", "model", "--ctx-size", "64"]);
    assert!(whole > 1.0 && said.stdout.contains(" +/- ") && said.stderr.contains("[1/"), "{said:?}");
    let (first, said) = of(&["--model", "model", "--ctx-size", "64", "--chunks", "1"]);
    assert!(first != whole && said.stderr.contains("31 tokens of "), "{said:?}");
    let exported = run(site.oarlock(&["export", "model_name_or_path=model", "export_dir=copy", "gguf=f32"]));
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert!((of(&["--model", "copy/copy-F32.gguf", "--ctx-size", "64"]).0 - whole).abs() < 1e-3);
    for (words, error) in [
        (&["--model", "model", "--ctx-size", "100000"][..], "pieces of 100000 tokens; the model takes 4 to"),
        (&["--model", "model", "--task", "mmlu_test"], "cannot be used with"),
        (&["--model", "model", "--n-shot", "3"], "cannot be used with"),
        (&["--model", "model", "--chunks", "0"], "number would be zero"),
    ] {
        let said = measure(words);
        assert!(said.code != Some(0) && said.stderr.contains(error), "{said:?}");
    }
    let said = run(site.oarlock(&["eval", "--model", "model"]));
    assert!(said.code != Some(0) && said.stderr.contains("--task"), "{said:?}");
    let said = run(site.oarlock(&["eval", "--model", "model", "--ctx-size", "8", "--task", "mmlu_test"]));
    assert!(said.code != Some(0) && said.stderr.contains("--perplexity"), "{said:?}");
}
