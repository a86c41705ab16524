//! The tape: the ops of a forward pass in order, so that a backward pass can run them in reverse.
//!
//! A tensor that is on a tape carries its place there, and so do the results of ops on it; there is no global state.
//! Where an op takes tensors of two tapes, the tapes become one. An op has one output, and keeps for its backward pass
//! what it cannot cheaply make again: a tensor that came from an op bound by memory (a norm, an activation) is kept as a
//! recipe and computed again when the backward pass first asks for it.

mod recorder;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_kernels::{DType, Error, Result};

use crate::active::ActiveTapes;
use crate::offloaded::OffloadedTensor;
use crate::ops::accumulate;
use crate::tensor::{Loan, Tensor};

pub(crate) use recorder::{Backward, Recorder};

/// A recording of ops. Cloning gives another handle to the same recording.
#[derive(Clone)]
pub struct Tape(Arc<Mutex<State>>);

enum State {
    Recording(Recording),
    /// It goes on in another tape.
    Joined(Joined),
}

/// Where a tape went.
#[derive(Clone)]
struct Joined {
    into: Tape,
    /// How many nodes stood there before its own.
    offset: usize,
    /// The runs of both at that moment.
    run: usize,
    into_run: usize,
}

impl Joined {
    /// A place on the tape that was joined, on the other one.
    fn place(&self, id: VarId) -> VarId {
        // No tape is ever run so often: a place of an earlier run stays one.
        let run = if id.run == self.run { self.into_run } else { usize::MAX };
        VarId { run, node: id.node + self.offset }
    }
}

/// What somebody hangs on a recording.
type Tag = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Recording {
    nodes: Vec<Node>,
    promised_seed: Option<f32>,
    /// How often the tape has been run backward: places of an earlier run mean nothing now.
    run: usize,
    /// Where the ops of the unit that is being recorded begin.
    unit_first: usize,
    tags: Vec<Tag>,
    /// Those of the models whose passes it records.
    active: Vec<Arc<ActiveTapes>>,
}

impl Default for State {
    fn default() -> State {
        State::Recording(Recording::default())
    }
}

#[derive(Default)]
struct Node {
    /// What the places that it knows are counted from: not 0 where it came from a tape that was joined.
    base: usize,
    /// Taken when the backward pass has run it.
    op: Option<Step>,
    inputs: Vec<Option<VarId>>,
    /// The gradient of the output, as far as its users have given it.
    grad: Option<Tensor>,
    /// The same in the dtype of [`Function::rounds`], where the last of them has made both.
    rounded: Option<Tensor>,
    /// The output when it was computed again, until this node's own backward pass.
    replayed: Option<Tensor>,
}

enum Step {
    Op(Box<dyn Function>),
    UnitEnter(Arc<dyn UnitHook>),
    UnitLeave(Arc<dyn UnitHook>),
    Leaf,
}

/// A tensor's place on a tape: the output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VarId {
    run: usize,
    node: usize,
}

/// What a tensor on a tape knows of it. Without an id no gradient is wanted, but results are on the tape as well.
#[derive(Clone)]
pub(crate) struct Var {
    tape: Tape,
    id: Option<VarId>,
}

impl Var {
    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Whether a backward pass that starts here would reach anything.
    pub(crate) fn needs_grad(&self) -> bool {
        self.id.is_some()
    }
}

