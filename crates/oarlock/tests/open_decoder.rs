//! A decoder whose projections are replaced, and whose hidden states are returned.

use std::path::{Path, PathBuf};

use oarlock::model::{Decoder, DecoderConfig, HfConfig};
use oarlock::nn::functional::Labels;
use oarlock::nn::{self, Forward, Init, Layer, Linear, Mask, Module};
use oarlock::optim;
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, Result, ShardingConfig, Tensor};

use crate::ranks::{alone, on_ranks};

/// A linear layer with an update of low rank.
#[derive(Module)]
struct Lora {
    #[module(name = "")]
    base: Linear,
    lora_a: Linear,
    lora_b: Linear,
}

impl Lora {
    fn around(base: &Linear, rank: usize) -> nn::Result<Lora> {
        let sizes = base.weight.shape().sizes();
        Ok(Lora {
            base: base.clone(),
            lora_a: Linear::new(sizes[1], rank)?.no_bias(),
            lora_b: Linear::new(rank, sizes[0])?.no_bias().init(Init::Zeros),
        })
    }
}

impl Forward<Tensor> for Lora {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.base.forward(x)?.add(&self.lora_b.forward(&self.lora_a.forward(x)?)?)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama")
}

fn decoder() -> Result<Decoder> {
    Decoder::new(HfConfig::read(&folder())?.decoder().clone(), 8)
}

fn adapted() -> Result<Decoder> {
    let mut model = decoder()?;
    nn::freeze(&model);
    let mut paths = Vec::new();
    model.map_linears(|path, linear| {
        paths.push(path.to_owned());
        let chosen = path.ends_with("q_proj") || path.ends_with("down_proj") || path.ends_with("gate_proj");
        Ok(if chosen { Some(Box::new(Lora::around(linear, 2)?) as Box<dyn Layer>) } else { None })
    })?;
    assert_eq!(paths.len(), 7 * model.config().layers.len());
    assert_eq!(paths[0], "model.layers.0.self_attn.q_proj");
    Ok(model)
}

fn ids(accelerator: &Accelerator) -> Tensor {
    Tensor::from_slice(&[3, 1, 4, 1, 5, 9], [1, 6], accelerator.device()).unwrap()
}

fn logits(accelerator: &Accelerator, model: &oarlock::Prepared<Decoder>) -> Result<Tensor> {
    model.call(&ids(accelerator), |model, ids| model.logits(ids, &Mask::Causal))
}

/// Logits before and after three steps, and the weights that have moved.
fn train(
    accelerator: &Accelerator,
    model: impl Fn() -> Result<Decoder>,
) -> Result<(Vec<f32>, Vec<f32>, Vec<String>)> {
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(0.05);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    accelerator.load_pretrained(&model, folder())?;
    let before = accelerator.get_state_dict(&model)?;
    let first = logits(accelerator, &model)?.to_vec::<f32>()?;
    for _ in 0..3 {
        let loss = logits(accelerator, &model)?.square()?.mean_all()?;
        accelerator.backward(&loss)?;
        optimizer.step()?;
    }
    let last = logits(accelerator, &model)?.to_vec::<f32>()?;
    let after = accelerator.get_state_dict(&model)?;
    let mut moved = Vec::new();
    for (name, weight) in &before {
        if weight.to_vec::<f32>()? != after[name].to_vec::<f32>()? {
            moved.push(name.clone());
        }
    }
    Ok((first, last, moved))
}

#[test]
fn adapters_keep_names_begin_at_the_model_and_train_alone() {
    let accelerator = alone(AcceleratorConfig::default());
    let plain = accelerator.prepare(decoder().unwrap()).unwrap();
    accelerator.load_pretrained(&plain, folder()).unwrap();
    let (first, last, moved) = train(&alone(AcceleratorConfig::default()), adapted).unwrap();
    assert_eq!(first, logits(&accelerator, &plain).unwrap().to_vec::<f32>().unwrap());
    assert_ne!(first, last);
    assert!(!moved.is_empty() && moved.iter().all(|name| name.contains("lora_")), "{moved:?}");

    for rank in on_ranks(2, sharded(), |accelerator| train(accelerator, adapted)) {
        assert_eq!(rank.unwrap(), (first.clone(), last.clone(), moved.clone()));
    }
}

