//! A checkpoint of DeepSpeed's ZeRO optimizers: which element of which state lies where in the ranks' files.
//!
//! ```text
//! TAG/mp_rank_00_model_states.pt                     stages 1 and 2: names and shapes, steps, configuration
//! TAG/zero_pp_rank_R_mp_rank_00_model_states.pt      stage 3: the same, one for each rank
//! TAG/[bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt     f32 weights and moments of rank R, flat
//! ```
//!
//! Stages 1 and 2: all parameters of a group lie behind each other, with paddings, and the whole is sharded over the ranks; the
//! padding at the end is there in the moments and not in the weights. Stage 3: each parameter is sharded over the
//! ranks, rounded up, and a rank's parts lie behind each other through all of its groups.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oarlock::shard::MASTER;
use oarlock_tensor::DType;
use serde_json::{Map, Value as Json, json};

use super::container::{Run, TorchFile};
use super::error::ImportProblem;
use super::model_states::Model;
use super::pickle::{Value, View};
use super::pieces::{MODEL_STATES, Parameter, Parameters, Piece, cut, n_elems_of, share_of};
use super::refusal::{missing, need, refused, unexpected, unsupported};
use crate::error::{Error, Result};

/// The kinds of state of a trained parameter.
pub const KINDS: [&str; 3] = [MASTER, "exp_avg", "exp_avg_sq"];

const OPTIM_STATES: &str = "_optim_states.pt";

/// A checkpoint of DeepSpeed.
pub struct DeepSpeedCheckpoint {
    /// The files that were read.
    pub files: Vec<TorchFile>,
    /// By their names in transformers.
    pub parameters: Parameters,
    /// The ranks that wrote it.
    pub n_ranks: usize,
    /// 1, 2 or 3.
    pub stage: u64,
    /// The dtype of the working copies.
    pub dtype: DType,
    /// `adamw` or `adam`.
    pub rule: &'static str,
    /// Updates of the optimizer.
    pub optimizer_steps: u64,
    /// Steps of the loop, skipped ones included.
    pub steps: u64,
    /// Samples of all ranks so far.
    pub samples: u64,
    /// The loss scale of an f16 run, as an Oarlock run stores it.
    pub loss_scale: Option<Json>,
    /// Numbers and texts that the training loop had kept.
    pub client: Map<String, Json>,
}

/// What a rank's file says.
struct Rank {
    /// Of each group, where a kind of state lies.
    groups: Vec<[Run; 3]>,
    stage: u64,
    n_ranks: u64,
    optimizer_steps: Option<u64>,
    decoupled_decay: Option<bool>,
    loss_scale: Option<Json>,
    /// Elements between the parameters of each group.
    paddings: Option<Vec<Vec<u64>>>,
}

/// Reads what the files of the folder `dir` say; their elements are read later.
pub fn open(dir: &Path) -> Result<DeepSpeedCheckpoint> {
    if ["", "pytorch_model_fsdp_0", "optimizer_0"].iter().any(|of| dir.join(of).join(".metadata").is_file()) {
        let why = "it is of torch.distributed.checkpoint (FSDP, Accelerate), which is not imported yet";
        return Err(unsupported(dir, why));
    }
    let mut files = Vec::new();
    let mut ranks = Vec::new();
    for path in optimizer_files(dir)? {
        let (file, pickle) = TorchFile::open(&path)?;
        ranks.push(rank_of(&file, pickle.root())?);
        files.push(file);
    }
    let missing = || missing(dir, "zero_pp_rank_0_mp_rank_00_optim_states.pt");
    let first = ranks.first().ok_or_else(missing)?;
    if first.n_ranks != ranks.len() as u64 {
        return Err(refused(dir, ImportProblem::Ranks { found: ranks.len(), expected: first.n_ranks }));
    }
    let differs = |rank: &&Rank| rank.stage != first.stage || rank.groups.len() != first.groups.len();
    if ranks.iter().any(|rank| differs(&rank)) {
        return Err(unexpected(
            dir,
            "the stage or the number of groups",
            "the same in the files of all ranks",
        ));
    }
    let model_path = match first.stage {
        3 => dir.join(format!("zero_pp_rank_0_{MODEL_STATES}")),
        _ => dir.join(MODEL_STATES),
    };
    let (model_file, pickle) = TorchFile::open(&model_path)?;
    let model = Model { path: &model_path, view: pickle.root() };
    model.check()?;
    let mut parameters = match first.stage {
        3 => of_stage_3(&model, &ranks)?,
        _ => of_stages_1_and_2(&model, &ranks)?,
    };
    let dtype = model.dtype(&model_file, &parameters)?;
    match first.stage {
        3 => model.frozen_of_stage_3(dir, first.n_ranks, &mut files, &mut parameters)?,
        _ => model.frozen_whole(&model_file, files.len(), &mut parameters)?,
    }
    // In stage 3 it may be among them for its frozen parameters.
    if files.iter().all(|file| file.path != model_file.path) {
        files.push(model_file);
    }
    let (steps, skipped) = (model.count("global_steps")?, model.count("skipped_steps")?);
    Ok(DeepSpeedCheckpoint {
        parameters: model.renamed(parameters)?,
        n_ranks: ranks.len(),
        stage: first.stage,
        dtype,
        rule: model.rule(first.decoupled_decay)?,
        optimizer_steps: first.optimizer_steps.unwrap_or(steps.saturating_sub(skipped)),
        steps,
        samples: model.count("global_samples")?,
        loss_scale: first.loss_scale.clone().filter(|_| dtype == DType::F16),
        client: model.client(),
        files,
    })
}

