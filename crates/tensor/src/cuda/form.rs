//! The own form of an op on a GPU: launches of kernels and matrix products, put together from the views that the op's
//! launch has declared.
//!
//! ```ignore
//! launch.cuda(|gpu| gpu.kernel("cast", &[F32, BF16])?.read(x).write(&y).u64(n).run(geometry::elements(n)))?;
//! ```

use std::sync::Arc;

use oarlock_cuda::blas::Product;
use oarlock_cuda::driver::{Arg, Function, Slice};
use oarlock_cuda::geometry::Geometry;
use oarlock_cuda::{Element, Walk, table};
use oarlock_kernels::{DType, Error};

use super::{Access, Gpu, Place, failed};
use crate::launch::{View, ViewMut};

/// What a form returns: whether the op runs on the GPU.
pub(crate) type Form = Result<(), Unable>;

/// Why an op did not run in its own form.
#[derive(Debug)]
pub(crate) enum Unable {
    /// There is none for these elements: the launch is staged.
    NoForm,
    /// It was met by an error.
    Failed(Error),
}

impl From<Error> for Unable {
    fn from(error: Error) -> Unable {
        Unable::Failed(error)
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
pub(crate) struct Kernels<'l> {
    gpu: &'l Gpu,
    accesses: &'l [Access],
}

impl<'l> Kernels<'l> {
    pub(super) fn new(gpu: &'l Gpu, accesses: &'l [Access]) -> Kernels<'l> {
        Kernels { gpu, accesses }
    }

    /// A call of the kernel of this op for these dtypes, in the order of its name.
    ///
    /// # Errors
    /// [`Unable::NoForm`] if there is none.
    pub fn kernel(&self, op: &str, dtypes: &[DType]) -> Result<Call<'l>, Unable> {
        self.kernel_of(op, dtypes, None)
    }

    /// As [`Kernels::kernel`], for heads of this many elements.
    pub fn kernel_of(&self, op: &str, dtypes: &[DType], head_dim: Option<u32>) -> Result<Call<'l>, Unable> {
        let elements: Vec<Element> = dtypes.iter().copied().map(element).collect();
        let instance = table::find(op).and_then(|kernel| kernel.instance(&elements, head_dim));
        let function = self.gpu.modules.function(&instance.ok_or(Unable::NoForm)?).map_err(failed)?;
        Ok(Call { gpu: self.gpu, accesses: self.accesses, function, args: Vec::new(), wrong: None })
    }

    /// The memory of a view.
    pub fn slice<T>(&self, view: &impl Declared<T>) -> Result<Slice<'l>, Unable> {
        Ok(slice_of(self.accesses, view.access())?)
    }

    /// Memory of the pool that this launch alone uses, from the byte on at which the op's scratch begins.
    pub fn multiply(&self, product: &Product<'_>) -> Form {
        Ok(self.gpu.blas.multiply(product).map_err(failed)?)
    }

    /// Writes the same byte everywhere.
    pub fn fill<T>(&self, view: &ViewMut<T>, value: u8) -> Form {
        Ok(self.gpu.stream.fill(self.slice(view)?, value).map_err(failed)?)
    }

    /// Copies one stretch of memory to another.
    pub fn copy<T>(&self, from: &View<T>, to: &ViewMut<T>) -> Form {
        Ok(self.gpu.stream.copy(self.slice(from)?, self.slice(to)?).map_err(failed)?)
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

/// A call of a kernel that is being put together, argument by argument in the order of the kernel's table.
pub(crate) struct Call<'l> {
    gpu: &'l Gpu,
    accesses: &'l [Access],
    function: Arc<Function>,
    args: Vec<Arg<'l>>,
    wrong: Option<Error>,
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
            self.wrong.get_or_insert(Error::Usage(format!("{op}: a view of {got} for {element} elements")));
        }
        match slice_of(self.accesses, view.access()) {
            Ok(slice) => self.args.push(Arg::memory(element, slice)),
            Err(error) => {
                self.wrong.get_or_insert(error);
            }
        }
        self
    }

    /// Elements of a view, or null.
    pub fn optional<T, V: Declared<T>>(mut self, view: Option<&V>) -> Call<'l> {
        match view {
            Some(view) => self.view(view),
            None => {
                self.args.push(Arg::null(self.element()));
                self
            }
        }
    }

    /// A part of device memory.
    pub fn slice(mut self, slice: Slice<'l>) -> Call<'l> {
        self.args.push(Arg::memory(self.element(), slice));
        self
    }

    /// A number.
    pub fn f32(mut self, value: f32) -> Call<'l> {
        self.args.push(Arg::f32(value));
        self
    }

    /// A number.
    pub fn i32(mut self, value: i32) -> Call<'l> {
        self.args.push(Arg::i32(value));
        self
    }

    /// A size.
    pub fn u32(mut self, value: usize) -> Call<'l> {
        match u32::try_from(value) {
            Ok(value) => self.args.push(Arg::u32(value)),
            Err(_) => {
                let op = self.function.instance().name();
                self.wrong
                    .get_or_insert(Error::Usage(format!("{op}: {value} elements of a dim are too many")));
            }
        }
        self
    }

    /// A number of elements.
    pub fn u64(mut self, value: usize) -> Call<'l> {
        self.args.push(Arg::u64(value as u64));
        self
    }

    /// A value of the kernel's dtype.
    pub fn value(mut self, value: f32) -> Call<'l> {
        let arg = match self.element() {
            Element::BF16 => Arg::bf16(oarlock_kernels::bf16::from_f32(value).to_bits()),
            Element::F16 => Arg::f16(oarlock_kernels::f16::from_f32(value).to_bits()),
            Element::I32 => Arg::i32(value as i32),
            _ => Arg::f32(value),
        };
        self.args.push(arg);
        self
    }

    /// An order of operands.
    pub fn walk(mut self, walk: &Walk) -> Call<'l> {
        self.args.push(Arg::walk(walk));
        self
    }

    /// Launches it.
    pub fn run(self, geometry: Geometry) -> Form {
        if let Some(error) = self.wrong {
            return Err(error.into());
        }
        // SAFETY: the views are those that the CPU kernel of the same launch works on, with the numbers of elements that
        // the op has checked.
        Ok(unsafe { self.gpu.stream.launch(&self.function, geometry, &self.args) }.map_err(failed)?)
    }
}
