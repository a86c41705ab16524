//! Where initial weights come from: each rank reads only the elements that it needs.

use std::ops::Range;

use oarlock_tensor::ops::update::Stream;
use oarlock_tensor::{Device, Init, Shape};

use crate::error::Result;

/// A source of initial weights.
pub trait WeightSource {
    /// Fills `out` with `elements` of a parameter.
    ///
    /// # Errors
    /// When the source lacks the parameter or holds another shape.
    fn read(
        &mut self,
        name: &str,
        shape: &Shape,
        init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()>;

    /// Whether it has values for a parameter; one that it lacks stays as it is.
    fn has(&self, _name: &str) -> bool {
        true
    }
}

/// Weights drawn at random, each element addressed by (seed, parameter, element): the same for every number of ranks.
#[derive(Clone, Debug)]
pub struct SeededInit {
    /// The seed.
    pub seed: u64,
    /// The device that draws them.
    pub device: Device,
}

impl WeightSource for SeededInit {
    fn read(
        &mut self,
        name: &str,
        shape: &Shape,
        init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let stream = Stream { seed: self.seed, stream: id_of(name) };
        Ok(init.fill(shape, &self.device, stream, elements.start as u64, out)?)
    }
}

/// A number for a name (FNV-1a), so that each parameter has random numbers of its own.
fn id_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