/// The files with optimizer states, by rank.
fn optimizer_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let read = std::fs::read_dir(dir).map_err(Error::io("read", dir))?;
    for entry in read {
        let entry = entry.map_err(Error::io("read", dir))?;
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        let Some(stem) = name.strip_suffix(OPTIM_STATES) else { continue };
        let rank = stem.strip_suffix("_mp_rank_00").and_then(|stem| stem.rsplit_once("zero_pp_rank_"));
        let Some(rank) = rank.and_then(|(_, rank)| rank.parse::<u64>().ok()) else {
            let why = "its name says tensor, pipeline or expert parallelism, which is not imported";
            return Err(unsupported(&path, why));
        };
        found.push((rank, path));
    }
    found.sort_unstable();
    if found.iter().zip(0..).any(|((rank, _), expected)| *rank != expected) {
        let expected = found.last().map_or(0, |(rank, _)| rank.saturating_add(1));
        return Err(refused(dir, ImportProblem::Ranks { found: found.len(), expected }));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn rank_of(file: &TorchFile, root: View<'_>) -> Result<Rank> {
    let path = &file.path;
    let zero = need(path, root, "optimizer_state_dict")?;
    // The optimizer that takes gradients in f32 (bf16, stage 1) does not say it.
    let stage = zero.get("zero_stage").map_or(Some(1), View::count);
    let stage = stage.filter(|stage| (1..=3).contains(stage));
    let stage = stage.ok_or_else(|| unexpected(path, "zero_stage", "1, 2 or 3"))?;
    if zero.get("ds_zero_partition_groups").is_some() {
        let why = "its parameters are sharded within groups of ranks (MiCS), which is not imported";
        return Err(unsupported(path, why));
    }
    let counts = need(path, zero, "partition_count")?;
    let n_ranks = match counts.elements() {
        Some(counts) => counts.filter_map(View::count).max(),
        None => counts.count(),
    };
    let n_ranks = n_ranks.ok_or_else(|| unexpected(path, "partition_count", "a number of ranks"))?;
    let (weights, base) = match stage {
        3 => ("fp32_flat_groups", "optimizer_state_dict"),
        _ => ("single_partition_of_fp32_groups", "base_optimizer_state"),
    };
    let base = need(path, zero, base)?;
    if base.elements().is_some() {
        let why = "it was saved with elastic_checkpoint, which is not imported";
        return Err(unsupported(path, why));
    }
    let (states, mut groups, mut optimizer_steps) = (need(path, base, "state")?, Vec::new(), None);
    let weights = need(path, zero, weights)?.elements();
    let weights = weights.ok_or_else(|| unexpected(path, "the f32 weights", "a list of groups"))?;
    for (index, weights) in weights.enumerate() {
        let state = states.at(index);
        let state = state.ok_or_else(|| missing(path, format!("the optimizer's state of group {index}")))?;
        check_kinds(path, state)?;
        let steps = match need(path, state, "step") {
            Ok(step) => Some(steps_of(file, step)?),
            Err(_) => None,
        };
        if index > 0 && steps != optimizer_steps {
            return Err(unexpected(path, "step", "the same in all groups"));
        }
        optimizer_steps = steps;
        groups.push([
            file.tensor("of f32 weights", weights)?.0,
            file.tensor("exp_avg", need(path, state, KINDS[1])?)?.0,
            file.tensor("exp_avg_sq", need(path, state, KINDS[2])?)?.0,
        ]);
    }
    let group = base.get("param_groups").and_then(|groups| groups.elements()?.next());
    let decay = group.and_then(|group| group.get("decoupled_weight_decay"));
    Ok(Rank {
        groups,
        stage,
        n_ranks,
        optimizer_steps: optimizer_steps.or_else(|| group?.get("step")?.count()),
        decoupled_decay: decay.map(|decay| *decay.value == Value::Bool(true)),
        loss_scale: zero.get("loss_scaler").and_then(loss_scale_of),
        paddings: zero.get("param_alignment_paddings").and_then(|groups| {
            groups.elements()?.map(|group| group.elements()?.map(View::count).collect()).collect()
        }),
    })
}

/// Whether it is the state of Adam or AdamW.
fn check_kinds(path: &Path, state: View<'_>) -> Result<()> {
    let known = |key: &str| key == "step" || KINDS.contains(&key);
    let other = state.items().into_iter().flatten().filter_map(|(key, _)| key.text()).find(|key| !known(key));
    other.map_or(Ok(()), |key| {
        let why = format!("its optimizer keeps {key}; only the states of Adam and AdamW are imported");
        Err(unsupported(path, why))
    })
}

/// The updates, which torch keeps in a tensor.
fn steps_of(file: &TorchFile, step: View<'_>) -> Result<u64> {
    if let Some(steps) = step.count() {
        return Ok(steps);
    }
    let (run, _) = file.tensor("step", step)?;
    let mut steps = [f32::NAN];
    if run.n_elems == 1 {
        file.read(run, &mut steps)?;
    }
    let whole = steps[0] >= 0.0 && steps[0].fract() == 0.0 && steps[0] < 16_777_216.0;
    whole.then_some(steps[0] as u64).ok_or_else(|| unexpected(&file.path, "step", "a number of updates"))
}

/// The state of a dynamic loss scale; a fixed one is in the configuration.
pub fn loss_scale_of(scaler: View<'_>) -> Option<Json> {
    let last_overflow = match scaler.get("last_overflow_iter")?.value {
        Value::Int(number) => *number,
        _ => return None,
    };
    Some(json!({
        "scale": scaler.get("cur_scale")?.number()?,
        "iteration": scaler.get("cur_iter")?.count()?,
        "last_overflow": last_overflow,
        "hysteresis": scaler.get("cur_hysteresis")?.count()?,
    }))
}

fn of_stages_1_and_2(model: &Model<'_>, ranks: &[Rank]) -> Result<Parameters> {
    let mut parameters = Parameters::new();
    let groups = model.groups()?;
    if groups.len() != ranks[0].groups.len() {
        return Err(unexpected(model.path, "param_shapes", "of as many groups as the optimizer has"));
    }
    for (group, shapes) in groups.into_iter().enumerate() {
        let rows = [0, 1, 2].map(|kind| {
            let piece = |(file, rank): (usize, &Rank)| Piece { file, run: rank.groups[group][kind] };
            ranks.iter().enumerate().map(piece).collect::<Vec<_>>()
        });
        let paddings = ranks[0].paddings.as_ref().and_then(|paddings| paddings.get(group));
        let mut first = 0u64;
        for (index, (name, shape)) in shapes.into_iter().enumerate() {
            let n_elems = n_elems_of(&shape);
            let mut state = BTreeMap::new();
            for (kind, row) in KINDS.into_iter().zip(&rows) {
                let short = || refused(model.path, ImportProblem::Short { kind, name: name.clone() });
                state.insert(kind, cut(row, first, n_elems).ok_or_else(short)?);
            }
            parameters.insert(name, Parameter { shape, state });
            let padding = paddings.and_then(|paddings| paddings.get(index)).copied().unwrap_or(0);
            first = first.saturating_add(n_elems).saturating_add(padding);
        }
        // DeepSpeed rounds up to twice the number of ranks; what is more than that is of other parameters.
        let (found, align) = (rows[0].iter().map(|piece| piece.run.n_elems).sum(), 2 * ranks.len() as u64);
        if first.checked_next_multiple_of(align) != u64::checked_next_multiple_of(found, align) {
            return Err(refused(model.path, ImportProblem::Long { found, expected: first }));
        }
    }
    Ok(parameters)
}

fn of_stage_3(model: &Model<'_>, ranks: &[Rank]) -> Result<Parameters> {
    let mut parameters = Parameters::new();
    let rows: Vec<[Vec<Piece>; 3]> = ranks
        .iter()
        .enumerate()
        .map(|(file, rank)| {
            [0, 1, 2].map(|kind| rank.groups.iter().map(|runs| Piece { file, run: runs[kind] }).collect())
        })
        .collect();
    let n_ranks = ranks.len() as u64;
    let mut first = 0u64;
    for (name, shape) in model.groups()?.into_iter().flatten() {
        let n_elems = n_elems_of(&shape);
        let mut state = BTreeMap::new();
        for (index, kind) in KINDS.into_iter().enumerate() {
            let mut pieces = Vec::new();
            for (row, rank) in rows.iter().zip(0..) {
                let short = || refused(model.path, ImportProblem::Short { kind, name: name.clone() });
                pieces.extend(cut(&row[index], first, share_of(n_elems, rank, n_ranks)).ok_or_else(short)?);
            }
            state.insert(kind, pieces);
        }
        parameters.insert(name, Parameter { shape, state });
        first = first.saturating_add(n_elems.div_ceil(n_ranks));
    }
    for found in rows.iter().map(|row| row[0].iter().map(|piece| piece.run.n_elems).sum()) {
        if found != first {
            return Err(refused(model.path, ImportProblem::Long { found, expected: first }));
        }
    }
    Ok(parameters)
}
