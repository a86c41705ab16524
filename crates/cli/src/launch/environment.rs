//! The environment variables of a rank: those of torchrun, and those that DeepSpeed's launcher adds.

use oarlock_engine::distributed::launch::{WorkerEnv, default_omp_threads};

use super::spec::Launch;

/// The variables of a rank; those that the launch adds come last and win.
pub fn variables(launch: &Launch, worker: &WorkerEnv) -> Vec<(String, String)> {
    let mut all = worker.variables(launch.restarts.max, &launch.run_id, &launch.role);
    if launch.virtual_local_rank {
        for (_, value) in all.iter_mut().filter(|(name, _)| name == "LOCAL_RANK") {
            *value = "0".to_owned();
        }
    }
    if launch.alone {
        all.clear();
    }
    if launch.deepspeed_env {
        all.extend([
            ("LOCAL_SIZE".to_owned(), worker.local_world_size().to_string()),
            ("CROSS_RANK".to_owned(), worker.node_rank.to_string()),
            ("CROSS_SIZE".to_owned(), worker.local_ranks.len().to_string()),
        ]);
    }
    if let Some(threads) = launch.threads.or_else(|| default_omp_threads(worker.local_world_size())) {
        all.push(("OMP_NUM_THREADS".to_owned(), threads.to_string()));
    }
    if launch.virtual_local_rank {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let listed = visible.as_deref().and_then(|list| list.split(',').nth(worker.local_rank));
        let own = listed.map_or_else(|| worker.local_rank.to_string(), |gpu| gpu.trim().to_owned());
        all.push(("CUDA_VISIBLE_DEVICES".to_owned(), own));
    }
    for (name, value) in &launch.env {
        all.retain(|(other, _)| other != name);
        all.push((name.clone(), value.clone()));
    }
    all
}
