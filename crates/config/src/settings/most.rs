//! The largest counts that make sense: beyond them a number is a slip, and a machine would start threads or take memory
//! without end before anybody noticed.

use super::keys::Row;
use super::node::Node;
use super::value::{self, Value};

/// Threads, at least a hundred for each core of the largest machines.
const THREADS: i64 = 4096;
/// Ranks, machines and groups of them.
const RANKS: i64 = 1 << 20;
/// Sequences of a batch, and passes of a step.
const BATCH: i64 = 1 << 24;
/// Tokens of a sequence.
const TOKENS: i64 = 1 << 30;
/// Sizes of matrices, blocks and buffers that a method adds.
const SIZES: i64 = 1 << 24;
/// Everything else: what numbers with a point still tell apart, so that a step or a byte more is noticed.
pub const COUNT: i64 = 1 << 53;

/// What is smaller than [`COUNT`], by the last part of a key.
const MOST: &[(i64, &[&str])] = &[
    (
        THREADS,
        &[
            "preprocessing_num_workers",
            "dataloader_num_workers",
            "dataloader_prefetch_factor",
            "num_threads_per_process",
            "num_cpu_threads_per_process",
            "ray_num_workers",
            "thread_count",
            "intra_op_parallelism",
            "buffer_count",
            "queue_depth",
        ],
    ),
    (
        RANKS,
        &[
            "num_processes",
            "num_machines",
            "machine_rank",
            "sequence_parallel_size",
            "pipeline_model_parallel_size",
            "num_virtual_stages",
            "tensor_model_parallel_size",
            "expert_model_parallel_size",
            "context_parallel_size",
            "zero_hpz_partition_size",
            "mics_shard_size",
            "local_rank",
            "max_restarts",
        ],
    ),
    (
        BATCH,
        &[
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "gradient_accumulation_steps",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "eval_accumulation_steps",
            "preprocessing_batch_size",
        ],
    ),
    (TOKENS, &["cutoff_len", "max_new_tokens", "vllm_maxlen", "sglang_maxlen", "ddp_timeout"]),
    (
        SIZES,
        &[
            "lora_rank",
            "lora_alpha",
            "oft_rank",
            "oft_block_size",
            "galore_rank",
            "apollo_rank",
            "num_beams",
            "eval_num_beams",
            "pissa_iter",
            "ns_steps",
            "block",
            "num_local_blocks",
            "num_global_blocks",
            "num_random_blocks",
            "num_sliding_window_blocks",
            "num_different_global_patterns",
        ],
    ),
];

/// The value of a node for a key; `None` where it is of another type, or a count beyond all sense.
pub fn read(key: &Row, node: &Node) -> Option<Value> {
    value::read(key.value_type, node).filter(|value| match value {
        Value::Int(count) => *count <= most(key.name),
        _ => true,
    })
}

/// What a key takes, in words, as in "takes …"; with the largest count where the node is beyond it.
pub fn describe(key: &Row, node: &Node) -> String {
    let (described, most) = (key.value_type.describe(), most(key.name));
    match value::read(key.value_type, node) {
        Some(Value::Int(count)) if count > most => format!("{described} and at most {most}"),
        _ => described,
    }
}

/// The largest value of a key that takes whole numbers.
fn most(name: &str) -> i64 {
    let last = name.rsplit('.').next().unwrap_or(name);
    // Seeds are not counts.
    if last.ends_with("seed") {
        return i64::MAX;
    }
    MOST.iter().find(|(_, names)| names.contains(&last)).map_or(COUNT, |(most, _)| *most)
}
