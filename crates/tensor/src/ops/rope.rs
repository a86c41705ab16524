//! Rotary position embedding (Su et al. 2021): pairs of channels turned by an angle that grows with the position.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_cuda::geometry;
use oarlock_kernels::rope::{self as kernel, Positions, RopeShape, RopeStyle, Rotation};
use oarlock_kernels::{Cpu, Element, Float, Result};

use crate::cuda::FormError;
use crate::device::Device;
use crate::launch::{Launch, View};
use crate::ops::slice::{concat, narrow};
use crate::ops::{with_float, wrong_shape};
use crate::rope_table::{RopeScaling, RopeTable, inverse_frequencies};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The angles of all positions and how channels pair up. Angles are computed when a position is turned for the first time,
/// so a table for many positions takes the memory of those that come.
#[derive(Debug)]
pub struct Rope {
    inv_freq: Vec<f32>,
    attention_factor: f64,
    rot_dim: usize,
    style: RopeStyle,
    positions: Range<usize>,
    /// Those of the first positions, as many as were turned so far.
    angles: Mutex<Arc<Angles>>,
}

/// The angles of so many positions.
#[derive(Debug)]
struct Angles {
    n: usize,
    table: RopeTable,
    /// Cosines and sines on each GPU that used them.
    on_gpus: Mutex<Vec<[Tensor; 2]>>,
}

/// Positions of a table at the least.
const FEWEST_POSITIONS: usize = 64;

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
        let (inv_freq, attention_factor) = inverse_frequencies(theta, rot_dim, &scaling, seq_len)?;
        let angles = Mutex::new(Arc::new(Angles::new(&inv_freq, attention_factor, 0..0)?));
        Ok(Rope { inv_freq, attention_factor, rot_dim, style, positions, angles })
    }

    /// The bytes of the angles of `n` positions with `rot_dim` rotated channels.
    pub fn bytes(n: usize, rot_dim: usize) -> u64 {
        Rope::n_computed(n).saturating_mul(rot_dim).saturating_mul(size_of::<f32>()) as u64
    }

    /// How many positions are computed where `n` are turned: the table grows seldom where lengths grow slowly.
    fn n_computed(n: usize) -> usize {
        n.checked_next_power_of_two().unwrap_or(n).max(FEWEST_POSITIONS)
    }

    /// The angles of the first `n` positions at least, or of all that there are.
    fn angles(&self, n: usize, device: &Device) -> Result<Arc<Angles>> {
        // Whoever panicked here has changed nothing.
        let mut angles = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.positions.len();
        // On a dry device nobody looks at them.
        if angles.n < n.min(all) && !device.is_dry() {
            let first = self.positions.start;
            let positions = first..first + Rope::n_computed(n).min(all);
            *angles = Arc::new(Angles::new(&self.inv_freq, self.attention_factor, positions)?);
        }
        Ok(angles.clone())
    }

    /// The positions that it is for.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// A position of `x`, counted from the first one of the table.
    pub(super) fn offset_of(&self, x: &Tensor, position: usize) -> Result<usize> {
        position.checked_sub(self.positions.start).ok_or_else(|| {
            wrong_shape("rope", format!("positions of {:?} instead of {position}", self.positions), x)
        })
    }

    /// The channels of a head that are turned.
    pub(super) fn rot_dim(&self) -> usize {
        self.rot_dim
    }

    /// What turns `seq` positions from `first` on, which is counted from the first one of the table.
    pub(super) fn turn(&self, first: usize, seq: usize, device: &Device) -> Result<Turn> {
        let angles = self.angles(first.saturating_add(seq), device)?;
        let on_gpu = angles.on(device)?;
        let is_whole = first.saturating_add(seq) <= self.positions.len();
        Ok(Turn { angles, on_gpu, is_whole, rot_dim: self.rot_dim, style: self.style, seq, first })
    }
}

/// The angles of some positions, for a launch.
pub(super) struct Turn {
    angles: Arc<Angles>,
    on_gpu: Option<[Tensor; 2]>,
    /// Whether the table has them all.
    is_whole: bool,
    rot_dim: usize,
    style: RopeStyle,
    seq: usize,
    first: usize,
}

impl Turn {
    /// The cosines and sines, as a launch on a GPU reads them.
    pub fn read(&self, launch: &mut Launch<'_>) -> Result<Option<[View<f32>; 2]>> {
        let Some([cos, sin]) = &self.on_gpu else { return Ok(None) };
        Ok(Some([launch.read::<f32>(cos)?, launch.read::<f32>(sin)?]).filter(|_| self.is_whole))
    }

    /// The pairs of a head, and whether they lie side by side, as the kernels of a GPU take them.
    pub fn pairs(&self) -> [usize; 2] {
        [self.rot_dim / 2, usize::from(self.style == RopeStyle::Interleaved)]
    }

    /// Turns rows of heads on a CPU.
    pub fn run<T: Float>(
        &self,
        cpu: &Cpu,
        rotation: Rotation,
        [heads, head_dim]: [usize; 2],
        x: &mut [T],
    ) -> Result<()> {
        let shape = RopeShape { heads, head_dim, rot_dim: self.rot_dim, style: self.style };
        let positions = Positions::Counted { seq: self.seq, offset: self.first };
        let RopeTable { cos, sin, .. } = &self.angles.table;
        kernel::rope(cpu, shape, rotation, positions, (cos, sin), x)
    }
}

impl Angles {
    fn new(inv_freq: &[f32], attention_factor: f64, positions: Range<usize>) -> Result<Angles> {
        let n = positions.len();
        let table = RopeTable::of_frequencies(inv_freq, attention_factor, positions)?;
        Ok(Angles { n, table, on_gpus: Mutex::default() })
    }

