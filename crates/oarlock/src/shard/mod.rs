//! Who holds which part of the model's state, and how the parts come together: layout, units, the engine over them.

mod engine;
mod layout;
mod placement;
mod snapshot;
mod state;

pub use engine::{Engine, GradNorm, Options};
pub use layout::{BLOCK, Layout, LayoutParam};
pub use placement::Placement;
pub use snapshot::Snapshot;
pub use state::{SeededInit, Slice, WeightSource};
