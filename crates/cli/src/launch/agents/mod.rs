//! The agents of a run on several machines: one on each, which agree who takes part in every round. How they do, and the
//! numbered invariants: see `README.md` beside this file.

mod agent;
mod error;
mod link;
mod meeting;
mod message;
mod round;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub use agent::Agent;
pub use error::{AgentsError, Difference};
pub use meeting::{Meeting, endpoint, nodes};
pub use round::{Decision, Event, Round};

/// A name that nobody guesses, for a run whose machines this process starts.
///
/// # Errors
/// When the system has no random bytes.
pub fn random_name() -> Result<String, AgentsError> {
    let name = oarlock_comm::wire::nonce().map(|bytes| oarlock_comm::wire::hex(&bytes[..16]));
    name.map_err(|broken| AgentsError::System { what: "name the run".into(), cause: broken.to_string() })
}
