//! `config.json`: every family, both spellings of rotary settings, and what is refused.

use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::{RopeScaling, Yarn};
use serde_json::json;

use super::*;
use crate::model::{AttentionConfig, DecoderConfig, MlpConfig, QkNorm, RopeSettings};

fn read(text: &str) -> Result<HfConfig, Error> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), text).unwrap();
    HfConfig::read(dir.path())
}

fn decoder(config: Value) -> DecoderConfig {
    read(&config.to_string()).unwrap().decoder().clone()
}

/// The first layer.
fn first(config: &DecoderConfig) -> (&AttentionConfig, &MlpConfig) {
    (&config.layers[0].attention, &config.layers[0].mlp)
}

#[test]
fn a_bare_family_has_the_defaults_of_transformers() {
    let llama = decoder(json!({ "model_type": "llama" }));
    let (attention, mlp) = first(&llama);
    assert_eq!((llama.vocab_size, llama.hidden_size, mlp.intermediate_size), (32_000, 4096, 11_008));
    assert_eq!((llama.layers.len(), attention.n_heads), (32, 32));
    assert_eq!((attention.n_kv_heads, attention.head_dim), (32, 128));
    assert_eq!((llama.max_positions, llama.final_norm.eps, attention.rope.theta), (2048, 1e-6, 10_000.0));
    assert!(!llama.tie_embeddings && !attention.qkv_bias && attention.qk_norm == QkNorm::None);
    let qwen2 = decoder(json!({ "model_type": "qwen2", "num_attention_heads": 64, "hidden_size": 512 }));
    let (attention, mlp) = first(&qwen2);
    assert_eq!((attention.n_kv_heads, attention.head_dim, mlp.intermediate_size), (32, 8, 22_016));
    assert!(attention.qkv_bias && !attention.o_bias);
    let qwen3 =
        decoder(json!({ "model_type": "qwen3", "num_key_value_heads": null, "attention_bias": true }));
    let (attention, mlp) = first(&qwen3);
    assert_eq!((attention.n_kv_heads, attention.head_dim, qwen3.vocab_size), (32, 128, 151_936));
    assert!(attention.qk_norm == QkNorm::PerHead && attention.qkv_bias && attention.o_bias && !mlp.bias);
}

#[test]
fn minimind_of_each_year() {
    let newest = decoder(json!({ "model_type": "minimind" }));
    let (attention, mlp) = first(&newest);
    assert_eq!((newest.hidden_size, mlp.intermediate_size, attention.head_dim), (768, 2432, 96));
    assert_eq!((attention.n_kv_heads, newest.max_positions, newest.final_norm.eps), (4, 32_768, 1e-6));
    assert!(attention.qk_norm == QkNorm::PerHead && newest.tie_embeddings);
    let older = json!({ "model_type": "minimind", "use_moe": false, "n_routed_experts": 4, "intermediate_size": null });
    let older = decoder(older);
    let (attention, mlp) = first(&older);
    assert_eq!((older.hidden_size, mlp.intermediate_size, attention.n_kv_heads), (512, 1408, 2));
    assert!(attention.qk_norm == QkNorm::None && attention.rope.style == RopeStyle::Half);
    // The 361M model: dim 1024, 32 layers.
    let seed = json!({ "model_type": "minimind", "dim": 1024, "n_layers": 32, "n_heads": 8, "n_kv_heads": 2, "hidden_dim": null });
    let seed = decoder(seed);
    let (attention, mlp) = first(&seed);
    assert_eq!((mlp.intermediate_size, seed.max_positions, attention.head_dim), (2752, 8192, 128));
    assert_eq!((attention.rope.style, attention.rope.theta), (RopeStyle::Interleaved, 1e6));
}

