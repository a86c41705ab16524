//! Weights that are NaN or infinite, or too large for their dtype: none is loaded, exported, merged or saved without its
//! name, and what was in a folder stays as it was.

use std::path::Path;

use oarlock::adapters::load_for_inference;
use oarlock::checkpoint::MergeOptions;
use oarlock::export::{ExportOptions, Quantized, export};
use oarlock::generate::Generator;
use oarlock::model::hf::SaveOptions;
use oarlock::model::{Decoder, HfConfig, merge_weights};
use oarlock::nn::Module;
use oarlock::shard::{ParamSlice, WeightSource};
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, DType, Result, optim};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::quantized::Format;
use oarlock_tensor::{Device, Par};

use crate::adapters::golden;
use crate::common::weights::change;
use crate::ranks::alone;

const WEIGHT: &str = "model.layers.0.mlp.down_proj.weight";

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

/// A copy of the small model of which one tensor was changed.
fn changed(to: &Path, change_values: impl FnOnce(&mut [f32])) {
    copy(&golden("train-llama"), to);
    change(&to.join("model.safetensors"), WEIGHT, change_values);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What is in a folder: names and bytes.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<(String, Vec<u8>)> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

fn options<'a>(model: &'a Path, out: &'a Path) -> ExportOptions<'a> {
    ExportOptions {
        model,
        adapters: &[],
        quantized: None,
        out,
        max_shard_bytes: u64::MAX,
        dtype: None,
        dequantizes: false,
        overwrite: true,
        chat: None,
        rope_scaling: None,
    }
}

#[test]
fn a_model_with_weights_that_are_not_finite_is_named_where_it_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    for (value, n) in [(f32::NAN, 1), (-f32::NAN, 3), (f32::INFINITY, 2), (f32::NEG_INFINITY, 1)] {
        changed(&dir, |values| values.iter_mut().rev().take(n).for_each(|x| *x = value));
        let text = load_for_inference(&dir, &[], &device(), DType::F32, 8).unwrap_err().to_string();
        let expected = format!("\"{WEIGHT}\" holds {n} of 2560 elements that are NaN or infinite");
        assert!(text.starts_with(&dir.display().to_string()) && text.contains(&expected), "{text}");
        // Also before they are quantized, where blocks would pass them over.
        let load = oarlock::adapters::load_quantized_for_inference;
        let text = load(&dir, &[], Format::Int8, &device(), DType::F32, 8).unwrap_err().to_string();
        assert!(text.contains(&expected), "{text}");
        let accelerator = alone(AcceleratorConfig::default());
        let text = trained(&accelerator, &dir).err().expect("an error").to_string();
        assert!(text.contains(&expected), "{text}");
    }
    // What a dtype would make infinite.
    changed(&dir, |values| values[..2].fill(-1e6));
    let text = load_for_inference(&dir, &[], &device(), DType::F16, 8).unwrap_err().to_string();
    assert!(text.contains(&format!("too large for f16 and would become infinite, so they are not computed with: \"{WEIGHT}\" (2 of 2560)")), "{text}");
    load_for_inference(&dir, &[], &device(), DType::BF16, 8).unwrap();
}

/// A model with the weights of a folder, prepared for a training run.
fn trained(accelerator: &Accelerator, dir: &Path) -> Result<oarlock::Prepared<Decoder>> {
    let hf = HfConfig::read(dir)?;
    let decoder = Decoder::new(hf.decoder().clone(), 8)?;
    let source = SafetensorsSource::open(dir, &hf, &decoder)?;
    let optimizer = optim::adamw(&decoder);
    Ok(accelerator.prepare_with_weights((decoder, optimizer), Box::new(source))?.0)
}

#[test]
fn an_adapter_with_weights_that_are_not_finite_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("adapter");
    copy(&golden("adapters/lora"), &adapter);
    let name = "base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight";
    change(&adapter.join("adapter_model.safetensors"), name, |values| values[5] = f32::NAN);
    let load = || {
        load_for_inference(&golden("train-llama"), std::slice::from_ref(&adapter), &device(), DType::F32, 8)
    };
    let text = load().unwrap_err().to_string();
    assert!(text.contains(name) && text.contains("holds 1 of"), "{text}");
}

