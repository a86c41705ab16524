//! Loaders: every rank gets the samples that Accelerate gives it, each sample is real once, and what goes wrong ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use oarlock::data::DistributedSampler;
use oarlock::dataloader::{
    Collator, DataLoader, Dataset, Items, IterableDataset, PreparedLoader, from_fn, stream,
};
use oarlock::{
    Accelerator, AcceleratorConfig, DataLoaderConfiguration, Ends, Error, GradientAccumulation, Nested,
    Result, Stateful, Tensor,
};

type Ids = Vec<usize>;

fn config(dataloader: DataLoaderConfiguration) -> AcceleratorConfig {
    AcceleratorConfig { dataloader, threads: Some(1), ..AcceleratorConfig::default() }
}

/// What each of `world` ranks comes to.
fn ranks<R: Send>(
    world: usize,
    config: &AcceleratorConfig,
    rank: impl Fn(&Accelerator) -> R + Sync,
) -> Vec<R> {
    let comms = oarlock_comm::shm::threads(world).unwrap();
    std::thread::scope(|scope| {
        let run = |comm: oarlock_comm::Communicator| {
            let rank = &rank;
            scope.spawn(move || {
                let result = rank(&Accelerator::over(comm.clone(), config).unwrap());
                comm.finish();
                result
            })
        };
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The numbers below `n`.
fn numbers(n: usize, batch_size: usize) -> DataLoader<usize, impl Collator<usize, Batch = Ids>> {
    let ids: Vec<usize> = (0..n).collect();
    DataLoader::new(ids, batch_size).collate(|ids: Vec<usize>, _| Ok(ids))
}

/// The same as a stream.
fn streamed(n: usize, batch_size: usize) -> DataLoader<usize, impl Collator<usize, Batch = Ids>> {
    DataLoader::iterable(stream(move |_| 0..n), batch_size).collate(|ids: Vec<usize>, _| Ok(ids))
}

fn all(loader: &PreparedLoader<Ids>) -> Vec<Ids> {
    loader.iter().unwrap().collect::<Result<_>>().unwrap()
}

/// Batches with how many of their samples are real.
fn real(accelerator: &Accelerator, loader: &PreparedLoader<Ids>) -> Vec<(Ids, usize)> {
    let mut found = Vec::new();
    for batch in loader.iter().unwrap() {
        let batch = batch.unwrap();
        let n = accelerator.gradient_state().real.unwrap_or(batch.len());
        found.push((batch, n));
    }
    found
}

/// The real samples of all ranks, round by round and rank by rank.
fn gathered(of_ranks: &[Vec<(Ids, usize)>]) -> Ids {
    let n_rounds = of_ranks.iter().map(Vec::len).max().unwrap();
    let rounds =
        (0..n_rounds).flat_map(|round| of_ranks.iter().filter_map(move |rank| rank.as_slice().get(round)));
    rounds.flat_map(|(batch, n)| batch[..*n].iter().copied()).collect()
}

fn written(batches: &[Ids]) -> String {
    let batch = |batch: &Ids| batch.iter().map(|i| format!("{i},")).collect::<String>() + ";";
    batches.iter().map(batch).collect()
}

/// FNV-1a, 64 bits.
fn hash(of_ranks: &[String]) -> String {
    let bytes = of_ranks.iter().flat_map(|rank| rank.bytes().chain([b'|']));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// A case of bench/golden/make_dataloader.py.
#[derive(Clone, Copy)]
struct Case {
    line: &'static str,
    n: [usize; 6],
}

impl Case {
    fn kind(&self) -> &'static str {
        self.line.split(' ').next().unwrap()
    }

    fn expected(&self) -> &'static str {
        self.line.rsplit(' ').next().unwrap()
    }

    fn world(&self) -> usize {
        self.n[if self.kind() == "batches" { 1 } else { 2 }]
    }

    /// What a rank gets; nothing where the loader is refused.
    fn run(&self, comm: &oarlock_comm::Communicator) -> Option<String> {
        let n = self.n;
        let (split, even, seed) = match self.kind() {
            "map" => (n[4] == 1, n[5] == 1, None),
            "stream" => (n[4] == 1, true, None),
            "batches" => (false, n[2] == 1, None),
            _ => (false, true, Some(n[3] as u64)),
        };
        let config = config(DataLoaderConfiguration {
            split_batches: split,
            even_batches: even,
            dispatch_batches: Some(false),
            ends: Ends::EachItsOwn,
            data_seed: seed,
        });
        let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
        let loader = match self.kind() {
            "map" => accelerator.prepare(numbers(n[0], n[1]).drop_last(n[3] == 1)),
            "stream" => accelerator.prepare(streamed(n[0], n[1]).drop_last(n[3] == 1)),
            "batches" => {
                let of = n[0];
                accelerator.prepare(numbers(of, 1).batch_sampler(move |_| {
                    let (mut batches, mut at, mut size) = (Vec::new(), 0, 1);
                    while at < of {
                        batches.push((at..of.min(at + size)).collect());
                        (at, size) = (at + size, size % 3 + 1);
                    }
                    batches
                }))
            }
            _ => accelerator.prepare(numbers(n[0], n[1]).shuffle(true)),
        };
        let loader = loader.ok()?;
        loader.set_epoch(if self.kind() == "shuffled" { n[4] as u64 } else { 0 });
        let batches = all(&loader);
        if self.kind() != "stream" {
            loader.set_epoch(0);
            assert_eq!(loader.len().unwrap(), batches.len(), "{}", self.line);
        }
        Some(written(&batches))
    }
}

#[test]
fn every_rank_gets_the_batches_of_the_original() {
    let text = include_str!("golden/dataloader.txt");
    let cases: Vec<Case> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut n = [0; 6];
            let words: Vec<&'static str> = line.split(' ').collect();
            for (to, word) in n.iter_mut().zip(&words[1..words.len() - 1]) {
                *to = word.parse().unwrap();
            }
            Case { line, n }
        })
        .collect();
    assert!(cases.len() > 6000);
    for world in 1..=4 {
        let cases: Vec<Case> = cases.iter().copied().filter(|case| case.world() == world).collect();
        let plain = config(DataLoaderConfiguration::default());
        let of_ranks = ranks(world, &plain, |accelerator| {
            cases.iter().map(|case| case.run(accelerator.communicator())).collect::<Vec<_>>()
        });
        for (i, case) in cases.iter().enumerate() {
            let ours: Option<Vec<String>> = of_ranks.iter().map(|rank| rank[i].clone()).collect();
            let told = ours.as_ref().map_or("error".to_owned(), |ours| hash(ours));
            assert_eq!(told, case.expected(), "{}: {ours:?}", case.line);
        }
    }
}