#[test]
fn rotary_settings_in_both_spellings() {
    let with = |name: &str, rope: Value| {
        let mut config = json!({ "model_type": "llama", "rope_theta": 5e5, "max_position_embeddings": 4096 });
        config[name] = rope;
        first(&decoder(config)).0.rope.clone()
    };
    let scaling = RopeScaling::Linear { factor: 2.0 };
    let linear = RopeSettings { theta: 5e5, style: RopeStyle::Half, share: 1.0, scaling };
    assert_eq!(with("rope_scaling", json!({ "type": "linear", "factor": 2.0 })), linear);
    assert_eq!(with("rope_parameters", json!({ "rope_type": "linear", "factor": 2 })), linear);
    assert_eq!(with("rope_parameters", json!({ "rope_type": "default", "rope_theta": 7 })).theta, 7.0);
    assert_eq!(
        with("rope_scaling", json!({ "rope_type": "dynamic", "factor": 4 })).scaling,
        RopeScaling::Dynamic { factor: 4.0, original_max_positions: 4096 }
    );
    // An empty object is none, as in transformers.
    let both = json!({"model_type": "llama", "rope_theta": 5e5, "rope_parameters": {},
                      "rope_scaling": {"type": "linear", "factor": 2.0}});
    assert_eq!(first(&decoder(both)).0.rope, linear);
    let yarn = Yarn {
        factor: 4.0,
        original_max_positions: 1024,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.0),
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    };
    let written = json!({ "type": "yarn", "factor": null, "original_max_position_embeddings": 1024, "attention_factor": 1.0 });
    assert_eq!(with("rope_scaling", written).scaling, RopeScaling::Yarn(yarn));
}

#[test]
fn what_is_written_reads_as_the_same_and_keeps_unknown_fields() {
    for name in MODELS {
        let config = HfConfig::read(&golden(name)).unwrap();
        let written = read(&config.to_json(DType::BF16)).unwrap();
        assert_eq!((written.decoder(), written.special()), (config.decoder(), config.special()), "{name}");
        let bare = HfConfig::new(config.decoder().clone(), config.special().clone());
        let bare = read(&bare.to_json(DType::F32)).unwrap();
        if name == "minimind" {
            assert_eq!(bare.decoder(), config.decoder());
        }
        let stored = |config: &HfConfig| config.stored("model.layers.0.mlp.up_proj.weight");
        assert_eq!(stored(&bare), stored(&config), "{name}");
        assert_eq!(first(bare.decoder()).0.qk_norm, first(config.decoder()).0.qk_norm, "{name}");
    }
    let text = json!({
        "model_type": "llama", "made_by": {"x": [1, 2]}, "rope_theta": 9e4, "torch_dtype": "float16",
        "rope_scaling": {"type": "linear", "factor": 2.0}, "eos_token_id": [5, 6], "rms_norm_eps": 1e-5, "transformers_version": "4.1",
    });
    let written: Value =
        serde_json::from_str(&read(&text.to_string()).unwrap().to_json(DType::BF16)).unwrap();
    assert_eq!(written["made_by"], json!({ "x": [1, 2] }));
    assert_eq!(
        written["rope_parameters"],
        json!({ "factor": 2.0, "rope_theta": 9e4, "rope_type": "linear" })
    );
    assert_eq!((&written["dtype"], &written["eos_token_id"]), (&json!("bfloat16"), &json!([5, 6])));
    assert_eq!((&written["rms_norm_eps"], &written["transformers_version"]), (&json!(1e-5), &json!("4.1")));
    assert_eq!(written["architectures"], json!(["LlamaForCausalLM"]));
    // As transformers 4 reads it.
    assert_eq!(written["rope_theta"], 9e4);
    assert_eq!(written["rope_scaling"], json!({ "factor": 2.0, "rope_type": "linear" }));
    assert!(written.get("torch_dtype").is_none());
    // Both forms are read as one.
    let again = read(&written.to_string()).unwrap();
    assert_eq!(again.decoder(), read(&text.to_string()).unwrap().decoder());
}

