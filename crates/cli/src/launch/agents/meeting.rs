//! What agents must know to meet: where, under which name and secret, how many, and how long to wait.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::AgentsError;

/// Looks up a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variable with the secret of a run. Unlike an argument, other users of the machine do not see it.
pub const TOKEN: &str = "OARLOCK_RDZV_TOKEN";
/// The port where the endpoint names none.
const PORT: u16 = 29400;
/// The most nodes of a run, and ranks of a node.
pub(super) const MOST: usize = 4096;

/// A meeting of agents. All nodes of a run describe the same one, but for their own ranks.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The host and port of the rendezvous. The agent that can listen there keeps the list of nodes. Port 0, any that is
    /// free, is for a single node.
    pub endpoint: (String, u16),
    /// The name of the run.
    pub run_id: String,
    /// The secret of the run; without one the name is the secret.
    pub token: Option<String>,
    /// How many nodes take part: at least, at most.
    pub nodes: RangeInclusive<usize>,
    /// The ranks of this node.
    pub local_ranks: usize,
    /// The number of this node, where nodes are numbered from the start: node 0 keeps the list, and all are awaited.
    pub place: Option<usize>,
    /// How often failures may restart the run, on all nodes together.
    pub max_restarts: u32,
    /// How long to wait for the least number of nodes.
    pub join_timeout: Duration,
    /// How long to wait for more when the least number is here.
    pub last_call: Duration,
    /// How often a node shows that it lives; after three times this it counts as lost.
    pub keep_alive: Duration,
    /// What must be the same on all nodes, by name: fingerprints of files, the command. This program's version and the
    /// settings of the meeting are compared as well.
    pub same: BTreeMap<String, String>,
}

impl Meeting {
    /// A meeting with the originals' times: 600 s to join, 30 s of last call, a sign of life every 5 s.
    pub fn new(endpoint: (String, u16), run_id: String, nodes: RangeInclusive<usize>) -> Meeting {
        Meeting {
            endpoint,
            run_id,
            token: None,
            nodes,
            local_ranks: 1,
            place: None,
            max_restarts: 0,
            join_timeout: Duration::from_secs(600),
            last_call: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            same: BTreeMap::new(),
        }
    }

