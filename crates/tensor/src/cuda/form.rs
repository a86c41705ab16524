//! The own form of an op on a GPU: launches of kernels and matrix products, put together from the views that the op's
//! launch has declared.
//!
//! ```ignore
//! launch.cuda(|gpu| gpu.kernel("cast", &[F32, BF16])?.view(&x).view(&y).u64(n).run(geometry::elements(n)))?;
//! ```

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oarlock_cuda::attention::Tile;
use oarlock_cuda::blas::{self, Layout, Operand, Precision, Product};
use oarlock_cuda::driver::{Arg, Function, Slice, Use};
use oarlock_cuda::geometry::{self, Geometry, NORM_BLOCK, RowSums};
use oarlock_cuda::modules::MOST_DTYPES;
use oarlock_cuda::{Element, Pieces, Walk};
use oarlock_kernels::random::Stream;
use oarlock_kernels::{DType, Element as _, Error, Store, bf16, f16};

use super::{Access, CodeTables, Gpu, Place, failed};
use crate::arena::{Arena, Buffer};
use crate::launch::{Owner, Stretch, View, ViewMut};

/// What a form returns: whether the op runs on the GPU.
pub(crate) type Form = Found<()>;

/// What a form looks for: a kernel, memory.
pub(crate) type Found<T> = Result<T, FormError>;

/// Why an op did not run in its own form.
#[derive(Debug)]
pub(crate) enum FormError {
    /// There is none for these elements: the launch is staged.
    NoForm,
    /// It needs more of a launch than this GPU has, as is said: the launch is staged.
    TooLarge(String),
    /// It was met by an error.
    Failed(Error),
}

impl From<Error> for FormError {
    fn from(error: Error) -> FormError {
        FormError::Failed(error)
    }
}

/// The kernels' name of a dtype.
pub(crate) fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::F32,
        DType::BF16 => Element::BF16,
        DType::F16 => Element::F16,
        DType::I32 => Element::I32,
    }
}

/// The kernels and products of a GPU, for one launch.
#[derive(Clone, Copy)]
pub(crate) struct Kernels<'l> {
    pub(super) gpu: &'l Gpu,
    arena: &'l Arena,
    accesses: &'l [Access],
    /// Whether a kernel or a product was launched.
    pub(super) launched: &'l Cell<bool>,
}

