//! An objective of a test: every sequence weighs the same, whatever its length, and a metric goes along.

use oarlock::model::{Decoder, DecoderConfig};
use oarlock::nn;
use oarlock::shard::Placements;
use oarlock::train::objective::{Inputs, LanguageModel, Mean, Objective, ObjectiveLoss, Sum};
use oarlock::train::{evaluate, train_step};
use oarlock::{Accelerator, AcceleratorConfig, Batch, Prepared, ShardingConfig, Tensor, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::ops::{self, TokenLoss};

const LEN: usize = 12;
const VOCAB: usize = 40;

/// The mean loss of each sequence, summed; beside it how far a frozen model is from the labels.
struct BySequence {
    reference: Prepared<Decoder>,
}

impl Objective for BySequence {
    fn weight(&self, batch: &Batch) -> f64 {
        batch.rows as f64
    }

    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        // All sequences of these batches have as many targets.
        let per_sequence = (LEN - 1) as f32;
        let found = model.token_loss(inputs, TokenLoss::CrossEntropy)?;
        let share = Tensor::from_slice(&[1.0 / per_sequence], [], inputs.ids.device())?;
        let loss = ops::mul(&found.loss, &share)?;
        let ids = inputs.ids.detach();
        let frozen = self.reference.module().loss(&ids, &inputs.labels, &inputs.mask)?;
        let reference = Mean { sum: Sum::from(&frozen), weight: frozen.n_targets as f64 };
        let rows = inputs.ids.sizes()[0] as f64;
        Ok(ObjectiveLoss { sum: Sum::from(&loss), loss, weight: rows, metrics: vec![reference] })
    }

    fn metrics(&self, _evaluates: bool) -> &'static [&'static str] {
        &["reference_loss"]
    }
}

fn batch(seed: usize) -> Batch {
    let ids: Vec<i32> = (0..2 * LEN).map(|i| ((i + 5 * seed) * 31 % VOCAB) as i32).collect();
    let labels = (0..2 * LEN).map(|i| if (i + 1) % LEN > 0 { ids[i + 1] } else { -100 }).collect();
    Batch { input_ids: ids, labels, rows: 2, len: LEN, n_targets: 2 * (LEN - 1), ..Batch::default() }
}

/// Losses and metrics of some steps and of an evaluation, on one of several ranks.
fn rank(comm: Communicator, placements: Placements) -> Vec<f64> {
    let shard = ShardingConfig { placements, ..ShardingConfig::default() };
    let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let decoder = || Decoder::new(DecoderConfig::llama(VOCAB, 32, 2, LEN), LEN).unwrap();
    let objective = BySequence { reference: accelerator.prepare(decoder()).unwrap() };
    let model = decoder();
    let adamw = optim::adamw(&model).lr(1e-2);
    let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
    let mut found = Vec::new();
    // Four batches a step, whoever has them.
    let own = |step: usize| {
        let n = 4 / comm.world_size();
        (0..n).map(|i| batch(4 * step + comm.rank() * n + i)).collect::<Vec<_>>()
    };
    for step in 0..4 {
        let timer = &mut PhaseTimer::new();
        let report =
            train_step(&accelerator, &objective, &model, &optimizer, &own(step), 1.0, timer).unwrap();
        assert_eq!(report.totals.weight, 8.0);
        assert_eq!(report.totals.metrics[0].weight, 8.0 * (LEN - 1) as f64);
        if step == 0 {
            // Both have the same weights yet.
            let (mean, reference) = (report.loss(), report.totals.means()[0].1);
            assert!((mean - reference).abs() < 1e-5, "{mean} and {reference}");
        }
        found.extend([report.loss(), report.totals.means()[0].1]);
    }
    let totals = evaluate(&accelerator, &objective, &model, own(0).into_iter()).unwrap().totals;
    assert!(totals.loss() < found[0] && (totals.means()[0].1 - found[1]).abs() < 1e-9);
    found.extend([totals.loss(), totals.weight]);
    comm.finish();
    found
}

#[test]
fn an_objective_of_ones_own_trains_alike_on_any_number_of_ranks() {
    let train = |ranks: usize, placements: Placements| -> Vec<f64> {
        let mut found = oarlock_comm::shm::on_threads(ranks, |comm| rank(comm, placements)).unwrap();
        let first = found.swap_remove(0);
        assert!(found.iter().all(|other| *other == first), "the ranks disagree");
        first
    };
    let one = train(1, Placements::WHOLE);
    assert!(one[6] < one[0], "nothing was learned: {one:?}");
    for placements in [Placements::WHOLE, Placements::PARAMETERS] {
        let two = train(2, placements);
        for (a, b) in one.iter().zip(&two) {
            assert!((a - b).abs() < 1e-5, "{one:?} and {two:?}");
        }
    }
}