    /// Takes the settings of `--rdzv-conf`, `key=value,key=value`, into the meeting, and the token from the variable
    /// OARLOCK_RDZV_TOKEN, which `read` looks up.
    ///
    /// # Errors
    /// At the first that makes no sense, and when there are two tokens.
    pub fn configure(&mut self, text: &str, read: Lookup) -> Result<(), AgentsError> {
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let wrong = |expected: &str| AgentsError::Setting {
                what: "--rdzv-conf",
                value: word.into(),
                expected: expected.into(),
            };
            let (key, value) = word.split_once('=').ok_or_else(|| wrong("key=value,key=value"))?;
            let seconds = || {
                let whole = value.trim().parse::<u32>().ok().filter(|&seconds| seconds > 0);
                let seconds = whole.ok_or_else(|| wrong("whole seconds, at least 1"))?;
                Ok(Duration::from_secs(u64::from(seconds)))
            };
            match key.trim() {
                "timeout" | "join_timeout" => self.join_timeout = seconds()?,
                "last_call_timeout" => self.last_call = seconds()?,
                "keep_alive_interval" => self.keep_alive = seconds()?,
                "token" => self.token = Some(value.to_owned()),
                // Known to torchrun; here who listens follows from the address, and the rest from the times above.
                "is_host"
                | "store_type"
                | "read_timeout"
                | "close_timeout"
                | "heartbeat_timeout"
                | "keep_alive_max_attempt"
                | "rank"
                | "local_addr" => {}
                _ => {
                    return Err(wrong(
                        "one of join_timeout, last_call_timeout, keep_alive_interval, token, or another key of torchrun",
                    ));
                }
            }
        }
        match (read(TOKEN).filter(|token| !token.is_empty()), &self.token) {
            (Some(variable), Some(written)) if variable != *written => Err(AgentsError::Setting {
                what: "token= of --rdzv-conf",
                // No secret is shown.
                value: "…".into(),
                expected: format!("the same as {TOKEN}, or only one of the two"),
            }),
            (Some(variable), _) => {
                self.token = Some(variable);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// A note for the user if the secret is weak.
    pub fn note(&self) -> Option<String> {
        let weak = self.token.is_none() && *self.nodes.end() > 1;
        weak.then(|| {
            "agents prove to each other that they know the run id; whoever can guess it can join. Set the same \
             OARLOCK_RDZV_TOKEN, or --rdzv-conf token=…, on all nodes"
                .to_owned()
        })
    }

    /// Whom this node will wait for, and how long, if it may have to.
    pub fn waits(&self) -> Option<String> {
        let (least, most) = (*self.nodes.start(), *self.nodes.end());
        let (name, all, more) = (self.name(), self.join_timeout.as_secs(), self.last_call.as_secs());
        (most > 1).then(|| match least == most {
            true => format!("{most} nodes meet at {name}; all are awaited {all} s"),
            false => format!(
                "{least} to {most} nodes meet at {name}; the least number is awaited {all} s, more of them {more} s"
            ),
        })
    }

    /// The secret of the run.
    pub(super) fn secret(&self) -> &str {
        self.token.as_deref().unwrap_or(&self.run_id)
    }

    pub(super) fn name(&self) -> String {
        let (host, port) = &self.endpoint;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Refuses what no meeting can be.
    pub(super) fn check(&self) -> Result<(), AgentsError> {
        let (min, max) = (*self.nodes.start(), *self.nodes.end());
        if min < 1 || max < min || max > MOST {
            return Err(wrong_nodes(&format!("{min}:{max}")));
        }
        if !(1..=MOST).contains(&self.local_ranks) {
            let (value, expected) = (self.local_ranks.to_string(), format!("1 to {MOST}"));
            return Err(AgentsError::Setting { what: "--nproc-per-node", value, expected });
        }
        for (what, value) in
            [("--rdzv-id", &self.run_id), ("the token of the run", &self.secret().to_owned())]
        {
            if value.is_empty() {
                let expected = "a word that is the same on all nodes".into();
                return Err(AgentsError::Setting { what, value: String::new(), expected });
            }
        }
        if let Some(place) = self.place.filter(|place| *place >= max) {
            let (value, expected) = (place.to_string(), format!("a number below {max}"));
            return Err(AgentsError::Setting { what: "the number of this machine", value, expected });
        }
        // Who is alone may leave the choice to the system; others could not know it.
        if self.endpoint.1 == 0 && max > 1 {
            return Err(wrong_endpoint(&self.name()));
        }
        Ok(())
    }
}

fn wrong_nodes(value: &str) -> AgentsError {
    let expected = format!("N or MIN:MAX, from 1 to {MOST}");
    AgentsError::Setting { what: "--nnodes", value: value.into(), expected }
}

fn wrong_endpoint(value: &str) -> AgentsError {
    let expected = "host or host:port, with brackets around an IPv6 address".into();
    AgentsError::Setting { what: "--rdzv-endpoint", value: value.into(), expected }
}

/// The host and port of `--rdzv-endpoint`: `host`, `host:port`, `[::1]:port`.
///
/// # Errors
/// When it is none of these.
pub fn endpoint(text: &str) -> Result<(String, u16), AgentsError> {
    let wrong = || wrong_endpoint(text);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(wrong)?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        // An address of more than one colon is not followed by a port.
        None if text.matches(':').count() > 1 => (text, ""),
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = match port {
        "" if !text.ends_with(':') => PORT,
        port => port.parse().ok().filter(|&port| port != 0).ok_or_else(wrong)?,
    };
    let word = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
    match !host.is_empty() && host.len() <= 255 && host.chars().all(word) {
        true => Ok((host.to_owned(), port)),
        false => Err(wrong()),
    }
}

/// The numbers of `--nnodes`: `N` or `MIN:MAX`.
///
/// # Errors
/// When it is neither.
pub fn nodes(text: &str) -> Result<RangeInclusive<usize>, AgentsError> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let range = match text.split_once(':') {
        Some((min, max)) => number(min).zip(number(max)),
        None => number(text).map(|n| (n, n)),
    };
    let range = range.filter(|&(min, max)| 1 <= min && min <= max && max <= MOST);
    range.map(|(min, max)| min..=max).ok_or_else(|| wrong_nodes(text))
}
