//! Activation checkpointing changes no bit of a training run, only its memory.

use oarlock::config::LossScale;
use oarlock::model::{Decoder, DecoderConfig, Family, NormConfig, QkNorm, Recompute};
use oarlock::nn::{self, CustomOps, Forward, Linear, Module, Param, Unit, Wrap, names_of};
use oarlock::shard::{Gather, Placements};
use oarlock::train::Inputs;
use oarlock::{Accelerator, AcceleratorConfig, Batch, Result, ShardingConfig, Tensor, optim};
use oarlock_comm::Communicator;
use oarlock_tensor::DType;
use oarlock_tensor::ops::Mask;

const VOCAB: usize = 70;
const LEN: usize = 48;
const STEPS: usize = 3;

fn tiny() -> DecoderConfig {
    let norm = NormConfig { eps: 1e-6, offset: 0.0 };
    let config = DecoderConfig::llama(VOCAB, 48, 5, LEN).with_layers(|layer| {
        layer.norm = norm;
        layer.mlp.intermediate_size = 136;
        let attention = &mut layer.attention;
        (attention.n_heads, attention.n_kv_heads, attention.head_dim) = (4, 2, 12);
        attention.qk_norm = QkNorm::PerHead;
    });
    DecoderConfig {
        family: Family::of("qwen3").unwrap(),
        final_norm: norm,
        tie_embeddings: true,
        sparse_attention: None,
        init_std: 0.1,
        ..config
    }
}

/// Two rows, each of two documents.
fn batch(seed: usize) -> Batch {
    let n = 2 * LEN;
    let ids: Vec<i32> = (0..n).map(|i| ((i + 31 * seed) * 7919 % VOCAB) as i32).collect();
    let labels = (0..n).map(|i| if i % LEN + 1 < LEN { ids[i + 1] } else { -100 }).collect();
    let doc_start = (0..n).map(|i| if i % LEN < 20 { 0 } else { 20 }).collect();
    Batch {
        input_ids: ids,
        labels,
        doc_start: Some(doc_start),
        rows: 2,
        len: LEN,
        n_targets: 2 * (LEN - 1),
        ..Batch::default()
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    eval: f64,
    weights: Vec<f32>,
}

/// What a training run does on one rank, and the most bytes of activations that it held.
fn train(
    comm: Communicator,
    shard: ShardingConfig,
    recompute: Recompute,
    threads: usize,
) -> Result<(Run, usize)> {
    let is_f16 = shard.dtype == DType::F16;
    let settings =
        AcceleratorConfig { shard, threads: Some(threads), seed: Some(3), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &settings)?;
    let mut model = Decoder::new(tiny(), LEN)?;
    model.set_recompute(recompute);
    let mut adamw = optim::adamw(&model).lr(1e-2).weight_decay(0.0);
    if is_f16 {
        adamw = adamw.loss_scale(LossScale::Static(64.0));
    }
    let (model, optimizer) = accelerator.prepare((model, adamw))?;
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    let mut fresh = 0;
    for step in 0..STEPS {
        fresh = accelerator.device().arena().n_fresh();
        let window = [0, 1].map(|micro| batch(step + 10 * micro + 100 * comm.rank()));
        let n_targets: usize = window.iter().map(|b| b.n_targets).sum();
        accelerator.accumulation_window(&optimizer, n_targets as f64)?;
        let mut sum = 0.0;
        for batch in &window {
            let inputs = Inputs::new(batch, accelerator.device())?;
            let loss = model.loss(&inputs.ids, |model, ids| model.loss(ids, &inputs.labels, &inputs.mask))?;
            sum += loss.sum()?;
            accelerator.backward(&loss)?;
        }
        losses.push(sum);
        norms.extend(accelerator.clip_grad_norm(&optimizer, 1.0)?);
        optimizer.step()?;
    }
    let arena = accelerator.device().arena();
    assert_eq!(arena.n_fresh(), fresh, "{recompute:?}: a later step took memory from the system");
    let peak = arena.usage().iter().filter(|u| u.0 == "activation").map(|u| u.1.peak_bytes).sum();
    assert_eq!(accelerator.device().profile().recomputing().is_zero(), recompute == Recompute::None);
    model.eval();
    let inputs = Inputs::new(&batch(7), accelerator.device())?;
    let eval = model.loss(&inputs.ids, |model, ids| model.loss(ids, &inputs.labels, &Mask::Causal))?.sum()?;
    let mut weights = Vec::new();
    for named in names_of(&**model.module()) {
        // Divided weights are only together inside of their unit.
        let Ok(weight) = named.param.weight() else { continue };
        match weight.dtype() {
            DType::F32 => weights.extend(weight.to_vec::<f32>()?),
            _ => weights.extend(weight.to_f32_vec()?),
        }
    }
    comm.finish();
    Ok((Run { losses, norms, eval, weights }, peak))
}

fn on_ranks(ranks: usize, shard: &ShardingConfig, recompute: Recompute) -> (Vec<Run>, usize) {
    on_threads(ranks, shard, recompute, 1)
}

fn on_threads(
    ranks: usize,
    shard: &ShardingConfig,
    recompute: Recompute,
    threads: usize,
) -> (Vec<Run>, usize) {
    let rank = |comm| train(comm, shard.clone(), recompute, threads).unwrap();
    let (runs, peaks): (Vec<_>, Vec<_>) =
        oarlock_comm::shm::on_threads(ranks, rank).unwrap().into_iter().unzip();
    (runs, peaks[0])
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
            let shard = ShardingConfig { dtype, ..ShardingConfig::default() };
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
fn it_is_the_same_in_f16_and_with_several_threads() {
    let units = Recompute::Units { every: 1 };
    let parts = Recompute::Parts { attention: true, mlp: true };
    for (dtype, mode) in [(DType::F16, units), (DType::F16, parts), (DType::BF16, units), (DType::F32, parts)]
    {
        let shard = ShardingConfig { dtype, ..ShardingConfig::default() };
        let (want, _) = on_ranks(1, &shard, Recompute::None);
        assert!(want[0].norms.iter().all(|norm| norm.is_finite() && *norm > 0.0), "{dtype}");
        for (recompute, threads) in [(Recompute::None, 3), (mode, 1), (mode, 2), (mode, 3)] {
            let (got, _) = on_threads(1, &shard, recompute, threads);
            assert!(got == want, "{dtype}, {recompute:?}, {threads} threads");
        }
    }
}

#[test]
fn it_is_the_same_whatever_becomes_a_unit() {
    let divided = |wrap| ShardingConfig {
        placements: Placements::PARAMETERS,
        gather: Gather::Copy,
        persistence_elems: 0,
        wrap,
        ..ShardingConfig::default()
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

/// x · w and x + w, as one op of several outputs with a parameter.
struct Both(Param);

impl CustomOps for Both {
    fn name(&self) -> &'static str {
        "both"
    }

    fn forward(&self, inputs: &[Tensor]) -> nn::Result<Vec<Tensor>> {
        let w = self.0.weight()?;
        Ok(vec![inputs[0].mul(&w)?, inputs[0].add(&w)?])
    }

    fn backward(&self, inputs: &[Tensor], grads: &[Tensor]) -> nn::Result<Vec<Option<Tensor>>> {
        if let Some(mut slot) = self.0.grad()? {
            slot.put(&inputs[0].mul(&grads[0])?.add(&grads[1])?.sum(0)?)?;
        }
        Ok(vec![Some(self.0.weight()?.mul(&grads[0])?.add(&grads[1])?)])
    }

    fn params(&self) -> Vec<&Param> {
        vec![&self.0]
    }
}

#[derive(Module)]
struct Layer {
    linear: Linear,
    weight: Param,
}

impl Layer {
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let outputs = nn::custom_outputs(Both(self.weight.clone()), &[&self.linear.forward(x)?])?;
        outputs[0].tanh()?.mul(&outputs[1].sigmoid()?)
    }
}

#[derive(Module)]
struct Layers {
    layers: Vec<Unit<Layer>>,
}

impl Forward<Tensor> for Layers {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.call(&x, |layer, x| layer.forward(x)))
    }
}

