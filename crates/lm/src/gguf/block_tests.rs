//! A model that computes with the blocks of its file: near the dequantized one, and the same alone and among others.

use std::fs;
use std::path::{Path, PathBuf};

use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::nn::names_of;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_gguf::{Gguf, Metadata, TensorPlan, TensorType, Writer, quantize};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::quantized::{Format, Layout};
use oarlock_tensor::cpu::random::Stream;
use oarlock_tensor::ops::Mask;
use oarlock_tensor::ops::quantized::dequantize as dequantize_words;
use oarlock_tensor::{DType, Device, Init, Par, Shape, Tensor};

use crate::model::{
    Decoder, HfConfig, LayerCache, LoadedModel, layers_in_blocks, load_for_inference, load_in_blocks,
};

const VOCAB: u64 = 50;

/// A llama of two layers, whose matrices are of all kinds; those of the second layer are plain.
pub(crate) fn write(folder: &Path, is_tied: bool) -> PathBuf {
    write_in(folder, is_tied, |kind| kind)
}

/// The same with other types in the place of these.
fn write_in(folder: &Path, is_tied: bool, instead: impl Fn(TensorType) -> TensorType) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama").unwrap();
    metadata.set("general.quantization_version", 2_u32).unwrap();
    for (key, n) in [
        ("block_count", 2_u32),
        ("context_length", 64),
        ("embedding_length", 256),
        ("feed_forward_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        metadata.set(&format!("llama.{key}"), n).unwrap();
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32).unwrap();
    metadata.set("llama.rope.freq_base", 10_000.0_f32).unwrap();
    metadata.set("llama.vocab_size", VOCAB as u32).unwrap();
    let mut tensors: Vec<(String, Vec<u64>, TensorType)> = vec![
        ("token_embd.weight".into(), vec![256, VOCAB], TensorType::Q6_K),
        ("output_norm.weight".into(), vec![256], TensorType::F32),
    ];
    if !is_tied {
        tensors.push(("output.weight".into(), vec![256, VOCAB], TensorType::Q8_0));
    }
    for layer in 0..2 {
        for (name, dims, kind) in [
            ("attn_norm", vec![256], TensorType::F32),
            ("ffn_norm", vec![256], TensorType::F32),
            ("attn_q", vec![256, 256], TensorType::Q4_K),
            ("attn_k", vec![256, 128], TensorType::Q8_0),
            ("attn_v", vec![256, 128], TensorType::Q4_1),
            ("attn_output", vec![256, 256], TensorType::Q5_0),
            ("ffn_gate", vec![256, 512], TensorType::Q5_K),
            ("ffn_up", vec![256, 512], TensorType::Q4_0),
            ("ffn_down", vec![512, 256], TensorType::Q5_1),
        ] {
            let kind = if layer == 1 && dims.len() > 1 { TensorType::F16 } else { kind };
            tensors.push((format!("blk.{layer}.{name}.weight"), dims, kind));
        }
    }
    let plans =
        tensors.iter().map(|(name, dims, kind)| TensorPlan::new(name.clone(), dims.clone(), instead(*kind)));
    let mut writer = Writer::begin(Vec::new(), &metadata, plans.collect()).unwrap();
    for (seed, (_, dims, _)) in (0..).zip(&tensors) {
        let n = dims.iter().product::<u64>();
        let random = Stream { seed, stream: 1 };
        let values: Vec<f32> = match dims.len() {
            1 => vec![1.0; n as usize],
            _ => (0..n).map(|i| (random.uniform(i) - 0.5) / 4.0).collect(),
        };
        writer.write_rows(&values, None).unwrap();
    }
    let path = folder.join("model.gguf");
    fs::write(&path, writer.finish().unwrap()).unwrap();
    path
}

fn cpu() -> Device {
    Device::cpu(Isa::detect(), Par::threads(2).unwrap())
}

pub(crate) fn in_blocks(path: &Path, dtype: DType) -> LoadedModel {
    load_in_blocks(HfConfig::read(path).unwrap(), path, &cpu(), dtype, 64).unwrap().unwrap()
}

fn logits(model: &LoadedModel, ids: &[i32]) -> Vec<f32> {
    let ids = Tensor::from_slice(ids, [1, ids.len()], &model.device).unwrap();
    model.decoder.logits(&ids, &Mask::Causal).unwrap().to_f32_vec().unwrap()
}

#[test]
fn logits_from_blocks_are_near_those_of_dequantized_weights() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<i32> = (0..20).map(|i| i * 7 % VOCAB as i32).collect();
    for is_tied in [true, false] {
        let path = write(folder.path(), is_tied);
        let full = load_for_inference(&path, &cpu(), DType::F32, 64).unwrap();
        let exact = logits(&full, &ids);
        let size = (exact.iter().map(|x| x * x).sum::<f32>() / exact.len() as f32).sqrt();
        for (dtype, tolerance) in [(DType::F32, 0.03), (DType::BF16, 0.05)] {
            let found = logits(&in_blocks(&path, dtype), &ids);
            let squares: f32 = exact.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum();
            let error = (squares / exact.len() as f32).sqrt();
            assert!(error > 0.0 && error < tolerance * size, "{dtype}, tied {is_tied}: {error} of {size}");
        }
    }
}

