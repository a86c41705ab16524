//! Model states by formula: working weights, gradients, master weights, optimizer state, and what moves them.
//!
//! ```text
//! E elements with padding, S bytes of a working element, N ranks of the machine, U elements of the largest unit
//!
//!                     DDP      ZeRO-1     ZeRO-2        ZeRO-3
//! working weights     S·E      S·E/N      S·E/N         S·E/N       one copy for all ranks from ZeRO-1 on
//! gradients (f32)     4·E      4·E        4·E/N + 4·U   4·E/N + 4·U   and shared weights until their first use
//! master weights      4·E      4·E/N      4·E/N         4·E/N       none where the working copy is f32
//! AdamW's moments     8·E      8·E/N      8·E/N         8·E/N
//! ```
//!
//! Where states are sharded inside groups of G ranks (MiCS, HYBRID_SHARD), G takes the place of N, and the machine holds
//! the states of each of its N/G groups.
//!
//! A rank reads the gradients of the others where they lie, so their pages are shared. Where ranks own equal parts, what
//! each is charged for theirs is what they are charged less for its reading, and it is left with 4·E. Whole parameters
//! are owned unequally ([`charged`]).
//!
//! Ranks that share no memory have working weights of S·E each in ZeRO-1 and 2; in ZeRO-3 S·E/N and the gathered units.
//! Where weights are gathered, the second copy of hpZ takes S·E/H more, sharded over H ranks.

use oarlock_engine::shard::{Grain, Layout, LayoutParam};
use oarlock_tensor::DType;
use std::ops::Range;

use oarlock_tensor::ops::optimizer::{self, EightBit, Needs, Role, Rule};

use super::activations::DryRun;
use super::gathering::Gathered;
use super::part::Part;
use super::settings::{Optim, Settings, Stage};
use super::size::ModelSize;

/// The model states of a training run, part by part, and what an update borrows beyond the memory of `step`'s
/// activations.
pub fn model_states(size: &ModelSize, settings: &Settings, step: Option<&DryRun>) -> Vec<Part> {
    let grain = match &settings.optim {
        Optim::Other(rule) if rule.needs() == Needs::Blocks => Grain::BlocksOfParameters,
        optim if elementwise(optim).is_some() => Grain::Blocks,
        _ => Grain::Parameters,
    };
    let all = &size.with_grain(grain);
    let size = &all.trained();
    let Settings { stage, ranks, .. } = *settings;
    let (n, replicas) = (settings.shard_ranks() as u64, settings.replicas() as u64);
    // Buffers of gradients that every rank has for itself; the first layout of each is its size.
    let regions: Vec<Vec<&Layout>> = match stage {
        Stage::Whole | Stage::Optimizer => size.layouts().map(|(_, layout)| vec![layout]).collect(),
        // The units are unknown where only the number of parameters is known.
        Stage::Gradients | Stage::Parameters if size.known => size.leaving(settings.overlaps()),
        _ => Vec::new(),
    };
    let shares = Share::all(size, settings, step, &regions);
    let share = shares.iter().max_by_key(|share| share.bytes(settings)).cloned().unwrap_or_default();
    let mut parts = weights(all, settings);
    let of_units: u64 = size.divisible(settings).map(|layout| layout.n_elems() as u64).sum();
    let sharded = if stage >= Stage::Gradients { 4 * of_units } else { 0 };
    let own: u64 = regions.iter().map(|layouts| 4 * layouts[0].n_elems() as u64).sum();
    let machine = replicas * (sharded + n * own);
    parts.push(Part { name: "gradients", rank: share.gradients, machine, shared: true });
    let mut push = |name, of: &dyn Fn(&Share) -> u64| {
        // Where states are whole, what one rank has all have.
        let times = if stage == Stage::Whole { ranks as u64 } else { replicas };
        let machine = shares.iter().map(of).sum::<u64>() * times;
        parts.push(Part { name, rank: of(&share), machine, shared: false });
    };
    if settings.sharding.offload_optimizer.is_none() {
        push("master weights", &|share| 4 * share.with_master);
        push("optimizer state", &|share| 4 * share.kept);
    }
    push("state between file and use", &|share| share.beyond(step).1);
    push("optimizer's workspace", &|share| share.beyond(step).0);
    if settings.sharding.reduces_in() != DType::F32 && ranks > 1 {
        // The largest unit is unknown where only the number of parameters is known.
        let unit = if size.known { largest(size, |_| 1) } else { 0 };
        let copies = if settings.overlaps() { 2 } else { 1 };
        let bytes = copies * settings.sharding.reduces_in().size() as u64 * unit;
        parts.push(Part::each("gradients rounded for the sum", bytes, ranks));
    }
    parts.retain(|part| part.machine > 0);
    parts
}

