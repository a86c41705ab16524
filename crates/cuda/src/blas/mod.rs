//! Matrix products by cuBLASLt, or by the kernels of this crate where it is not there, or has no algorithm for one on this GPU.
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
use api::{Api, INVALID_VALUE, Owned, call};
use own::Own;
use plan::{Key, LACKS, Origin, Plan};
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
    /// For what the library cannot.
    own: Own,
    workspace: DeviceMemory,
    /// The library's handle, and what was chosen for shapes before. Ends before the functions do.
    state: Mutex<State>,
    api: Api,
}

struct State {
    tuned: Tuned,
    plans: HashMap<Key, Way>,
    handle: Owned,
}

/// How the products of a shape are computed.
enum Way {
    Library(Plan),
    /// By the own kernels, and why.
    Own(Error),
}

impl Way {
    fn why_own(&self) -> Option<String> {
        match self {
            Way::Own(why) => Some(why.to_string()),
            Way::Library(_) => None,
        }
    }

    fn is_of_table(&self) -> bool {
        matches!(self, Way::Library(plan) if plan.origin == Origin::Table)
    }
}

impl Blas {
    /// Loads libcublasLt where these libraries are, for products on a stream. Where there is none that the driver can use, the
    /// kernels of this crate compute, and need no workspace; they are compiled at the first product, or are in the cache of the
    /// environment. They also compute what the library has no algorithm for on this GPU.
    ///
    /// # Errors
    /// [`Error::OldDevice`], or the driver's own.
    pub fn new(stream: &Arc<Stream>, libraries: &Libraries, workspace_bytes: usize) -> Result<Blas> {
        let modules = Modules::new(stream.context(), libraries, Cache::from_environment())?;
        Blas::with_modules(stream, libraries, workspace_bytes, &Arc::new(modules))
    }

    /// By the kernels of this crate, whether cuBLASLt is there or not.
    ///
    /// # Errors
    /// [`Error::OtherContext`] if the modules are those of another one.
    pub fn own(stream: &Arc<Stream>, modules: &Arc<Modules>) -> Result<Blas> {
        stream.context().expect_same(modules.context(), "a module")?;
        Ok(Blas { stream: stream.clone(), engine: Engine::Own(Own::new(modules.clone()), None) })
    }

    /// The same with modules that have the kernels.
    ///
    /// # Errors
    /// The driver's own, and [`Error::OtherContext`] if the modules are those of another one.
    pub fn with_modules(
        stream: &Arc<Stream>,
        libraries: &Libraries,
        workspace_bytes: usize,
        modules: &Arc<Modules>,
    ) -> Result<Blas> {
        stream.context().expect_same(modules.context(), "a module")?;
        let own = Own::new(modules.clone());
        // The library makes its handle in the current context. What the driver has to say about that is no fault of a library.
        stream.context().enter()?;
        let cuda = stream.context().device().cuda_version()?;
        let engine = match libraries.load(Library::CublasLt, Some(cuda), |file| load(file, cuda)) {
            Ok((api, handle)) => {
                let tuned = Tuned::of(stream.context().device())?;
                let workspace = stream.context().alloc(workspace_bytes)?;
                let state = Mutex::new(State { tuned, plans: HashMap::new(), handle });
                Engine::CublasLt(Box::new(CublasLt { own, workspace, state, api }))
            }
            Err(error) => {
                let why = match error {
                    Error::NoLibrary { library, .. } => {
                        format!("{} was not found; {}", library.name(), library.command(Some(cuda)))
                    }
                    error => error.to_string(),
                };
                Engine::Own(own, Some(why))
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
                let count = |origin| {
                    let of = |way: &&Way| matches!(way, Way::Library(plan) if plan.origin == origin);
                    state.plans.values().filter(of).count()
                };
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

    /// What cuBLASLt has no algorithm for on this GPU so far, so that the own kernels compute it: how many shapes, and why.
    pub fn lacks(&self) -> Option<String> {
        let Engine::CublasLt(lt) = &self.engine else { return None };
        let state = lt.state();
        let lacks: Vec<String> = state.plans.values().filter_map(Way::why_own).collect();
        let why = lacks.iter().min()?;
        Some(format!("{} shapes by own kernels: {why}", lacks.len()))
    }

    /// The products that cuBLASLt has computed so far whose algorithm a table may have.
    pub fn shapes(&self) -> Vec<Shape> {
        let Engine::CublasLt(lt) = &self.engine else { return Vec::new() };
        let state = lt.state();
        let by_library = state.plans.iter().filter(|(_, way)| matches!(way, Way::Library(_)));
        let mut shapes: Vec<Shape> = by_library.filter_map(|(key, _)| Shape::of(key)).collect();
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
            Engine::CublasLt(lt) => {
                lt.state().plans.values().filter(|way| matches!(way, Way::Library(_))).count()
            }
            Engine::Own(..) => 0,
        }
    }

    /// Computes a product later, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Product`] if it has no meaning, [`Error::OtherContext`], or those of the library or of the modules.
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
        let mut state = self.state();
        let State { tuned, plans, handle } = &mut *state;
        let (key, handle) = (Key::new(product, dims), handle.handle);
        let workspace = (self.workspace.address(), self.workspace.bytes());
        let make = |key: &Key, tuned| match Plan::new(&self.api, handle, product, key, workspace.1, tuned) {
            Ok(plan) => Ok(Way::Library(plan)),
            Err(why @ Error::NoAlgorithm { .. }) => Ok(Way::Own(why)),
            Err(error) => Err(error),
        };
        let mut entry = match plans.entry(key) {
            Entry::Occupied(known) => known,
            Entry::Vacant(unknown) => {
                let algorithm = Shape::of(unknown.key()).and_then(|shape| tuned.get(&shape));
                let way = make(unknown.key(), algorithm)?;
                unknown.insert_entry(way)
            }
        };
        while let Way::Library(plan) = entry.get() {
            let called = plan.run(&self.api, handle, product, workspace, stream.handle())?;
            let (lacks, from_table) = (LACKS.contains(&called.1), plan.origin == Origin::Table);
            if !(lacks || from_table && called.1 == INVALID_VALUE) {
                stream.context().count_launch();
                return self.api.check(called);
            }
            // What was accepted for the shape may still need memory of another kind, or a kernel that is not there.
            let instead = if from_table {
                let mut way = make(entry.key(), None)?;
                if let Way::Library(other) = &mut way {
                    other.origin = Origin::Instead;
                }
                way
            } else {
                Way::Own(plan::none(&self.api, product, workspace.1))
            };
            entry.insert(instead);
        }
        drop(state);
        self.own.multiply(stream, product, dims)
    }
}

fn expect(context: &Context, product: &Product<'_>) -> Result<()> {
    let operands = [Some(product.a.memory), Some(product.b.memory), Some(product.d), product.c, product.bias];
    operands.into_iter().flatten().try_for_each(|memory| context.expect_same(memory.context(), "the memory"))
}
