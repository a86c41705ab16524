//! Sparse attention: layouts are DeepSpeed's, models train and generate with them, and config.json keeps them.

use std::path::{Path, PathBuf};

use oarlock::model::hf::load_from;
use oarlock::model::{Decoder, HfConfig, LoadedModel};
use oarlock::nn::functional::Labels;
use oarlock::nn::{AttentionMasks, BlockMask, Direction, Mask, MultiHeadAttention, Pattern, SparsityConfig};
use oarlock::weights::SafetensorsSource;
use oarlock::{Tensor, optim};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::{largest_difference, largest_magnitude};
use oarlock_tensor::{DType, Device, Par};
use serde_json::{Value, json};

use crate::ranks::alone;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The configuration that config.json would hold in a folder of a model.
fn read(sparse_attention: Value) -> oarlock::Result<HfConfig> {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(golden("train-llama/config.json")).unwrap();
    let mut fields: Value = serde_json::from_str(&text).unwrap();
    fields["sparse_attention"] = sparse_attention;
    let path = folder.path().join("config.json");
    std::fs::write(&path, serde_json::to_string_pretty(&fields).unwrap()).unwrap();
    HfConfig::read(&path)
}

fn sparsity(sparse_attention: Value) -> SparsityConfig {
    read(sparse_attention).unwrap().decoder().sparse_attention.clone().unwrap()
}

#[test]
fn layouts_are_those_of_deepspeed() {
    let text = std::fs::read_to_string(golden("sparse_layouts.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let mut settings = case["settings"].clone();
        settings["seed"] = case["seed"].clone();
        let config = sparsity(settings.clone());
        let number = |name: &str| usize::try_from(case[name].as_u64().unwrap()).unwrap();
        let layout = config.layout(number("heads"), number("tokens")).unwrap();
        let heads = case["layouts"].as_array().unwrap();
        assert_eq!((layout.n_heads(), layout.block()), (heads.len(), config.block), "{settings}");
        for (head, rows) in heads.iter().enumerate() {
            let rows: Vec<&str> = rows.as_str().unwrap().split(' ').collect();
            assert_eq!(rows.len(), layout.n_blocks(), "{settings}");
            for (row, expected) in rows.iter().enumerate() {
                let expected = u128::from_str_radix(expected, 16).unwrap();
                let kept = |column: &usize| layout.keeps(head, row, *column);
                let got = (0..layout.n_blocks()).filter(kept).map(|column| 1u128 << column).sum();
                assert_eq!(expected, got, "{settings}, head {head}, row {row}: {expected:b} and not {got:b}");
            }
        }
    }
}

fn patterns() -> Vec<SparsityConfig> {
    let settings = [
        json!({"mode": "dense"}),
        json!({"mode": "fixed", "num_local_blocks": 2, "horizontal_global_attention": true}),
        json!({"mode": "fixed", "num_local_blocks": 2, "different_layout_per_head": true, "attention": "unidirectional",
            "num_different_global_patterns": 2}),
        json!({"mode": "variable", "local_window_blocks": [1, 2], "global_block_indices": [1],
            "global_block_end_indices": [2]}),
        json!({"mode": "bigbird", "num_random_blocks": 1, "num_sliding_window_blocks": 1, "seed": 5}),
        json!({"mode": "bslongformer", "num_sliding_window_blocks": 1, "max_seq_length": 64}),
    ];
    settings.map(sparsity).into()
}

#[test]
fn config_json_keeps_the_layout() {
    for sparsity in patterns() {
        let hf = HfConfig::read(&golden("train-llama")).unwrap().with_sparse_attention(sparsity);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, hf.to_json(DType::F32)).unwrap();
        assert_eq!(HfConfig::read(&path).unwrap().decoder(), hf.decoder());
    }
    let said = |settings: Value| read(settings).unwrap_err().to_string();
    assert!(
        said(json!({"mode": "strided"})).contains("expected dense, fixed, variable, bigbird or bslongformer")
    );
    assert!(said(json!({"attention": "left"})).contains("expected bidirectional or unidirectional"));
    assert!(
        said(json!({"mode": "variable", "local_window_blocks": [1.5]})).contains("a list of whole numbers")
    );
    assert!(said(json!({"block": 8})).contains("block is 8, but the kernels take multiples of 16"));
}

