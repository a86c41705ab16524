//! The keys of pipeline parallelism, and what does not go with it.

use oarlock::config::{MOST_RANKS, PartitionMethod, PipelineArgs, Placement, ShardArgs, Wrap};
use oarlock::settings::problem::Problems;
use oarlock::settings::resolve::Settings;

const STAGES: &str = "pipeline_model_parallel_size";
const SCHEDULE: &str = "pipeline_schedule";
const VIRTUAL: &str = "num_virtual_stages";
const PARTITION: &str = "partition_method";

/// The stages of the model that the settings ask for.
pub fn pipeline(settings: &Settings, shard: &ShardArgs, problems: &mut Problems) -> PipelineArgs {
    let stages = settings.usize(STAGES).min(MOST_RANKS);
    let written = settings.usize(VIRTUAL);
    let is_interleaved = settings.word(SCHEDULE) == "interleaved";
    let mut report = |message: &str, names: &[&str], help: &str| {
        settings.report(problems, message, names, help);
    };
    let partition = match settings.word(PARTITION).parse::<PartitionMethod>() {
        Ok(partition) => partition,
        Err(message) => {
            report(&message, &[PARTITION], "the methods are DeepSpeed's");
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
            &[SCHEDULE, VIRTUAL],
            "write `pipeline_schedule: interleaved` with `num_virtual_stages` of at least 2, or remove both",
        );
    }
    let args = PipelineArgs { stages, virtual_stages, partition };
    if !args.is_on() {
        return args;
    }
    if let Some(ranks) = settings.known_ranks().filter(|ranks| !ranks.is_multiple_of(stages)) {
        report(
            &format!("{stages} stages must divide the {ranks} ranks"),
            &[STAGES, "num_processes"],
            &format!("start a multiple of {stages} ranks"),
        );
    }
    if shard.gradients == Placement::Sharded {
        report(
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            &[STAGES, "deepspeed", "fsdp"],
            "use stage 0 or 1 (NO_SHARD in FSDP's terms), or one stage of the pipeline",
        );
    }
    if shard.wrap != Wrap::Declared {
        report(
            "a wrap policy does not go with pipeline parallelism, whose units are those of the model",
            &[STAGES, "fsdp"],
            "remove the policy",
        );
    }
    if virtual_stages > 1 && !settings.usize("gradient_accumulation_steps").is_multiple_of(stages) {
        report(
            "the interleaved schedule takes micro-batches in groups of as many as there are stages",
            &["gradient_accumulation_steps", STAGES],
            &format!("make it a multiple of {stages}, or use 1F1B"),
        );
    }
    if !matches!(settings.word("stage"), "pt" | "sft") {
        report(
            "pipeline parallelism is for stages pt and sft: the others need the whole model on each rank",
            &[STAGES, "stage"],
            "write `stage: pt` or `stage: sft`, or remove the stages",
        );
    }
    args
}
