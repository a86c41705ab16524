//! Matrices taken apart: eigenvalues, singular values and orthogonal vectors, for optimizers of low rank, PiSSA and orthogonal
//! initialization.

mod eigen;
pub mod orthogonal;
pub mod singular;
