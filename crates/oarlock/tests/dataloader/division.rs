//! Which samples each rank gets.

use std::sync::Arc;

use oarlock::dataloader::{DataLoader, Items, IterableDataset};
use oarlock::{Accelerator, DataLoaderConfiguration, Ends, Nested, Result, Stateful, Tensor};

use super::{Ids, all, config, gathered, numbers, ranks, real, streamed};

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
    let text = include_str!("../golden/dataloader.txt");
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
            let message = ours.as_ref().map_or("error".to_owned(), |ours| hash(ours));
            assert_eq!(message, case.expected(), "{}: {ours:?}", case.line);
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
    let resumed = ranks(2, &config(Default::default()), |accelerator| {
        let loader = DataLoader::iterable(files(), 1).collate(|ids: Vec<usize>, _| Ok(ids));
        let loader = accelerator.prepare(loader).unwrap();
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(3).count(), 3);
        loader.load_state_dict(&loader.state_dict().unwrap()).unwrap();
        let other = serde_json::json!({"epoch": 0, "given": 3, "ranks": 3});
        assert!(loader.load_state_dict(&other).is_err());
        all(&loader)
    });
    assert_eq!(resumed, [[[3]], [[13]]]);
    let together = run(2, Ends::Together);
    assert_eq!(together[0], [[0, 1], [2, 3]]);
    assert_eq!(together[1], [[10, 11], [12, 13]]);
    let own = run(2, Ends::EachItsOwn);
    assert_eq!(own[0], [vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 20], vec![21]]);
    assert_eq!(own[1], together[1]);
    // More ranks than files: rank 0 reads for all.
    assert_eq!(run(4, Ends::Together)[3], [[6, 10], [1, 2]]);
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
        let message = |batch: &Mixed| match batch {
            Mixed::Rows { ids, texts, weight } => {
                format!("{:?} {:?} {texts:?} {weight:?}", ids.sizes(), ids.to_vec::<i32>().unwrap())
            }
            Mixed::Nothing => "nothing".to_owned(),
        };
        batches.iter().map(message).collect::<Vec<_>>()
    });
    assert_eq!(
        of_ranks[0],
        [r#"[2, 1] [0, 1] ["é0", "é1"] Some(0.25)"#, r#"[2, 1] [4, 5] ["é4", "é5"] Some(0.25)"#]
    );
    assert_eq!(of_ranks[1], [r#"[2, 1] [2, 3] ["é2", "é3"] Some(0.25)"#, "nothing"]);
}

#[test]
fn only_rank_0_needs_the_data_that_it_reads_for_all() {
    let dispatched = DataLoaderConfiguration { dispatch_batches: Some(true), ..Default::default() };
    let of_ranks = ranks(3, &config(dispatched), |accelerator| {
        let n = if accelerator.is_main_process() { 20 } else { 0 };
        let loader = accelerator.prepare(numbers(n, 2).shuffle(true)).unwrap();
        assert_eq!((loader.len().unwrap(), loader.total_dataset_length()), (4, Some(20)));
        let batches = real(accelerator, &loader);
        let state = loader.state_dict().unwrap();
        loader.load_state_dict(&state).unwrap();
        (batches, state)
    });
    let mut samples = gathered(&of_ranks.iter().map(|rank| rank.0.clone()).collect::<Vec<_>>());
    samples.sort_unstable();
    assert_eq!(samples, (0..20).collect::<Ids>());
    assert_eq!(of_ranks[0].1, of_ranks[2].1);
}
