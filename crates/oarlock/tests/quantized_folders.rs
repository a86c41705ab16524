//! Folders with quantized weights: those that transformers and bitsandbytes wrote (`tests/golden/quantized`, by
//! bench/golden/make_quantized_folders.py), those that are written here, and AWQ and GPTQ by their layouts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use half::f16;
use oarlock::adapters::load_for_inference;
use oarlock::export::{ExportOptions, Quantized, export};
use oarlock::model::{Decoder, HfConfig};
use oarlock::nn::{Mask, names_of};
use oarlock::shard::{ParamSlice, WeightSource};
use oarlock::weights::{SafetensorsSource, StoredQuantization};
use oarlock::{DType, Tensor};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::cpu::quantized::{Code, Format};
use oarlock_tensor::{Device, Par, Shape};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

/// The logits of the last token, and what transformers computed.
fn logits(dir: &Path) -> Vec<f32> {
    let text = std::fs::read_to_string(golden("quantized/logits.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<i32> =
        golden["ids"][0].as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect();
    let model = load_for_inference(dir, &[], &device(), DType::F32, 64).unwrap();
    let ids = Tensor::from_slice(&ids, [1, ids.len()], &model.device).unwrap();
    let logits = model.decoder.logits(&ids, &Mask::Causal).unwrap().to_vec::<f32>().unwrap();
    logits[logits.len() - 300..].to_vec()
}

fn expected(name: &str) -> Vec<f32> {
    let text = std::fs::read_to_string(golden("quantized/logits.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    golden[name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    largest_difference(a, b).unwrap()
}

#[test]
fn folders_of_bitsandbytes_say_what_they_say_there() {
    for (name, kind, bound) in [
        ("nf4", StoredQuantization::FourBit, 1e-4),
        ("fp4", StoredQuantization::FourBit, 1e-4),
        ("int8", StoredQuantization::EightBit, 1e-4),
    ] {
        let dir = golden("quantized").join(name);
        assert_eq!(HfConfig::read(&dir).unwrap().quantization(), Some(kind));
        let found = distance(&logits(&dir), &expected(name));
        assert!(found < bound, "{name}: {found}");
    }
}

/// A copy of a golden folder with other settings of its weights, and other weights.
fn changed(
    name: &str,
    settings: impl FnOnce(&mut Value),
    weights: impl FnOnce(&mut HashMap<String, Part>),
) -> tempfile::TempDir {
    let (from, folder) = (golden("quantized").join(name), tempfile::tempdir().unwrap());
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    settings(&mut config["quantization_config"]);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let part = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    let mut tensors = file.tensors().into_iter().map(|(name, view)| (name, part(view))).collect();
    weights(&mut tensors);
    std::fs::write(folder.path().join("model.safetensors"), file_of(&tensors)).unwrap();
    folder
}

#[test]
fn settings_that_are_not_those_of_the_stored_weights_are_told() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    let message = |folder: &tempfile::TempDir| {
        let model = load_for_inference(folder.path(), &[], &device(), DType::F32, 64).unwrap();
        model.config.notes().join("\n")
    };
    for name in ["nf4", "fp4", "int8"] {
        let whole = golden("quantized").join(name);
        let model = load_for_inference(&whole, &[], &device(), DType::F32, 64).unwrap();
        assert!(model.config.notes().is_empty(), "{name}: {:?}", model.config.notes());
    }
    let list = |names: &[&str]| Value::from(names.to_vec());
    for (name, key, value, expected) in [
        (
            "nf4",
            "bnb_4bit_quant_type",
            "fp4".into(),
            "\"bnb_4bit_quant_type\": \"fp4\", and these are of another type: ",
        ),
        (
            "fp4",
            "bnb_4bit_quant_type",
            "nf4".into(),
            "\"nf4\", and these are of another type: model.layers.0.",
        ),
        ("nf4", "bnb_4bit_use_double_quant", false.into(), "and the scales of these are quantized: "),
        ("fp4", "bnb_4bit_use_double_quant", true.into(), "and the scales of these are not quantized: "),
        ("nf4", "bnb_4bit_quant_storage", "bfloat16".into(), "and these are stored as another type: "),
        (
            "nf4",
            "llm_int8_skip_modules",
            list(&["q_proj"]),
            "that some layers are not quantized, and these are: ",
        ),
        ("int8", "llm_int8_skip_modules", list(&["model.layers.1"]), "and these are: model.layers.1."),
        (
            "int8",
            "modules_to_not_convert",
            list(&["o_proj"]),
            "and these are: model.layers.0.self_attn.o_proj.weight",
        ),
    ] {
        let said = message(&changed(name, |settings| settings[key] = value, |_| ()));
        assert!(
            said.contains("config.json: quantization_config says ") && said.contains(expected),
            "{key}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // One layer that is not quantized, and all.
    let plain = |of: &'static str| {
        move |tensors: &mut HashMap<String, Part>| {
            let bytes = std::fs::read(golden("train-llama").join("model.safetensors")).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            tensors.retain(|name, _| !name.starts_with(of) || !name.contains("_proj"));
            for (name, view) in file.tensors().into_iter().filter(|(name, _)| name.starts_with(of)) {
                tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            }
        }
    };
    let said = message(&changed("nf4", |_| (), plain(Q)));
    assert!(said.contains(&format!("it is not quantized, and these are not: {Q}.weight; what")), "{said}");
    let skips = |settings: &mut Value| settings["llm_int8_skip_modules"] = list(&[Q, "lm_head"]);
    assert_eq!(message(&changed("nf4", skips, plain(Q))), "");
    let said = message(&changed("nf4", |_| (), plain("")));
    assert!(said.contains("says that weights are quantized, and none of the files' is: "), "{said}");
    // What transformers refuses.
    let both = changed("nf4", |settings| settings["load_in_8bit"] = true.into(), |_| ());
    let error = HfConfig::read(both.path()).unwrap_err().to_string();
    assert!(error.contains("load_in_4bit and load_in_8bit are both true"), "{error}");
}

#[test]
fn an_export_in_few_bits_is_such_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let base = golden("train-llama");
    for (name, format) in [
        ("nf4", Format::FourBit { code: Code::Nf4, nested: true }),
        ("fp4", Format::FourBit { code: Code::Fp4, nested: false }),
        ("int8", Format::Int8),
    ] {
        let out = folder.path().join(name);
        let options = ExportOptions {
            model: &base,
            adapters: &[],
            quantized: Some(Quantized::Packed(format)),
            out: &out,
            max_shard_bytes: 20_000,
            dtype: None,
            dequantizes: false,
            overwrite: false,
            chat: None,
            rope_scaling: None,
        };
        let exported = export(&options, &device()).unwrap();
        assert!(exported.compared.difference > 0.0 && exported.compared.difference < 3.0, "{exported:?}");
        assert!(out.join("model.safetensors.index.json").is_file() && out.join("Modelfile").is_file());
        assert!(distance(&logits(&out), &expected(name)) < 1e-4);
        assert!(export(&ExportOptions { model: &out, ..options }, &device()).is_err());
        // Exported again, the weights are what they stand for.
        let again = folder.path().join(format!("{name} again"));
        let plain = ExportOptions { model: &out, out: &again, quantized: None, ..options };
        let exported = export(&plain, &device()).unwrap();
        assert!(exported.compared.difference < 1e-4, "{exported:?}");
        assert_eq!(HfConfig::read(&again).unwrap().quantization(), None);
        assert!(distance(&logits(&again), &expected(name)) < 1e-4);
    }
}

/// A folder of the small llama whose linear layers are these tensors, made of the path and sizes of each layer.
fn folder(settings: Value, parts: impl Fn(&str, [usize; 2]) -> Vec<(String, Part)>) -> tempfile::TempDir {
    let (base, folder) = (golden("train-llama"), tempfile::tempdir().unwrap());
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(base.join("config.json")).unwrap()).unwrap();
    config["quantization_config"] = settings;
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(base.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: HashMap<String, Part> = HashMap::new();
    for (name, view) in file.tensors() {
        match name.strip_suffix("_proj.weight") {
            Some(path) => {
                let &[rows, cols] = view.shape() else { unreachable!("two dims") };
                tensors.extend(parts(&format!("{path}_proj"), [rows, cols]));
            }
            None => drop(tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))),
        }
    }
    std::fs::write(folder.path().join("model.safetensors"), file_of(&tensors)).unwrap();
    folder
}

fn file_of(tensors: &HashMap<String, Part>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
}

type Part = (Dtype, Vec<usize>, Vec<u8>);

fn words(shape: [usize; 2], words: Vec<u32>) -> Part {
    (Dtype::I32, shape.to_vec(), words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// A number of a few bits for an element of a weight, a zero point, or a group.
fn draw(seed: usize, bits: u32) -> u32 {
    ((seed * 2_654_435_761) >> 7) as u32 & ((1 << bits) - 1)
}

/// The integers, zero points and scales of a layer: `[outputs, inputs]`, and for each group and output.
fn integer(output: usize, input: usize, bits: u32) -> u32 {
    draw(output * 977 + input * 31 + 5, bits)
}

fn zero(group: usize, output: usize, bits: u32) -> u32 {
    draw(group * 53 + output * 7 + 1, bits)
}

fn scale(group: usize, output: usize) -> f16 {
    f16::from_f32(0.01 + ((group * 3 + output) % 13) as f32 / 512.0)
}

fn scales(groups: usize, n_out: usize) -> Part {
    let all = (0..groups).flat_map(|group| (0..n_out).map(move |output| scale(group, output)));
    (Dtype::F16, vec![groups, n_out], all.flat_map(|scale| scale.to_le_bytes()).collect())
}

/// Whether every linear weight has the values that its integers stand for; `group` is that of an input.
fn check(dir: &Path, bits: u32, group: impl Fn(usize) -> usize) {
    let config = HfConfig::read(dir).unwrap();
    let model = Decoder::new(config.decoder().clone(), 16).unwrap();
    let mut source = SafetensorsSource::open(dir, &config, &model).unwrap();
    let mut n = 0;
    for named in names_of(&model).iter().filter(|named| named.name.ends_with("_proj.weight")) {
        let shape: &Shape = named.param.shape();
        let n_in = shape.last();
        let mut values = vec![0.0; shape.n_elems()];
        source.read(&ParamSlice::of(named, 0..values.len()), &mut values).unwrap();
        for (at, value) in values.iter().enumerate() {
            let (output, input) = (at / n_in, at % n_in);
            let group = group(input);
            let number = integer(output, input, bits) as f32 - zero(group, output, bits) as f32;
            assert_eq!(*value, number * scale(group, output).to_f32(), "{} {output} {input}", named.name);
        }
        let mut part = vec![0.0; 7];
        source.read(&ParamSlice::of(named, 61..68), &mut part).unwrap();
        assert_eq!(part, values[61..68]);
        n += 1;
    }
    assert_eq!(n, 14);
}

#[test]
fn gptq_is_unpacked_along_the_inputs_with_zero_points_less_one() {
    for (bits, format, less, ordered) in
        [(4u32, "gptq", 1, true), (4, "gptq_v2", 0, true), (8, "gptq", 1, true), (2, "gptq", 1, false)]
    {
        let per_word = (32 / bits) as usize;
        let mask = (1u32 << bits) - 1;
        // With desc_act, any input may be of any group.
        let group = move |input: usize| if ordered { input / 16 } else { (input * 7 + 3) % 2 };
        let settings = json!({
            "quant_method": "gptq", "bits": bits, "group_size": 16, "desc_act": !ordered, "checkpoint_format": format,
        });
        let dir = folder(settings, |path, [n_out, n_in]| {
            let groups = n_in / 16;
            let values = (0..n_in / per_word).flat_map(|row| {
                (0..n_out).map(move |output| {
                    (0..per_word).fold(0, |word, i| {
                        word | integer(output, row * per_word + i, bits) << (bits * i as u32)
                    })
                })
            });
            let zeros = (0..groups).flat_map(|group| {
                (0..n_out / per_word).map(move |column| {
                    (0..per_word).fold(0, |word, i| {
                        let stored = zero(group, column * per_word + i, bits).wrapping_sub(less) & mask;
                        word | stored << (bits * i as u32)
                    })
                })
            });
            vec![
                (format!("{path}.qweight"), words([n_in / per_word, n_out], values.collect())),
                (format!("{path}.qzeros"), words([groups, n_out / per_word], zeros.collect())),
                (format!("{path}.scales"), scales(groups, n_out)),
                (format!("{path}.g_idx"), {
                    let (dtype, _, bytes) =
                        words([1, n_in], (0..n_in).map(|input| group(input) as u32).collect());
                    (dtype, vec![n_in], bytes)
                }),
            ]
        });
        check(dir.path(), bits, group);
    }
}

#[test]
fn awq_is_unpacked_in_its_order() {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let settings =
        json!({ "quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": true, "version": "GEMM" });
    let dir = folder(settings, |path, [n_out, n_in]| {
        let groups = n_in / 16;
        let pack = |of: &dyn Fn(usize) -> u32| -> Vec<u32> {
            let word = |column: usize| {
                ORDER.iter().enumerate().fold(0, |word, (i, order)| word | of(column * 8 + order) << (4 * i))
            };
            (0..n_out / 8).map(word).collect()
        };
        let values = (0..n_in).flat_map(|input| pack(&|output| integer(output, input, 4)));
        let zeros = (0..groups).flat_map(|group| pack(&|output| zero(group, output, 4)));
        vec![
            (format!("{path}.qweight"), words([n_in, n_out / 8], values.collect())),
            (format!("{path}.qzeros"), words([groups, n_out / 8], zeros.collect())),
            (format!("{path}.scales"), scales(groups, n_out)),
        ]
    });
    check(dir.path(), 4, |input| input / 16);
}

#[test]
fn what_is_not_there_or_damaged_is_named() {
    let message = |settings: Value| {
        let dir = folder(settings, |_, _| Vec::new());
        HfConfig::read(dir.path()).unwrap_err().to_string()
    };
    for (settings, part) in [
        (
            json!({ "quant_method": "hqq" }),
            "of quant_method \"hqq\" are not read, only those of bitsandbytes, GPTQ and AWQ",
        ),
        (json!({ "quant_method": "gptq", "bits": 3 }), "of 3 bits are not supported"),
        (json!({ "quant_method": "gptq", "checkpoint_format": "marlin" }), "\"marlin\" is not supported"),
        (json!({ "quant_method": "awq", "version": "gemv" }), "of the version gemm are supported"),
        (json!({ "quant_method": "awq", "group_size": 0 }), "a group_size of 0 is none"),
    ] {
        let message = message(settings);
        assert!(message.contains(part), "{part}: {message}");
    }
    // A part of another size, and one that is missing.
    let dir = folder(json!({ "quant_method": "awq" }), |path, [n_out, n_in]| {
        vec![(format!("{path}.qweight"), words([n_in, n_out / 8], vec![0; n_in * n_out / 8]))]
    });
    let config = HfConfig::read(dir.path()).unwrap();
    let model = Decoder::new(config.decoder().clone(), 16).unwrap();
    let message = SafetensorsSource::open(dir.path(), &config, &model).err().unwrap().to_string();
    assert!(message.contains(".qzeros, a part of a quantized weight"), "{message}");
}