/// The working copies of the weights: at rest, gathered, and a second time.
fn weights(size: &ModelSize, settings: &Settings) -> Vec<Part> {
    let Settings { stage, ranks, apart, .. } = *settings;
    let (n, replicas) = (settings.shard_ranks() as u64, settings.replicas() as u64);
    let bytes = |(dtype, elems): (DType, usize)| (dtype.size() * elems) as u64;
    let all: u64 = size.layouts().map(|(dtype, layout)| bytes((*dtype, layout.n_elems()))).sum();
    let has_own = stage == Stage::Whole || apart.is_some() && stage < Stage::Parameters;
    let shared = |name, bytes: u64, n: u64| Part {
        name,
        rank: bytes.div_ceil(n),
        machine: bytes * replicas,
        shared: true,
    };
    if has_own {
        return vec![Part::each("working weights", all, ranks)];
    }
    if !settings.gathers() {
        return vec![shared("working weights", all, n)];
    }
    let gathered: u64 =
        size.gathered_groups(settings.sharding.persistence_elems).into_iter().flatten().map(bytes).sum();
    let (resident, in_files) = (all.saturating_sub(gathered), settings.sharding.offload_params.is_some());
    let at_rest = if in_files { 0 } else { gathered };
    let mut parts = vec![match apart.is_some() || settings.copies() || settings.in_8_bits() {
        // What is not gathered each rank has for itself.
        true => Part {
            name: "working weights",
            rank: resident + at_rest.div_ceil(n),
            machine: ranks as u64 * resident + at_rest * replicas,
            shared: false,
        },
        false => shared("working weights", resident, n),
    }];
    // The units are unknown where only the number of parameters is known.
    let buffers = if size.known { size.gathered(settings) } else { Gathered::default() };
    let second = settings.sharding.secondary.unwrap_or(ranks).clamp(1, ranks) as u64;
    let name = if in_files { "weights between file and use" } else { "gathered weights" };
    parts.push(match apart {
        _ if settings.in_8_bits() => {
            // What comes lies beside its copy, a byte for each element.
            let copies = buffers.first + buffers.second;
            Part::each(name, copies + copies.div_ceil(settings.sharding.dtype.size() as u64), ranks)
        }
        Some(_) => Part::each(name, buffers.first + buffers.second, ranks),
        None => Part {
            name,
            rank: buffers.first.div_ceil(n) + buffers.second.div_ceil(second),
            machine: buffers.first * replicas + buffers.second * (ranks as u64 / second),
            shared: true,
        },
    });
    if settings.sharding.secondary.is_some() {
        parts.push(Part::each("second copy of the weights", gathered.div_ceil(second), ranks));
    }
    parts
}

/// What a rank updates, and what it takes for that.
#[derive(Clone, Default)]
struct Share {
    /// Bytes of gradients: their sums, where those are sharded, and what it is charged for what it reads.
    gradients: u64,
    /// Elements with master weights.
    with_master: u64,
    /// The numbers that the optimizer keeps for them.
    kept: u64,
    /// Bytes that the largest of its parameters takes to work in.
    workspace: u64,
    /// Bytes of the buffers of each set through which pieces of the states in files come and go in turn.
    staged: Vec<Vec<u64>>,
}

impl Share {
    /// Of each rank; one stands for all where states are whole.
    fn all(
        size: &ModelSize,
        settings: &Settings,
        step: Option<&DryRun>,
        regions: &[Vec<&Layout>],
    ) -> Vec<Share> {
        let ranks = if settings.stage == Stage::Whole { 1 } else { settings.shard_ranks() };
        let of = |(rank, read): (usize, u64)| {
            let mut share = Share::of(size, settings, step, (rank, ranks));
            share.gradients += read;
            share
        };
        charged(regions, ranks).into_iter().enumerate().map(of).collect()
    }