/// The backward half of an op.
pub(crate) trait Function: Send {
    /// Takes the gradient of the output and gives those of the inputs.
    fn backward(self: Box<Self>, grad: Tensor, cx: &mut Backward<'_>) -> Result<()>;

    /// The input whose gradient is that of the output in another dtype, and that dtype.
    fn rounds(&self) -> Option<(usize, DType)> {
        None
    }

    /// Whether the output can be computed again at the cost of one pass over memory.
    fn can_replay(&self) -> bool {
        false
    }

    /// Whether [`Function::finish`] takes fewer passes over memory than [`Function::backward`] and [`Function::replay`].
    fn can_finish(&self) -> bool {
        false
    }

    /// As [`Function::backward`]; gives the output, computed again.
    fn finish(self: Box<Self>, _grad: Tensor, _cx: &mut Backward<'_>) -> Result<Tensor> {
        Err(Error::Usage("the backward pass of this op does not compute its output".to_string()))
    }

    /// Begins to bring back what it has kept in pinned memory; whether it keeps anything there.
    fn fetch_ahead(&self) -> Result<bool> {
        Ok(false)
    }

    /// Computes the output again.
    fn replay(&self, _cx: &mut Backward<'_>) -> Result<Tensor> {
        Err(Error::Usage("the output of this op cannot be replayed".to_string()))
    }
}

/// Called around the passes of a unit's ops.
pub trait UnitHook: Send + Sync {
    /// Before the forward pass of the first of them; `trains` says whether a backward pass will follow.
    ///
    /// # Errors
    /// Whatever makes the forward pass impossible.
    fn before_forward(&self, trains: bool) -> Result<()>;

    /// After the forward pass of the last of them.
    ///
    /// # Errors
    /// Whatever makes the forward pass fail.
    fn after_forward(&self, trains: bool) -> Result<()>;

    /// Before the backward pass of the last of them.
    ///
    /// # Errors
    /// Whatever makes the backward pass impossible.
    fn before_backward(&self) -> Result<()>;

    /// The tape on which a forward pass of the unit's model is being recorded, for one whose input is on none.
    fn active_tape(&self) -> Option<Tape> {
        None
    }

    /// After the backward pass of the first: the unit's gradients of this pass are complete.
    ///
    /// # Errors
    /// Whatever makes the backward pass fail.
    fn after_backward(&self) -> Result<()>;
}

/// A tensor kept for the backward pass: itself, the op that makes it again, the parameter that lends it again, or a copy in
/// pinned memory. A lease on weights is never kept: they may leave between the passes.
pub(crate) enum Saved {
    Tensor(Tensor),
    Replay(VarId),
    Lent(Loan),
    Offloaded(OffloadedTensor),
}

impl Tape {
    /// An empty tape.
    pub fn new() -> Tape {
        Tape(Arc::default())
    }

    /// An empty tape whose backward pass will be seeded with exactly `seed`: ops that make their gradient already in
    /// the forward pass (the head with its loss) use it.
    pub fn with_seed(seed: f32) -> Tape {
        let recording = Recording { promised_seed: Some(seed), ..Recording::default() };
        Tape(Arc::new(Mutex::new(State::Recording(recording))))
    }

    /// Hangs something on what is recorded now, until it is run backward; a tape that is joined brings its own along.
    pub fn tag(&self, tag: Arc<dyn Any + Send + Sync>) {
        self.with(|recording| recording.tags.push(tag));
    }

    /// What hangs on it.
    pub fn tags(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        self.with(|recording| recording.tags.clone())
    }

    /// Notes that a pass of a model is recorded here.
    pub(crate) fn keep_active(&self, active: &Arc<ActiveTapes>) {
        self.with(|recording| recording.keep_active(active));
    }

    /// The models whose passes are recorded here.
    pub(crate) fn active(&self) -> Vec<Arc<ActiveTapes>> {
        self.with(|recording| recording.active.clone())
    }

