//! Sums and means of a step, which add up over micro-batches and ranks and are read once, at its end.

use std::ops::AddAssign;

use oarlock_engine::{Accelerator, Error, Loss, Result};
use oarlock_tensor::Tensor;
use oarlock_tensor::ops::HeadLoss;
use oarlock_tensor::ops::transfer::DeviceF64;

/// A sum of a micro-batch on the device, read when it is asked for.
#[derive(Clone, Debug)]
pub enum Sum {
    /// Of a head, with all its digits.
    Exact(DeviceF64),
    /// A tensor of one number.
    Tensor(Tensor),
}

impl Sum {
    /// The number, copied to the host.
    ///
    /// # Errors
    /// A tensor of more numbers than one, or of values that nobody knows.
    pub fn read(&self) -> Result<f64> {
        match self {
            Sum::Exact(sum) => Ok(sum.read()?),
            Sum::Tensor(sum) => Ok(sum.item::<f64>()?),
        }
    }
}

impl From<&HeadLoss> for Sum {
    fn from(loss: &HeadLoss) -> Sum {
        Sum::Exact(loss.exact.clone())
    }
}

impl From<&Tensor> for Sum {
    /// Of a tensor of one number, off its tape.
    fn from(sum: &Tensor) -> Sum {
        Sum::Tensor(sum.detach())
    }
}

/// A mean of a micro-batch: a sum and what it weighs.
#[derive(Clone, Debug)]
pub struct Mean {
    /// The sum.
    pub sum: Sum,
    /// What it weighs.
    pub weight: f64,
}

/// A metric over all micro-batches and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// The sum.
    pub sum: f64,
    /// What it weighs.
    pub weight: f64,
}

impl Metric {
    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sum / self.weight
    }
}

/// The distance between the mean rewards of chosen and rejected answers.
const MARGINS: &str = "rewards/margins";

/// What the micro-batches of a rank came to, unread.
#[derive(Default)]
pub struct Tally {
    losses: Vec<Sum>,
    weights: Vec<f64>,
    metrics: Vec<Vec<Mean>>,
}

/// What an evaluation came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Sums over all targets, sequences or pairs.
    pub totals: Totals,
    /// The mean of the mean losses of batches: `eval_loss` of the Trainer of transformers. The rows that all ranks evaluate at a
    /// time are one batch.
    pub loss: f64,
}

/// What the micro-batches of all ranks came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// The loss, summed.
    pub loss_sum: f64,
    /// What it weighs: targets, sequences or pairs.
    pub weight: f64,
    /// The metrics of the objective.
    pub metrics: Vec<Metric>,
}

impl Totals {
    /// The mean loss.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.weight
    }

    /// Whether all sums are numbers.
    pub fn is_finite(&self) -> bool {
        self.loss_sum.is_finite() && self.metrics.iter().all(|metric| metric.sum.is_finite())
    }

    /// The means of the metrics with their names, of those that weigh anything. Where chosen and rejected answers have
    /// rewards of their own, the margin between the means is one of them.
    pub fn means(&self) -> Vec<(&'static str, f64)> {
        let known = self.metrics.iter().filter(|metric| metric.weight != 0.0);
        let mut means: Vec<(&'static str, f64)> = known.map(|metric| (metric.name, metric.mean())).collect();
        let mean = |name: &str| means.iter().find(|(own, _)| *own == name).map(|(_, mean)| *mean);
        if let (Some(chosen), Some(rejected)) = (mean("rewards/chosen"), mean("rewards/rejected"))
            && mean(MARGINS).is_none()
        {
            means.push((MARGINS, chosen - rejected));
        }
        means
    }
}

impl AddAssign<&Totals> for Totals {
    fn add_assign(&mut self, other: &Totals) {
        self.loss_sum += other.loss_sum;
        self.weight += other.weight;
        if self.metrics.is_empty() {
            self.metrics.clone_from(&other.metrics);
            return;
        }
        for (own, other) in self.metrics.iter_mut().zip(&other.metrics) {
            own.sum += other.sum;
            own.weight += other.weight;
        }
    }
}

impl Tally {
    /// Adds a micro-batch.
    pub fn add(&mut self, loss: ObjectiveLoss) {
        self.losses.push(loss.sum);
        self.weights.push(loss.weight);
        self.metrics.push(loss.metrics);
    }

    /// Adds other micro-batches.
    pub fn append(&mut self, other: Tally) {
        self.losses.extend(other.losses);
        self.weights.extend(other.weights);
        self.metrics.extend(other.metrics);
    }