#[test]
fn each_sample_is_real_once_and_in_order() {
    for world in 1..=4 {
        for (split, dispatch) in [(false, false), (true, false), (false, true)] {
            let sizes: &[usize] = if dispatch { &[3] } else { &[1, 3, 4, 8] };
            let cases: Vec<(usize, usize)> = (1..=200)
                .flat_map(|n| sizes.iter().map(move |size| (n, size * if split { world } else { 1 })))
                .collect();
            let config = config(DataLoaderConfiguration {
                split_batches: split,
                dispatch_batches: Some(dispatch),
                ..DataLoaderConfiguration::default()
            });
            let of_ranks = ranks(world, &config, |accelerator| {
                let run = |&(n, size): &(usize, usize)| {
                    let loader = accelerator.prepare(numbers(n, size)).unwrap();
                    let batches = real(accelerator, &loader);
                    if world > 1 {
                        let all_full = batches
                            .iter()
                            .all(|(batch, _)| batch.len() == size / if split { world } else { 1 });
                        assert!(all_full, "{n} {size} {batches:?}");
                    }
                    batches
                };
                cases.iter().map(run).collect::<Vec<_>>()
            });
            for (i, (n, size)) in cases.iter().enumerate() {
                let of_ranks: Vec<_> = of_ranks.iter().map(|rank| rank[i].clone()).collect();
                let expected: Ids = (0..*n).collect();
                assert_eq!(gathered(&of_ranks), expected, "{n} samples in batches of {size} on {world}");
            }
        }
    }
}

#[test]
fn dispatched_and_streamed_batches_are_those_of_the_ranks() {
    for (even, drop_last) in [(true, false), (false, false), (true, true)] {
        for world in 1..=4 {
            let run = |dispatch: bool, from_stream: bool| {
                let config = config(DataLoaderConfiguration {
                    dispatch_batches: Some(dispatch),
                    even_batches: even,
                    ..DataLoaderConfiguration::default()
                });
                ranks(world, &config, |accelerator| {
                    let run = |n: usize| {
                        let loader = if from_stream {
                            accelerator.prepare(streamed(n, 3).drop_last(drop_last).num_workers(n % 3))
                        } else {
                            accelerator.prepare(numbers(n, 3).drop_last(drop_last).num_workers(n % 3))
                        };
                        let loader = loader.unwrap();
                        let batches = real(accelerator, &loader);
                        (batches, loader.left_out(), loader.epoch())
                    };
                    (0..26).map(run).collect::<Vec<_>>()
                })
            };
            let expected = run(false, false);
            assert_eq!(run(true, false), expected);
            assert_eq!(run(false, true), expected);
            assert_eq!(run(true, true), expected);
        }
    }
}

