//! Training runs that give a model tokens, or longer sequences than it was made for; and their model cards.

use std::fs;

use serde_json::Value;

use crate::common::{Site, run};

fn json(site: &Site, name: &str) -> Value {
    serde_json::from_slice(&site.read(name)).unwrap()
}

fn shape(bytes: &[u8], name: &str) -> Vec<usize> {
    safetensors::SafeTensors::deserialize(bytes).unwrap().tensor(name).unwrap().shape().to_vec()
}

const SHORT: [&str; 3] = ["num_processes=1", "max_steps=2", "learning_rate=1e-3"];

#[test]
fn a_model_grows_with_its_tokenizer_and_is_saved_with_it() {
    let site = Site::new();
    let words = [&SHORT[..], &["add_tokens=<a>,<b>", "new_special_tokens=<tool>"]].concat();
    site.train("full", &words);
    assert_eq!(json(&site, "full/config.json")["vocab_size"], 320);
    let added = json(&site, "full/tokenizer.json")["added_tokens"].clone();
    let of = |id: u64| added.as_array().unwrap().iter().find(|token| token["id"] == id).unwrap().clone();
    assert_eq!((&of(300)["content"], &of(300)["special"]), (&"<a>".into(), &false.into()));
    assert_eq!((&of(302)["content"], &of(302)["special"]), (&"<tool>".into(), &true.into()));
    assert_eq!(shape(&site.model("full"), "model.embed_tokens.weight"), [320, 32]);
    // The folder is one like any other.
    let said =
        run(site.oarlock(&["generate", "--model", "full", "--prompt", "<a>", "--max-new-tokens", "2"]));
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn an_adapter_of_a_grown_model_brings_its_vocabulary() {
    let site = Site::new();
    site.write("tokens.yaml", "\"<tool>\": Ida and the river\n\"<end>\": the end\n");
    let words = [
        &SHORT[..],
        &["finetuning_type=lora", "new_special_tokens_config=tokens.yaml", "init_special_tokens=desc_init"],
    ]
    .concat();
    let said = site.train("lora", &words);
    assert!(said.stdout.contains("embed_tokens and lm_head are trained as a whole"), "{said:?}");
    let config = json(&site, "lora/adapter_config.json");
    assert_eq!(config["modules_to_save"], serde_json::json!(["embed_tokens", "lm_head"]));
    let bytes = site.read("lora/adapter_model.safetensors");
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        assert_eq!(shape(&bytes, &format!("base_model.model.{name}")), [320, 32]);
    }
    let words = ["export", "model_name_or_path=model", "adapter_name_or_path=lora", "export_dir=merged"];
    let said = run(site.oarlock(&[&words[..], &["export_size=0.00005"]].concat()));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(site.path("merged/model.safetensors.index.json").is_file(), "parts of 50 kB");
    let config = json(&site, "merged/config.json");
    assert_eq!((&config["vocab_size"], &config["tie_word_embeddings"]), (&320.into(), &false.into()));
    let text = |words: &[&str]| {
        let said = run(
            site.oarlock(&[&["generate", "--prompt", "Ida<tool>", "--temperature", "0"], words].concat())
        );
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    assert_eq!(text(&["--model", "model", "--adapter", "lora"]), text(&["--model", "merged"]));
}

#[test]
fn a_cutoff_beyond_the_positions_of_the_model_limits_the_data_alone() {
    let site = Site::new();
    let said = site.train("out", &[&SHORT[..], &["cutoff_len=80"]].concat());
    assert!(said.stdout.contains("cutoff_len is 80, and the model was made for sequences of 64"), "{said:?}");
    assert_eq!(json(&site, "out/config.json")["max_position_embeddings"], 64);
    let long = [&SHORT[..], &["cutoff_len=80", "rope_scaling=yarn"]].concat();
    let said = site.train("yarn", &long);
    assert!(
        said.stdout.contains("yarn with the factor 2, for sequences of up to 128 instead of 64"),
        "{said:?}"
    );
    let config = json(&site, "yarn/config.json");
    assert_eq!(config["max_position_embeddings"], 128);
    let rope = &config["rope_parameters"];
    assert_eq!(
        (&rope["rope_type"], &rope["factor"], &rope["original_max_position_embeddings"]),
        (&"yarn".into(), &2.0.into(), &64.into())
    );
    let generate =
        ["generate", "--prompt", "Ida", "--max-new-tokens", "200", "--temperature", "0", "--model"];
    let said = run(site.oarlock(&[&generate[..], &["model"]].concat()));
    let message = "note: the text ends at the longest that the model takes, 64 positions";
    assert!(said.stderr.contains(message) || !said.stderr.contains("tokens/s"), "{said:?}");
}

#[test]
fn a_run_leaves_a_model_card_and_no_file_of_somebody_gives_way() {
    let site = Site::new();
    let words =
        [&SHORT[..], &["finetuning_type=lora", "val_size=2", "eval_strategy=steps", "eval_steps=1"]].concat();
    site.train("out", &words);
    let card = String::from_utf8(site.read("out/README.md")).unwrap();
    for part in [
        "---\nlibrary_name: peft\nlicense: other\nbase_model: model\ntags:\n- base_model:adapter:model\n\
         - oarlock\n- lora\n- transformers\npipeline_tag: text-generation\nmodel-index:\n- name: out\n  results: []\n---\n",
        "a fine-tuned version of model on the text.jsonl dataset.\nIt achieves the following results",
        "- learning_rate: 0.001\n- train_batch_size: 6\n",
        "- lr_scheduler_type: cosine\n- lr_scheduler_warmup_steps: 2\n- training_steps: 2\n",
        "| Training Loss | Epoch ",
        "| Step | Validation Loss |",
    ] {
        assert!(card.contains(part), "{part}\nis not in\n{card}");
    }
    // A second run replaces the card of the first, and nothing else of the name.
    let again = [&words[..], &["overwrite_output_dir=true", "seed=7"]].concat();
    site.train("out", &again);
    assert!(String::from_utf8(site.read("out/README.md")).unwrap().contains("- seed: 7\n"));
    fs::write(site.path("out/README.md"), "mine").unwrap();
    let said = site.train("out", &again);
    assert!(said.stdout.contains("README.md stays as it is"), "{said:?}");
    assert_eq!(site.read("out/README.md"), b"mine");
}
