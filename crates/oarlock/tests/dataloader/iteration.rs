//! Epochs, windows, workers, and going on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use oarlock::dataloader::{DataLoader, Dataset, PreparedLoader, from_fn};
use oarlock::{AcceleratorConfig, DataLoaderConfiguration, Error, GradientAccumulation, Result, Stateful};

use super::{Ids, all, config, gathered, numbers, ranks, real, streamed};

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
        let message = batches[0].as_ref().unwrap_err().to_string();
        assert_eq!(message, "a worker of the loader panicked: the fourteenth is worse");
    }
    // Where rank 0 reads for all, all hear of it.
    let dispatched = DataLoaderConfiguration { dispatch_batches: Some(true), ..Default::default() };
    let message = ranks(2, &config(dispatched), |accelerator| {
        let loader = accelerator.prepare(DataLoader::new(Holed, 2).num_workers(2)).unwrap();
        loader.iter().unwrap().find_map(Result::err).unwrap().to_string()
    });
    assert_eq!(
        message,
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
        let message =
            |loader: &PreparedLoader<Ids>, state| loader.load_state_dict(state).unwrap_err().to_string();
        assert!(message(&shorter, &state[0].1).ends_with("its epochs have 31 samples, and this loader's 30"));
        assert!(
            message(&other, &state[0].1)
                .ends_with("it was shuffled with the seed 42, and this loader is with 7")
        );
        assert!(
            message(&other, &serde_json::json!({"steps": 3})).ends_with("it is not a state of a data loader")
        );
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
fn the_largest_numbers_neither_hang_nor_panic() {
    ranks(1, &config(Default::default()), |accelerator| {
        let loader = numbers(9, 2).shuffle(true).num_workers(2).prefetch_factor(usize::MAX);
        let loader = accelerator.prepare(loader).unwrap();
        loader.set_epoch(u64::MAX);
        assert_eq!(all(&loader).len(), 5);
        assert_eq!(loader.epoch(), u64::MAX);
    });
}

#[test]
fn what_a_state_has_given_is_not_skipped_once_more() {
    ranks(2, &config(Default::default()), |accelerator| {
        let loader = accelerator.prepare(numbers(21, 2).shuffle(true)).unwrap();
        let expected = all(&loader);
        loader.set_epoch(0);
        assert_eq!(loader.iter().unwrap().take(3).count(), 3);
        let state = loader.state_dict().unwrap();
        for skipped in [2, 3, 4] {
            loader.load_state_dict(&state).unwrap();
            let rest = accelerator.skip_first_batches(&loader, skipped);
            assert_eq!(all(&rest), expected[skipped.max(3)..]);
        }
    });
}

#[test]
fn a_stream_goes_on_too_whoever_reads() {
    for dispatch in [false, true] {
        let config =
            config(DataLoaderConfiguration { dispatch_batches: Some(dispatch), ..Default::default() });
        let state = ranks(2, &config, |accelerator| {
            let loader = accelerator.prepare(streamed(31, 2).num_workers(2)).unwrap();
            let mut batches = loader.iter().unwrap();
            assert_eq!(batches.by_ref().take(3).map(|batch| batch.unwrap().len()).sum::<usize>(), 6);
            loader.state_dict().unwrap()
        });
        let rest = ranks(3, &config, |accelerator| {
            let loader = accelerator.prepare(streamed(31, 4)).unwrap();
            loader.load_state_dict(&state[0]).unwrap();
            real(accelerator, &loader)
        });
        assert_eq!(gathered(&rest), (12..31).collect::<Ids>());
        // What fills the last batch up comes from the beginning.
        assert_eq!(rest[2].last().unwrap(), &(vec![1, 2, 3, 4], 0));
    }
}

#[test]
fn loaders_side_by_side_end_with_the_shortest_and_each_knows_its_rows() {
    ranks(2, &config(Default::default()), |accelerator| {
        let around = accelerator.prepare(numbers(4, 2)).unwrap();
        // 7 samples in batches of 2 on two ranks: the second round has 3 real ones. The other loader has more.
        let (short, long) = accelerator.prepare((numbers(7, 2), numbers(100, 2))).unwrap();
        for batch in around.iter().unwrap() {
            batch.unwrap();
            for swapped in [false, true] {
                let (first, second) = if swapped { (&long, &short) } else { (&short, &long) };
                let (mut ends, mut seen) = (Vec::new(), Vec::new());
                for (a, b) in first.iter().unwrap().zip(second.iter().unwrap()) {
                    let ids = if swapped { b } else { a }.unwrap();
                    ends.push(accelerator.gradient_state().end_of_dataloader);
                    let gathered =
                        accelerator.with_loader(&short, || accelerator.gather_for_metrics_object(ids));
                    seen.extend(gathered.unwrap());
                }
                assert_eq!(ends, [false, true], "{swapped}");
                assert_eq!(seen, (0..7).collect::<Ids>());
                // Behind it the loop around counts again, in whatever order the two have ended.
                let state = accelerator.gradient_state();
                assert_eq!((state.end_of_dataloader, state.rows), (true, Some(2)));
                short.set_epoch(0);
                long.set_epoch(0);
            }
        }
        assert_eq!(accelerator.gradient_state().rows, None);
    });
}
