//! Ranks of several machines over Gloo: the messages of [`messages`](crate::messages) through Gloo's TCP transport. `README.md`
//! beside this file says how the ranks meet, with numbered invariants.

mod door;
mod guests;
mod library;
mod meeting;
mod mesh;
mod sealed;

use crate::communicator::Communicator;
use crate::error::Result;
use crate::launched::{Launched, join_limit};
use crate::messages::{self, Library};
use library::Gloo;
use meeting::Meeting;

/// Joins the ranks that a launcher started on several machines; returns when all have joined. If the wait is long, `notify` is
/// called once with the reason.
pub(crate) fn join(place: &Launched, notify: &dyn Fn(&str)) -> Result<Communicator> {
    let limit = join_limit()?;
    messages::join(place, limit, || {
        let (links, address) = Meeting::new(place, limit)?.connect(notify)?;
        Ok(Box::new(Gloo::new(place.rank, links, address)?) as Box<dyn Library>)
    })
}
