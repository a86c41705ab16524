//! Text from a trained model, and what the pages say of the defaults.

use crate::common::{Site, run};
use serde_json::Value;

#[test]
fn what_was_trained_generates() {
    let site = Site::new();
    site.train("out", &["max_steps=2"]);
    let generate = |model: &str, words: &[&str]| {
        let mut command =
            site.oarlock(&["generate", "--model", model, "--prompt", "the ferry", "--max-new-tokens", "8"]);
        let said = run({
            command.args(words);
            command
        });
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stdout.starts_with("the ferry") && said.stdout.ends_with('\n'), "{said:?}");
        assert!(said.stderr.contains("tokens/s"), "{said:?}");
        said.stdout
    };
    let greedy = generate("out", &["--temperature", "0"]);
    assert_eq!(generate("out", &["--temperature", "0", "--threads", "1", "--seed", "5"]), greedy);
    assert_eq!(generate("out", &["--seed", "5"]), generate("out", &["--seed", "5"]));
    generate("out", &["--dtype", "bf16"]);
    for words in [&["--temperature", "1.5"][..], &["--top-k", "9", "--repetition-penalty", "1.2"]] {
        let on = |threads| generate("out", &[words, &["--threads", threads]].concat());
        assert!(on("1") == on("2") && on("1") == on("3"), "{words:?}");
    }
}

#[test]
fn an_fp16_run_writes_halves_and_generates() {
    let site = Site::new();
    site.train("out", &["max_steps=2", "fp16=true"]);
    let config: Value = serde_json::from_slice(&site.read("out/config.json")).unwrap();
    assert!([&config["dtype"], &config["torch_dtype"]].contains(&&Value::from("float16")), "{config}");
    let bytes = site.read("out/model.safetensors");
    let weights = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert!(weights.iter().all(|(_, tensor)| tensor.dtype() == safetensors::Dtype::F16));
    for dtype in ["f32", "bf16"] {
        let words =
            ["generate", "--model", "out", "--prompt", "the", "--max-new-tokens", "3", "--dtype", dtype];
        let said = run(site.oarlock(&words));
        assert!(said.code == Some(0) && said.stdout.starts_with("the"), "{said:?}");
    }
}

/// The table of docs/generate.md, the sentence of docs/data.md, and what the program says of itself.
#[test]
fn defaults_are_those_of_the_pages() {
    let site = Site::new();
    let page = include_str!("../../../docs/generate.md");
    let help = run(site.oarlock(&["generate", "--help"])).stdout;
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `--")?.split_once("` | "));
    let mut n_rows = 0;
    for (option, rest) in rows {
        let (default, _) = rest.split_once(" |").unwrap();
        let about =
            help.split(&format!("  --{option} ")).nth(1).unwrap_or_else(|| panic!("{option}: {help}"));
        let about = about.split("\n\n").take(2).collect::<String>();
        let is_number = default.parse::<f64>().is_ok() || option == "dtype";
        assert!(!is_number || about.contains(&format!("[default: {default}]")), "{option}: {about}");
        n_rows += 1;
    }
    assert_eq!(n_rows, 11);
    assert!(include_str!("../../../docs/data.md").contains("6,400 tokens by default"));
    assert!(run(site.oarlock(&["tokenizer", "train", "--help"])).stdout.contains("[default: 6400]"));
    let said = run(site.training("out", &["--print-config"])).stdout;
    let trains = said.lines().find(|line| line.trim_start().starts_with("do_train ")).unwrap_or_default();
    assert!(trains.contains("true"), "{trains}");
}
