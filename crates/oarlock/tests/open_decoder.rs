//! A decoder whose projections are replaced, and whose hidden states are returned.

use std::path::{Path, PathBuf};

use oarlock::model::{Decoder, HfConfig};
use oarlock::nn::{self, Forward, Init, Layer, Linear, Mask, Module};
use oarlock::optim;
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, Options, Result, Tensor};

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

fn alone(config: AcceleratorConfig) -> Accelerator {
    let config = AcceleratorConfig { threads: Some(1), ..config };
    Accelerator::over(oarlock_comm::Communicator::solo(), &config).unwrap()
}

fn ids(accelerator: &Accelerator) -> Tensor {
    Tensor::from_slice(&[3, 1, 4, 1, 5, 9], [1, 6], accelerator.device()).unwrap()
}

fn logits(accelerator: &Accelerator, model: &oarlock::Prepared<Decoder>) -> Result<Tensor> {
    model.call(&ids(accelerator), |model, ids| model.logits(ids, &Mask::Causal))
}

/// Logits before and after three steps, and the weights that have moved.
fn train(accelerator: &Accelerator) -> Result<(Vec<f32>, Vec<f32>, Vec<String>)> {
    let model = adapted()?;
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
    let (first, last, moved) = train(&alone(AcceleratorConfig::default())).unwrap();
    assert_eq!(first, logits(&accelerator, &plain).unwrap().to_vec::<f32>().unwrap());
    assert_ne!(first, last);
    assert!(!moved.is_empty() && moved.iter().all(|name| name.contains("lora_")), "{moved:?}");

    let ranks = oarlock_comm::shm::threads(2).unwrap().into_iter().map(|comm| {
        std::thread::spawn(move || {
            let placements = Placements::PARAMETERS;
            let shard =
                Options { placements, gather: Gather::Copy, persistence_elems: 0, ..Options::default() };
            let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
            train(&Accelerator::over(comm, &config).unwrap()).unwrap()
        })
    });
    let ranks: Vec<_> = ranks.collect();
    for rank in ranks {
        assert_eq!(rank.join().unwrap(), (first.clone(), last.clone(), moved.clone()));
    }
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
