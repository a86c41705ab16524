//! Samplers, collation, and settings that cannot be.

use std::collections::BTreeMap;

use oarlock::dataloader::{BatchSamplerShard, DistributedSampler};
use oarlock::dataloader::{DataLoader, skip_first_batches, stream};
use oarlock::{DataLoaderConfiguration, Error, Result, Tensor};
use proptest::prelude::*;

use super::{Ids, all, config, numbers, ranks, real, streamed};

#[test]
fn a_distributed_sampler_divides_and_is_not_divided_again() {
    let shares = ranks(3, &config(Default::default()), |accelerator| {
        let of = (accelerator.process_index(), accelerator.num_processes());
        let sampler = DistributedSampler { shuffle: false, ..DistributedSampler::new(10, of) };
        let loader = numbers(10, 3).sampler(sampler);
        let alone: Vec<Ids> = loader.iter().unwrap().collect::<Result<_>>().unwrap();
        loader.set_epoch(0);
        let loader = accelerator.prepare(loader).unwrap();
        assert_eq!((all(&loader), loader.total_batch_size()), (alone, Some(9)));
        real(accelerator, &loader)
    });
    assert_eq!(shares[0], [(vec![0, 3, 6], 3), (vec![9], 1)]);
    assert_eq!(shares[2], [(vec![2, 5, 8], 3), (vec![1], 0)]);
    let message = ranks(2, &config(Default::default()), |accelerator| {
        let loader = numbers(10, 3).sampler(DistributedSampler::new(10, (0, 1)));
        accelerator.prepare(loader).map(|_| ()).unwrap_err().to_string()
    });
    assert!(
        message[1].contains("the samples of rank 0 of 1, and this is rank 1 of 2; leave the sampler away")
    );
}

#[test]
fn numbers_vectors_and_maps_are_stacked() {
    let samples: Vec<(Vec<f32>, i64, String)> =
        (0..5).map(|i| (vec![i as f32, 0.5], i, format!("text {i}"))).collect();
    let loader = DataLoader::new(samples, 2);
    let batches: Vec<(Tensor, Tensor, Vec<String>)> = loader.iter().unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(batches.len(), 3);
    assert_eq!(batches[1].0.sizes(), [2, 2]);
    assert_eq!(batches[1].0.to_vec::<f32>().unwrap(), [2.0, 0.5, 3.0, 0.5]);
    assert_eq!(batches[2].1.to_vec::<i32>().unwrap(), [4]);
    assert_eq!(batches[0].2, ["text 0", "text 1"]);

    let rows: Vec<BTreeMap<String, [i32; 2]>> =
        (0..2).map(|i| BTreeMap::from([("ids".to_owned(), [i, i + 1])])).collect();
    let batch = DataLoader::new(rows, 2).iter().unwrap().next().unwrap().unwrap();
    assert_eq!(batch["ids"].to_vec::<i32>().unwrap(), [0, 1, 1, 2]);

    let message = |samples: Vec<Vec<i64>>| {
        DataLoader::new(samples, 2).iter().unwrap().next().unwrap().unwrap_err().to_string()
    };
    assert!(
        message(vec![vec![1, 2], vec![3]])
            .contains("the first has 2 numbers and another 1 (at place 1 of the batch)")
    );
    assert!(message(vec![vec![1], vec![1 << 40]]).contains("a sample has 1099511627776"));
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let message = |loader: DataLoader<usize>| loader.iter().map(|_| ()).unwrap_err().to_string();
    let ids = || (0..10).collect::<Vec<usize>>();
    assert_eq!(
        message(DataLoader::new(ids(), 0)),
        "data loader: batches of 0 samples; give a batch size of 1 or more"
    );
    let both = DataLoader::new(ids(), 2).shuffle(true).sampler(DistributedSampler::new(10, (0, 1)));
    assert!(message(both).contains("sampler is mutually exclusive with shuffle"));
    let both = DataLoader::new(ids(), 2).drop_last(true).batch_sampler(|_| vec![vec![0]]);
    assert!(
        message(both).contains("batch_sampler is mutually exclusive with shuffle, sampler and drop_last")
    );
    assert!(
        message(DataLoader::new(ids(), 2).batch_sampler(|_| vec![vec![3, 10]]))
            .contains("the sample 10 of a data set of 10")
    );
    assert!(
        message(DataLoader::iterable(stream(|_| 0..4_usize), 2).shuffle(true))
            .contains("shuffle inside of it")
    );
    let message = DataLoader::iterable(stream(|_| 0..4_usize), 2).len().unwrap_err().to_string();
    assert!(message.contains("an iterable data set has no length"));

    let split = DataLoaderConfiguration { split_batches: true, ..Default::default() };
    let message = ranks(3, &config(split), |accelerator| {
        accelerator.prepare(numbers(10, 4)).map(|_| ()).unwrap_err().to_string()
    });
    assert!(message[0].contains("a batch (4) is divided among the ranks (3)"), "{}", message[0]);
    let message = ranks(2, &config(Default::default()), |accelerator| {
        let n = 10 + accelerator.process_index();
        accelerator.prepare(numbers(n, 4)).map(|_| ()).unwrap_err().to_string()
    });
    assert!(message[0].contains("the number of samples of a data set"), "{}", message[0]);
}

