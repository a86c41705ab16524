//! What kernels and ops are compared with: every op once, in f64, with its gradients; numbers to run it on; one comparison.
//!
//! A kernel of the CPU on each instruction set, one of CUDA in the emulator, an op of the tape and an op on a GPU are all
//! compared with the same function of this crate, which shares no code with any of them. Most ops are a [`formula::Formula`],
//! which has its gradients by itself; attention and the steps of optimizers are loops.

#![allow(clippy::disallowed_methods, reason = "references are compared within tolerances")]

pub mod attention;
pub mod compare;
pub mod conv;
pub mod formula;
pub mod function;
pub mod gated;
pub mod gather;
pub mod loss;
pub mod norm;
pub mod number;
pub mod optimizer;
pub mod pair;
pub mod product;
pub mod quantized;
pub mod reduce;
pub mod rope;
pub mod softmax;
pub mod sort;
