//! The layer: a frozen linear layer whose inputs are rotated in blocks by trained rotations (OFT, Qiu et al. 2023, in the
//! form of Qiu et al. 2025, which rotates inputs instead of weights).

use oarlock_engine::nn::{self, Dropout, Forward, Module, parameter};
use oarlock_tensor::ops::einsum;
use oarlock_tensor::{DType, Error, Init, Param, Result, Shape, Tensor};

use super::base::Base;
use super::reference::is_reference;

/// What the rotations of one layer are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OftLayer {
    /// Inputs of a block; divides those of the layer.
    pub block: usize,
    /// The probability with which a block is not rotated in a pass of training.
    pub dropout: f32,
    /// Terms of the Cayley–Neumann series, as PEFT counts them; at least 3.
    pub terms: usize,
}

/// A linear layer with rotated inputs: `y = W·(xR) + b`, where R consists of a rotation for each block of inputs. W and b
/// are frozen.
///
/// A rotation begins as the identity. It is the Cayley transform `(I + Q)(I - Q)⁻¹` of a trained skew-symmetric matrix Q by
/// the first terms of its Neumann series: `I + 2Q + 2Q² + 2Q³ + Q⁴` for the 5 terms that are PEFT's default.
///
/// The layer keeps the names of the one that it is put around. The elements of Q above its diagonals, row by row, have
/// PEFT's name `oft_R.weight`, `[blocks, block·(block - 1) / 2]`, and are f32 in every dtype of the model.
///
/// ```
/// use oarlock::adapters::{Oft, OftLayer};
/// use oarlock::nn::{self, Linear};
///
/// # fn main() -> nn::Result<()> {
/// let layer = Oft::around(&Linear::new(64, 32)?, OftLayer { block: 16, dropout: 0.0, terms: 5 })?;
/// let trained: Vec<_> = nn::parameters(&layer).into_iter().filter(|named| !named.param.is_frozen()).collect();
/// assert_eq!(trained[0].name, "oft_R.weight");
/// assert_eq!(trained[0].param.shape().sizes(), [4, 120]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Module)]
pub struct Oft {
    #[module(name = "")]
    base: Base,
    #[module(name = "")]
    rotations: Rotations,
    /// Of the layer [`as_reference`](super::as_reference), where that is not its base alone: frozen ones.
    #[module(name = "reference")]
    reference: Option<Rotations>,
}

#[derive(Debug, Module)]
struct Rotations {
    #[module(name = "oft_R.weight")]
    skew: Param,
    #[module(name = "")]
    dropout: Dropout,
    #[module(skip)]
    settings: OftLayer,
    /// Where the elements of Q lie in `skew`, and what they are multiplied with.
    #[module(skip)]
    places: Vec<i32>,
    #[module(skip)]
    signs: Vec<f32>,
}

impl Oft {
    /// Puts rotations before a layer, which is frozen. It begins as the layer alone.
    ///
    /// # Errors
    /// Blocks that do not divide the inputs, and fewer than 3 terms.
    pub fn around(base: impl Into<Base>, settings: OftLayer) -> Result<Oft> {
        let base = base.into();
        base.freeze();
        Ok(Oft { rotations: Rotations::new(&base, settings)?, base, reference: None })
    }

    /// With frozen copies of the rotations, which the layer has [`as_reference`](super::as_reference); their name begins with
    /// `reference.`. Their values come from where those of the others come from.
    ///
    /// # Errors
    /// As [`Oft::around`].
    pub fn with_reference(self) -> Result<Oft> {
        let reference = Rotations::new(&self.base, self.rotations.settings)?;
        nn::freeze(&reference);
        Ok(Oft { reference: Some(reference), ..self })
    }
}

impl Rotations {
    fn new(base: &Base, settings: OftLayer) -> Result<Rotations> {
        let OftLayer { block, dropout, terms } = settings;
        let [_, n_in] = base.sizes()?;
        if block < 2 || !n_in.is_multiple_of(block) {
            return Err(Error::Usage(format!(
                "Oft: blocks of {block} do not divide {n_in} inputs; give at least 2 that do"
            )));
        }
        if terms < 3 {
            return Err(Error::Usage(format!("Oft: {terms} terms of a rotation; give at least 3")));
        }
        let shape = Shape::new(&[n_in / block, block * (block - 1) / 2])?;
        let skew = Param::in_f32(shape, Init::Zeros);
        let (places, signs) = skew_places(block);
        Ok(Rotations { skew, dropout: Dropout::new(dropout), settings, places, signs })
    }

