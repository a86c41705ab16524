//! The mesh: the groups of ranks that an engine's collectives run in.

use oarlock_comm::Communicator;

use crate::error::Result;

/// The communicators of one rank.
#[derive(Clone, Debug)]
pub struct Mesh {
    /// The ranks that divide the state among them.
    pub shard: Communicator,
    /// The ranks that hold the same part of it; present where there is more than one sharding group.
    pub replica: Option<Communicator>,
    /// The ranks that keep a second copy of the parameters divided among them.
    pub secondary: Option<Communicator>,
}

impl Mesh {
    /// Divides the world into groups of `group` ranks, and into secondary groups. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn new(world: &Communicator, group: Option<usize>, secondary: Option<usize>) -> Result<Mesh> {
        let n = world.world_size();
        let neighbours = |size: usize| -> Vec<Vec<usize>> {
            (0..n / size).map(|g| (g * size..(g + 1) * size).collect()).collect()
        };
        let mut mesh = Mesh { shard: world.clone(), replica: None, secondary: None };
        if let Some(size) = group.filter(|&size| size < n) {
            mesh.shard = world.split(&neighbours(size))?;
            let across: Vec<Vec<usize>> =
                (0..size).map(|place| (0..n / size).map(|g| g * size + place).collect()).collect();
            mesh.replica = Some(world.split(&across)?);
        }
        if let Some(size) = secondary.filter(|&size| size < n) {
            mesh.secondary = Some(world.split(&neighbours(size))?);
        }
        Ok(mesh)
    }
}
