//! Front ends: the commands of other programs. Each turns its words into a [`job::Job`]: what to start, and the
//! training that is meant, where it is one of ours.

mod accelerate;
pub(crate) mod data;
pub mod deepspeed;
pub(crate) mod fetch;
mod follows;
pub(crate) mod gpus;
pub mod job;
mod llama_cpp;
pub mod llamafactory;
pub mod minimind;
mod ours;
pub mod recipes;
pub mod script;
pub mod torchrun;
pub mod training;
mod variable;

use std::time::SystemTime;

use crate::console::Outcome;
pub use follows::Follows;
pub(crate) use variable::env_var;

/// A command that this program answers to, as a subcommand and under its own name.
pub struct FrontEnd {
    /// Its names; the first one is that of the subcommand.
    pub names: &'static [&'static str],
    /// What it does, in a line.
    pub about: &'static str,
    /// Runs it with the words that follow its name; the time is when this process began.
    pub(crate) run: fn(&[String], SystemTime) -> Outcome,
    /// What may follow these words behind its name.
    pub(crate) follows: fn(&[String]) -> Follows,
}

/// All front ends.
pub const ALL: &[FrontEnd] = &[
    FrontEnd {
        names: &["accelerate"],
        about: "The commands of Accelerate",
        run: accelerate::run,
        follows: accelerate::follows,
    },
    FrontEnd {
        names: &["accelerate-launch"],
        about: "The same as accelerate launch",
        run: accelerate::run_launch,
        follows: |_| accelerate::follows_launch(),
    },
    FrontEnd {
        names: &["train_pretrain"],
        about: "Pretrain a MiniMind with the flags of its script",
        run: minimind::run,
        follows: |_| Follows::Flags(&minimind::FLAGS),
    },
    FrontEnd {
        names: &["serve_openai_api"],
        about: "Serve a MiniMind with the flags of its script",
        run: minimind::serve,
        follows: |_| Follows::Flags(&minimind::SERVE_FLAGS),
    },
    FrontEnd {
        names: &["torchrun"],
        about: "Start a program as ranks, as torch's launcher does",
        run: torchrun::run,
        follows: |_| Follows::Flags(&torchrun::FLAGS),
    },
    FrontEnd {
        names: &["deepspeed", "ds", "deepspeed.pt"],
        about: "Start a program on the machines of a hostfile, as DeepSpeed's launcher does",
        run: deepspeed::run,
        follows: |_| Follows::Flags(&deepspeed::FLAGS),
    },
    FrontEnd {
        names: &["ds_report", "dsr"],
        about: "Say which ops this machine has, as ds_report does",
        run: deepspeed::report,
        follows: |_| Follows::Flags(&deepspeed::REPORT),
    },
    FrontEnd {
        names: &["llamafactory-cli", "lmf"],
        about: "Train as LLaMA-Factory's command does",
        run: llamafactory::run,
        follows: llamafactory::follows,
    },
];

/// The front end of this name: a word of the command line, or the name of the binary.
pub fn find(name: &str) -> Option<&'static FrontEnd> {
    ALL.iter().find(|front_end| front_end.names.contains(&name))
}