    /// The seed that was promised to [`Tape::with_seed`].
    pub fn seed(&self) -> Option<f32> {
        self.with(|recording| recording.promised_seed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves a whole recording behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on what is recorded, wherever that is by now.
    fn with<R>(&self, f: impl FnOnce(&mut Recording) -> R) -> R {
        let mut tape = self.clone();
        loop {
            let next = match &mut *tape.state() {
                State::Recording(recording) => return f(recording),
                State::Joined(joined) => joined.into.clone(),
            };
            tape = next;
        }
    }

    /// The tape that it is by now, and what has become of a place on it.
    fn resolve(&self, mut id: Option<VarId>) -> (Tape, Option<VarId>) {
        let mut tape = self.clone();
        loop {
            let joined = match &*tape.state() {
                State::Recording(_) => None,
                State::Joined(joined) => Some(joined.clone()),
            };
            let Some(joined) = joined else { return (tape, id) };
            id = id.map(|id| joined.place(id));
            tape = joined.into;
        }
    }

    /// Whether both are one.
    fn is(&self, other: &Tape) -> bool {
        Arc::ptr_eq(&self.resolve(None).0.0, &other.resolve(None).0.0)
    }

    /// Makes this tape and another one: what is on the other comes after what is on this one.
    fn join(&self, other: &Tape) -> Result<()> {
        let (to, from) = (self.resolve(None).0, other.resolve(None).0);
        if Arc::ptr_eq(&to.0, &from.0) {
            return Ok(());
        }
        if to.seed() != from.seed() {
            return Err(Error::Usage(
                "a loss that makes its gradient in the forward pass cannot be joined with another pass; compute it on a \
                 tape without a promised seed"
                    .to_string(),
            ));
        }
        let moved = from.with(std::mem::take);
        let joined = to.with(|recording| {
            let offset = recording.nodes.len();
            recording
                .nodes
                .extend(moved.nodes.into_iter().map(|node| Node { base: node.base + offset, ..node }));
            recording.unit_first = recording.nodes.len();
            recording.tags.extend(moved.tags);
            moved.active.iter().for_each(|active| recording.keep_active(active));
            Joined { into: to.clone(), offset, run: moved.run, into_run: recording.run }
        });
        *from.state() = State::Joined(joined);
        Ok(())
    }

    /// Puts a tensor on the tape: ops on it are recorded, but it gets no gradient itself.
    pub fn input(&self, tensor: &Tensor) -> Tensor {
        tensor.clone().on(Var { tape: self.clone(), id: None })
    }

    /// Puts a tensor on the tape as a leaf: [`Tape::backward`] keeps its gradient for [`Gradients::of`].
    pub fn leaf(&self, tensor: &Tensor) -> Tensor {
        let tape = self.resolve(None).0;
        let id = tape.with(|recording| recording.push(Step::Leaf, Vec::new()));
        tensor.clone().on(Var { tape, id: Some(id) })
    }

    /// Marks that the ops from here on belong to a unit.
    pub fn enter_unit(&self, hook: Arc<dyn UnitHook>) {
        self.mark(Step::UnitEnter(hook));
    }

    /// Marks that the unit entered last ends here.
    pub fn leave_unit(&self, hook: Arc<dyn UnitHook>) {
        self.mark(Step::UnitLeave(hook));
    }

    fn mark(&self, step: Step) {
        self.with(|recording| {
            recording.push(step, Vec::new());
            recording.unit_first = recording.nodes.len();
        });
    }

    /// Lets the gradient of a leaf of this run begin with `sum` instead of nothing.
    pub(crate) fn begin_sum(&self, leaf: &Tensor, sum: Option<Tensor>) -> Result<()> {
        let id = self.place_of(leaf)?;
        self.with(|recording| recording.nodes[id.node].grad = sum);
        Ok(())
    }

    /// The place that a backward pass may start from.
    fn place_of(&self, root: &Tensor) -> Result<VarId> {
        let Some(Var { tape, id: Some(id) }) = &root.var else {
            return Err(Error::Usage("backward: nothing that the loss depends on is trained".to_string()));
        };
        let (tape, id) = tape.resolve(Some(*id));
        if !tape.is(self) {
            return Err(Error::Usage("backward: the loss was recorded on another tape".to_string()));
        }
        match id {
            Some(id) if id.run == self.with(|recording| recording.run) => Ok(id),
            _ => Err(Error::Usage("backward: the tape has already been run backward".to_string())),
        }
    }

    /// Runs the backward pass from `root`, whose gradient is `seed` in every element, and empties the tape.
    /// Gradients of parameters go to their homes; those of leaves are returned.
    ///
    /// # Errors
    /// When `root` is not on this tape, and whatever an op reports.
    pub fn backward(&self, root: &Tensor, seed: f32) -> Result<Gradients> {
        let root_id = self.place_of(root)?;
        if let Some(promised) = self.seed().filter(|promised| *promised != seed) {
            return Err(Error::Usage(format!(
                "backward: the tape was promised the seed {promised}, but is seeded with {seed}"
            )));
        }
        self.run_backward(root_id, accumulate::full_like(root, seed)?)
    }

    /// As [`Tape::backward`], from a gradient for each element of `root`.
    ///
    /// # Errors
    /// As [`Tape::backward`]; when `grad` has not the shape and dtype of `root`; on a tape that was promised a seed.
    pub fn backward_from(&self, root: Tensor, mut grad: Tensor) -> Result<Gradients> {
        let root_id = self.place_of(&root)?;
        if let Some(promised) = self.seed() {
            return Err(Error::Usage(format!(
                "backward_from: the tape was promised the seed {promised}; give `backward` that seed"
            )));
        }
        if grad.shape() != root.shape() || grad.dtype() != root.dtype() {
            return Err(Error::Shape {
                op: "backward_from",
                expected: format!("a gradient like {}", root.describe()),
                got: grad.describe(),
            });
        }
        grad.var = None;
        // Its value is needed no more, and may be large.
        drop(root);
        self.run_backward(root_id, grad)
    }

    fn run_backward(&self, root: VarId, grad: Tensor) -> Result<Gradients> {
        let mut recording = self.with(Recording::take);
        let slot = &mut recording.nodes[root.node].grad;
        *slot = Some(accumulate::add_to(slot.take(), grad)?);
        let mut leaves = Vec::new();
        for index in (0..recording.nodes.len()).rev() {
            let node = &mut recording.nodes[index];
            node.replayed = None;
            let (grad, rounded) = (node.grad.take(), node.rounded.take());
            match (node.op.take(), grad) {
                (Some(Step::UnitLeave(hook)), _) => hook.before_backward()?,
                (Some(Step::UnitEnter(hook)), _) => hook.after_backward()?,
                (Some(Step::Leaf), grad) => leaves.push((index, grad)),
                (Some(Step::Op(op)), Some(grad)) => {
                    let (inputs, base) = (std::mem::take(&mut node.inputs), node.base);
                    let nodes = &mut recording.nodes;
                    op.backward(grad, &mut Backward { nodes, inputs: &inputs, base, own: index, rounded })?;
                }
                (Some(Step::Op(_)), None) | (None, _) => {}
            }
        }
        Ok(Gradients { tape: self.clone(), run: recording.run, leaves })
    }
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new()
    }
}

impl Recording {
    /// Adds a node; the result is the place of its output.
    fn push(&mut self, op: Step, inputs: Vec<Option<VarId>>) -> VarId {
        self.nodes.push(Node { op: Some(op), inputs, ..Node::default() });
        VarId { run: self.run, node: self.nodes.len() - 1 }
    }

    fn keep_active(&mut self, active: &Arc<ActiveTapes>) {
        if !self.active.iter().any(|other| Arc::ptr_eq(other, active)) {
            self.active.push(active.clone());
        }
    }

    /// What was recorded so far; the next run begins empty, under the same promise.
    fn take(&mut self) -> Recording {
        let next = Recording { promised_seed: self.promised_seed, run: self.run + 1, ..Recording::default() };
        std::mem::replace(self, next)
    }
}

/// The gradients of a tape's leaves.
pub struct Gradients {
    tape: Tape,
    run: usize,
    leaves: Vec<(usize, Option<Tensor>)>,
}

impl Gradients {
    /// The gradient of a leaf; `None` when the root does not depend on it.
    pub fn of(&self, leaf: &Tensor) -> Option<&Tensor> {
        let var = leaf.var.as_ref()?;
        let (tape, id) = var.tape.resolve(var.id);
        let id = id.filter(|id| id.run == self.run && tape.is(&self.tape))?;
        self.leaves.iter().find(|(node, _)| *node == id.node)?.1.as_ref()
    }
}
