//! Buffers: tensors of a model that are not parameters, such as tables that follow from its settings.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use oarlock_tensor::{Device, Error, IntoShape, Result, Scalar, Shape, Tensor};

/// A tensor that is not a parameter: `register_buffer` of torch. It is whole on every rank, and never trained, divided or
/// rounded. Forward passes read it with [`Buffer::on`], at the price of a handle. Clones are the same buffer.
///
/// ```
/// use oarlock::nn::{self, Buffer, Forward, Linear, Module};
/// use oarlock::Tensor;
///
/// #[derive(Module)]
/// struct Net {
///     proj: Linear,
///     offsets: Buffer,
/// }
///
/// impl Forward<Tensor> for Net {
///     type Output = Tensor;
///     fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
///         self.proj.forward(&x.add(&self.offsets.on(x.device())?)?)
///     }
/// }
///
/// # fn main() -> nn::Result<()> {
/// let net = Net { proj: Linear::new(4, 2)?, offsets: Buffer::from_fn([4], |i| i as f32)?.not_persistent() };
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    shape: Shape,
    persistent: bool,
    state: RwLock<State>,
}

struct State {
    values: BufferValues,
    /// Where it was asked for last.
    placed: Option<Tensor>,
}

/// The elements of a buffer, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum BufferValues {
    /// Numbers, in f32 whatever the model computes in.
    Floats(Vec<f32>),
    /// Integers: ids, positions, and masks, in which 0 is false.
    Ints(Vec<i32>),
}

impl BufferValues {
    fn len(&self) -> usize {
        match self {
            BufferValues::Floats(values) => values.len(),
            BufferValues::Ints(values) => values.len(),
        }
    }
}

macro_rules! values {
    ($($T:ty => |$values:ident| $of:expr;)*) => {
        $(impl From<Vec<$T>> for BufferValues {
            fn from($values: Vec<$T>) -> BufferValues {
                $of
            }
        })*
    };
}
values! {
    f32 => |values| BufferValues::Floats(values);
    i32 => |values| BufferValues::Ints(values);
    u8 => |values| BufferValues::Ints(values.into_iter().map(i32::from).collect());
    bool => |values| BufferValues::Ints(values.into_iter().map(i32::from).collect());
}

impl TryFrom<Vec<f64>> for BufferValues {
    type Error = Error;
    /// Rounded to f32; a finite number beyond its range is an error.
    fn try_from(values: Vec<f64>) -> Result<BufferValues> {
        f64::store_all("Buffer", &values).map(BufferValues::Floats)
    }
}

impl TryFrom<Vec<i64>> for BufferValues {
    type Error = Error;
    /// A number outside of the range of i32 is an error.
    fn try_from(values: Vec<i64>) -> Result<BufferValues> {
        i64::store_all("Buffer", &values).map(BufferValues::Ints)
    }
}

impl Buffer {
    /// A buffer with these values, in row-major order: a vector of `f32`, `i32`, `u8` or `bool`, or the
    /// [`BufferValues`] of one of `f64` or `i64`.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the shape's.
    pub fn new(shape: impl IntoShape, values: impl Into<BufferValues>) -> Result<Buffer> {
        let (shape, values) = (shape.into_shape()?, values.into());
        fits(&shape, &values)?;
        Ok(Buffer(Arc::new(Inner {
            shape,
            persistent: true,
            state: RwLock::new(State { values, placed: None }),
        })))
    }

    /// A buffer whose element `i`, counted row by row, is `f(i)`.
    ///
    /// # Errors
    /// An impossible shape.
    pub fn from_fn(shape: impl IntoShape, f: impl FnMut(usize) -> f32) -> Result<Buffer> {
        let shape = shape.into_shape()?;
        Buffer::new(shape.sizes(), (0..shape.n_elems()).map(f).collect::<Vec<f32>>())
    }

    /// The rotary table of the original LLaMA code and of MiniMind (`precompute_pos_cis`): cosine and sine of
    /// `position · theta^(-2 j / dim)`, as complex numbers in two columns: `[positions, dim / 2, 2]`.
    ///
    /// # Errors
    /// An odd `dim`.
    pub fn pos_cis(dim: usize, positions: usize, theta: f64) -> Result<Buffer> {
        if !dim.is_multiple_of(2) {
            return Err(Error::Usage(format!("pos_cis: a head of {dim} channels has no pairs")));
        }
        let pairs = dim / 2;
        // torch computes frequencies and angles in f32.
        let angle = |i: usize| {
            let frequency = 1.0 / libm::powf(theta as f32, (2 * (i / 2 % pairs.max(1))) as f32 / dim as f32);
            (i / 2 / pairs.max(1)) as f32 * frequency
        };
        Buffer::from_fn([positions, pairs, 2], |i| {
            if i.is_multiple_of(2) { libm::cosf(angle(i)) } else { libm::sinf(angle(i)) }
        })
    }

