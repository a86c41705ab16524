//! What of a training run is in the memory of a GPU, and what is left for the host.
//!
//! A rank alone keeps its states on the GPU, as ranks do that exchange them by NCCL. Ranks that meet in shared memory of the
//! host have a copy of each region there that they use, all of it, and the region itself is the host's. What is offloaded
//! is the host's, pinned. Activations are in the GPU's pool. What the GPU has in use before anything is loaded is measured
//! where there is one: the context of CUDA, the workspace of matrix products, other programs.
//!
//! States are pieces of the pool's segments, whose rests are a part of their own. NCCL takes memory for its buffers when the
//! ranks first connect, which is after the forecast.
//!
//! The parts are the same for all ranks, their GPUs need not be: the one with the least room decides whether a training fits.

use oarlock_engine::report::error::Limit;
use oarlock_engine::report::terminal::readable;
use oarlock_tensor::{Arena, DType, Device};

use super::part::Part;
use super::prediction::Estimate;
use super::settings::{Settings, Stage};
use super::size::ModelSize;

/// The context of CUDA and the kernels, where no GPU can be asked.
const CONTEXT_BYTES: u64 = 480 << 20;

/// The memory of a GPU that cannot be asked: that of an A100 or H100. What a GPU has decides how much of the logits exists at a
/// time.
pub const USUAL_GPU_BYTES: usize = 80 << 30;

/// Kernels that are loaded after the prediction was made.
const LATER_BYTES: u64 = 8 << 20;

/// What NCCL takes of a GPU for its buffers: 0.3 to 2 GB on machines of eight, by the links and the algorithms that it chooses.
const NCCL_BYTES: u64 = 1 << 30;

/// And the share of a smaller GPU's memory that it takes at most: where there is no NVLink, it uses few channels.
const NCCL_SHARE: u64 = 16;

/// The part of an estimate that is neither a state of the model nor an activation.
const PROGRAM: &str = "program, data";

const NCCL: &str = "NCCL";

const OPTIMIZER_STATE: &str = "optimizer state";

/// The parts that are buffers of the pool, one for each unit.
const STATES: [&str; 4] = ["working weights", "gradients", "master weights", OPTIMIZER_STATE];

/// What the CPU has beside a GPU if it updates the weights.
const OF_OPTIMIZER: [&str; 4] =
    ["master weights", "optimizer state", "state between file and use", "optimizer's workspace"];

/// The memory of a GPU, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// In use before anything is loaded, by whomever.
    pub in_use: u64,
    /// All of it; `None` where no GPU was asked.
    pub total: Option<u64>,
    /// The ranks that share it.
    pub ranks: usize,
    /// Whether the pool cuts buffers out of segments.
    pub in_segments: bool,
}

impl GpuMemory {
    /// As it is now; `None` of another device.
    pub fn now(device: &Device, ranks: usize) -> Option<GpuMemory> {
        let (free, total) = device.gpu_memory().ok().flatten()?;
        let in_use = total.saturating_sub(free) as u64;
        let in_segments = device.arena().is_in_segments();
        Some(GpuMemory { in_use, total: Some(total as u64), ranks, in_segments })
    }

    /// One that nobody uses yet.
    pub fn unknown(ranks: usize) -> GpuMemory {
        let workspace = oarlock_tensor::GPU_WORKSPACE_BYTES as u64;
        GpuMemory { in_use: CONTEXT_BYTES + workspace, total: None, ranks, in_segments: true }
    }

    /// What NCCL takes of it.
    fn of_nccl(&self) -> u64 {
        self.total.map_or(NCCL_BYTES, |total| NCCL_BYTES.min(total / NCCL_SHARE))
    }
}

/// What a rank has on its GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct OnGpu {
    /// The memory that all of it is in on rank 0.
    pub memory: GpuMemory,
    /// That of each rank, where there are several and all were asked.
    pub of_ranks: Vec<GpuMemory>,
    /// What takes memory; of each the bytes of the rank with the largest share.
    pub parts: Vec<Part>,
}

