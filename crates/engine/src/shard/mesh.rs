//! The mesh: the groups of ranks that an engine's collectives run in.

use oarlock_comm::Communicator;

use crate::{Error, Result};

/// The communicators of one rank.
#[derive(Clone, Debug)]
pub struct Mesh {
    /// The ranks that divide the state among them.
    pub shard: Communicator,
    /// The ranks that hold the same part of it; present where there is more than one sharding group.
    pub replica: Option<Communicator>,
    /// The ranks that keep a second copy of the parameters sharded over them.
    pub secondary: Option<Communicator>,
    /// The two exchanges of quantized gradients, where the sharding group is on several machines.
    pub hops: Option<Hops>,
    /// Those of `shard` once more, where the new weights of a step travel while the next one begins: no other collective waits
    /// for them.
    pub behind: Option<Communicator>,
}

/// The ranks of a sharding group by machines.
#[derive(Clone, Debug)]
pub struct Hops {
    /// Those of this rank's machine.
    pub inside: Communicator,
    /// Those that have its place on the other machines, and itself.
    pub across: Communicator,
}

impl Mesh {
    /// Divides the world into groups of `group` ranks, and into secondary groups. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn new(world: &Communicator, group: Option<usize>, secondary: Option<usize>) -> Result<Mesh> {
        let n = world.world_size();
        let mut mesh =
            Mesh { shard: world.clone(), replica: None, secondary: None, hops: None, behind: None };
        if let Some(size) = group.filter(|&size| size < n) {
            mesh.shard = world.split(&neighbours(n, size))?;
            mesh.replica = Some(world.split(&across(n, size))?);
        }
        if let Some(size) = secondary.filter(|&size| size < n) {
            mesh.secondary = Some(world.split(&neighbours(n, size))?);
        }
        Ok(mesh)
    }

    /// Divides the sharding group by machines, if it is on several; `machine` ranks count as those of one, or those that
    /// are. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed; machines with different numbers of ranks.
    pub fn add_hops(&mut self, machine: Option<usize>) -> Result<()> {
        let n = self.shard.world_size();
        let size = match machine {
            Some(size) if size > 0 && n.is_multiple_of(size) => size,
            Some(size) => {
                return Err(Error::Usage(format!("{n} ranks cannot be split into machines of {size}")));
            }
            None => ranks_per_machine(&self.shard.machines(), "quantized gradients are added up")?,
        };
        if size < n {
            let inside = self.shard.split(&neighbours(n, size))?;
            self.hops = Some(Hops { inside, across: self.shard.split(&across(n, size))? });
        }
        Ok(())
    }

    /// Lets new weights travel while the next step begins, where collectives work in the background. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn publish_behind(&mut self) -> Result<()> {
        // Between GPUs they have a stream of their own already, in which values of the host do not wait.
        if self.shard.works_in_background() && !self.shard.reaches_gpus() {
            let all = (0..self.shard.world_size()).collect();
            self.behind = Some(self.shard.split(&[all])?);
        }
        Ok(())
    }
}

/// `n` ranks in groups of `size` neighbours.
fn neighbours(n: usize, size: usize) -> Vec<Vec<usize>> {
    (0..n / size).map(|group| (group * size..(group + 1) * size).collect()).collect()
}

/// The ranks that have the same place in these groups.
fn across(n: usize, size: usize) -> Vec<Vec<usize>> {
    (0..size).map(|place| (0..n / size).map(|group| group * size + place).collect()).collect()
}

/// How many ranks each machine has, by the machine of each rank. `what` is done inside each.
///
/// # Errors
/// Where they are not as many neighbouring ranks on each.
pub fn ranks_per_machine(machines: &[usize], what: &str) -> Result<usize> {
    let size = machines.iter().filter(|&&machine| machine == 0).count().max(1);
    match machines.iter().enumerate().all(|(rank, &machine)| machine == rank / size) {
        true if machines.len().is_multiple_of(size) => Ok(size),
        _ => Err(Error::Usage(format!(
            "{what} inside each machine: expected the same number of consecutive ranks on every machine, but the \
             ranks are on machines {machines:?}; start as many on each, in their order (`mpirun --map-by slot`, `srun \
             --distribution=block`)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_as_many_neighbouring_ranks_or_are_refused() {
        assert_eq!(ranks_per_machine(&[0, 0, 0], "").unwrap(), 3);
        assert_eq!(ranks_per_machine(&[0, 0, 1, 1, 2, 2], "").unwrap(), 2);
        for wrong in [&[0, 1, 0, 1][..], &[0, 0, 1], &[0, 1, 1]] {
            let error = ranks_per_machine(wrong, "").unwrap_err().to_string();
            assert!(error.contains("the same number of consecutive ranks"), "{error}");
        }
    }
}
