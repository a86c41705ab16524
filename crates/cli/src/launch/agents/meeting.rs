//! What agents must know to meet: where, under which name and secret, how many, and how long to wait.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use oarlock_comm::wire::{Access, Place, Purpose, Secret, bare, is_private, outer_addresses};

use super::error::AgentsError;

/// Looks up a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

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
    /// What keeps others out.
    pub access: Access,
    /// How many nodes take part: at least, at most.
    pub nodes: RangeInclusive<usize>,
    /// The ranks of this node.
    pub local_ranks: usize,
    /// The number of this node, where nodes are numbered from the start: node 0 keeps the list, and all are awaited.
    pub place: Option<usize>,
    /// Whether this node keeps the list, where the user says so; otherwise that follows from the endpoint.
    pub is_host: Option<bool>,
    /// The address by which other machines reach this one, where the user says so: ranks meet there if this node keeps the list.
    pub local_addr: Option<String>,
    /// How often failures may restart the run, on all nodes together.
    pub max_restarts: u32,
    /// How long to wait for the least number of nodes.
    pub join_timeout: Duration,
    /// How long to wait for more when the least number is here.
    pub last_call: Duration,
    /// How often a node shows that it lives; after three times this it counts as lost, unless outages may last longer.
    pub keep_alive: Duration,
    /// How long the network may be gone, where no interval of signs of life is asked for.
    pub outage: Option<Duration>,
    /// What must be the same on all nodes, by name: fingerprints of files, the command. This program's version and the
    /// settings of the meeting are compared as well.
    pub same: BTreeMap<String, String>,
    /// Whether ranks encrypt what they send to other machines, if the run has a token.
    pub encryption: bool,
    /// Told, on the machine that keeps the list of nodes, who was refused and why.
    pub report: fn(&str),
}

impl Meeting {
    /// A meeting with the originals' times: 600 s to join, 30 s of last call, a sign of life every 5 s.
    pub fn new(endpoint: (String, u16), run_id: String, nodes: RangeInclusive<usize>) -> Meeting {
        Meeting {
            endpoint,
            run_id,
            access: Access::default(),
            nodes,
            local_ranks: 1,
            place: None,
            is_host: None,
            local_addr: None,
            max_restarts: 0,
            join_timeout: Duration::from_secs(600),
            last_call: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            outage: None,
            same: BTreeMap::new(),
            encryption: true,
            report: |_| (),
        }
    }

