//! Memory that is given back, counted in resident bytes, and the batch size that fits. Alone in its process, so that
//! no other test is counted.

use std::sync::{Arc, Mutex};

use oarlock::nn::Linear;
use oarlock::shard::Placements;
use oarlock::{
    Accelerator, AcceleratorConfig, DType, Error, Result, STARTING_BATCH_SIZE, ShardingConfig, Tensor, optim,
};
use oarlock_comm::ProcessMemory;

#[allow(dead_code)]
mod ranks;

fn on_ranks<R: Send>(
    world: usize,
    placements: Placements,
    rank: impl Fn(&Accelerator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let shard = ShardingConfig { placements, ..ShardingConfig::default() };
    ranks::on_ranks(
        world,
        AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() },
        rank,
    )
}

/// Weights of 8 MiB.
const WIDTH: usize = 1448;
const WEIGHTS: u64 = 4 * (WIDTH * WIDTH) as u64;

fn train(accelerator: &Accelerator) -> Result<u64> {
    let net = Linear::normal(WIDTH, WIDTH, false, 0.02)?;
    let optimizer = optim::adamw(&net);
    let (net, optimizer) = accelerator.prepare((net, optimizer))?;
    let x = Tensor::from_slice(&[0.5f32; WIDTH], [1, WIDTH], accelerator.device())?;
    let loss = net.call(&x, |net, x| net.forward(x)?.mean_all())?;
    accelerator.backward(&loss)?;
    optimizer.step()?;
    let during = resident(accelerator)?;
    accelerator.free_memory((net, optimizer, loss, x));
    Ok(during)
}

/// Resident bytes of the process, while all ranks look at them.
fn resident(accelerator: &Accelerator) -> Result<u64> {
    accelerator.wait_for_everyone()?;
    let resident = ProcessMemory::current()?.rss;
    accelerator.wait_for_everyone()?;
    Ok(resident)
}

/// One test after the other: they look at the bytes of the whole process.
#[test]
fn memory() {
    what_was_prepared_is_given_back();
    the_batch_size_shrinks_until_it_fits_on_all_ranks();
}

fn what_was_prepared_is_given_back() {
    for placements in [Placements::WHOLE, Placements::OPTIMIZER, Placements::PARAMETERS] {
        let ranks = on_ranks(2, placements, |accelerator| {
            // Code and stacks that come with the first use stay, and what malloc has learned to keep with the second.
            train(accelerator)?;
            train(accelerator)?;
            let before = resident(accelerator)?;
            let during = train(accelerator)?;
            assert_eq!(
                accelerator.device().arena().bytes(),
                0,
                "the pool is empty: {:?}",
                accelerator.device()
            );
            let after = resident(accelerator)?;
            // As often as one likes: it does not add up.
            for _ in 0..3 {
                train(accelerator)?;
            }
            Ok((before, during, after, resident(accelerator)?))
        });
        for rank in ranks {
            let (before, during, after, later) = rank.unwrap();
            // Weights, gradients and two moments at least once over all ranks.
            assert!(during > before + 3 * WEIGHTS, "{placements:?}: {before} {during}");
            for then in [after, later] {
                assert!(then < before + WEIGHTS / 2, "{placements:?}: {before} {during} {then}");
            }
        }
    }
}

fn the_batch_size_shrinks_until_it_fits_on_all_ranks() {
    let tried = Arc::new(Mutex::new(vec![Vec::new(); 2]));
    let log = tried.clone();
    let ranks = on_ranks(2, Placements::OPTIMIZER, move |accelerator| {
        let rank = accelerator.process_index();
        accelerator.find_executable_batch_size(STARTING_BATCH_SIZE, |batch_size| {
            log.lock().unwrap()[rank].push(batch_size);
            // Only the second rank meets what no machine has.
            if rank == 1 && batch_size > 60 {
                Tensor::zeros([1 << 20, 1 << 20, 1 << 12], DType::F32, accelerator.device())?;
            }
            Ok(batch_size)
        })
    });
    assert_eq!(ranks.into_iter().map(|rank| rank.unwrap()).collect::<Vec<_>>(), [58, 58]);
    // int(batch_size * 0.9), as Accelerate goes.
    let expected = vec![128, 115, 103, 92, 82, 73, 65, 58];
    assert_eq!(*tried.lock().unwrap(), [expected.clone(), expected]);

    let reported = on_ranks(2, Placements::OPTIMIZER, |accelerator| {
        accelerator.find_executable_batch_size(3, |_| {
            Tensor::zeros([1 << 20, 1 << 20, 1 << 12], DType::F32, accelerator.device())?;
            Ok(())
        })
    });
    for reported in reported {
        let reported = reported.unwrap_err().to_string();
        let expected = "find_executable_batch_size: no batch size fits, from 3 down to 1: cannot allocate";
        assert!(reported.starts_with(expected), "{reported}");
    }

    // Another error ends the search on all ranks; where it happened it is reported as it is.
    let reported = on_ranks(3, Placements::OPTIMIZER, |accelerator| {
        accelerator.find_executable_batch_size(8, |_| match accelerator.process_index() {
            1 => Err(Error::Usage("another matter".to_owned())),
            rank => Ok(rank),
        })
    });
    let reported: Vec<String> =
        reported.into_iter().map(|reported| reported.unwrap_err().to_string()).collect();
    let others = "rank 1 failed: another matter";
    assert_eq!(reported, [others, "another matter", others]);
}
