//! The tests of the program in one binary, so that it is linked once. `cargo test -p oarlock-cli --test suite launcher`
//! runs those of a module.

#![allow(clippy::disallowed_methods, reason = "what is expected is compared within tolerances")]

mod accelerate;
mod accelerate_commands;
mod adapters;
mod basic_config;
mod best;
mod cli;
mod common;
mod completions;
mod eval;
mod examples;
mod faults;
mod features;
mod folders;
mod front_ends;
mod fuzz;
mod generate;
mod gguf;
mod gloo;
mod gpu;
mod gpu_check;
mod gpu_compile;
mod gpu_devices;
mod gpu_offload;
mod gpu_stages;
mod gpu_step;
mod hostile_files;
mod hub;
mod import;
mod init;
mod launched;
mod launcher;
mod limits;
mod links;
mod llamafactory_files;
mod machines;
mod memory;
mod minimind;
mod monitors;
#[cfg(feature = "mpi")]
mod mpi;
mod new_tokens;
mod pages;
mod pipeline;
mod plan;
mod preference;
mod preflight;
mod pretrain_loop;
mod quantization;
mod raft;
mod recipes;
mod rendezvous;
mod restart;
mod secrets;
mod serve;
mod sft;
mod strangers;
mod transcripts;
mod unsound;

/// As in the program: what runs templates of others counts their memory.
#[global_allocator]
static ALLOCATOR: oarlock::MeteredAllocator = oarlock::MeteredAllocator;
