//! The CUDA kernels of Oarlock, and the host side that compiles and runs them.
//!
//! The kernels are written in the words of `kernels/words.h`, which mean instructions of a GPU under NVRTC and calls of
//! an emulator under a C++ compiler. The tests run every kernel in the emulator, and the host side over fake libraries, so
//! they need no GPU. The crate itself needs neither CUDA nor a C++ compiler to build: libcuda, libnvrtc, libcublasLt
//! and libnccl are loaded when they are first needed, from where [`libraries`] says.
//!
//! A program finds the [`driver`], makes a context and streams, gets kernels from [`modules`] and launches them, and
//! computes products with [`blas`]. Several GPUs work together by [`nccl`].

pub mod adafactor;
pub mod attention;
mod binding;
pub mod blas;
pub mod cache;
pub mod compile;
pub mod cudnn;
pub mod driver;
mod element;
mod error;
pub mod functions;
pub mod gemm;
pub mod geometry;
mod kernel;
pub mod libraries;
pub mod modules;
pub mod nccl;
pub mod nvrtc;
pub mod order;
mod pieces;
pub mod probe;
pub mod source;
pub mod survey;
pub mod table;
pub mod tables;
mod walk;

pub use element::Element;
pub use error::{Error, Result};
pub use kernel::{Access, Dtypes, Instance, Kernel, Of, Param};
pub use pieces::Pieces;
pub use walk::Walk;

/// The examples of the page about the crate compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