    /// The same, left out of checkpoints: what follows from the settings need not be kept.
    #[must_use]
    pub fn not_persistent(self) -> Buffer {
        let state = State { values: self.values(), placed: None };
        Buffer(Arc::new(Inner { shape: self.0.shape, persistent: false, state: RwLock::new(state) }))
    }

    /// The tensor on a device: that of the input, `x.device()`. It is copied there once.
    ///
    /// # Errors
    /// No memory.
    pub fn on(&self, device: &Device) -> Result<Tensor> {
        if let Some(tensor) = self.read().placed.as_ref().filter(|tensor| tensor.device().same(device)) {
            return Ok(tensor.clone());
        }
        let mut state = self.write();
        let tensor = match &state.values {
            BufferValues::Floats(values) => Tensor::from_slice(values, self.0.shape.sizes(), device)?,
            BufferValues::Ints(values) => Tensor::from_slice(values, self.0.shape.sizes(), device)?,
        };
        state.placed = Some(tensor.clone());
        Ok(tensor)
    }

    /// Gives it other values, from the next use on.
    ///
    /// # Errors
    /// [`Error::Shape`] for values of another number or kind.
    pub fn set(&self, values: impl Into<BufferValues>) -> Result<()> {
        let values = values.into();
        fits(&self.0.shape, &values)?;
        let mut state = self.write();
        if std::mem::discriminant(&state.values) != std::mem::discriminant(&values) {
            return Err(Error::Usage("a buffer keeps its kind: floats or integers".to_owned()));
        }
        *state = State { values, placed: None };
        Ok(())
    }

    /// A copy of its values.
    pub fn values(&self) -> BufferValues {
        self.read().values.clone()
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Whether checkpoints keep it.
    pub fn is_persistent(&self) -> bool {
        self.0.persistent
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // Each change leaves a whole state behind.
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fits(shape: &Shape, values: &BufferValues) -> Result<()> {
    if shape.n_elems() == values.len() {
        return Ok(());
    }
    Err(Error::Shape {
        op: "Buffer",
        expected: format!("{} values for {shape:?}", shape.n_elems()),
        got: format!("{} values", values.len()),
    })
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:?})", self.0.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::buffers;
    use oarlock_tensor::Par;
    use oarlock_tensor::cpu::Isa;

    #[test]
    fn a_buffer_is_placed_once_and_changes_with_its_values() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let buffer = Buffer::new([2], vec![1.0, 2.0]).unwrap();
        let (first, second) = (buffer.on(&device).unwrap(), buffer.on(&device).unwrap());
        assert_eq!(first.to_vec::<f32>().unwrap(), second.to_vec::<f32>().unwrap());
        assert!(buffer.set(vec![1, 2]).unwrap_err().to_string().contains("kind"));
        assert!(buffer.set(vec![1.0]).unwrap_err().to_string().contains("1 values"));
        buffer.clone().set(vec![3.0, 4.0]).unwrap();
        assert_eq!(buffer.on(&device).unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0]);
        assert_eq!(first.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        let mask = Buffer::new([2], vec![true, false]).unwrap().on(&device).unwrap();
        assert_eq!(mask.to_vec::<bool>().unwrap(), [true, false]);
        let ids = BufferValues::try_from(vec![7i64, -1]).unwrap();
        assert_eq!(ids, vec![7, -1].into());
        let far = BufferValues::try_from(vec![0i64, -(1 << 40)]).unwrap_err().to_string();
        assert!(far.starts_with("Buffer: -1099511627776 at index 1 is outside the range of i32"), "{far}");
        assert_eq!(BufferValues::try_from(vec![0.5f64]).unwrap(), vec![0.5f32].into());
        let named = buffers(&vec![buffer.clone(), buffer.clone().not_persistent()]);
        let shown: Vec<_> =
            named.iter().map(|named| (named.name.as_str(), named.buffer.is_persistent())).collect();
        assert_eq!(shown, [("0", true), ("1", false)]);
    }

    #[test]
    fn pos_cis_turns_by_position_times_frequency() {
        let BufferValues::Floats(table) = Buffer::pos_cis(4, 3, 100.0).unwrap().values() else { panic!() };
        let at = |position: usize, pair: usize| &table[(position * 2 + pair) * 2..][..2];
        assert_eq!(at(0, 1), [1.0, 0.0]);
        assert_eq!(at(2, 0), [2.0f32.cos(), 2.0f32.sin()]);
        let (turn, angle) = (at(2, 1), 2.0 * (1.0f32 / 10.0));
        assert!((turn[0] - angle.cos()).abs() < 1e-6 && (turn[1] - angle.sin()).abs() < 1e-6);
    }
}