/// The small model of the golden files, with sparse attention.
fn load(sparsity: Option<SparsityConfig>) -> LoadedModel {
    let dir = golden("train-llama");
    let mut hf = HfConfig::read(&dir).unwrap();
    if let Some(sparsity) = sparsity {
        hf = hf.with_sparse_attention(sparsity);
    }
    let decoder = Decoder::new(hf.decoder().clone(), 64).unwrap();
    let mut source = SafetensorsSource::open(&dir, &hf, &decoder).unwrap();
    let device = Device::cpu(Isa::detect(), Par::solo());
    load_from(hf, decoder, &mut source, &device, DType::F32, 64).unwrap()
}

fn logits(model: &LoadedModel, ids: &[i32]) -> Vec<f32> {
    let ids = Tensor::from_slice(ids, [1, ids.len()], &model.device).unwrap();
    model.decoder.logits(&ids, &Mask::Causal).unwrap().to_vec().unwrap()
}

fn apart(a: &[f32], b: &[f32]) -> f64 {
    largest_difference(a, b).unwrap()
}

#[test]
fn an_answer_with_a_cache_is_that_of_the_whole_text() {
    const LEN: usize = 61;
    let ids: Vec<i32> = (0..LEN as i32).map(|i| i * 37 % 300).collect();
    let dense = logits(&load(None), &ids);
    let vocab = dense.len() / LEN;
    for (index, sparsity) in patterns().into_iter().enumerate() {
        let model = load(Some(sparsity));
        let whole = logits(&model, &ids);
        // The first block sees itself alone with every layout.
        assert_eq!(whole[..16 * vocab], dense[..16 * vocab], "{index}");
        assert_eq!(whole == dense, index == 0, "{index}");
        let mut cache = model.decoder.empty_cache(LEN, DType::F32, &model.device).unwrap();
        let (mut at, mut parts) = (0, Vec::new());
        for n in [33, 9].into_iter().chain([1].repeat(LEN - 42)) {
            let part = Tensor::from_slice(&ids[at..at + n], [1, n], &model.device).unwrap();
            let next: Vec<f32> = model.decoder.next_logits(&part, &mut cache).unwrap().to_vec().unwrap();
            at += n;
            parts.push(apart(&next, &whole[(at - 1) * vocab..at * vocab]));
        }
        let far = largest_magnitude(parts).unwrap();
        assert!(far < 1e-5, "{index}: {far}");
    }
}