/// ZeRO-3, with small parameters divided as well.
fn sharded() -> AcceleratorConfig {
    let placements = Placements::PARAMETERS;
    let shard = ShardingConfig {
        placements,
        gather: Gather::Copy,
        persistence_elems: 0,
        ..ShardingConfig::default()
    };
    AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() }
}

/// A frozen decoder with an adapter around its output weights, which may be the embedding's.
fn with_head(tied: bool) -> Result<Decoder> {
    let config = HfConfig::read(&folder())?.decoder().clone();
    let mut model = Decoder::new(DecoderConfig { tie_embeddings: tied, ..config }, 8)?;
    nn::freeze(&model);
    model.map_lm_head(|linear| Ok(Box::new(Lora::around(linear, 2)?)))?;
    Ok(model)
}

#[test]
fn the_output_weights_take_an_adapter() {
    let accelerator = alone(AcceleratorConfig::default());
    let labels = Labels::new([1, 4, -100, 5, 9, 2]);
    let sum = |model: &oarlock::Prepared<Decoder>| {
        let loss = model.call(&ids(&accelerator), |model, ids| model.loss(ids, &labels, &Mask::Causal));
        loss.unwrap().sum().unwrap()
    };
    let tied = HfConfig::read(&folder()).unwrap().decoder().tie_embeddings;
    let plain = accelerator.prepare(decoder().unwrap()).unwrap();
    accelerator.load_pretrained(&plain, folder()).unwrap();
    let model = accelerator.prepare(with_head(tied).unwrap()).unwrap();
    accelerator.load_pretrained(&model, folder()).unwrap();
    // The update begins at zero. The plain loss is computed in chunks.
    assert!((sum(&plain) - sum(&model)).abs() < 1e-5 * sum(&plain), "{} {}", sum(&plain), sum(&model));
    for tied in [false, true] {
        let (first, last, moved) =
            train(&alone(AcceleratorConfig::default()), move || with_head(tied)).unwrap();
        assert_ne!(first, last);
        assert_eq!(moved, ["lm_head.lora_a.weight", "lm_head.lora_b.weight"], "{tied}");
        for rank in on_ranks(2, sharded(), move |accelerator| train(accelerator, move || with_head(tied))) {
            assert_eq!(rank.unwrap(), (first.clone(), last.clone(), moved.clone()), "{tied}");
        }
    }
}

#[test]
fn output_weights_that_are_the_embeddings_stay_so() {
    let config = HfConfig::read(&folder()).unwrap().decoder().clone();
    let fresh = |linear: &Linear| {
        let sizes = linear.weight.shape().sizes();
        Ok(Box::new(Linear::new(sizes[1], sizes[0])?.no_bias()) as Box<dyn Layer>)
    };
    let mut tied = Decoder::new(DecoderConfig { tie_embeddings: true, ..config.clone() }, 8).unwrap();
    let message = tied.map_lm_head(fresh).unwrap_err().to_string();
    assert!(
        message.contains("the output weights are the embedding's")
            && message.contains("tie_embeddings: false")
    );
    let mut untied = Decoder::new(DecoderConfig { tie_embeddings: false, ..config }, 8).unwrap();
    untied.map_lm_head(fresh).unwrap();
    let message = untied.map_lm_head(fresh).unwrap_err().to_string();
    assert!(message.ends_with("the output weights were replaced before"), "{message}");
    let accelerator = alone(AcceleratorConfig::default());
    let model = accelerator.prepare(untied).unwrap();
    assert_eq!(logits(&accelerator, &model).unwrap().sizes()[..2], [1, 6]);
}

#[test]
fn hidden_states_are_those_around_each_layer() {
    let accelerator = alone(AcceleratorConfig::default());
    let model = accelerator.prepare(decoder().unwrap()).unwrap();
    accelerator.load_pretrained(&model, folder()).unwrap();
    let see = |model: &Decoder, ids: &Tensor| {
        let (logits, states) = model.logits_and_hidden_states(ids, &Mask::Causal)?;
        Ok((logits, states))
    };
    let (seen, states) = model.call(&ids(&accelerator), see).unwrap();
    let plain = logits(&accelerator, &model).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(seen.to_vec::<f32>().unwrap(), plain);
    assert_eq!(states.len(), model.module().config().layers.len() + 1);
    let values: Vec<Vec<f32>> = states.iter().map(|state| state.to_f32_vec().unwrap()).collect();
    assert!(values.windows(2).all(|pair| pair[0] != pair[1] && pair[0].len() == pair[1].len()));
}
