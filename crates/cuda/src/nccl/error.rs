//! An error of NCCL: the call, the name, the texts, and what to do.

use std::fmt;

/// A call of libnccl that failed, or a communicator that did while it worked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclError {
    /// The function; `ncclCommGetAsyncError` for what a communicator met while it worked.
    pub call: &'static str,
    /// Its `ncclResult_t`.
    pub code: i32,
    /// What NCCL says about that.
    pub text: String,
    /// The last thing that NCCL complained about in this process; may be empty.
    pub detail: String,
}

impl NcclError {
    /// Whether another rank ended, or the network to it did.
    pub fn is_remote(&self) -> bool {
        self.code == 6
    }

    /// The name of the result, such as `ncclRemoteError`.
    pub fn name(&self) -> String {
        let names = [
            "ncclSuccess",
            "ncclUnhandledCudaError",
            "ncclSystemError",
            "ncclInternalError",
            "ncclInvalidArgument",
            "ncclInvalidUsage",
            "ncclRemoteError",
            "ncclInProgress",
            "ncclTimeout",
        ];
        let name = usize::try_from(self.code).ok().and_then(|code| names.get(code));
        name.map_or_else(|| format!("ncclResult_t {}", self.code), ToString::to_string)
    }

    /// What to do about it, where there is something to say.
    fn remedy(&self) -> &'static str {
        match self.code {
            1 => "A call of CUDA failed: NCCL_DEBUG=INFO says which",
            2 => {
                "A call of the system failed: NCCL_DEBUG=INFO says which; the interface of the network \
                 (NCCL_SOCKET_IFNAME) and the size of /dev/shm (--shm-size of a container) are the usual causes"
            }
            4 | 5 => "NCCL_DEBUG=WARN says more. Two ranks on one GPU are refused",
            6 => "Another rank ended: its own output says why",
            _ => "",
        }
    }
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of NCCL failed: {}: {}", self.call, self.name(), self.text)?;
        if !self.detail.is_empty() {
            write!(f, " (last: {})", self.detail)?;
        }
        if !self.remedy().is_empty() {
            write!(f, ". {}", self.remedy())?;
        }
        Ok(())
    }
}

impl std::error::Error for NcclError {}
