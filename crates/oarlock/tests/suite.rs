//! The tests of the library in one binary, so that it is linked once. `cargo test -p oarlock --test suite placements`
//! runs those of a module. Tests that start their own program again, or measure it, are binaries of their own.

#![allow(clippy::disallowed_methods, reason = "what is expected is compared within tolerances")]

mod accelerator_collectives;
mod accelerator_loops;
mod accelerator_metrics;
mod accelerator_state;
mod accelerator_tracking;
mod accelerator_windows;
mod adapters;
mod common;
mod corpus;
mod custom_rule;
mod damaged_data;
mod dataloader;
mod deepspeed;
mod distributed;
mod ema;
mod examples_ddp;
mod examples_guides;
mod families;
mod fine_tuning;
mod fused_adapters;
mod gradients;
mod images;
mod layers;
mod low_rank;
mod misuse;
mod modules;
mod new_tokens;
mod objective;
mod open_decoder;
mod own_loop;
mod own_model;
mod param_groups;
mod parity;
mod paths;
mod pipeline;
mod placements;
mod preference;
mod quantized;
mod quantized_folders;
mod ranks;
mod recompute;
mod recurrent;
mod reshard;
mod rollouts;
mod sequence_parallel;
mod sft;
mod sparse_attention;
mod strict_device;
mod twins;
mod unfit_weights;

/// As in the program `oarlock`: what runs templates of others counts their memory.
#[global_allocator]
static ALLOCATOR: oarlock::MeteredAllocator = oarlock::MeteredAllocator;
