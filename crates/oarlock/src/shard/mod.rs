//! Who holds which part of the model's state, and how the parts come together.
//!
//! `placement` says what is divided, `mesh` among whom, `layout` who owns what. A `group` holds the parameters of a unit
//! with their homes. During a step `passes` opens and closes units, called through `hooks`; `reduce` sums gradients and
//! `step` updates. `engine` is what the rest of the crate sees.

mod average;
mod column;
mod engine;
mod group;
mod hooks;
mod layout;
mod mesh;
mod order;
mod passes;
mod placement;
mod reduce;
mod source;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod windows;

pub use engine::{Engine, GradNorm, Resident};
pub use layout::{BLOCK, Grain, Layout, LayoutParam};
pub use placement::{Gather, Lifetime, Offload, Options, Placement, Placements, Untouched};
pub use source::{SeededInit, WeightSource};
pub use state::{MASTER, Slice, Snapshot};
pub use step::ParamGroup;
