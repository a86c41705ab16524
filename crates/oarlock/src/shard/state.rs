//! The state of the elements that a rank owns: how it starts, and how it is shown to checkpoints.

use std::ops::Range;

use oarlock_tensor::ops::update::{self, Stream};
use oarlock_tensor::{Device, Init, Shape};

use crate::error::Result;

/// The kinds of optimizer state that a checkpoint keeps for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// The f32 weights that the optimizer updates.
    Master,
    /// AdamW's first moment.
    ExpAvg,
    /// AdamW's second moment.
    ExpAvgSq,
}

impl Moment {
    /// All kinds.
    pub const ALL: [Moment; 3] = [Moment::Master, Moment::ExpAvg, Moment::ExpAvgSq];

    /// Its name in checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Moment::Master => "master",
            Moment::ExpAvg => "exp_avg",
            Moment::ExpAvgSq => "exp_avg_sq",
        }
    }
}

/// A run of elements of one parameter that a rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The parameter.
    pub name: String,
    /// The parameter's shape.
    pub shape: Shape,
    /// The elements of the parameter, row-major.
    pub elements: Range<usize>,
}

/// Where initial weights come from: each rank reads only the elements that it owns.
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
        _shape: &Shape,
        init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let stream = Stream { seed: self.seed, stream: id_of(name) };
        let first = elements.start as u64;
        match init {
            Init::Zeros => out.fill(0.0),
            Init::Ones => out.fill(1.0),
            Init::Normal { std } => update::fill_normal(&self.device, stream, first, std, out),
            Init::Uniform { bound } => update::fill_uniform(&self.device, stream, first, bound, out),
        }
        Ok(())
    }
}

/// A number for a name (FNV-1a), so that each parameter has random numbers of its own.
fn id_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
