//! Attention by cuDNN, as an alternative to the kernels of this crate.
//!
//! cuDNN is given a graph of operations and plans how to compute it, once for each shape. Only plans that give bitwise
//! identical results every time are taken, and only those that make do with the workspace that the caller allows.

mod api;
mod attention;
mod choice;
mod descriptor;
mod graph;
mod plan;
mod runner;

use std::sync::Arc;

pub use attention::{Pass, is_supported};
pub use choice::{Choice, VARIABLE, attention_choice, wanted};
pub use runner::{Backward, CudnnAttention, Forward};

use crate::attention::AttentionShape;
use crate::element::Element;
use crate::error::Result;
use crate::libraries::{Cuda, Libraries, Library, expect_usable};
use api::Api;
use graph::Graph;
use plan::{Plan, Target};

/// The most that a pass may use besides its operands: the deterministic backward pass has all scores in 16 bits.
pub const ATTENTION_WORKSPACE_BYTES: usize = 1 << 30;

/// cuDNN, loaded.
#[derive(Clone)]
pub struct Cudnn {
    api: Arc<Api>,
}

/// What a plan turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanInfo {
    /// The number of cuDNN's engine.
    pub engine: i64,
    /// Bytes of workspace, with those of the sums between the parts of a backward pass.
    pub workspace_bytes: usize,
}

impl Cudnn {
    /// Loads libcudnn where these libraries are, with the two that it needs. It finds its own parts beside it.
    ///
    /// # Errors
    /// [`Error::NoLibrary`](crate::Error::NoLibrary), [`Error::Unusable`](crate::Error::Unusable), of any of the three.
    pub fn find(libraries: &Libraries) -> Result<Cudnn> {
        Cudnn::load(libraries, None)
    }

    /// The same for a driver that supports this version of CUDA.
    ///
    /// # Errors
    /// Those of [`find`](Cudnn::find), and [`Error::TooNew`](crate::Error::TooNew).
    pub fn find_for(libraries: &Libraries, cuda: Cuda) -> Result<Cudnn> {
        Cudnn::load(libraries, Some(cuda))
    }

    fn load(libraries: &Libraries, cuda: Option<Cuda>) -> Result<Cudnn> {
        let api = libraries.load(Library::Cudnn, cuda, |file| {
            let api = Api::load(file)?;
            let built = u32::try_from(api.cuda_major()).unwrap_or(u32::MAX);
            expect_usable(Library::Cudnn, file, (built, 0), cuda)?;
            Ok(api)
        })?;
        // It opens them by name when it plans, and aborts the process where the loader knows no such file.
        for library in [Library::CublasLt, Library::Nvrtc] {
            libraries.keep_for_others(library, api.cuda_major())?;
        }
        Ok(Cudnn { api: Arc::new(api) })
    }

    /// Its version, such as `9.28.1`.
    pub fn version(&self) -> String {
        self.api.version()
    }

    /// Plans attention for a GPU that need not be there, whose properties are cuDNN's JSON of them.
    ///
    /// # Errors
    /// [`Error::NoPlan`](crate::Error::NoPlan), or cuDNN's own.
    pub fn plan_without_device(
        &self,
        properties: &str,
        (shape, element, pass): (&AttentionShape, Element, Pass),
        workspace_bytes: usize,
    ) -> Result<PlanInfo> {
        let target = Target::properties(&self.api, properties)?;
        let graph = graph(&self.api, (shape, element, pass))?;
        let own_bytes = delta_bytes(shape, pass);
        match Plan::choose(&self.api, &target, graph, workspace_bytes.saturating_sub(own_bytes))? {
            Some(plan) => {
                Ok(PlanInfo { engine: plan.engine, workspace_bytes: plan.workspace_bytes + own_bytes })
            }
            None => Err(plan::none(&self.api, format!("{pass:?} of {element} {shape:?}"), workspace_bytes)),
        }
    }
}

fn graph(api: &Arc<Api>, (shape, element, pass): (&AttentionShape, Element, Pass)) -> Result<Graph> {
    match pass {
        Pass::Forward => attention::forward(api, shape, element),
        Pass::Backward => attention::backward(api, shape, element),
    }
}

/// Bytes of the inner products of outputs and their gradients, which lie at the start of the workspace.
fn delta_bytes(shape: &AttentionShape, pass: Pass) -> usize {
    match pass {
        Pass::Forward => 0,
        Pass::Backward => (4 * shape.batch * shape.heads * shape.q_len).next_multiple_of(256),
    }
}
