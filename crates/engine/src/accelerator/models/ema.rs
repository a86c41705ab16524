//! Exponential moving averages of a model's weights: each rank keeps those of the elements that it updates.

use std::collections::HashMap;
use std::ops::Range;

use super::prepared::Prepared;
use crate::nn::Module;
use crate::shard::{Engine, MASTER, ParamSlice, Slice, WeightSource};
use crate::{Error, Result};

/// The exponential moving average of a prepared model's weights, in f32: torch's `AveragedModel` with
/// `get_ema_multi_avg_fn`. Where optimizer state is sharded, so is the average, at 4 bytes for each element; it has the same
/// bits in every placement.
///
/// A checkpoint of `save_state` does not hold it. Save it as a model, while it is swapped in, and begin from that one:
///
/// ```
/// use oarlock::nn::Linear;
/// use oarlock::{Accelerator, AcceleratorConfig, Ema, Tensor, optim};
///
/// # fn main() -> oarlock::Result<()> {
/// let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
/// let model = Linear::new(4, 2)?;
/// let optimizer = optim::adamw(&model);
/// let (model, optimizer) = accelerator.prepare((model, optimizer))?;
/// let mut ema = Ema::new(&model, 0.999)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 4], accelerator.device())?;
/// for _ in 0..3 {
///     let loss = model.forward(&x)?.square()?.mean_all()?;
///     accelerator.backward(&loss)?;
///     optimizer.step()?;
///     ema.update(&model)?;
/// }
/// ema.swap(&model)?; // the model has the averages, to be evaluated or saved
/// ema.swap(&model)?; // and its own weights again
/// # Ok(())
/// # }
/// ```
pub struct Ema {
    decay: f32,
    averages: Weights,
    /// The weights of one parameter at a time.
    scratch: Vec<f32>,
}

/// Elements of parameters, by the name of the parameter.
type Weights = HashMap<String, (Range<usize>, Vec<f32>)>;

impl Ema {
    /// An average that begins at the weights of now. Each update keeps the share `decay` of it.
    ///
    /// # Errors
    /// A decay outside `0..=1`, or state that cannot be read.
    pub fn new<M: Module>(model: &Prepared<M>, decay: f32) -> Result<Ema> {
        if !(0.0..=1.0).contains(&decay) {
            return Err(Error::Usage(format!("Ema: the decay is {decay}; it is a number from 0 to 1")));
        }
        Ok(Ema { decay, averages: weights(model.state.optimizer()?.engine())?, scratch: Vec::new() })
    }

    /// Takes the weights of now into the average: to be called after each step.
    ///
    /// # Errors
    /// Another model, or state that cannot be read.
    pub fn update<M: Module>(&mut self, model: &Prepared<M>) -> Result<()> {
        let optimizer = model.state.optimizer()?;
        let engine = optimizer.engine();
        for slice in master_slices(engine) {
            let average = match self.averages.get_mut(&slice.name) {
                Some((own, average)) if *own == slice.elements => average,
                _ => return Err(another_model(&slice.name)),
            };
            self.scratch.resize(average.len(), 0.0);
            engine.read_state(&slice, &mut self.scratch)?;
            for (average, value) in average.iter_mut().zip(&self.scratch) {
                *average += (1.0 - self.decay) * (value - *average);
            }
        }
        Ok(())
    }

    /// Gives the model the averages, and keeps its weights instead; a second call undoes it. All ranks call it, between
    /// two steps: accumulated gradients are forgotten.
    ///
    /// # Errors
    /// Another model, or a rank that failed.
    #[track_caller]
    pub fn swap<M: Module>(&mut self, model: &Prepared<M>) -> Result<()> {
        model.state.check_together("Ema::swap")?;
        {
            let mut optimizer = model.state.optimizer()?;
            let engine = optimizer.engine_mut();
            let now = weights(engine)?;
            // From here on no rank reads the weights that the others overwrite.
            model.communicator().barrier()?;
            engine.clear_grads()?;
            engine.initialize(&mut Averages(&self.averages))?;
            self.averages = now;
        }
        model.state.update();
        Ok(())
    }
}

/// Where the f32 weights are that this rank updates.
fn master_slices(engine: &Engine) -> impl Iterator<Item = Slice> {
    engine.needed_slices().into_iter().filter(|slice| slice.kind == MASTER)
}

/// Those weights.
fn weights(engine: &Engine) -> Result<Weights> {
    let mut weights = Weights::new();
    for slice in master_slices(engine) {
        let mut values = vec![0.0; slice.elements.len()];
        engine.read_state(&slice, &mut values)?;
        weights.insert(slice.name, (slice.elements, values));
    }
    Ok(weights)
}

struct Averages<'a>(&'a Weights);

impl WeightSource for Averages<'_> {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, elements, .. } = slice;
        let held =
            self.0.get(*name).filter(|(own, _)| own.start <= elements.start && elements.end <= own.end);
        let (own, values) = held.ok_or_else(|| another_model(name))?;
        out.copy_from_slice(&values[elements.start - own.start..elements.end - own.start]);
        Ok(())
    }
}

fn another_model(name: &str) -> Error {
    Error::Usage(format!(
        "Ema: it does not hold the parameter \"{name}\"; use it with the model that it began with"
    ))
}
