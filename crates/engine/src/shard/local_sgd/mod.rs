//! Ranks that step alone and meet now and then: local SGD, whose ranks take the mean of their weights (`average`), and
//! DiLoCo, which steps along what they have moved (`outer`).

mod average;
mod outer;

pub use outer::{Outer, OuterStep};
