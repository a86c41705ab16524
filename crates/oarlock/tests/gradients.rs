//! Gradients that a program looks at: those of the inputs of a prepared model, and those of its parameters.

use oarlock::nn::{self, Embedding, Forward, Linear, Module};
use oarlock::shard::{Gather, Placements};
use oarlock::{Accelerator, AcceleratorConfig, DType, Error, Result, ShardingConfig, Tensor, optim};

use crate::ranks::on_ranks;

#[derive(Module)]
struct Net {
    up: nn::Unit<Linear>,
    down: Linear,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.down.forward(&self.up.run(x, |up| up.forward(x))?.tanh()?)
    }
}

const X: [f32; 8] = [0.5, -0.25, 1.0, 0.75, -1.5, 0.125, 0.25, -0.5];

/// The gradient of the input, that of the last weight, and what reading that of the weight in the unit gives.
type Read = (Vec<f32>, Vec<f32>, std::result::Result<Option<Vec<f32>>, String>);

fn read(accelerator: &Accelerator) -> Result<Read> {
    let net =
        Net { up: nn::Unit::new(Linear::normal(4, 6, true, 0.3)?), down: Linear::normal(6, 1, true, 0.3)? };
    let optimizer = optim::sgd(&net).lr(0.1);
    let (net, optimizer) = accelerator.prepare((net, optimizer))?;
    assert!(net.module().down.weight.gradient()?.is_none());
    let loss_of = |x: &Tensor| Ok::<_, Error>(net.forward(x)?.square()?.mean_all()?);
    let x = Tensor::from_slice(&X, [2, 4], accelerator.device())?;
    let leaf = x.with_grad();
    let loss = loss_of(&leaf)?;
    assert!(loss.backward().is_err());
    let gradients = accelerator.backward_with_inputs(&loss)?;
    let of_x = gradients.of(&leaf).unwrap().to_vec::<f32>()?;

    net.eval();
    for (i, of_x) in of_x.iter().enumerate() {
        let at = |step: f32| {
            let mut moved = X;
            moved[i] += step;
            let moved = Tensor::from_slice(&moved, [2, 4], accelerator.device())?;
            Ok::<_, Error>(loss_of(&moved)?.to_vec::<f32>()?[0])
        };
        let difference = (at(0.01)? - at(-0.01)?) / 0.02;
        assert!((of_x - difference).abs() < 1e-3, "{i}: {of_x} for {difference}");
    }

    let of_weight = net.module().down.weight.gradient()?.unwrap();
    assert_eq!(of_weight.sizes(), [1, 6]);
    let read = |gradient: Tensor| gradient.to_vec::<f32>().unwrap();
    let in_unit = net
        .module()
        .up
        .module()
        .weight
        .gradient()
        .map(|gradient| gradient.map(read))
        .map_err(|error| error.to_string());
    let result = (of_x, of_weight.to_vec::<f32>()?, in_unit);
    optimizer.step()?;
    assert!(net.module().down.weight.gradient()?.is_none());
    Ok(result)
}

#[test]
fn gradients_of_inputs_and_parameters_are_read() {
    let run = |world: usize, placements: Placements| {
        let config = AcceleratorConfig {
            shard: ShardingConfig { placements, ..ShardingConfig::default() },
            threads: Some(1),
            ..AcceleratorConfig::default()
        };
        on_ranks(world, config, read).remove(0).unwrap()
    };
    let (of_x, of_weight, in_unit) = run(1, Placements::WHOLE);
    assert_eq!(in_unit.unwrap().unwrap().len(), 24);
    for (world, placements) in
        [(2, Placements::OPTIMIZER), (2, Placements::GRADIENTS), (2, Placements::PARAMETERS)]
    {
        let read = run(world, placements);
        assert_eq!((&read.0, &read.1), (&of_x, &of_weight), "{placements:?}");
        match read.2 {
            Ok(gradient) => assert_eq!((placements, gradient.unwrap().len()), (Placements::OPTIMIZER, 24)),
            Err(text) => assert_eq!(
                text,
                "the gradient of this parameter is sharded: each rank keeps the sums of the elements that it owns"
            ),
        }
    }
}

/// A model whose forward pass makes positions itself, and runs a layer on a tensor that is detached.
#[derive(Module)]
struct Aside {
    positions: nn::Unit<Embedding>,
    aside: nn::Unit<Linear>,
    down: Linear,
}

/// The input, and the same positions and the same tensor once more as inputs, where they are passed in.
type Passed = (Tensor, Option<(Tensor, Tensor)>);

impl Forward<Passed> for Aside {
    type Output = Tensor;
    fn forward(&self, (x, passed): &Passed) -> nn::Result<Tensor> {
        let (positions, beside) = match passed {
            Some((positions, beside)) => (positions.clone(), beside.clone()),
            None => (Tensor::arange(0, 2, 1, DType::I32, x.device())?, x.detach()),
        };
        let positions = self.positions.forward(&positions)?;
        let beside = self.aside.call(&beside, |layer, x| layer.forward(x)?.tanh())?;
        self.down.forward(&positions.add(&beside)?.mul(x)?)
    }
}

/// The weights after two steps, and the losses.
fn train_aside(accelerator: &Accelerator, pass: bool, recompute: bool) -> Result<(Vec<Vec<f32>>, Vec<f32>)> {
    let model = Aside {
        positions: nn::Unit::new(Embedding::new(2, 4)?),
        aside: nn::Unit::new(Linear::normal(4, 4, true, 0.3)?),
        down: Linear::normal(4, 1, true, 0.3)?,
    };
    model.aside.unit_run().set_recompute(recompute);
    let optimizer = optim::sgd(&model).lr(0.1);
    let (model, optimizer) = accelerator.prepare((model, optimizer))?;
    let device = accelerator.device();
    let x = Tensor::from_slice(&X, [2, 4], device)?;
    let passed = pass
        .then(|| Ok::<_, Error>((Tensor::arange(0, 2, 1, DType::I32, device)?, x.clone())))
        .transpose()?;
    let mut losses = Vec::new();
    for _ in 0..2 {
        let loss = model.forward(&(x.clone(), passed.clone()))?.square()?.mean_all()?;
        losses.push(loss.item()?);
        accelerator.backward(&loss)?;
        optimizer.step()?;
        optimizer.zero_grad()?;
        // What is run by hand in between is not recorded.
        assert!(model.module().down.forward(&x).map_or(true, |y| y.tape().is_none()));
    }
    let weights = accelerator.get_state_dict(&model)?;
    Ok((weights.values().map(|weight| weight.to_vec::<f32>().unwrap()).collect(), losses))
}

#[test]
fn layers_are_trained_whatever_their_inputs_are() {
    let run = |world, placements, pass, recompute| {
        let shard = ShardingConfig {
            placements,
            gather: Gather::Copy,
            persistence_elems: 0,
            reduce_bucket_elems: 8,
            ..ShardingConfig::default()
        };
        let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
        let train = move |accelerator: &Accelerator| train_aside(accelerator, pass, recompute);
        on_ranks(world, config, train).remove(0).unwrap()
    };
    let passed = run(1, Placements::WHOLE, true, false);
    assert_ne!(passed.1[0], passed.1[1]);
    for recompute in [false, true] {
        for (world, placements) in
            [(1, Placements::WHOLE), (2, Placements::WHOLE), (2, Placements::PARAMETERS)]
        {
            let made = run(world, placements, false, recompute);
            assert_eq!(made, passed, "{world} ranks, {placements:?}, recomputed: {recompute}");
        }
    }
}
