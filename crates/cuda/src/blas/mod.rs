//! Matrix products by cuBLASLt, or by the kernels of this crate where it is not there.
//!
//! Matrices lie row after row. cuBLASLt chooses an algorithm for each shape, once, among those that make do with the
//! workspace. Its bits can differ between versions of the library and kinds of GPUs, but not between two runs.

mod api;
mod own;
mod plan;
mod product;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use product::{Form, Layout, Operand, Precision, Product};

use crate::cache::Cache;
use crate::driver::{Context, DeviceMemory, Stream};
use crate::error::{Error, Result};
use crate::libraries::{Libraries, Library};
use crate::modules::Modules;
use api::{Api, Owned, call};
use own::Own;
use plan::{Key, Plan};
use product::Dims;

/// A workspace that is enough for the algorithms of all GPUs that cuBLAS has a recommendation for.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// The version of cuBLASLt in a file, such as `13.1.0`.
///
/// # Errors
/// [`Error::Unusable`].
pub fn version_of(file: &Path) -> Result<String> {
    Ok(Api::load(file)?.version())
}

/// Matrix products on one stream, whose order is also that of their workspace.
pub struct Blas {
    stream: Arc<Stream>,
    engine: Engine,
}

/// What computes them.
enum Engine {
    CublasLt(Box<CublasLt>),
    Own(Own),
}

struct CublasLt {
    workspace: DeviceMemory,
    /// The library's handle, and what was chosen for shapes before. Ends before the functions do.
    state: Mutex<State>,
    api: Api,
}

struct State {
    plans: HashMap<Key, Plan>,
    handle: Owned,
}

impl Blas {
    /// Loads libcublasLt where these libraries are, for products on a stream. Where it is not, the kernels of this crate
    /// compute, and need no workspace; they are compiled at the first product, or are in the cache of the environment.
    ///
    /// # Errors
    /// [`Error::Unusable`], or the library's or the driver's own.
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

    fn or_else(
        stream: &Arc<Stream>,
        libraries: &Libraries,
        workspace_bytes: usize,
        modules: impl FnOnce() -> Result<Arc<Modules>>,
    ) -> Result<Blas> {
        let engine = match libraries.load(Library::CublasLt, Api::load) {
            Ok(api) => Engine::CublasLt(Box::new(CublasLt::new(stream, api, workspace_bytes)?)),
            Err(Error::NoLibrary { .. }) => Engine::Own(Own::new(modules()?)),
            Err(error) => return Err(error),
        };
        Ok(Blas { stream: stream.clone(), engine })
    }

    /// The stream that products run on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// What computes the products, and where that is not cuBLASLt, how to get it.
    pub fn describe(&self) -> String {
        match &self.engine {
            Engine::CublasLt(lt) => format!("cuBLASLt {}", lt.api.version()),
            Engine::Own(_) => {
                format!("own kernels: libcublasLt was not found; {}", Library::CublasLt.command())
            }
        }
    }

    /// The version of cuBLASLt, such as `13.1.0`; none where it is not there.
    pub fn version(&self) -> Option<String> {
        match &self.engine {
            Engine::CublasLt(lt) => Some(lt.api.version()),
            Engine::Own(_) => None,
        }
    }

    /// For how many shapes cuBLASLt chose an algorithm.
    pub fn n_plans(&self) -> usize {
        match &self.engine {
            Engine::CublasLt(lt) => lt.state.lock().unwrap_or_else(PoisonError::into_inner).plans.len(),
            Engine::Own(_) => 0,
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
            Engine::Own(own) => own.multiply(&self.stream, product, dims),
        }
    }
}

impl CublasLt {
    fn new(stream: &Stream, api: Api, workspace_bytes: usize) -> Result<CublasLt> {
        let workspace = stream.context().alloc(workspace_bytes)?;
        stream.context().enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call, and a context is current.
        api.check(unsafe { call!(api, create(&mut handle)) })?;
        let handle = Owned::new(handle, &api.destroy);
        Ok(CublasLt { workspace, state: Mutex::new(State { plans: HashMap::new(), handle }), api })
    }

    fn multiply(&self, stream: &Stream, product: &Product<'_>, dims: Dims) -> Result<()> {
        stream.context().enter()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, handle) = (Key::new(product, dims), state.handle.handle);
        let workspace = (self.workspace.address(), self.workspace.bytes());
        if !state.plans.contains_key(&key) {
            let plan = Plan::new(&self.api, handle, product, &key, workspace.1)?;
            state.plans.insert(key.clone(), plan);
        }
        // Just looked up or put in.
        let Some(plan) = state.plans.get(&key) else { return Ok(()) };
        plan.run(&self.api, handle, product, workspace, stream.handle())
    }
}

fn expect(context: &Context, product: &Product<'_>) -> Result<()> {
    let operands = [Some(product.a.memory), Some(product.b.memory), Some(product.d), product.c, product.bias];
    operands.into_iter().flatten().try_for_each(|memory| context.expect_same(memory.context(), "the memory"))
}
