//! Seeds of everything that is drawn.

use std::sync::atomic::Ordering::Relaxed;

use super::handle::Accelerator;

/// Whether the ranks draw the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceSpecific {
    /// They do.
    #[default]
    No,
    /// Each rank has its own seed for what may differ: its number is added to the seed.
    Yes,
}

impl Accelerator {
    /// Sets the seed of what is drawn from now on for this accelerator and its clones: initial weights and dropout of the
    /// models that are prepared afterward, the shuffled orders of loaders without a `data_seed` that are prepared
    /// afterward, and [`Accelerator::rank_seed`], which is for whatever else a loop draws (augmentation, sampling). What
    /// is drawn is addressed by its seed and its place (parameter and element, epoch and position, rank and pass and
    /// element), so nothing that another part of the program draws moves it.
    ///
    /// With [`DeviceSpecific::Yes`] only `rank_seed` differs by rank: weights and orders must be those of all ranks, and
    /// what dropout draws is each rank's own anyway. In Accelerate all differ, and weights and orders are made equal
    /// afterward, by rank 0. Accelerate seeds the global generators of
    /// Python, NumPy and torch; here there are none.
    pub fn set_seed(&self, seed: u64, device_specific: DeviceSpecific) {
        self.inner.seed.store(seed, Relaxed);
        self.inner.seed_is_device_specific.store(device_specific == DeviceSpecific::Yes, Relaxed);
    }

    /// The seed of initial weights, dropout and loaders' orders, the same on all ranks. By default 42.
    pub fn seed(&self) -> u64 {
        self.inner.seed.load(Relaxed)
    }

    /// The seed of what may differ by rank: with [`DeviceSpecific::Yes`] the number of this rank is added to it.
    pub fn rank_seed(&self) -> u64 {
        let own =
            if self.inner.seed_is_device_specific.load(Relaxed) { self.process_index() as u64 } else { 0 };
        self.seed().wrapping_add(own)
    }
}
