//! Recurrent layers, compared with torch's.

use oarlock::nn::{self, Forward, Gru, Lstm, Module, Rnn, Unit};
use oarlock::optim;
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, DType, Prepared, Result, ShardingConfig, Tensor};
use oarlock_comm::Communicator;

use crate::layers::{assert_close, expected, floats, golden, wave};

#[derive(Module)]
struct Model {
    lstm: Unit<Lstm>,
    gru: Unit<Gru>,
    rnn: Unit<Rnn>,
}

/// The outputs and last states of each layer, of which the second begins with states that are given.
impl Forward<Tensor> for Model {
    type Output = Vec<Tensor>;
    fn forward(&self, x: &Tensor) -> nn::Result<Vec<Tensor>> {
        let first = wave(x.device(), &[2, 2, 5], 1.1);
        let (a, (hidden, cells)) = self.lstm.forward(x)?;
        let (b, of_gru) = self.gru.run(&a, |gru| gru.forward(&a, Some(&first)))?;
        let (c, of_rnn) = self.rnn.forward(&b)?;
        Ok(vec![a, hidden, cells, b, of_gru, c, of_rnn])
    }
}

const OUTPUTS: [&str; 7] = ["lstm", "hidden", "cells", "gru", "of gru", "rnn", "of rnn"];

fn weights(accelerator: &Accelerator, model: &Prepared<Model>) -> Vec<(String, Vec<f32>)> {
    let weights = accelerator.get_state_dict(model).unwrap();
    weights.into_iter().map(|(name, weight)| (name, weight.to_vec::<f32>().unwrap())).collect()
}

/// The outputs, and what a step of SGD with a learning rate of 1 takes from each weight.
type Run = (Vec<Vec<f32>>, Vec<(String, Vec<f32>)>);

fn run(comm: Communicator, config: AcceleratorConfig) -> Result<Run> {
    let accelerator = Accelerator::over(comm, &AcceleratorConfig { threads: Some(1), ..config })?;
    let model = Model {
        lstm: Unit::new(Lstm::new(3, 4)?.num_layers(2)?),
        gru: Unit::new(Gru::new(4, 5)?.num_layers(2)?),
        rnn: Unit::new(Rnn::new(5, 2)?.no_bias()?),
    };
    let optimizer = optim::sgd(&model).lr(1.0);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    accelerator.load_model(&model, golden("recurrent.safetensors"))?;
    let before = weights(&accelerator, &model);
    let outputs = model.forward(&wave(accelerator.device(), &[2, 6, 3], 0.7))?;
    let mut loss = outputs[0].square()?.mean_all()?;
    for output in &outputs[1..] {
        loss = loss.add(&output.square()?.mean_all()?)?;
    }
    accelerator.backward(&loss)?;
    optimizer.step()?;
    let moved = before.into_iter().zip(weights(&accelerator, &model)).map(|((name, before), (_, after))| {
        (name, before.iter().zip(&after).map(|(before, after)| before - after).collect())
    });
    let outputs = outputs.iter().map(|output| output.to_vec::<f32>()).collect::<nn::Result<_>>()?;
    Ok((outputs, moved.collect()))
}

#[test]
fn outputs_and_gradients_are_those_of_torch() {
    let expected = expected("recurrent.json");
    let (outputs, moved) = run(Communicator::solo(), AcceleratorConfig::default()).unwrap();
    for (name, output) in OUTPUTS.iter().zip(&outputs) {
        assert_close(output, &floats(&expected["outputs"][name]), 1e-6, name);
    }
    let grads = expected["grads"].as_object().unwrap();
    assert_eq!(grads.len(), moved.len());
    for (name, moved) in &moved {
        assert_close(moved, &floats(&grads[name]), 1e-6, name);
    }
    let bf16 = AcceleratorConfig { mixed_precision: Some(DType::BF16), ..AcceleratorConfig::default() };
    for (name, output) in OUTPUTS.iter().zip(&run(Communicator::solo(), bf16).unwrap().0) {
        assert_close(output, &floats(&expected["outputs"][name]), 0.03, name);
    }
}

#[test]
fn every_placement_has_the_same_bits() {
    let of = |placements, gather| {
        let shard = ShardingConfig { placements, gather, persistence_elems: 0, ..ShardingConfig::default() };
        let config = AcceleratorConfig { shard, ..AcceleratorConfig::default() };
        oarlock_comm::shm::on_threads(2, |comm| run(comm, config.clone()).unwrap()).unwrap().swap_remove(0)
    };
    let ddp = of(Placements::WHOLE, Gather::InPlace);
    assert_eq!(of(Placements::GRADIENTS, Gather::InPlace), ddp);
    assert_eq!(of(Placements::PARAMETERS, Gather::Copy), ddp);
}

#[test]
fn misuse_is_named() {
    let accelerator = Accelerator::over(Communicator::solo(), &AcceleratorConfig::default()).unwrap();
    let model = Gru::new(3, 4).unwrap();
    let optimizer = optim::sgd(&model);
    let (model, _optimizer) = accelerator.prepare((model, optimizer)).unwrap();
    let device = accelerator.device();
    let text = |sizes: &[usize]| model.forward(&wave(device, sizes, 1.0)).unwrap_err().to_string();
    let wanted = "Gru: expected x of shape [B, S, 3] with at least one position, got ";
    for sizes in [&[2, 5, 4][..], &[2, 3], &[2, 0, 3]] {
        let text = text(sizes);
        assert!(text.contains(&format!("{wanted}{sizes:?}")), "{text}");
    }
    let (x, first) = (wave(device, &[2, 5, 3], 1.0), wave(device, &[1, 3, 4], 1.0));
    let text = model.call(&x, |model, x| model.forward(x, Some(&first))).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("Gru: expected states of shape [1, 2, 4], got [1, 3, 4]"), "{text}");
}
