//! Who holds which part of the model's state, and how the parts are gathered.
//!
//! `placement` says what is sharded, `mesh` among whom, `layout` who owns what. A `group` holds the parameters of a unit
//! with their homes. During a step `schedule` says what happens around the passes of a unit, in which order, and nothing else
//! says so: `hooks` carries it out on what `passes` has open, where `gather` brings weights and `reduce` sums gradients;
//! `step` updates, through `staging` what is offloaded, and `publish` brings the new weights to all.
//! `engine` is what the rest of the crate sees; `alone` has its steps of single ranks. Two rooms stand apart, for what few runs
//! use: `compressed` has what travels in few bits, and `local_sgd` what ranks do that meet now and then.

mod alone;
mod column;
mod compressed;
mod early;
mod engine;
mod finite;
mod gather;
mod group;
mod hooks;
mod in_flight;
mod layout;
mod local_sgd;
mod mesh;
mod norm;
mod operands;
mod order;
mod passes;
mod placement;
mod plan;
mod pool;
mod publish;
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
pub use local_sgd::{Outer, OuterStep};
pub use mesh::Mesh;
pub use norm::GradNorm;
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
