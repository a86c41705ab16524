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
//! A rank reads the gradients of the others where they lie, so their pages are shared: what it is charged for theirs
//! is what they are charged less for its reading, and each rank is left with 4·E.

use std::ops::Range;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer;
use oarlock_tensor::{DType, Device, Par, Shape};

use super::{ModelSize, Offload, Optim, Part, Settings, Stage};
use crate::shard::{Grain, Layout};

/// The model states of a training, part by part.
pub fn model_states(size: &ModelSize, settings: &Settings) -> Vec<Part> {
    let grain = if elementwise(settings.optim).is_some() { Grain::Blocks } else { Grain::Parameters };
    let size = &size.divided_by(grain);
    let Settings { stage, ranks, .. } = *settings;
    let n = ranks as u64;
    let elems = |dtype_bytes: fn(DType) -> u64| -> u64 {
        size.layouts().map(|(dtype, layout)| dtype_bytes(*dtype) * layout.n_elems() as u64).sum()
    };
    let working = elems(|dtype| dtype.size() as u64);
    let all = elems(|_| 1);
    let with_master = elems(|dtype| u64::from(dtype != DType::F32));
    let kept = size.layouts().map(|(_, l)| kept_elems(l, 0..l.n_elems(), settings.optim)).sum();
    let share = Share::largest(size, settings);
    // The largest unit is unknown where only the number of parameters is known.
    let unit = if size.known { largest(size, |_| 1) } else { 0 };
    let leaving = if size.known { size.leaving_bytes() } else { 0 };
    let open_weights = |groups: &[(DType, Layout)]| -> u64 {
        groups.iter().map(|(dtype, l)| (dtype.size() * l.n_elems()) as u64).sum()
    };
    let windows = if size.known { size.most_open(settings.prefetch_elems, open_weights) } else { 0 };

    let weights = match (stage, settings.parameters) {
        (Stage::Whole, _) => Part::each("working weights", working, ranks),
        (Stage::Parameters, Offload::Nvme) => Part {
            name: "weights between file and use",
            rank: windows.div_ceil(n),
            machine: windows,
            shared: true,
        },
        _ => Part { name: "working weights", rank: working.div_ceil(n), machine: working, shared: true },
    };
    let gradients = match stage {
        Stage::Whole | Stage::Optimizer => {
            Part { name: "gradients", rank: 4 * all, machine: 4 * all * n, shared: true }
        }
        Stage::Gradients | Stage::Parameters => Part {
            name: "gradients",
            rank: 4 * share.all + leaving,
            machine: 4 * all + n * leaving,
            shared: true,
        },
    };
    let mut parts = vec![weights, gradients];
    let owned = match stage {
        Stage::Whole => Share { all, with_master, kept },
        _ => share,
    };
    match settings.optimizer {
        Offload::Memory => {
            let divided = |name, rank, total| match stage {
                Stage::Whole => Part::each(name, total, ranks),
                _ => Part { name, rank, machine: total, shared: false },
            };
            parts.push(divided("master weights", 4 * owned.with_master, 4 * with_master));
            parts.push(divided("optimizer state", 4 * owned.kept, 4 * kept));
        }
        Offload::Nvme => {
            let moments = elementwise(settings.optim).unwrap_or(2);
            let in_files = u64::from(settings.parameters == Offload::Nvme);
            let kinds = moments + u64::from(settings.dtype != DType::F32) + in_files;
            // A piece is of one group at most, or a whole parameter.
            let group = match elementwise(settings.optim) {
                Some(_) => (settings.sub_group_elems as u64).min(unit.div_ceil(n).max(1)),
                None => unit,
            };
            let bytes = 4 * kinds * group * settings.buffers as u64;
            parts.push(Part::each("optimizer state between file and use", bytes, ranks));
        }
    }
    if stage == Stage::Parameters && settings.gather_copies {
        parts.push(Part {
            name: "gathered weights",
            rank: windows.div_ceil(n),
            machine: windows,
            shared: true,
        });
    }
    if settings.reduce_dtype != DType::F32 && ranks > 1 {
        let bytes = settings.reduce_dtype.size() as u64 * unit;
        parts.push(Part::each("gradients rounded for the sum", bytes, ranks));
    }
    if settings.optim == Optim::Muon {
        parts.push(Part::each("optimizer's scratch", muon_scratch(size), ranks));
    }
    parts.retain(|part| part.machine > 0);
    parts
}

