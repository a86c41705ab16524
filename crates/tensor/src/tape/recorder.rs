//! How ops use a tape: they record themselves in the forward pass, and give the gradients of their inputs in the backward
//! pass.

use oarlock_kernels::{DType, Error, Result};

use super::{Function, Node, Recording, Saved, Step, Tape, Var, VarId};
use crate::offloaded::OffloadedTensor;
use crate::ops::accumulate;
use crate::param::{Param, Store};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Records one op: made from the op's inputs, finished with its outputs.
pub(crate) struct Recorder {
    tape: Tape,
    inputs: Vec<Option<VarId>>,
    needs_grad: bool,
}

impl Recorder {
    /// `None` when no input is on a tape, and no pass is being recorded of a model that trains one of `params`.
    pub fn new(inputs: &[&Tensor], params: &[&Param]) -> Result<Option<Recorder>> {
        let mut vars = inputs.iter().filter_map(|t| t.var.as_ref());
        let Some(first) = vars.next() else { return Recorder::of_params(inputs.len(), params) };
        vars.try_for_each(|var| first.tape.join(&var.tape))?;
        let tape = first.tape.resolve(None).0;
        let place = |t: &&Tensor| t.var.as_ref().and_then(|var| var.tape.resolve(var.id).1);
        let inputs: Vec<_> = inputs.iter().map(place).collect();
        let run = tape.with(|recording| recording.run);
        if inputs.iter().flatten().any(|id| id.run != run) {
            return Err(Error::Usage(
                "an op's input comes from a forward pass that has been run backward already; `detach` it before it is used again"
                    .to_string(),
            ));
        }
        let mut needs_grad = inputs.iter().any(Option::is_some);
        for param in params {
            needs_grad |= param.trainable()?;
        }
        Ok(Some(Recorder { tape, inputs, needs_grad }))
    }

    /// For an op whose inputs are on no tape.
    fn of_params(n_inputs: usize, params: &[&Param]) -> Result<Option<Recorder>> {
        for param in params {
            if let Some(tape) = param.active_tape()?
                && param.trainable()?
            {
                let tape = tape.resolve(None).0;
                return Ok(Some(Recorder { tape, inputs: vec![None; n_inputs], needs_grad: true }));
            }
        }
        Ok(None)
    }

    /// Records the op if `trains`, whatever its inputs: for parameters that it reaches without naming them.
    pub fn or_trains(self, trains: bool) -> Recorder {
        Recorder { needs_grad: self.needs_grad || trains, ..self }
    }

    /// Where the op is recorded.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Whether a backward pass will come by here.
    pub fn needs_grad(&self) -> bool {
        self.needs_grad
    }

    /// Whether the gradient of input `index` will be asked for.
    pub fn needs_input(&self, index: usize) -> bool {
        self.inputs[index].is_some()
    }

    /// The seed that the backward pass will start from, where it was promised.
    pub fn promised_seed(&self) -> Option<f32> {
        self.tape.seed()
    }

    /// Keeps a tensor for the backward pass.
    pub fn save(&self, tensor: &Tensor) -> Saved {
        if let Some(loan) = tensor.loan() {
            return Saved::Lent(loan);
        }
        // A recipe may need weights, and those of another unit may not be gathered when it is wanted.
        let is_recipe = |id: &VarId| {
            self.tape.with(|recording| match &recording.nodes[id.node].op {
                Some(Step::Op(op)) => id.node >= recording.unit_first && op.can_replay(),
                _ => false,
            })
        };
        let id = tensor.var.as_ref().and_then(|var| var.tape.resolve(var.id).1);
        id.filter(is_recipe).map_or_else(|| Saved::Tensor(tensor.detach()), Saved::Replay)
    }

    /// As [`Recorder::save`], in pinned memory where it would take memory of a GPU.
    pub fn save_away(&self, tensor: &Tensor) -> Result<Saved> {
        match self.save(tensor) {
            Saved::Tensor(tensor) if tensor.device().is_cuda() => {
                OffloadedTensor::new(&tensor).map(Saved::Offloaded)
            }
            saved => Ok(saved),
        }
    }

    /// Keeps a tensor only where that takes no memory.
    pub fn save_recipe(&self, tensor: &Tensor) -> Option<Saved> {
        Some(self.save(tensor)).filter(|saved| !matches!(saved, Saved::Tensor(_)))
    }

    /// Records the op and puts its output on the tape, where there is one; `op` is made from what it keeps.
    pub fn record<F: Function + 'static>(
        recorder: Option<Recorder>,
        output: Tensor,
        op: impl FnOnce(&Recorder) -> F,
    ) -> Tensor {
        let Some(recorder) = recorder else { return output };
        let op = op(&recorder);
        let Recorder { tape, inputs, needs_grad } = recorder;
        let push = |recording: &mut Recording| recording.push(Step::Op(Box::new(op)), inputs);
        let id = needs_grad.then(|| tape.with(push));
        output.on(Var { tape, id })
    }
}

/// What an op's backward pass works with.
pub(crate) struct Backward<'a> {
    pub(super) nodes: &'a mut Vec<Node>,
    pub(super) inputs: &'a [Option<VarId>],
    /// What the places in `inputs` and in what the op kept are counted from.
    pub(super) base: usize,
    /// The place of the op itself.
    pub(super) own: usize,
    /// The gradient of the output in the dtype of [`Function::rounds`], where somebody has made it.
    pub(super) rounded: Option<Tensor>,
}

