//! The tests of the CUDA kernels, as modules of one binary.

mod adafactor;
mod attention;
mod binary;
mod copy;
mod cross_entropy;
mod elementwise;
mod embed;
mod emulator;
mod faults;
mod gemm;
mod gemm_quantized;
mod glu;
mod host;
mod lamb;
mod norm;
mod numbers;
mod nvrtc;
mod optim;
mod probe;
mod quantized;
mod reduce;
mod rope;
mod sanitizers;
mod softmax;
mod table;
mod unary;