/// The next logits of one text, and of nine beside each other.
#[test]
fn a_text_has_the_bits_that_it_has_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = in_blocks(&write(folder.path(), true), DType::F32);
    let decoder = &model.decoder;
    let next = |texts: &[i32]| {
        let mut caches: Vec<Vec<LayerCache>> = Vec::new();
        for &text in texts {
            let mut cache = decoder.empty_cache(32, DType::F32, &model.device).unwrap();
            let ids: Vec<i32> = (0..6).map(|i| (text + i * 3) % VOCAB as i32).collect();
            decoder
                .next_logits(&Tensor::from_slice(&ids, [1, 6], &model.device).unwrap(), &mut cache)
                .unwrap();
            caches.push(cache);
        }
        let ids = Tensor::from_slice(texts, [texts.len(), 1], &model.device).unwrap();
        let mut caches: Vec<&mut [LayerCache]> = caches.iter_mut().map(Vec::as_mut_slice).collect();
        decoder.next_logits_of_each(&ids, &mut caches).unwrap().to_f32_vec().unwrap()
    };
    // The plain matrices of the second layer have sums of another order for few rows.
    let texts: Vec<i32> = (0..8).collect();
    let together = next(&texts);
    for (text, logits) in texts.iter().zip(together.chunks(VOCAB as usize)) {
        assert_eq!(next(&[*text]), logits, "{text}");
    }
}

#[test]
fn words_take_about_the_memory_of_their_blocks() {
    for (kind, most) in [(TensorType::Q8_0, 1.0), (TensorType::Q4_0, 1.0), (TensorType::Q4_K, 1.03)] {
        let bytes = quantize(kind, &vec![0.5; 512 * 64], 512, None).unwrap().len();
        let block_type = super::weights::block_type(kind).unwrap();
        let layout = oarlock_tensor::cpu::block_quantized::BlockLayout::new(64, 512, block_type).unwrap();
        let words = 4 * layout.n_words();
        assert!((bytes..=(bytes as f64 * most) as usize + 64).contains(&words), "{kind}: {words} of {bytes}");
    }
}

#[test]
fn a_file_without_blocks_gives_no_such_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_in(folder.path(), true, |kind| match kind {
        TensorType::F32 => kind,
        _ => TensorType::F16,
    });
    let config = HfConfig::read(&path).unwrap();
    assert!(load_in_blocks(config, &path, &cpu(), DType::F32, 64).unwrap().is_none());
}

/// The words of rows in blocks, read in pieces of any length, stand for what the file does, rows of interleaved heads as well.
#[test]
fn rows_in_blocks_stand_for_the_weights_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), false);
    let hf = HfConfig::read(&path).unwrap();
    let decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
    let mut source = SafetensorsSource::open(&path, &hf, &decoder).unwrap();
    // Neither those of the second layer, which are plain, nor the embedding and the output weights.
    let layers = layers_in_blocks(&path, &hf).unwrap();
    assert!(layers.len() == 7 && layers.keys().all(|path| path.contains("layers.0.")), "{layers:?}");
    for (path, format) in layers {
        let name = format!("{path}.weight");
        let shape =
            names_of(&decoder).iter().find(|named| named.name == name).map(|named| *named.param.shape());
        let (shape, init) = (shape.unwrap(), Init::Zeros);
        let &[rows, cols] = shape.sizes() else { panic!("{shape:?}") };
        let layout = Layout { rows, cols, format };
        let mut full = vec![0.0; rows * cols];
        let all = 0..full.len();
        source.read(&ParamSlice { name: &name, shape, init, elements: all.clone() }, &mut full).unwrap();
        let mut words = vec![0.0; layout.n_words()];
        for (piece, out) in (0..).zip(words.chunks_mut(1013)) {
            let elements = piece * 1013..piece * 1013 + out.len();
            let shape = Shape::new(&[layout.n_words()]).unwrap();
            source.read(&ParamSlice { name: &name, shape, init, elements }, out).unwrap();
        }
        let words: Vec<i32> = words.iter().map(|word| word.to_bits().cast_signed()).collect();
        let mut again = vec![1.0; full.len()];
        dequantize_words(&cpu(), layout, &words, all, &mut again).unwrap();
        assert!(full.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}: {layout:?}");
    }
}

#[test]
fn a_scale_that_is_no_number_is_found_in_words_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), true);
    let hf = HfConfig::read(&path).unwrap();
    let place = {
        let bytes = fs::read(&path).unwrap();
        let gguf = Gguf::new(&bytes[..]).unwrap();
        gguf.tensor("blk.0.attn_k.weight").unwrap().rows(77, 1).unwrap().as_ptr() as usize
            - bytes.as_ptr() as usize
    };
    let mut bytes = fs::read(&path).unwrap();
    bytes[place..place + 2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let decoder = Decoder::new(hf.decoder().clone(), 8).unwrap();
    let mut source = SafetensorsSource::open(&path, &hf, &decoder).unwrap();
    let name = "model.layers.0.self_attn.k_proj.weight";
    let layout = Layout { rows: 128, cols: 256, format: Format::Blocks(TensorType::Q8_0) };
    let (shape, init) = (Shape::new(&[layout.n_words()]).unwrap(), Init::Zeros);
    let (mut words, elements) = (vec![0.0; layout.n_words()], 0..layout.n_words());
    let error = source.read(&ParamSlice { name, shape, init, elements }, &mut words).unwrap_err().to_string();
    assert!(error.contains("holds 32 of 32768 elements that are NaN or infinite"), "{error}");
}
