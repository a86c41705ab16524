//! `gather_for_metrics` behind prepared loaders: each sample once, in order, however the loader is divided.

use oarlock::dataloader::{DataLoader, stream};
use oarlock::{Accelerator, AcceleratorConfig, DataLoaderConfiguration, Result, Tensor};

use crate::ranks;

fn on_ranks(
    world: usize,
    dataloader: DataLoaderConfiguration,
    rank: impl Fn(&Accelerator) -> Result<()> + Sync,
) {
    let config = AcceleratorConfig { threads: Some(1), dataloader, ..AcceleratorConfig::default() };
    ranks::on_ranks(world, config, rank).into_iter().for_each(Result::unwrap);
}

/// Goes through a loader of the numbers below `len`, and wants each once and in order, with one loss for each rank and
/// batch.
fn each_once(accelerator: &Accelerator, loader: DataLoader<i32>, len: usize) -> Result<()> {
    let loader = accelerator.prepare(loader)?;
    let (mut seen, mut names) = (Vec::new(), Vec::new());
    for batch in loader.iter()? {
        let batch: Tensor = batch?;
        let loss = Tensor::from_slice(&[1.0f32], [], accelerator.device())?;
        let texts = batch.to_vec::<i32>()?.iter().map(i32::to_string).collect();
        let (batch, loss) = accelerator.gather_for_metrics(&(batch, loss))?;
        assert_eq!(loss.sizes(), [accelerator.num_processes()], "one loss for each rank, never cut");
        seen.extend(batch.to_vec::<i32>()?);
        names.extend(accelerator.gather_for_metrics_object::<String>(texts)?);
    }
    let expected: Vec<i32> = (0..len as i32).collect();
    assert_eq!(seen, expected, "{len} samples");
    assert_eq!(names, expected.iter().map(i32::to_string).collect::<Vec<_>>());
    Ok(())
}

fn numbers(len: usize) -> Vec<i32> {
    (0..len as i32).collect()
}

fn batch_size(len: usize) -> usize {
    1 + len * 7 % 16
}

#[test]
fn each_sample_comes_once_for_every_length() {
    for world in 1..=4 {
        on_ranks(world, DataLoaderConfiguration::default(), |accelerator| {
            (1..=200).try_for_each(|len| {
                each_once(accelerator, DataLoader::new(numbers(len), batch_size(len)), len)
            })
        });
    }
}

#[test]
fn split_and_dispatched_batches_and_streams_are_no_exception() {
    for world in 1..=4 {
        let split = DataLoaderConfiguration { split_batches: true, ..DataLoaderConfiguration::default() };
        let dispatch =
            DataLoaderConfiguration { dispatch_batches: Some(true), ..DataLoaderConfiguration::default() };
        let own =
            DataLoaderConfiguration { dispatch_batches: Some(false), ..DataLoaderConfiguration::default() };
        for (config, streams) in [(split, false), (dispatch, false), (dispatch, true), (own, true)] {
            on_ranks(world, config, move |accelerator| {
                (1..=200).step_by(9).try_for_each(|len| {
                    let factor = if config.split_batches { accelerator.num_processes() } else { 1 };
                    let batch = batch_size(len) * factor;
                    let loader = match streams {
                        true => DataLoader::iterable(stream(move |_| numbers(len).into_iter()), batch),
                        false => DataLoader::new(numbers(len), batch),
                    };
                    each_once(accelerator, loader, len)
                })
            });
        }
    }
}
