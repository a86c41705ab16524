//! The names that torch has for what carries a group's bytes.

use std::str::FromStr;

use oarlock_tensor::DeviceKind;

use crate::{Error, Result};

/// What carries the bytes between ranks. torch's words, such as `"gloo"`, can be parsed into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Ranks on CPUs; here they meet in shared memory. Also torch's `cpu:gloo,cuda:nccl`, since tensors lie on CPUs.
    Gloo,
    /// NVIDIA's library between GPUs.
    Nccl,
}

impl Backend {
    /// Whether this machine can run it.
    ///
    /// # Errors
    /// [`Backend::Nccl`] where this process sees no GPU that it can use.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Backend::Gloo => Ok(()),
            Backend::Nccl if DeviceKind::Auto.is_gpu() => Ok(()),
            Backend::Nccl => Err(Error::Usage(
                "the backend nccl connects GPUs, and this process has none that it can use; ask for gloo, which is shared \
                 memory here (`Backend::Gloo`)"
                    .to_owned(),
            )),
        }
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Backend> {
        match name.trim().to_lowercase().as_str() {
            "gloo" | "cpu:gloo" | "cpu:gloo,cuda:nccl" | "cuda:nccl,cpu:gloo" => Ok(Backend::Gloo),
            "nccl" | "cuda:nccl" => Ok(Backend::Nccl),
            _ => Err(Error::Usage(format!(
                "there is no backend {name:?}; ranks on CPUs meet with \"gloo\" (torch also knows \"nccl\", for GPUs, and \
                 \"cpu:gloo,cuda:nccl\")"
            ))),
        }
    }
}
