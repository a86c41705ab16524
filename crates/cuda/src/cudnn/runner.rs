//! Attention on a stream, with the plans that were made for shapes before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::api::{Api, Handle, call};
use super::attention::{Pass, id};
use super::graph::ALIGNMENT;
use super::plan::{Plan, Target};
use super::{Cudnn, delta_bytes, graph};
use crate::attention::AttentionShape;
use crate::driver::{Slice, Stream};
use crate::element::Element;
use crate::error::{Error, Result};

/// Operands and results of a forward pass, as [`AttentionShape`] says they lie in memory.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// Queries.
    pub q: Slice<'a>,
    /// Keys.
    pub k: Slice<'a>,
    /// Values.
    pub v: Slice<'a>,
    /// The output.
    pub o: Slice<'a>,
    /// The log-sum-exps, f32.
    pub lse: Slice<'a>,
}

/// Operands and results of a backward pass.
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    /// What the forward pass had and gave.
    pub forward: Forward<'a>,
    /// The gradient of the output.
    pub d_o: Slice<'a>,
    /// That of the queries.
    pub d_q: Slice<'a>,
    /// That of the keys.
    pub d_k: Slice<'a>,
    /// That of the values.
    pub d_v: Slice<'a>,
}

/// Attention by cuDNN on one stream.
pub struct CudnnAttention {
    /// Ends before the stream does, which its handle uses.
    state: Mutex<State>,
    api: Arc<Api>,
    stream: Arc<Stream>,
}

struct State {
    plans: HashMap<Key, Way>,
    handle: OwnedHandle,
}

/// How a pass is computed.
enum Way {
    Plan(Plan),
    /// Not by cuDNN, which has no plan.
    NoPlan,
    /// Not by cuDNN any more, and why.
    Failed(String),
}

impl Way {
    fn plan(&self) -> Option<&Plan> {
        match self {
            Way::Plan(plan) => Some(plan),
            Way::NoPlan | Way::Failed(_) => None,
        }
    }
}

/// A shape's numbers, with the bits of its factor, and what else a plan depends on.
type Key = ([usize; 6], u32, bool, Option<usize>, Element, Pass, usize);

fn key((s, element, pass): (&AttentionShape, Element, Pass), limit: usize) -> Key {
    let sizes = [s.batch, s.q_len, s.kv_len, s.heads, s.kv_heads, s.head_dim];
    (sizes, s.scale.to_bits(), s.causal, s.window, element, pass, limit)
}

/// A handle of the library.
struct OwnedHandle {
    handle: Handle,
    api: Arc<Api>,
}

// SAFETY: a handle may go from thread to thread, as long as one at a time uses it.
unsafe impl Send for OwnedHandle {}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // SAFETY: made once, ended once, behind its plans. A failure leaves nothing to do.
        unsafe { (self.api.destroy.call)(self.handle) };
    }
}

impl CudnnAttention {
    /// For work on a stream.
    ///
    /// # Errors
    /// cuDNN's or the driver's own.
    pub fn new(cudnn: &Cudnn, stream: &Arc<Stream>) -> Result<CudnnAttention> {
        let api = cudnn.api.clone();
        stream.context().enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call, and a context is current.
        api.check(unsafe { call!(api, create(&mut handle)) })?;
        let handle = OwnedHandle { handle, api: api.clone() };
        // SAFETY: the handle is live, and the stream is one of the current context, and ends after the handle.
        api.check(unsafe { call!(api, set_stream(handle.handle, stream.handle())) })?;
        let state = Mutex::new(State { plans: HashMap::new(), handle });
        Ok(CudnnAttention { stream: stream.clone(), api, state })
    }

    /// Bytes of workspace that a pass needs, of at most `limit`; none where cuDNN has no deterministic plan for it that makes
    /// do with them, or fails to make one or to run it.
    ///
    /// # Errors
    /// The driver's own.
    pub fn workspace_bytes(
        &self,
        (shape, element, pass): (&AttentionShape, Element, Pass),
        limit: usize,
    ) -> Result<Option<usize>> {
        if !super::is_supported(shape, element) {
            return Ok(None);
        }
        self.with_plan((shape, element, pass), limit, |plan, _| {
            Ok(plan.map(|plan| plan.workspace_bytes + delta_bytes(shape, pass)))
        })
    }

