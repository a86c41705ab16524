//! The loader gives what the sampler says, from any position.

use super::super::cache::TokenCache;
use super::super::pack::{Packing, RowSettings};
use super::super::source::Source;
use super::super::tokenizer::tests::small;
use super::*;

fn rows(packing: Packing, len: usize) -> Arc<Rows> {
    let (dir, tokenizer) = small();
    let text: Vec<String> = (0..40).map(|i| "the lazy dog ".repeat(i % 7) + "end").collect();
    std::fs::write(dir.path().join("data.txt"), text.join("\n")).unwrap();
    let source = Source::resolve("data.txt", dir.path(), None).unwrap();
    let build = TokenCache::build(dir.path(), &source, &tokenizer, &mut |_| {}).unwrap();
    let cache = Arc::new(TokenCache::open(&build.path).unwrap());
    let settings = RowSettings { packing, len, special: tokenizer.special() };
    Arc::new(Rows::new(cache, &settings).unwrap())
}

fn sampler(rows: &Rows, world: u64, rank: u64) -> Sampler {
    Sampler {
        len: rows.n_rows(),
        seed: 5,
        shuffle: true,
        world,
        rank,
        micro_batch: 3,
        accumulation: 2,
        lengths: None,
    }
}

#[test]
fn steps_are_those_of_the_sampler_whatever_was_given_back() {
    for packing in [Packing::Concat, Packing::ConcatDocuments, Packing::Truncate, Packing::MiniMind] {
        let rows = rows(packing, 8);
        let sampler = sampler(&rows, 2, 1);
        let mut loader = Loader::new(rows.clone(), sampler.clone(), 0).unwrap();
        let mut position = 0;
        for step in 0..3 * sampler.steps_per_epoch() {
            let got = loader.next_step().unwrap();
            let mut expected = StepBatches::default();
            expected.fill(&rows, &sampler, position);
            assert_eq!(got, expected);
            position = got.position;
            assert_eq!(position, sampler.position_after(step + 1));
            assert_eq!(got.batches[0].doc_start.is_some(), packing == Packing::ConcatDocuments);
            loader.give_back(got);
        }
    }
}

#[test]
fn a_run_resumes_anywhere() {
    let rows = rows(Packing::Concat, 8);
    let sampler = sampler(&rows, 2, 0);
    let mut whole = Loader::new(rows.clone(), sampler.clone(), 0).unwrap();
    for step in 0..2 * sampler.steps_per_epoch() {
        let expected = whole.next_step().unwrap();
        let mut resumed = Loader::new(rows.clone(), sampler.clone(), sampler.position_after(step)).unwrap();
        assert_eq!(resumed.next_step().unwrap(), expected);
    }
}

#[test]
fn ranks_agree_on_the_targets_of_a_step() {
    for packing in [Packing::ConcatDocuments, Packing::MiniMind] {
        let rows = rows(packing, 9);
        let n_steps = sampler(&rows, 3, 0).steps_per_epoch();
        let mut loaders: Vec<Loader> =
            (0..3).map(|rank| Loader::new(rows.clone(), sampler(&rows, 3, rank), 0).unwrap()).collect();
        let mut epoch_targets = 0;
        for _ in 0..n_steps {
            let steps: Vec<StepBatches> = loaders.iter_mut().map(|l| l.next_step().unwrap()).collect();
            let counted: u64 = steps.iter().flat_map(|s| &s.batches).map(|b| b.n_targets as u64).sum();
            assert!(
                steps.iter().all(|s| s.n_targets == counted && s.batches.len() == steps[0].batches.len())
            );
            assert!(
                steps.iter().flat_map(|s| &s.batches).all(|b| b.rows == 3 && b.input_ids.len() == 3 * b.len)
            );
            epoch_targets += counted;
        }
        assert_eq!(epoch_targets, (0..rows.n_rows()).map(|r| rows.n_targets(r) as u64).sum::<u64>());
    }
}

#[test]
fn evaluation_sees_every_row_once() {
    let rows = rows(Packing::Truncate, 12);
    let mut n_targets = 0;
    for rank in 0..3 {
        let batches: Vec<Batch> = eval_batches(rows.clone(), 3, rank, 4).unwrap().collect();
        assert_eq!(batches.len(), 4);
        n_targets += batches.iter().map(|b| b.n_targets as u64).sum::<u64>();
    }
    assert_eq!(n_targets, (0..rows.n_rows()).map(|r| rows.n_targets(r) as u64).sum::<u64>());
    assert!(eval_batches(rows, 3, 3, 4).is_err());
}

/// What the data do not have is not computed; data that fill a batch are divided as they were.
#[test]
fn a_batch_that_the_data_do_not_fill_has_the_rows_that_there_are() {
    for packing in [Packing::Truncate, Packing::Concat, Packing::MiniMind] {
        let rows = rows(packing, 12);
        let n = rows.n_rows();
        for world in 1..4 {
            let full = n / world;
            for wanted in 1..=full {
                assert_eq!(rows.micro_batch(world, wanted), wanted);
            }
            let most = rows.micro_batch(world, 4000);
            assert_eq!(most, n.div_ceil(world));
            let mut n_rows = 0;
            for rank in 0..world {
                let batches: Vec<Batch> = eval_batches(rows.clone(), world, rank, 4000).unwrap().collect();
                assert_eq!((batches.len(), batches[0].rows as u64), (1, most));
                n_rows += batches[0].samples.len() as u64;
            }
            assert_eq!(n_rows, n);
        }
    }
}

#[test]
fn a_sampler_of_other_rows_is_refused() {
    let rows = rows(Packing::Truncate, 12);
    let other = Sampler { len: 7, ..sampler(&rows, 1, 0) };
    let error = Loader::new(rows, other, 0).err().unwrap().to_string();
    assert!(error.contains("counts 7 rows, the data has 40"), "{error}");
}
