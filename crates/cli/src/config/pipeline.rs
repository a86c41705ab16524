//! The keys of pipeline parallelism, and what does not go with it.

use oarlock::config::{Elems, MOST_RANKS, PartitionMethod, PipelineArgs, Placement, ShardingConfig, Wrap};
use oarlock_config::settings::keys::{Key, Row};
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::{objective, table as keys};

const STAGES: Key<usize> = keys::PIPELINE_MODEL_PARALLEL_SIZE;
const SCHEDULE: Key<String> = keys::PIPELINE_SCHEDULE;
const VIRTUAL: Key<usize> = keys::NUM_VIRTUAL_STAGES;
const PARTITION: Key<String> = keys::PARTITION_METHOD;

/// The stages of the model that the settings ask for.
pub fn pipeline(settings: &Settings, shard: &ShardingConfig<Elems>, problems: &mut Problems) -> PipelineArgs {
    let stages = settings.get(STAGES).min(MOST_RANKS);
    let written = settings.get(VIRTUAL);
    let is_interleaved = settings.get(SCHEDULE) == "interleaved";
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    let partition = match settings.word(PARTITION).parse::<PartitionMethod>() {
        Ok(partition) => partition,
        Err(message) => {
            report(&message, &[PARTITION.row], "the methods are DeepSpeed's");
            PartitionMethod::Parameters
        }
    };
    let virtual_stages = match (is_interleaved, written) {
        (true, 1) if settings.said(VIRTUAL).is_none() => 2,
        (_, written) => written,
    };
    if settings.said(SCHEDULE).is_some() && is_interleaved != (virtual_stages > 1) {
        report(
            "the interleaved schedule has several parts of the model on each stage, and 1F1B has one",
            &[SCHEDULE.row, VIRTUAL.row],
            "write `pipeline_schedule: interleaved` with `num_virtual_stages` of at least 2, or remove both",
        );
    }
    let args = PipelineArgs { stages, virtual_stages, partition };
    if !args.is_on() {
        return args;
    }
    if let Some(ranks) = settings.known(keys::NUM_PROCESSES).filter(|ranks| !ranks.is_multiple_of(stages)) {
        report(
            &format!("{stages} stages must divide the {ranks} ranks"),
            &[STAGES.row, keys::NUM_PROCESSES.row],
            &format!("start a multiple of {stages} ranks"),
        );
    }
    if shard.placements.gradients == Placement::Sharded {
        report(
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            &[STAGES.row, keys::DEEPSPEED.row, keys::FSDP.row],
            "use stage 0 or 1 (NO_SHARD in FSDP's terms), or one stage of the pipeline",
        );
    }
    if shard.wrap != Wrap::Declared {
        report(
            "a wrap policy does not go with pipeline parallelism, whose units are those of the model",
            &[STAGES.row, keys::FSDP.row],
            "remove the policy",
        );
    }
    if virtual_stages > 1 && !settings.get(keys::GRADIENT_ACCUMULATION_STEPS).is_multiple_of(stages) {
        report(
            "the interleaved schedule takes micro-batches in groups of as many as there are stages",
            &[keys::GRADIENT_ACCUMULATION_STEPS.row, STAGES.row],
            &format!("make it a multiple of {stages}, or use 1F1B"),
        );
    }
    let (divided, words) = objective::those(|stage| !stage.compares() && !stage.makes_answers);
    if !divided.contains(&objective::of(settings).name()) {
        report(
            &format!(
                "pipeline parallelism is for stages {words}: the others need the whole model on each rank"
            ),
            &[STAGES.row, keys::STAGE.row],
            "write `stage: pt` or `stage: sft`, or remove the stages",
        );
    }
    args
}
