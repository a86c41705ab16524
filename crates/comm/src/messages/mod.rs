//! Collectives over a library of point-to-point messages: MPI or Gloo. `README.md` beside this file has the protocol and its
//! numbered invariants.

mod ahead;
mod exchange;
mod gather;
mod headers;
mod join;
mod layout;
mod library;
mod member;
mod notice;
mod pieces;
mod rank_info;
mod shared_buffer;
mod sum;
mod transport;
mod world;

pub(crate) use join::join;
pub(crate) use library::{ByteSpan, InFlight, Library, Lost, Message, NOTICES};
