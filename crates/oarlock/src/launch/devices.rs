//! What a machine has to run ranks on: its NVIDIA GPUs, else its cores.

use std::path::Path;

/// The devices of this machine that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The visible GPUs.
    pub gpus: usize,
    /// The cores.
    pub cores: usize,
}

impl Devices {
    /// The devices of this machine; `visible` is the value of `CUDA_VISIBLE_DEVICES`.
    pub fn here(visible: Option<&str>) -> Devices {
        let all = gpus(Path::new("/proc/driver/nvidia/gpus"));
        let gpus = visible.map_or(all, |list| chosen(list, all));
        Devices { gpus, cores: oarlock_comm::available_cores().len().max(1) }
    }

    /// The devices of this machine that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn visible() -> Devices {
        Devices::here(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
    }

    /// How many GPUs a value of `CUDA_VISIBLE_DEVICES` names, on whatever machine.
    pub fn named(list: &str) -> usize {
        chosen(list, usize::MAX)
    }

    /// How many ranks use all of the machine: one a GPU, else one a core.
    pub fn count(&self) -> usize {
        if self.gpus > 0 { self.gpus } else { self.cores }
    }
}

/// The driver keeps a folder for each GPU.
fn gpus(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, |entries| entries.filter(|entry| entry.is_ok()).count())
}

/// How many of `all` GPUs a list names: up to the first that is not there, as the CUDA runtime reads it.
fn chosen(list: &str, all: usize) -> usize {
    let there = |name: &&str| match name.trim().parse::<i64>() {
        Ok(number) => usize::try_from(number).is_ok_and(|number| number < all),
        // A GPU by its UUID.
        Err(_) => !name.trim().is_empty() && all > 0,
    };
    list.split(',').take_while(there).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_gpus_ends_at_the_first_that_is_not_there() {
        assert_eq!(chosen("0,1,2,3", 8), 4);
        assert_eq!(chosen("0,1,2,3", 2), 2);
        assert_eq!(chosen("0,-1,2", 8), 1);
        assert_eq!(chosen("", 8), 0);
        assert_eq!(chosen("GPU-8932f937", 8), 1);
        assert_eq!(chosen("0,1", 0), 0);
        assert_eq!([Devices::named("4,5"), Devices::named("-1"), Devices::named("")], [2, 0, 0]);
    }

    #[test]
    fn a_machine_without_gpus_counts_its_cores() {
        assert_eq!(Devices { gpus: 0, cores: 2 }.count(), 2);
        assert_eq!(Devices { gpus: 4, cores: 2 }.count(), 4);
        assert!(Devices::here(None).count() >= 1);
    }
}