    /// The passes that cuDNN failed to plan or to run so far, so that others compute them: how many, and why.
    pub fn lacks(&self) -> Option<String> {
        let state = self.state();
        let why = |way: &'_ Way| match way {
            Way::Failed(why) => Some(why.clone()),
            Way::Plan(_) | Way::NoPlan => None,
        };
        let lacks: Vec<String> = state.plans.values().filter_map(why).collect();
        let why = lacks.iter().min()?;
        Some(format!("{} shapes by own kernels: {why}", lacks.len()))
    }

    /// From now on cuDNN has no plan for a pass with this limit.
    pub fn give_up(&self, of: (&AttentionShape, Element, Pass), limit: usize, why: String) {
        self.state().plans.insert(key(of, limit), Way::Failed(why));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes the output and the log-sum-exps later, in the order of the stream. `limit` is the one that the bytes of the
    /// workspace were asked for with. A plan that fails is not asked for again: the pass then has none.
    ///
    /// # Errors
    /// [`Error::Attention`] if an operand has other bytes than the shape says, [`Error::OtherContext`], [`Error::NoPlan`], or
    /// cuDNN's own.
    pub fn forward(
        &self,
        (shape, element): (&AttentionShape, Element),
        pass: &Forward<'_>,
        (workspace, limit): (Slice<'_>, usize),
    ) -> Result<()> {
        self.run((shape, element, Pass::Forward), &forward_operands(shape, element, pass), workspace, limit)
    }

    /// Computes the gradients, as [`CudnnAttention::forward`].
    ///
    /// # Errors
    /// As there.
    pub fn backward(
        &self,
        (shape, element): (&AttentionShape, Element),
        pass: &Backward<'_>,
        (workspace, limit): (Slice<'_>, usize),
    ) -> Result<()> {
        let (queries, keys) = bytes_of(shape, element);
        let mut operands = forward_operands(shape, element, &pass.forward);
        operands.extend([
            (id::D_O, pass.d_o, queries),
            (id::D_Q, pass.d_q, queries),
            (id::D_K, pass.d_k, keys),
            (id::D_V, pass.d_v, keys),
        ]);
        self.run((shape, element, Pass::Backward), &operands, workspace, limit)
    }

    fn run(
        &self,
        of: (&AttentionShape, Element, Pass),
        operands: &[(i64, Slice<'_>, usize)],
        workspace: Slice<'_>,
        limit: usize,
    ) -> Result<()> {
        let wrong = |reason: String| Err(Error::Attention { reason });
        let context = self.stream.context();
        context.expect_same(workspace.context(), "the workspace")?;
        for &(id, slice, bytes) in operands {
            context.expect_same(slice.context(), "the memory")?;
            if slice.bytes() != bytes {
                return wrong(format!("operand {id} has {} bytes, not {bytes}", slice.bytes()));
            }
            if !slice.address().is_multiple_of(ALIGNMENT as u64) {
                return wrong(format!("operand {id} does not begin at a multiple of {ALIGNMENT} bytes"));
            }
        }
        if !super::is_supported(of.0, of.1) {
            return wrong("cuDNN is not asked for such shapes".to_string());
        }
        let done = self.with_plan(of, limit, |plan, handle| {
            let own_bytes = delta_bytes(of.0, of.2);
            let Some(plan) = plan else {
                return Err(super::plan::none(
                    &self.api,
                    format!("{:?} of {} {:?}", of.2, of.1, of.0),
                    limit,
                ));
            };
            if workspace.bytes() < plan.workspace_bytes + own_bytes {
                return wrong(format!("a workspace of {} bytes is too small", workspace.bytes()));
            }
            let mut tensors: Vec<(i64, u64)> =
                operands.iter().map(|(id, slice, _)| (*id, slice.address())).collect();
            if of.2 == Pass::Backward {
                tensors.push((id::DELTA, workspace.address()));
            }
            // SAFETY: all memory is of the stream's context and has the graph's sizes; its end waits for the GPU.
            unsafe { plan.execute(&self.api, handle, &tensors, workspace.address() + own_bytes as u64) }
        });
        if let Err(error @ Error::Cudnn { .. }) = &done {
            self.give_up(of, limit, error.to_string());
        }
        done
    }

    /// Gives the plan of a pass, made at the first time.
    fn with_plan<T>(
        &self,
        of: (&AttentionShape, Element, Pass),
        limit: usize,
        then: impl FnOnce(Option<&Plan>, Handle) -> Result<T>,
    ) -> Result<T> {
        self.stream.context().enter()?;
        let mut state = self.state();
        let State { plans, handle } = &mut *state;
        let way = match plans.entry(key(of, limit)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let limit = limit.saturating_sub(delta_bytes(of.0, of.2));
                let target = Target::Handle(handle.handle);
                let chosen =
                    graph(&self.api, of).and_then(|graph| Plan::choose(&self.api, &target, graph, limit));
                unknown.insert(match chosen {
                    Ok(Some(plan)) => Way::Plan(plan),
                    Ok(None) => Way::NoPlan,
                    Err(error @ Error::Cudnn { .. }) => Way::Failed(error.to_string()),
                    Err(error) => return Err(error),
                })
            }
        };
        then(way.plan(), handle.handle)
    }
}

/// Bytes of queries, and of keys.
fn bytes_of(shape: &AttentionShape, element: Element) -> (usize, usize) {
    let head = shape.batch * shape.head_dim * element.size();
    (head * shape.q_len * shape.heads, head * shape.kv_len * shape.kv_heads)
}

fn forward_operands<'a>(
    shape: &AttentionShape,
    element: Element,
    pass: &Forward<'a>,
) -> Vec<(i64, Slice<'a>, usize)> {
    let (queries, keys) = bytes_of(shape, element);
    let rows = 4 * shape.batch * shape.heads * shape.q_len;
    let Forward { q, k, v, o, lse } = *pass;
    [(id::Q, q, queries), (id::K, k, keys), (id::V, v, keys), (id::O, o, queries), (id::LSE, lse, rows)]
        .into()
}
