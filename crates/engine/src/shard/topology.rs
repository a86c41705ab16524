//! Ranks on named axes: which of them differ on one axis alone. Pure.

/// What the ranks of a group do with each other, and differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// They are the stages of a pipeline.
    Pipe,
    /// They hold the same part of the model and see different data.
    Data,
    /// Of those, they hold the same part of the state.
    Replicate,
    /// Of those, they divide the state among them.
    Shard,
    /// They divide a second copy of the parameters among them: hpZ.
    Secondary,
    /// They divide the state, and have the same place on different machines: the second exchange of qgZ.
    AcrossMachines,
    /// They divide the state, and are on one machine: the first exchange of qgZ.
    InsideMachine,
    /// They divide the tokens of each sequence.
    Sequence,
    /// They hold different experts of a layer.
    Expert,
    /// They divide the matrices of a layer.
    Tensor,
    /// An axis that only a test knows: whoever adds one adds this line.
    #[cfg(test)]
    Added,
}

/// Ranks in a grid of axes, the last of which runs fastest: neighboring ranks differ there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    axes: Vec<(Axis, usize)>,
}

impl Topology {
    /// A grid of these sizes. DeepSpeed's `PipeDataParallelTopology` is `[(Axis::Pipe, p), (Axis::Data, d)]`: ranks of one stage
    /// are neighbors, since what they exchange is more.
    pub fn new(axes: &[(Axis, usize)]) -> Topology {
        Topology { axes: axes.to_vec() }
    }

    /// The axes, the last of which runs fastest.
    pub fn axes(&self) -> impl Iterator<Item = Axis> + '_ {
        self.axes.iter().map(|(axis, _)| *axis)
    }

    /// The ranks.
    pub fn world_size(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// The size of an axis; 1 where the grid has no such axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.axes.iter().find(|(name, _)| *name == axis).map_or(1, |(_, size)| *size)
    }

    /// The place of a rank on an axis.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        rank / self.stride(axis) % self.size(axis)
    }

    /// The groups of ranks that differ on this axis alone, each in the order of the axis.
    pub fn groups(&self, axis: Axis) -> Vec<Vec<usize>> {
        let (stride, size) = (self.stride(axis), self.size(axis));
        let first = (0..self.world_size()).filter(|&rank| self.coordinate(rank, axis) == 0);
        first.map(|first| (0..size).map(|place| first + place * stride).collect()).collect()
    }

    /// How far neighbors on an axis are apart.
    fn stride(&self, axis: Axis) -> usize {
        let after = self.axes.iter().skip_while(|(name, _)| *name != axis).skip(1);
        after.map(|(_, size)| size).product()
    }
}

#[cfg(test)]
mod tests {
    use super::Axis::{Data, Expert, Pipe, Tensor};
    use super::*;
    use crate::shard::Mesh;

    #[test]
    fn an_axis_is_added_by_its_name_alone() {
        let ranks = oarlock_comm::shm::threads(8).unwrap().into_iter().map(|comm| {
            std::thread::spawn(move || {
                let grid = Topology::new(&[(Pipe, 2), (Axis::Added, 2), (Data, 2)]);
                let mut mesh = Mesh::new(&comm);
                mesh.divide(&grid, &[Pipe, Axis::Added, Data]).unwrap();
                let sum = |axis| {
                    let mut sum = [f64::from(1 << comm.rank())];
                    let group = mesh.get(axis).unwrap();
                    group.all_reduce_f64(&mut sum, oarlock_comm::Scalar::Sum).unwrap();
                    sum[0] as u32
                };
                let sums = [Pipe, Axis::Added, Data].map(sum);
                comm.finish();
                sums
            })
        });
        let sums: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
        // Rank 5 is stage 1, 0 on the new axis, 1 of the data: with 1, 7 and 4.
        assert_eq!(sums[5], [1 << 1 | 1 << 5, 1 << 5 | 1 << 7, 1 << 4 | 1 << 5]);
    }

    #[test]
    fn ranks_are_ordered_as_in_deepspeed() {
        let grid = Topology::new(&[(Pipe, 2), (Data, 3)]);
        assert_eq!(grid.groups(Pipe), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(grid.groups(Data), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!((grid.coordinate(4, Pipe), grid.coordinate(4, Data)), (1, 1));
        let cube = Topology::new(&[(Pipe, 2), (Data, 2), (Tensor, 2)]);
        assert_eq!(cube.groups(Tensor), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(cube.groups(Data), [[0, 2], [1, 3], [4, 6], [5, 7]]);
        assert_eq!(cube.groups(Pipe), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(cube.groups(Expert), (0..8).map(|rank| vec![rank]).collect::<Vec<_>>());
        assert!(cube.axes().eq([Pipe, Data, Tensor]));
    }
}