#[test]
fn a_model_learns_with_a_layout_and_counts_fewer_operations() {
    let hf = HfConfig::read(&golden("train-llama")).unwrap();
    let dense = hf.decoder().attention_width(64);
    let sparsity = sparsity(json!({"mode": "fixed", "num_local_blocks": 1}));
    let hf = hf.with_sparse_attention(sparsity);
    // Blocks on and below the diagonal, all of them global, leave out nothing of causal attention.
    assert_eq!(hf.decoder().attention_width(64), dense);
    let config = HfConfig::read(&golden("train-llama")).unwrap().with_sparse_attention(SparsityConfig::new(
        Pattern::BsLongformer {
            num_sliding_window_blocks: 1,
            global_block_indices: vec![],
            global_block_end_indices: None,
            attention: Direction::Unidirectional,
        },
    ));
    let width = config.decoder().attention_width(64);
    assert!(width < dense / 3, "{width} {dense}");
    let accelerator = alone(Default::default());
    let model = Decoder::new(config.decoder().clone(), 64).unwrap();
    let optimizer = optim::adamw(&model).lr(1e-2);
    let (model, optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    let ids: Vec<i32> = (0..64).map(|i| i * i % 41).collect();
    let labels: Vec<i32> = ids[1..].iter().copied().chain([-100]).collect();
    let device = accelerator.device();
    let ids = Tensor::from_slice(&ids, [1, 64], device).unwrap();
    let labels = Labels::new(labels);
    let mut losses = Vec::new();
    for _ in 0..30 {
        let loss = model.loss(&ids, |model, ids| model.loss(ids, &labels, &Mask::Causal)).unwrap();
        losses.push(loss.sum().unwrap());
        accelerator.backward(&loss).unwrap();
        optimizer.step().unwrap();
    }
    assert!(losses[29] < losses[0] / 2.0, "{losses:?}");
}

/// Where attention weights are formed, a layout hides the same as where the kernel skips blocks.
#[test]
fn attention_of_a_module_is_the_same_with_and_without_weights() {
    let accelerator = alone(Default::default());
    let device = accelerator.device();
    for n_heads in [1, 4] {
        let keeps =
            |h: usize, row: usize, column: usize| row == column || (row + 2 * column + h).is_multiple_of(3);
        let blocks = BlockMask::new(16, 4, n_heads, keeps).unwrap();
        let attention = MultiHeadAttention::new(32, 4).unwrap().causal().sparse(blocks);
        let attention = accelerator.prepare(attention).unwrap();
        let x: Vec<f32> = (0..60 * 32).map(|i| (i * 7919 % 1013) as f32 / 506.5 - 1.0).collect();
        let x = Tensor::from_slice(&x, [1, 60, 32], device).unwrap();
        let zeros = Tensor::from_slice(&vec![0f32; 60 * 60], [60, 60], device).unwrap();
        let skipped: Vec<f32> = attention.call(&x, |a, x| a.forward(x)).unwrap().to_vec().unwrap();
        let masks = AttentionMasks { attn_mask: Some(&zeros), ..AttentionMasks::default() };
        let hidden: Vec<f32> =
            attention.call(&x, |a, x| a.attend(x, x, x, &masks)).unwrap().to_vec().unwrap();
        assert!(apart(&skipped, &hidden) < 1e-5);
        let long = Tensor::from_slice(&vec![0f32; 65 * 32], [1, 65, 32], device).unwrap();
        let said = attention.call(&long, |a, x| a.forward(x)).unwrap_err().to_string();
        assert!(said.contains("at most 64 keys"), "{said}");
        let zeros = Tensor::from_slice(&vec![0f32; 65 * 65], [65, 65], device).unwrap();
        let masks = AttentionMasks { attn_mask: Some(&zeros), ..AttentionMasks::default() };
        let said = attention.call(&long, |a, x| a.attend(x, x, x, &masks)).unwrap_err().to_string();
        assert!(said.contains("does not fit 4 heads, 65 queries"), "{said}");
    }
}

#[test]
fn a_model_longer_than_its_layout_is_refused() {
    let mut sparsity = SparsityConfig::new(Pattern::fixed());
    sparsity.max_seq_length = Some(32);
    let hf = HfConfig::read(&golden("train-llama")).unwrap().with_sparse_attention(sparsity);
    let said = Decoder::new(hf.decoder().clone(), 33).unwrap_err().to_string();
    assert!(
        said.contains("sequences of 33 tokens are longer than the layout (max_seq_length is 32)"),
        "{said}"
    );
}

/// A layout may end before the positions of the model do: every way to use the folder keeps to it.
#[test]
fn a_model_whose_layout_is_shorter_than_its_positions_is_used_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let [dir, out] = ["model", "out"].map(|name| folder.path().join(name));
    std::fs::create_dir(&dir).unwrap();
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden("train-llama").join(name), dir.join(name)).unwrap();
    }
    let settings = json!({"mode": "bslongformer", "num_sliding_window_blocks": 1, "max_seq_length": 32});
    let hf = HfConfig::read(&golden("train-llama")).unwrap().with_sparse_attention(sparsity(settings));
    assert!(hf.decoder().max_positions > 32);
    std::fs::write(dir.join("config.json"), hf.to_json(DType::F32)).unwrap();

    let device = Device::cpu(Isa::detect(), Par::solo());
    let load = |adapters: &[PathBuf]| {
        oarlock::adapters::load_for_inference(&dir, adapters, &device, DType::F32, usize::MAX).unwrap()
    };
    let adapters = [golden("adapters/lora")];
    for model in [load(&[]), load(&adapters)] {
        assert_eq!(model.n_positions, 32);
        let ids: Vec<i32> = (0..32).map(|i| i * 37 % 300).collect();
        largest_magnitude(logits(&model, &ids)).unwrap();
    }
    let quantized = oarlock::adapters::load_quantized_for_inference;
    let format = oarlock_tensor::cpu::quantized::Format::Int8;
    assert_eq!(quantized(&dir, &[], format, &device, DType::F32, usize::MAX).unwrap().n_positions, 32);
    let options = oarlock::export::ExportOptions {
        model: &dir,
        adapters: &adapters,
        quantized: None,
        out: &out,
        max_shard_bytes: u64::MAX,
        dtype: None,
        dequantizes: false,
        overwrite: false,
        chat: None,
        rope_scaling: None,
    };
    let exported = oarlock::export::export(&options, &device).unwrap();
    assert!(exported.compared.difference < 1e-4, "{:?}", exported.compared);
    assert_eq!(HfConfig::read(&out).unwrap().decoder().sparse_attention, hf.decoder().sparse_attention);
}