impl<'l> Kernels<'l> {
    pub(super) fn new(
        gpu: &'l Gpu,
        arena: &'l Arena,
        accesses: &'l [Access],
        launched: &'l Cell<bool>,
    ) -> Kernels<'l> {
        Kernels { gpu, arena, accesses, launched }
    }

    pub(super) fn gpu(&self) -> &'l Gpu {
        self.gpu
    }

    /// A part of the form is on the stream.
    pub(super) fn note_launch(&self) {
        self.launched.set(true);
    }

    /// A call of the kernel of this op for these dtypes, in the order of its name.
    ///
    /// # Errors
    /// [`FormError::NoForm`] if there is none.
    pub fn kernel(&self, op: &'static str, dtypes: &[DType]) -> Found<Call<'l>> {
        let mut elements = [Element::F32; MOST_DTYPES];
        let elements = elements.get_mut(..dtypes.len()).ok_or(FormError::NoForm)?;
        elements.iter_mut().zip(dtypes).for_each(|(element, dtype)| *element = self::element(*dtype));
        self.kernel_of(op, elements, None, None)
    }

    /// As [`Kernels::kernel`], for heads of this many elements and a tile that may not be the usual one.
    pub(super) fn kernel_of(
        &self,
        op: &'static str,
        elements: &[Element],
        head_dim: Option<u32>,
        tile: Option<Tile>,
    ) -> Found<Call<'l>> {
        let found = self.gpu.modules.find(op, elements, head_dim, tile);
        let function = found.map_err(failed)?.ok_or(FormError::NoForm)?;
        let (gpu, accesses, launched) = (self.gpu, self.accesses, self.launched);
        let args = Vec::with_capacity(function.instance().kernel.params.len());
        Ok(Call { gpu, accesses, launched, function, args, wrong: None })
    }

    /// The memory of a view.
    pub fn slice<T>(&self, view: &impl Declared<T>) -> Found<Slice<'l>> {
        Ok(slice_of(self.accesses, view.access())?)
    }

    /// Memory of arbitrary content that only this form uses. What is launched before it is dropped may use it.
    pub fn temporary(&self, bytes: usize) -> Found<Temporary> {
        let buffer = self.arena.allocate(bytes, "scratch")?;
        // The last owner of its memory may have called for a copy.
        if let Owner::Cuda(block) = buffer.span().owner {
            block.before(Use::Write)?;
        }
        Ok(Temporary(buffer))
    }

    /// A view as a matrix of rows without gaps.
    pub fn matrix<T>(&self, view: &impl Declared<T>, rows: usize, cols: usize) -> Found<Matrix<'l>> {
        Ok(Matrix::new(self.slice(view)?, rows, cols))
    }

    /// Writes the products of matrices of `dtype` to `out`, whose dtype is that or f32, or adds them there; `bias` is a
    /// number for each column. A batch of matrices lies one after the other.
    pub fn multiply<T>(
        &self,
        (dtype, batch): (DType, usize),
        [a, b]: [Matrix<'_>; 2],
        (out, out_dtype, store): (&ViewMut<T>, DType, Store),
        bias: Option<Slice<'_>>,
    ) -> Form {
        self.multiply_slice((dtype, batch), [a, b], (self.slice(out)?, out_dtype, store), bias)
    }

    /// As [`Kernels::multiply`], into any memory.
    pub fn multiply_slice(
        &self,
        (dtype, batch): (DType, usize),
        operands: [Matrix<'_>; 2],
        (out, out_dtype, store): (Slice<'_>, DType, Store),
        bias: Option<Slice<'_>>,
    ) -> Form {
        let precision = self.gpu.precision(dtype);
        let product = product((precision, batch), operands, (out, out_dtype, store), bias)?;
        self.launched.set(true);
        Ok(self.gpu.blas.multiply(&product).map_err(failed)?)
    }

    /// out[o, i] = `scale` times the sum over k of x[o, k, i], in a pairwise tree over k, or that added to it. The dtype of
    /// the sums is that of the terms or f32.
    pub fn sum_rows(
        &self,
        scale: f32,
        (x, dtype): (Slice<'_>, DType),
        [outer, n, inner]: [usize; 3],
        (out, out_dtype, store): (Slice<'_>, DType, Store),
    ) -> Form {
        let cut = RowSums::new([outer, n, inner]);
        let launch = |scale, (out, to): (Slice<'_>, DType), store| {
            let call = self.kernel("sum_rows", &[dtype, to])?.f32(scale).slice(x).slice(out).added(store);
            let call = call.u32(outer).u32(n).u32(inner).u32(cut.width).u32(cut.run);
            call.run(cut.geometry())
        };
        if cut.n_chunks() == 1 {
            return launch(scale, (out, out_dtype), store);
        }
        let sizes = cut.partials();
        let memory = self.temporary(size_of::<f32>() * sizes.iter().product::<usize>())?;
        launch(1.0, (memory.slice()?, DType::F32), Store::Overwrite)?;
        self.sum_rows(scale, (memory.slice()?, DType::F32), sizes, (out, out_dtype, store))
    }

    /// The sum of n numbers of f64, at least one: of blocks of them, and then of those sums, in an order that depends on n alone.
    pub fn sum_f64(&self, x: Slice<'_>, n: usize, out: Slice<'_>) -> Form {
        let n_sums = n.div_ceil(NORM_BLOCK);
        let launch = |out: Slice<'_>| {
            let call = self.kernel("sum_f64", &[])?.slice(x).slice(out).u64(n);
            call.run(geometry::squared_norm(n))
        };
        if n_sums == 1 {
            return launch(out);
        }
        let memory = self.temporary(size_of::<f64>() * n_sums)?;
        launch(memory.slice()?)?;
        self.sum_f64(memory.slice()?, n_sums, out)
    }

    /// Writes the same byte everywhere.
    pub fn fill<T>(&self, view: &ViewMut<T>, value: u8) -> Form {
        self.fill_slice(self.slice(view)?, value)
    }

    /// As [`Kernels::fill`], of any memory.
    pub fn fill_slice(&self, to: Slice<'_>, value: u8) -> Form {
        Ok(self.gpu.stream.fill(to, value).map_err(failed)?)
    }

    /// Whether products are computed by cuBLASLt.
    pub fn has_cublas(&self) -> bool {
        self.gpu.blas.version().is_some()
    }

    /// The tables that quantized weights are decoded with.
    pub fn code_tables(&self) -> Found<&'l CodeTables> {
        Ok(self.gpu.code_tables()?)
    }

    /// Copies a view to the host, when what writes it has run.
    pub fn download<T: bytemuck::Pod>(&self, view: &View<T>) -> Found<Vec<T>> {
        self.download_slice(self.slice(view)?)
    }

    /// As [`Kernels::download`], of any memory.
    pub fn download_slice<T: bytemuck::Pod>(&self, slice: Slice<'_>) -> Found<Vec<T>> {
        let mut values = vec![T::zeroed(); slice.bytes() / size_of::<T>()];
        self.gpu.stream.read_now(slice, bytemuck::cast_slice_mut(&mut values)).map_err(failed)?;
        Ok(values)
    }

    /// Copies one stretch of memory to another.
    pub fn copy<T>(&self, from: &View<T>, to: &ViewMut<T>) -> Form {
        self.copy_slice(self.slice(from)?, self.slice(to)?)
    }

    /// As [`Kernels::copy`], of any memory.
    pub fn copy_slice(&self, from: Slice<'_>, to: Slice<'_>) -> Form {
        Ok(self.gpu.stream.copy(from, to).map_err(failed)?)
    }
}

impl Gpu {
    /// How products of matrices of `dtype` are computed; `None` where they are not.
    pub(super) fn precision(&self, dtype: DType) -> Option<Precision> {
        match dtype {
            DType::F32 if self.tf32.load(Ordering::Relaxed) => Some(Precision::TF32),
            DType::F32 => Some(Precision::F32),
            DType::BF16 => Some(Precision::BF16),
            DType::F16 => Some(Precision::F16),
            DType::I32 => None,
        }
    }

    /// From now on, whether products of f32 round their factors to TF32, which is many times as fast. Sums stay in f32.
    pub fn set_tf32(&self, tf32: bool) {
        self.tf32.store(tf32, Ordering::Relaxed);
    }
}

/// The product of two matrices as cuBLASLt takes it, see [`Kernels::multiply`].
pub(super) fn product<'l>(
    (precision, batch): (Option<Precision>, usize),
    [a, b]: [Matrix<'l>; 2],
    (d, out_dtype, store): (Slice<'l>, DType, Store),
    bias: Option<Slice<'l>>,
) -> Found<Product<'l>> {
    let precision = precision.ok_or(FormError::NoForm)?;
    let rows = if a.transposed { a.cols } else { a.rows };
    let cols = if b.transposed { b.rows } else { b.cols };
    let inner = if a.transposed { a.rows } else { a.cols };
    // A sum of nothing.
    if inner == 0 {
        return Err(FormError::NoForm);
    }
    let beta = if store == Store::Add { 1.0 } else { 0.0 };
    Ok(Product {
        precision,
        out: element(out_dtype),
        batch,
        alpha: 1.0,
        beta,
        a: a.operand(),
        b: b.operand(),
        c: None,
        d,
        d_layout: Layout::dense(rows, cols),
        bias,
    })
}

/// Memory of a form.
pub(crate) struct Temporary(Buffer);

impl Temporary {
    /// All of it.
    pub fn slice(&self) -> Found<Slice<'_>> {
        self.part(0, self.0.len_bytes())
    }

    /// Some bytes of it.
    pub fn part(&self, start: usize, bytes: usize) -> Found<Slice<'_>> {
        match self.0.span().owner {
            Owner::Cuda(block) => Ok(block.slice(start, bytes)?),
            _ => Err(FormError::NoForm),
        }
    }
}

