//! The rules by which optimizers change weights, and the state that each keeps.

pub use oarlock_kernels::optim::adafactor::AdafactorArgs;
use oarlock_kernels::optim::low_rank::Subspace;
pub use oarlock_kernels::optim::low_rank::{LowRankArgs, Method, Sides};

use super::custom::Custom;
use super::eight_bit::EightBit;
use crate::shape::Shape;

/// How gradients change weights. The parameters have the names of `torch.optim` and DeepSpeed.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// `torch.optim.AdamW`: weight decay shrinks the weights (Loshchilov and Hutter 2019).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the corrected second moment.
        eps: f64,
    },
    /// `torch.optim.Adam`: weight decay is a part of the gradient (Kingma and Ba 2015).
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the corrected second moment.
        eps: f64,
    },
    /// `torch.optim.SGD`.
    Sgd {
        /// What the momentum keeps of itself; 0 for none.
        momentum: f64,
        /// What of the gradient does not enter the momentum.
        dampening: f64,
        /// Look ahead (Nesterov).
        nesterov: bool,
    },
    /// `torch.optim.Adagrad` (Duchi, Hazan and Singer 2011).
    Adagrad {
        /// The learning rate is divided by 1 + this · steps before.
        lr_decay: f64,
        /// The sum of squares at the start.
        initial_accumulator_value: f64,
        /// Added to the root of the sum.
        eps: f64,
    },
    /// DeepSpeed's `FusedLion` (Chen et al. 2023). Where momentum and gradient are both zero nothing moves.
    Lion {
        /// The share of the momentum in the direction.
        beta1: f64,
        /// Decay of the momentum.
        beta2: f64,
    },
    /// DeepSpeed's `FusedLamb` (You et al. 2020).
    Lamb {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the second moment's root, or under it.
        eps: f64,
        /// Add `eps` under the root.
        eps_inside_sqrt: bool,
        /// Correct the moments for their start at zero.
        bias_correction: bool,
        /// The greatest ratio of norms.
        max_coeff: f64,
        /// The least ratio of norms.
        min_coeff: f64,
    },
    /// Adafactor (Shazeer and Stern 2018): `torch.optim.Adafactor`, or that of transformers.
    Adafactor(AdafactorArgs),
    /// `torch.optim.Muon` (Jordan et al. 2024) on hidden matrices, AdamW on everything else. The Newton–Schulz
    /// iteration runs in f32, where torch and DeepSpeed take 16 bits.
    Muon {
        /// Decay of the momentum.
        momentum: f64,
        /// Look ahead (Nesterov).
        nesterov: bool,
        /// The polynomial of the iteration.
        ns_coefficients: [f64; 3],
        /// Rounds of the iteration.
        ns_steps: usize,
        /// The least norm that the iteration divides by.
        eps: f64,
        /// How the learning rate follows the shape.
        adjust_lr: AdjustLr,
        /// AdamW's learning rate as a multiple of Muon's.
        adam_lr_ratio: f64,
        /// AdamW's decay of the first moment.
        adam_beta1: f64,
        /// AdamW's decay of the second moment.
        adam_beta2: f64,
        /// AdamW's epsilon.
        adam_eps: f64,
    },
    /// AdamW in a subspace of the gradient of each hidden matrix (GaLore, Zhao et al. 2024; APOLLO, Zhu et al. 2025), and
    /// in the whole space on everything else. The subspace of a matrix has at most as many dims as the matrix.
    LowRank(LowRankArgs),
    /// An optimizer whose ranks exchange signs: DeepSpeed's 1-bit family. Its steps need all ranks, so an engine takes them.
    OneBit(OneBit),
    /// A rule for each element by itself with states of 8 bits, which [`Rule::in_8_bits`] makes.
    EightBit(EightBit),
    /// A rule from outside of this crate, which [`Rule::custom`] wraps.
    Custom(Custom),
}

/// The numbers of a 1-bit optimizer. Neither corrects the moments for their start at zero, as DeepSpeed's do not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneBit {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Which of them, with its own numbers.
    pub kind: OneBitKind,
}

/// The 1-bit optimizers, with the names and meanings of DeepSpeed's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OneBitKind {
    /// `OneBitAdam` (Tang et al. 2021, <https://arxiv.org/abs/2102.02888>).
    Adam {
        /// The step from which the second moment is frozen and the ranks exchange signs of the first.
        freeze_step: u64,
    },
    /// `ZeroOneAdam` (Lu et al. 2022, <https://arxiv.org/abs/2202.06009>).
    ZeroOneAdam {
        /// The last step that may update the second moment.
        var_freeze_step: u64,
        /// After so many updates of the second moment the interval between two of them doubles.
        var_update_scaler: u64,
        /// After so many steps behind the freeze the interval between two exchanges doubles.
        local_step_scaler: u64,
        /// The greatest interval between two exchanges.
        local_step_clipper: u64,
    },
    /// `OneBitLamb` (Li et al. 2021, <https://arxiv.org/abs/2104.06069>).
    Lamb {
        /// As of 1-bit Adam.
        freeze_step: u64,
        /// The greatest ratio of norms before the freeze.
        max_coeff: f64,
        /// The least ratio of norms before the freeze.
        min_coeff: f64,
        /// What the mean of the ratios before the freeze keeps of itself.
        coeff_beta: f64,
        /// The greatest factor on the frozen ratio.
        factor_max: f64,
        /// The least factor on the frozen ratio.
        factor_min: f64,
        /// The greatest relative change of the factor from step to step.
        factor_threshold: f64,
    },
}

