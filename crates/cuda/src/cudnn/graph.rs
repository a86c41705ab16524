//! A graph of operations on tensors of four dims, as cuDNN takes it.

use std::ffi::c_int;
use std::sync::Arc;

use super::api::Api;
use super::descriptor::{Descriptor, Kind, Type};
use crate::error::Result;

const POINTWISE_MODE: c_int = 0;
const POINTWISE_PRECISION: c_int = 1;
const POINTWISE_AXIS: c_int = 9;
const POINTWISE_OP: c_int = 750;
const POINTWISE_OP_X: c_int = 751;
const POINTWISE_OP_B: c_int = 752;
const POINTWISE_OP_Y: c_int = 753;
const POINTWISE_OP_T: c_int = 758;
const TENSOR_ALIGNMENT: c_int = 900;
const TENSOR_TYPE: c_int = 901;
const TENSOR_DIMS: c_int = 902;
const TENSOR_STRIDES: c_int = 903;
const TENSOR_ID: c_int = 906;
const TENSOR_IS_VIRTUAL: c_int = 907;
const TENSOR_IS_BY_VALUE: c_int = 908;
const MATMUL_PRECISION: c_int = 1500;
const MATMUL_OP_A: c_int = 1520;
const MATMUL_OP_B: c_int = 1521;
const MATMUL_OP_C: c_int = 1522;
const MATMUL_OP: c_int = 1523;
const REDUCTION_OPERATOR: c_int = 1600;
const REDUCTION_PRECISION: c_int = 1601;
const REDUCTION_OP_X: c_int = 1610;
const REDUCTION_OP_Y: c_int = 1611;
const REDUCTION_OP: c_int = 1612;
const RESHAPE_OP_X: c_int = 2200;
const RESHAPE_OP_Y: c_int = 2201;

/// Bytes by which the address of every tensor in memory is divisible.
pub(super) const ALIGNMENT: i64 = 16;
/// The first number that the graph gives to tensors itself; those in memory have lower ones.
const FIRST_ID: i64 = 100;

/// A type of elements, by `cudnnDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum DataType {
    F32 = 0,
    F16 = 2,
    I32 = 4,
    BF16 = 9,
    Bool = 11,
}

/// A function of elements, by `cudnnPointwiseMode_t`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Pointwise {
    Add = 0,
    Mul = 1,
    Div = 6,
    Sub = 9,
    Exp = 13,
    Log = 15,
    Greater = 302,
    GreaterOrEqual = 303,
    /// The index of an element in a dim.
    Index = 501,
    /// The first operand where the third one is true, else the second one.
    Select = 601,
}

/// How elements become one, by `cudnnReduceTensorOp_t`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Reduction {
    Sum = 0,
    Max = 3,
}

/// The sizes of a tensor, and the elements from one to the next in each dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) dims: [i64; 4],
    pub(super) strides: [i64; 4],
}

impl Layout {
    /// Without gaps, the last dim innermost.
    pub(super) fn dense(dims: [i64; 4]) -> Layout {
        let [_, a, b, c] = dims;
        Layout { dims, strides: [a * b * c, b * c, c, 1] }
    }

    /// `[batch, rows, heads, columns]` in memory as `[batch, heads, rows, columns]`.
    pub(super) fn heads_inside([batch, heads, rows, columns]: [i64; 4]) -> Layout {
        let strides = [rows * heads * columns, columns, heads * columns, 1];
        Layout { dims: [batch, heads, rows, columns], strides }
    }

    /// The last two dims swapped, over the same memory.
    pub(super) fn t(self) -> Layout {
        let swapped = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        Layout { dims: swapped(self.dims), strides: swapped(self.strides) }
    }
}

/// A tensor of a graph, by its place there.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    index: usize,
    pub(super) layout: Layout,
}

/// Where a tensor is.
enum Place {
    /// In memory that the execution names by this number.
    Memory(i64),
    /// Nowhere: only the graph itself uses it.
    Virtual,
    /// On the host, one number.
    Value,
}

