//! The programs of README.md and of the pages in docs/, as tests. All blocks of Rust compile. Those with a `main` run in f32
//! and in bf16, on one rank and on three.

#[cfg(test)]
mod tests;
