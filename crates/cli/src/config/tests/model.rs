//! A model by its folder, and by its settings.

use std::path::Path;

use serde_json::json;

use super::*;

const NEW: &str = "dataset: d.jsonl\noutput_dir: out\n";

fn new(text: &str) -> Result<ResolvedConfig, Problems> {
    train(&format!("{NEW}{text}"), &[], &[])
}

#[test]
fn a_model_is_made_of_its_settings() {
    let text = "model_config: {model_type: minimind, hidden_size: 1024, num_hidden_layers: 32, rope_theta: 5e5, \
                tie_word_embeddings: no, use_moe: false}\ntokenizer_path: tok/tokenizer.json\n";
    let config = new(text).unwrap();
    let fields = json!({
        "model_type": "minimind", "hidden_size": 1024, "num_hidden_layers": 32, "rope_theta": 5e5,
        "tie_word_embeddings": false,
    });
    let ModelSource::Fields(read) = &config.model.source else { panic!("{:?}", config.model) };
    assert_eq!(json!(read), fields);
    assert!(config.model.from_scratch);
    assert_eq!(config.model.tokenizer, Path::new("tok"));
    let again = train(&config.as_yaml(), &[], &[]).unwrap();
    assert_eq!(again.model, config.model);
    // As arguments, one by one.
    let words = ["model_config.model_type=minimind3", "--tokenizer-path", "tokenizer.json"];
    let config = train(NEW, &words, &[]).unwrap();
    assert_eq!(config.model.tokenizer, Path::new("."));
}

#[test]
fn what_is_wrong_with_a_model_is_named() {
    let full = "model_config: {model_type: minimind}\ntokenizer_path: tok\n";
    for (text, expected) in [
        (
            "model_config: {model_type: minimnd, hiden_size: 8, num_hidden_layers: 0, rms_norm_eps: 0}\ntokenizer_path: t\n",
            "t.yaml:3:28: `model_type` takes one of llama, qwen2, qwen3, minimind, minimind3, mistral, phi3, gemma2, gemma3_text, glm4, olmo2, not `minimnd`\n\
             t.yaml:3:71: `num_hidden_layers` takes a whole number, at least 1, not `0`\n\
             t.yaml:3:88: `rms_norm_eps` takes a number greater than 0, not `0`\n\
             t.yaml:3:37: `model_config` takes no argument `hiden_size` (did you mean `hidden_size`?)",
        ),
        (
            "model_config: {hidden_size: 8}\n",
            "t.yaml:3:15: `model_config` needs a tokenizer (write `tokenizer_path: …`, a tokenizer.json or its \
             folder)\n\
             t.yaml:3:15: `model_config` needs a model_type: llama, qwen2, qwen3, minimind, minimind3, mistral, phi3, gemma2, gemma3_text, glm4, olmo2",
        ),
        (
            "model_config: {model_type: minimind, use_moe: true}\ntokenizer_path: tok\n",
            "t.yaml:3:15: mixtures of experts (`use_moe`) are not supported, only dense models",
        ),
        (
            &format!("{full}model_name_or_path: m\n"),
            "t.yaml:5:21: `model_name_or_path` and `model_config` are mutually exclusive (name the folder of a model, or \
             say what a new one is made of)",
        ),
        (
            &format!("{full}train_from_scratch: false\n"),
            "t.yaml:5:21: `train_from_scratch` is off, but `model_config` brings no weights (remove it, or name the \
             folder of a model in model_name_or_path)",
        ),
        (
            "model_name_or_path: m\ntokenizer_path: tok\n",
            "t.yaml:4:17: `tokenizer_path` goes with `model_config` (the tokenizer of a model folder lies in it; \
             remove tokenizer_path)",
        ),
    ] {
        assert_eq!(new(text).unwrap_err().to_string(), expected, "{text}");
    }
    let problems = paths::check(&new(full).unwrap()).unwrap_err().to_string();
    assert!(problems.contains("t.yaml:4:17: no tokenizer.json in `tok`"), "{problems}");
}

#[test]
fn a_profile_is_asked_for() {
    assert_eq!(good("").log.profile, None);
    assert_eq!(good("profile: true").log.profile, Some(10));
    assert_eq!(good("profile: true\nprofile_interval: 3").log.profile, Some(3));
    assert_eq!(good("profile_interval: 3").log.profile, None);
    assert!(bad("profile_interval: 0", &[], &[]).contains("a whole number, at least 1"));
}