/// All kinds of rotary settings are written in both forms, and are read as they were.
#[test]
fn rotary_settings_are_written_for_transformers_4_as_well() {
    let long = json!({"rope_type": "longrope", "short_factor": [1.0, 1.25], "long_factor": [1.0, 3.0],
                      "rope_theta": 1e4, "partial_rotary_factor": 0.5});
    let by_layer = json!({"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}});
    let sizes = json!({"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6,
                       "intermediate_size": 40, "vocab_size": 72, "max_position_embeddings": 64, "head_dim": 8});
    for (kind, rope, theta, scaling) in [
        ("qwen2", json!({"rope_type": "default", "rope_theta": 5e5}), 5e5, json!(null)),
        (
            "phi3",
            long,
            1e4,
            json!({"type": "longrope", "short_factor": [1.0, 1.25], "long_factor": [1.0, 3.0]}),
        ),
        ("gemma3_text", by_layer, 1e6, json!({"rope_type": "linear", "factor": 8.0})),
    ] {
        let mut config = sizes.clone();
        config["model_type"] = json!(kind);
        config["rope_parameters"] = rope;
        if kind == "phi3" {
            config["original_max_position_embeddings"] = json!(16);
        }
        let own = read(&config.to_string()).unwrap();
        let written: Value = serde_json::from_str(&own.to_json(DType::F32)).unwrap();
        assert_eq!(
            (&written["rope_theta"], written.get("rope_scaling").unwrap_or(&json!(null))),
            (&json!(theta), &scaling)
        );
        match kind {
            "phi3" => assert_eq!(written["partial_rotary_factor"], 0.5),
            "gemma3_text" => assert_eq!(written["rope_local_base_freq"], 2e4),
            _ => {}
        }
        let again = read(&written.to_string()).unwrap();
        assert_eq!((again.decoder(), again.notes()), (own.decoder(), own.notes()), "{kind}");
    }
}

#[test]
fn tokens_with_a_meaning() {
    let special = |text: Value| read(&text.to_string()).unwrap().special().clone();
    let llama = SpecialTokens { bos: Some(1), eos: vec![2], pad: None };
    assert_eq!(special(json!({ "model_type": "llama" })), llama);
    let none = SpecialTokens { bos: None, eos: vec![], pad: Some(3) };
    assert_eq!(
        special(
            json!({ "model_type": "llama", "bos_token_id": null, "eos_token_id": null, "pad_token_id": 3 })
        ),
        none
    );
    assert_eq!(special(json!({ "model_type": "qwen2", "eos_token_id": [7, 8] })).eos, [7, 8]);
}

#[test]
fn what_cannot_be_built_is_refused_with_line_and_field() {
    let refused = |text: &str| message(read(text));
    let error = refused("{\n  \"model_type\": \"llama\",\n  \"hidden_size\": \"big\"\n}");
    assert!(
        error.ends_with("config.json: line 3: \"hidden_size\" is \"big\"; expected a whole number from 0 on"),
        "{error}"
    );
    let error = refused("{\n  \"model_type\": \"llama\",\n}");
    assert!(error.contains("config.json: ") && error.contains("line 3"), "{error}");
    assert!(refused("[1]").contains("expected the JSON object"));
    for (text, part) in [
        (json!({}), "\"model_type\" is missing; supported are llama, qwen2, qwen3"),
        (json!({ "model_type": "gpt2" }), "\"model_type\" is \"gpt2\""),
        (
            json!({ "model_type": "llama", "summary_dropout_prob": 1 }),
            "\"summary_dropout_prob\" is 1; expected a number from 0 on, below 1",
        ),
        (
            json!({ "model_type": "llama", "hidden_act": "tanh" }),
            "\"hidden_act\" is \"tanh\"; supported are silu, gelu",
        ),
        (json!({ "model_type": "minimind", "use_moe": true }), "\"use_moe\" is true; mixtures of experts"),
        (json!({ "model_type": "qwen3", "num_experts": 8 }), "\"num_experts\" is 8; mixtures of experts"),
        (
            json!({ "model_type": "llama", "quantization_config": {"bits": 4} }),
            "\"quantization_config\" is an object",
        ),
        (json!({ "model_type": "llama", "attention_dropout": 0.1 }), "dropout is not supported"),
        (json!({ "model_type": "qwen2", "layer_types": ["sliding_attention"] }), "for each layer"),
        (
            json!({ "model_type": "llama", "layer_types": ["sliding_attention"] }),
            "supported is full_attention",
        ),
        (
            json!({ "model_type": "llama", "rope_scaling": {"type": "proportional"} }),
            "supported are default, linear, dynamic, llama3, yarn and longrope",
        ),
        (
            json!({ "model_type": "llama", "rope_scaling": {"type": "longrope"} }),
            "\"short_factor\" is missing",
        ),
        (json!({ "model_type": "llama", "num_hidden_layers": 70_000 }), "at most 4096 layers"),
        (json!({ "model_type": "llama", "head_dim": 1 << 30 }), "head_dim is 1073741824, and supported are"),
        (json!({ "model_type": "llama", "rope_scaling": {"type": "linear"} }), "\"factor\" is missing"),
        (json!({ "model_type": "llama", "partial_rotary_factor": 0.5 }), "\"partial_rotary_factor\" is 0.5"),
        (json!({ "model_type": "llama", "num_attention_heads": 0 }), "cannot be divided among 0 heads"),
        (
            json!({ "model_type": "llama", "num_key_value_heads": 5 }),
            "is not a multiple of num_key_value_heads (5)",
        ),
        (json!({ "model_type": "llama", "vocab_size": 0 }), "vocab_size is 0"),
        (json!({ "model_type": "llama", "eos_token_id": "x" }), "expected a token id or a list of them"),
        (
            json!({ "model_type": "minimind", "dim": 512, "multiple_of": 0 }),
            "\"multiple_of\" is 0; expected at least 1",
        ),
    ] {
        let error = refused(&text.to_string());
        assert!(error.contains("config.json: ") && error.contains(part), "{text}: {error}");
    }
    let twice = refused("{\"model_type\": \"llama\",\n\"hidden_size\": 64,\n\"hidden_size\": 128}");
    assert!(twice.contains("\"hidden_size\" stands twice with two values, first in line 2"), "{twice}");
    assert!(twice.contains("remove one of them at line 3 column 1"), "{twice}");
    let missing = message(HfConfig::read(Path::new("nowhere")));
    assert!(missing.contains("cannot read nowhere"), "{missing}");
}

#[test]
fn layers_have_windows_where_transformers_gives_them_some() {
    let windows = |config: Value| -> Vec<Option<usize>> {
        let config = decoder(config);
        let written = read(&HfConfig::new(config.clone(), Default::default()).to_json(DType::F32)).unwrap();
        assert_eq!(written.decoder(), &config);
        config.layers.iter().map(|layer| layer.attention.window).collect()
    };
    let qwen = |more: Value| {
        let mut config = json!({ "model_type": "qwen3", "num_hidden_layers": 3, "max_window_layers": 2 });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        windows(config)
    };
    assert_eq!(qwen(json!({})), [None; 3]);
    assert_eq!(qwen(json!({ "use_sliding_window": true })), [None, None, Some(4096)]);
    let kinds = ["sliding_attention", "full_attention", "full_attention"];
    let listed = json!({ "use_sliding_window": true, "sliding_window": 7, "layer_types": kinds });
    assert_eq!(qwen(listed), [Some(7), None, None]);
    assert_eq!(qwen(json!({ "use_sliding_window": true, "sliding_window": null })), [None; 3]);
}

/// The parameters of a decoder, each counted once.
fn n_parameters(config: &HfConfig) -> usize {
    let decoder = crate::model::Decoder::new(config.decoder().clone(), 8).unwrap();
    oarlock_engine::nn::units_of(&decoder)
        .iter()
        .flat_map(|unit| unit.by_dtype(DType::F32))
        .flat_map(|(_, params)| params)
        .map(|named| named.param.shape().n_elems())
        .sum()
}

#[test]
fn a_model_is_made_of_fields_alone() {
    let special = SpecialTokens { bos: Some(1), eos: vec![2], pad: Some(0) };
    let made = |fields: Value| {
        HfConfig::from_fields("model_config", fields.as_object().unwrap(), special.clone()).unwrap()
    };
    let guide = made(json!({ "model_type": "minimind", "hidden_size": 1024, "num_hidden_layers": 32 }));
    assert_eq!(n_parameters(&guide), 361_038_848);
    let d = guide.decoder();
    let (attention, mlp) = first(d);
    assert_eq!((d.vocab_size, mlp.intermediate_size), (6400, 2752));
    assert_eq!((attention.n_heads, attention.n_kv_heads), (8, 2));
    assert_eq!((attention.rope.theta, d.final_norm.eps), (1e6, 1e-5));
    assert!(d.tie_embeddings && attention.qk_norm == QkNorm::None);
    assert_eq!(d.init_std, (1.0 / 3072f64.sqrt()) as f32);
    // The default is MiniMind2-Small, which its page calls 26M.
    assert_eq!(n_parameters(&made(json!({ "model_type": "minimind" }))), 25_829_888);
    let newest = made(json!({ "model_type": "minimind3" }));
    let d = newest.decoder();
    let (attention, mlp) = first(d);
    assert_eq!((d.hidden_size, attention.n_kv_heads), (768, 4));
    assert_eq!((attention.head_dim, mlp.intermediate_size), (96, 2432));
    assert!(attention.qk_norm == QkNorm::PerHead && d.final_norm.eps == 1e-6 && d.init_std == 0.02);
    // What is written is a model of transformers, and reads back as the same.
    for (config, class) in [(guide, "LlamaForCausalLM"), (newest, "Qwen3ForCausalLM")] {
        let json = config.to_json(DType::BF16);
        assert!(json.contains(class), "{json}");
        let again = read(&json).unwrap();
        assert_eq!((again.decoder(), again.special()), (config.decoder(), config.special()));
        let name = "model.layers.0.mlp.up_proj.weight";
        assert_eq!(again.stored(name), name);
    }
    let wrong = |fields: Value| {
        let made = HfConfig::from_fields("model_config", fields.as_object().unwrap(), special.clone());
        made.unwrap_err().to_string()
    };
    assert_eq!(
        wrong(json!({ "model_type": "minimind", "hidden_size": 100 })),
        "model_config: \"hidden_size\" is 100; 100 cannot be divided among 8 heads"
    );
    assert!(
        wrong(json!({ "model_type": "gpt2" }))
            .starts_with("model_config: \"model_type\" is \"gpt2\"; supported")
    );
    assert!(wrong(json!({ "model_type": "minimind", "use_moe": true })).contains("mixtures of experts"));
}

#[test]
fn code_files_are_those_beside_the_settings() {
    let classes = json!({ "A": "model.X", "B": "../evil.X", "C": "/etc/evil.X", "D": "sub/evil.X", "E": "...X", "F": 5 });
    let config = read(&json!({ "model_type": "llama", "auto_map": classes }).to_string()).unwrap();
    assert_eq!(config.code_files(), ["model.py"]);
}

#[test]
fn fields_that_nothing_reads_are_told() {
    for name in MODELS {
        assert_eq!(HfConfig::read(&golden(name)).unwrap().notes(), [""; 0], "{name}");
    }
    for entry in std::fs::read_dir(golden("families")).unwrap().flatten() {
        assert_eq!(HfConfig::read(&entry.path()).unwrap().notes(), [""; 0], "{entry:?}");
    }
    let warnings = |mut config: Value, fields: Value| {
        let Value::Object(fields) = fields else { panic!("no fields") };
        config.as_object_mut().unwrap().extend(fields);
        read(&config.to_string()).map(|config| config.notes().join("\n")).map_err(|e| e.to_string())
    };
    let llama = json!({"model_type": "llama"});
    for (fields, name) in [
        (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping"),
        (json!({"final_logit_softcapping": 30.0}), "final_logit_softcapping"),
        (json!({"query_pre_attn_scalar": 256}), "query_pre_attn_scalar"),
        (json!({"sliding_window": 128}), "sliding_window"),
        (json!({"hidden_activation": "gelu"}), "hidden_activation"),
        (json!({"embedding_multiplier": 12.0}), "embedding_multiplier"),
        (json!({"residual_multiplier": 0.2}), "residual_multiplier"),
        (json!({"attention_multiplier": 0.1}), "attention_multiplier"),
        (json!({"logits_scaling": 8.0}), "logits_scaling"),
        (json!({"logit_scale": 0.06}), "logit_scale"),
        (json!({"clip_qkv": 8.0}), "clip_qkv"),
        (json!({"use_qk_norm": true}), "use_qk_norm"),
        (json!({"no_rope_layers": [0, 1]}), "no_rope_layers"),
        (json!({"attention_chunk_size": 64}), "attention_chunk_size"),
        (json!({"num_nextn_predict_layers": 1}), "num_nextn_predict_layers"),
        (json!({"use_sliding_window": true}), "use_sliding_window"),
        (json!({"parallel_attn": true}), "parallel_attn"),
        (json!({"auto_map": {"AutoModelForCausalLM": "own.Model"}}), "auto_map"),
        (json!({"layer_norm_eps": 1e-3}), "layer_norm_eps"),
        (json!({"vision_config": {"depth": 2}}), "vision_config"),
        (
            json!({"rope_parameters": {"rope_type": "default", "mrope_section": [8, 8]}}),
            "rope_parameters.mrope_section",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}),
            "rope_parameters.full_attention",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0, "finetuned": true}}),
            "rope_scaling.finetuned",
        ),
    ] {
        let said = warnings(llama.clone(), fields).unwrap();
        assert!(said.contains(&format!("nothing reads \"{name}\"")), "{name}: {said}");
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "adapter_config.json"] {
        std::fs::write(dir.path().join(name), llama.to_string()).unwrap();
    }
    assert!(HfConfig::read(dir.path()).unwrap().notes()[0].contains("holds an adapter beside the model"));
    let said =
        warnings(llama.clone(), json!({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}})).unwrap();
    assert!(
        said.contains("\"rope_theta\" is 500000, and 10000 among the rotary settings, which counts"),
        "{said}"
    );
    let linear = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5});
    for same in [
        json!({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 500_000}}),
        json!({"rope_parameters": linear, "rope_scaling": {"type": "linear", "factor": 2}}),
        json!({"rope_parameters": {}, "rope_scaling": {"type": "linear", "factor": 2}}),
    ] {
        assert_eq!(warnings(llama.clone(), same.clone()).unwrap(), "", "{same}");
    }
    // What a family reads is not told, what nobody can compute is refused, and what says nothing is nothing.
    assert_eq!(
        warnings(json!({"model_type": "gemma2"}), json!({"attn_logit_softcapping": 50.0})).unwrap(),
        ""
    );
    assert_eq!(warnings(json!({"model_type": "mistral"}), json!({"sliding_window": 128})).unwrap(), "");
    let llama3 = json!({"rope_type": "llama3", "factor": 2.0});
    for fields in [
        json!({"rope_parameters": linear, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        json!({"rope_parameters": llama3, "original_max_position_embeddings": 64}),
        json!({"rope_scaling": {"type": "ntk", "factor": 2.0}}),
        json!({"layer_types": ["sliding_attention"]}),
        json!({"num_local_experts": 8}),
        json!({"attention_dropout": 0.1}),
        json!({"quantization_config": {"quant_method": "aqlm"}}),
    ] {
        assert!(warnings(llama.clone(), fields.clone()).is_err(), "{fields}");
    }
    for fields in [
        json!({"use_sliding_window": false, "clip_qkv": null, "_name_or_path": "x", "use_cache": true}),
        json!({"temperature": 0.6, "id2label": {"0": "a"}, "transformers_version": "5.0", "tokenizer_class": "T"}),
    ] {
        assert_eq!(warnings(llama.clone(), fields).unwrap(), "");
    }
}
