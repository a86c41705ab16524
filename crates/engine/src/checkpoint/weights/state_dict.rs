//! Weights that lie in memory, by name: torch's state dict.

use std::collections::{BTreeMap, HashMap};

use oarlock_tensor::{DType, Tensor};
use safetensors::Dtype;

use super::matching::{Differences, Matched, Named, Strict};
use crate::nn::{Buffer, BufferValues, Module};
use crate::shard::{ParamSlice, WeightSource};
use crate::{Error, Result};

impl Named for Tensor {
    fn sizes(&self) -> &[usize] {
        Tensor::sizes(self)
    }

    fn dtype(&self) -> Dtype {
        match Tensor::dtype(self) {
            DType::F32 => Dtype::F32,
            DType::BF16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            DType::I32 => Dtype::I32,
        }
    }
}

/// The weights of a model in tensors, checked against it as a whole. Nothing is copied before it is read.
///
/// [`Accelerator::load_state_dict`](crate::Accelerator::load_state_dict) loads them into a prepared model.
/// [`Accelerator::prepare_with_weights`](crate::Accelerator::prepare_with_weights) takes the source as the first weights of
/// a model that is not prepared yet:
///
/// ```
/// use std::collections::BTreeMap;
///
/// use oarlock::weights::{StateDictSource, Strict};
/// use oarlock::nn::Linear;
/// use oarlock::{Accelerator, AcceleratorConfig, Tensor};
///
/// # fn main() -> oarlock::Result<()> {
/// let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
/// let state = BTreeMap::from([
///     ("weight".to_owned(), Tensor::from_slice(&[1.0f32, 2.0], [1, 2], accelerator.device())?),
///     ("bias".to_owned(), Tensor::from_slice(&[3.0f32], [1], accelerator.device())?),
/// ]);
/// let model = Linear::new(2, 1)?;
/// let (weights, _) = StateDictSource::of_module(&state, &model, Strict::Yes)?;
/// let model = accelerator.prepare_with_weights(model, Box::new(weights))?;
/// assert_eq!(accelerator.get_state_dict(&model)?["bias"].item::<f32>()?, 3.0);
/// # Ok(())
/// # }
/// ```
pub struct StateDictSource {
    /// By the names that the model uses.
    tensors: HashMap<String, Tensor>,
    buffers: Vec<(Buffer, Tensor)>,
}

impl StateDictSource {
    /// The weights of `model` among these, under the names that the model shows (those of
    /// [`Accelerator::get_state_dict`](crate::Accelerator::get_state_dict)), and where the names differ. A weight that the
    /// model shows under several names needs only one of them.
    ///
    /// # Errors
    /// [`Error::Model`] for tensors of another shape, or of integers, and if there is no weight of the model; with
    /// [`Strict::Yes`] also for missing and unexpected ones (at most five listed).
    pub fn of_module(
        state: &BTreeMap<String, Tensor>,
        model: &dyn Module,
        strict: Strict,
    ) -> Result<(StateDictSource, Differences)> {
        let mut matched = Matched::parameters(model, &str::to_owned, "the model", state);
        matched.and_buffers(model, state);
        let problems = matched.problems_of_module(strict);
        if !problems.is_empty() {
            return Err(Error::Model(format!("the state dict {}", problems.join("; it "))));
        }
        let tensors = matched.tensors.into_iter();
        let tensors = tensors.map(|(name, tensor)| (name, state[&tensor].clone())).collect();
        let buffers = matched.buffers.into_iter();
        let buffers = buffers.map(|named| (named.buffer, state[&named.name].clone())).collect();
        Ok((StateDictSource { tensors, buffers }, matched.differences))
    }

    /// Gives the buffers of the model the values that there are for them.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn fill_buffers(&self) -> Result<()> {
        for (buffer, tensor) in &self.buffers {
            buffer.set(match tensor.dtype() {
                DType::I32 => BufferValues::Ints(tensor.to_vec()?),
                _ => BufferValues::Floats(tensor.to_f32_vec()?),
            })?;
        }
        Ok(())
    }
}

impl WeightSource for StateDictSource {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, shape, elements, .. } = slice;
        let tensor = self.tensors.get(*name).filter(|tensor| tensor.sizes() == shape.sizes());
        let tensor =
            tensor.ok_or_else(|| Error::Usage(format!("\"{name}\" {shape:?} is not in the state dict")))?;
        Ok(tensor.read_f32(elements.start, out)?)
    }
}
