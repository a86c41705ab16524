//! Communication between GPUs by NCCL.
//!
//! One rank makes a [`UniqueId`] and gives it to all, each of which makes its [`Comm`] of it. A collective runs in the order
//! of the stream that it is given, when all ranks have come to it; an event has to order it behind work of other streams.
//!
//! Nothing here waits without an end. Communicators are nonblocking, what a call waits for has a [`Patience`], and
//! [`Comm::wait`] and [`Comm::synchronize`] look at the other ranks while they wait for a stream. Whatever fails aborts the
//! communicator: the GPU then gives up what hangs, and other ranks learn of it.

mod api;
mod collective;
mod comm;
mod end;
mod error;
mod group;
mod id;
mod library;

pub use collective::Reduction;
pub use comm::{Comm, Patience};
pub use error::NcclError;
pub use group::Group;
pub use id::UniqueId;
pub use library::Nccl;
