//! Rotary position embedding (Su et al. 2021): pairs of channels turned by an angle that grows with the position.

use std::sync::Arc;

use oarlock_kernels::Result;
use oarlock_kernels::rope::{self as kernel, Positions, RopeShape, RopeStyle, Rotation};

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
    n_positions: usize,
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
        let table = RopeTable::new(theta, rot_dim, scaling, n_positions)?;
        Ok(Rope { table, rot_dim, style, n_positions })
    }

    /// The number of positions.
    pub fn n_positions(&self) -> usize {
        self.n_positions
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
    let mut y = x.copied("activation")?;
    let &[_, seq, heads, dim] = x.sizes() else { return Err(wrong_shape("rope", "[B, S, H, D]", x)) };
    let shape = RopeShape { heads, head_dim: dim, rot_dim: table.rot_dim, style: table.style };
    let (table, mut launch) = (table.clone(), x.device().launch(name, 0, 2 * x.len_bytes() as u64));
    with_float!(x.dtype(), "rope", T => {
        let y = launch.update::<T>(&mut y)?;
        launch.run(move |cpu| {
            let (positions, table) = (Positions::Counted { seq, offset: first }, &table.table);
            kernel::rope(cpu, shape, rotation, positions, (&table.cos, &table.sin), y.slice(cpu))
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