    fn of(
        size: &ModelSize,
        settings: &Settings,
        step: Option<&DryRun>,
        (rank, ranks): (usize, usize),
    ) -> Share {
        let optimizer_in_file = settings.sharding.offload_optimizer.is_some();
        let weights_in_file =
            settings.sharding.offload_params.is_some() && settings.stage == Stage::Parameters;
        let files = settings.files();
        let (mut share, mut n_pieces, mut updated) = (Share::default(), 0, Vec::new());
        if settings.stage >= Stage::Gradients {
            share.gradients =
                size.divisible(settings).map(|layout| 4 * layout.owned(rank, ranks).len() as u64).sum();
        }
        for (dtype, layout) in size.layouts() {
            let owned = layout.owned(rank, ranks);
            let master = *dtype != DType::F32;
            share.with_master += if master { owned.len() as u64 } else { 0 };
            for (param, flat) in layout.pieces(owned, files.sub_group_elems, |_| Some(0)) {
                let param = &layout.params()[param];
                let states = match elementwise(&settings.optim) {
                    Some(kinds) => vec![flat.len(); kinds],
                    None => state_elems(&settings.optim, param, &flat),
                };
                share.kept += states.iter().sum::<usize>() as u64;
                updated.push(param);

                let weights = weights_in_file.then_some(dtype.size() * flat.len());
                let master = (optimizer_in_file && master).then_some(4 * flat.len());
                let states = states.into_iter().filter(|_| optimizer_in_file).map(|n| 4 * n);
                let buffers: Vec<usize> = weights.into_iter().chain(master).chain(states).collect();
                if buffers.is_empty() {
                    continue;
                }
                let set = n_pieces % files.buffers.max(1);
                share.staged.resize(share.staged.len().max(set + 1), Vec::new());
                let sizes = &mut share.staged[set];
                sizes.resize(sizes.len().max(buffers.len()), 0);
                for (most, bytes) in sizes.iter_mut().zip(&buffers) {
                    *most = (*most).max(*bytes as u64);
                }
                n_pieces += 1;
            }
        }
        share.workspace = step.map_or(0, |step| workspace(step, &settings.optim, &updated));
        share
    }

    /// All of it that depends on the rank.
    fn bytes(&self, settings: &Settings) -> u64 {
        let states =
            if settings.sharding.offload_optimizer.is_none() { self.with_master + self.kept } else { 0 };
        self.gradients + 4 * states + self.workspace + self.staged.iter().flatten().sum::<u64>()
    }

    /// What the workspace and the buffers take beyond the free pieces of the pool, of which each borrows the smallest
    /// that is large enough.
    fn beyond(&self, step: Option<&DryRun>) -> (u64, u64) {
        let mut free = step.map_or_else(Vec::new, |step| step.free.clone());
        let mut borrow = |bytes: u64| -> u64 {
            let found = free.iter().position(|&piece| bytes > 0 && piece >= bytes);
            found.map_or(bytes, |index| {
                free.remove(index);
                0
            })
        };
        let workspace = borrow(self.workspace);
        (workspace, self.staged.iter().flatten().map(|&bytes| borrow(bytes)).sum())
    }
}

/// What each rank is charged for regions of f32 gradients of which every rank has one of its own, and whose elements
/// are read by the ranks that own them in any of the region's layouts: a page counts in equal parts for its readers and
/// for whose it is.
pub(super) fn charged(regions: &[Vec<&Layout>], ranks: usize) -> Vec<u64> {
    let mut charged = vec![0.0; ranks];
    for layouts in regions {
        let mut owned: Vec<Vec<Range<usize>>> =
            layouts.iter().map(|layout| (0..ranks).map(|rank| layout.owned(rank, ranks)).collect()).collect();
        owned.sort_unstable_by_key(|ranges| ranges.iter().map(|range| range.end).collect::<Vec<_>>());
        owned.dedup();
        let mut edges: Vec<usize> =
            owned.iter().flatten().flat_map(|range| [range.start, range.end]).collect();
        edges.sort_unstable();
        edges.dedup();
        for run in edges.windows(2) {
            let elems = (run[1] - run[0]) as f64;
            let reads = |rank: usize| {
                owned.iter().any(|ranges| ranges[rank].start <= run[0] && run[1] <= ranges[rank].end)
            };
            let readers = (0..ranks).filter(|&rank| reads(rank)).count();
            for (rank, charged) in charged.iter_mut().enumerate() {
                *charged += match reads(rank) {
                    // Its own, those of the other readers, and those of all others, who read nothing here.
                    true => elems * (1.0 + (ranks - readers) as f64 / (readers + 1) as f64),
                    false => elems / (readers + 1) as f64,
                };
            }
        }
    }
    charged.into_iter().map(|elems| (4.0 * elems) as u64).collect()
}

