//! The collectives on a few values, which are copied.

use oarlock_tensor::cpu::rank_sum::tree_fold;

use super::handle::Communicator;
use crate::digest::digest;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::operation::{Operation, Scalar};

impl Communicator {
    /// The bytes of each rank, in the order of ranks; lengths may differ. For small values: they are copied.
    ///
    /// # Errors
    /// As every collective.
    #[track_caller]
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.run(Draft::small(Operation::AllGatherBytes, "", 0), |t, r| t.all_gather_bytes(r, bytes))
    }

    /// The bytes of the rank `root`; those given by the others are ignored.
    ///
    /// # Errors
    /// As every collective, and when there is no such rank.
    #[track_caller]
    pub fn broadcast_bytes(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        self.check_rank(Operation::BroadcastBytes, root)?;
        let mine = if self.rank() == root { bytes } else { &[] };
        let draft = Draft::small(Operation::BroadcastBytes, "", root as u64);
        Ok(self.run(draft, |t, r| t.all_gather_bytes(r, mine))?.swap_remove(root))
    }

    /// Combines a few numbers elementwise over all ranks, in a fixed pairwise tree over ranks.
    ///
    /// # Errors
    /// As every collective; the count must be the same on all ranks.
    #[track_caller]
    pub fn all_reduce_f64(&self, values: &mut [f64], how: Scalar) -> Result<()> {
        let draft =
            Draft { elements: 8 * values.len(), ..Draft::small(Operation::AllReduceScalars, "", how as u64) };
        let all = self.run(draft, |t, r| t.all_gather_bytes(r, bytemuck::cast_slice(values)))?;
        for (i, value) in values.iter_mut().enumerate() {
            let of_rank = |rank: usize| bytemuck::pod_read_unaligned::<f64>(&all[rank][8 * i..8 * i + 8]);
            *value = tree_fold(0..all.len(), &of_rank, &|a, b| how.combine(a, b));
        }
        Ok(())
    }

    /// Checks that all ranks hold the same value.
    ///
    /// # Errors
    /// As every collective, and [`Error::Disagreement`] on all ranks when one holds another value.
    #[track_caller]
    pub fn agree(&self, what: &str, value: u64) -> Result<()> {
        let draft = Draft::small(Operation::Agree, what, digest(what.as_bytes()));
        let all = self.run(draft, |t, r| t.all_gather_bytes(r, &value.to_ne_bytes()))?;
        let of_rank = |rank: usize| bytemuck::pod_read_unaligned::<u64>(&all[rank]);
        match (1..all.len()).find(|&rank| of_rank(rank) != of_rank(0)) {
            None => Ok(()),
            Some(rank) => Err(Error::Disagreement {
                what: what.to_owned(),
                first: (0, of_rank(0)),
                other: (rank, of_rank(rank)),
            }),
        }
    }
}
