//! `gather_for_metrics`: each sample of a data set exactly once, in order, though loaders repeat some to fill up the end.

use oarlock_tensor::{Tensor, ops};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::collectives::{self, Leaf, decode_all, encode, leaves};
use crate::Result;
use crate::accelerator::handle::Accelerator;
use crate::nn::nested::Nested;

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
        let is_rows: Vec<bool> = (0..tensors.len())
            .map(|index| {
                said.iter()
                    .all(|said| said.values[index].sizes.first().is_some_and(|&n| said.real(n).is_some()))
            })
            .collect();
        // What each rank gives: of rows the real ones.
        let real = |said: &Brought<Vec<Leaf>>| {
            let mut leaves = said.values.clone();
            for (leaf, _) in leaves.iter_mut().zip(&is_rows).filter(|(_, is_rows)| **is_rows) {
                leaf.sizes[0] = said.real(leaf.sizes[0]).unwrap_or(leaf.sizes[0]);
            }
            leaves
        };
        let brought: Vec<Vec<Leaf>> = said.iter().map(real).collect();
        let expected = "one shape and dtype, but for the batch's rows";
        collectives::check("gather_for_metrics", &brought, expected, |index, a, b| {
            a == b || is_rows[index] && a.has_rows_like(b)
        })?;
        let mut kept = tensors.clone();
        let own = &brought[self.process_index()];
        for ((tensor, leaf), _) in kept.iter_mut().zip(own).zip(&is_rows).filter(|(_, is_rows)| **is_rows) {
            *tensor = ops::narrow(&tensor.detach(), 0, 0..leaf.sizes[0])?;
        }
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
        let lists: Vec<Brought<Vec<T>>> = decode_all("gather_for_metrics_object", &said)?;
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
        let said: Vec<Brought<Vec<Leaf>>> = decode_all(call, &said)?;
        collectives::check_number(call, said.iter().map(|said| said.values.len()))?;
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use oarlock_comm::shm;

    use super::*;
    use crate::accelerator::AcceleratorConfig;

    /// The batches of one rank as a loader with `even_batches` gives them: `len` samples, the end filled up with the first.
    fn batches(len: usize, batch: usize, rank: usize, world: usize) -> Vec<Vec<usize>> {
        let round = batch * world;
        let rounds = (0..len.div_ceil(round)).map(|round_index| {
            let first = round_index * round + rank * batch;
            (first..first + batch).map(|i| if i < len { i } else { (i - len) % len }).collect()
        });
        rounds.collect()
    }

    fn show(accelerator: &Accelerator, len: usize, batch: usize, index: usize, n: usize) {
        let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
        let first = index * batch * world + rank * batch;
        accelerator.inner.window.with_gradients(|state| {
            (state.rows, state.real) = (Some(batch), Some(len.saturating_sub(first).min(batch)));
            state.end_of_dataloader = index + 1 == n;
        });
    }

    fn on_ranks<R: Send + 'static>(world: usize, rank: fn(Accelerator) -> R) -> Vec<R> {
        let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
        shm::on_threads(world, |comm| rank(Accelerator::over(comm, &config).unwrap())).unwrap()
    }

    /// Every sample once and in order; a loss of one number once for each rank and batch.
    fn every_length(accelerator: Accelerator) {
        let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
        for len in 1..=200 {
            let batch = 1 + (len * 7 + world) % 16;
            let own = batches(len, batch, rank, world);
            let (mut seen, mut names, mut n_losses) = (Vec::new(), Vec::new(), 0);
            for (index, samples) in own.iter().enumerate() {
                show(&accelerator, len, batch, index, own.len());
                let ids: Vec<i32> = samples.iter().map(|&i| i as i32).collect();
                let logits: Vec<f32> = samples.iter().flat_map(|&i| [i as f32, -(i as f32)]).collect();
                let ids = Tensor::from_slice(&ids, [batch], accelerator.device()).unwrap();
                let logits = Tensor::from_slice(&logits, [batch, 2], accelerator.device()).unwrap();
                let loss = Tensor::from_slice(&[rank as f32], [], accelerator.device()).unwrap();
                let (ids, (logits, loss)) = accelerator.gather_for_metrics(&(ids, (logits, loss))).unwrap();
                let ids = ids.to_vec::<i32>().unwrap();
                let expected: Vec<f32> = ids.iter().flat_map(|&i| [i as f32, -(i as f32)]).collect();
                assert_eq!(logits.to_vec::<f32>().unwrap(), expected);
                assert_eq!(loss.to_vec::<f32>().unwrap(), (0..world).map(|r| r as f32).collect::<Vec<_>>());
                n_losses += loss.n_elems();
                seen.extend(ids);
                let texts = samples.iter().map(|i| format!("sample {i}")).collect();
                names.extend(accelerator.gather_for_metrics_object::<String>(texts).unwrap());
            }
            assert_eq!(seen, (0..len as i32).collect::<Vec<_>>(), "{len} samples, batches of {batch}");
            assert_eq!(names, (0..len).map(|i| format!("sample {i}")).collect::<Vec<_>>());
            assert_eq!(n_losses, own.len() * world);
        }
    }

    #[test]
    fn each_sample_comes_once_and_in_order_for_every_length() {
        for world in 1..=4 {
            on_ranks(world, every_length);
        }
    }

    #[test]
    fn the_cut_of_the_original_is_there_by_its_name() {
        let gathered = on_ranks(2, |accelerator| {
            // Three samples, batches of two: the second rank has one sample and one that repeats.
            show(&accelerator, 3, 2, 0, 1);
            let rank = accelerator.process_index() as f32;
            let rows =
                Tensor::from_slice(&[2.0 * rank, 2.0 * rank + 1.0], [2], accelerator.device()).unwrap();
            let counts = Tensor::from_slice(&[rank; 5], [5], accelerator.device()).unwrap();
            let value = (rows, counts);
            let original = accelerator.gather_for_metrics_remainder(&value).unwrap();
            let ours = accelerator.gather_for_metrics(&value).unwrap();
            [original.0, original.1, ours.0, ours.1].map(|tensor| tensor.to_vec::<f32>().unwrap())
        });
        let ones_and_zeros = [vec![0.0; 5], vec![1.0; 5]].concat();
        let expected = [vec![0.0, 1.0, 2.0], vec![0.0; 3], vec![0.0, 1.0, 2.0], ones_and_zeros];
        assert_eq!(gathered, [expected.clone(), expected]);
    }

    #[test]
    fn without_word_of_a_loader_all_is_real_and_rows_must_agree() {
        on_ranks(2, |accelerator| {
            let rank = accelerator.process_index();
            let rows = Tensor::from_slice(&[rank as i32; 2], [2], accelerator.device()).unwrap();
            assert_eq!(accelerator.gather_for_metrics(&rows).unwrap().to_vec::<i32>().unwrap(), [0, 0, 1, 1]);
            let uneven = Tensor::zeros([1 + rank], oarlock_tensor::DType::F32, accelerator.device()).unwrap();
            let error = accelerator.gather_for_metrics(&uneven).unwrap_err().to_string();
            assert!(error.contains("- Process 1: [2] f32"), "{error}");
            // A loader that says how long the batch is has them join.
            accelerator.inner.window.with_gradients(|state| state.rows = Some(1 + rank));
            assert_eq!(accelerator.gather_for_metrics(&uneven).unwrap().sizes(), [3]);
        });
    }
}
