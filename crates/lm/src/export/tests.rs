//! Exports that hold what they are to hold, and some that were broken on purpose.

use std::path::{Path, PathBuf};

use oarlock_tensor::Par;
use oarlock_tensor::cpu::Isa;

use super::*;
use crate::data::ChatTemplate;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::threads(1).unwrap())
}

/// A base with this tokenizer configuration, exported to a folder beside it in this dtype.
fn exported(folder: &Path, dtype: DType) -> (PathBuf, PathBuf, Exported) {
    let (base, out) = (folder.join("base"), folder.join(format!("out-{dtype}")));
    let golden = root().join("crates/oarlock/tests/golden/train-llama");
    if !base.exists() {
        std::fs::create_dir(&base).unwrap();
        for entry in std::fs::read_dir(golden).unwrap().flatten() {
            std::fs::copy(entry.path(), base.join(entry.file_name())).unwrap();
        }
        let config = "{\"tokenizer_class\":   \"PreTrainedTokenizerFast\",\n\n \"of_mine\": 1.50,\n\"padding_side\":\"right\"}";
        std::fs::write(base.join("tokenizer_config.json"), config).unwrap();
        std::fs::write(base.join("special_tokens_map.json"), "{ }").unwrap();
        std::fs::write(base.join("generation_config.json"), "{\"top_k\":  7, \"of_mine\": [1,2]}").unwrap();
    }
    let options = ExportOptions {
        model: &base,
        adapters: &[],
        quantized: None,
        out: &out,
        max_shard_bytes: 1 << 30,
        dtype: Some(dtype),
        dequantizes: false,
        overwrite: false,
        chat: None,
        rope_scaling: None,
    };
    let exported = export(&options, &device()).unwrap();
    (base, out, exported)
}

#[test]
fn the_files_of_the_tokenizer_stay_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (base, out, exported) = exported(folder.path(), DType::F32);
    assert!(exported.compared.relative == 0.0 && exported.compared.difference == 0.0);
    let read = |dir: &Path, name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    for name in ["tokenizer.json", "special_tokens_map.json", "generation_config.json"] {
        assert_eq!(read(&base, name), read(&out, name), "{name}");
    }
    let config = read(&base, "tokenizer_config.json").replace("\"right\"", "\"left\"");
    assert_eq!(read(&out, "tokenizer_config.json"), config);
}

/// In `additional_chat_templates`, or in `chat_template.json`.
#[test]
fn templates_in_other_places_come_along() {
    let folder = tempfile::tempdir().unwrap();
    let (base, ..) = exported(folder.path(), DType::F32);
    std::fs::create_dir(base.join("additional_chat_templates")).unwrap();
    std::fs::write(base.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    std::fs::write(base.join("additional_chat_templates/tool_use.jinja"), "{{ tools }}").unwrap();
    let (base, out, _) = exported(folder.path(), DType::BF16);
    let texts = |dir: &Path| ChatTemplate::texts(dir).unwrap();
    assert_eq!(texts(&out), (Some("{{ messages[0].content }}".to_owned()), Some("{{ tools }}".to_owned())));
    std::fs::remove_dir_all(base.join("additional_chat_templates")).unwrap();
    std::fs::remove_file(base.join("chat_template.jinja")).unwrap();
    std::fs::write(base.join("chat_template.json"), "{\"chat_template\": \"x\"}").unwrap();
    let (_, out, _) = exported(folder.path(), DType::F16);
    assert_eq!(texts(&out), (Some("x".to_owned()), None));
}

#[test]
fn a_weight_that_is_not_the_merged_one_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let (base, out, _) = exported(folder.path(), dtype);
        let hf = HfConfig::read(&base).unwrap();
        let mut decoder = Decoder::new(hf.decoder().clone(), 1).unwrap();
        let mut source = merging(&base, &hf, &mut decoder, &[], None, &device()).unwrap();
        check_weights(&out, dtype, &mut source).unwrap();
        let file = out.join("model.safetensors");
        let good = std::fs::read(&file).unwrap();
        // The sign of the last element, and the last bit of it.
        for (back, bit) in [(1, 0x80), (dtype.size(), 1)] {
            let mut bytes = good.clone();
            let at = bytes.len() - back;
            bytes[at] ^= bit;
            std::fs::write(&file, bytes).unwrap();
            let error = check_weights(&out, dtype, &mut source).unwrap_err().to_string();
            assert!(error.contains("the export is broken, do not use it: element "), "{error}");
        }
    }
}

