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
    muon_momentum (direction: write(f32), buffer: update(f32), grad: read(f32), grad_scale: value(f32),
        momentum: value(f32), take: value(f32), nesterov: value(u32), n: value(u64)) for NONE;
    muon_divide (x: update(f32), squares: read(f64), eps: value(f32), n: value(u64)) for NONE;
    muon_blend (x: update(f32), y: read(f32), working: write(0), keep: value(f32), step_size: value(f32), n: value(u64))
        for FLOATS;
}

kernels! { OF_LAMB, LAMB;
    lamb_moments (weights: read(f32), first: update(f32), second: update(f32), grad: read(f32),
        direction_squares: write(f64), grad_scale: value(f32), weight_decay: value(f32), beta1: value(f32),
        beta1_rest: value(f32), beta2: value(f32), beta2_rest: value(f32), eps: value(f32), eps_inside: value(u32),
        n: value(u64)) for NONE;
    lamb_length (weight_squares: read(f64), direction_squares: read(f64), n_blocks: value(u64), rate: value(f32),
        min_coeff: value(f32), max_coeff: value(f32), length: write(f32)) for NONE;
    lamb_apply (weights: update(f32), first: read(f32), second: read(f32), working: write(0), length: read(f32),
        weight_decay: value(f32), eps: value(f32), eps_inside: value(u32), n: value(u64)) for FLOATS;
}

kernels! { OF_ADAFACTOR, ADAFACTOR;
    adafactor_rows (grad: read(f32), row_var: update(f32), grad_scale: value(f32), weight: value(f32), rows: value(u32),
        cols: value(u32)) for NONE;
    adafactor_columns (grad: read(f32), col_var: update(f32), grad_scale: value(f32), weight: value(f32),
        batch: value(u32), rows: value(u32), cols: value(u32)) for NONE;
    adafactor_means (row_var: read(f32), means: write(f32), eps: value(f32), batch: value(u32), rows: value(u32))
        for NONE;
    adafactor_variance (variance: update(f32), grad: read(f32), grad_scale: value(f32), weight: value(f32),
        n: value(u64)) for NONE;
    adafactor_squares (grad: read(f32), row_var: read(f32), row_means: read(f32), col_var: read(f32),
        direction_squares: write(f64), grad_scale: value(f32), floor: value(f32), rows: value(u32), cols: value(u32),
        n: value(u64)) for NONE;
    adafactor_alpha (weight_squares: read(f64), direction_squares: read(f64), n_blocks: value(u64), rate: value(f32),
        eps2: value(f32), d: value(f32), relative: value(u32), alpha: write(f32), n: value(u64)) for NONE;
    adafactor_apply (weights: update(f32), grad: read(f32), row_var: read(f32), row_means: read(f32),
        col_var: read(f32), alpha: read(f32), working: write(0), grad_scale: value(f32), floor: value(f32),
        keep: value(f32), rows: value(u32), cols: value(u32), n: value(u64)) for FLOATS;
}
