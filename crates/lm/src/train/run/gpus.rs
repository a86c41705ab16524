//! What the ranks tell each other of the memory of their GPUs, before anything is loaded.

use oarlock_engine::Accelerator;
use oarlock_engine::Result;
use oarlock_tensor::Device;

use crate::estimate::GpuMemory;

/// The memory of the GPU of each rank; none where they compute on the CPU. All ranks call it together.
///
/// # Errors
/// The driver's own, and the failure of another rank.
pub(super) fn memory_of_ranks(accelerator: &Accelerator) -> Result<Vec<GpuMemory>> {
    let device = accelerator.device();
    if !device.is_cuda() {
        return Ok(Vec::new());
    }
    let comm = accelerator.communicator();
    let ranks = sharing(&comm.machines(), comm.rank(), Device::cuda_indices()?.len());
    let own = GpuMemory::now(device, ranks).unwrap_or(GpuMemory::unknown(ranks));
    let told = comm.all_gather_bytes(&to_bytes(&own))?;
    Ok(told.iter().map(|bytes| from_bytes(bytes, own)).collect())
}

/// How many ranks have the GPU of this one, where those of each machine take so many GPUs in turns.
fn sharing<T: PartialEq>(machines: &[T], rank: usize, gpus: usize) -> usize {
    let gpus = gpus.max(1);
    let of_machine = machines.iter().enumerate().filter(|(_, machine)| machines.get(rank) == Some(machine));
    let places = of_machine.map(|(other, _)| other).collect::<Vec<_>>();
    let place = places.iter().position(|other| *other == rank).unwrap_or(0);
    (place % gpus..places.len()).step_by(gpus).count().max(1)
}

/// What differs from rank to rank.
fn to_bytes(memory: &GpuMemory) -> Vec<u8> {
    let numbers = [memory.in_use, memory.total.unwrap_or(0), memory.ranks as u64];
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8], own: GpuMemory) -> GpuMemory {
    let mut numbers = [0; 3];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = u64::from_le_bytes(*bytes);
    }
    let [in_use, total, ranks] = numbers;
    GpuMemory { in_use, total: (total > 0).then_some(total), ranks: ranks as usize, ..own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_take_gpus_in_turns_share_them() {
        let of = |machines: &str, gpus| -> Vec<usize> {
            let machines: Vec<char> = machines.chars().collect();
            (0..machines.len()).map(|rank| sharing(&machines, rank, gpus)).collect()
        };
        assert_eq!(of("aaa", 2), [2, 1, 2]);
        assert_eq!(of("abab", 2), [1; 4]);
        assert_eq!(of("aabbb", 1), [2, 2, 3, 3, 3]);
        assert_eq!(of("a", 0), [1]);
    }

    #[test]
    fn what_a_rank_tells_arrives() {
        let own = GpuMemory { in_use: 5, total: Some(6), ranks: 2, in_segments: false };
        for told in [own, GpuMemory { in_use: u64::MAX, total: None, ranks: 1, ..own }] {
            assert_eq!(from_bytes(&to_bytes(&told), own), told);
        }
    }
}