#[test]
fn ranks_end_together_and_say_what_they_left_out() {
    let uneven = |ends| {
        let of = DataLoaderConfiguration { even_batches: false, ends, ..DataLoaderConfiguration::default() };
        ranks(3, &config(of), |accelerator| {
            let loader = accelerator.prepare(numbers(10, 2)).unwrap();
            assert_eq!(loader.total_batch_size(), Some(6));
            assert_eq!(loader.total_dataset_length(), Some(10));
            (all(&loader), loader.left_out())
        })
    };
    let first = [vec![0, 1], vec![2, 3], vec![4, 5]].map(|batch| (vec![batch], 4));
    assert_eq!(uneven(Ends::Together), first);
    let own = uneven(Ends::EachItsOwn);
    assert_eq!(own[0], (vec![vec![0, 1], vec![6, 7]], 0));
    assert_eq!(own[2], (vec![vec![4, 5]], 0));
}

#[test]
fn the_last_batch_ends_a_window_and_loops_may_be_nested() {
    let accumulation = AcceleratorConfig {
        gradient_accumulation: GradientAccumulation::steps(4),
        ..config(Default::default())
    };
    ranks(2, &accumulation, |accelerator| {
        let (train, eval) = accelerator.prepare((numbers(20, 2), numbers(5, 2))).unwrap();
        assert_eq!((train.len().unwrap(), eval.len().unwrap()), (5, 2));
        let mut windows = Vec::new();
        for (step, batch) in train.iter().unwrap().enumerate() {
            batch.unwrap();
            let outer = accelerator.gradient_state();
            assert_eq!(outer.end_of_dataloader, step == 4);
            let ends: Vec<(bool, Option<usize>)> = eval
                .iter()
                .unwrap()
                .map(|_| (accelerator.gradient_state().end_of_dataloader, accelerator.gradient_state().real))
                .collect();
            let fourth = if accelerator.process_index() == 0 { Some(1) } else { Some(0) };
            assert_eq!(ends, [(false, None), (true, fourth)]);
            assert_eq!(accelerator.gradient_state(), outer);
            // A loop that is left, too.
            if let Some(batch) = eval.iter().unwrap().next() {
                batch.unwrap();
            }
            assert_eq!(accelerator.gradient_state(), outer);
            windows.push(accelerator.accumulate(|| Ok(accelerator.sync_gradients())).unwrap());
        }
        assert_eq!(windows, [false, false, false, true, true]);
        assert!(!accelerator.gradient_state().end_of_dataloader);
    });
}

#[test]
fn an_epoch_follows_the_other_and_all_ranks_draw_the_same_order() {
    let of_ranks = ranks(2, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(numbers(12, 3).shuffle(true)).unwrap();
        let epochs: Vec<Vec<Ids>> = (0..3).map(|_| all(&loader)).collect();
        assert_eq!(loader.epoch(), 3);
        loader.set_epoch(1);
        assert_eq!(all(&loader), epochs[1]);
        // A loop that is left early comes back to the same epoch.
        let first = loader.iter().unwrap().next().unwrap().unwrap();
        assert_eq!((first, loader.epoch()), (epochs[2][0].clone(), 2));
        // Whoever sets the epoch while it runs means the next one.
        for batch in loader.iter().unwrap() {
            batch.unwrap();
            loader.set_epoch(0);
        }
        assert_eq!(all(&loader), epochs[0]);
        epochs
    });
    for epoch in 0..3 {
        let mut samples: Ids = of_ranks.iter().flat_map(|rank| rank[epoch].concat()).collect();
        samples.sort_unstable();
        assert_eq!(samples, (0..12).collect::<Ids>());
    }
    assert_ne!(of_ranks[0][0], of_ranks[0][1]);
}

