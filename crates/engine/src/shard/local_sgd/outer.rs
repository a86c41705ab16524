//! The outer step of DiLoCo (Douillard et al. 2023, <https://arxiv.org/abs/2311.08105>): what the ranks have moved on average
//! since they last met is a gradient, which SGD with Nesterov momentum follows.

use crate::shard::group::Group;
use crate::{Error, Result};

/// The numbers of the outer step; the default is the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterStep {
    /// The outer learning rate. With 1 and no momentum the weights become their mean.
    pub lr: f64,
    /// What the outer momentum keeps of itself.
    pub momentum: f64,
}

impl Default for OuterStep {
    fn default() -> OuterStep {
        OuterStep { lr: 0.7, momentum: 0.9 }
    }
}

impl OuterStep {
    /// What is wrong with the numbers.
    pub(crate) fn check(&self) -> Result<()> {
        if !(self.lr.is_finite() && self.lr > 0.0) {
            return Err(Error::Usage(format!("outer_lr is {}; it is a number above 0", self.lr)));
        }
        if !(0.0..1.0).contains(&self.momentum) {
            let got = self.momentum;
            return Err(Error::Usage(format!("outer_momentum is {got}; it is at least 0 and below 1")));
        }
        Ok(())
    }
}

/// Where the ranks last met, and the outer momentum: eight bytes for each trained parameter, in main memory. The same on
/// all ranks.
pub struct Outer {
    step: OuterStep,
    /// Of each trained group, the master weights where the ranks met, and the momentum.
    groups: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Outer {
    /// Begins where the ranks are; the momentum is zero.
    pub(in crate::shard) fn new<'a>(
        step: OuterStep,
        trained: impl Iterator<Item = &'a Group>,
    ) -> Result<Outer> {
        step.check()?;
        let mut groups = Vec::new();
        for group in trained {
            let mut weights = vec![0.0; group.layout.n_elems()];
            group.state.master().read(0, &mut weights)?;
            groups.push((weights, vec![0.0; group.layout.n_elems()]));
        }
        Ok(Outer { step, groups })
    }

    /// From the means of weights, of which the first is element `first` of trained group `group`, to what weights become
    /// (torch's `SGD(nesterov=True)` on where the ranks met minus the mean).
    pub(in crate::shard) fn follow(&mut self, group: usize, first: usize, means: &mut [f64]) {
        let OuterStep { lr, momentum } = self.step;
        let Some((met, moments)) = self.groups.get_mut(group) else { return };
        let elements = met[first..].iter_mut().zip(&mut moments[first..]);
        for (mean, (met, moment)) in means.iter_mut().zip(elements) {
            let gradient = f64::from(*met) - *mean;
            let moved = momentum * f64::from(*moment) + gradient;
            let weight = f64::from(*met) - lr * (gradient + momentum * moved);
            *moment = moved as f32;
            *met = weight as f32;
            *mean = weight;
        }
    }
}
