//! The tests of the crate: goldens of ggml, hostile files, what is written, mixes and importance matrices.

mod blocks;
mod common;
mod golden;
mod hostile;
mod importance;
mod mixes;
mod writing;
