//! Dropout: a module whose random numbers are addressed, so that every rank and every pass has its own.

use oarlock_tensor::{Error, Result, Tensor, ops};

use super::mode::Mode;
use super::module::{Module, Visitor};

/// Each element becomes 0 with probability `p`, and the others are divided by `1 - p`, while the model trains
/// (Srivastava et al. 2014); otherwise nothing changes.
///
/// What is dropped is a pure function of (seed, path of the layer, number of the forward pass, rank): a run that is
/// repeated drops the same, and so does a unit that is computed again in the backward pass. torch's generator depends on
/// everything drawn before.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The probability, at least 0 and below 1.
    pub p: f32,
    mode: Mode,
}

impl Dropout {
    /// Drops with probability `p`; one that is not in `0..1` is an error of the forward pass.
    pub fn new(p: f32) -> Dropout {
        Dropout { p, mode: Mode::default() }
    }

    /// Whether it drops anything now.
    pub(super) fn is_active(&self) -> bool {
        self.p != 0.0 && self.mode.is_training()
    }

    /// x of any shape → the same shape.
    ///
    /// # Errors
    /// A probability outside `0..1`, or a tensor of integers.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !self.is_active() {
            return Ok(x.clone());
        }
        let (seed, stream) = self.mode.draw();
        ops::dropout(x, self.p, seed, stream)
    }
}

impl Default for Dropout {
    /// torch's: one half.
    fn default() -> Dropout {
        Dropout::new(0.5)
    }
}

impl Module for Dropout {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.mode(&self.mode);
    }
}

/// As [`Dropout`] for whole channels of x `[N, C, ..]`: each becomes 0 with probability `p` (Tompson et al. 2015).
#[derive(Clone, Debug, Default)]
pub struct ChannelDropout(Dropout);

/// `torch.nn.Dropout1d`: x `[N, C, L]`.
pub type Dropout1d = ChannelDropout;

/// `torch.nn.Dropout2d`: x `[N, C, H, W]`.
pub type Dropout2d = ChannelDropout;

impl ChannelDropout {
    /// Drops with probability `p`; one that is not in `0..1` is an error of the forward pass.
    pub fn new(p: f32) -> ChannelDropout {
        ChannelDropout(Dropout::new(p))
    }

    /// x `[N, C, ..]` → the same shape.
    ///
    /// # Errors
    /// Fewer than two dims, a probability outside `0..1`, or a tensor of integers.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[n, c, ref places @ ..] = x.sizes() else {
            return Err(Error::Shape {
                op: "ChannelDropout",
                expected: "x of shape [N, C, ..]".to_owned(),
                got: format!("{:?}", x.shape()),
            });
        };
        if !self.0.is_active() {
            return Ok(x.clone());
        }
        let ones = Tensor::ones([n, c], x.dtype(), x.device())?;
        let kept = self.0.forward(&ones)?;
        x.mul(&kept.reshape([&[n, c][..], &vec![1; places.len()]].concat())?)
    }
}

impl Module for ChannelDropout {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.0.visit(visitor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::training::{RngSnapshot, begin_pass, n_passes, seed_layers};
    use crate::nn::{Linear, Unit, set_passes, set_training};
    use oarlock_tensor::cpu::Isa;
    use oarlock_tensor::{Device, Par};

    struct Net(Vec<Dropout>);

    impl Module for Net {
        fn visit(&self, visitor: &mut dyn Visitor) {
            visitor.child("drops", &self.0);
        }
    }

    fn ones() -> Tensor {
        Tensor::from_slice(&[1.0f32; 512], [512], &Device::cpu(Isa::detect(), Par::solo())).unwrap()
    }

    fn masks(net: &Net, seed: u64, rank: usize) -> Vec<Vec<f32>> {
        seed_layers(net, seed, rank);
        let mut masks = Vec::new();
        for _ in 0..2 {
            begin_pass(net);
            for drop in net.0.iter().chain(&net.0) {
                masks.push(drop.forward(&ones()).unwrap().to_vec::<f32>().unwrap());
            }
        }
        masks
    }

    #[test]
    fn layers_passes_calls_and_ranks_drop_otherwise_and_a_repetition_drops_the_same() {
        let net = Net(vec![Dropout::new(0.25), Dropout::new(0.25)]);
        let here = ones();
        assert_eq!(net.0[0].forward(&here).unwrap().to_vec::<f32>().unwrap(), [1.0; 512]);
        set_training(&net, true);
        let (zero, one) = (masks(&net, 42, 0), {
            set_passes(&net, 0);
            masks(&net, 42, 1)
        });
        assert_eq!(n_passes(&net), 2);
        let all: Vec<_> = zero.iter().chain(&one).collect();
        assert_eq!(all.len(), 16);
        for (index, mask) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != mask), "{index}");
            let kept = mask.iter().filter(|&&x| x == 1.0 / 0.75).count();
            assert_eq!(kept + mask.iter().filter(|&&x| x == 0.0).count(), 512);
            assert!((340..430).contains(&kept), "{kept}");
        }
        set_passes(&net, 0);
        assert_eq!(masks(&net, 42, 0), zero);
        let moment = RngSnapshot::of(&net);
        let first = net.0[1].forward(&here).unwrap().to_vec::<f32>().unwrap();
        begin_pass(&net);
        let again = moment.again(|| net.0[1].forward(&here)).unwrap().to_vec::<f32>().unwrap();
        assert_eq!((again, n_passes(&net)), (first, 3));
    }

    #[test]
    fn channels_drop_as_a_whole() {
        let drop = ChannelDropout::new(0.5);
        let x = ones().reshape([4, 16, 8]).unwrap();
        assert_eq!(drop.forward(&x).unwrap().to_vec::<f32>().unwrap(), [1.0; 512]);
        set_training(&drop, true);
        seed_layers(&drop, 42, 0);
        begin_pass(&drop);
        let y = drop.forward(&x).unwrap().to_vec::<f32>().unwrap();
        let channels: Vec<&[f32]> = y.chunks(8).collect();
        assert!(channels.iter().all(|channel| channel.iter().all(|x| *x == channel[0])));
        let kept = channels.iter().filter(|channel| channel[0] == 2.0).count();
        assert_eq!(kept + channels.iter().filter(|channel| channel[0] == 0.0).count(), 64);
        assert!((20..44).contains(&kept), "{kept}");
        assert!(drop.forward(&ones()).is_err());
    }

    #[test]
    fn an_impossible_probability_is_an_error() {
        let drop = Dropout::new(1.0);
        set_training(&drop, true);
        assert!(drop.forward(&ones()).is_err());
        // Modules without a mode are not an obstacle.
        set_training(&Unit::new(Linear::new(2, 2).unwrap()), true);
    }
}
