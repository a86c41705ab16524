//! The flags of MiniMind's two scripts in one table, their defaults, and the settings of ours that they are.

use crate::config::flags::{Abbreviations, Flags};
use crate::config::keys::Range::{NotNegative, Positive};
use crate::config::keys::Status::{NoEffect, Used};
use crate::config::keys::ValueType::{Bool, Choice, Float, Int, Path, Text};
use crate::config::keys::{Row, Status};

/// The subcommand.
pub(super) const COMMAND: &str = "train_pretrain";

const ELSEWHERE: Status = NoEffect("ranks come from the launcher");

oarlock_config::key_table! {
    /// The flags.
    pub const KEYS = [
        DIM: usize = Row::flag(Int(1), "dim", "512", Used, "Width of the model (MiniMind2)"),
        N_LAYERS: usize = Row::flag(Int(1), "n_layers", "8", Used, "Its layers (MiniMind2)"),
        HIDDEN_SIZE: usize = Row::flag(Int(1), "hidden_size", "768", Used, "Width of the model (minimind-3)"),
        NUM_HIDDEN_LAYERS: usize = Row::flag(Int(1), "num_hidden_layers", "8", Used, "Its layers (minimind-3)"),
        VOCAB_SIZE: usize = Row::flag(Int(1), "vocab_size", "6400", Used, "Our own: tokens that it knows"),
        USE_MOE: String = Row::flag(Choice(&["0", "1", "false", "true", "False", "True"]), "use_moe", "0", Used, "A mixture of experts; not supported, only dense models are"),
        FROM_WEIGHT: String = Row::flag(Text, "from_weight", "none", Used, "Weights to begin with (minimind-3); not supported, only none is"),
        TOKENIZER_PATH: Option<String> = Row::flag(Path, "tokenizer_path", "", Used, "Our own: tokenizer.json or its folder; else it is looked for in ./model/minimind_tokenizer, ./model and ../model"),
        DATA_PATH: String = Row::flag(Path, "data_path", "./dataset/pretrain_hq.jsonl", Used, "The texts: lines of {\"text\": …} [minimind-3: ../dataset/pretrain_t2t_mini.jsonl]"),
        MAX_SEQ_LEN: usize = Row::flag(Int(2), "max_seq_len", "512", Used, "Tokens of a sequence [minimind-3: 340]"),
        EPOCHS: f64 = Row::flag(Float(Positive), "epochs", "1", Used, "Passes over the data [minimind-3: 2]"),
        BATCH_SIZE: usize = Row::flag(Int(1), "batch_size", "32", Used, "Sequences of a rank in one micro-step"),
        ACCUMULATION_STEPS: usize = Row::flag(Int(1), "accumulation_steps", "8", Used, "Micro-steps of an optimizer step"),
        LEARNING_RATE: f64 = Row::flag(Float(NotNegative), "learning_rate", "5e-4", Used, "Learning rate of MiniMind's cosine"),
        GRAD_CLIP: f64 = Row::flag(Float(NotNegative), "grad_clip", "1.0", Used, "Norm to which gradients are clipped"),
        DTYPE: String = Row::flag(Choice(&["bfloat16", "float16", "float32"]), "dtype", "bfloat16", Used, "What the model computes in; under `accelerate launch` its --mixed_precision decides"),
        OUT_DIR: String = Row::flag(Path, "out_dir", "out", Used, "The model goes to a folder in it, pretrain_{dim} (MiniMind2)"),
        SAVE_DIR: String = Row::flag(Path, "save_dir", "../out", Used, "The model goes to a folder in it, {save_weight}_{hidden_size} (minimind-3)"),
        SAVE_WEIGHT: String = Row::flag(Text, "save_weight", "pretrain", Used, "The first part of that folder's name (minimind-3)"),
        SAVE_INTERVAL: usize = Row::flag(Int(1), "save_interval", "100", Used, "Micro-steps between checkpoints [minimind-3: 1000]"),
        FROM_RESUME: String = Row::flag(Choice(&["0", "1"]), "from_resume", "0", Used, "Go on from the newest checkpoint, if there is one (minimind-3)"),
        RESUME_ANYWAY: bool = Row::flag(Bool, "resume_anyway", "false", Used, "Our own: go on although settings or data are others than in the run that saved the checkpoint"),
        LOG_INTERVAL: usize = Row::flag(Int(1), "log_interval", "100", Used, "Micro-steps between log lines"),
        GRADIENT_CHECKPOINTING: bool = Row::flag(Bool, "gradient_checkpointing", "false", Used, "Our own: compute activations again instead of keeping them"),
        MEMORY_CHECK: bool = Row::flag(Bool, "memory_check", "true", Used, "Our own: refuse a run that would not fit into memory"),
        PROFILE: bool = Row::flag(Bool, "profile", "false", Used, "Tell the time of data, forward, backward, reduction and optimizer, and memory"),
        PROFILE_INTERVAL: u64 = Row::flag(Int(1), "profile_interval", "10", Used, "Micro-steps between these tables"),
        USE_WANDB: bool = Row::flag(Bool, "use_wandb", "false", Used, "Write a run of wandb"),
        NUM_PROCESSES: Option<i64> = Row::flag(Int(1), "num_processes", "", Used, "Our own: ranks; a launcher's number must agree"),
        DEVICE: Option<String> = Row::flag(Text, "device", "", Used, "cuda or cpu [a GPU where there is one]"),
        CPU: bool = Row::flag(Bool, "cpu", "false", NoEffect("ranks are CPU processes"), "Our own: train on CPU"),
        WANDB_PROJECT: String = Row::flag(Text, "wandb_project", "MiniMind-Pretrain", Used, "Project of wandb"),
        NUM_WORKERS: usize = Row::flag(Int(0), "num_workers", "1", NoEffect("tokens are read from a mapped file"), "Processes that load data"),
        WARMUP_ITERS: usize = Row::flag(Int(0), "warmup_iters", "0", NoEffect("MiniMind's script reads it and never uses it"), "Warm-up"),
        USE_FLASH_ATTN: bool = Row::flag(Bool, "use_flash_attn", "false", NoEffect("attention never stores its S x S scores, whatever is written"), "Flash attention"),
        USE_COMPILE: String = Row::flag(Choice(&["0", "1"]), "use_compile", "0", NoEffect("there is nothing to compile"), "Compile the model (minimind-3)"),
        DDP: bool = Row::flag(Bool, "ddp", "false", ELSEWHERE, "Train on several ranks"),
        LOCAL_RANK: i64 = Row::flag(Int(-1), "local_rank", "-1", ELSEWHERE, "Rank on this machine"),
    ];
}

