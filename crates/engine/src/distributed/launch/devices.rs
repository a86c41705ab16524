//! What a machine has to run ranks on: its NVIDIA GPUs, else its cores.

use std::path::Path;

use oarlock_tensor::{Automatic, CudaLibraries, Device, FoundGpu};

/// The variable by which a launcher tells its ranks how many GPUs the machine has, since each sees its own only.
pub const MACHINE_GPUS: &str = "OARLOCK_MACHINE_GPUS";

/// The variable that selects GPUs.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The devices of this machine that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The visible GPUs.
    pub gpus: usize,
    /// The cores.
    pub cores: usize,
}

impl Devices {
    /// The devices of this machine; `visible` is the value of `CUDA_VISIBLE_DEVICES` for those who use them.
    pub fn here(visible: Option<&str>) -> Devices {
        let own = std::env::var(VISIBLE).ok();
        let libraries = CudaLibraries::from_environment();
        let seen = oarlock_tensor::visible_gpus(&libraries).unwrap_or_default();
        let gpus = match visible {
            // The driver itself has read this list.
            Some(_) if visible == own.as_deref() => seen.len(),
            None if own.is_none() => seen.len(),
            list => {
                let message = std::env::var(MACHINE_GPUS).ok().and_then(|count| count.parse().ok());
                let all = message.unwrap_or_else(|| machine(&seen, own.as_deref(), &libraries));
                list.map_or(all, |list| chosen(list, all, &seen))
            }
        };
        Devices { gpus, cores: cores() }
    }

    /// The devices of this machine that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn visible() -> Devices {
        Devices::here(std::env::var(VISIBLE).ok().as_deref())
    }

    /// Those of [`Devices::visible`] that a training run which nobody told where to run would run on.
    pub fn of_training() -> Devices {
        let gpus = match Device::automatic() {
            Automatic::Gpus(usable) => usable.len(),
            Automatic::Cpu | Automatic::Lacks(_) => 0,
        };
        Devices { gpus, cores: cores() }
    }

    /// How many GPUs a value of `CUDA_VISIBLE_DEVICES` names, on whatever machine.
    pub fn named(list: &str) -> usize {
        let is_name = |name: &&str| match name.trim().parse::<i64>() {
            Ok(number) => number >= 0,
            Err(_) => is_uuid(name),
        };
        list.split(',').take_while(is_name).count()
    }

    /// How many ranks use all of the machine: one a GPU, else one a core.
    pub fn count(&self) -> usize {
        if self.gpus > 0 { self.gpus } else { self.cores }
    }
}

fn cores() -> usize {
    oarlock_comm::available_cores().len().max(1)
}

/// How many GPUs the machine has of which this process sees some: as the driver lists them, else as many as the list that
/// hides the others speaks of.
fn machine(seen: &[FoundGpu], own: Option<&str>, libraries: &CudaLibraries) -> usize {
    let listed = match libraries {
        // The driver keeps a folder for each GPU.
        CudaLibraries::System => std::fs::read_dir(Path::new("/proc/driver/nvidia/gpus"))
            .map_or(0, |entries| entries.filter(|entry| entry.is_ok()).count()),
        CudaLibraries::Folder(_) => 0,
    };
    let valid = own.into_iter().flat_map(|list| list.split(',')).take(seen.len());
    let last = valid.filter_map(|name| name.trim().parse::<usize>().ok()).max();
    listed.max(seen.len()).max(last.map_or(0, |last| last + 1))
}

fn is_uuid(name: &str) -> bool {
    let name = name.trim();
    name.starts_with("GPU-") || name.starts_with("MIG-")
}

/// How many of `all` GPUs a list names, as the driver reads it: up to the first word that names none; a GPU that is named
/// twice leaves none. Those that this process does not see are believed by their UUIDs.
fn chosen(list: &str, all: usize, seen: &[FoundGpu]) -> usize {
    let index = |name: &str| {
        let name = name.trim();
        match name.parse::<i64>() {
            Ok(number) => usize::try_from(number).ok().filter(|number| *number < all).map(|n| n.to_string()),
            Err(_) if !is_uuid(name) || all == 0 => None,
            Err(_) if seen.len() < all || name.starts_with("MIG-") => Some(name.to_owned()),
            Err(_) => {
                let mut found = (0..seen.len()).filter(|index| seen[*index].uuid.starts_with(name));
                found.next().filter(|_| found.next().is_none()).map(|index| index.to_string())
            }
        }
    };
    let mut named: Vec<String> = list.split(',').map_while(index).collect();
    let count = named.len();
    named.sort();
    named.dedup();
    if named.len() == count { count } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(uuids: &[&str]) -> Vec<FoundGpu> {
        let gpu = |uuid: &&str| FoundGpu {
            name: "GPU".to_owned(),
            uuid: (*uuid).to_owned(),
            memory_bytes: 1 << 30,
            capability: (9, 0),
        };
        uuids.iter().map(gpu).collect()
    }

    #[test]
    fn a_list_of_gpus_ends_at_the_first_that_is_not_there() {
        let two = gpus(&["GPU-8932f937-d72c", "GPU-89aa0000-0001"]);
        for (list, all, count) in [
            ("0,1,2,3", 8, 4),
            ("0,1,2,3", 2, 2),
            ("0,-1,2", 8, 1),
            ("-1", 8, 0),
            ("", 8, 0),
            (" 0, 1", 2, 2),
            ("0,x,1", 2, 1),
            ("0,1", 0, 0),
            ("1,1", 2, 0),
            ("GPU-8932f937", 2, 1),
            ("GPU-8932,GPU-89aa", 2, 2),
            // It begins two names.
            ("GPU-89", 2, 0),
            ("GPU-77,0", 2, 0),
            ("0,GPU-8932", 2, 0),
        ] {
            assert_eq!(chosen(list, all, &two), count, "{list} of {all}");
        }
        assert_eq!(["4,5", "-1", "", "GPU-8932,1", "no"].map(Devices::named), [2, 0, 0, 2, 0]);
    }

    #[test]
    fn a_machine_has_at_least_the_gpus_that_a_list_speaks_of() {
        let (two, fakes) = (gpus(&["GPU-1", "GPU-2"]), CudaLibraries::Folder("fakes".into()));
        assert_eq!(machine(&two, Some("1,3"), &fakes), 4);
        assert_eq!(machine(&two, Some("1,0,7"), &fakes), 2);
        assert_eq!(machine(&two, None, &fakes), 2);
    }

    #[test]
    fn a_machine_without_gpus_counts_its_cores() {
        assert_eq!(Devices { gpus: 0, cores: 2 }.count(), 2);
        assert_eq!(Devices { gpus: 4, cores: 2 }.count(), 4);
        assert!(Devices::here(None).count() >= 1);
    }
}
