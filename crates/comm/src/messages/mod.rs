//! Collectives over a library of point-to-point messages: MPI or Gloo. `README.md` beside this file has the protocol and its
//! numbered invariants.

mod exchange;
mod headers;
mod join;
mod library;
mod member;
mod notice;
mod rank_info;
mod transport;
mod world;

pub(crate) use join::join;
pub(crate) use library::{ByteSpan, InFlight, Library, Lost, Message, NOTICES};
