//! What can go wrong between agents.

use oarlock_comm::wire::Denied;
use serde::{Deserialize, Serialize};

use oarlock_config::settings::Problem;

/// Something that must be the same on all nodes and is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Its name.
    pub what: String,
    /// On the node that wanted to join.
    pub joining: String,
    /// On the node of the store.
    pub store: String,
}

/// An error of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentsError {
    /// A setting that makes no sense.
    #[error("{what} is `{value}`; expected {expected}")]
    Setting {
        /// Its name at the command line.
        what: &'static str,
        /// What was written.
        value: String,
        /// What can be written.
        expected: String,
    },
    /// A token that is not taken.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Machines would meet at a public address, and anybody could join.
    #[error(
        "{endpoint} is a public address ({address}), and the run has no token: anybody could join it, read what it trains on and change the weights"
    )]
    Public {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// The address that it stands for.
        address: String,
    },
    /// No answer.
    #[error(
        "no agent answered at {endpoint} for {seconds} s: {tried}; {}", questions(.tried)
    )]
    Unreachable {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// How long was tried.
        seconds: u64,
        /// Each address, and why it did not answer.
        tried: String,
    },
    /// The store knows another secret.
    #[error(
        "the agents at {endpoint} have another run id or token; give all nodes the same --rdzv-id and the same token (OARLOCK_RDZV_TOKEN_FILE, OARLOCK_RDZV_TOKEN)"
    )]
    WrongToken {
        /// The host and port of the rendezvous.
        endpoint: String,
    },
    /// Somebody else has the port.
    #[error(
        "what answers at {endpoint} is not an agent of this run: {cause}; choose another port in --rdzv-endpoint, or start all nodes from one build"
    )]
    Stranger {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// What it did.
        cause: String,
    },
    /// Machine 0 has to listen where the others look for it.
    #[error(
        "the others look for the run at {endpoint}, and this machine, which keeps the list of nodes, cannot listen there: another program has port {port}; give all machines another one"
    )]
    NotHere {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// The port.
        port: u16,
    },
    /// The endpoint leads back to a machine that is not the one of the store.
    #[error(
        "{endpoint} is this machine itself, where no agent of the run listens ({tried}), and it is not the machine that keeps the list of nodes; give it an address of that one"
    )]
    Astray {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// Why nobody answered.
        tried: String,
    },
    /// Nodes that are not the same run.
    #[error("this node does not fit the run at {endpoint}: {}", list(.differences, "here", "there"))]
    Differs {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// All that differs.
        differences: Vec<Difference>,
    },
    /// The store will not have this node.
    #[error("the agents at {endpoint} refused this node: {reason}")]
    Refused {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// The store, or the way to it, is gone.
    #[error(
        "the agent at {endpoint}, which keeps the list of nodes, is lost: {cause}; the run cannot go on without it"
    )]
    StoreLost {
        /// The host and port of the rendezvous.
        endpoint: String,
        /// What was seen.
        cause: String,
    },
    /// The run ended before there was a next round.
    #[error("{reason}")]
    Ended {
        /// What ended it.
        reason: String,
    },
    /// The caller asked to stop.
    #[error("stopped while {waiting}")]
    Stopped {
        /// What it was waiting for.
        waiting: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was attempted.
        what: String,
        /// The operating system's word.
        cause: String,
    },
}

/// Of a name that stands for no machine, before the reason.
pub(super) const NO_ADDRESS: &str = "its name has no address";

/// What to look at where nobody answered.
fn questions(tried: &str) -> &'static str {
    match tried.starts_with(NO_ADDRESS) {
        true => "is this the name of the machine, and do /etc/hosts or a name server say so on this one?",
        false => {
            "is the agent on that machine running, is this its address, and does a firewall let the port through?"
        }
    }
}

/// All that differs, with the value of the joining node and that of the store, and the words for where each is.
pub(super) fn list(differences: &[Difference], joining: &str, store: &str) -> String {
    let one = |d: &Difference| format!("{} is `{}` {joining} and `{}` {store}", d.what, d.joining, d.store);
    differences.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl From<AgentsError> for crate::error::Error {
    /// What can be mended at the command line is a problem with the configuration.
    fn from(error: AgentsError) -> crate::error::Error {
        let help = match &error {
            AgentsError::Public { .. } => Some(
                "`oarlock token new > run.token`, copy it to every machine, and add --rdzv-conf token_file=run.token or set \
                 OARLOCK_RDZV_TOKEN_FILE=run.token; --insecure-rendezvous, --rdzv-conf insecure=1 or OARLOCK_RDZV_INSECURE=1 \
                 lets anybody join",
            ),
            AgentsError::Setting { .. } | AgentsError::Denied(_) => None,
            _ => return crate::error::Error::Other(Box::new(error)),
        };
        let problem = Problem::new(error.to_string());
        let problem = match help {
            Some(help) => problem.help(help),
            None => problem,
        };
        crate::error::Error::Library(oarlock::Error::Config(problem.into()))
    }
}
