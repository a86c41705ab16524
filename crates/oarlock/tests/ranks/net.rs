//! A model of one unit with one layer, and the placements in which a test holds it.

use oarlock::nn::{self, Forward, Linear, Module};
use oarlock::shard::Placements;
use oarlock::{Result, Tensor};

pub const ALL: [Placements; 4] =
    [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS];

#[derive(Module)]
pub struct Net {
    layer: nn::Unit<Linear>,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.layer.run(x, |layer| layer.forward(x))
    }
}

/// Without a bias.
pub fn net(inputs: usize, outputs: usize) -> Result<Net> {
    Ok(Net { layer: nn::Unit::new(Linear::normal(inputs, outputs, false, 0.3)?) })
}