#[test]
fn ops_of_several_outputs_are_recomputed_in_every_placement() {
    let run = |placements, gather, recompute: bool| {
        let rank = |comm| -> Result<Vec<Vec<f32>>> {
            let shard =
                ShardingConfig { placements, gather, persistence_elems: 0, ..ShardingConfig::default() };
            let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
            let accelerator = Accelerator::over(comm, &config)?;
            let layer = || -> Result<Unit<Layer>> {
                let weight = nn::param([6], nn::Init::Normal { std: 1.0 })?;
                Ok(Unit::new(Layer { linear: Linear::new(6, 6)?, weight }))
            };
            let model = Layers { layers: vec![layer()?, layer()?, layer()?] };
            model.layers.iter().for_each(|unit| unit.unit_run().set_recompute(recompute));
            let optimizer = optim::sgd(&model).lr(0.5);
            let (model, optimizer) = accelerator.prepare((model, optimizer))?;
            for step in 0..2 {
                let data: Vec<f32> = (0..24).map(|i| ((i + step) as f32).sin()).collect();
                let x = Tensor::from_slice(&data, [4, 6], accelerator.device())?;
                accelerator.backward(&model.forward(&x)?.square()?.mean_all()?)?;
                optimizer.step()?;
            }
            let weights = accelerator.get_state_dict(&model)?;
            Ok(weights.into_values().map(|weight| weight.to_vec::<f32>()).collect::<nn::Result<_>>()?)
        };
        oarlock_comm::shm::try_on_threads(2, rank).unwrap().swap_remove(0).unwrap()
    };
    let want = run(Placements::WHOLE, Gather::InPlace, false);
    for (placements, gather) in [
        (Placements::WHOLE, Gather::InPlace),
        (Placements::PARAMETERS, Gather::InPlace),
        (Placements::PARAMETERS, Gather::Copy),
    ] {
        for recompute in [false, true] {
            assert_eq!(run(placements, gather, recompute), want, "{placements:?}, {gather:?}, {recompute}");
        }
    }
}
