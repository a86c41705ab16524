//! Matrix products by cuBLASLt, or by the kernels of this crate where it is not there.
//!
//! Matrices lie row after row. cuBLASLt chooses an algorithm for each shape, once, among those that make do with the
//! workspace, unless a table has one that was measured ([`Tuned`]). Its bits can differ between versions of the library and kinds of GPUs, but not between two runs.

mod algorithm;
mod api;
mod own;
mod plan;
mod product;
mod tune;
mod tuned;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use algorithm::Algorithm;
pub use product::{Form, Layout, Operand, Precision, Product};
pub use tuned::{Shape, Tuned};

use crate::cache::Cache;
use crate::driver::{Context, DeviceMemory, Stream};
use crate::error::{Error, Result};
use crate::libraries::{Cuda, Libraries, Library, expect_usable};
use crate::modules::Modules;
use api::{Api, INVALID_VALUE, NOT_SUPPORTED, Owned, call};
use own::Own;
use plan::{Key, Origin, Plan};
use product::Dims;

/// A workspace that is enough for the algorithms of all GPUs that cuBLAS has a recommendation for.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// The version of cuBLASLt in a file, such as `13.1.0`, for a driver that supports this version of CUDA.
///
/// # Errors
/// [`Error::Unusable`], [`Error::TooNew`].
pub fn version_of(file: &Path, cuda: Option<Cuda>) -> Result<String> {
    let api = Api::load(file)?;
    expect_usable(Library::CublasLt, file, api.cuda(), cuda)?;
    Ok(api.version())
}

/// Matrix products on one stream, whose order is also that of their workspace.
pub struct Blas {
    stream: Arc<Stream>,
    engine: Engine,
}

/// What computes them.
enum Engine {
    CublasLt(Box<CublasLt>),
    /// And why not cuBLASLt, unless the caller wants it so.
    Own(Own, Option<String>),
}

struct CublasLt {
    workspace: DeviceMemory,
    /// The library's handle, and what was chosen for shapes before. Ends before the functions do.
    state: Mutex<State>,
    api: Api,
}

struct State {
    tuned: Tuned,
    plans: HashMap<Key, Plan>,
    handle: Owned,
}

impl Blas {
    /// Loads libcublasLt where these libraries are, for products on a stream. Where there is none that the driver can use, the
    /// kernels of this crate compute, and need no workspace; they are compiled at the first product, or are in the cache of the
    /// environment.
    ///
    /// # Errors
    /// The driver's own.
    pub fn new(stream: &Arc<Stream>, libraries: &Libraries, workspace_bytes: usize) -> Result<Blas> {
        let modules = || Modules::new(stream.context(), libraries, Cache::from_environment()).map(Arc::new);
        Blas::or_else(stream, libraries, workspace_bytes, modules)
    }

    /// The same with modules that have the kernels.
    ///
    /// # Errors
    /// As [`Blas::new`], and [`Error::OtherContext`] if the modules are those of another one.
    pub fn with_modules(
        stream: &Arc<Stream>,
        libraries: &Libraries,
        workspace_bytes: usize,
        modules: &Arc<Modules>,
    ) -> Result<Blas> {
        stream.context().expect_same(modules.context(), "a module")?;
        Blas::or_else(stream, libraries, workspace_bytes, || Ok(modules.clone()))
    }

    /// By the kernels of this crate, whether cuBLASLt is there or not.
    ///
    /// # Errors
    /// [`Error::OtherContext`] if the modules are those of another one.
    pub fn own(stream: &Arc<Stream>, modules: &Arc<Modules>) -> Result<Blas> {
        stream.context().expect_same(modules.context(), "a module")?;
        Ok(Blas { stream: stream.clone(), engine: Engine::Own(Own::new(modules.clone()), None) })
    }

    fn or_else(
        stream: &Arc<Stream>,
        libraries: &Libraries,
        workspace_bytes: usize,
        modules: impl FnOnce() -> Result<Arc<Modules>>,
    ) -> Result<Blas> {
        // The library makes its handle in the current context. What the driver has to say about that is no fault of a library.
        stream.context().enter()?;
        let cuda = stream.context().device().cuda_version()?;
        let engine = match libraries.load(Library::CublasLt, Some(cuda), |file| load(file, cuda)) {
            Ok((api, handle)) => {
                let tuned = Tuned::of(stream.context().device())?;
                let workspace = stream.context().alloc(workspace_bytes)?;
                let state = Mutex::new(State { tuned, plans: HashMap::new(), handle });
                Engine::CublasLt(Box::new(CublasLt { workspace, state, api }))
            }
            Err(error) => {
                let why = match error {
                    Error::NoLibrary { library, .. } => {
                        format!("{} was not found; {}", library.name(), library.command(Some(cuda)))
                    }
                    error => error.to_string(),
                };
                Engine::Own(Own::new(modules()?), Some(why))
            }
        };
        Ok(Blas { stream: stream.clone(), engine })
    }