    /// The mean of the mean losses of the batches of which this rank has so many `rows` each. As in the Trainer of transformers,
    /// all batches count alike on one rank, and on several the last, which may be smaller, counts with its rows. All ranks call
    /// it together. A batch without targets has no loss.
    ///
    /// # Errors
    /// When a rank failed.
    #[track_caller]
    pub fn mean_of_batches(&self, accelerator: &Accelerator, rows: &[usize]) -> Result<f64> {
        let mut sums = vec![0.0; 3 * rows.len()];
        for (batch, rows) in sums.chunks_exact_mut(3).zip(rows) {
            batch[2] = *rows as f64;
        }
        // A stage of a pipeline that is not the last has no losses.
        for (batch, (loss, weight)) in sums.chunks_exact_mut(3).zip(self.losses.iter().zip(&self.weights)) {
            (batch[0], batch[1]) = (loss.read()?, *weight);
        }
        accelerator.reduce_sum(&mut sums)?;
        let is_alone = accelerator.data_parallel().0 == 1;
        let (mut sum, mut n) = (0.0, 0.0);
        for batch in sums.chunks_exact(3).filter(|batch| batch[1] != 0.0) {
            let share = if is_alone { 1.0 } else { batch[2] };
            sum += share * (batch[0] / batch[1]);
            n += share;
        }
        Ok(sum / n)
    }

    /// Reads all sums and adds those of all ranks, which call it together; `names` are those of the metrics. Where all
    /// ranks know the weight of the losses already, it is `weight`.
    ///
    /// # Errors
    /// When a rank failed, or an objective gives other metrics than it names.
    #[track_caller]
    pub fn over_ranks(
        &self,
        accelerator: &Accelerator,
        names: &[&'static str],
        weight: Option<f64>,
    ) -> Result<Totals> {
        let mut sums = vec![0.0];
        for loss in &self.losses {
            sums[0] += loss.read()?;
        }
        sums.extend(weight.is_none().then(|| self.weights.iter().sum::<f64>()));
        let first = sums.len();
        sums.resize(first + 2 * names.len(), 0.0);
        for metrics in &self.metrics {
            if metrics.len() != names.len() {
                return Err(Error::Usage(format!(
                    "an objective names {} metrics ({}), and its loss has {}",
                    names.len(),
                    names.join(", "),
                    metrics.len()
                )));
            }
            for (place, mean) in sums[first..].chunks_exact_mut(2).zip(metrics) {
                place[0] += mean.sum.read()?;
                place[1] += mean.weight;
            }
        }
        accelerator.reduce_sum(&mut sums)?;
        let metric =
            |(&name, place): (&&'static str, &[f64])| Metric { name, sum: place[0], weight: place[1] };
        let metrics = names.iter().zip(sums[first..].chunks_exact(2)).map(metric).collect();
        Ok(Totals { loss_sum: sums[0], weight: weight.unwrap_or_else(|| sums[1]), metrics })
    }
}

/// The loss of a micro-batch.
pub struct ObjectiveLoss {
    /// The sum on the tape: one number.
    pub loss: Tensor,
    /// The same sum, to be read at the end of the step.
    pub sum: Sum,
    /// What it weighs: what [`Objective::weight`](super::Objective::weight) said of the batch.
    pub weight: f64,
    /// A mean for each name of [`Objective::metrics`](super::Objective::metrics).
    pub metrics: Vec<Mean>,
}

impl Loss for ObjectiveLoss {
    fn value(&self) -> &Tensor {
        &self.loss
    }

    fn weight(&self) -> Option<f64> {
        Some(self.weight)
    }
}

impl From<HeadLoss> for ObjectiveLoss {
    /// The loss of a head, which weighs its targets.
    fn from(loss: HeadLoss) -> ObjectiveLoss {
        let weight = loss.n_targets as f64;
        ObjectiveLoss { sum: Sum::from(&loss), loss: loss.loss, weight, metrics: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_engine::AcceleratorConfig;

    /// The mean of batches on so many ranks, each of which has the same rows, losses and weights.
    fn mean(ranks: usize, batches: &[(f32, f64, usize)]) -> f64 {
        let rank = |comm| {
            let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
            let accelerator = Accelerator::over(comm, &config).unwrap();
            let mut tally = Tally::default();
            for &(sum, weight, _) in batches {
                let loss = Tensor::from_slice(&[sum], [1], accelerator.device()).unwrap();
                tally.add(ObjectiveLoss { sum: Sum::from(&loss), loss, weight, metrics: Vec::new() });
            }
            let rows: Vec<usize> = batches.iter().map(|(.., rows)| *rows).collect();
            tally.mean_of_batches(&accelerator, &rows).unwrap()
        };
        let means: Vec<f64> = oarlock_comm::shm::on_threads(ranks, rank).unwrap();
        assert!(means.iter().all(|mean| mean.to_bits() == means[0].to_bits()), "{means:?}");
        means[0]
    }

    #[test]
    fn batches_are_averaged_as_by_the_trainer_of_transformers() {
        // The last batch has fewer rows, and one has no targets.
        let batches = [(30.0, 10.0, 3), (8.0, 2.0, 3), (0.0, 0.0, 3), (14.0, 2.0, 1)];
        assert_eq!(mean(1, &batches), (3.0 + 4.0 + 7.0) / 3.0);
        assert_eq!(mean(2, &batches), (3.0 * 3.0 + 3.0 * 4.0 + 7.0) / 7.0);
    }
}