    /// Takes the settings of `--rdzv-conf`, `key=value,key=value`, into the meeting, and the token from the variables
    /// OARLOCK_RDZV_TOKEN and OARLOCK_RDZV_TOKEN_FILE, which `read` looks up.
    ///
    /// # Errors
    /// At the first that makes no sense, when a token is weak, and when there are two.
    pub fn configure(&mut self, text: &str, read: Lookup) -> Result<(), AgentsError> {
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let wrong = |expected: &str| AgentsError::Setting {
                what: "--rdzv-conf",
                value: word.into(),
                expected: expected.into(),
            };
            let (key, value) = word.split_once('=').ok_or_else(|| wrong("key=value,key=value"))?;
            let seconds = || -> Result<Duration, AgentsError> {
                let whole = value.trim().parse::<u32>().ok().filter(|&seconds| seconds > 0);
                let seconds = whole.ok_or_else(|| wrong("whole seconds, at least 1"))?;
                Ok(Duration::from_secs(u64::from(seconds)))
            };
            let switch = || match value.trim() {
                "0" | "false" => Ok(false),
                "1" | "true" => Ok(true),
                _ => Err(wrong("0 or 1 behind it")),
            };
            match key.trim() {
                "timeout" | "join_timeout" => self.join_timeout = seconds()?,
                "last_call_timeout" => self.last_call = seconds()?,
                "keep_alive_interval" => (self.keep_alive, self.outage) = (seconds()?, None),
                "token" => self.access.take("--rdzv-conf token", value)?,
                "token_file" => self.access.take_file("--rdzv-conf token_file", value.trim().as_ref())?,
                "insecure" => self.access.insecure |= switch()?,
                "encryption" => self.encryption = switch()?,
                "is_host" => self.is_host = Some(switch()?),
                "local_addr" => {
                    let address = bare(value.trim());
                    if !is_host(address) {
                        return Err(wrong("the name or the address of a machine behind it"));
                    }
                    self.local_addr = Some(address.to_owned());
                }
                // Known to torchrun; here it follows from the times above.
                "store_type"
                | "read_timeout"
                | "close_timeout"
                | "heartbeat_timeout"
                | "keep_alive_max_attempt"
                | "rank" => {}
                _ => {
                    return Err(wrong(
                        "one of join_timeout, last_call_timeout, keep_alive_interval, is_host, local_addr, token_file, token, insecure, \
                         encryption, or another key of torchrun",
                    ));
                }
            }
        }
        Ok(self.access.variables(read)?)
    }

    /// What the user should know about who can join: one line where there is no token, and what is wrong with its file.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.access.warnings.clone();
        if self.access.token.is_none() && *self.nodes.end() > 1 {
            warnings.push(format!(
                "no token: anybody who reaches {} can join this run, read what it trains on and change the weights; to keep \
                 others out: `oarlock token new > run.token`, copy it to every machine, and add \
                 --rdzv-conf token_file=run.token or set OARLOCK_RDZV_TOKEN_FILE=run.token",
                self.name()
            ));
        }
        warnings
    }

    /// Whether agents come from private addresses alone: there is no token, and nobody has said that it does not matter.
    pub(super) fn only_private(&self) -> bool {
        self.access.token.is_none() && !self.access.insecure
    }

    /// Refuses an address of the endpoint at which machines may not meet.
    pub(super) fn check_address(&self, ip: std::net::IpAddr) -> Result<(), AgentsError> {
        match self.only_private() && *self.nodes.end() > 1 && !is_private(ip) {
            true => Err(AgentsError::Public { endpoint: self.name(), address: ip.to_string() }),
            false => Ok(()),
        }
    }

    /// Whether this node keeps the list of nodes, or another one does; `None` where that follows from the endpoint, whether it is
    /// an address of this machine.
    pub(super) fn keeps(&self) -> Option<bool> {
        // Where nodes are numbered, torchrun looks at nothing else.
        self.place.map_or(self.is_host, |place| Some(place == 0))
    }

    /// How others find this node by the endpoint, whose place is this, where its name does not say it; `None` where it does, or
    /// another node keeps the list.
    pub(super) fn how_found(&self, place: &Place) -> Option<String> {
        let keeps = self.keeps();
        let what = match place {
            _ if *self.nodes.end() == 1 => return None,
            Place::Itself(_) if keeps != Some(false) => {
                "means this machine only here, so other machines need another name of it"
            }
            Place::Elsewhere(_) if keeps == Some(true) => {
                "is not an address of this machine, so a Service or NAT has to lead there"
            }
            Place::Unknown(_) if keeps == Some(true) => "has no address here",
            _ => return None,
        };
        let (host, addresses) = (&self.endpoint.0, outer_addresses());
        Some(format!("{host} {what}; the list is kept at all addresses of this machine: {addresses}"))
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

    /// How long a node may be silent until it counts as lost.
    pub(super) fn silence(&self) -> Duration {
        self.outage.unwrap_or(self.keep_alive * 3)
    }

    /// How long a node tries to reach the store again. Where it may come back to a later round, it has the time that the others wait
    /// for it.
    pub(super) fn patience(&self) -> Duration {
        let comes_back = self.place.is_none() || self.max_restarts > 0;
        self.silence() + if comes_back { self.join_timeout } else { Duration::ZERO }
    }

    /// What agents prove to know.
    pub(super) fn secret(&self) -> Secret {
        Secret::new(Purpose::Agents, self.access.token.as_deref().unwrap_or_default(), &self.run_id)
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
        if self.run_id.is_empty() {
            let expected = "a word that is the same on all nodes".into();
            return Err(AgentsError::Setting { what: "--rdzv-id", value: String::new(), expected });
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

/// Whether a text can be the name or the address of a machine; ranks have it in their environment.
pub(super) fn is_host(text: &str) -> bool {
    endpoint(text).is_ok_and(|(host, _)| host == text)
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
