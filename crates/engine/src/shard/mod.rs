//! Who holds which part of the model's state, and how the parts are gathered.
//!
//! `placement` says what is sharded, `mesh` among whom, `layout` who owns what. A `group` holds the parameters of a unit
//! with their homes. During a step `passes` says what happens around the passes of a unit: `gather` brings its weights,
//! `reduce` sums its gradients, `quantized` is how either travels in few bits; `step` updates (`one_bit` where ranks exchange
//! signs), through `staging` what is offloaded, and `publish` brings the new weights to all.
//! `engine` is what the rest of the crate sees; `alone` has its steps of single ranks.

mod alone;
mod average;
mod column;
mod engine;
mod finite;
mod gather;
mod group;
mod in_flight;
mod layout;
mod mesh;
mod one_bit;
mod order;
mod outer;
mod passes;
mod placement;
mod pool;
mod publish;
mod quantized;
mod reduce;
mod source;
mod stage;
mod staging;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod ties;
mod topology;

pub use engine::{Engine, GradNorm, Resident};
pub use finite::{Findings, Unfit, check_range};
pub use layout::in_order_on;
pub(crate) use layout::runs;
pub use layout::{BLOCK, Grain, Layout, LayoutParam, role_of};
pub use outer::{Outer, OuterStep};
pub(crate) use placement::check_stage;
pub use placement::{
    Gather, Lifetime, Offload, Placement, Placements, Quantized, ShardingConfig, Untouched, check_sharding,
};
pub use source::{ParamSlice, SeededInit, WeightSource};
pub use stage::Stage;
pub use state::{MASTER, Slice, Snapshot};
pub use step::ParamGroup;
pub use topology::{DATA, PIPE, Topology};
