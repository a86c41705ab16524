//! Times the step of a custom GPT, built from the library's layers, on synthetic tokens; with the decoder that
//! `oarlock train` trains beside it, as a prepared model and in the trainer's own loop. bench/own_model runs it.
//!
//! `oarlock torchrun --nproc-per-node 2 --no-python target/release/examples/own_model_cost model=gpt [key=value ..]`
//! with model=gpt|decoder|trainer and the keys dtype, threads, warmup, steps, batch, seq, hidden, layers, profile

use std::sync::Arc;
use std::time::Instant;

use oarlock::model::{Decoder, DecoderConfig};
use oarlock::nn::functional::Labels;
use oarlock::nn::{
    self, Activation, Embedding, Forward, LayerNorm, Linear, Mask, Mlp, Module, MultiHeadAttention, Rope,
    RopeScaling, RopeStyle, Unit,
};
use oarlock::train::{NextToken, train_step};
use oarlock::{
    Accelerator, AcceleratorConfig, Batch, Error, Loss, PreparedOptimizer, Result, ShardingConfig, Tensor,
    optim,
};
use oarlock_engine::report::speed::PhaseTimer;

#[path = "throughput.rs"]
#[allow(dead_code)]
mod throughput;

mod settings;

use settings::Settings;

const N_VOCAB: usize = 6400;
const MAX_GRAD_NORM: f64 = 1.0;
const LR: f64 = 5e-4;

#[derive(Module)]
struct Block {
    norm_1: LayerNorm,
    attention: MultiHeadAttention,
    norm_2: LayerNorm,
    mlp: Mlp,
}

impl Forward<Tensor> for Block {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.norm_1.forward(x)?)?)?;
        x.add(&self.mlp.forward(&self.norm_2.forward(&x)?)?)
    }
}

/// Token embedding, blocks with a norm before each half, a norm, a head of its own; positions by rotation.
#[derive(Module)]
struct Gpt {
    embed: Unit<Embedding>,
    blocks: Vec<Unit<Block>>,
    head: Unit<Head>,
}

#[derive(Module)]
struct Head {
    norm: LayerNorm,
    out: Linear,
}

impl Forward<Tensor> for Head {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.out.forward(&self.norm.forward(x)?)
    }
}

impl Forward<Tensor> for Gpt {
    type Output = Tensor;
    fn forward(&self, ids: &Tensor) -> nn::Result<Tensor> {
        let mut x = self.embed.forward(ids)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&x)
    }
}

fn gpt(dim: usize, n_blocks: usize, seq: usize) -> Result<Gpt> {
    let rope = Arc::new(Rope::new(10_000.0, 64, RopeStyle::Half, RopeScaling::None, seq)?);
    let block = || -> Result<Unit<Block>> {
        Ok(Unit::new(Block {
            norm_1: LayerNorm::new(dim)?,
            attention: MultiHeadAttention::new(dim, dim / 64)?.causal().no_bias().rotary(rope.clone()),
            norm_2: LayerNorm::new(dim)?,
            mlp: Mlp::new(dim, 4 * dim)?.activation(Activation::GeluTanh).no_bias(),
        }))
    };
    Ok(Gpt {
        embed: Unit::new(Embedding::normal(N_VOCAB, dim, 0.02)?),
        blocks: (0..n_blocks).map(|_| block()).collect::<Result<_>>()?,
        head: Unit::new(Head { norm: LayerNorm::new(dim)?, out: Linear::new(dim, N_VOCAB)?.no_bias() }),
    })
}

fn decoder(dim: usize, n_layers: usize, seq: usize) -> Result<Decoder> {
    let config = DecoderConfig::llama(N_VOCAB, dim, n_layers, 1024).with_layers(|layer| {
        layer.mlp.intermediate_size = dim * 11 / 4;
        layer.attention.n_kv_heads = (dim / 256).max(1);
    });
    let config = DecoderConfig { tie_embeddings: true, ..config };
    Decoder::new(config, seq)
}

/// The tokens of a rank: inputs, and what follows each.
struct Tokens {
    ids: Vec<i32>,
    labels: Vec<i32>,
    rows: usize,
    len: usize,
}

