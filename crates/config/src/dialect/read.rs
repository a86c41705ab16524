//! Reads the blocks of other programs that the settings of a run hold, and what they say is sharded.

use super::block::{Dialects, Ranks, ReadFile, join};
use super::{deepspeed, fsdp, left_out};
use crate::config::table as keys;
use crate::config::{Elems, LossScale, ShardingConfig, StateDict};
use crate::settings::problem::Problems;
use crate::settings::resolve::Settings;

/// Reads the blocks that the settings hold, or name the file of, and joins what they say to the settings.
pub fn read(settings: &mut Settings, file: &ReadFile<'_>, problems: &mut Problems) -> Dialects {
    let mut dialects = Dialects {
        deepspeed: deepspeed::read(settings, file, problems),
        fsdp: fsdp::read(settings, file, problems),
        notes: Vec::new(),
    };
    if dialects.deepspeed.is_some() && dialects.fsdp.is_some() {
        let names = [keys::DEEPSPEED.row, keys::FSDP.row, keys::FSDP_CONFIG.row];
        let message = "`deepspeed` and `fsdp` are mutually exclusive";
        settings.report(problems, message, &names, "keep one of them");
    }
    if dialects.fsdp.is_none() && settings.said(fsdp::OUTER_CLASSES).is_some() {
        dialects.notes.push(format!("`{}` counts with fsdp, which is off", fsdp::OUTER_CLASSES));
    }
    if let Some(block) = &dialects.deepspeed {
        dialects.notes.extend(deepspeed::scheduler_of_script(block, settings));
        let mut entries = deepspeed::entries(block, settings, problems);
        dialects.notes.extend(deepspeed::rate_of_scheduler(&mut entries, settings));
        join(entries, settings, problems);
        deepspeed::batch(block, settings, problems);
    }
    left_out::warmup(dialects.deepspeed.as_ref(), settings);
    dialects.notes.extend(dialects.deepspeed.iter().filter_map(|block| left_out::note(block, settings)));
    dialects
}

/// What the blocks of a run say of the engine and of checkpoints.
#[derive(Debug)]
pub struct Sharding {
    /// What is sharded across the ranks.
    pub config: ShardingConfig<Elems>,
    /// How the loss is scaled.
    pub loss_scale: LossScale,
    /// The form of checkpoints.
    pub state_dict: StateDict,
    /// Whether every checkpoint has whole weights beside the sharded ones.
    pub whole_weights_on_save: bool,
}

/// What is sharded across the ranks, and what goes with it.
pub fn shard(dialects: &mut Dialects, ranks: Ranks, problems: &mut Problems) -> Sharding {
    let notes = &mut dialects.notes;
    let mut sharding = Sharding {
        config: ShardingConfig::default(),
        loss_scale: LossScale::UNSET,
        state_dict: StateDict::Sharded,
        whole_weights_on_save: false,
    };
    match (&dialects.deepspeed, &dialects.fsdp) {
        (Some(block), _) => {
            sharding.config = deepspeed::shard(block, ranks, notes, problems);
            sharding.loss_scale = deepspeed::loss_scale(block, problems);
            sharding.whole_weights_on_save = deepspeed::whole_weights_on_save(block);
        }
        (None, Some(block)) => {
            (sharding.config, sharding.state_dict) = fsdp::shard(block, ranks, notes, problems);
        }
        (None, None) => {}
    }
    sharding
}