    /// `xR`.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let OftLayer { block, .. } = self.settings;
        let turn = self.turn(x)?;
        let turn = if x.dtype() == DType::F32 { turn } else { turn.cast(x.dtype())? };
        let n_rows = x.shape().n_elems() / x.shape().last();
        let blocks = x.reshape([n_rows, x.shape().last() / block, block])?;
        let moved = einsum("rnk,nkc->rnc", &[&blocks, &turn])?;
        x.add(&moved.reshape(*x.shape())?)
    }

    /// `R - I` in f32, `[blocks, block, block]`, so that 16 bits are enough for it.
    fn turn(&self, x: &Tensor) -> Result<Tensor> {
        let OftLayer { block, dropout, terms } = self.settings;
        let n_blocks = self.skew.shape().sizes()[0];
        let places = Tensor::from_slice(&self.places, [block * block], x.device())?;
        let signs = Tensor::from_slice(&self.signs, [block * block], x.device())?;
        let skew = parameter(&self.skew, x)?.index_select(1, &places)?.mul(&signs)?;
        let skew = skew.reshape([n_blocks, block, block])?;
        let twice = skew.scale(2.0)?;
        // Horner's rule.
        let mut turn = skew.clone();
        for _ in 1..highest_power(terms) {
            turn = skew.matmul(&turn)?.add(&twice)?;
        }
        if dropout == 0.0 {
            return Ok(turn);
        }
        // A block is rotated or not; nothing makes up for those that are not.
        let ones = Tensor::from_slice(&vec![1.0f32; n_blocks], [n_blocks, 1, 1], x.device())?;
        turn.mul(&self.dropout.forward(&ones)?.clamp(0.0, 1.0)?)
    }
}

impl Forward<Tensor> for Oft {
    type Output = Tensor;

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match (is_reference(), &self.reference) {
            (false, _) => self.base.forward(&self.rotations.rotate(x)?),
            (true, Some(reference)) => self.base.forward(&reference.rotate(x)?),
            (true, None) => self.base.forward(x),
        }
    }
}

/// Where the elements of a skew-symmetric matrix lie among those above its diagonal, and what they are multiplied with.
fn skew_places(block: usize) -> (Vec<i32>, Vec<f32>) {
    // Of (i, j) above the diagonal: those of the rows before, then those of the row before j.
    let place = |i: usize, j: usize| (i * (2 * block - i - 1) / 2 + j - i - 1) as i32;
    let of = |at: usize| match (at / block, at % block) {
        (i, j) if i < j => (place(i, j), 1.0),
        (i, j) if i > j => (place(j, i), -1.0),
        _ => (0, 0.0),
    };
    (0..block * block).map(of).unzip()
}

/// The highest power of Q in a rotation of so many terms: PEFT's loop ends so.
fn highest_power(terms: usize) -> usize {
    (terms - 1).max(3)
}

/// Rotations in numbers, to be merged into a weight.
#[derive(Debug)]
pub(super) struct Rotated {
    /// `[blocks, block, block]`.
    rotations: Vec<f32>,
    block: usize,
}

impl Rotated {
    /// Of the elements above the diagonals.
    pub(super) fn new(skew: &[f32], block: usize, terms: usize) -> Rotated {
        let (places, signs) = skew_places(block);
        let rotation = |above: &[f32]| {
            let at = |(place, sign): (&i32, &f32)| f64::from(above[*place as usize] * sign);
            let skew: Vec<f64> = places.iter().zip(&signs).map(at).collect();
            let mut turn = skew.clone();
            for _ in 1..highest_power(terms) {
                turn = (0..block * block)
                    .map(|at| {
                        let (i, j) = (at / block, at % block);
                        let product =
                            (0..block).map(|k| skew[i * block + k] * turn[k * block + j]).sum::<f64>();
                        product + 2.0 * skew[at]
                    })
                    .collect();
            }
            let identity = |at: usize| if at / block == at % block { 1.0 } else { 0.0 };
            (0..block * block).map(|at| (turn[at] + identity(at)) as f32).collect::<Vec<f32>>()
        };
        let rotations = skew.chunks_exact(block * (block - 1) / 2).flat_map(rotation).collect();
        Rotated { rotations, block }
    }

    /// Merges them into whole rows of a weight: `W·Rᵀ`.
    pub(super) fn merge(&self, rows: &mut [f32]) {
        let size = self.block * self.block;
        let n_in = self.rotations.len() / self.block;
        for row in rows.chunks_exact_mut(n_in) {
            for (part, rotation) in row.chunks_exact_mut(self.block).zip(self.rotations.chunks_exact(size)) {
                let merged = rotation
                    .chunks_exact(self.block)
                    .map(|of| of.iter().zip(&*part).map(|(r, w)| r * w).sum());
                let merged: Vec<f32> = merged.collect();
                part.copy_from_slice(&merged);
            }
        }
    }
}