fn main() -> Result<()> {
    let settings = Settings::read()?;
    let (rows, len) = (settings.number("batch", 4)?, settings.number("seq", 512)?);
    let (dim, layers) = (settings.number("hidden", 512)?, settings.number("layers", 8)?);
    let accelerator = Accelerator::new(&AcceleratorConfig {
        shard: ShardingConfig { dtype: settings.dtype()?, ..ShardingConfig::default() },
        threads: Some(settings.number("threads", 1)?),
        ..AcceleratorConfig::default()
    })?;
    let token = |i: usize| ((i * 7919 + accelerator.process_index() * 31) * 104_729 % N_VOCAB) as i32;
    let n = rows * len;
    let tokens = Tokens { ids: (0..n).map(token).collect(), labels: (1..=n).map(token).collect(), rows, len };
    let ids = Tensor::from_slice(&tokens.ids, [rows, len], accelerator.device())?;
    let labels = Tensor::from_slice(&tokens.labels, [rows, len], accelerator.device())?;
    match settings.word("model", "gpt") {
        "gpt" => {
            let model = gpt(dim, layers, len)?;
            let optimizer = optim::adamw(&model).lr(LR);
            let (model, optimizer) = accelerator.prepare((model, optimizer))?;
            timed(&accelerator, &settings, || {
                let loss = nn::cross_entropy(&model.forward(&ids)?, &labels)?;
                update(&accelerator, &optimizer, &loss)
            })
        }
        "decoder" => {
            let model = decoder(dim, layers, len)?;
            let optimizer = optim::adamw(&model).lr(LR);
            let (model, optimizer) = accelerator.prepare((model, optimizer))?;
            let labels = Labels::from_tensor(&labels)?;
            timed(&accelerator, &settings, || {
                let loss = model.loss(&ids, |model, ids| model.loss(ids, &labels, &Mask::Causal))?;
                update(&accelerator, &optimizer, &loss)
            })
        }
        "trainer" => {
            let model = decoder(dim, layers, len)?;
            let optimizer = optim::adamw(&model).lr(LR).weight_decay(0.0);
            let (model, optimizer) = accelerator.prepare((model, optimizer))?;
            let batch = Batch {
                input_ids: tokens.ids,
                labels: tokens.labels,
                doc_start: None,
                rows: tokens.rows,
                len: tokens.len,
                n_targets: n,
                ..Batch::default()
            };
            timed(&accelerator, &settings, || {
                let timer = &mut PhaseTimer::new();
                let batches = std::slice::from_ref(&batch);
                train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, batches, MAX_GRAD_NORM, timer)
                    .map(|_| ())
            })
        }
        other => Err(Error::Usage(format!("model={other}: give gpt, decoder or trainer"))),
    }
}

/// What follows the forward pass in a custom training loop.
fn update(accelerator: &Accelerator, optimizer: &PreparedOptimizer, loss: &impl Loss) -> Result<()> {
    accelerator.backward(loss)?;
    accelerator.clip_grad_norm(optimizer, MAX_GRAD_NORM)?;
    optimizer.step()?;
    optimizer.zero_grad()
}

/// Runs the steps and tells the seconds of each after the warm-up, from barrier to barrier.
fn timed(accelerator: &Accelerator, settings: &Settings, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let (warmup, steps) = (settings.number("warmup", 2)?, settings.number("steps", 5)?);
    let profiled = settings.word("profile", "false") == "true";
    let mut seconds = 0.0;
    for index in 0..warmup + steps {
        if profiled && index + 1 == warmup + steps {
            accelerator.device().profile().enable();
        }
        accelerator.wait_for_everyone()?;
        let begin = Instant::now();
        step()?;
        accelerator.wait_for_everyone()?;
        seconds = begin.elapsed().as_secs_f64();
        if index >= warmup {
            accelerator.print(format_args!("seconds of a step: {seconds:.6}"));
        }
    }
    if profiled && accelerator.is_main_process() {
        throughput::print_profile(accelerator, seconds);
    }
    Ok(())
}
