//! The environment of a worker: its rank assignment, and torchrun's variables for it.

/// The rank assignment of a worker in a round of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEnv {
    /// The rank on its machine.
    pub local_rank: usize,
    /// The machine.
    pub node_rank: usize,
    /// Ranks of each machine.
    pub local_ranks: Vec<usize>,
    /// How often the ranks were started again.
    pub restart: u32,
    /// Where rank 0 listens.
    pub master: (String, u16),
}

impl WorkerEnv {
    /// The ranks of all machines.
    pub fn world_size(&self) -> usize {
        self.local_ranks.iter().sum()
    }

    /// The rank among all.
    pub fn rank(&self) -> usize {
        self.local_ranks.iter().take(self.node_rank).sum::<usize>() + self.local_rank
    }

    /// The ranks of this machine.
    pub fn local_world_size(&self) -> usize {
        self.local_ranks.get(self.node_rank).copied().unwrap_or(0)
    }

    /// The variables of the rank, for a run with this name, role and maximum of restarts.
    pub fn variables(&self, max_restarts: u32, run_id: &str, role: &str) -> Vec<(String, String)> {
        [
            ("RANK", self.rank().to_string()),
            ("LOCAL_RANK", self.local_rank.to_string()),
            ("WORLD_SIZE", self.world_size().to_string()),
            ("LOCAL_WORLD_SIZE", self.local_world_size().to_string()),
            ("GROUP_RANK", self.node_rank.to_string()),
            ("GROUP_WORLD_SIZE", self.local_ranks.len().to_string()),
            ("ROLE_RANK", self.rank().to_string()),
            ("ROLE_WORLD_SIZE", self.world_size().to_string()),
            ("ROLE_NAME", role.to_owned()),
            ("MASTER_ADDR", self.master.0.clone()),
            ("MASTER_PORT", self.master.1.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", self.restart.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", max_restarts.to_string()),
            ("TORCHELASTIC_RUN_ID", run_id.to_owned()),
            ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// `OMP_NUM_THREADS` of a rank, where the environment does not set it: 1 if a machine has several ranks, each of which
/// would otherwise use all cores.
pub fn default_omp_threads(local_world_size: usize) -> Option<usize> {
    (local_world_size > 1 && std::env::var_os("OMP_NUM_THREADS").is_none()).then_some(1)
}
