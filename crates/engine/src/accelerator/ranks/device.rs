//! The device of a rank: a GPU for each, or the CPU for all of them, and NCCL between GPUs.

use oarlock_comm::{Communicator, nccl};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Automatic, Device, DeviceKind, Par};

use crate::accelerator::settings::config::AcceleratorConfig;
use crate::distributed::rank;
use crate::{Error, Result};

/// Opens the device that a configuration names for a rank. All ranks call it.
pub(crate) fn open(comm: &Communicator, config: &AcceleratorConfig) -> Result<Device> {
    let isa = match config.cpu_path {
        None => Isa::detect(),
        Some(path) => Isa::force(path).ok_or_else(|| {
            let found: Vec<_> = Isa::available().into_iter().map(|isa| isa.path().to_string()).collect();
            Error::Usage(format!("this CPU cannot run the path {path}; it can run {}", found.join(", ")))
        })?,
    };
    let threads = match config.threads {
        Some(n) => n,
        None => rank::default_threads(comm),
    };
    let open = |kind| Device::open(kind, isa, Par::threads(threads)?);
    let device = match config.device {
        DeviceKind::Cuda(first) => open(DeviceKind::Cuda(gpu_of_rank(first, comm)?))?,
        DeviceKind::Auto => automatic(comm, &open)?,
        other => open(other)?,
    };
    device.set_tf32(config.tf32);
    Ok(device)
}

/// The ranks by NCCL where each has a GPU of its own. Where that is not so, what they have on GPUs goes through memory of the
/// host, and rank 0 says why.
pub(crate) fn between_gpus(comm: Communicator, device: &Device) -> Result<Communicator> {
    // All ranks have the same kind of device.
    if !device.is_cuda() || comm.world_size() == 1 {
        return Ok(comm);
    }
    match nccl::over(&comm, device)? {
        nccl::Choice::Nccl(over) => Ok(over),
        nccl::Choice::Host(why) => {
            if let Some(why) = why.filter(|_| comm.rank() == 0) {
                let host = comm.describe();
                rank::warn_once(&format!("gradients and weights go between GPUs over {host}: {why}"));
            }
            Ok(comm)
        }
    }
}

/// A GPU for each rank, else the CPU for all of them: why is said by rank 0 in a line, unless no rank sees any GPU.
fn automatic(
    comm: &Communicator,
    open: &dyn Fn(DeviceKind) -> oarlock_tensor::Result<Device>,
) -> Result<Device> {
    let found = match Device::automatic() {
        Automatic::Gpus(_) => match open(DeviceKind::Cuda(gpu_of_rank(0, comm)?)) {
            Err(error) if oarlock_tensor::is_refused_by_driver(&error) => {
                Err(Some(format!("this machine has a GPU that cannot be used ({error})")))
            }
            opened => Ok(opened?),
        },
        Automatic::Lacks(why) => Err(Some(why.clone())),
        Automatic::Cpu => Err(None),
    };
    match of_all(comm, found)? {
        Ok(device) => Ok(device),
        Err(why) => {
            if let Some(why) = why.filter(|_| comm.rank() == 0) {
                rank::warn_once(&format!("{why}; the CPU is used until then"));
            }
            Ok(open(DeviceKind::Cpu)?)
        }
    }
}

/// What a rank has found, if all have found a GPU: ranks of other machines may see none, or one that does not work. Otherwise why
/// not; nothing where no rank sees one.
fn of_all<T>(
    comm: &Communicator,
    found: std::result::Result<T, Option<String>>,
) -> Result<std::result::Result<T, Option<String>>> {
    const GPU: &[u8] = b"gpu";
    const CPU: &[u8] = b"cpu";
    let said = match &found {
        Ok(_) => GPU,
        Err(None) => CPU,
        Err(Some(why)) => why.as_bytes(),
    };
    let all = comm.all_gather_bytes(said)?;
    let lacks = all.iter().find(|said| *said != GPU && *said != CPU);
    let without = all.iter().position(|said| said == CPU).filter(|_| all.iter().any(|said| said == GPU));
    Ok(match (lacks, without) {
        (Some(why), _) => Err(Some(String::from_utf8_lossy(why).into_owned())),
        (None, Some(rank)) => Err(Some(format!("rank {rank} sees no GPU"))),
        (None, None) => found,
    })
}

/// The GPU of a rank.
fn gpu_of_rank(first: usize, comm: &Communicator) -> Result<usize> {
    // By the machine alone: ranks that are bound to cores of their own share its GPUs as well.
    Ok(gpu_of(first, &comm.machines(), comm.rank(), &Device::cuda_indices()?))
}

/// The ranks of a machine take the GPUs that they see in turns, from `first` on; `machines` has that of each rank.
fn gpu_of<T: PartialEq>(first: usize, machines: &[T], rank: usize, gpus: &[usize]) -> usize {
    let place = machines.iter().take(rank).filter(|machine| machines.get(rank) == Some(*machine)).count();
    gpus.get((first + place) % gpus.len().max(1)).copied().unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_have_gpus_or_none_has() {
        let lacks = || Err(Some("no compiler".to_owned()));
        for (found, expected) in [
            ([Ok(1), Ok(2)], [Ok(1), Ok(2)]),
            ([Err(None), Err(None)], [Err(None), Err(None)]),
            ([Ok(1), lacks()], [lacks(), lacks()]),
            ([Err(None), lacks()], [lacks(), lacks()]),
            (
                [Err(None), Ok(2)],
                [Err(Some("rank 0 sees no GPU".to_owned())), Err(Some("rank 0 sees no GPU".to_owned()))],
            ),
        ] {
            let of_rank = |comm: Communicator| of_all(&comm, found[comm.rank()].clone()).unwrap();
            assert_eq!(oarlock_comm::shm::on_threads(2, of_rank).unwrap(), expected);
        }
    }

    #[test]
    fn ranks_of_a_machine_take_its_gpus_in_turns() {
        let of = |first, machines: &str, gpus: &[usize]| -> Vec<usize> {
            let machines: Vec<char> = machines.chars().collect();
            (0..machines.len()).map(|rank| gpu_of(first, &machines, rank, gpus)).collect()
        };
        assert_eq!(of(0, "aaaa", &[0, 1, 2, 3]), [0, 1, 2, 3]);
        // Each machine begins anew, wherever its ranks stand.
        assert_eq!(of(0, "aabb", &[0, 1]), [0, 1, 0, 1]);
        assert_eq!(of(0, "abab", &[0, 1]), [0, 0, 1, 1]);
        // More ranks than GPUs share them, a first one moves all, and GPUs that cannot be used are left out.
        assert_eq!(of(0, "aaa", &[0, 1]), [0, 1, 0]);
        assert_eq!(of(1, "aa", &[0, 1]), [1, 0]);
        assert_eq!(of(0, "aa", &[1, 2]), [1, 2]);
        assert_eq!(of(0, "a", &[]), [0]);
    }
}
