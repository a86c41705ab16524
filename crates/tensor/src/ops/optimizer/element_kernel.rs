//! The kernel of a rule for each element by itself.

use oarlock_cuda::{Pieces, geometry};
use oarlock_kernels::DType;
use oarlock_kernels::optim::adagrad::Adagrad;
use oarlock_kernels::optim::adam::Adam;
use oarlock_kernels::optim::lion::Lion;
use oarlock_kernels::optim::sgd::Sgd;

use super::{Rule, StepArgs};
use crate::cuda::{Form, Kernels};

/// The kernel of a rule for each element by itself, with its numbers in a step.
pub(super) struct ElementKernel {
    op: &'static str,
    scalars: Vec<f32>,
    /// Switches that stand before and behind the scalars.
    switches: [Option<bool>; 2],
}

impl ElementKernel {
    /// None of a rule that has no such kernel.
    pub fn of(rule: &Rule, args: &StepArgs) -> Option<ElementKernel> {
        let kernel =
            |op, scalars: &[f32], switches| ElementKernel { op, scalars: scalars.to_vec(), switches };
        Some(match *rule {
            Rule::AdamW { beta1, beta2, eps } => {
                ElementKernel::adam(&Adam::<true>::new(beta1, beta2, eps, args))
            }
            Rule::Adam { beta1, beta2, eps } => {
                ElementKernel::adam(&Adam::<false>::new(beta1, beta2, eps, args))
            }
            Rule::Sgd { momentum, dampening, nesterov } => {
                let (scalars, nesterov) = Sgd::new(momentum, dampening, nesterov, args).scalars();
                kernel("sgd", &scalars, [None, Some(nesterov)])
            }
            Rule::Adagrad { lr_decay, initial_accumulator_value, eps } => {
                let scalars = Adagrad::new(lr_decay, initial_accumulator_value, eps, args).scalars();
                kernel("adagrad", &scalars, [None; 2])
            }
            Rule::Lion { beta1, beta2 } => {
                kernel("lion", &Lion::new(beta1, beta2, args).scalars(), [None; 2])
            }
            _ => return None,
        })
    }

    /// That of Adam or AdamW.
    pub fn adam<const DECOUPLED: bool>(adam: &Adam<DECOUPLED>) -> ElementKernel {
        let scalars = adam.scalars().to_vec();
        ElementKernel { op: "adam", scalars, switches: [Some(DECOUPLED), None] }
    }

    /// Launches it.
    pub fn run(&self, gpu: &Kernels<'_>, dtype: DType, pieces: &Pieces<'_>) -> Form {
        let call = gpu.kernel(self.op, &[dtype])?.pieces(pieces);
        let call = match self.switches[0] {
            Some(on) => call.u32(usize::from(on)),
            None => call,
        };
        let call = call.f32s(&self.scalars);
        let call = match self.switches[1] {
            Some(on) => call.u32(usize::from(on)),
            None => call,
        };
        call.run(geometry::pieces(pieces))
    }
}
