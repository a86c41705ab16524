//! What can go wrong between ranks.

use crate::call::Call;
use crate::ledger::{RankStatus, list, way_to};

/// The result of an operation between ranks.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the communication crate. After [`PeerFailed`](Error::PeerFailed), [`Mismatch`](Error::Mismatch) and
/// [`Timeout`](Error::Timeout) the run is over: every rank gets the first of them from every later collective. The ranks
/// they name are those of the whole world, also where a group of it met.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A rank died, aborted, or left while others waited for it.
    #[error("rank {rank} failed: {cause}")]
    PeerFailed {
        /// The rank that failed first.
        rank: usize,
        /// The reason that it gave, or what others saw.
        cause: String,
    },
    /// Two ranks called different collectives.
    #[error(
        "ranks called different collectives: {first}, but {other}; all ranks must call the same ones in the same order"
    )]
    Mismatch {
        /// What the lower rank called.
        first: Box<Call>,
        /// What the other rank called.
        other: Box<Call>,
    },
    /// A rank is alive but did not enter the collective in time.
    #[error("{waiting}, and waited {seconds:.1} s for {}{}", list(.missing), way_to(.missing))]
    Timeout {
        /// The collective of the rank that ran out of time.
        waiting: Box<Call>,
        /// How long it waited.
        seconds: f64,
        /// The ranks that are missing, and what each was doing.
        missing: Vec<RankStatus>,
    },
    /// Ranks that must hold the same value do not.
    #[error("ranks disagree on {what}: rank {} has {}, rank {} has {}", first.0, first.1, other.0, other.1)]
    Disagreement {
        /// What must be the same.
        what: String,
        /// The lowest rank and its value.
        first: (usize, u64),
        /// The first rank with another value, and that value.
        other: (usize, u64),
    },
    /// A wrong argument; nothing was sent.
    #[error("{operation}: expected {expected}, got {got}")]
    Argument {
        /// The operation.
        operation: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// What the launcher handed down cannot be trusted or used.
    #[error("cannot join the ranks of this machine: {0}")]
    Join(String),
    /// A variable of a launcher that is missing or malformed.
    #[error("{}: expected {expected}; check what the launcher, or a script between it and this program, sets", variable(.name, .value))]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value, if it is set.
        value: Option<String>,
        /// What its value should be.
        expected: String,
    },
    /// A launcher put the ranks of one world on several machines, and no transport connects them.
    #[error(
        "{launcher} started {world_size} ranks of which {local_world_size} are on this machine; {}, or start all of them here (--nnodes 1, --num_nodes 1)",
        several_machines()
    )]
    SeveralMachines {
        /// All ranks.
        world_size: usize,
        /// The ranks of this machine.
        local_world_size: usize,
        /// The launcher that started them.
        launcher: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was attempted.
        what: String,
        /// The reason that the operating system gives.
        cause: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, cause: impl std::fmt::Display) -> Error {
        Error::System { what: what.into(), cause: cause.to_string() }
    }
}

/// How ranks of several machines can meet.
fn several_machines() -> String {
    use crate::transport_kind::{HAS_MPI, gloo_obstacle};
    match (gloo_obstacle(), HAS_MPI) {
        (None, _) => {
            "ranks of several machines meet over Gloo, at the machine and port in MASTER_ADDR and MASTER_PORT: set both".into()
        }
        (Some(why), true) => format!(
            "ranks of several machines meet through MPI: start them with mpirun or srun (`deepspeed --launcher openmpi` calls \
             mpirun); or over Gloo: {why}"
        ),
        (Some(why), false) => format!(
            "ranks of several machines meet over Gloo: {why}; or through MPI: build with `cargo build --release --features mpi`, \
             and start them with mpirun or srun"
        ),
    }
}

fn variable(name: &str, value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| format!("{name} is not set"), |value| format!("{name}={value}"))
}