/// Operations in an order in which they can run.
pub(super) struct Graph {
    api: Arc<Api>,
    tensors: Vec<Descriptor>,
    operators: Vec<Descriptor>,
    ops: Vec<Descriptor>,
    /// Numbers by value, with the tensors' numbers.
    values: Vec<(i64, Box<f32>)>,
    next_id: i64,
}

impl Graph {
    pub(super) fn new(api: &Arc<Api>) -> Graph {
        let (tensors, operators, ops, values) = (vec![], vec![], vec![], vec![]);
        Graph { api: api.clone(), tensors, operators, ops, values, next_id: FIRST_ID }
    }

    /// A tensor in memory that has this number.
    pub(super) fn memory(&mut self, id: i64, of: DataType, layout: Layout) -> Result<Tensor> {
        self.tensor(Place::Memory(id), of, layout)
    }

    /// A tensor between operations.
    pub(super) fn between(&mut self, of: DataType, layout: Layout) -> Result<Tensor> {
        self.tensor(Place::Virtual, of, layout)
    }

    /// A number.
    pub(super) fn value(&mut self, value: f32) -> Result<Tensor> {
        let id = self.next_id;
        self.values.push((id, Box::new(value)));
        self.tensor(Place::Value, DataType::F32, Layout::dense([1; 4]))
    }

    fn tensor(&mut self, place: Place, of: DataType, layout: Layout) -> Result<Tensor> {
        let id = match place {
            Place::Memory(id) => id,
            Place::Virtual | Place::Value => {
                self.next_id += 1;
                self.next_id - 1
            }
        };
        let tensor = Descriptor::new(&self.api, Kind::Tensor)?;
        tensor.set_number(TENSOR_TYPE, Type::Dtype, of as c_int)?;
        tensor.set(TENSOR_DIMS, Type::Int64, &layout.dims)?;
        tensor.set(TENSOR_STRIDES, Type::Int64, &layout.strides)?;
        tensor.set(TENSOR_ID, Type::Int64, &[id])?;
        tensor.set(TENSOR_ALIGNMENT, Type::Int64, &[ALIGNMENT])?;
        tensor.set(TENSOR_IS_VIRTUAL, Type::Boolean, &[matches!(place, Place::Virtual)])?;
        tensor.set(TENSOR_IS_BY_VALUE, Type::Boolean, &[matches!(place, Place::Value)])?;
        self.tensors.push(tensor.finalize()?);
        Ok(Tensor { index: self.tensors.len() - 1, layout })
    }

    /// `y = function(x, b, t)`, elements of dims of one element for all others there; computed in `precision`.
    fn pointwise(
        &mut self,
        (function, axis): (Pointwise, Option<i64>),
        inputs: &[Tensor],
        y: Tensor,
        precision: DataType,
    ) -> Result<()> {
        let operator = Descriptor::new(&self.api, Kind::Pointwise)?;
        operator.set_number(POINTWISE_MODE, Type::PointwiseMode, function as c_int)?;
        operator.set_number(POINTWISE_PRECISION, Type::Dtype, precision as c_int)?;
        if let Some(axis) = axis {
            operator.set(POINTWISE_AXIS, Type::Int64, &[axis])?;
        }
        let op = Descriptor::new(&self.api, Kind::PointwiseOp)?;
        let inputs = [POINTWISE_OP_X, POINTWISE_OP_B, POINTWISE_OP_T].into_iter().zip(inputs);
        self.push((operator, POINTWISE_OP), op, inputs.chain([(POINTWISE_OP_Y, &y)]))
    }

    /// A new tensor of `like`'s sizes, a function of others.
    pub(super) fn map(&mut self, function: Pointwise, like: Tensor, inputs: &[Tensor]) -> Result<Tensor> {
        let y = self.between(DataType::F32, Layout::dense(like.layout.dims))?;
        self.map_into(function, inputs, y)?;
        Ok(y)
    }

