//! The tests of the CUDA kernels, as modules of one binary.

mod emulator;
mod norm;
mod numbers;
mod nvrtc;
mod table;
