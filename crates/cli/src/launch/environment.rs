//! The variables by which a rank finds its place: torchrun's contract, and what DeepSpeed's launcher adds.

use oarlock::launch::Place;

use super::spec::Launch;

/// `OMP_NUM_THREADS` of a rank, where nobody outside has set it: one where there are several, which would otherwise
/// take all cores each.
pub fn threads(launch: &Launch, n_ranks: usize) -> Option<usize> {
    let free = n_ranks > 1 && std::env::var_os("OMP_NUM_THREADS").is_none();
    launch.threads.or(free.then_some(1))
}

/// The variables of a rank; those that the launch adds come last and win.
pub fn variables(launch: &Launch, place: &Place) -> Vec<(String, String)> {
    let mut all = place.variables(launch.restarts.max, &launch.run_id, &launch.role);
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
