//! Gradients that a program looks at: those of the inputs of a prepared model, and those of its parameters.

use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::shard::Placements;
use oarlock::{Accelerator, AcceleratorConfig, Error, Options, Result, Tensor, optim};

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
            shard: Options { placements, ..Options::default() },
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