/// A matrix of a product, or as many as there are in the batch.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'l> {
    memory: Slice<'l>,
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'l> Matrix<'l> {
    /// Rows without gaps.
    pub fn new(memory: Slice<'l>, rows: usize, cols: usize) -> Matrix<'l> {
        Matrix { memory, rows, cols, transposed: false }
    }

    /// Its transpose, where that is wanted.
    pub fn t_if(self, wanted: bool) -> Matrix<'l> {
        Matrix { transposed: self.transposed ^ wanted, ..self }
    }

    /// Its transpose.
    pub fn t(self) -> Matrix<'l> {
        self.t_if(true)
    }

    fn operand(self) -> Operand<'l> {
        let form = if self.transposed { blas::Form::Transposed } else { blas::Form::AsStored };
        Operand { memory: self.memory, layout: Layout::dense(self.rows, self.cols), form }
    }
}

fn slice_of(accesses: &[Access], access: usize) -> Result<Slice<'_>, Error> {
    let Access { place, bytes, .. } = &accesses[access];
    match place {
        Place::Device(block, start) => block.slice(*start, *bytes),
        Place::Host(mirror, start) => mirror.slice(*start, *bytes),
        Place::Scratch => Err(Error::Usage("scratch memory of a CPU kernel is not on the GPU".to_string())),
    }
}

/// What a launch has declared.
pub(crate) trait Declared<T> {
    /// Its number among the launch's declarations.
    fn access(&self) -> usize;
}

impl<T> Declared<T> for View<T> {
    fn access(&self) -> usize {
        self.number()
    }
}

impl<T> Declared<T> for ViewMut<T> {
    fn access(&self) -> usize {
        self.number()
    }
}

impl Declared<u8> for Stretch {
    fn access(&self) -> usize {
        self.number()
    }
}

/// A call of a kernel that is being put together, argument by argument in the order of the kernel's table.
pub(crate) struct Call<'l> {
    gpu: &'l Gpu,
    accesses: &'l [Access],
    launched: &'l Cell<bool>,
    function: Arc<Function>,
    args: Vec<Arg<'l>>,
    wrong: Option<FormError>,
}

