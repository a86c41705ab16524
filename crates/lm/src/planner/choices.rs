//! What can be chosen for a training run: placements of its state, stages of a pipeline, recomputation, and how the batch
//! of a step is divided into micro-batches.

use crate::estimate::Stage;

use super::choice::Choice;
use super::facts::Facts;
use super::predict::{Cluster, Prediction};

/// All that can be chosen on a cluster with micro-batches of these numbers of sequences, so that a step has the sequences of
/// the configuration.
pub fn choices(facts: &Facts, cluster: &Cluster, batches: &[usize]) -> Vec<Choice> {
    let ranks = cluster.n_ranks();
    let mut all = Vec::new();
    let stages =
        (1..=ranks).filter(|stages| ranks.is_multiple_of(*stages) && *stages <= facts.unit_weights.len());
    for n_stages in stages {
        for stage in Stage::ALL {
            // Stages of a pipeline keep whole gradients, as in DeepSpeed. One rank has nothing to shard.
            let data_ranks = ranks / n_stages;
            let has_meaning = data_ranks > 1 || [Stage::Optimizer, facts.written.stage].contains(&stage);
            if n_stages > 1 && stage >= Stage::Gradients || !has_meaning {
                continue;
            }
            for by_machine in [false, true] {
                let has_groups = cluster.machines > 1 && cluster.ranks > 1 && n_stages == 1;
                if by_machine && !(has_groups && stage == Stage::Parameters) {
                    continue;
                }
                for recompute in [false, true] {
                    for &batch in batches {
                        let micro = batch * data_ranks;
                        if facts.global_batch.is_multiple_of(micro) {
                            let accumulation = facts.global_batch / micro;
                            all.push(Choice {
                                stage,
                                by_machine,
                                stages: n_stages,
                                recompute,
                                batch,
                                accumulation,
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

/// What differs by less than this share of a step is taken for equal.
const EQUAL: f64 = 0.02;

impl Choice {
    /// In how many ways it differs from another.
    fn differences(&self, other: &Choice) -> usize {
        let ways = [
            (self.stage, self.by_machine) != (other.stage, other.by_machine),
            self.stages != other.stages,
            self.recompute != other.recompute,
            self.batch != other.batch,
        ];
        ways.into_iter().filter(|differs| *differs).count()
    }
}

/// The best of some predictions: of those that fit the fastest; of what is as fast, what differs least from the
/// configuration, and then what takes the least memory.
pub fn recommended<'a>(facts: &Facts, predictions: &'a [Prediction]) -> Option<&'a Prediction> {
    let fitting = || predictions.iter().filter(|one| one.fits);
    let best = fitting().map(|one| one.seconds).fold(f64::INFINITY, f64::min);
    let mut equal: Vec<&Prediction> = fitting().filter(|one| one.seconds <= best * (1.0 + EQUAL)).collect();
    equal.sort_by_key(|one| (one.choice.differences(&facts.written), one.memory));
    equal.first().copied()
}