#[test]
fn nothing_gives_no_batch() {
    ranks(2, &config(Default::default()), |accelerator| {
        let (none, few) = accelerator
            .prepare((numbers(0, 4).shuffle(true), numbers(7, 4).drop_last(true).num_workers(2)))
            .unwrap();
        assert!(none.is_empty().unwrap() && few.is_empty().unwrap());
        assert!(all(&none).is_empty() && all(&few).is_empty());
        assert_eq!((none.left_out(), few.left_out()), (0, 7));
    });
}

#[test]
fn functions_are_samplers() {
    let odd = |epoch: u64| (0..5).map(|i| (2 * i + 1 + 2 * epoch as usize) % 10).collect::<Vec<usize>>();
    let of_ranks = ranks(2, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(numbers(10, 1).sampler(odd)).unwrap();
        assert_eq!((loader.len().unwrap(), loader.total_dataset_length()), (3, Some(10)));
        (real(accelerator, &loader), all(&loader))
    });
    assert_eq!(of_ranks[1].0, [(vec![3], 1), (vec![7], 1), (vec![1], 0)]);
    assert_eq!(of_ranks[1].1, [[5], [9], [3]]);
}

#[test]
fn a_loader_does_not_keep_its_accelerator() {
    let data = std::sync::Arc::new((0..4).collect::<Vec<usize>>());
    ranks(1, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(oarlock::dataloader::DataLoader::new(data.clone(), 2)).unwrap();
        assert_eq!(loader.iter().unwrap().count(), 2);
    });
    assert_eq!(std::sync::Arc::strong_count(&data), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_number_of_a_loader_is_too_large_to_be_told(
        len in 0..20_usize,
        batch_size in number(),
        first in number(),
        (prefetch, split, even, drop_last, is_stream) in
            (number(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        world in 1..4_usize,
    ) {
        let settings =
            DataLoaderConfiguration { split_batches: split, even_batches: even, ..Default::default() };
        let seen = ranks(world, &config(settings), |accelerator| {
            let loader = if is_stream {
                accelerator.prepare(streamed(len, batch_size).drop_last(drop_last).prefetch_factor(prefetch))
            } else {
                accelerator.prepare(numbers(len, batch_size).drop_last(drop_last).prefetch_factor(prefetch))
            };
            let loader = loader?;
            loader.total_batch_size();
            let _ = loader.len();
            let all: Result<Vec<Ids>> = loader.iter()?.collect();
            let _: Result<Vec<Ids>> = skip_first_batches(&loader, first).iter()?.collect();
            Ok::<_, Error>(all?.concat())
        });
        // What is too large is so for every rank; the samples of a batch that fits are all there.
        prop_assert!(seen.iter().all(|rank| rank.is_ok() == seen[0].is_ok()));
        if batch_size > 0 && world == 1 && !drop_last {
            let seen = seen.into_iter().next().unwrap();
            prop_assert_eq!(seen.unwrap(), (0..len).collect::<Ids>());
        }
    }

    #[test]
    fn no_number_of_a_sampler_is_too_large_to_be_told(
        len in number(),
        batch_size in number(),
        first in number(),
        (rank, world, batch) in (number(), number(), number()),
        (drop_last, even_batches) in (any::<bool>(), any::<bool>()),
    ) {
        let shard = BatchSamplerShard { len, first, batch_size, world, rank, drop_last, even_batches };
        // A round of no samples is refused where a shard is made; by hand nobody can be stopped.
        if shard.round() > 0 {
            shard.n_batches();
            shard.n_real(batch);
            if len < 100 || even_batches && !drop_last && batch_size > 1 << 50 {
                let _ = shard.batch(batch);
            }
        }
        let _ = BatchSamplerShard::new(len, batch_size, (rank, world), drop_last);
        let sampler = DistributedSampler { shuffle: false, drop_last, ..DistributedSampler::new(len, (rank, world)) };
        sampler.num_samples();
        if len < 100 {
            prop_assert!(sampler.indices().iter().all(|sample| *sample < len));
        }
    }
}

/// Small ones and those at the edges.
fn number() -> impl Strategy<Value = usize> {
    let large = (0..4_usize, 0..64_u32)
        .prop_map(|(less, shift)| (usize::MAX >> shift) - less.min(usize::MAX >> shift));
    prop_oneof![0..10_usize, large.prop_filter("no gigabytes", |n| *n < 100 || *n > 1 << 50)]
}
