//! Rotary position embedding (Su et al. 2021): pairs of channels turned by an angle that grows with the position.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_cuda::geometry;
use oarlock_kernels::rope::{self as kernel, Positions, RopeShape, RopeStyle, Rotation};
use oarlock_kernels::{Element, Result};

use crate::cuda::Unable;
use crate::device::Device;
use crate::launch::View;
use crate::ops::{with_float, wrong_shape};
use crate::rope_table::{RopeScaling, RopeTable};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The angles of all positions and how channels pair up.
#[derive(Debug)]
pub struct Rope {
    table: RopeTable,
    rot_dim: usize,
    style: RopeStyle,
    positions: Range<usize>,
    /// Cosines and sines on each GPU that used them.
    on_gpus: Mutex<Vec<[Tensor; 2]>>,
}

impl Rope {
    /// For the first `rot_dim` channels of each head and positions `0..n_positions`, on the base `theta`.
    ///
    /// # Errors
    /// Settings that give no finite angles.
    pub fn new(
        theta: f64,
        rot_dim: usize,
        style: RopeStyle,
        scaling: RopeScaling,
        n_positions: usize,
    ) -> Result<Rope> {
        Rope::of_positions(theta, rot_dim, style, scaling, n_positions, 0..n_positions)
    }

    /// As [`Rope::new`], for some positions of a sequence of `seq_len`, which the scalings look at.
    ///
    /// # Errors
    /// As [`Rope::new`].
    pub fn of_positions(
        theta: f64,
        rot_dim: usize,
        style: RopeStyle,
        scaling: RopeScaling,
        seq_len: usize,
        positions: Range<usize>,
    ) -> Result<Rope> {
        let table = RopeTable::of_positions(theta, rot_dim, scaling, seq_len, positions.clone())?;
        Ok(Rope { table, rot_dim, style, positions, on_gpus: Mutex::default() })
    }

    /// Cosines and sines where the kernels of a GPU find them; none for another device.
    fn tables(&self, device: &Device) -> Result<Option<[Tensor; 2]>> {
        if !device.is_cuda() {
            return Ok(None);
        }
        // Whoever panicked here has changed nothing.
        let mut tables = self.on_gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = tables.iter().find(|[cos, _]| cos.device().same(device)) {
            return Ok(Some(there.clone()));
        }
        let copied = |values: &[f32]| Tensor::from_slice(values, [values.len()], device);
        let made = [copied(&self.table.cos)?, copied(&self.table.sin)?];
        tables.push(made.clone());
        Ok(Some(made))
    }

    /// The positions that it is for.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }
}

/// x `[B, S, H, D]`, position `first + s` for element `[b, s]` → the same shape.
///
/// # Errors
/// A shape that does not fit the table, or a position beyond it.
pub fn rope(x: &Tensor, table: &Arc<Rope>, first: usize) -> Result<Tensor> {
    if x.sizes().len() != 4 || x.shape().last() < table.rot_dim {
        return Err(wrong_shape("rope", format!("[B, S, H, D] with D of at least {}", table.rot_dim), x));
    }
    let Some(first) = first.checked_sub(table.positions.start) else {
        return Err(wrong_shape("rope", format!("positions of {:?} instead of {first}", table.positions), x));
    };
    let recorder = Recorder::new(&[x], &[])?;
    let y = turn(x, table, first, Rotation::Forward, "rope forward")?;
    Ok(Recorder::record(recorder, y, |_| RopeBackward { table: table.clone(), first }))
}

fn turn(
    x: &Tensor,
    table: &Arc<Rope>,
    first: usize,
    rotation: Rotation,
    name: &'static str,
) -> Result<Tensor> {
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    let &[_, seq, heads, dim] = x.sizes() else { return Err(wrong_shape("rope", "[B, S, H, D]", x)) };
    let shape = RopeShape { heads, head_dim: dim, rot_dim: table.rot_dim, style: table.style };
    let (table, mut launch) = (table.clone(), x.device().launch(name, 0, 2 * x.len_bytes() as u64));
    let tables = match table.tables(x.device())? {
        Some([cos, sin]) => Some((launch.read::<f32>(&cos)?, launch.read::<f32>(&sin)?)),
        None => None,
    };
    with_float!(x.dtype(), "rope", T => {
        let (from, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| {
            let (cos, sin) = tables.filter(|_| first + seq <= table.positions.len()).ok_or(Unable::NoForm)?;
            let sign = if rotation == Rotation::Forward { 1.0 } else { -1.0 };
            let (rows, half) = (x.sizes()[0] * seq, table.rot_dim / 2);
            let call = gpu.kernel("rope", &[T::DTYPE])?.view(&from).view(&y).view(&cos).view(&sin);
            let call = call.optional(None::<&View<i32>>).u32(seq).u32(first).f32(sign).u32(rows).u32(heads).u32(dim);
            let interleaved = usize::from(table.style == RopeStyle::Interleaved);
            call.u32(half).u32(interleaved).run(geometry::elements(x.n_elems()))
        })?;
        launch.run(move |cpu| {
            let (positions, table) = (Positions::Counted { seq, offset: first }, &table.table);
            let y = y.slice(cpu);
            y.copy_from_slice(from.slice(cpu));
            kernel::rope(cpu, shape, rotation, positions, (&table.cos, &table.sin), y)
        })
    })?;
    Ok(y)
}

struct RopeBackward {
    table: Arc<Rope>,
    first: usize,
}

impl Function for RopeBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, turn(&dy, &self.table, self.first, Rotation::Inverse, "rope backward")?)
    }
}