    /// The stream that products run on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// From now on, algorithms are those of this table.
    pub fn tune(&self, tuned: Tuned) {
        if let Engine::CublasLt(lt) = &self.engine {
            let mut state = lt.state();
            state.plans.clear();
            state.tuned = tuned;
        }
    }

    /// What computes the products, and where that is not cuBLASLt, how to get it. With a table, how many of its algorithms
    /// are used, and how many this version of cuBLASLt does not have.
    pub fn describe(&self) -> String {
        match &self.engine {
            Engine::CublasLt(lt) => {
                let (state, version) = (lt.state(), lt.api.version());
                let count = |origin| state.plans.values().filter(|plan| plan.origin == origin).count();
                match (count(Origin::Table), count(Origin::Instead)) {
                    (0, 0) => format!("cuBLASLt {version}"),
                    (n, 0) => format!("cuBLASLt {version}, {n} shapes by measured algorithms"),
                    (n, lost) => format!(
                        "cuBLASLt {version}, {n} shapes by measured algorithms and {lost} by others, since it refuses those"
                    ),
                }
            }
            Engine::Own(_, Some(why)) => format!("own kernels: {why}"),
            Engine::Own(_, None) => "own kernels".to_owned(),
        }
    }

    /// The products that were computed so far whose algorithm a table may have.
    pub fn shapes(&self) -> Vec<Shape> {
        let Engine::CublasLt(lt) = &self.engine else { return Vec::new() };
        let mut shapes: Vec<Shape> = lt.state().plans.keys().filter_map(Shape::of).collect();
        shapes.sort_by_key(Shape::to_string);
        shapes.dedup();
        shapes
    }

    /// The version of cuBLASLt, such as `13.1.0`; none where it is not there.
    pub fn version(&self) -> Option<String> {
        match &self.engine {
            Engine::CublasLt(lt) => Some(lt.api.version()),
            Engine::Own(..) => None,
        }
    }

    /// For how many shapes cuBLASLt chose an algorithm.
    pub fn n_plans(&self) -> usize {
        match &self.engine {
            Engine::CublasLt(lt) => lt.state().plans.len(),
            Engine::Own(..) => 0,
        }
    }

    /// Computes a product later, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Product`] if it has no meaning, [`Error::OtherContext`], [`Error::NoAlgorithm`], or those of the library or
    /// of the modules.
    pub fn multiply(&self, product: &Product<'_>) -> Result<()> {
        expect(self.stream.context(), product)?;
        let dims = product.check()?;
        if dims.m == 0 {
            return Ok(());
        }
        match &self.engine {
            Engine::CublasLt(lt) => lt.multiply(&self.stream, product, dims),
            Engine::Own(own, _) => own.multiply(&self.stream, product, dims),
        }
    }
}

/// A library for a driver that supports this version of CUDA, and its handle in the current context.
fn load(file: &Path, cuda: Cuda) -> Result<(Api, Owned)> {
    let api = Api::load(file)?;
    expect_usable(Library::CublasLt, file, api.cuda(), Some(cuda))?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: the pointer is valid for the call, and a context is current.
    api.check(unsafe { call!(api, create(&mut handle)) })?;
    let handle = Owned::new(handle, &api.destroy);
    Ok((api, handle))
}

impl CublasLt {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn multiply(&self, stream: &Stream, product: &Product<'_>, dims: Dims) -> Result<()> {
        stream.context().enter()?;
        stream.context().count_launch();
        let mut state = self.state();
        let State { tuned, plans, handle } = &mut *state;
        let (key, handle) = (Key::new(product, dims), handle.handle);
        let workspace = (self.workspace.address(), self.workspace.bytes());
        let make = |key: &Key, tuned| Plan::new(&self.api, handle, product, key, workspace.1, tuned);
        let mut entry = match plans.entry(key) {
            Entry::Occupied(known) => known,
            Entry::Vacant(unknown) => {
                let algorithm = Shape::of(unknown.key()).and_then(|shape| tuned.get(&shape));
                let plan = make(unknown.key(), algorithm)?;
                unknown.insert_entry(plan)
            }
        };
        let plan = entry.get_mut();
        let mut called = plan.run(&self.api, handle, product, workspace, stream.handle())?;
        if plan.origin == Origin::Table && [NOT_SUPPORTED, INVALID_VALUE].contains(&called.1) {
            // What was accepted for the shape may still need memory of another kind.
            let mut other = make(entry.key(), None)?;
            other.origin = Origin::Instead;
            *entry.get_mut() = other;
            called = entry.get_mut().run(&self.api, handle, product, workspace, stream.handle())?;
        }
        self.api.check(called)
    }
}

fn expect(context: &Context, product: &Product<'_>) -> Result<()> {
    let operands = [Some(product.a.memory), Some(product.b.memory), Some(product.d), product.c, product.bias];
    operands.into_iter().flatten().try_for_each(|memory| context.expect_same(memory.context(), "the memory"))
}
