//! The kernels of optimizers; their dtype is that of the working copy of the weights.

use super::{FLOATS, NONE, kernels};
use crate::source::{ADAFACTOR, LAMB, OPTIM};

kernels! { KERNELS, OPTIM;
    adam (all: value(pieces), decoupled: value(u32), grad_scale: value(f32), weight_decay: value(f32), keep: value(f32),
        beta1_rest: value(f32), beta2: value(f32), beta2_rest: value(f32), root_correction2: value(f32),
        eps: value(f32), step_size: value(f32)) for FLOATS;
    sgd (all: value(pieces), grad_scale: value(f32), weight_decay: value(f32), lr: value(f32), momentum: value(f32),
        keep: value(f32), take: value(f32), nesterov: value(u32)) for FLOATS;
    lion (all: value(pieces), grad_scale: value(f32), keep: value(f32), lr: value(f32), beta1: value(f32),
        beta1_rest: value(f32), beta2: value(f32), beta2_rest: value(f32)) for FLOATS;
    adagrad (all: value(pieces), grad_scale: value(f32), weight_decay: value(f32), lr: value(f32), start: value(f32),
        eps: value(f32)) for FLOATS;
    muon_momentum (all: value(pieces), grad_scale: value(f32), momentum: value(f32), take: value(f32),
        nesterov: value(u32)) for NONE;
    muon_norm (all: value(pieces), eps: value(f32)) for NONE;
    muon_divide (all: value(pieces)) for NONE;
    muon_blend (all: value(pieces), keep: value(f32), step_size: value(f32)) for FLOATS;
}

kernels! { OF_LAMB, LAMB;
    lamb_moments (all: value(pieces), grad_scale: value(f32), weight_decay: value(f32), beta1: value(f32),
        beta1_rest: value(f32), beta2: value(f32), beta2_rest: value(f32), eps: value(f32), eps_inside: value(u32))
        for NONE;
    lamb_length (all: value(pieces), rate: value(f32), min_coeff: value(f32), max_coeff: value(f32)) for NONE;
    lamb_apply (all: value(pieces), weight_decay: value(f32), eps: value(f32), eps_inside: value(u32)) for FLOATS;
}

kernels! { OF_ADAFACTOR, ADAFACTOR;
    adafactor_rows (all: value(pieces), grad_scale: value(f32), weight: value(f32)) for NONE;
    adafactor_columns (all: value(pieces)) for NONE;
    adafactor_moments (all: value(pieces), grad_scale: value(f32), weight: value(f32)) for NONE;
    adafactor_factors (all: value(pieces), eps: value(f32)) for NONE;
    adafactor_squares (all: value(pieces), grad_scale: value(f32), floor: value(f32)) for NONE;
    adafactor_alpha (all: value(pieces), rate: value(f32), eps2: value(f32), d: value(f32), relative: value(u32)) for NONE;
    adafactor_apply (all: value(pieces), grad_scale: value(f32), floor: value(f32), keep: value(f32)) for FLOATS;
}