impl Backward<'_> {
    /// Begins to bring back what the next op that keeps anything in pinned memory has there.
    pub fn fetch_ahead(&self) -> Result<()> {
        for node in self.nodes.iter().rev() {
            if let Some(Step::Op(op)) = &node.op
                && op.fetch_ahead()?
            {
                break;
            }
        }
        Ok(())
    }

    /// Where the gradient of an input is summed. What was rounded of it before is then of no use.
    fn grad_of(&mut self, index: usize) -> Option<&mut Option<Tensor>> {
        let id = self.inputs[index]?;
        let node = &mut self.nodes[id.node + self.base];
        node.rounded = None;
        Some(&mut node.grad)
    }

    /// The dtype in which the op that made input `index` will want its gradient as well.
    pub fn wants_rounded(&self, index: usize) -> Option<DType> {
        let node = &self.nodes[self.inputs[index]?.node + self.base];
        let Some(Step::Op(op)) = &node.op else { return None };
        let (of, dtype) = op.rounds()?;
        node.inputs[of].map(|_| dtype)
    }

    /// As [`Backward::give`], for the whole sum that [`Backward::slot`] has begun, with the same in the dtype that
    /// [`Backward::wants_rounded`] said.
    pub fn give_rounded(&mut self, index: usize, grad: Tensor, rounded: Option<Tensor>) -> Result<()> {
        let is_whole = self.grad_of(index).is_some_and(|slot| slot.is_none());
        self.give(index, grad)?;
        if let Some(id) = self.inputs[index].filter(|_| is_whole) {
            self.nodes[id.node + self.base].rounded = rounded;
        }
        Ok(())
    }

    /// The gradient of the output in the dtype of [`Function::rounds`], where somebody has made it.
    pub fn take_rounded(&mut self) -> Option<Tensor> {
        self.rounded.take()
    }

    /// Whether anybody wants the gradient of input `index`.
    pub fn needs(&self, index: usize) -> bool {
        self.inputs[index].is_some()
    }

    /// A tensor that was kept.
    pub fn get(&mut self, saved: &Saved) -> Result<Tensor> {
        let index = match saved {
            Saved::Tensor(tensor) => return Ok(tensor.clone()),
            Saved::Lent(loan) => return loan.borrow(),
            Saved::Offloaded(away) => return away.get(),
            Saved::Replay(id) => id.node + self.base,
        };
        if let Some(tensor) = &self.nodes[index].replayed {
            return Ok(tensor.clone());
        }
        let Some(Step::Op(op)) = self.nodes[index].op.take() else {
            return Err(Error::Usage(
                "the op that made a kept tensor has already been run backward".to_string(),
            ));
        };
        let base = std::mem::replace(&mut self.base, self.nodes[index].base);
        let tensor = op.replay(self);
        self.base = base;
        let node = &mut self.nodes[index];
        node.op = Some(Step::Op(op));
        let tensor = tensor?;
        node.replayed = Some(tensor.clone());
        Ok(tensor)
    }

    /// Whether [`Backward::finish`] gives what was kept of input `index`: the op that made it stands right before this one, so
    /// that nobody else can still give to its gradient, and computes its output in its backward pass.
    pub fn can_finish(&self, index: usize, saved: &Saved) -> bool {
        let Saved::Replay(id) = saved else { return false };
        let place = id.node + self.base;
        let node = &self.nodes[place];
        self.inputs[index] == Some(*id)
            && place + 1 == self.own
            && node.replayed.is_none()
            && matches!(&node.op, Some(Step::Op(op)) if op.can_finish())
    }

    /// Runs the op that made what was kept backward, whose gradient is complete now, and gives its output.
    pub fn finish(&mut self, saved: &Saved) -> Result<Tensor> {
        let Saved::Replay(id) = saved else { return self.get(saved) };
        let own = id.node + self.base;
        let node = &mut self.nodes[own];
        let (inputs, base, rounded) = (std::mem::take(&mut node.inputs), node.base, node.rounded.take());
        let (Some(Step::Op(op)), Some(grad)) = (node.op.take(), node.grad.take()) else {
            return Err(Error::Usage("an op is run backward before its gradient is there".to_owned()));
        };
        op.finish(grad, &mut Backward { nodes: &mut *self.nodes, inputs: &inputs, base, own, rounded })
    }

    /// Adds to the gradient of input `index`; nothing happens when nobody wants it.
    pub fn give(&mut self, index: usize, grad: Tensor) -> Result<()> {
        let Some(slot) = self.grad_of(index) else { return Ok(()) };
        *slot = Some(accumulate::add_to(slot.take(), grad)?);
        Ok(())
    }

    /// Takes what has come so far of the gradient of input `index`, for an op that goes on with the sum.
    pub fn take(&mut self, index: usize) -> Option<Tensor> {
        self.grad_of(index)?.take()
    }

    /// The gradient of input `index` for an op that can add into it: what has come so far, to be added to, or fresh
    /// memory, to be overwritten. To be given back with [`Backward::give`].
    pub fn slot(&mut self, index: usize, like: &Tensor) -> Result<(Tensor, Store)> {
        self.slot_of(index, *like.shape(), like)
    }

    /// As [`Backward::slot`], for an input of another shape.
    pub fn slot_of(&mut self, index: usize, shape: Shape, like: &Tensor) -> Result<(Tensor, Store)> {
        let unique = |slot: &mut Option<Tensor>| slot.take_if(|sum| sum.is_unique());
        if let Some(sum) = self.grad_of(index).and_then(unique) {
            return Ok((sum, Store::Add));
        }
        let fresh = Tensor::uninit(shape, like.dtype(), like.device(), "gradient")?;
        Ok((fresh, Store::Overwrite))
    }
}
