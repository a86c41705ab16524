//! Who holds which part of the model's state, and how the parts are gathered.
//!
//! `placement` says what is sharded, `mesh` among whom, `layout` who owns what. A `group` holds the parameters of a unit
//! with their homes. During a step `schedule` says what happens around the passes of a unit, in which order, and nothing else
//! says so: `hooks` carries it out on what `passes` has open, where `gather` brings weights, `reduce` sums gradients, and
//! `quantized` is how either travels in few bits; `step` updates (`one_bit` where ranks exchange
//! signs), through `staging` what is offloaded, and `publish` brings the new weights to all.
//! `engine` is what the rest of the crate sees; `alone` has its steps of single ranks.

mod alone;
mod average;
mod column;
mod early;
mod engine;
mod finite;
mod gather;
mod group;
mod hooks;
mod in_flight;
mod layout;
mod mesh;
mod norm;
mod one_bit;
mod operands;
mod order;
mod outer;
mod passes;
mod placement;
mod plan;
mod pool;
mod publish;
mod quantized;
mod reduce;
mod schedule;
mod source;
mod stage;
mod staging;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod ties;
mod topology;

pub use engine::{Engine, Resident};
pub use finite::{Findings, Unfit, check_range};
pub use layout::in_order_on;
pub(crate) use layout::runs;
pub use layout::{BLOCK, Grain, Layout, LayoutParam, role_of};
pub use mesh::Mesh;
pub use norm::GradNorm;
pub use outer::{Outer, OuterStep};
pub(crate) use placement::check_stage;
pub use placement::{
    Gather, Lifetime, Offload, Placement, Placements, Quantized, ShardingConfig, Untouched, check_sharding,
};
pub use plan::{GradientUse, GroupUse, Plan, UnitUse};
pub use schedule::{DryRun, Executor, Schedule};
pub use source::{ParamSlice, SeededInit, WeightSource};
pub use stage::Stage;
pub use state::{MASTER, Slice, Snapshot};
pub use step::ParamGroup;
pub use topology::{Axis, Topology};
