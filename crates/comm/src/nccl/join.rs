//! Whether ranks can meet by NCCL, and how they do: each needs a GPU of its own and the same libnccl.

use std::sync::Arc;

use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::nccl::Nccl;
use oarlock_tensor::{Device, SideStream};

use super::connect::connect;
use super::transport::NcclTransport;
use super::watch::Watch;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::transport_kind::TRANSPORT;

/// What ranks on GPUs meet by.
pub enum Choice {
    /// NCCL.
    Nccl(Communicator),
    /// Memory of the host, and why; nothing to say where the user has chosen it or there is no GPU.
    Host(Option<String>),
}

/// What the UUID of a slice of a GPU begins with.
const SLICE: &str = "MIG-";

/// What one rank has.
struct Offer {
    /// Its GPU, by its UUID; empty without one.
    gpu: String,
    /// The version of its NCCL, or why it has none.
    nccl: std::result::Result<String, String>,
    /// Whether the environment asks for another transport.
    asks_for_host: bool,
}

impl Offer {
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, text) = match &self.nccl {
            Ok(version) => ("has", version),
            Err(reason) => ("lacks", reason),
        };
        [self.gpu.as_str(), if self.asks_for_host { "host" } else { "any" }, kind, text]
            .join("\n")
            .into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Offer {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.splitn(4, '\n').map(str::to_string);
        let mut next = || lines.next().unwrap_or_default();
        let (gpu, asks_for_host) = (next(), next() == "host");
        let nccl = if next() == "has" { Ok(next()) } else { Err(next()) };
        Offer { gpu, nccl, asks_for_host }
    }
}

/// Why these ranks cannot meet by NCCL; the same on all of them.
fn obstacle(offers: &[Offer]) -> Option<Option<String>> {
    if offers.iter().any(|offer| offer.gpu.is_empty() || offer.asks_for_host) {
        return Some(None);
    }
    for (rank, offer) in offers.iter().enumerate() {
        if offer.gpu.starts_with(SLICE) {
            return Some(Some(format!(
                "rank {rank} has a slice of a GPU (MIG), and NCCL connects whole ones"
            )));
        }
        if let Some(other) = offers[..rank].iter().position(|other| other.gpu == offer.gpu) {
            return Some(Some(format!("ranks {other} and {rank} share a GPU, and NCCL needs one for each")));
        }
    }
    for (rank, offer) in offers.iter().enumerate() {
        match (&offer.nccl, &offers[0].nccl) {
            (Err(reason), _) => {
                // It says how to get what is missing.
                return Some(Some(format!("rank {rank} cannot use NCCL: {reason}")));
            }
            (Ok(version), Ok(first)) if version != first => {
                return Some(Some(format!("rank 0 has NCCL {first} and rank {rank} has {version}")));
            }
            _ => {}
        }
    }
    None
}

/// Brings the ranks of `comm` together by NCCL, each with its GPU, or says why they stay with the memory of the host. All
/// ranks must call it.
///
/// # Errors
/// As every collective.
pub fn over(comm: &Communicator, device: &Device) -> Result<Choice> {
    let failed = |error: String| Error::system("connect the GPUs by NCCL", error);
    let side = SideStream::of(device).map_err(|error| failed(error.to_string()))?;
    let libraries = Libraries::from_environment();
    let loaded = match side.as_ref().and_then(|side| side.context().device().cuda_version().ok()) {
        Some(cuda) => Nccl::find_for(&libraries, cuda),
        None => Nccl::find(&libraries),
    };
    let version = match &loaded {
        Ok(nccl) => nccl.version().map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let gpu = match &side {
        Some(side) => side.context().device().uuid().map_err(|error| failed(error.to_string()))?,
        None => String::new(),
    };
    let asks_for_host = std::env::var_os(TRANSPORT).is_some();
    let all = comm.all_gather_bytes(&Offer { gpu, nccl: version, asks_for_host }.to_bytes())?;
    let offers: Vec<Offer> = all.iter().map(|bytes| Offer::from_bytes(bytes)).collect();
    if let Some(why) = obstacle(&offers) {
        return Ok(Choice::Host(why));
    }
    let (Some(side), Ok(nccl)) = (side, loaded) else { return Ok(Choice::Host(None)) };
    let joined = match connect(comm, &nccl, &side)? {
        Ok(joined) => joined,
        Err(why) => return Ok(Choice::Host(Some(format!("NCCL does not connect the GPUs: {why}")))),
    };
    let version = offers[0].nccl.clone().unwrap_or_default();
    let watch = Watch::new(comm.transport().clone()).map_err(|error| failed(error.to_string()))?;
    let transport = NcclTransport::new(comm.clone(), joined, nccl, Arc::new(side), device, watch, &version);
    Ok(Choice::Nccl(comm.over(Arc::new(transport))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(gpu: &str, nccl: std::result::Result<&str, &str>) -> Offer {
        let nccl = nccl.map(str::to_string).map_err(str::to_string);
        Offer { gpu: gpu.to_string(), nccl, asks_for_host: false }
    }

    #[test]
    fn each_rank_needs_a_gpu_of_its_own_and_the_same_nccl() {
        let why = |offers: &[Offer]| {
            let offers: Vec<Offer> = offers.iter().map(|o| Offer::from_bytes(&o.to_bytes())).collect();
            obstacle(&offers)
        };
        let has = |gpu| offer(gpu, Ok("2.29.7"));
        assert_eq!(why(&[has("a"), has("b")]), None);
        let shared = why(&[has("a"), has("b"), has("a")]).flatten().unwrap();
        assert!(shared.contains("ranks 0 and 2 share a GPU"), "{shared}");
        let slice = why(&[has("GPU-a"), has("MIG-a")]).flatten().unwrap();
        assert!(slice.contains("rank 1 has a slice of a GPU"), "{slice}");
        let lacks =
            why(&[has("a"), offer("b", Err("libnccl was not found\nin two\nfolders"))]).flatten().unwrap();
        assert!(lacks.contains("rank 1 cannot") && lacks.contains("folders"), "{lacks}");
        let older = why(&[has("a"), offer("b", Ok("2.18.1"))]).flatten().unwrap();
        assert!(older.contains("rank 1 has 2.18.1"), "{older}");
        assert_eq!(why(&[has("a"), has("")]), Some(None));
        assert_eq!(why(&[has("a"), Offer { asks_for_host: true, ..has("b") }]), Some(None));
    }
}
