//! The variables by which a rank finds its place: torchrun's contract, and what DeepSpeed's launcher adds.

use super::spec::Launch;

/// A rank's place in a round of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
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

impl Place {
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
}

/// `OMP_NUM_THREADS` of a rank, where nobody outside has set it: one where there are several, which would otherwise
/// take all cores each.
pub fn threads(launch: &Launch, n_ranks: usize) -> Option<usize> {
    let free = n_ranks > 1 && std::env::var_os("OMP_NUM_THREADS").is_none();
    launch.threads.or(free.then_some(1))
}

/// The variables of a rank; those that the launch adds come last and win.
pub fn variables(launch: &Launch, place: &Place) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = [
        ("RANK", place.rank().to_string()),
        ("LOCAL_RANK", if launch.virtual_local_rank { 0 } else { place.local_rank }.to_string()),
        ("WORLD_SIZE", place.world_size().to_string()),
        ("LOCAL_WORLD_SIZE", place.local_world_size().to_string()),
        ("GROUP_RANK", place.node_rank.to_string()),
        ("GROUP_WORLD_SIZE", place.local_ranks.len().to_string()),
        ("ROLE_RANK", place.rank().to_string()),
        ("ROLE_WORLD_SIZE", place.world_size().to_string()),
        ("ROLE_NAME", launch.role.clone()),
        ("MASTER_ADDR", place.master.0.clone()),
        ("MASTER_PORT", place.master.1.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", place.restart.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", launch.restarts.max.to_string()),
        ("TORCHELASTIC_RUN_ID", launch.run_id.clone()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if launch.alone {
        all.clear();
    }
    if launch.deepspeed_env {
        all.extend([
            ("LOCAL_SIZE".to_owned(), place.local_world_size().to_string()),
            ("CROSS_RANK".to_owned(), place.node_rank.to_string()),
            ("CROSS_SIZE".to_owned(), place.local_ranks.len().to_string()),
        ]);
    }
    if let Some(threads) = threads(launch, place.local_world_size()) {
        all.push(("OMP_NUM_THREADS".to_owned(), threads.to_string()));
    }
    if launch.virtual_local_rank {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let listed = visible.as_deref().and_then(|list| list.split(',').nth(place.local_rank));
        let own = listed.map_or_else(|| place.local_rank.to_string(), |gpu| gpu.trim().to_owned());
        all.push(("CUDA_VISIBLE_DEVICES".to_owned(), own));
    }
    for (name, value) in &launch.env {
        all.retain(|(other, _)| other != name);
        all.push((name.clone(), value.clone()));
    }
    all
}
