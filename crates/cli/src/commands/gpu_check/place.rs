//! Where a case runs: a device and a dtype, and the numbers that it runs on.

use std::ops::Range;
use std::sync::Arc;

use oarlock_tensor::ops::transfer;
use oarlock_tensor::{
    DType, Device, FlatBuffer, FlatParams, Float, Init, Param, ParamLocation, Result, Shape, Tape, Tensor,
    bf16, f16,
};

/// Where parameters begin in their buffer: at multiples of this.
const ALIGN: usize = 64;

/// A device, and the dtype of the tensors there.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub device: &'a Device,
    pub dtype: DType,
}

/// The results of a run by what they are.
pub(super) type Values = Vec<(String, Vec<f32>)>;

/// Numbers around 0, most of them between -2 and 2, with all their digits: sums of four that are uniform.
pub(super) fn normal(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| 1.7 * (uniform() + uniform() + uniform() + uniform())).collect()
}

/// A number as this dtype has it.
pub(super) fn round(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::F32 | DType::I32 => x,
    }
}

/// Integers from 0 on, below `end`.
pub(super) fn ints(n: usize, end: usize) -> Vec<usize> {
    (0..n).map(|i| (i * i + 7 * i) % end).collect()
}

impl Place<'_> {
    /// Random numbers times `scale`, as the dtype has them.
    pub fn values(&self, seed: u64, n: usize, scale: f32) -> Vec<f32> {
        normal(seed, n).into_iter().map(|x| round(scale * x, self.dtype)).collect()
    }

    /// A tensor of them.
    pub fn tensor(&self, seed: u64, sizes: &[usize], scale: f32) -> Result<Tensor> {
        self.tensor_of(self.dtype, &self.values(seed, sizes.iter().product(), scale), sizes)
    }

    /// The numbers of parameter `i`: sums of as many terms as a row has stay of the size of the input.
    pub fn weights(&self, i: usize, sizes: &[usize]) -> Vec<f32> {
        let scale = if sizes.len() > 1 { (1.0 / *sizes.last().unwrap_or(&1) as f32).sqrt() } else { 1.0 };
        self.values(100 + i as u64, sizes.iter().product(), scale)
    }

    /// A tensor of these numbers.
    pub fn tensor_of(&self, dtype: DType, values: &[f32], sizes: &[usize]) -> Result<Tensor> {
        fn of<T: Float>(values: &[f32], sizes: &[usize], device: &Device) -> Result<Tensor> {
            let data: Vec<T> = values.iter().map(|x| T::from_f32(*x)).collect();
            Tensor::from_slice(&data, sizes, device)
        }
        match dtype {
            DType::BF16 => of::<bf16>(values, sizes, self.device),
            DType::F16 => of::<f16>(values, sizes, self.device),
            DType::F32 | DType::I32 => of::<f32>(values, sizes, self.device),
        }
    }

    /// Integers from 0 on, below `end`, on no tape.
    pub fn ints(&self, sizes: &[usize], end: usize) -> Result<Tensor> {
        let data: Vec<i32> = ints(sizes.iter().product(), end).into_iter().map(|i| i as i32).collect();
        Tensor::from_slice(&data, sizes, self.device)
    }

    /// A flat buffer of these numbers.
    pub fn flat(&self, dtype: DType, values: &[f32]) -> Result<FlatBuffer> {
        let flat = FlatBuffer::pooled(self.device, values.len() * dtype.size(), "weights")?;
        transfer::store(self.device, values, &flat, 0, dtype)?;
        Ok(flat)
    }

    /// Parameters in one flat buffer, with gradients in f32.
    pub fn params(&self, shapes: &[Vec<usize>]) -> Result<Params> {
        let (mut places, mut weights) = (Vec::new(), Vec::new());
        for (i, sizes) in shapes.iter().enumerate() {
            let shape = Shape::new(sizes)?;
            places.push(ParamLocation { first: weights.len(), shape });
            weights.extend(self.weights(i, sizes));
            weights.resize(weights.len().next_multiple_of(ALIGN), 0.0);
        }
        let grads = FlatBuffer::pooled(self.device, 4 * weights.len(), "gradients")?;
        transfer::write_with(&grads, 0..weights.len(), |grads: &mut [f32]| grads.fill(f32::NAN))?;
        let params = places.iter().map(|place| Param::new(place.shape, Init::Zeros)).collect::<Vec<_>>();
        let weights = self.flat(self.dtype, &weights)?;
        let home = Arc::new(FlatParams::new(places, self.dtype, weights, Some(grads), self.device)?);
        params.iter().enumerate().for_each(|(i, param)| param.settle(home.clone(), i));
        Ok(Params { params, home })
    }
}

/// Parameters with their memory.
pub(super) struct Params {
    pub params: Vec<Param>,
    home: Arc<FlatParams>,
}

impl Params {
    /// The gradient of each.
    pub fn gradients(&self) -> Result<Values> {
        let grads = self.home.grads();
        let places = self.home.places().iter().enumerate();
        places
            .map(|(i, place)| {
                let range: Range<usize> = place.first..place.first + place.shape.n_elems();
                let values = match &grads {
                    Some(grads) if self.home.touched(i) => {
                        transfer::read_with(grads, range, |g: &[f32]| g.to_vec())?
                    }
                    // None was made: no number is right.
                    _ => vec![f32::NAN; range.len()],
                };
                Ok((format!("gradient of parameter {i}"), values))
            })
            .collect()
    }
}

/// A tape, and the inputs of an op on it.
pub(super) fn leaves(place: &Place<'_>, shapes: &[Vec<usize>], tape: &Tape) -> Result<Vec<Tensor>> {
    let leaf = |(i, sizes): (usize, &Vec<usize>)| Ok(tape.leaf(&place.tensor(i as u64, sizes, 1.0)?));
    shapes.iter().enumerate().map(leaf).collect()
}
