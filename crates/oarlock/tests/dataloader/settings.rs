//! Samplers, collation, and settings that cannot be.

use std::collections::BTreeMap;

use oarlock::data::DistributedSampler;
use oarlock::dataloader::{DataLoader, stream};
use oarlock::{DataLoaderConfiguration, Result, Tensor};

use crate::{Ids, all, config, numbers, ranks, real};

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
    let told = ranks(2, &config(Default::default()), |accelerator| {
        let loader = numbers(10, 3).sampler(DistributedSampler::new(10, (0, 1)));
        accelerator.prepare(loader).map(|_| ()).unwrap_err().to_string()
    });
    assert!(told[1].contains("the samples of rank 0 of 1, and this is rank 1 of 2; leave the sampler away"));
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

    let told = |samples: Vec<Vec<i64>>| {
        DataLoader::new(samples, 2).iter().unwrap().next().unwrap().unwrap_err().to_string()
    };
    assert!(
        told(vec![vec![1, 2], vec![3]])
            .contains("the first has 2 numbers and another 1 (at place 1 of the batch)")
    );
    assert!(told(vec![vec![1], vec![1 << 40]]).contains("a sample has 1099511627776"));
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let told = |loader: DataLoader<usize>| loader.iter().map(|_| ()).unwrap_err().to_string();
    let ids = || (0..10).collect::<Vec<usize>>();
    assert_eq!(
        told(DataLoader::new(ids(), 0)),
        "data loader: batches of 0 samples; give a batch size of 1 or more"
    );
    let both = DataLoader::new(ids(), 2).shuffle(true).sampler(DistributedSampler::new(10, (0, 1)));
    assert!(told(both).contains("sampler is mutually exclusive with shuffle"));
    let both = DataLoader::new(ids(), 2).drop_last(true).batch_sampler(|_| vec![vec![0]]);
    assert!(told(both).contains("batch_sampler is mutually exclusive with shuffle, sampler and drop_last"));
    assert!(
        told(DataLoader::new(ids(), 2).batch_sampler(|_| vec![vec![3, 10]]))
            .contains("the sample 10 of a data set of 10")
    );
    assert!(
        told(DataLoader::iterable(stream(|_| 0..4_usize), 2).shuffle(true)).contains("shuffle inside of it")
    );
    let told = DataLoader::iterable(stream(|_| 0..4_usize), 2).len().unwrap_err().to_string();
    assert!(told.contains("an iterable data set has no length"));

    let split = DataLoaderConfiguration { split_batches: true, ..Default::default() };
    let told = ranks(3, &config(split), |accelerator| {
        accelerator.prepare(numbers(10, 4)).map(|_| ()).unwrap_err().to_string()
    });
    assert!(told[0].contains("a batch (4) is divided among the ranks (3)"), "{}", told[0]);
    let told = ranks(2, &config(Default::default()), |accelerator| {
        let n = 10 + accelerator.process_index();
        accelerator.prepare(numbers(n, 4)).map(|_| ()).unwrap_err().to_string()
    });
    assert!(told[0].contains("the number of samples of a data set"), "{}", told[0]);
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
