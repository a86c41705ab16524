//! `reduce`: one value of those of all ranks.

use oarlock_tensor::{DType, Element, Tensor, bf16, f16};

use super::collectives::{check_equal, from_bytes, rebuild};
use crate::accelerator::handle::Accelerator;
use crate::distributed::ReduceOp;
use crate::nn::nested::Nested;
use crate::{Error, Result};

impl Accelerator {
    /// One value of those of all ranks, times `scale`. Floats are added in f64 in the order of ranks and rounded once, so
    /// every rank gets bitwise identical results.
    ///
    /// Accelerate applies `scale` on TPUs only.
    ///
    /// # Errors
    /// As [`Accelerator::gather`]; the mean, or a scale other than 1, of integers; sums and products that no i32 holds.
    #[track_caller]
    pub fn reduce<T: Nested>(&self, value: &T, op: ReduceOp, scale: f64) -> Result<T> {
        let tensors = value.tensors();
        let brought = self.meet(&format!("reduce ({op:?}, scale {scale})"), &tensors)?;
        check_equal("reduce", &brought)?;
        let parts = self.exchange_tensors(&tensors, &brought)?;
        let reduced = tensors.iter().zip(&parts).map(|(tensor, parts)| {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            from_bytes(tensor.dtype(), &reduced(tensor.dtype(), &parts, op, scale)?, tensor.sizes(), self)
        });
        rebuild(value, reduced.collect::<Result<_>>()?)
    }

    /// The rows of this rank of the sum over ranks, with the bits of [`Accelerator::reduce`]: a tensor has the rows of rank 0,
    /// then as many of rank 1, and so on. `call` is for messages.
    #[track_caller]
    pub(crate) fn reduce_scatter(&self, call: &str, tensor: &Tensor) -> Result<Tensor> {
        let brought = self.meet(call, std::slice::from_ref(tensor))?;
        check_equal(call, &brought)?;
        let all = self.communicator().all_gather_bytes(&tensor.to_bytes()?)?;
        let own = all[0].len() / all.len();
        let first = own * self.process_index();
        let parts: Vec<&[u8]> = all.iter().map(|bytes| &bytes[first..first + own]).collect();
        let mut sizes = tensor.sizes().to_vec();
        sizes[0] /= all.len();
        from_bytes(tensor.dtype(), &reduced(tensor.dtype(), &parts, ReduceOp::Sum, 1.0)?, &sizes, self)
    }
}

/// What becomes of the bytes of all ranks.
fn reduced(dtype: DType, parts: &[&[u8]], op: ReduceOp, scale: f64) -> Result<Vec<u8>> {
    match dtype {
        DType::F32 => Ok(reduce_floats(parts, f64::from, |x| x as f32, op, scale)),
        DType::BF16 => Ok(reduce_floats(parts, bf16::to_f64, bf16::from_f64, op, scale)),
        DType::F16 => Ok(reduce_floats(parts, f16::to_f64, f16::from_f64, op, scale)),
        DType::I32 => reduce_integers(parts, op, scale),
    }
}

fn reduce_floats<T: Element>(
    parts: &[&[u8]],
    to_f64: impl Fn(T) -> f64,
    from_f64: impl Fn(f64) -> T,
    op: ReduceOp,
    scale: f64,
) -> Vec<u8> {
    let parts: Vec<Vec<T>> = parts.iter().map(|part| bytemuck::pod_collect_to_vec(part)).collect();
    let n = parts.len() as f64;
    let or_nan = |choose: fn(f64, f64) -> f64| {
        move |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { choose(a, b) }
    };
    let reduced = (0..parts[0].len()).map(|i| {
        let values = parts.iter().map(|part| to_f64(part[i]));
        from_f64(match op {
            ReduceOp::Sum => values.sum::<f64>() * scale,
            ReduceOp::Avg => values.sum::<f64>() / n * scale,
            ReduceOp::Product => values.product::<f64>() * scale,
            ReduceOp::Min => values.fold(f64::INFINITY, or_nan(f64::min)) * scale,
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, or_nan(f64::max)) * scale,
        })
    });
    bytemuck::cast_slice(&reduced.collect::<Vec<T>>()).to_vec()
}

fn reduce_integers(parts: &[&[u8]], op: ReduceOp, scale: f64) -> Result<Vec<u8>> {
    if op == ReduceOp::Avg || scale != 1.0 {
        return Err(Error::Usage(format!(
            "reduce: integers have no mean, and no scale other than 1, and got {op:?} with scale {scale}; cast them to f32 \
             first"
        )));
    }
    let parts: Vec<Vec<i32>> = parts.iter().map(|part| bytemuck::pod_collect_to_vec(part)).collect();
    let reduced = (0..parts[0].len()).map(|i| {
        let values = parts.iter().map(|part| i128::from(part[i]));
        // There is at least one rank.
        let value = match op {
            ReduceOp::Sum | ReduceOp::Avg => values.sum(),
            ReduceOp::Product => values.fold(1, i128::saturating_mul),
            ReduceOp::Min => values.min().unwrap_or(0),
            ReduceOp::Max => values.max().unwrap_or(0),
        };
        i32::try_from(value).map_err(|_| Error::Usage(format!("reduce: the {op} {value} is not an i32")))
    });
    Ok(bytemuck::cast_slice(&reduced.collect::<Result<Vec<i32>>>()?).to_vec())
}
