//! Where a case runs: a device and a dtype, and the same numbers on every device.

use std::ops::Range;
use std::sync::Arc;

use oarlock_tensor::ops::transfer;
use oarlock_tensor::{
    DType, Device, FlatBuffer, FlatParams, Float, Init, Param, ParamLocation, Result, Shape, Tape, Tensor,
    bf16, f16,
};

/// Where parameters begin in their buffer: at multiples of this.
const ALIGN: usize = 64;

/// A device, the dtype of the tensors there, and the dtype that their numbers were rounded to before.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub device: &'a Device,
    pub dtype: DType,
    pub rounded: DType,
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

/// The same numbers as this dtype has them.
pub(super) fn rounded(mut values: Vec<f32>, dtype: DType) -> Vec<f32> {
    fn round<T: Float>(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x = T::from_f32(*x).to_f32());
    }
    match dtype {
        DType::BF16 => round::<bf16>(&mut values),
        DType::F16 => round::<f16>(&mut values),
        DType::F32 | DType::I32 => {}
    }
    values
}

impl Place<'_> {
    /// Random numbers times `scale`.
    pub fn values(&self, seed: u64, n: usize, scale: f32) -> Vec<f32> {
        rounded(normal(seed, n).into_iter().map(|x| scale * x).collect(), self.rounded)
    }

    /// A tensor of them.
    pub fn tensor(&self, seed: u64, sizes: &[usize], scale: f32) -> Result<Tensor> {
        self.tensor_of(self.dtype, &self.values(seed, sizes.iter().product(), scale), sizes)
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
        let n: usize = sizes.iter().product();
        let data: Vec<i32> = (0..n).map(|i| ((i * i + 7 * i) % end) as i32).collect();
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
            // Sums of as many terms as a row has stay of the size of the input.
            let scale = if sizes.len() > 1 { (1.0 / *sizes.last().unwrap_or(&1) as f32).sqrt() } else { 1.0 };
            weights.extend(self.values(100 + i as u64, shape.n_elems(), scale));
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