    /// The same into a tensor.
    pub(super) fn map_into(&mut self, function: Pointwise, inputs: &[Tensor], y: Tensor) -> Result<()> {
        self.pointwise((function, None), inputs, y, DataType::F32)
    }

    /// The index of each element of `x` in a dim.
    pub(super) fn index(&mut self, x: Tensor, dim: i64) -> Result<Tensor> {
        let y = self.between(DataType::I32, Layout::dense(x.layout.dims))?;
        self.pointwise((Pointwise::Index, Some(dim)), &[x], y, DataType::F32)?;
        Ok(y)
    }

    /// Whether `a` compares with `b` as `function` says, of each element.
    pub(super) fn compare(&mut self, function: Pointwise, a: Tensor, b: Tensor) -> Result<Tensor> {
        let y = self.between(DataType::Bool, Layout::dense(a.layout.dims))?;
        self.pointwise((function, None), &[a, b], y, DataType::Bool)?;
        Ok(y)
    }

    /// `c = a b`, matrices in the last two dims; a batch or head of one is for all of them, and with fewer heads in `b` than
    /// in `a`, each is for several in a row.
    pub(super) fn matmul(&mut self, a: Tensor, b: Tensor, c: Tensor) -> Result<()> {
        let operator = Descriptor::new(&self.api, Kind::Matmul)?;
        operator.set_number(MATMUL_PRECISION, Type::Dtype, DataType::F32 as c_int)?;
        let op = Descriptor::new(&self.api, Kind::MatmulOp)?;
        self.push((operator, MATMUL_OP), op, [(MATMUL_OP_A, &a), (MATMUL_OP_B, &b), (MATMUL_OP_C, &c)])
    }

    /// `y` from the elements of `x` that meet there: a dim of `y` is that of `x`, or a divisor of it.
    pub(super) fn reduce(&mut self, reduction: Reduction, x: Tensor, y: Tensor) -> Result<()> {
        let operator = Descriptor::new(&self.api, Kind::Reduction)?;
        operator.set_number(REDUCTION_OPERATOR, Type::ReductionOperator, reduction as c_int)?;
        operator.set_number(REDUCTION_PRECISION, Type::Dtype, DataType::F32 as c_int)?;
        let op = Descriptor::new(&self.api, Kind::ReductionOp)?;
        self.push((operator, REDUCTION_OP), op, [(REDUCTION_OP_X, &x), (REDUCTION_OP_Y, &y)])
    }

    /// `x` with its last two dims swapped, in this type.
    pub(super) fn transpose(&mut self, x: Tensor, of: DataType) -> Result<Tensor> {
        let y = self.between(of, x.layout.t())?;
        let op = Descriptor::new(&self.api, Kind::ReshapeOp)?;
        op.set_descriptors(RESHAPE_OP_X, &[&self.tensors[x.index]])?;
        op.set_descriptors(RESHAPE_OP_Y, &[&self.tensors[y.index]])?;
        self.ops.push(op.finalize()?);
        Ok(y)
    }

    fn push<'t>(
        &mut self,
        (operator, attribute): (Descriptor, c_int),
        op: Descriptor,
        tensors: impl IntoIterator<Item = (c_int, &'t Tensor)>,
    ) -> Result<()> {
        let operator = operator.finalize()?;
        op.set_descriptors(attribute, &[&operator])?;
        for (attribute, tensor) in tensors {
            op.set_descriptors(attribute, &[&self.tensors[tensor.index]])?;
        }
        self.operators.push(operator);
        self.ops.push(op.finalize()?);
        Ok(())
    }

    /// The operations, in their order.
    pub(super) fn ops(&self) -> Vec<&Descriptor> {
        self.ops.iter().collect()
    }

    /// The numbers that an execution passes, with those of their tensors.
    pub(super) fn values(&self) -> impl Iterator<Item = (i64, &f32)> {
        self.values.iter().map(|(id, value)| (*id, &**value))
    }
}
