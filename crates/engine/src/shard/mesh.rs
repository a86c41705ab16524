//! The mesh: the groups of ranks that collectives run in, one for each axis on which ranks differ.

use oarlock_comm::Communicator;

use crate::shard::topology::{Axis, Topology};
use crate::{Error, Result};

/// Some ranks, and the groups on each axis that one of them is in.
#[derive(Clone, Debug)]
pub struct Mesh {
    ranks: Communicator,
    axes: Vec<(Axis, Communicator)>,
    /// Those of [`Mesh::shard`] once more, where the new weights of a step travel while the next one begins: no other collective
    /// waits for them.
    behind: Option<Communicator>,
}

impl Mesh {
    /// Ranks that nothing divides yet.
    pub fn new(ranks: &Communicator) -> Mesh {
        Mesh { ranks: ranks.clone(), axes: Vec::new(), behind: None }
    }

    /// Those of a model: in groups of `group` ranks that divide its state, and in secondary groups. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn of_state(ranks: &Communicator, group: Option<usize>, secondary: Option<usize>) -> Result<Mesh> {
        let (n, mut mesh) = (ranks.world_size(), Mesh::new(ranks));
        if let Some(size) = group.filter(|&size| size < n) {
            let grid = Topology::new(&[(Axis::Replicate, n / size), (Axis::Shard, size)]);
            mesh.divide(&grid, &[Axis::Shard, Axis::Replicate])?;
        }
        if let Some(size) = secondary.filter(|&size| size < n) {
            let grid = Topology::new(&[(Axis::Replicate, n / size), (Axis::Secondary, size)]);
            mesh.divide(&grid, &[Axis::Secondary])?;
        }
        Ok(mesh)
    }

    /// Makes the groups on these axes of a grid of all ranks. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn divide(&mut self, grid: &Topology, axes: &[Axis]) -> Result<()> {
        for &axis in axes {
            self.axes.push((axis, self.ranks.split(&grid.groups(axis))?));
        }
        Ok(())
    }

    /// Puts all ranks on an axis, whose collectives are then calls in the order of all others.
    pub fn put_all_on(&mut self, axis: Axis) {
        self.axes.push((axis, self.ranks.clone()));
    }

    /// All ranks of the mesh.
    pub fn ranks(&self) -> &Communicator {
        &self.ranks
    }

    /// The ranks that differ from this one on an axis alone, and itself, where the mesh has that axis.
    pub fn get(&self, axis: Axis) -> Option<&Communicator> {
        self.axes.iter().find(|(name, _)| *name == axis).map(|(_, group)| group)
    }

    /// The ranks that divide state among them: all, where it is divided over no groups.
    pub fn shard(&self) -> &Communicator {
        self.get(Axis::Shard).unwrap_or(&self.ranks)
    }

    /// The ranks to which new weights travel.
    pub fn behind(&self) -> &Communicator {
        self.behind.as_ref().unwrap_or(self.shard())
    }

    /// Divides the sharding groups by machines, if each is on several; `machine` ranks count as those of one, or those that
    /// are. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed; machines with different numbers of ranks.
    pub fn add_machines(&mut self, machine: Option<usize>) -> Result<()> {
        let (all, n) = (self.ranks.world_size(), self.shard().world_size());
        let size = match machine {
            Some(size) if size > 0 && n.is_multiple_of(size) => size,
            Some(size) => {
                return Err(Error::Usage(format!("{n} ranks cannot be split into machines of {size}")));
            }
            None => ranks_per_machine(&self.shard().machines(), "quantized gradients are added up")?,
        };
        if size < n {
            let (machines, inside) = ((Axis::AcrossMachines, n / size), (Axis::InsideMachine, size));
            let grid = Topology::new(&[(Axis::Replicate, all / n), machines, inside]);
            self.divide(&grid, &[Axis::InsideMachine, Axis::AcrossMachines])?;
        }
        Ok(())
    }

    /// Lets new weights travel while the next step begins, where collectives work in the background. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn publish_behind(&mut self) -> Result<()> {
        let shard = self.shard();
        // Between GPUs they have a stream of their own already, in which values of the host do not wait.
        if shard.works_in_background() && !shard.reaches_gpus() {
            let all = (0..shard.world_size()).collect();
            self.behind = Some(shard.split(&[all])?);
        }
        Ok(())
    }
}

/// How many ranks each machine has, by the machine of each rank. `what` is done inside each.
///
/// # Errors
/// Where they are not as many neighboring ranks on each.
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
    fn machines_have_as_many_neighboring_ranks_or_are_refused() {
        assert_eq!(ranks_per_machine(&[0, 0, 0], "").unwrap(), 3);
        assert_eq!(ranks_per_machine(&[0, 0, 1, 1, 2, 2], "").unwrap(), 2);
        for wrong in [&[0, 1, 0, 1][..], &[0, 0, 1], &[0, 1, 1]] {
            let error = ranks_per_machine(wrong, "").unwrap_err().to_string();
            assert!(error.contains("the same number of consecutive ranks"), "{error}");
        }
    }
}
