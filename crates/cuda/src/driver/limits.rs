//! What a launch may ask of a GPU: the blocks of a grid, and the threads, registers and shared memory of a block.

use crate::geometry::Geometry;

/// Registers are given to a warp in parts of this many.
const REGISTERS_OF_WARP: u64 = 256;

/// What a GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The most blocks of a grid along x, y and z.
    pub grid: [u32; 3],
    /// The most threads of a block.
    pub threads: u32,
    /// Registers that the threads of a block share.
    pub registers: u32,
    /// Bytes of shared memory that a block has without asking for more.
    pub usual_shared_bytes: usize,
    /// Bytes of shared memory that a block can have.
    pub shared_bytes: usize,
}

/// What the code of a kernel takes of it, whatever a launch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNeeds {
    /// The most threads of a block that the code was compiled for.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of arrays in shared memory whose sizes the compiler knows. Launches have so many fewer for themselves.
    pub static_shared_bytes: usize,
}

impl KernelNeeds {
    /// Bytes of shared memory that a launch has on this GPU without asking for more.
    pub fn usual_shared_bytes(&self, device: &DeviceLimits) -> usize {
        device.usual_shared_bytes.saturating_sub(self.static_shared_bytes)
    }

    /// Why a GPU cannot run a launch; none where it can.
    pub fn excess(&self, geometry: &Geometry, device: &DeviceLimits) -> Option<String> {
        let Geometry { grid, threads, shared_bytes } = *geometry;
        if !grid.iter().zip(device.grid).all(|(blocks, most)| *blocks <= most) {
            return Some(format!(
                "a grid of {grid:?} blocks, of which this GPU takes up to {:?}",
                device.grid
            ));
        }
        let most_threads = self.threads.min(device.threads);
        if threads > most_threads {
            return Some(format!("blocks of {threads} threads, of which this GPU runs {most_threads}"));
        }
        let of_warp = (u64::from(self.registers) * 32).next_multiple_of(REGISTERS_OF_WARP);
        let registers = u64::from(threads.div_ceil(32)) * of_warp;
        if registers > u64::from(device.registers) {
            return Some(format!(
                "{registers} registers, of which this GPU has {} for a block",
                device.registers
            ));
        }
        let shared = shared_bytes.saturating_add(self.static_shared_bytes);
        let most = device.shared_bytes;
        (shared > most)
            .then(|| format!("{shared} bytes of shared memory, of which this GPU has {most} for a block"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A10: DeviceLimits = DeviceLimits {
        grid: [i32::MAX as u32, 65535, 65535],
        threads: 1024,
        registers: 65536,
        usual_shared_bytes: 48 << 10,
        shared_bytes: 99 << 10,
    };
    const NEEDS: KernelNeeds = KernelNeeds { threads: 256, registers: 255, static_shared_bytes: 128 };
    const LARGEST: Geometry =
        Geometry { grid: [i32::MAX as u32, 65535, 65535], threads: 256, shared_bytes: (99 << 10) - 128 };

    #[test]
    fn what_the_code_takes_itself_is_not_there_for_a_launch() {
        assert_eq!(NEEDS.usual_shared_bytes(&A10), (48 << 10) - 128);
        assert_eq!(NEEDS.excess(&LARGEST, &A10), None);
        let one_more = Geometry { shared_bytes: LARGEST.shared_bytes + 1, ..LARGEST };
        let said = NEEDS.excess(&one_more, &A10).expect("too much");
        assert_eq!(said, "101377 bytes of shared memory, of which this GPU has 101376 for a block");
        let large = KernelNeeds { static_shared_bytes: 60 << 10, ..NEEDS };
        assert_eq!(large.usual_shared_bytes(&A10), 0);
    }

    #[test]
    fn threads_registers_and_blocks_have_limits() {
        let said = |needs: KernelNeeds, geometry| needs.excess(&geometry, &A10).unwrap_or_default();
        let of = |threads| Geometry { threads, ..LARGEST };
        assert!(said(NEEDS, of(288)).starts_with("blocks of 288 threads, of which this GPU runs 256"));
        let wide = KernelNeeds { threads: 1024, ..NEEDS };
        assert_eq!(said(wide, of(256)), "");
        // A part of a warp takes the registers of a whole one.
        assert!(said(wide, of(257)).starts_with("73728 registers, of which this GPU has 65536"));
        assert!(said(KernelNeeds { registers: 65, ..wide }, of(1024)).starts_with("73728 registers"));
        assert_eq!(said(KernelNeeds { registers: 64, ..wide }, of(1024)), "");
        let grid = Geometry { grid: [1, 65536, 1], ..LARGEST };
        assert!(said(NEEDS, grid).starts_with("a grid of [1, 65536, 1] blocks"));
    }
}