    /// Cosines and sines where the kernels of a GPU find them; none for another device.
    fn on(&self, device: &Device) -> Result<Option<[Tensor; 2]>> {
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
}

/// x `[B, S, H, D]`, position `first + s` for element `[b, s]` → the same shape.
///
/// # Errors
/// A shape that does not fit the table, or a position beyond it.
pub fn rope(x: &Tensor, table: &Arc<Rope>, first: usize) -> Result<Tensor> {
    if x.sizes().len() != 4 || x.shape().last() < table.rot_dim {
        return Err(wrong_shape("rope", format!("[B, S, H, D] with D of at least {}", table.rot_dim), x));
    }
    let first = table.offset_of(x, first)?;
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
    let turn = table.turn(first, seq, x.device())?;
    let mut launch = x.device().launch(name, 0, 2 * x.len_bytes() as u64);
    let angles = turn.read(&mut launch)?;
    with_float!(x.dtype(), "rope", T => {
        let (from, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| {
            let [cos, sin] = angles.ok_or(FormError::NoForm)?;
            let sign = if rotation == Rotation::Forward { 1.0 } else { -1.0 };
            let (rows, [half, interleaved]) = (x.sizes()[0] * seq, turn.pairs());
            let call = gpu.kernel("rope", &[T::DTYPE])?.view(&from).view(&y).view(&cos).view(&sin);
            let call = call.optional(None::<&View<i32>>).u32(seq).u32(first).f32(sign).u32(rows).u32(heads).u32(dim);
            call.u32(half).u32(interleaved).run(geometry::elements(x.n_elems()))
        })?;
        launch.run(move |cpu| {
            let y = y.slice(cpu);
            y.copy_from_slice(from.slice(cpu));
            turn.run(cpu, rotation, [heads, dim], y)
        })
    })?;
    Ok(y)
}

/// x `[B, 1, H, D]`, each row at a position of its own → the same shape; not recorded.
///
/// # Errors
/// As [`rope`], or another number of positions than of rows.
pub fn rope_each(x: &Tensor, table: &Arc<Rope>, positions: &[usize]) -> Result<Tensor> {
    let &[n, 1, heads, dim] = x.sizes() else { return Err(wrong_shape("rope", "[B, 1, H, D]", x)) };
    if n != positions.len() || dim < table.rot_dim {
        let rot_dim = table.rot_dim;
        return Err(wrong_shape("rope", format!("{} rows, D of at least {rot_dim}", positions.len()), x));
    }
    if x.device().is_cuda() {
        let each = positions.iter().enumerate();
        let each = each.map(|(row, &position)| rope(&narrow(x, 0, row..row + 1)?, table, position));
        return concat(&each.collect::<Result<Vec<_>>>()?, 0);
    }
    let places = positions.iter().map(|&position| table.offset_of(x, position));
    let places = places.map(|place| Ok(i32::try_from(place?).unwrap_or(i32::MAX)));
    let places: Vec<i32> = places.collect::<Result<_>>()?;
    let end = places.iter().max().map_or(0, |last| last.saturating_add(1));
    let angles = table.angles(end as usize, x.device())?;
    let shape = RopeShape { heads, head_dim: dim, rot_dim: table.rot_dim, style: table.style };
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    let mut launch = x.device().launch("rope forward", 0, 2 * x.len_bytes() as u64);
    with_float!(x.dtype(), "rope", T => {
        let (from, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.run(move |cpu| {
            let y = y.slice(cpu);
            y.copy_from_slice(from.slice(cpu));
            let RopeTable { cos, sin, .. } = &angles.table;
            kernel::rope(cpu, shape, Rotation::Forward, Positions::Explicit(&places), (cos, sin), y)
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

#[cfg(test)]
mod tests {
    use oarlock_kernels::{DType, Isa, Par};

    use super::*;

    fn cpu() -> Device {
        Device::cpu(Isa::detect(), Par::threads(1).unwrap())
    }

    /// All ones, turned from position `first` on.
    fn turned(table: &Arc<Rope>, first: usize, seq: usize) -> Vec<f32> {
        let x = Tensor::from_slice(&vec![1f32; 4 * seq], [1, seq, 1, 4], &cpu()).unwrap();
        rope(&x, table, first).unwrap().to_vec().unwrap()
    }

    #[test]
    fn a_table_of_many_positions_holds_those_that_are_turned() {
        let of = |n| Arc::new(Rope::new(1e4, 4, RopeStyle::Half, RopeScaling::None, n).unwrap());
        // So many would be an error if they were computed.
        let (many, few) = (of(1 << 60), of(300));
        let held = |table: &Arc<Rope>| table.angles.lock().unwrap().n;
        assert_eq!(held(&many), 0);
        assert_eq!(turned(&many, 0, 5), turned(&few, 0, 5));
        assert_eq!((held(&many), held(&few)), (64, 64));
        assert_eq!(turned(&many, 290, 10), turned(&few, 290, 10));
        assert_eq!((held(&many), held(&few)), (512, 300));
        assert_eq!(Rope::bytes(300, 4), 512 * 4 * 4);
        // What is known stays.
        assert_eq!(turned(&many, 0, 5), turned(&few, 0, 5));
        assert_eq!(held(&many), 512);
        // No angles are needed where nothing is computed.
        let dry = of(1 << 60);
        let x = Tensor::zeros([1, 1 << 20, 1, 4], DType::F32, &cpu().as_dry()).unwrap();
        rope(&x, &dry, 0).unwrap();
        assert_eq!(held(&dry), 0);
    }
}
