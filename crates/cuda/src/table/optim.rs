//! The kernels of `optim.cu`; their dtype is that of the working copy of the weights.

use super::{FLOATS, kernels};
use crate::source::OPTIM;

kernels! { KERNELS, OPTIM;
    adam (weights: update(f32), first: update(f32), second: update(f32), grad: read(f32), working: write(0),
        decoupled: value(u32), grad_scale: value(f32), weight_decay: value(f32), keep: value(f32),
        beta1_rest: value(f32), beta2: value(f32), beta2_rest: value(f32), root_correction2: value(f32),
        eps: value(f32), step_size: value(f32), n: value(u64)) for FLOATS;
    sgd (weights: update(f32), buffer: update(f32), grad: read(f32), working: write(0), grad_scale: value(f32),
        weight_decay: value(f32), lr: value(f32), momentum: value(f32), keep: value(f32), take: value(f32),
        nesterov: value(u32), n: value(u64)) for FLOATS;
    lion (weights: update(f32), momentum: update(f32), grad: read(f32), working: write(0), grad_scale: value(f32),
        keep: value(f32), lr: value(f32), beta1: value(f32), beta1_rest: value(f32), beta2: value(f32),
        beta2_rest: value(f32), n: value(u64)) for FLOATS;
}
