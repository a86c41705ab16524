//! The cores of a rank: a share of those of this process, taken node by node, or all that are near to that share.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock_comm::{available_cores, share};

use super::spec::{Binding, Locality};

/// Where the kernel describes its processors.
const CPUS: &str = "/sys/devices/system/cpu";

/// The cores of a rank among those of this machine; `None`: the system decides.
pub(super) fn of(binding: &Binding, local_rank: usize, n_ranks: usize) -> Option<Vec<usize>> {
    let place = |core| node(Path::new(CPUS), core);
    match binding {
        Binding::None => None,
        Binding::Share => Some(share(&ordered(available_cores(), place), local_rank, n_ranks)),
        Binding::Of(cores) => Some(share(cores, local_rank, n_ranks)),
        Binding::SharedBy(near) => {
            let cores = ordered(available_cores(), place);
            Some(near_to(&cores, local_rank, n_ranks, |core| shared(Path::new(CPUS), *near, core)))
        }
    }
    .filter(|cores| !cores.is_empty())
}

/// Cores of one node beside each other, so that shares cross no border without need.
fn ordered(mut cores: Vec<usize>, node: impl Fn(usize) -> Option<usize>) -> Vec<usize> {
    cores.sort_by_key(|&core| (node(core), core));
    cores
}

/// All cores that have in common with the first of a rank's share what `shared` says.
fn near_to<T: PartialEq>(
    cores: &[usize],
    local_rank: usize,
    n_ranks: usize,
    shared: impl Fn(usize) -> Option<T>,
) -> Vec<usize> {
    let first = share(cores, local_rank, n_ranks).first().map(|&core| shared(core));
    cores.iter().copied().filter(|&core| first.as_ref() == Some(&shared(core))).collect()
}

/// The memory node of a core.
fn node(cpus: &Path, core: usize) -> Option<usize> {
    let entries = std::fs::read_dir(cpus.join(format!("cpu{core}"))).ok()?;
    let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find_map(|name| name.strip_prefix("node")?.parse().ok())
}

/// What a core shares with others, in the words of the kernel.
fn shared(cpus: &Path, near: Locality, core: usize) -> Option<String> {
    let folder = cpus.join(format!("cpu{core}"));
    let read = |path: &str| Some(std::fs::read_to_string(folder.join(path)).ok()?.trim().to_owned());
    match near {
        Locality::Node => node(cpus, core).map(|node| node.to_string()),
        Locality::Socket => read("topology/physical_package_id"),
        Locality::Cache => {
            let caches = (0..8).filter_map(|i| {
                let level: usize = read(&format!("cache/index{i}/level"))?.parse().ok()?;
                Some((level, read(&format!("cache/index{i}/shared_cpu_list"))?))
            });
            caches.collect::<BTreeMap<_, _>>().pop_last().map(|(_, list)| list)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight cores on two nodes of two caches each; even cores are those of node 0.
    fn machine() -> tempfile::TempDir {
        let cpus = tempfile::tempdir().unwrap();
        for core in 0..8 {
            let folder = cpus.path().join(format!("cpu{core}"));
            for inner in [&format!("node{}", core % 2), "topology", "cache/index0", "cache/index3"] {
                std::fs::create_dir_all(folder.join(inner)).unwrap();
            }
            let put = |path: &str, text: String| std::fs::write(folder.join(path), text).unwrap();
            put("topology/physical_package_id", "0\n".to_owned());
            put("cache/index0/level", "1\n".to_owned());
            put("cache/index0/shared_cpu_list", format!("{core}\n"));
            put("cache/index3/level", "3\n".to_owned());
            put("cache/index3/shared_cpu_list", format!("{}\n", core % 4));
        }
        cpus
    }

    #[test]
    fn shares_lie_in_one_node() {
        let cpus = machine();
        let cores = ordered((0..8).collect(), |core| node(cpus.path(), core));
        assert_eq!(cores, [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(share(&cores, 1, 2), [1, 3, 5, 7]);
    }

    #[test]
    fn cores_are_near_by_what_they_share() {
        let cpus = machine();
        let cores = ordered((0..8).collect(), |core| node(cpus.path(), core));
        let of = |near, rank| near_to(&cores, rank, 4, |core| shared(cpus.path(), near, core));
        assert_eq!(of(Locality::Node, 1), [0, 2, 4, 6]);
        assert_eq!(of(Locality::Node, 2), [1, 3, 5, 7]);
        assert_eq!(of(Locality::Socket, 3).len(), 8);
        assert_eq!(of(Locality::Cache, 0), [0, 4]);
        assert_eq!(of(Locality::Cache, 3), [1, 5]);
    }

    #[test]
    fn every_rank_of_this_machine_has_cores() {
        for binding in [Binding::Share, Binding::SharedBy(Locality::Node), Binding::Of(vec![0])] {
            for rank in 0..3 {
                assert!(of(&binding, rank, 3).is_some_and(|cores| !cores.is_empty()), "{binding:?}");
            }
        }
        assert_eq!(of(&Binding::None, 0, 2), None);
    }
}