#[test]
fn an_export_with_weights_that_are_not_finite_leaves_the_folder_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let [base, out, adapter] = ["base", "out", "adapter"].map(|name| folder.path().join(name));
    copy(&golden("train-llama"), &out);
    let before = content(&out);
    changed(&base, |values| values[77] = f32::NAN);
    let format = Format::Int8;
    for quantized in [None, Some(Quantized::Packed(format)), Some(Quantized::Dequantized(format))] {
        let text =
            export(&ExportOptions { quantized, ..options(&base, &out) }, &device()).unwrap_err().to_string();
        assert!(text.contains(&format!("\"{WEIGHT}\" holds 1 of 2560")), "{quantized:?}: {text}");
        assert_eq!(content(&out), before, "{quantized:?}");
    }

    // An adapter that is finite itself, merged in f32, and beyond the range of f16.
    copy(&golden("adapters/lora"), &adapter);
    let file = adapter.join("adapter_model.safetensors");
    let name = "base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight";
    change(&file, name, |values| values.iter_mut().for_each(|x| *x *= 1e8));
    let (model, adapters) = (golden("train-llama"), [adapter]);
    let options = ExportOptions { adapters: &adapters, dtype: Some(DType::F16), ..options(&model, &out) };
    let text = export(&options, &device()).unwrap_err().to_string();
    let expected = "weights are too large for f16 and would become infinite, so they are not written: \
                    \"model.layers.1.self_attn.o_proj.weight\" (";
    assert!(text.contains(expected) && text.contains("infer_dtype"), "{text}");
    assert_eq!(content(&out), before);
    let exported = export(&ExportOptions { dtype: Some(DType::BF16), ..options }, &device()).unwrap();
    assert!(exported.compared.difference.is_finite() && exported.compared.largest > 0.0);
}

/// No pass over the model shows the value head of a reward model, so an export looks at it by itself.
#[test]
fn an_export_refuses_a_value_head_that_is_not_finite_or_of_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let [base, adapter, out] = ["base", "adapter", "out"].map(|name| folder.path().join(name));
    copy(&golden("train-llama"), &base);
    copy(&golden("adapters/lora"), &adapter);
    copy(&golden("train-llama"), &out);
    let before = content(&out);
    let (file, weight) = ("value_head.safetensors", "v_head.summary.weight");
    let head = golden("preference").join(file);
    let adapters = [adapter.clone()];
    for dir in [&base, &adapter] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            std::fs::copy(&head, dir.join(file)).unwrap();
            change(&dir.join(file), weight, |values| values[3] = value);
            let options = ExportOptions { adapters: &adapters, ..options(&base, &out) };
            let text = export(&options, &device()).unwrap_err().to_string();
            let expected = format!("\"{weight}\" holds 1 of 32 elements that are NaN or infinite");
            assert!(text.contains(file) && text.contains(&expected), "{text}");
            assert_eq!(content(&out), before);
        }
        std::fs::write(dir.join(file), "none").unwrap();
        assert!(export(&ExportOptions { adapters: &adapters, ..options(&base, &out) }, &device()).is_err());
        assert_eq!(content(&out), before);
        std::fs::copy(&head, dir.join(file)).unwrap();
    }
    let exported = export(&ExportOptions { adapters: &adapters, ..options(&base, &out) }, &device()).unwrap();
    assert!(exported.files.contains(&file.to_owned()));
    assert_eq!(std::fs::read(out.join(file)).unwrap(), std::fs::read(&head).unwrap());
}

/// A state with such a value head, which no save lets through, makes no model either.
#[test]
fn a_merge_refuses_a_value_head_that_is_not_finite() {
    let folder = tempfile::tempdir().unwrap();
    let [out, checkpoint] = ["out", "checkpoint"].map(|name| folder.path().join(name));
    let base = golden("train-llama");
    copy(&base, &out);
    let before = content(&out);
    let hf = HfConfig::read(&base).unwrap();
    let accelerator = alone(AcceleratorConfig::default());
    let mut decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
    let source = SafetensorsSource::open(&base, &hf, &decoder).unwrap();
    decoder.add_value_head(0.0).unwrap();
    let optimizer = optim::adamw(&decoder);
    let source = Box::new(WithHead(source));
    let (model, _optimizer) = accelerator.prepare_with_weights((decoder, optimizer), source).unwrap();
    let expected =
        "weights are NaN or infinite, so they are not written: \"v_head.summary.weight\" (1 of 32)";
    let module: &dyn Module = model.module();
    let files = hf.files_of(module, &SaveOptions::new(DType::F32, None)).unwrap();
    let text = accelerator.save_pretrained(&model, &out, files.written_by("a test", true)).unwrap_err();
    assert!(text.to_string().contains(expected), "{text}");
    accelerator.save_state(Some(&checkpoint)).unwrap();
    // The state names the kind of model that the folder of a run would.
    std::fs::copy(base.join("config.json"), checkpoint.join("config.json")).unwrap();
    let options =
        MergeOptions { tag: None, model: None, dtype: None, max_shard_bytes: 1 << 20, overwrite: true };
    let text = merge_weights(&checkpoint, &out, &options).unwrap_err().to_string();
    assert!(text.contains(expected), "{text}");
    assert_eq!(content(&out), before);
}

