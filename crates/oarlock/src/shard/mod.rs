//! Who holds which part of the model's state, and how the parts come together.
//!
//! `placement` says what is divided, `mesh` among whom, `layout` who owns what. A `group` holds the parameters of a unit
//! with their homes; `passes` gathers and reduces during a step, `step` updates, `engine` is what the rest of the crate
//! sees.

mod column;
mod engine;
mod group;
mod layout;
mod mesh;
mod passes;
mod placement;
mod source;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod windows;

pub use engine::{Engine, GradNorm, Resident};
pub use layout::{BLOCK, Grain, Layout, LayoutParam};
pub use placement::{Gather, Lifetime, Offload, Options, Placement, Placements};
pub use source::{SeededInit, WeightSource};
pub use state::{MASTER, Slice, Snapshot};