/// The flags. A default is that of MiniMind2; [`NEWEST`] holds those that are others in minimind-3.
#[rustfmt::skip]
pub const FLAGS: Flags = Flags {
    command: COMMAND,
    bare_switches: false,
    operands: "",
    example: "oarlock train_pretrain --data_path pretrain.jsonl --epochs 1",
    about: "Pretrains a MiniMind from scratch: MiniMind2, or minimind-3 where --hidden_size or another flag of its \
            script is given. Intervals count micro-steps, as MiniMind does.",
    keys: KEYS,
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[
        "vocab_size", "tokenizer_path", "num_processes", "cpu", "resume_anyway", "gradient_checkpointing", "memory_check",
    ]),
};

/// Defaults of minimind-3 that are others than MiniMind2's.
pub const NEWEST: [(&str, &str); 4] = [
    ("data_path", "../dataset/pretrain_t2t_mini.jsonl"),
    ("max_seq_len", "340"),
    ("epochs", "2"),
    ("save_interval", "1000"),
];

/// What stands in MiniMind's scripts and has no flag, as settings of ours. It logs the loss of its first step, keeps
/// one file of weights, and leaves AdamW's decay as torch has it.
pub const MINIMIND2_FIXED: &str = "model_config.model_type: minimind\nlr_scheduler_type: minimind_seed\nseed: 1337\n\
                               logging_first_step: true\n";
/// The same of minimind-3.
pub const MINIMIND3_FIXED: &str =
    "model_config.model_type: minimind3\nlr_scheduler_type: minimind3\nseed: 42\n";
/// What both have.
pub const BOTH_FIXED: &str =
    "optim: adamw_torch\nweight_decay: 0.01\nminimind_rows: true\nsave_total_limit: 1\n";

/// Flags that are settings of ours under another name.
pub const RENAMED: [(&Row, &str); 17] = [
    (DIM.row, "model_config.hidden_size"),
    (N_LAYERS.row, "model_config.num_hidden_layers"),
    (HIDDEN_SIZE.row, "model_config.hidden_size"),
    (NUM_HIDDEN_LAYERS.row, "model_config.num_hidden_layers"),
    (VOCAB_SIZE.row, "model_config.vocab_size"),
    (DATA_PATH.row, "dataset"),
    (MAX_SEQ_LEN.row, "cutoff_len"),
    (EPOCHS.row, "num_train_epochs"),
    (BATCH_SIZE.row, "per_device_train_batch_size"),
    (ACCUMULATION_STEPS.row, "gradient_accumulation_steps"),
    (LEARNING_RATE.row, "learning_rate"),
    (GRAD_CLIP.row, "max_grad_norm"),
    (GRADIENT_CHECKPOINTING.row, "gradient_checkpointing"),
    (MEMORY_CHECK.row, "memory_check"),
    (PROFILE.row, "profile"),
    (WANDB_PROJECT.row, "wandb_project"),
    (NUM_PROCESSES.row, "num_processes"),
];

/// Intervals, which MiniMind counts in micro-steps and we in optimizer steps.
pub const INTERVALS: [(&Row, &str); 3] = [
    (LOG_INTERVAL.row, "logging_steps"),
    (SAVE_INTERVAL.row, "save_steps"),
    (PROFILE_INTERVAL.row, "profile_interval"),
];
