//! The planner: how long a step of a training run takes, for every placement, before it is started.
//!
//! [`measure`] times the kernels and the collectives of this machine on a shortened model, in seconds; what it finds is a
//! [`Profile`], a plain value that is saved as JSON. All else is a pure function of it: [`Facts`] are what is known of the
//! training, [`choices`] lists what can be chosen, and [`predict`] follows a step of one choice through the passes of the
//! engine ([`step`]), the schedule of a pipeline ([`pipeline`]) and the links between machines ([`network`]).
//!
//! docs/planner.md has the formulas.

mod choice;
mod choices;
mod facts;
mod link;
mod measure;
pub mod network;
pub mod pipeline;
mod power;
mod predict;
mod profile;
pub mod step;

#[cfg(test)]
mod tests;

pub use choice::Choice;
pub use choices::{choices, recommended};
pub use facts::Facts;
pub use link::measure_network;
pub use measure::{measure, subject};
pub use network::Network;
pub use predict::{Cluster, Prediction, predict};
pub use profile::{Halves, Line, PassTimes, Profile, Subject};
