//! Runs kernels in the emulator, as a GPU runs them: buffers, launches, and both rings with equal bits.

mod library;

use std::cell::Cell;
use std::fmt::Debug;

use half::{bf16, f16};
use oarlock_cuda::geometry::Geometry;
use oarlock_cuda::{Access, Element, Instance, Pieces, Walk, table};

use library::Memory;
pub use library::{FAKES, Library, emulated_units, fakes};
pub use oarlock_fakes::{Changed, Sanitizer};

use crate::numbers::Plain;

/// A way to run kernels.
#[derive(Clone, Copy)]
pub struct Gpu<'a> {
    library: &'a Library,
    n_workers: u32,
    order: u32,
}

/// Device memory that holds elements of one type.
pub struct Buffer<T> {
    memory: Memory,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// What it holds now.
    pub fn read(&self) -> Vec<T> {
        // SAFETY: the memory holds `len` elements, which are plain numbers, and no kernel runs now.
        unsafe { std::slice::from_raw_parts(self.memory.data().cast::<T>(), self.len) }.to_vec()
    }

    /// Where it is on the GPU.
    pub fn address(&self) -> u64 {
        self.memory.data() as u64
    }

    /// As an argument.
    pub fn arg(&self) -> Arg {
        Arg { element: T::ELEMENT, words: vec![self.memory.data() as u64], pointer: true }
    }
}

/// An argument of a launch.
#[derive(Clone)]
pub struct Arg {
    element: Element,
    words: Vec<u64>,
    pointer: bool,
}

impl Arg {
    /// The type of what it is or points to.
    pub fn element(&self) -> Element {
        self.element
    }
}

/// Numbers and buffers as arguments.
macro_rules! args {
    ($($x:expr),* $(,)?) => { &[$($crate::emulator::IntoArg::arg(&$x)),*] };
}
pub(crate) use args;

/// What can be an argument.
pub trait IntoArg {
    fn arg(&self) -> Arg;
}

impl<T: Plain> IntoArg for Buffer<T> {
    fn arg(&self) -> Arg {
        Buffer::arg(self)
    }
}

impl<T: IntoArg> IntoArg for &T {
    fn arg(&self) -> Arg {
        (**self).arg()
    }
}

/// An optional pointer.
impl<T: Plain> IntoArg for Option<&Buffer<T>> {
    fn arg(&self) -> Arg {
        self.map_or(Arg { element: T::ELEMENT, words: vec![0], pointer: true }, Buffer::arg)
    }
}

impl IntoArg for Walk {
    fn arg(&self) -> Arg {
        let bytes = self.bytes();
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        };
        Arg { element: Element::Walk, words: bytes.chunks(8).map(word).collect(), pointer: false }
    }
}

impl IntoArg for Pieces<'_> {
    fn arg(&self) -> Arg {
        Arg { element: Element::Pieces, words: self.words().to_vec(), pointer: false }
    }
}

macro_rules! numbers {
    ($($t:ty),+) => {
        $(impl IntoArg for $t {
            fn arg(&self) -> Arg {
                let mut word = [0; 8];
                word[..size_of::<$t>()].copy_from_slice(&self.to_ne_bytes());
                Arg { element: <$t>::ELEMENT, words: vec![u64::from_ne_bytes(word)], pointer: false }
            }
        })+
    };
}
numbers!(f32, f64, bf16, f16, i32, u32, u64);

impl Gpu<'_> {
    /// Memory with these elements.
    pub fn buffer<T: Plain>(&self, elements: &[T]) -> Buffer<T> {
        let memory = self.library.memory(size_of_val(elements));
        // SAFETY: the memory is new, and as long as the elements.
        unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr(), memory.data().cast(), elements.len()) };
        Buffer { memory, len: elements.len(), element: std::marker::PhantomData }
    }

    /// Memory in which nothing was written yet: every float is NaN.
    pub fn fresh<T: Plain>(&self, len: usize) -> Buffer<T> {
        let memory = self.library.memory(len * size_of::<T>());
        Buffer { memory, len, element: std::marker::PhantomData }
    }

    /// The tiles of scores that the last launch computed, and those whose masks it looked at.
    pub fn tiles(&self) -> [u64; 2] {
        self.library.tiles()
    }

    /// Runs the instance of an op for these dtypes.
    #[track_caller]
    pub fn run(&self, op: &str, dtypes: &[Element], geometry: Geometry, args: &[Arg]) {
        let kernel = table::find(op).unwrap_or_else(|| panic!("the table has no {op}"));
        let instance = kernel.instance(dtypes, None);
        self.launch(&instance.unwrap_or_else(|| panic!("no {op} for {dtypes:?}")), geometry, args);
    }

    /// Runs an instance.
    #[track_caller]
    pub fn launch(&self, instance: &Instance, geometry: Geometry, args: &[Arg]) {
        let (name, params) = (instance.name(), instance.kernel.params);
        assert_eq!(args.len(), params.len(), "{name}: number of arguments");
        for (arg, param) in args.iter().zip(params) {
            let is_pointer = param.access != Access::Value;
            let fits = arg.element == instance.element(param) && arg.pointer == is_pointer;
            assert!(fits, "{name}: {} is {:?} in the table, not {:?}", param.name, param.of, arg.element);
        }
        let args: Vec<&[u64]> = args.iter().map(|arg| &arg.words[..]).collect();
        assert_eq!(geometry.threads, instance.threads(), "{name}: threads of a block");
        if let Err(error) = self.library.launch(&name, geometry, &args, self.n_workers, self.order) {
            panic!("{error}");
        }
    }
}

/// Runs `work` in one order alone, for what no order changes.
pub fn in_one_order<R>(library: &Library, work: impl FnOnce(Gpu) -> R) -> R {
    work(Gpu { library, n_workers: 1, order: 0 })
}

thread_local! {
    /// Whether one order is enough for the tests of this thread.
    static ONE_ORDER: Cell<bool> = const { Cell::new(false) };
}

/// What `tests` gives where one order is enough.
pub fn with_one_order<R>(tests: impl FnOnce() -> R) -> R {
    ONE_ORDER.set(true);
    let result = tests();
    ONE_ORDER.set(false);
    result
}

/// Runs `work` with every order of threads and blocks, and returns its result, which must be bitwise identical in all.
/// None where there is no C++ compiler.
#[track_caller]
pub fn in_every_order<R: PartialEq + Debug>(library: &Library, work: impl Fn(Gpu) -> R) -> R {
    let first = in_one_order(library, &work);
    // A sanitizer finds a race in any order, and takes its time for each.
    if crate::sanitizers::is_inner() || ONE_ORDER.get() {
        return first;
    }
    for (n_workers, order) in [(1, 1), (2, 2), (1, 3)] {
        let other = work(Gpu { library, n_workers, order });
        if other != first {
            // NaN differs from itself.
            let says_nan = [&first, &other].iter().any(|result| format!("{result:?}").contains("NaN"));
            assert!(!says_nan, "there is NaN in the results");
            panic!("another order of threads gives other bits (order {order})");
        }
    }
    first
}

/// Runs a test on all kernels as they are; says so and does nothing where there is no C++ compiler.
#[track_caller]
pub fn on_emulator(test: impl FnOnce(&Library)) {
    if let Some(library) = Library::of_all_kernels() {
        test(library);
    }
}