#[test]
fn other_settings_of_the_model_are_found_by_its_logits() {
    let folder = tempfile::tempdir().unwrap();
    let (base, out, _) = exported(folder.path(), DType::BF16);
    let tokenizer = Tokenizer::open(&base).unwrap();
    let ask = |dir: &Path| {
        let model = load_for_inference(dir, &[], &device(), DType::F32, 64).unwrap();
        let vocab_size = model.config.decoder().vocab_size;
        logits(&model, dir, &prompts(&tokenizer, vocab_size, 64).unwrap()).unwrap()
    };
    let vocab_size = HfConfig::read(&base).unwrap().decoder().vocab_size;
    let before = ask(&base);
    let far = compared(&before, &ask(&out), vocab_size).unwrap();
    assert!(far.relative > 0.0 && far.within(bound(DType::BF16), &out).is_ok(), "{far:?}");
    assert!(far.within(bound(DType::F32), &out).is_err(), "rounding alone is seen");
    // The layers in another order.
    let path = out.join("model.safetensors");
    let text = swapped_layers(&std::fs::read(&path).unwrap());
    std::fs::write(&path, text).unwrap();
    let far = compared(&before, &ask(&out), vocab_size).unwrap();
    let error = far.within(bound(DType::BF16), &out).unwrap_err().to_string();
    assert!(error.contains("its logits differ from those of the model in memory by"), "{error}");
}

/// A file of weights in which the names of two layers are exchanged.
fn swapped_layers(bytes: &[u8]) -> Vec<u8> {
    let length = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..length].to_vec()).unwrap();
    let swapped = header
        .replace("layers.0.", "layers.#.")
        .replace("layers.1.", "layers.0.")
        .replace("layers.#.", "layers.1.");
    assert!(swapped != header && swapped.len() == header.len());
    [&bytes[..8], swapped.as_bytes(), &bytes[length..]].concat()
}

#[test]
fn a_tokenizer_with_another_rule_and_another_template_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let from = root().join("recipes/minimind-small");
    let read = |name: &str| std::fs::read_to_string(from.join(name)).unwrap();
    let (json, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let write = |json: &str, config: &str| {
        std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    };
    let (tokenizer, template) = (Tokenizer::open(&from).unwrap(), ChatTemplate::read(&from).unwrap());
    write(&json, &config);
    check_tokens(folder.path(), &tokenizer).unwrap();
    check_template(folder.path(), Some(&template)).unwrap();
    // Words are cut in front of each vowel as well.
    let mut other: Value = serde_json::from_str(&json).unwrap();
    let cut = serde_json::json!({
        "type": "Split", "pattern": {"Regex": "(?=[aeiou])"}, "behavior": "Isolated", "invert": false,
    });
    let rules = [cut, other["pre_tokenizer"].take()];
    other["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": rules});
    write(&other.to_string(), &config);
    let error = check_tokens(folder.path(), &tokenizer).unwrap_err().to_string();
    assert!(error.contains("the tokenizer makes other tokens of "), "{error}");
    let other = config.replace("<|im_start|>assistant", "<|im_start|>helper");
    assert_ne!(other, config);
    write(&json, &other);
    let error = check_template(folder.path(), Some(&template)).unwrap_err().to_string();
    assert!(error.contains("the chat template writes"), "{error}");
}
