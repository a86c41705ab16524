//! Answers of a model while it is trained: the same for every placement and number of ranks.

use oarlock::generate::{GenerateOptions, Prompt, Sampling};
use oarlock::model::{Decoder, DecoderConfig};
use oarlock::shard::Placements;
use oarlock::train::objective::Unrecorded;
use oarlock::train::{NextToken, train_step};
use oarlock::{Accelerator, AcceleratorConfig, Batch, ShardingConfig, optim};
use oarlock_comm::Communicator;
use oarlock_engine::report::speed::PhaseTimer;

const LEN: usize = 24;
const VOCAB: u32 = 40;

/// Each with its number.
type Answers = Vec<(u64, Vec<u32>)>;

fn batch() -> Batch {
    let ids: Vec<i32> = (0..LEN as i32).map(|i| i * 7 % VOCAB as i32).collect();
    let labels = ids[1..].iter().copied().chain([-100]).collect();
    Batch { input_ids: ids, labels, rows: 1, len: LEN, n_targets: LEN - 1, ..Batch::default() }
}

/// The answers of a rank before the first step and after it.
fn rank(comm: Communicator, placements: Placements) -> [Answers; 2] {
    let shard = ShardingConfig { placements, ..ShardingConfig::default() };
    let config = AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
    let model = Decoder::new(DecoderConfig::llama(VOCAB as usize, 32, 2, LEN), LEN).unwrap();
    let adamw = optim::adamw(&model).lr(1e-2);
    let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
    let (world, own) = (comm.world_size() as u64, comm.rank() as u64);
    let answers = || -> Answers {
        // Five prompts of different lengths: some ranks have fewer, and those of four ranks may have none to begin with.
        let prompt = |number: u64| Prompt { number, ids: (1..3 + 2 * number as u32).collect() };
        let prompts: Vec<Prompt> = (0..5).filter(|number| number % world == own).map(prompt).collect();
        let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY };
        let options =
            GenerateOptions { sampling, max_new_tokens: 8, stop_ids: vec![5, 11, 17], ..Default::default() };
        let found = Unrecorded::generate(&model, &accelerator, &prompts, &options, 2).unwrap();
        prompts.iter().zip(found).map(|(prompt, answer)| (prompt.number, answer.output)).collect()
    };
    let before = answers();
    let timer = &mut PhaseTimer::new();
    train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &[batch()], 1.0, timer).unwrap();
    let after = answers();
    assert!(model.is_training());
    comm.finish();
    [before, after]
}

fn on(ranks: usize, placements: Placements) -> [Answers; 2] {
    let mut all: [Answers; 2] = Default::default();
    for of_rank in oarlock_comm::shm::on_threads(ranks, |comm| rank(comm, placements)).unwrap() {
        for (all, own) in all.iter_mut().zip(of_rank) {
            all.extend(own);
        }
    }
    all.iter_mut().for_each(|answers| answers.sort());
    all
}

#[test]
fn a_sharded_model_answers_as_a_whole_one() {
    let [alone, trained] = on(1, Placements::WHOLE);
    assert_eq!(alone.len(), 5);
    assert_ne!(alone, trained, "a step changes the model");
    for ranks in [2, 4] {
        let whole = on(ranks, Placements::WHOLE);
        assert_eq!(whole[0], alone, "{ranks} ranks");
        for placements in [Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS] {
            assert_eq!(on(ranks, placements), whole, "{ranks} ranks, {placements:?}");
        }
    }
}