impl<'l> Call<'l> {
    /// What the table says of the next parameter.
    fn element(&self) -> Element {
        let instance = self.function.instance();
        // One too many is refused by the launch.
        instance.kernel.params.get(self.args.len()).map_or(Element::U64, |param| instance.element(param))
    }

    /// Elements of a view.
    pub fn view<T>(mut self, view: &impl Declared<T>) -> Call<'l> {
        let element = self.element();
        if element.size() != size_of::<T>() {
            let (op, got) = (self.function.instance().name(), std::any::type_name::<T>());
            let error = Error::Usage(format!("{op}: a view of {got} for {element} elements"));
            self.wrong.get_or_insert(error.into());
        }
        match slice_of(self.accesses, view.access()) {
            Ok(slice) => self.args.push(Arg::memory(element, slice)),
            Err(error) => {
                self.wrong.get_or_insert(error.into());
            }
        }
        self
    }

    /// Elements of a view, or null.
    pub fn optional<T, V: Declared<T>>(self, view: Option<&V>) -> Call<'l> {
        match view {
            Some(view) => self.view(view),
            None => self.null(),
        }
    }

    /// The null pointer.
    pub fn null(mut self) -> Call<'l> {
        self.args.push(Arg::null(self.element()));
        self
    }

    /// A part of device memory.
    pub fn slice(mut self, slice: Slice<'l>) -> Call<'l> {
        self.args.push(Arg::memory(self.element(), slice));
        self
    }

    /// Whether it adds to what is there.
    pub fn added(self, store: Store) -> Call<'l> {
        self.u32(usize::from(store == Store::Add))
    }

    /// A number.
    pub fn f32(mut self, value: f32) -> Call<'l> {
        self.args.push(Arg::f32(value));
        self
    }

    /// Numbers.
    pub fn f32s(mut self, values: &[f32]) -> Call<'l> {
        self.args.extend(values.iter().copied().map(Arg::f32));
        self
    }

    /// A number.
    pub fn i32(mut self, value: usize) -> Call<'l> {
        match i32::try_from(value) {
            Ok(value) => self.args.push(Arg::i32(value)),
            Err(_) => self = self.too_large(),
        }
        self
    }

    /// A number that may be negative.
    pub fn signed(mut self, value: i32) -> Call<'l> {
        self.args.push(Arg::i32(value));
        self
    }

    /// A size.
    pub fn u32(mut self, value: usize) -> Call<'l> {
        match u32::try_from(value) {
            Ok(value) => self.args.push(Arg::u32(value)),
            Err(_) => self = self.too_large(),
        }
        self
    }

    /// The kernel is not for such sizes.
    fn too_large(mut self) -> Call<'l> {
        self.wrong.get_or_insert(FormError::NoForm);
        self
    }

    /// A number of elements.
    pub fn u64(mut self, value: usize) -> Call<'l> {
        self.args.push(Arg::u64(value as u64));
        self
    }

    /// A value of the kernel's dtype, rounded as the CPU's elements are.
    pub fn value(mut self, value: f64) -> Call<'l> {
        let arg = match self.element() {
            Element::BF16 => Arg::bf16(bf16::from_number(value).to_bits()),
            Element::F16 => Arg::f16(f16::from_number(value).to_bits()),
            Element::I32 => Arg::i32(i32::from_number(value)),
            _ => Arg::f32(f32::from_number(value)),
        };
        self.args.push(arg);
        self
    }

    /// Random numbers from the one of this place on.
    pub fn random(mut self, Stream { seed, stream }: Stream, first: u64) -> Call<'l> {
        self.args.extend([seed, stream, first].map(Arg::u64));
        self
    }

    /// An order of operands.
    pub fn walk(mut self, walk: &Walk) -> Call<'l> {
        self.args.push(Arg::walk(walk));
        self
    }

    /// Pieces of memory.
    pub fn pieces(mut self, pieces: &'l Pieces<'l>) -> Call<'l> {
        self.args.push(Arg::pieces(pieces));
        self
    }

    /// Launches it.
    pub fn run(self, geometry: Geometry) -> Form {
        if let Some(unable) = self.wrong {
            return Err(unable);
        }
        // SAFETY: the views are those that the CPU kernel of the same launch works on, with the numbers of elements that
        // the op has checked.
        match unsafe { self.gpu.stream.launch(&self.function, geometry, &self.args) } {
            Err(error @ oarlock_cuda::Error::TooLarge { .. }) => Err(FormError::TooLarge(error.to_string())),
            launched => {
                self.launched.set(true);
                Ok(launched.map_err(failed)?)
            }
        }
    }
}
