//! What ranks would find wrong before their first step is told before they start, at the key that it comes from: exit code 2.

use std::fs;

use serde_json::Value;

use crate::common::{Site, run};

/// A site with two models beside the good one, and settings for conversations.
fn site() -> Site {
    let site = Site::new();
    let copy = |name: &str| {
        fs::create_dir(site.path(name)).unwrap();
        for file in fs::read_dir(site.path("model")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), site.path(name).join(file.file_name())).unwrap();
        }
    };
    ["no_weights", "gpt2", "moe", "tied", "no_tokens"].into_iter().for_each(copy);
    fs::remove_file(site.path("no_weights/model.safetensors")).unwrap();
    fs::write(site.path("no_tokens/tokenizer.json"), "{").unwrap();
    let edit = |name: &str, key: &str, value: Value| {
        let path = site.path(name).join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        fs::write(path, config.to_string()).unwrap();
    };
    edit("gpt2", "model_type", "gpt2".into());
    edit("moe", "use_moe", true.into());
    edit("tied", "tie_word_embeddings", true.into());
    fs::create_dir(site.path("adapter")).unwrap();
    site.write("adapter/adapter_config.json", "{}");
    site.write("chat.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}\n");
    site.write("dataset_info.json", "{\"pairs\": {\"file_name\": \"chat.jsonl\", \"ranking\": true, \"columns\": {\"prompt\": \"instruction\", \"chosen\": \"output\", \"rejected\": \"input\"}}}");
    site
}

#[test]
fn what_ranks_would_end_with_is_told_before_they_start() {
    let site = site();
    let chat = "stage: sft\ndataset: chat.jsonl\ndataset_dir: .\n";
    for (settings, line, message) in [
        ("model_name_or_path: no_weights", 1, "holds no model.safetensors"),
        ("model_name_or_path: gpt2", 1, "\"model_type\" is \"gpt2\"; supported are llama"),
        ("model_name_or_path: moe", 1, "\"use_moe\" is true; mixtures of experts are not supported"),
        ("model_name_or_path: no_tokens", 1, "is it a whole tokenizer.json?"),
        ("{chat}template: chatlm", 4, "Template chatlm does not exist; did you mean chatml?"),
        ("{chat}template: llama3", 4, "its end token <|eot_id|> is not a token of this tokenizer"),
        ("{chat}tool_format: nix\ntemplate: chatml", 4, "the tool format nix is not there"),
        ("finetuning_type: lora\nlora_target: nix", 2, "the model has no linear layer nix; choose from"),
        (
            "finetuning_type: lora\nlora_target: lm_head\nmodel_name_or_path: tied",
            2,
            "leave them out of lora_target",
        ),
        ("model_name_or_path: adapter", 1, "`adapter` is the folder of an adapter, and not of a model"),
        ("finetuning_type: lora\nadapter_name_or_path: nowhere", 2, "nowhere: holds no adapter_config.json"),
        ("finetuning_type: freeze\nfreeze_trainable_layers: 0", 2, "nothing is trained"),
        ("finetuning_type: freeze\nfreeze_trainable_modules: nix", 2, "Module nix is not found"),
        ("device: cuda", 1, "libcuda, the library of the GPU's driver, was not found"),
        ("resume_from_checkpoint: true", 1, "out/z holds no whole checkpoint"),
        ("sequence_parallel_size: 8\nnum_processes: 8", 1, "it must divide the heads"),
        ("stage: sft\ndataset: pairs\ndataset_dir: .", 1, "pairs holds pairs of answers"),
        ("stage: dpo\ndataset: chat.jsonl\ndataset_dir: .\nref_model: gpt2", 4, "\"model_type\" is \"gpt2\""),
        (
            "eval_strategy: steps\neval_steps: 5\nsave_steps: 5\nsave_strategy: steps\nval_size: 2\n\
             load_best_model_at_end: true\nmetric_for_best_model: eval_bleu",
            7,
            "metric_for_best_model is eval_bleu, and the evaluations of this run have eval_loss",
        ),
    ] {
        let settings = settings.replace("{chat}", chat);
        let base = "model_name_or_path: model\ndataset: text.jsonl\noutput_dir: out/z\ncutoff_len: 32\nmax_steps: 1\n\
                    stage: pt\nfinetuning_type: full\nnum_processes: 2\n";
        let is_said =
            |line: &&str| settings.lines().all(|own| own.split(':').next() != line.split(':').next());
        let rest: Vec<&str> = base.lines().filter(is_said).collect();
        site.write("wrong.yaml", &format!("{settings}\n{}\n", rest.join("\n")));
        let said = run(site.oarlock(&["train", "wrong.yaml"]));
        let error = said.message();
        assert_eq!(said.code, Some(2), "{settings}: {said:?}");
        assert!(error.contains(message), "{settings}: {said:?}");
        assert!(error.contains(&format!("[wrong.yaml:{line}:")), "{settings}: {said:?}");
        assert!(!site.path("out").exists(), "{settings}: something was written");
    }
}

#[test]
fn one_rank_and_a_dry_run_are_told_the_same() {
    let site = site();
    for words in [&["num_processes=1"][..], &["--dry-run"]] {
        let said = run(site.training("out", &[&["model_name_or_path=no_weights"][..], words].concat()));
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.message().contains("holds no model.safetensors"), "{said:?}");
    }
}
