//! What to start: how many ranks on how many machines, how they find each other, and what surrounds each of them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use oarlock_comm::wire::bare;
use oarlock_engine::distributed::launch::WorkerEnv;

/// A launch, as every front end describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The machines and their ranks.
    pub nodes: Nodes,
    /// Where rank 0 of the run listens, for programs that meet there.
    pub master: Master,
    /// Further settings of how machines meet (`--rdzv-conf`): `KEY=VALUE,…`.
    pub rdzv_conf: String,
    /// Names the run (`TORCHELASTIC_RUN_ID`).
    pub run_id: String,
    /// The role of the ranks (`ROLE_NAME`).
    pub role: String,
    /// Starting again after a failure.
    pub restarts: Restarts,
    /// `OMP_NUM_THREADS` of a rank; `None`: what the environment says, else one where there are several ranks.
    pub threads: Option<usize>,
    /// The cores of a rank.
    pub binding: Binding,
    /// Where the output of ranks goes.
    pub output: Output,
    /// Variables for every rank, beside those of the contract.
    pub env: Vec<(String, String)>,
    /// The variables that DeepSpeed's launcher sets, too (`LOCAL_SIZE`, `CROSS_RANK`, `CROSS_SIZE`).
    pub deepspeed_env: bool,
    /// One process without the variables of ranks.
    pub alone: bool,
    /// Each rank gets `--local_rank=N` as its first argument.
    pub local_rank_argument: bool,
    /// Each rank sees one GPU, its own, and has local rank 0.
    pub virtual_local_rank: bool,
    /// From SIGTERM to SIGKILL when ranks are to end.
    pub grace: Duration,
    /// How long all ranks may be stopped before the user is told.
    pub stopped_notice: Duration,
    /// The signals that are handed on to the ranks.
    pub signals: Vec<i32>,
    /// Says nothing that is not an error.
    pub quiet: bool,
    /// Machines that are known may have other numbers of ranks than this one: they meet to tell each other, as under torchrun.
    pub meets: bool,
    /// What must be the same on all machines of a training run, by name.
    pub same: Vec<(String, String)>,
}

/// The machines of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Nodes {
    /// Known ones, each of which is started with its own number.
    Static {
        /// The ranks of each machine.
        ranks: Vec<usize>,
        /// Which machine this is.
        this: usize,
    },
    /// Between so many and so many, which meet at an endpoint and may come and go.
    Elastic {
        /// The ranks of this machine.
        ranks: usize,
        /// How few and how many.
        count: RangeInclusive<usize>,
        /// Host and port of the store.
        endpoint: (String, u16),
    },
}

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Host.
    pub addr: String,
    /// Port; 0 takes a free one.
    pub port: u16,
}

/// Starting again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// How often.
    pub max: u32,
    /// How often the ranks are looked at.
    pub monitor_interval: Duration,
}

/// The cores of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The system decides.
    None,
    /// Each rank has its share of the cores of this process.
    Share,
    /// Each rank has its share of these cores.
    Of(Vec<usize>),
    /// Each rank has all cores that are near to its share.
    SharedBy(Locality),
}

/// What cores that are near to each other share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// Memory (a NUMA node).
    Node,
    /// A socket.
    Socket,
    /// The last cache.
    Cache,
}

/// Where the output of ranks goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The folder of logs.
    pub log_dir: Option<PathBuf>,
    /// Streams that go into files instead, by local rank.
    pub redirects: PerRank,
    /// Streams that go into files as well, by local rank.
    pub tee: PerRank,
    /// The local ranks whose output is shown; `None`: all.
    pub only: Option<Vec<usize>>,
    /// Each line shown begins with the rank that wrote it.
    pub prefix: bool,
    /// What it then begins with, if not `[${role_name}${local_rank}]:`; `${rank}` is also filled in.
    pub mark: Option<String>,
    /// Lines of standard output, and of standard error, that hold one of these words are also in a file of their own.
    pub filters: [Vec<String>; 2],
}