/// How Muon's learning rate follows the shape of a matrix: torch's `adjust_lr_fn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdjustLr {
    /// `original`: times √max(1, rows / columns).
    Original,
    /// `match_rms_adamw`: times 0.2 · √max(rows, columns), so that AdamW's learning rates serve.
    MatchRmsAdamW,
}

/// What a step must be given at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any run of elements, also over the borders of parameters.
    Elementwise,
    /// Elements of one parameter, from a multiple of 256 on to another or to its end.
    Blocks,
    /// One whole parameter.
    WholeParameters,
}

/// What a rule must know of a parameter besides its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A weight of a hidden layer.
    Matrix,
    /// The weight of an embedding.
    Embedding,
    /// Anything else: the head, norms, biases.
    Other,
}

impl Rule {
    /// The name of the rule.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::AdamW { .. } => "adamw",
            Rule::Adam { .. } => "adam",
            Rule::Sgd { .. } => "sgd",
            Rule::Adagrad { .. } => "adagrad",
            Rule::Lion { .. } => "lion",
            Rule::Lamb { .. } => "lamb",
            Rule::Adafactor(AdafactorArgs { relative: false, .. }) => "adafactor",
            Rule::Adafactor(_) => "adafactor_torch",
            Rule::Muon { .. } => "muon",
            Rule::LowRank(LowRankArgs { method: Method::GaLore, .. }) => "galore",
            Rule::LowRank(LowRankArgs { method: Method::Apollo { .. }, .. }) => "apollo",
            Rule::OneBit(OneBit { kind: OneBitKind::Adam { .. }, .. }) => "onebit_adam",
            Rule::OneBit(OneBit { kind: OneBitKind::ZeroOneAdam { .. }, .. }) => "zero_one_adam",
            Rule::OneBit(OneBit { kind: OneBitKind::Lamb { .. }, .. }) => "onebit_lamb",
            Rule::EightBit(rule) => rule.name(),
            Rule::Custom(rule) => rule.name(),
        }
    }

    /// What a step must be given at once.
    pub fn needs(&self) -> Needs {
        match self {
            Rule::Lamb { .. } | Rule::Adafactor(_) | Rule::Muon { .. } | Rule::LowRank(_) => {
                Needs::WholeParameters
            }
            Rule::OneBit(OneBit { kind: OneBitKind::Lamb { .. }, .. }) => Needs::WholeParameters,
            Rule::EightBit(_) => Needs::Blocks,
            Rule::Custom(rule) => rule.needs(),
            _ => Needs::Elementwise,
        }
    }

    /// Whether it is of the same kind and keeps the same states, so that it differs in numbers only.
    pub fn is_like(&self, other: &Rule) -> bool {
        let kind = |rule: &Rule| (rule.name(), rule.needs());
        kind(self) == kind(other) && self.state_names() == other.state_names()
    }

    /// The states kept beside the f32 master weights, by torch's names.
    pub fn state_names(&self) -> &[&'static str] {
        match self {
            Rule::AdamW { .. } | Rule::Adam { .. } | Rule::Lamb { .. } => &["exp_avg", "exp_avg_sq"],
            Rule::Sgd { momentum: 0.0, .. } => &[],
            Rule::Sgd { .. } => &["momentum_buffer"],
            Rule::Adagrad { .. } => &["sum"],
            Rule::Lion { .. } => &["exp_avg"],
            Rule::Adafactor(_) => &["row_var", "col_var", "variance"],
            Rule::Muon { .. } => &["momentum_buffer", "exp_avg", "exp_avg_sq"],
            Rule::LowRank(LowRankArgs { method: Method::GaLore, .. }) => &LOW_RANK_STATES[..3],
            Rule::LowRank(_) => &LOW_RANK_STATES,
            Rule::OneBit(OneBit { kind: OneBitKind::Lamb { .. }, .. }) => &ONE_BIT_LAMB_STATES,
            Rule::OneBit(_) => &ONE_BIT_LAMB_STATES[..2],
            Rule::EightBit(rule) => rule.rule().state_names(),
            Rule::Custom(rule) => rule.states(),
        }
    }

    /// The shape of state `index` of a parameter, as torch has it; `None` where the parameter does without.
    pub fn state_shape(&self, index: usize, shape: &Shape, role: Role) -> Option<Shape> {
        let sizes = shape.sizes();
        let with = |dim: usize| {
            let mut sizes = sizes.to_vec();
            sizes[dim] = 1;
            Shape::new(&sizes).ok()
        };
        match self {
            Rule::Adafactor(_) if sizes.len() < 2 => (index == 2).then_some(*shape),
            Rule::Adafactor(_) => match index {
                0 => with(sizes.len() - 1),
                1 => with(sizes.len() - 2),
                _ => None,
            },
            Rule::Muon { .. } => {
                let used = if is_matrix(shape, role) { index == 0 } else { index == 1 || index == 2 };
                used.then_some(*shape)
            }
            Rule::LowRank(low) => low_rank_state(low, index, shape, role),
            Rule::OneBit(_) if index == 3 => Shape::new(&[3]).ok(),
            Rule::EightBit(rule) => rule.state_shape(index, shape, role),
            Rule::Custom(rule) => rule.state_shape(index, shape),
            _ => (index < self.state_names().len()).then_some(*shape),
        }
    }

    /// The elements of state `index` of a parameter; 0 where the parameter does without.
    pub fn state_len(&self, index: usize, shape: &Shape, role: Role) -> usize {
        self.state_shape(index, shape, role).map_or(0, |shape| shape.n_elems())
    }

    /// The decays of its moments, where [`Rule::with_betas`] sets them.
    pub fn betas(&self) -> Option<[f64; 2]> {
        match *self {
            Rule::AdamW { beta1, beta2, .. }
            | Rule::Adam { beta1, beta2, .. }
            | Rule::Lion { beta1, beta2 }
            | Rule::Lamb { beta1, beta2, .. } => Some([beta1, beta2]),
            Rule::LowRank(LowRankArgs { beta1, beta2, .. }) | Rule::OneBit(OneBit { beta1, beta2, .. }) => {
                Some([beta1, beta2])
            }
            Rule::EightBit(ref rule) => rule.rule().betas(),
            Rule::Custom(ref rule) => rule.betas(),
            Rule::Sgd { .. } | Rule::Adagrad { .. } | Rule::Adafactor(_) | Rule::Muon { .. } => None,
        }
    }

    /// The rule with the decays that a schedule sets. A rule that has no such pair is left as it is, as by
    /// DeepSpeed's `OneCycle`.
    pub fn with_betas(mut self, betas: [f64; 2]) -> Rule {
        match &mut self {
            Rule::AdamW { beta1, beta2, .. }
            | Rule::Adam { beta1, beta2, .. }
            | Rule::Lion { beta1, beta2 }
            | Rule::Lamb { beta1, beta2, .. }
            | Rule::LowRank(LowRankArgs { beta1, beta2, .. })
            | Rule::OneBit(OneBit { beta1, beta2, .. }) => [*beta1, *beta2] = betas,
            Rule::EightBit(rule) => *rule = rule.with_betas(betas),
            Rule::Custom(rule) => *rule = rule.with_betas(betas),
            Rule::Sgd { .. } | Rule::Adagrad { .. } | Rule::Adafactor(_) | Rule::Muon { .. } => {}
        }
        self
    }
}

