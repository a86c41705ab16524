//! Tokens per second of generation, one prompt at a time and many together, on a model with random weights:
//! `cargo run --release -p oarlock --example generation_speed -- bf16 8`.

use std::time::Instant;

use oarlock::generate::{GenerateOptions, Generator, Prompt};
use oarlock::model::hf::load_from;
use oarlock::model::{Decoder, HfConfig, SpecialTokens};
use oarlock::shard::SeededInit;
use oarlock_comm::available_cores;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par};
use serde_json::json;

fn main() -> oarlock::Result<()> {
    let mut words = std::env::args().skip(1);
    let dtype = match words.next().as_deref() {
        Some("bf16") => DType::BF16,
        _ => DType::F32,
    };
    let at_once: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(8);
    let device = Device::cpu(Isa::detect(), Par::threads(available_cores().len())?);
    let fields = json!({"model_type": "llama", "vocab_size": 32000, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 12, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true});
    let fields = fields.as_object().cloned().unwrap_or_default();
    let config = HfConfig::from_fields("generation_speed", &fields, SpecialTokens::default())?;
    let decoder = Decoder::new(config.decoder().clone(), 512)?;
    let mut weights = SeededInit::new(1, &device);
    let generator = Generator::new(load_from(config, decoder, &mut weights, &device, dtype, 512)?);
    let prompt = |i: u32| Prompt {
        number: u64::from(i),
        ids: (0..8 + i % 24).map(|j| 3 + (i * 31 + j * 7) % 30_000).collect(),
    };
    let prompts: Vec<Prompt> = (0..at_once as u32).map(prompt).collect();
    let options = GenerateOptions { max_new_tokens: 32, ..GenerateOptions::default() };
    for n in [1, at_once] {
        let begin = Instant::now();
        let answers = generator.generate_batch(&prompts, &options, n)?;
        let tokens: usize = answers.iter().map(|answer| answer.n_tokens).sum();
        println!("{n} at a time: {:.0} tokens/s", tokens as f64 / begin.elapsed().as_secs_f64());
    }
    Ok(())
}
