//! Adapters of families whose files hold several projections as one layer (Phi-3, GLM-4), against PEFT: the folders and
//! numbers of `tests/golden/adapters/fused`, written by bench/golden/make_adapters.py upon the models of
//! `tests/golden/families`.

use std::path::{Path, PathBuf};

use oarlock::adapters::{
    Adaptation, AdapterConfig, adapt_quantized, load_for_inference, load_quantized_for_inference,
};
use oarlock::export::{ExportOptions, export};
use oarlock::model::{Decoder, HfConfig};
use oarlock::weights::QuantizedLayers;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::quantized::{Code, Format};
use oarlock_tensor::{DType, Device, Par};
use serde_json::Value;

use crate::adapters::{PeftRuns, beside, check, floats, golden, losses_of, placement, tensors};

const FAMILIES: [&str; 2] = ["phi3", "glm4"];
const NF4: Format = Format::FourBit { code: Code::Nf4, nested: true };
const KINDS: [&str; 4] = ["lora", "dora", "pissa", "oft"];

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

fn read(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn trainings(family: &str) -> PeftRuns {
    let (base, adapters) = (golden("families").join(family), golden("adapters/fused").join(family));
    PeftRuns { numbers: read(adapters.join("numbers.json")), base, adapters, rank: 2, quantized: None }
}

#[test]
fn all_targets_are_the_layers_of_the_files() {
    for (family, of_a_layer) in [
        ("phi3", &["mlp.down_proj", "mlp.gate_up_proj", "self_attn.o_proj", "self_attn.qkv_proj"][..]),
        (
            "glm4",
            &[
                "mlp.down_proj",
                "mlp.gate_up_proj",
                "self_attn.k_proj",
                "self_attn.o_proj",
                "self_attn.q_proj",
                "self_attn.v_proj",
            ],
        ),
    ] {
        let hf = HfConfig::read(&golden("families").join(family)).unwrap();
        let mut decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
        let all = Adaptation::new(&mut decoder, &hf, &AdapterConfig::default()).unwrap();
        let expected: Vec<String> = (0..hf.decoder().layers.len())
            .flat_map(|index| of_a_layer.iter().map(move |name| format!("model.layers.{index}.{name}")))
            .collect();
        assert_eq!(all.modules.keys().cloned().collect::<Vec<_>>(), expected);
        // Of a quantized base the fused layers are quantized as they are, with the adapter around them.
        let weights = adapt_quantized(&mut decoder, &all, &QuantizedLayers::All(NF4), DType::F32).unwrap();
        for path in &expected {
            assert!(weights.layout(&format!("{path}.weight")).is_some(), "{path}");
        }
    }
}

#[test]
fn logits_are_those_of_peft_beside_the_base_and_merged_into_it() {
    for family in FAMILIES {
        let PeftRuns { base, adapters, numbers, .. } = trainings(family);
        for name in KINDS {
            let adapter = adapters.join(name);
            check(&beside(&base, &adapter), &numbers, name);
            let merged = load_for_inference(&base, &[adapter], &device(), DType::F32, 64).unwrap();
            check(&merged, &numbers, &format!("{name}_merged"));
        }
    }
}

#[test]
fn losses_are_those_of_peft_on_any_ranks_and_in_any_placement() {
    for family in FAMILIES {
        let trainings = trainings(family);
        for name in KINDS {
            let expected = floats(&trainings.numbers["losses"][name]);
            for (world, way) in [(1, "DDP"), (2, "ZeRO-3")] {
                let found = losses_of(&trainings, world, placement(way), name, None);
                assert_eq!(found.len(), expected.len());
                for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert!(
                        (found - expected).abs() < 3e-5,
                        "{family} {name} {way} {step}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_written_has_the_keys_the_shapes_and_the_settings_of_peft() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let trainings = trainings(family);
        for name in ["lora", "dora", "oft"] {
            let out = folder.path().join(family).join(name);
            losses_of(&trainings, 2, placement("ZeRO-3"), name, Some(out.clone()));
            let first = trainings.adapters.join(format!("first_{name}"));
            assert_eq!(tensors(&out), tensors(&first), "{family} {name}");
            let config = |dir: &Path| read(dir.join("adapter_config.json"));
            assert_eq!(config(&out), config(&first), "{family} {name}");
            beside(&trainings.base, &out);
        }
    }
}

#[test]
fn an_export_and_a_quantized_base_take_them() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let PeftRuns { base, adapters, numbers, .. } = trainings(family);
        // A tokenizer, which the small models lack.
        let model = folder.path().join(family);
        std::fs::create_dir(&model).unwrap();
        for (from, name) in [(&base, "config.json"), (&base, "model.safetensors")] {
            std::fs::copy(from.join(name), model.join(name)).unwrap();
        }
        let vocab: serde_json::Map<String, Value> =
            (0..72u8).map(|id| (char::from(b'0' + id).to_string(), id.into())).collect();
        let tokenizer = serde_json::json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null, "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let adapter = [adapters.join("lora")];
        let out = folder.path().join(format!("{family}-merged"));
        let options = ExportOptions {
            model: &model,
            adapters: &adapter,
            quantized: None,
            out: &out,
            max_shard_bytes: 20_000,
            dtype: Some(DType::F32),
            dequantizes: false,
            overwrite: false,
            chat: None,
            rope_scaling: None,
        };
        let exported = export(&options, &device()).unwrap();
        assert!(exported.compared.difference < 1e-4, "{:?}", exported.compared);
        let written = load_for_inference(&out, &[], &device(), DType::F32, 64).unwrap();
        check(&written, &numbers, "lora_merged");
        load_quantized_for_inference(&model, &adapter, NF4, &device(), DType::F32, 64).unwrap();
    }
}
