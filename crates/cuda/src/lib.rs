//! The CUDA kernels of Oarlock: their sources, a table of what they take, and their compilation at run time.
//!
//! The kernels are written in the words of `kernels/words.h`, which mean instructions of a GPU under NVRTC and calls of
//! an emulator under a C++ compiler. The tests run every kernel in the emulator, so they need no GPU. The crate itself
//! needs neither CUDA nor a C++ compiler: libnvrtc is looked for when the first kernel is compiled.

pub mod attention;
pub mod blas;
pub mod cache;
pub mod driver;
mod element;
mod error;
pub mod functions;
pub mod geometry;
mod kernel;
pub mod libraries;
pub mod modules;
pub mod nvrtc;
pub mod source;
pub mod table;
mod walk;

pub use element::Element;
pub use error::{Error, Result};
pub use kernel::{Access, Dtypes, Instance, Kernel, Of, Param};
pub use walk::Walk;
