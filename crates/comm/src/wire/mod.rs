//! Bytes between processes that know the same secret: a handshake of fixed size in which both prove that, the listening side
//! first, then frames of limited length, each with its proof. Nothing is parsed before its proof is right, and every read has
//! a limit.
//!
//! One side is the *store*, which listens, and the other the *agent*, which connects. Agents of a launch and ranks that meet
//! over Gloo speak so.

mod access;
mod bytes;
mod channel;
mod entrance;
mod hosts;
mod secret;

pub use access::{Access, Denied, ENCRYPTION, INSECURE, TOKEN, TOKEN_FILE, is_private, weakness};
pub use bytes::{Broken, PROMPT, hex, nonce, printable};
pub use channel::{Channel, MAX_FRAME};
pub use entrance::{Arrival, Entrance, PLACES};
pub use hosts::{Place, address_of, bare, listen_at, listen_everywhere, outer_addresses};
pub use secret::{DataKeys, Purpose, Secret};