/// The states of 1-bit LAMB: both moments, the second moment that goes on after the freeze, and three numbers of a
/// parameter: the frozen coefficient, the last factor and the scale of the first moment.
const ONE_BIT_LAMB_STATES: [&str; 4] = ["exp_avg", "exp_avg_sq", "exp_avg_sq_fresh", "lamb_numbers"];

/// The states of a rule in a subspace: both moments, the vectors of the subspace, and the norm of the last step.
const LOW_RANK_STATES: [&str; 4] = ["exp_avg", "exp_avg_sq", "ortho_matrix", "scaled_grad"];

fn low_rank_state(low: &LowRankArgs, index: usize, shape: &Shape, role: Role) -> Option<Shape> {
    if !is_matrix(shape, role) {
        return (index < 2).then_some(*shape);
    }
    let space = Subspace::new(low, shape.sizes()[0], shape.sizes()[1]);
    let is_random = matches!(low.method, Method::Apollo { is_random: true, .. });
    match index {
        0 | 1 => Shape::new(&space.sizes()).ok(),
        2 if !is_random => Shape::new(&[space.n_vectors()]).ok(),
        3 => Shape::new(&[1]).ok(),
        _ => None,
    }
}

/// Whether the rule for hidden matrices applies, where there is one of its own.
pub(super) fn is_matrix(shape: &Shape, role: Role) -> bool {
    sides(shape, role).is_some()
}

/// Rows and columns of a hidden matrix.
pub(super) fn sides(shape: &Shape, role: Role) -> Option<[usize; 2]> {
    match *shape.sizes() {
        [rows, cols] if role == Role::Matrix => Some([rows, cols]),
        _ => None,
    }
}