#[test]
fn workers_keep_the_order_and_read_only_what_is_wanted() {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = |read: &Arc<AtomicUsize>| {
        let read = read.clone();
        from_fn(100, move |i| {
            read.fetch_add(1, SeqCst);
            // Later samples are faster.
            std::thread::sleep(std::time::Duration::from_micros(100 - i as u64));
            Ok(i)
        })
    };
    for workers in [0, 1, 3] {
        read.store(0, SeqCst);
        let loader = DataLoader::new(counted(&read), 4).collate(|ids: Vec<usize>, _| Ok(ids));
        let loader = loader.num_workers(workers).prefetch_factor(2);
        let batches: Vec<Ids> = loader.iter().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(batches.concat(), (0..100).collect::<Ids>());
        assert_eq!(read.swap(0, SeqCst), 100);
        let rest: Vec<Ids> =
            loader.skip_first_batches(20).unwrap().iter().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(rest.concat(), (80..100).collect::<Ids>());
        assert_eq!(read.swap(0, SeqCst), 20);
        // A loop that is left leaves no thread: nobody reads any more when it is gone.
        loader.iter().unwrap().next().unwrap().unwrap();
        let n = read.load(SeqCst);
        assert!(n <= 4 * (2 + 2 * workers + 1), "{n}");
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(read.load(SeqCst), n);
    }
}

struct Holed;

impl Dataset for Holed {
    type Item = usize;

    fn len(&self) -> usize {
        20
    }

    fn get(&self, index: usize) -> Result<usize> {
        match index {
            9 => Err(Error::Usage("the ninth is gone".to_owned())),
            14 => panic!("the fourteenth is worse"),
            _ => Ok(index),
        }
    }
}

#[test]
fn an_error_or_a_panic_of_a_worker_stands_where_the_batch_would() {
    for workers in [1, 4] {
        let loader = DataLoader::new(Holed, 4).num_workers(workers);
        let batches: Vec<_> = loader.iter().unwrap().collect();
        assert_eq!(batches.len(), 3);
        assert!(batches[1].is_ok());
        assert_eq!(batches[2].as_ref().unwrap_err().to_string(), "the ninth is gone");
        let batches: Vec<_> = loader.skip_first_batches(3).unwrap().iter().unwrap().collect();
        let told = batches[0].as_ref().unwrap_err().to_string();
        assert_eq!(told, "a worker of the loader panicked: the fourteenth is worse");
    }
    // Where rank 0 reads for all, all hear of it.
    let dispatched = DataLoaderConfiguration { dispatch_batches: Some(true), ..Default::default() };
    let told = ranks(2, &config(dispatched), |accelerator| {
        let loader = accelerator.prepare(DataLoader::new(Holed, 2).num_workers(2)).unwrap();
        loader.iter().unwrap().find_map(Result::err).unwrap().to_string()
    });
    assert_eq!(
        told,
        ["the ninth is gone", "rank 0, which reads the batches of all ranks: the ninth is gone"]
    );
}

#[test]
fn a_run_goes_on_at_the_sample_where_it_stood() {
    // Two ranks give 3 batches of 2 in the second epoch; then another number of ranks goes on.
    let state = ranks(2, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(numbers(31, 2).shuffle(true)).unwrap();
        all(&loader);
        let mut batches = loader.iter().unwrap();
        let given: Vec<Ids> = batches.by_ref().take(3).map(Result::unwrap).collect();
        (given, loader.state_dict().unwrap())
    });
    let given: Ids = (0..3).flat_map(|i| [&state[0].0[i], &state[1].0[i]]).flatten().copied().collect();
    let whole = ranks(1, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(numbers(31, 31).shuffle(true)).unwrap();
        loader.set_epoch(1);
        all(&loader).concat()
    });
    assert_eq!(given, whole[0][..12]);
    for world in [1, 2, 3] {
        let rest = ranks(world, &config(Default::default()), |accelerator| {
            let loader = accelerator.prepare(numbers(31, 5).shuffle(true)).unwrap();
            loader.load_state_dict(&state[0].1).unwrap();
            // The loop names the epoch that it goes on in.
            loader.set_epoch(loader.epoch());
            assert_eq!(loader.epoch(), 1);
            let rest = real(accelerator, &loader);
            assert_eq!(loader.epoch(), 2);
            assert_eq!(all(&loader).len(), loader.len().unwrap());
            rest
        });
        assert_eq!(gathered(&rest), whole[0][12..], "{world}");
    }
    // Another data set, another order.
    ranks(1, &config(Default::default()), |accelerator| {
        let (shorter, other) = accelerator
            .prepare((numbers(30, 5).shuffle(true), numbers(31, 5).shuffle(true).seed(7)))
            .unwrap();
        let told =
            |loader: &PreparedLoader<Ids>, state| loader.load_state_dict(state).unwrap_err().to_string();
        assert!(told(&shorter, &state[0].1).ends_with("its epochs have 31 samples, and this loader's 30"));
        assert!(
            told(&other, &state[0].1)
                .ends_with("it was shuffled with the seed 42, and this loader is with 7")
        );
        assert!(told(&other, &serde_json::json!({"steps": 3})).ends_with("it is no state of a data loader"));
    });
}

