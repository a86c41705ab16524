//! Processes: how many ranks there are, where they compute, and how long they wait for each other.

use std::time::Duration;

use oarlock_tensor::DeviceKind;

use super::pipeline::PipelineArgs;
use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{Bool, Choice, Int, List, Map, MapOrPath, Text};
use crate::settings::node::Entry;
use crate::settings::section::section;
use crate::settings::value::AUTO;
use crate::settings::value::Value;

/// The most ranks of a run, and of a machine, that a number is believed to mean.
pub const MOST_RANKS: usize = 1 << 16;

section! {
    /// Processes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RankArgs of Ranks with RankParts {
        /// Where tensors lie and ops run.
        device: DeviceKind,
        /// How the model is divided into stages.
        pipeline: PipelineArgs,
    }

    /// The keys of processes.
    pub const RANKS = [
        NUM_PROCESSES: usize = (Int(1), "num_processes", "1", Used, "Our own: number of ranks, each a process; must agree with WORLD_SIZE and NPROC_PER_NODE") => Nothing num_processes;
        SEQUENCE_PARALLEL_SIZE: usize = (Int(1), "sequence_parallel_size", "1", Used, "Ranks that share each sequence (DeepSpeed-Ulysses); must divide the attention heads and cutoff_len; batch sizes then count groups of ranks") => Nothing sequence_parallel;
        NUM_THREADS_PER_PROCESS: Option<usize> = (Int(1), "num_threads_per_process", "", Used, "Our own: threads of a rank; unset: the cores divided by the ranks") => Unrecorded threads;
        DEVICE: String = (Choice(&["auto", "cpu", "cuda"]), "device", "auto", Used, "Our own: device of the ranks; auto: NVIDIA GPUs if there are any, else the CPU; cuda: GPUs, shared if there are more ranks (experimental: checked on one NVIDIA H200, several GPUs only in emulation)");
        CPU_PATH: String = (Choice(&["auto", "portable", "portable_fma", "avx2", "avx512", "avx512bf16"]), "cpu_path", "auto", Used, "Our own: instruction set of the kernels; auto: the fastest that this CPU has; portable_fma: plain Rust with the bits of avx2 and avx512, slow") => ByHand cpu_path: Option<String>, "The name of the kernels' instruction set; `None`: the fastest of the CPU." = |settings| Some(settings.get(CPU_PATH).to_owned()).filter(|name| name != AUTO);
        DDP_BACKEND: Option<String> = (Choice(&["nccl", "gloo", "mpi", "ccl", "hccl", "cncl", "mccl"]), "ddp_backend", "", NoEffect("ranks meet in shared memory, over Gloo or through MPI (OARLOCK_TRANSPORT)"), "Backend of collectives");
        DDP_TIMEOUT: u64 = (Int(1), "ddp_timeout", "1800", Used, "Seconds that ranks wait in a collective before the run fails with an error that names the missing rank; a note names it after 5 seconds") => Unrecorded timeout: Duration, "How long ranks wait in a collective for one that is alive." = |settings| Duration::from_secs(settings.get(DDP_TIMEOUT));
        DDP_BUCKET_CAP_MB: Option<usize> = (Int(1), "ddp_bucket_cap_mb", "", NoEffect("a unit is reduced as one buffer, while others compute"), "Size of gradient buckets");
        DDP_FIND_UNUSED_PARAMETERS: bool = (Bool, "ddp_find_unused_parameters", "", NoEffect("untouched parameters have a zero gradient on all ranks"), "Look for unused parameters");
        DDP_BROADCAST_BUFFERS: bool = (Bool, "ddp_broadcast_buffers", "", NoEffect("the engine lays out and reduces its own buffers"), "Broadcast buffers");
        DDP_STATIC_GRAPH: bool = (Bool, "ddp_static_graph", "", NoEffect("the engine lays out and reduces its own buffers"), "Whether every step is alike");
        LOCAL_RANK: i64 = (Int(-1), "local_rank", "-1", NoEffect("a rank reads its place from the environment of its launcher"), "Rank on this machine");
        DEEPSPEED: Value = (MapOrPath, "deepspeed", "", Used, "DeepSpeed configuration: a file or a mapping");
        FSDP: Vec<String> = (List, "fsdp", "", Used, "FSDP options: a strategy such as full_shard or shard_grad_op, and offload");
        FSDP_CONFIG: Value = (MapOrPath, "fsdp_config", "", Used, "FSDP configuration: a file or a mapping");
        FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP: Vec<String> = (List, "fsdp_transformer_layer_cls_to_wrap", "", Used, "Classes that FSDP wraps, as in fsdp_config");
        ACCELERATOR_CONFIG: Vec<Entry> = (Map, "accelerator_config", "", Used, "Accelerate configuration: dispatch_batches, use_seedable_sampler and non_blocking change nothing here; split_batches and even_batches have their defaults");
        PARALLELISM_CONFIG: Vec<Entry> = (Map, "parallelism_config", "", Later("write fsdp_config, sequence_parallel_size or pipeline_model_parallel_size"), "Parallelism configuration");
        MASTER_ADDR: Option<String> = (Text, "master_addr", "", NoEffect("a rank reads the address from the environment of its launcher"), "Address of the first machine");
        MASTER_PORT: Option<String> = (Text, "master_port", "", NoEffect("a rank reads the port from the environment of its launcher"), "Port of the first machine");
    ];
}