impl OnGpu {
    /// Divides an estimate: what is on the GPU is taken out of it. `updates_on_cpu` says that the optimizer is offloaded, to
    /// main memory or to files.
    pub fn taken_from(
        estimate: &mut Estimate,
        size: &ModelSize,
        memory: GpuMemory,
        updates_on_cpu: bool,
    ) -> OnGpu {
        let settings = estimate.settings.clone();
        let meets_on_host = settings.ranks > 1 && settings.apart.is_none();
        let mut parts = Vec::new();
        estimate.parts.retain(|part| {
            if part.name == PROGRAM || updates_on_cpu && OF_OPTIMIZER.contains(&part.name) {
                return true;
            }
            let copied = copied(part.name, size, &settings).filter(|_| meets_on_host);
            parts.push(Part { rank: copied.unwrap_or(part.rank), shared: false, ..*part });
            copied.is_some()
        });
        if memory.in_segments {
            let copies = if meets_on_host { "working weights" } else { "" };
            let unused = unused(&parts, copies, size, &settings);
            parts.extend(
                (unused > 0).then(|| Part::each("rests of the pool's segments", unused, settings.ranks)),
            );
        }
        if settings.ranks > 1 && !meets_on_host {
            parts.push(Part::each(NCCL, memory.of_nccl(), settings.ranks));
        }
        let in_memory =
            settings.sharding.offload_params.as_ref().is_some_and(|offload| !offload.is_in_files());
        if in_memory && settings.stage == Stage::Parameters {
            let bytes = |(dtype, elems): (DType, usize)| (dtype.size() * elems) as u64;
            let groups = size.gathered_groups(settings.sharding.persistence_elems);
            let gathered: u64 = groups.into_iter().flatten().map(bytes).sum();
            let own = gathered.div_ceil(settings.shard_ranks() as u64);
            estimate.parts.push(Part::each("weights in main memory", own, settings.ranks));
        }
        OnGpu { memory, of_ranks: Vec::new(), parts }
    }

    /// The same where the ranks have GPUs with this memory, rank 0 the first.
    pub fn on_gpus(self, of_ranks: &[GpuMemory]) -> OnGpu {
        OnGpu { of_ranks: of_ranks.to_vec(), ..self }
    }

    /// Bytes of the rank with the largest share.
    pub fn rank(&self) -> u64 {
        self.parts.iter().map(|part| part.rank).sum()
    }

    /// Bytes in use on the GPU of rank 0 with all of its ranks.
    pub fn all(&self) -> u64 {
        self.all_on(&self.memory)
    }

    /// Bytes in use on a GPU with all of its ranks.
    fn all_on(&self, memory: &GpuMemory) -> u64 {
        let bytes = |part: &Part| if part.name == NCCL { memory.of_nccl() } else { part.rank };
        let ranks = self.parts.iter().map(bytes).sum::<u64>().saturating_mul(memory.ranks.max(1) as u64);
        ranks.saturating_add(memory.in_use).saturating_add(LATER_BYTES)
    }

    /// The GPU with the least room, as far as they were asked, and its rank where there are several.
    fn tightest(&self) -> (Option<usize>, &GpuMemory) {
        let room = |memory: &GpuMemory| {
            let total = memory.total.map_or(i128::MAX, i128::from);
            total - i128::from(self.all_on(memory))
        };
        let ranks = self.of_ranks.iter().enumerate().min_by_key(|(_, memory)| room(memory));
        let of_several = |(rank, memory)| ((self.of_ranks.len() > 1).then_some(rank), memory);
        ranks.map_or((None, &self.memory), of_several)
    }

    /// The limit that it does not keep: the memory of the GPU with the least room.
    pub fn broken(&self) -> Option<Limit> {
        let (rank, memory) = self.tightest();
        let (needs, allows) = (self.all_on(memory), memory.total?);
        let name = match rank {
            Some(rank) => format!("the memory of the GPU of rank {rank}").into(),
            None => "the memory of the GPU".into(),
        };
        (needs > allows).then_some(Limit { name, allows, needs })
    }

    /// In words, for the GPU of rank 0.
    pub fn line(&self) -> String {
        self.line_on(&self.memory)
    }

    /// In words, for the GPU with the least room.
    pub fn tightest_line(&self) -> String {
        self.line_on(self.tightest().1)
    }

    fn line_on(&self, memory: &GpuMemory) -> String {
        let parts = self.parts.iter().map(|part| format!("{} {}", part.name, readable(part.rank)));
        let parts: Vec<String> = parts.collect();
        let of = memory.total.map_or(String::new(), |total| format!(" of {}", readable(total)));
        let ranks = match memory.ranks {
            0 | 1 => String::new(),
            n => format!(", shared by {n} ranks"),
        };
        format!(
            "GPU memory: predicted {} a rank ({}); {}{of} in use with context, workspace and other programs{ranks}",
            readable(self.rank()),
            parts.join(", "),
            readable(self.all_on(memory)),
        )
    }
}

