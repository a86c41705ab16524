//! Loaders: every rank gets the samples that Accelerate gives it, each sample is real once, and what goes wrong ends.

mod division;
mod iteration;
mod settings;

use oarlock::dataloader::{Collator, DataLoader, PreparedLoader, stream};
use oarlock::{Accelerator, AcceleratorConfig, DataLoaderConfiguration, Result};

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
    oarlock_comm::shm::on_threads(world, |comm| rank(&Accelerator::over(comm, config).unwrap())).unwrap()
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
