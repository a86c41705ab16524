//! Accelerate's launchers from code: `notebook_launcher`, `debug_launcher`.

use std::io::Write;

use oarlock_tensor::DType;

use super::rank::{self, MIXED_PRECISION};
use super::threads::run;
use crate::report::terminal::eprint;
use crate::{Error, Result};

/// What [`notebook_launcher`] starts. The fields are those of the original that mean something for threads: there is no
/// port and no rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotebookLaunch {
    /// The ranks. It must be said, as in the original.
    pub num_processes: Option<usize>,
    /// The precision of accelerators that name none; `None` is the original's "no".
    pub mixed_precision: Option<DType>,
    /// The number of this machine.
    pub node_rank: usize,
    /// The machines.
    pub num_nodes: usize,
    /// How often all ranks start again after a failure.
    pub max_restarts: usize,
}

impl Default for NotebookLaunch {
    fn default() -> NotebookLaunch {
        NotebookLaunch {
            num_processes: None,
            mixed_precision: None,
            node_rank: 0,
            num_nodes: 1,
            max_restarts: 0,
        }
    }
}

/// Trains with `f` in several ranks, which are threads of this process. Also one rank is a thread, so that nothing of it stays behind.
///
/// # Errors
/// A number of ranks that is missing; several machines; an accelerator that this thread has already, as the ranks make
/// theirs; what the ranks fail of, as [`spawn`](super::spawn).
pub fn notebook_launcher<F>(f: F, launch: &NotebookLaunch) -> Result<()>
where
    F: Fn() -> Result<()> + Sync,
{
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    let Some(num_processes) = launch.num_processes else {
        return usage(
            "notebook_launcher: how many ranks to start is not said; give `num_processes`, such as `num_processes: Some(2)`",
        );
    };
    if launch.node_rank >= launch.num_nodes {
        return usage("notebook_launcher: `node_rank` must be less than `num_nodes`");
    }
    if launch.num_nodes > 1 {
        return usage(
            "notebook_launcher: the ranks are threads of this process, so `num_nodes` is 1; on several machines start the \
             program with `accelerate launch` on each",
        );
    }
    let variables = [(MIXED_PRECISION, precision(launch.mixed_precision)?.to_owned())];
    if rank::current().is_some() {
        return usage(
            "notebook_launcher: this thread has an accelerator or a process group already; make the accelerator inside the \
             function that is launched, or drop the earlier one",
        );
    }
    // Who does not see it misses nothing.
    let _ = match num_processes {
        0 | 1 => writeln!(std::io::stdout(), "Launching training on CPU."),
        n => writeln!(std::io::stdout(), "Launching training on {n} CPUs."),
    };
    let mut restart = 0;
    loop {
        match run(num_processes.max(1), &variables, |_| f()) {
            Err(Error::Spawn(failure)) if restart < launch.max_restarts => {
                restart += 1;
                let max = launch.max_restarts;
                eprint(&format!(
                    "error: {failure}\nnote: all ranks start again: restart {restart} of {max}\n"
                ));
            }
            result => return result.map(|_| ()),
        }
    }
}

/// Runs `f` in `num_processes` ranks on the CPU (the original's default is 2), to find what is wrong with it.
///
/// # Errors
/// As [`spawn`](super::spawn).
pub fn debug_launcher<F>(f: F, num_processes: usize) -> Result<()>
where
    F: Fn() -> Result<()> + Sync,
{
    run(num_processes, &[(MIXED_PRECISION, "no".to_owned())], |_| f()).map(|_| ())
}

/// A precision in the words of Accelerate.
fn precision(dtype: Option<DType>) -> Result<&'static str> {
    match dtype {
        None | Some(DType::F32) => Ok("no"),
        Some(DType::BF16) => Ok("bf16"),
        Some(DType::F16) => Ok("fp16"),
        Some(other) => Err(Error::Usage(format!(
            "notebook_launcher: `mixed_precision` is {other}; a model computes in f32, bf16 or f16"
        ))),
    }
}
