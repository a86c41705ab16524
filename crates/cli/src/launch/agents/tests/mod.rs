//! Tests of the agents: the rules with a clock of their own, the bytes, and several agents on one machine.

mod meetings;
mod namespaces;
mod rounds;
mod strangers;
mod words;

use std::net::TcpListener;
use std::time::Duration;

use super::Meeting;

/// A meeting at a port of its own, with times that a test can wait for.
fn meeting(nodes: std::ops::RangeInclusive<usize>) -> Meeting {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut meeting = Meeting::new(("127.0.0.1".into(), port), "run 7".into(), nodes);
    meeting.join_timeout = Duration::from_secs(20);
    meeting.last_call = Duration::from_millis(200);
    meeting.keep_alive = Duration::from_secs(2);
    meeting
}