/// The workspace of a step on whole parameters. That of other rules is nothing beside it.
fn workspace(step: &DryRun, optim: &Optim, params: &[&LayoutParam]) -> u64 {
    let device = &step.device;
    let of_all = |rule: &Rule, role: &dyn Fn(&LayoutParam) -> Role| {
        let params = params.iter().map(|param| (param.place.shape, role(param)));
        optimizer::workspace_bytes_of_all(device, rule, params)
    };
    let bytes = match optim {
        Optim::Muon => {
            let matrices = params.iter().filter(|param| param.role() == Role::Matrix);
            let sides = matrices.filter_map(|param| <[usize; 2]>::try_from(param.place.shape.sizes()).ok());
            optimizer::muon_workspace_bytes(device, sides)
        }
        Optim::LowRank(low, targets) => of_all(&Rule::LowRank(*low), &|param| low_rank_role(targets, param)),
        Optim::Other(rule) => of_all(rule, &|param| param.role()),
        _ => 0,
    };
    bytes as u64
}

/// What a parameter is to a rule with a subspace.
fn low_rank_role(targets: &[String], param: &LayoutParam) -> Role {
    match targets {
        [] => param.role(),
        names if !names.iter().any(|name| param.name.contains(name)) => Role::Other,
        _ if param.place.shape.sizes().len() == 2 => Role::Matrix,
        _ => Role::Other,
    }
}

/// The sum over the elements of the unit for which it is the largest.
fn largest(size: &ModelSize, bytes: fn(DType) -> u64) -> u64 {
    let of = |unit: &Vec<(DType, Layout)>| -> u64 {
        unit.iter().map(|(dtype, layout)| bytes(*dtype) * layout.n_elems() as u64).sum()
    };
    size.units.iter().map(of).max().unwrap_or(0)
}

/// The states of an optimizer that keeps one number of each kind for each element.
fn elementwise(optim: &Optim) -> Option<usize> {
    match optim {
        Optim::TwoMoments => Some(2),
        Optim::OneState => Some(1),
        Optim::Stateless => Some(0),
        Optim::Other(rule) if rule.needs() == Needs::Elementwise => Some(rule.state_names().len()),
        Optim::Lamb | Optim::Factored | Optim::Muon | Optim::LowRank(..) | Optim::Other(_) => None,
    }
}

/// The numbers of each kind that any other optimizer keeps for a parameter, besides master weights.
fn state_elems(optim: &Optim, param: &LayoutParam, flat: &Range<usize>) -> Vec<usize> {
    let shape = &param.place.shape;
    match (optim, shape.sizes()) {
        (Optim::Factored, [rest @ .., rows, cols]) => {
            let rest: usize = rest.iter().product();
            vec![rest * rows, rest * cols]
        }
        (Optim::LowRank(low, targets), _) => {
            let (rule, role) = (Rule::LowRank(*low), low_rank_role(targets, param));
            (0..rule.state_names().len()).map(|index| rule.state_len(index, shape, role)).collect()
        }
        (Optim::Other(rule), _) => {
            let role = param.role();
            let elements = flat.start - param.place.first..flat.end - param.place.first;
            let len = |index| match rule.on(shape, role) {
                Rule::EightBit(_) => EightBit::words(&elements).len(),
                rule if rule.needs() == Needs::WholeParameters => rule.state_len(index, shape, role),
                _ => elements.len(),
            };
            (0..rule.state_names().len()).map(len).collect()
        }
        (Optim::Lamb, _) => vec![shape.n_elems(); 2],
        (Optim::Muon, _) if param.role() != Role::Matrix => vec![shape.n_elems(); 2],
        _ => vec![shape.n_elems()],
    }
}
