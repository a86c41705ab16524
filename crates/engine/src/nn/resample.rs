//! Images of another size under torch's names.

use oarlock_tensor::ops::{self, Interpolation};
use oarlock_tensor::{Error, Result, Tensor};

use super::module::{Forward, Module, Visitor};

/// Images of another size: `torch.nn.Upsample`. x `[N, C, ..]` changes along all dims after the channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upsample {
    to: To,
    mode: Interpolation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum To {
    Factor(usize),
    Sizes(Vec<usize>),
}

impl Upsample {
    /// As many times as large along each dim, each element repeated.
    pub fn scale_factor(factor: usize) -> Upsample {
        Upsample { to: To::Factor(factor), mode: Interpolation::Nearest }
    }

    /// With these sizes, each element the nearest.
    pub fn size(sizes: &[usize]) -> Upsample {
        Upsample { to: To::Sizes(sizes.to_vec()), mode: Interpolation::Nearest }
    }

    /// The elements are made so.
    #[must_use]
    pub fn mode(self, mode: Interpolation) -> Upsample {
        Upsample { mode, ..self }
    }
}

impl Forward<Tensor> for Upsample {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let places = x.sizes().get(2..).filter(|places| !places.is_empty());
        let sizes = match (&self.to, places) {
            (To::Factor(factor), Some(places)) => Some(places.iter().map(|size| size * factor).collect()),
            (To::Sizes(sizes), Some(places)) if sizes.len() == places.len() => Some(sizes.clone()),
            _ => None,
        };
        let sizes: Vec<usize> = sizes.ok_or_else(|| Error::Shape {
            op: "Upsample",
            expected: match &self.to {
                To::Factor(_) => "x of shape [N, C, ..]".to_owned(),
                To::Sizes(sizes) => {
                    format!("x of shape [N, C, ..] with {} dims after the channels", sizes.len())
                }
            },
            got: format!("{:?}", x.shape()),
        })?;
        ops::interpolate(x, sizes, self.mode)
    }
}

impl Module for Upsample {
    fn visit(&self, _visitor: &mut dyn Visitor) {}
}

/// x `[.., C r², H, W]` → `[.., C, H r, W r]`: `torch.nn.PixelShuffle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelShuffle {
    /// r.
    pub upscale_factor: usize,
}

impl Forward<Tensor> for PixelShuffle {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::pixel_shuffle(x, self.upscale_factor)
    }
}

impl Module for PixelShuffle {
    fn visit(&self, _visitor: &mut dyn Visitor) {}
}

/// x `[.., C, H r, W r]` → `[.., C r², H, W]`: `torch.nn.PixelUnshuffle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelUnshuffle {
    /// r.
    pub downscale_factor: usize,
}

impl Forward<Tensor> for PixelUnshuffle {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::pixel_unshuffle(x, self.downscale_factor)
    }
}

impl Module for PixelUnshuffle {
    fn visit(&self, _visitor: &mut dyn Visitor) {}
}