/// The weights of a folder, and a value head of which one weight is NaN.
struct WithHead(SafetensorsSource);

impl WeightSource for WithHead {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        if !slice.name.starts_with("v_head.") {
            return self.0.read(slice, out);
        }
        out.fill(0.5);
        if slice.name == "v_head.summary.weight" && slice.elements.start == 0 {
            out[0] = f32::NAN;
        }
        Ok(())
    }
}

/// The weights of a folder, with one that is replaced.
struct With(SafetensorsSource, f32);

impl WeightSource for With {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        self.0.read(slice, out)?;
        if slice.name == WEIGHT && slice.elements.start == 0 {
            out[0] = self.1;
        }
        Ok(())
    }
}

#[test]
fn saves_and_merges_of_weights_that_are_not_finite_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (base, out, checkpoint) =
        (golden("train-llama"), folder.path().join("out"), folder.path().join("checkpoint"));
    copy(&base, &out);
    let before = content(&out);
    let hf = HfConfig::read(&base).unwrap();
    for (value, dtype, message) in [
        (f32::NAN, DType::F32, "weights are NaN or infinite, so they are not written"),
        (f32::INFINITY, DType::BF16, "weights are NaN or infinite, so they are not written"),
        (1e6, DType::F16, "weights are too large for f16"),
    ] {
        let accelerator = alone(AcceleratorConfig::default());
        let decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
        let source = With(SafetensorsSource::open(&base, &hf, &decoder).unwrap(), value);
        let optimizer = optim::adamw(&decoder);
        let (model, _optimizer) =
            accelerator.prepare_with_weights((decoder, optimizer), Box::new(source)).unwrap();
        let module: &dyn Module = model.module();
        let files =
            || hf.files_of(module, &SaveOptions::new(dtype, None)).unwrap().written_by("a test", true);
        let text = accelerator.save_pretrained(&model, &out, files()).unwrap_err().to_string();
        assert!(text.contains(message) && text.contains(&format!("\"{WEIGHT}\" (1 of 2560)")), "{text}");
        assert_eq!(content(&out), before);

        // The state is kept as it is, so that it can be looked at, and no model is made of it.
        accelerator.save_state(Some(&checkpoint)).unwrap();
        let options = MergeOptions {
            tag: None,
            model: None,
            dtype: Some(dtype),
            max_shard_bytes: 1 << 20,
            overwrite: true,
        };
        let text = merge_weights(&checkpoint, &out, &options).unwrap_err().to_string();
        assert!(text.contains(message) && text.contains(&format!("\"{WEIGHT}\" (1 of 2560)")), "{text}");
        assert_eq!(content(&out), before);
    }
}

/// Weights that are finite, and products of them that are not: of such logits no answer is the likeliest.
#[test]
fn no_choice_is_made_of_logits_that_are_no_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    copy(&golden("train-llama"), &dir);
    let up = "model.layers.1.mlp.up_proj.weight";
    change(&dir.join("model.safetensors"), up, |values| values.fill(6e4));
    let choose = |dtype| {
        let model = load_for_inference(&dir, &[], &device(), dtype, 16).unwrap();
        Generator::new(model).choose(&[vec![5, 6, 7]], &[8, 9, 10])
    };
    assert_eq!(choose(DType::F32).unwrap().len(), 1);
    let text = choose(DType::F16).unwrap_err().to_string();
    assert!(text.contains("the model gives a logit of"), "{text}");
}
