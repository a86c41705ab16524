//! `gather_for_metrics`: each sample of a data set exactly once, in order, though loaders repeat some to fill up the end.

use oarlock_tensor::{Tensor, ops};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Accelerator;
use super::collectives::{self, Leaf, decode, encode, leaves};
use crate::error::Result;
use crate::nested::Nested;

/// What a rank brings: how many rows its batch has, how many of these are real, and its values.
#[derive(Serialize, Deserialize)]
struct Brought<V> {
    rows: Option<usize>,
    real: Option<usize>,
    values: V,
}

impl<V> Brought<V> {
    /// The real ones of `n` values, where these are the batch's rows.
    fn real(&self, n: usize) -> Option<usize> {
        (self.rows? == n).then(|| self.real.unwrap_or(n).min(n))
    }
}

impl Accelerator {
    /// The values of all ranks for a metric, joined along dim 0 in the order of ranks: of tensors with a row for each
    /// sample of the batch, the rows that repeat a sample are left out, so that each sample of the data set comes
    /// exactly once, in order, whatever its length. Tensors with another size at dim 0, such as a loss (one number), are
    /// no rows: they come whole, once for each rank, as from [`Accelerator::gather`]. A tensor counts as rows where on
    /// every rank its dim 0 is as long as the rank's batch.
    ///
    /// Accelerate cuts every tensor to the number of samples that are left, also a list of losses:
    /// [`Accelerator::gather_for_metrics_remainder`] does that.
    ///
    /// # Errors
    /// As [`Accelerator::gather`], where rows may differ in number.
    #[track_caller]
    pub fn gather_for_metrics<T: Nested>(&self, value: &T) -> Result<T> {
        let tensors = value.tensors();
        let said = self.bring("gather_for_metrics", encode(&self.with_counts(leaves(&tensors))))?;
        let mut brought = Vec::new();
        let mut kept = tensors.clone();
        let is_rows: Vec<bool> = (0..tensors.len())
            .map(|index| {
                said.iter()
                    .all(|said| said.values[index].sizes.first().is_some_and(|&n| said.real(n).is_some()))
            })
            .collect();
        for said in &said {
            let mut leaves = said.values.clone();
            for (leaf, _) in leaves.iter_mut().zip(&is_rows).filter(|(_, is_rows)| **is_rows) {
                leaf.sizes[0] = said.real(leaf.sizes[0]).unwrap_or(leaf.sizes[0]);
            }
            brought.push(leaves);
        }
        let own: &[Leaf] = &brought[self.process_index()];
        for ((tensor, leaf), _) in kept.iter_mut().zip(own).zip(&is_rows).filter(|(_, is_rows)| **is_rows) {
            *tensor = ops::narrow(&tensor.detach(), 0, 0..leaf.sizes[0])?;
        }
        let rows_may_differ = brought.iter().map(|leaves| {
            let but_rows = leaves.iter().zip(&is_rows).map(|(leaf, is_rows)| match is_rows {
                true => leaf.clone().with_rows(0),
                false => leaf.clone(),
            });
            but_rows.collect::<Vec<_>>()
        });
        let expected = "one shape and dtype, but for the batch's rows";
        collectives::check("gather_for_metrics", &rows_may_differ.collect::<Vec<_>>(), expected, |a, b| {
            a == b
        })?;
        let parts = self.exchange_tensors(&kept, &brought)?;
        collectives::rebuild(value, collectives::join(&kept, &parts, self)?)
    }

    /// As [`Accelerator::gather_for_metrics`], for values of any kind: a list with one for each sample of the batch.
    /// A list of another length comes whole.
    ///
    /// # Errors
    /// As [`Accelerator::gather_object`].
    #[track_caller]
    pub fn gather_for_metrics_object<T: Serialize + DeserializeOwned>(
        &self,
        values: Vec<T>,
    ) -> Result<Vec<T>> {
        let said = self.exchange("gather_for_metrics_object", encode(&self.with_counts(values)))?;
        let lists =
            said.iter().enumerate().map(|(rank, bytes)| decode("gather_for_metrics_object", rank, bytes));
        let lists = lists.collect::<Result<Vec<Brought<Vec<T>>>>>()?;
        let is_rows = lists.iter().all(|list| list.real(list.values.len()).is_some());
        let kept = lists.into_iter().flat_map(|list| {
            let n = list.values.len();
            let real = if is_rows { list.real(n).unwrap_or(n) } else { n };
            list.values.into_iter().take(real)
        });
        Ok(kept.collect())
    }

    /// As Accelerate's `gather_for_metrics`: everything is gathered, and behind the loader's last batch every tensor is
    /// cut to the number of samples that were left for it, also those that hold no samples.
    ///
    /// # Errors
    /// As [`Accelerator::gather`].
    #[track_caller]
    pub fn gather_for_metrics_remainder<T: Nested>(&self, value: &T) -> Result<T> {
        let state = self.gradient_state();
        let said =
            self.bring("gather_for_metrics_remainder", encode(&self.with_counts(Vec::<Leaf>::new())))?;
        let gathered = self.gather(value)?;
        let left: usize = said.iter().filter_map(|said| said.real.or(said.rows)).sum();
        let is_short = said.iter().any(|said| said.real.is_some_and(|real| said.rows != Some(real)));
        if !state.end_of_dataloader || !is_short || left == 0 {
            return Ok(gathered);
        }
        gathered
            .map_tensors(&mut |tensor: &Tensor| Ok(ops::narrow(tensor, 0, 0..left.min(tensor.sizes()[0]))?))
    }

    fn with_counts<V>(&self, values: V) -> Brought<V> {
        let state = self.gradient_state();
        Brought { rows: state.rows, real: state.real, values }
    }

    #[track_caller]
    fn bring(
        &self,
        call: &str,
        mine: std::result::Result<Vec<u8>, String>,
    ) -> Result<Vec<Brought<Vec<Leaf>>>> {
        let said = self.exchange(call, mine)?;
        let said = said.iter().enumerate().map(|(rank, bytes)| decode(call, rank, bytes));
        let said = said.collect::<Result<Vec<Brought<Vec<Leaf>>>>>()?;
        let numbers: Vec<Vec<Leaf>> = said.iter().map(|said| said.values.clone()).collect();
        collectives::check_number(call, &numbers)?;
        Ok(said)
    }
}