/// Elements that a rank updates, those of them with master weights, and the numbers that the optimizer keeps for them.
struct Share {
    all: u64,
    with_master: u64,
    kept: u64,
}

impl Share {
    /// Of the rank with the most.
    fn largest(size: &ModelSize, settings: &Settings) -> Share {
        let Settings { stage, ranks, optim, .. } = *settings;
        let of = |rank: usize| -> Share {
            let mut share = Share { all: 0, with_master: 0, kept: 0 };
            for (dtype, layout) in size.layouts() {
                let owned = layout.owned(rank, ranks);
                share.all += owned.len() as u64;
                share.with_master += if *dtype == DType::F32 { 0 } else { owned.len() as u64 };
                share.kept += kept_elems(layout, owned, optim);
            }
            share
        };
        // From ZeRO-2 on gradients, too.
        let gradients = u64::from(stage >= Stage::Gradients);
        let bytes = |share: &Share| 4 * (gradients * share.all + share.with_master + share.kept);
        let shares = (0..ranks).map(of);
        shares.max_by_key(bytes).unwrap_or(Share { all: 0, with_master: 0, kept: 0 })
    }
}

/// The scratch of Muon's iteration: matrices of about one size share a piece of it, as the pool lends a piece that is
/// up to an eighth larger.
fn muon_scratch(size: &ModelSize) -> u64 {
    let device = Device::dry(Isa::detect(), Par::solo());
    let mut pieces = Vec::new();
    for param in size.layouts().flat_map(|(_, layout)| layout.params()) {
        if let [rows, cols] = *param.place.shape.sizes()
            && is_hidden(&param.name)
        {
            pieces.extend(optimizer::muon_scratch_bytes(&device, rows, cols).map(|bytes| bytes as u64));
        }
    }
    pieces.sort_unstable();
    let mut all = Vec::<u64>::new();
    for bytes in pieces.into_iter().rev() {
        if all.last().is_none_or(|piece| bytes + bytes / 8 < *piece) {
            all.push(bytes);
        }
    }
    all.into_iter().sum()
}

/// Whether Muon takes a matrix of this name for a hidden one.
fn is_hidden(name: &str) -> bool {
    !name.contains("embed") && !name.contains("lm_head")
}

/// The sum over the elements of the unit for which it is the largest.
fn largest(size: &ModelSize, bytes: fn(DType) -> u64) -> u64 {
    let of = |unit: &Vec<(DType, Layout)>| -> u64 {
        unit.iter().map(|(dtype, layout)| bytes(*dtype) * layout.n_elems() as u64).sum()
    };
    size.units.iter().map(of).max().unwrap_or(0)
}

/// The states of an optimizer that keeps one number of each kind for each element.
fn elementwise(optim: Optim) -> Option<u64> {
    match optim {
        Optim::TwoMoments => Some(2),
        Optim::OneState => Some(1),
        Optim::Stateless => Some(0),
        Optim::Factored | Optim::Muon => None,
    }
}

/// The numbers that an optimizer keeps for elements of a group, besides master weights.
fn kept_elems(layout: &Layout, range: Range<usize>, optim: Optim) -> u64 {
    if let Some(kinds) = elementwise(optim) {
        return kinds * range.len() as u64;
    }
    let of = |name: &str, shape: &Shape| match (optim, shape.sizes()) {
        (Optim::Factored, [rest @ .., rows, cols]) => rest.iter().product::<usize>() * (rows + cols),
        (Optim::Muon, [_, _]) if is_hidden(name) => shape.n_elems(),
        (Optim::Muon, _) => 2 * shape.n_elems(),
        _ => shape.n_elems(),
    };
    let params = layout.parts(range).map(|(index, _)| &layout.params()[index]);
    params.map(|param| of(&param.name, &param.place.shape) as u64).sum()
}