#[test]
fn skipping_reads_nothing_and_moves_to_the_next_epoch() {
    ranks(2, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(numbers(21, 2).shuffle(true)).unwrap();
        let expected = all(&loader);
        loader.set_epoch(0);
        let rest = accelerator.skip_first_batches(&loader, 4);
        assert_eq!(rest.len().unwrap(), loader.len().unwrap() - 4);
        assert_eq!(all(&rest), expected[4..]);
        assert_eq!(loader.epoch(), 1);
        assert_ne!(all(&loader), expected);
    });
}

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

#[derive(Nested, Debug, Clone)]
enum Mixed {
    Rows { ids: Tensor, texts: Vec<String>, weight: Option<f32> },
    Nothing,
}

#[test]
fn any_nested_batch_is_dispatched() {
    let dispatched = DataLoaderConfiguration { dispatch_batches: Some(true), ..Default::default() };
    let of_ranks = ranks(2, &config(dispatched), |accelerator| {
        let loader = DataLoader::new((0..7).collect::<Vec<i32>>(), 2).collate(|ids: Vec<i32>, device| {
            if ids.contains(&6) {
                return Ok(Mixed::Nothing);
            }
            let texts = ids.iter().map(|id| format!("é{id}")).collect();
            Ok(Mixed::Rows {
                ids: Tensor::from_slice(&ids, [ids.len(), 1], device)?,
                texts,
                weight: Some(0.25),
            })
        });
        let loader = accelerator.prepare(loader).unwrap();
        let batches: Vec<Mixed> = loader.iter().unwrap().collect::<Result<_>>().unwrap();
        let told = |batch: &Mixed| match batch {
            Mixed::Rows { ids, texts, weight } => {
                format!("{:?} {:?} {texts:?} {weight:?}", ids.sizes(), ids.to_vec::<i32>().unwrap())
            }
            Mixed::Nothing => "nothing".to_owned(),
        };
        batches.iter().map(told).collect::<Vec<_>>()
    });
    assert_eq!(
        of_ranks[0],
        [r#"[2, 1] [0, 1] ["é0", "é1"] Some(0.25)"#, r#"[2, 1] [4, 5] ["é4", "é5"] Some(0.25)"#]
    );
    assert_eq!(of_ranks[1], [r#"[2, 1] [2, 3] ["é2", "é3"] Some(0.25)"#, "nothing"]);
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

/// Files of which each rank reads its own.
struct Files(Vec<Vec<usize>>);

impl IterableDataset for Files {
    type Item = usize;

    fn iter(&self, _epoch: u64) -> Result<Items<usize>> {
        Ok(Box::new(self.0.concat().into_iter().map(Ok)))
    }

    fn shard(&self, rank: usize, world: usize) -> Option<Arc<dyn IterableDataset<Item = usize>>> {
        (self.0.len() >= world)
            .then(|| Arc::new(Files(self.0.iter().skip(rank).step_by(world).cloned().collect())) as Arc<_>)
    }
}

#[test]
fn streams_that_divide_themselves_end_together() {
    let files = || Files(vec![(0..7).collect(), (10..14).collect(), (20..22).collect()]);
    let run = |world: usize, ends| {
        let of = DataLoaderConfiguration { ends, ..Default::default() };
        ranks(world, &config(of), |accelerator| {
            let loader = DataLoader::iterable(files(), 2).collate(|ids: Vec<usize>, _| Ok(ids));
            let loader = accelerator.prepare(loader).unwrap();
            assert_eq!(loader.total_batch_size(), Some(2 * world));
            let mut ends = Vec::new();
            for batch in loader.iter().unwrap() {
                batch.unwrap();
                ends.push(accelerator.gradient_state().end_of_dataloader);
            }
            assert_eq!(ends.iter().filter(|end| **end).count(), 1);
            assert_eq!(ends.last(), Some(&true));
            all(&loader)
        })
    };
    let together = run(2, Ends::Together);
    assert_eq!(together[0], [[0, 1], [2, 3]]);
    assert_eq!(together[1], [[10, 11], [12, 13]]);
    let own = run(2, Ends::EachItsOwn);
    assert_eq!(own[0], [vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 20], vec![21]]);
    assert_eq!(own[1], together[1]);
    // More ranks than files: rank 0 reads for all.
    assert_eq!(run(4, Ends::Together)[3], [[6, 10], [1, 2]]);
}
