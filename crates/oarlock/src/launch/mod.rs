//! What starts ranks on one machine, for [`crate::distributed`] and for launchers: a rank's place with the variables of
//! torchrun, a free port, and why a process ended.

pub mod devices;
mod memory;
mod place;
pub mod port;

pub use memory::Memory;
pub use place::Place;
