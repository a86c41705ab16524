//! Ranks on named axes: which of them are one behind another in a pipeline, and which have the same part of the model. Pure.

/// The axis of the stages of a pipeline.
pub const PIPE: &str = "pipe";

/// The axis of the ranks that have the same weights and different data.
pub const DATA: &str = "data";

/// Ranks in a grid with named axes, the last of which runs fastest: neighboring ranks differ there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    axes: Vec<(&'static str, usize)>,
}

impl Topology {
    /// A grid of these sizes.
    pub fn new(axes: &[(&'static str, usize)]) -> Topology {
        Topology { axes: axes.to_vec() }
    }

    /// DeepSpeed's `PipeDataParallelTopology`: ranks of one stage are neighbors, since what they exchange is more.
    pub fn pipe_data(pipe: usize, data: usize) -> Topology {
        Topology::new(&[(PIPE, pipe), (DATA, data)])
    }

    /// The ranks.
    pub fn world_size(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// The size of an axis; 1 where there is none of this name.
    pub fn size(&self, axis: &str) -> usize {
        self.axes.iter().find(|(name, _)| *name == axis).map_or(1, |(_, size)| *size)
    }

    /// The place of a rank on an axis.
    pub fn coordinate(&self, rank: usize, axis: &str) -> usize {
        rank / self.stride(axis) % self.size(axis)
    }

    /// The groups of ranks that differ on this axis alone, each in the order of the axis.
    pub fn groups(&self, axis: &str) -> Vec<Vec<usize>> {
        let (stride, size) = (self.stride(axis), self.size(axis));
        let first = (0..self.world_size()).filter(|&rank| self.coordinate(rank, axis) == 0);
        first.map(|first| (0..size).map(|place| first + place * stride).collect()).collect()
    }

    /// How far neighbors on an axis are apart.
    fn stride(&self, axis: &str) -> usize {
        let after = self.axes.iter().skip_while(|(name, _)| *name != axis).skip(1);
        after.map(|(_, size)| size).product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ordered_as_in_deepspeed() {
        let grid = Topology::pipe_data(2, 3);
        assert_eq!(grid.groups(PIPE), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(grid.groups(DATA), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!((grid.coordinate(4, PIPE), grid.coordinate(4, DATA)), (1, 1));
        let cube = Topology::new(&[(PIPE, 2), (DATA, 2), ("tensor", 2)]);
        assert_eq!(cube.groups("tensor"), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(cube.groups(DATA), [[0, 2], [1, 3], [4, 6], [5, 7]]);
        assert_eq!(cube.groups(PIPE), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(cube.groups("none"), (0..8).map(|rank| vec![rank]).collect::<Vec<_>>());
    }
}
