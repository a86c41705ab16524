//! The tests of the kernels, as modules of one binary.

#![allow(clippy::disallowed_methods, reason = "what is expected is compared within tolerances")]

mod attention;
mod binary;
mod block_int;
mod block_quantized;
mod compare;
mod conv;
mod copy;
mod cross_entropy;
mod difference;
mod dtype;
mod elementwise;
mod embed;
mod everywhere;
mod gemm;
mod glu;
mod indexed;
mod isa;
mod math;
mod multiply_add;
mod norm;
mod optim;
mod pair_loss;
mod par;
mod pieces;
mod planted;
mod quantized;
mod random;
mod rank_sum;
mod reduce;
mod rope;
mod scan;
mod sign_bits;
mod singular;
mod softmax;
mod sort;
mod sums;
mod token_loss;
mod unary;
mod walk;