/// Which streams of which local rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerRank {
    /// What holds for a rank that is not in the list.
    pub all: Streams,
    /// What holds for single ranks.
    pub ranks: Vec<(usize, Streams)>,
}

/// Standard output, standard error, both or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard output.
    pub out: bool,
    /// Standard error.
    pub err: bool,
}

impl PerRank {
    /// Reads torch's `Std` numbers, 0 none, 1 stdout, 2 stderr, 3 both: `3`, or by local rank `0:3,1:1`.
    pub fn parse(text: &str) -> Option<PerRank> {
        let streams = |text: &str| match text.trim() {
            "0" => Some(Streams { out: false, err: false }),
            "1" => Some(Streams { out: true, err: false }),
            "2" => Some(Streams { out: false, err: true }),
            "3" => Some(Streams { out: true, err: true }),
            _ => None,
        };
        if !text.contains(':') {
            return Some(PerRank { all: streams(text)?, ranks: Vec::new() });
        }
        let pair = |pair: &str| {
            let (rank, of) = pair.split_once(':')?;
            Some((rank.trim().parse().ok()?, streams(of)?))
        };
        // The last entry of a rank counts.
        Some(PerRank { all: Streams::default(), ranks: text.rsplit(',').map(pair).collect::<Option<_>>()? })
    }

    /// The streams of a local rank.
    pub fn of(&self, local_rank: usize) -> Streams {
        self.ranks.iter().find(|(rank, _)| *rank == local_rank).map_or(self.all, |(_, streams)| *streams)
    }
}

impl Master {
    /// A host as it is written, where an address of IPv6 may have brackets, and a port.
    pub fn at(host: &str, port: u16) -> Master {
        Master { addr: bare(host).to_owned(), port }
    }
}

impl Launch {
    /// The ranks of this machine.
    pub fn local_ranks(&self) -> usize {
        match &self.nodes {
            Nodes::Static { ranks, this } => ranks.get(*this).copied().unwrap_or(0),
            Nodes::Elastic { ranks, .. } => *ranks,
        }
    }

    /// The machines, as many as may come.
    pub fn machines(&self) -> usize {
        match &self.nodes {
            Nodes::Static { ranks, .. } => ranks.len(),
            Nodes::Elastic { count, .. } => *count.end(),
        }
    }

    /// The environment of a rank in the first round, as far as it is known before the machines have met: of an elastic
    /// run as if the fewest machines came, all like this one.
    pub fn worker(&self, node_rank: usize, local_rank: usize) -> WorkerEnv {
        let (local_ranks, master) = match &self.nodes {
            Nodes::Static { ranks, .. } => (ranks.clone(), (self.master.addr.clone(), self.master.port)),
            Nodes::Elastic { ranks, count, endpoint, .. } => (vec![*ranks; *count.start()], endpoint.clone()),
        };
        WorkerEnv { local_rank, node_rank, local_ranks, restart: 0, master }
    }

    /// So many ranks on this machine, with defaults for everything else.
    pub fn local(n_ranks: usize) -> Launch {
        Launch {
            nodes: Nodes::Static { ranks: vec![n_ranks], this: 0 },
            master: Master { addr: "127.0.0.1".to_owned(), port: 29500 },
            rdzv_conf: String::new(),
            run_id: "none".to_owned(),
            role: "default".to_owned(),
            restarts: Restarts { max: 0, monitor_interval: Duration::from_millis(100) },
            threads: None,
            binding: Binding::None,
            output: Output::default(),
            env: Vec::new(),
            deepspeed_env: false,
            alone: false,
            local_rank_argument: false,
            virtual_local_rank: false,
            grace: Duration::from_secs(30),
            stopped_notice: oarlock_comm::AllStopped::NOTICE,
            signals: oarlock_comm::STOPPING.to_vec(),
            quiet: false,
            meets: false,
            same: Vec::new(),
        }
    }
}
