//! What agents and the store say to each other once both have proved to know the secret: one JSON value a frame. Whatever
//! is read is printable: others choose its texts, also a store's for an agent.

use std::collections::BTreeMap;

use oarlock_comm::wire::printable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::Difference;

/// A node as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// A random name of its agent, by which it is known again after an outage of the network.
    pub id: String,
    /// The name of its machine.
    pub host: String,
    pub pid: u32,
    pub local_ranks: usize,
    /// Its place, where the nodes have numbers from the start.
    pub place: Option<usize>,
    /// What must be the same on all.
    pub same: BTreeMap<String, String>,
}

/// From an agent to the store; each has one reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum Request {
    /// The first, and only the first.
    Hello(Node),
    /// The ranks of this node have ended, if there were any: it can take part in a round after this one.
    Ready { after: u64 },
    /// What is there to know? The store may think about it for so long, while nothing changes.
    Look { wait_ms: u32 },
    /// A rank of this node failed in this round; where that is final, it would fail so again.
    Failed { round: u64, cause: String, is_final: bool },
    /// All ranks of this node ended well in this round.
    Done { round: u64 },
    /// The last.
    Leave,
}

/// From the store to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum Reply {
    Welcome,
    /// The node is known, and takes its place again on this connection.
    WelcomeBack,
    Differs(Vec<Difference>),
    Refused(String),
    View(View),
}

/// What a node is to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum View {
    /// The next round is not decided, or this node has no place in the present one.
    Waiting {
        here: usize,
    },
    /// It takes part.
    Works {
        round: u64,
        restart: u32,
        node_rank: usize,
        local_ranks: Vec<usize>,
        master_addr: String,
        master_port: u16,
        /// What sets the token of this round apart from others.
        nonce: String,
    },
    /// The round it took part in is over.
    Restart {
        reason: String,
    },
    Aborted {
        reason: String,
    },
    AllDone,
}

/// The text of a message.
pub(super) fn write(message: &impl Serialize) -> Vec<u8> {
    // Maps with string keys and numbers always have a text.
    serde_json::to_vec(message).unwrap_or_default()
}

/// The longest text in a message.
pub(super) const TEXT: usize = 2048;

/// A message from its text; `None` for anything else.
pub(super) fn read<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    serde_json::from_value(filtered(serde_json::from_slice(bytes).ok()?)).ok()
}

/// The same with printable texts.
fn filtered(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text, TEXT)),
        Value::Array(values) => values.into_iter().map(filtered).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (printable(&name, TEXT), filtered(value))).collect()
        }
        other => other,
    }
}