/// The bytes of the pool's segments that no state has: each unit has a buffer for each kind of state. `copies` are not
/// part of the pool.
fn unused(parts: &[Part], copies: &str, size: &ModelSize, settings: &Settings) -> u64 {
    let elems: Vec<u64> = size.layouts().map(|(_, layout)| layout.n_elems() as u64).collect();
    let all = elems.iter().sum::<u64>().max(1);
    let of_states = |part: &&Part| STATES.contains(&part.name) && part.name != copies;
    let mut sizes = Vec::new();
    for part in parts.iter().filter(of_states) {
        // The optimizer keeps each of its numbers in a buffer of its own.
        let of_rank = all.div_ceil(settings.shard_ranks() as u64);
        let kinds = if part.name == OPTIMIZER_STATE { (part.rank / (4 * of_rank)).clamp(1, 3) } else { 1 };
        for n in &elems {
            let bytes = (u128::from(part.rank) * u128::from(*n) / u128::from(all * kinds)) as usize;
            sizes.extend(std::iter::repeat_n(bytes, kinds as usize));
        }
    }
    let used: usize = sizes.iter().sum();
    Arena::bytes_of_segments(sizes).saturating_sub(used) as u64
}

/// The bytes of a rank's copies of the regions in which ranks meet, if a part is such.
fn copied(name: &str, size: &ModelSize, settings: &Settings) -> Option<u64> {
    let elems = |trained: &ModelSize, bytes: &dyn Fn(usize) -> usize| -> u64 {
        trained.layouts().map(|(dtype, layout)| (bytes(dtype.size()) * layout.n_elems()) as u64).sum()
    };
    match name {
        "working weights" => Some(elems(size, &|size| size)),
        "gradients" if settings.stage < Stage::Gradients => Some(elems(&size.trained(), &|_| 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_config::config::{Offload, ShardingConfig};

    const N: usize = 1 << 20;
    /// What a rank has on its GPU and what is left for the host, each part of as many bytes as its place says.
    fn divided(settings: Settings, updates_on_cpu: bool) -> [Vec<(&'static str, u64)>; 2] {
        let size = ModelSize::of_count(N, None, DType::F32).unwrap();
        let names = STATES.into_iter().chain(["activations, logits, scratch", PROGRAM]);
        let parts = names.zip(1..).map(|(name, bytes)| Part::each(name, bytes, settings.ranks)).collect();
        let mut estimate = Estimate { settings, parts, complete: true };
        let memory = GpuMemory { in_segments: false, ..GpuMemory::unknown(1) };
        let gpu = OnGpu::taken_from(&mut estimate, &size, memory, updates_on_cpu);
        let of = |parts: &[Part]| parts.iter().map(|part| (part.name, part.rank)).collect();
        [of(&gpu.parts), of(&estimate.parts)]
    }

    #[test]
    fn all_but_the_program_is_on_the_gpu_of_a_rank_alone() {
        let [gpu, host] = divided(Settings::new(DType::F32, Stage::Whole, 1), false);
        assert_eq!(gpu.iter().map(|part| part.1).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(host, [(PROGRAM, 6)]);
        // Ranks that exchange their states by NCCL have all of them there as well.
        let by_nccl = Settings { apart: Some(2), ..Settings::new(DType::F32, Stage::Whole, 2) };
        let [mut with_nccl, of_host] = divided(by_nccl, false);
        assert_eq!(with_nccl.pop(), Some(("NCCL", 1 << 30)));
        assert_eq!([with_nccl, of_host], [gpu, host]);
    }

    #[test]
    fn nccl_takes_less_of_a_small_gpu() {
        let of = |total| GpuMemory { in_use: 0, total: Some(total), ranks: 1, in_segments: true }.of_nccl();
        assert_eq!([of(80 << 30), of(8 << 30)], [1 << 30, 512 << 20]);
    }

    #[test]
    fn what_states_leave_of_their_segments_is_predicted() {
        let mib = 1u64 << 20;
        let settings = Settings::new(DType::F32, Stage::Whole, 1);
        // One unit of 13 million elements.
        let size = ModelSize::of_count(13 << 20, None, DType::F32).unwrap();
        let rests = |parts: Vec<Part>| unused(&parts, "", &size, &settings);
        let part = |name, mebibytes: u64| Part::each(name, mebibytes * mib + 4096, 1);
        let n = size.layouts().count() as u64;
        assert_eq!(n, 1);
        assert_eq!(rests(vec![part("working weights", 52)]), 2 * mib - 4096);
        // Two moments are two buffers.
        assert_eq!(rests(vec![part("optimizer state", 104)]), 4 * mib - 4096);
        assert_eq!(rests(vec![part("activations, logits, scratch", 52)]), 0, "a dry run has counted it");
        assert_eq!(rests(vec![part("gradients", 1)]), 19 * mib - 4096);
    }

    #[test]
    fn an_offloaded_optimizer_leaves_its_states_on_the_host() {
        let [gpu, host] = divided(Settings::new(DType::F32, Stage::Whole, 1), true);
        assert_eq!(gpu, [("working weights", 1), ("gradients", 2), ("activations, logits, scratch", 5)]);
        assert_eq!(host, [("master weights", 3), ("optimizer state", 4), (PROGRAM, 6)]);
    }

    #[test]
    fn ranks_that_meet_in_main_memory_have_copies_of_its_regions() {
        let bytes = 4 * N as u64;
        let [gpu, host] = divided(Settings::new(DType::F32, Stage::Optimizer, 2), false);
        assert_eq!(gpu[..2], [("working weights", bytes), ("gradients", bytes)]);
        assert_eq!(host, [("working weights", 1), ("gradients", 2), (PROGRAM, 6)]);
        // From the second stage on, sharded gradients are not a region.
        let [gpu, host] = divided(Settings::new(DType::F32, Stage::Gradients, 2), false);
        assert_eq!(gpu[..2], [("working weights", bytes), ("gradients", 2)]);
        assert_eq!(host, [("working weights", 1), (PROGRAM, 6)]);
    }

    #[test]
    fn parameters_in_main_memory_are_shared_out_over_the_ranks() {
        let settings = |ranks, offload| Settings {
            apart: (ranks > 1).then_some(ranks),
            sharding: ShardingConfig {
                offload_params: Some(offload),
                persistence_elems: 0,
                ..ShardingConfig::default()
            },
            ..Settings::new(DType::F32, Stage::Parameters, ranks)
        };
        let weights = |settings| divided(settings, false)[1].iter().copied().find(|part| part.0 != PROGRAM);
        let bytes = 4 * N as u64;
        assert_eq!(weights(settings(1, Offload::TO_MEMORY)), Some(("weights in main memory", bytes)));
        assert_eq!(weights(settings(2, Offload::TO_MEMORY)), Some(("weights in main memory", bytes / 2)));
        assert_eq!(weights(settings(2, crate::estimate::offload_to_files())), None);
    }

    #[test]
    fn ranks_that_share_a_gpu_need_as_much_more_and_the_limit_is_that_of_the_gpu() {
        let memory = GpuMemory { in_use: 100, total: Some(10_000_000), ranks: 2, in_segments: true };
        let gpu = |rank| OnGpu {
            memory,
            of_ranks: Vec::new(),
            parts: vec![Part::each("working weights", rank, 2)],
        };
        assert_eq!(gpu(7).all(), 2 * 7 + 100 + LATER_BYTES);
        assert!(gpu(7).broken().is_none());
        let broken = gpu(1_000_000).broken().unwrap();
        assert_eq!((broken.allows, broken.needs), (10_000_000, 2_000_100 + LATER_BYTES));
        assert!(gpu(7).line().contains("of 10 MB in use") && gpu(7).line().contains("shared by 2 ranks"));
        let unknown = OnGpu { memory: GpuMemory::unknown(1), ..gpu(u64::MAX) };
        assert!(unknown.broken().is_none());
    }

    #[test]
    fn the_gpu_with_the_least_room_decides_and_its_rank_is_named() {
        let gpu = |in_use, total| GpuMemory { in_use, total: Some(total), ranks: 1, in_segments: true };
        let parts = vec![Part::each("working weights", 60 << 20, 3), Part::each(NCCL, 8 << 20, 3)];
        let on = |of_ranks: &[GpuMemory]| {
            OnGpu { memory: of_ranks[0], of_ranks: Vec::new(), parts: parts.clone() }.on_gpus(of_ranks)
        };
        let (large, small) = (gpu(0, 128 << 20), gpu(0, 64 << 20));
        assert!(on(&[large, large]).broken().is_none());
        // A smaller GPU, and one of which other programs have a part; NCCL takes less of the smaller one.
        let of_small = on(&[large, small, large]).broken().unwrap();
        let needs = (60 << 20) + (4 << 20) + LATER_BYTES;
        assert_eq!((of_small.allows, of_small.needs), (64 << 20, needs));
        assert_eq!(
            of_small.to_string().split("but ").last(),
            Some("the memory of the GPU of rank 1 is 67 MB")
        );
        let used = [large, large, gpu(100 << 20, 128 << 20)];
        assert_eq!(on(&used).broken().unwrap().name, "the memory of the GPU of rank 2");
        assert_eq!(on(&used).all(), (68 << 20) + LATER_BYTES, "what rank 0 is compared with is its own");
        assert!(
            on(&used).tightest_line().contains("185 MB of 134 MB in use"),
            "{}",
            on(&used).tightest_line()
        );
        assert_eq!(on(&[small]).broken().unwrap().name, "the memory of the GPU");
        // One that does not say how much it has is none that decides.
        assert!(on(&[large, GpuMemory { total: None, ..large }]).broken().is_none());
    }
}
