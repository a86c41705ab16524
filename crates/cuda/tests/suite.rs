//! The tests of the CUDA kernels, as modules of one binary.

#![allow(clippy::disallowed_methods, reason = "what is expected is compared within tolerances")]

mod adafactor;
mod attention;
mod binary;
mod compare;
mod copy;
mod cross_entropy;
mod cumsum;
mod elementwise;
mod embed;
mod emulator;
mod faults;
mod gemm;
mod gemm_quantized;
mod glu;
mod host;
mod indexed;
mod lamb;
mod norm;
mod numbers;
mod nvrtc;
mod optim;
mod order;
mod pair_loss;
mod probe;
mod quantized;
mod random;
mod reduce;
mod rope;
mod row_loss;
mod sanitizers;
mod sass;
mod softmax;
mod sort;
mod table;
mod top_k;
mod unary;
