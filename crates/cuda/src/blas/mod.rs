//! Matrix products by cuBLASLt.
//!
//! Matrices lie row after row. cuBLASLt chooses an algorithm for each shape, once, among those that make do with the
//! workspace. Its bits can differ between versions of the library and kinds of GPUs, but not between two runs.

mod api;
mod plan;
mod product;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use product::{Form, Layout, Operand, Precision, Product};

use crate::driver::{Context, DeviceMemory, Stream};
use crate::error::Result;
use crate::libraries::{Libraries, Library};
use api::{Api, Owned};
use plan::{Key, Plan};

/// A workspace that is enough for the algorithms of all GPUs that cuBLAS has a recommendation for.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// Matrix products on one stream, whose order is also that of their workspace.
pub struct Blas {
    stream: Arc<Stream>,
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
    /// Loads libcublasLt where these libraries are, for products on a stream.
    ///
    /// # Errors
    /// [`Error::NoLibrary`](crate::Error::NoLibrary), [`Error::Unusable`](crate::Error::Unusable), or the library's own.
    pub fn new(stream: &Arc<Stream>, libraries: &Libraries, workspace_bytes: usize) -> Result<Blas> {
        let api = libraries.load(Library::CublasLt, Api::load)?;
        let workspace = stream.context().alloc(workspace_bytes)?;
        stream.context().enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call, and a context is current.
        api.check("cublasLtCreate", unsafe { (api.create)(&mut handle) })?;
        let handle = Owned::new(handle, api.destroy);
        let state = Mutex::new(State { plans: HashMap::new(), handle });
        Ok(Blas { stream: stream.clone(), workspace, state, api })
    }

    /// The stream that products run on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The version of cuBLASLt, such as `13.1.0`.
    pub fn version(&self) -> String {
        self.api.version()
    }

    /// For how many shapes an algorithm was chosen.
    pub fn n_plans(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).plans.len()
    }

    /// Computes a product later, in the order of the stream.
    ///
    /// # Errors
    /// [`Error::Product`](crate::Error::Product) if it has no meaning, [`Error::OtherContext`](crate::Error::OtherContext),
    /// [`Error::NoAlgorithm`](crate::Error::NoAlgorithm), or the library's own.
    pub fn multiply(&self, product: &Product<'_>) -> Result<()> {
        let context = self.stream.context();
        expect(context, product)?;
        let dims = product.check()?;
        if dims.m == 0 {
            return Ok(());
        }
        context.enter()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, handle) = (Key::new(product, dims), state.handle.handle);
        let workspace = (self.workspace.address(), self.workspace.bytes());
        if !state.plans.contains_key(&key) {
            let plan = Plan::new(&self.api, handle, product, &key, workspace.1)?;
            state.plans.insert(key.clone(), plan);
        }
        // Just looked up or put in.
        let Some(plan) = state.plans.get(&key) else { return Ok(()) };
        plan.run(&self.api, handle, product, workspace, self.stream.handle())
    }
}

fn expect(context: &Context, product: &Product<'_>) -> Result<()> {
    let operands = [Some(product.a.memory), Some(product.b.memory), Some(product.d), product.c, product.bias];
    operands.into_iter().flatten().try_for_each(|memory| context.expect_same(memory.context(), "the memory"))
}
