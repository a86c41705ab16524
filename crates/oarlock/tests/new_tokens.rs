//! Models that get tokens: their ids, their rows, and the files of the tokenizer.

use std::path::PathBuf;

use oarlock::config::NewTokens;
use oarlock::data::Tokenizer;
use oarlock::model::HfConfig;
use oarlock::model::hf::{NewRows, open_weights};
use oarlock::shard::{ParamSlice, WeightSource};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Init, Par, Shape};

use crate::adapters::golden;

const N_STORED: usize = 300;
const N_GROWN: usize = 320;
const WIDTH: usize = 32;

fn base() -> PathBuf {
    golden("train-llama")
}

fn device() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

#[test]
fn new_tokens_get_the_next_ids_and_are_saved_with_the_others() {
    let new = NewTokens {
        tokens: vec!["<a>".to_owned(), "<|end|>".to_owned()],
        special: vec!["<tool>".to_owned()],
        ..NewTokens::default()
    };
    let tokenizer = Tokenizer::open_with(base(), &new).unwrap();
    let plain = Tokenizer::open(base()).unwrap();
    assert_eq!((plain.vocab_size().unwrap(), tokenizer.vocab_size().unwrap()), (N_STORED, N_STORED + 2));
    // One that is there already keeps its id.
    assert_eq!(tokenizer.id_of("<|end|>").unwrap(), plain.id_of("<|end|>").unwrap());
    let ids = tokenizer.encode("x<a>y<tool>").unwrap();
    assert_eq!((ids[1], ids[ids.len() - 1]), (300, 301));
    assert_eq!(tokenizer.decode(&[300, 301], true).unwrap(), "<a>");
    assert_ne!(tokenizer.fingerprint(), plain.fingerprint());
    assert!(tokenizer.has_new() && !plain.has_new() && plain.grown_json().unwrap().is_none());

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.grown_json().unwrap().unwrap()).unwrap();
    let config = "tokenizer_config.json";
    std::fs::copy(base().join(config), folder.path().join(config)).unwrap();
    let saved = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(saved.encode("x<a>y<tool>").unwrap(), ids);
    assert_eq!(saved.decode(&[300, 301], true).unwrap(), "<a>");
}

/// Elements of a weight of the grown model.
fn read(source: &mut dyn WeightSource, name: &str, elements: std::ops::Range<usize>) -> Vec<f32> {
    let shape = Shape::new(&[N_GROWN, WIDTH]).unwrap();
    let mut out = vec![0.0; elements.len()];
    source.read(&ParamSlice { name, shape, init: Init::Zeros, elements }, &mut out).unwrap();
    out
}

#[test]
fn new_rows_begin_near_the_mean_of_the_others_or_as_their_descriptions() {
    let stored = HfConfig::read(&base()).unwrap();
    let hf = stored.clone().with_vocab_size(N_GROWN, false);
    let rows = NewRows { described: [(303, vec![5, 9])].into(), ..NewRows::default() };
    let mut source = open_weights(&base(), &hf, &rows, &device()).unwrap();
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let whole = read(&mut *source, EMBEDDING, 0..N_GROWN * WIDTH);
    let mut own = open_weights(&base(), &stored, &rows, &device()).unwrap();
    let shape = Shape::new(&[N_STORED, WIDTH]).unwrap();
    let mut before = vec![0.0; N_STORED * WIDTH];
    let slice = ParamSlice { name: EMBEDDING, shape, init: Init::Zeros, elements: 0..before.len() };
    own.read(&slice, &mut before).unwrap();
    assert!(whole[..before.len()] == before);
    // Noise of the deviation 1 / √width around the mean of each column.
    let mean = |col: usize| {
        before.iter().skip(col).step_by(WIDTH).map(|x| f64::from(*x)).sum::<f64>() / N_STORED as f64
    };
    let new: Vec<f64> = (N_STORED..N_GROWN)
        .filter(|row| *row != 303)
        .flat_map(|row| (0..WIDTH).map(move |col| (row, col)))
        .map(|(row, col)| f64::from(whole[row * WIDTH + col]) - mean(col))
        .collect();
    let (n, width) = (new.len() as f64, WIDTH as f64);
    let deviation = (new.iter().map(|x| x * x).sum::<f64>() / n * width).sqrt();
    assert!((deviation - 1.0).abs() < 0.1, "{deviation}");
    assert!((new.iter().sum::<f64>() / n * width.sqrt()).abs() < 0.2);
    for col in 0..WIDTH {
        let expected = (before[5 * WIDTH + col] + before[9 * WIDTH + col]) / 2.0;
        assert!((whole[303 * WIDTH + col] - expected).abs() < 1e-6);
    }
    // A rank that reads a part is bitwise identical to the whole.
    for elements in [N_STORED * WIDTH - 7..N_STORED * WIDTH + 45, 303 * WIDTH + 3..305 * WIDTH - 1] {
        assert!(read(&mut *source, EMBEDDING, elements.clone()) == whole[elements]);
    }
    // Output weights that are weights of their own now begin as the embedding that they were.
    let untied = stored.with_vocab_size(N_GROWN, true);
    assert!(!untied.decoder().tie_embeddings);
    let mut source = open_weights(&base(), &untied, &rows, &device()).unwrap();
    let output = read(&mut *source, "lm_head.weight", 0..N_GROWN * WIDTH);
    assert!(output[..before.len()] == before && output[before.len()..] != whole[before.len()..]);
}
