//! Activation checkpointing changes no bit of a training, only its memory.

use oarlock::model::{Decoder, DecoderConfig, Family, Recompute, RopeSettings};
use oarlock::nn::{Wrap, names_of};
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, Batch, OptimizerConfig, Options, Result, SeededInit};
use oarlock_comm::Communicator;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::Mask;
use oarlock_tensor::{DType, RopeScaling, bf16};

const VOCAB: usize = 70;
const LEN: usize = 48;
const STEPS: usize = 3;

fn tiny() -> DecoderConfig {
    DecoderConfig {
        family: Family::Qwen3,
        vocab_size: VOCAB,
        hidden_size: 48,
        intermediate_size: 136,
        n_layers: 5,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 12,
        max_positions: LEN,
        norm_eps: 1e-6,
        tie_embeddings: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: true,
        rope: RopeSettings { theta: 10_000.0, style: RopeStyle::Half, scaling: RopeScaling::None },
        init_std: 0.1,
    }
}

/// Two rows, each of two documents.
fn batch(seed: usize) -> Batch {
    let n = 2 * LEN;
    let ids: Vec<i32> = (0..n).map(|i| ((i + 31 * seed) * 7919 % VOCAB) as i32).collect();
    let labels = (0..n).map(|i| if i % LEN + 1 < LEN { ids[i + 1] } else { -100 }).collect();
    let doc_start = (0..n).map(|i| if i % LEN < 20 { 0 } else { 20 }).collect();
    Batch { input_ids: ids, labels, doc_start: Some(doc_start), rows: 2, len: LEN, n_targets: 2 * (LEN - 1) }
}

#[derive(Clone, Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    eval: f64,
    weights: Vec<f32>,
}

/// What a training does on one rank, and the most bytes of activations that it held.
fn train(comm: Communicator, shard: Options, recompute: Recompute) -> Result<(Run, usize)> {
    let settings = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &settings)?;
    let mut model = Decoder::new(tiny(), LEN)?;
    model.set_recompute(recompute);
    let mut init = SeededInit { seed: 3, device: accelerator.device().clone() };
    let mut optimizer = accelerator.hold(&model, OptimizerConfig::default(), &mut init)?;
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    let mut fresh = 0;
    for step in 0..STEPS {
        fresh = accelerator.device().arena().n_fresh();
        let window = [0, 1].map(|micro| batch(step + 10 * micro + 100 * comm.rank()));
        let accumulation =
            accelerator.accumulate_targets(&optimizer, window.iter().map(|b| b.n_targets).sum())?;
        let mut sum = 0.0;
        for batch in &window {
            let (ids, labels, mask) = accelerator.place(batch)?;
            let loss = model.loss(&accumulation.input(&ids), &labels, &mask)?;
            sum += loss.sum()?;
            accumulation.backward(&loss)?;
        }
        losses.push(sum);
        norms.push(optimizer.clip_grad_norm(1.0)?);
        optimizer.step(1e-2)?;
    }
    let arena = accelerator.device().arena();
    assert_eq!(arena.n_fresh(), fresh, "{recompute:?}: a later step took memory from the system");
    let peak = arena.usage().iter().filter(|u| u.0 == "activation").map(|u| u.1.peak_bytes).sum();
    assert_eq!(accelerator.device().profile().recomputing().is_zero(), recompute == Recompute::None);
    let (ids, labels, _) = accelerator.place(&batch(7))?;
    let eval = model.loss(&ids, &labels, &Mask::Causal)?.sum()?;
    let mut weights = Vec::new();
    for named in names_of(&model) {
        // Divided weights are only together inside of their unit.
        let Ok(weight) = named.param.weight() else { continue };
        match weight.dtype() {
            DType::F32 => weights.extend_from_slice(weight.slice::<f32>()?),
            _ => weights.extend(weight.slice::<bf16>()?.iter().map(|w| w.to_f32())),
        }
    }
    comm.finish();
    Ok((Run { losses, norms, eval, weights }, peak))
}

fn on_ranks(ranks: usize, shard: &Options, recompute: Recompute) -> (Vec<Run>, usize) {
    std::thread::scope(|scope| {
        let start = |comm| scope.spawn(move || train(comm, shard.clone(), recompute));
        let ranks: Vec<_> = oarlock_comm::shm::threads(ranks).unwrap().into_iter().map(start).collect();
        let (runs, peaks): (Vec<_>, Vec<_>) =
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).unzip();
        (runs, peaks[0])
    })
}

#[test]
fn a_training_is_the_same_to_the_bit_and_needs_less_memory() {
    let parts = |attention, mlp| Recompute::Parts { attention, mlp };
    let modes = [
        Recompute::Units { every: 1 },
        Recompute::Units { every: 2 },
        parts(true, false),
        parts(false, true),
        parts(true, true),
    ];
    for dtype in [DType::F32, DType::BF16] {
        for ranks in [1, 2] {
            let shard = Options { dtype, ..Options::default() };
            let (want, all) = on_ranks(ranks, &shard, Recompute::None);
            for mode in modes {
                let (got, some) = on_ranks(ranks, &shard, mode);
                assert!(got == want, "{dtype}, {ranks} ranks, {mode:?}");
                assert!(some < all, "{dtype}, {mode:?}: {some} bytes of activations instead of {all}");
                if mode == (Recompute::Units { every: 1 }) {
                    assert!(
                        2 * some < all,
                        "{dtype}, {mode:?}: {some} bytes of activations instead of {all}"
                    );
                }
            }
        }
    }
}

#[test]
fn it_is_the_same_whatever_becomes_a_unit() {
    let divided = |wrap| Options {
        placements: Placements::PARAMETERS,
        gather: Gather::Copy,
        persistence_elems: 0,
        wrap,
        ..Options::default()
    };
    let layers = Wrap::Transformer(vec!["Qwen3DecoderLayer".to_owned()]);
    for wrap in [Wrap::Declared, layers, Wrap::Size(4000), Wrap::None] {
        let (want, all) = on_ranks(2, &divided(wrap.clone()), Recompute::None);
        for mode in [Recompute::Units { every: 1 }, Recompute::Parts { attention: true, mlp: true }] {
            let (got, some) = on_ranks(2, &divided(wrap.clone()), mode);
            assert!(got == want, "{wrap:?}, {mode:?}");
            assert!(some < all, "{wrap:?}, {mode:?}: {some} bytes of activations instead of {all}");
        }
    }
}
