//! Which ranks of a group share a machine, and with whom each exchanges messages between machines.

/// A group as rows and columns: a row has the ranks of one machine, a column one rank of each machine. What a collective brings
/// to another machine goes along columns; within a row, ranks reach each other's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The ranks of this rank's machine, as indices of the group.
    pub(super) row: Vec<usize>,
    /// This rank's place among them.
    pub(super) place: usize,
    /// The ranks with this place, one for each machine.
    pub(super) column: Vec<usize>,
    /// This rank's machine among them.
    pub(super) machine: usize,
}

impl Layout {
    /// The layout of a group whose ranks are on these machines, numbered in order of appearance. Machines must have the same number
    /// of ranks, one after the other, and if there are several machines a power of two of ranks each: then the sum of a row is a
    /// subtree of the sum of all, so sums of sums are bitwise identical. Else it is [`flat`](Layout::flat).
    pub(super) fn of(machines: &[usize], me: usize) -> Layout {
        let n = machines.len();
        let count = machines.iter().max().map_or(1, |last| last + 1);
        let size = n / count;
        let is_even =
            n.is_multiple_of(count) && machines.iter().enumerate().all(|(i, &machine)| machine == i / size);
        if !is_even || (count > 1 && !size.is_power_of_two()) {
            return Layout::flat(n, me);
        }
        let (machine, place) = (me / size, me % size);
        let row = (0..size).map(|place| machine * size + place).collect();
        let column = (0..count).map(|machine| machine * size + place).collect();
        Layout { row, place, column, machine }
    }

    /// Each rank exchanges messages with all others.
    pub(super) fn flat(n: usize, me: usize) -> Layout {
        Layout { row: vec![me], place: 0, column: (0..n).collect(), machine: me }
    }

    /// Whether each rank exchanges messages with all others.
    pub(super) fn is_flat(&self) -> bool {
        self.row.len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_are_a_row() {
        let two = Layout::of(&[0, 0, 1, 1, 2, 2], 3);
        assert_eq!((two.row, two.place, two.column, two.machine), (vec![2, 3], 1, vec![1, 3, 5], 1));
        let one = Layout::of(&[0, 0, 0], 2);
        assert_eq!((one.row, one.place, one.column, one.machine), (vec![0, 1, 2], 2, vec![2], 0));
        assert!(Layout::of(&[0, 1, 2], 1).is_flat());
    }

    #[test]
    fn a_sum_of_machines_that_is_no_subtree_is_not_used() {
        for machines in [&[0, 0, 0, 1, 1, 1][..], &[0, 0, 1], &[0, 1, 0, 1], &[0, 0, 1, 1, 2]] {
            for me in 0..machines.len() {
                assert_eq!(Layout::of(machines, me), Layout::flat(machines.len(), me), "{machines:?}");
            }
        }
    }
}
