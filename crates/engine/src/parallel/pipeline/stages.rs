//! A pipeline on one of its stages: the parts of the model that it holds, and what carries out its schedules.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use oarlock_comm::Communicator;
use oarlock_config::config::PipelineArgs;
use oarlock_tensor::{Device, Param, Tensor};

use super::links::Links;
use super::partition::{UnitWeight, partition};
use super::schedule::{Instruction, Message, Passes, Place, schedules};
use crate::nn::{Module, UnitRun, Visitor, units_of};
use crate::{Error, Result};

/// A pipeline, as its stage on this rank sees it.
pub struct Pipeline {
    pipe: Communicator,
    n_chunks: usize,
    /// The units of each part of the model; part `c S + s` is chunk `c` of stage `s`.
    parts: Vec<Range<usize>>,
    units: Vec<UnitWeight>,
    links: Mutex<Links>,
}

/// What a stage computes in a schedule.
pub trait Work {
    /// A forward pass of a part, from what the part before it has sent (`None` in the first). Returns what is sent to the
    /// next part; `None` in the last.
    ///
    /// # Errors
    /// What the model reports.
    fn forward(&mut self, place: Place, x: Option<Tensor>) -> Result<Option<Tensor>>;

    /// A backward pass, from the gradient of what the part has sent (`None` in the last). Returns the gradient of what it
    /// has received; `None` in the first.
    ///
    /// # Errors
    /// What the model reports.
    fn backward(&mut self, place: Place, grad: Option<Tensor>) -> Result<Option<Tensor>>;
}

impl Pipeline {
    /// Divides a model over the ranks of `pipe`, which all call it. Nothing of the model is in memory yet.
    ///
    /// # Errors
    /// A model that cannot be divided so, a failed rank.
    pub fn new(
        model: &dyn Module,
        args: &PipelineArgs,
        pipe: &Communicator,
        device: &Device,
    ) -> Result<Pipeline> {
        let units = unit_weights(model)?;
        let n_chunks = args.virtual_stages.max(1);
        let parts = partition(&args.partition, &units, pipe.world_size() * n_chunks)?;
        let links = Mutex::new(Links::new(pipe, device, n_chunks > 1)?);
        Ok(Pipeline { pipe: pipe.clone(), n_chunks, parts, units, links })
    }

    /// The stages.
    pub fn n_stages(&self) -> usize {
        self.pipe.world_size()
    }

    /// The stage of this rank.
    pub fn stage(&self) -> usize {
        self.pipe.rank()
    }

    /// The ranks of the pipeline, in the order of their stages.
    pub fn communicator(&self) -> &Communicator {
        &self.pipe
    }

    /// The parts of the model on each stage.
    pub fn n_chunks(&self) -> usize {
        self.n_chunks
    }

    /// The units of each part of the model, in order: part `c S + s` is chunk `c` of stage `s` of S.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// The units of a chunk of this stage.
    pub fn units(&self, chunk: usize) -> Range<usize> {
        self.parts.get(self.part(chunk)).cloned().unwrap_or(0..0)
    }

    /// Whether a chunk of this stage is the first part of the model.
    pub fn is_first(&self, chunk: usize) -> bool {
        self.part(chunk) == 0
    }

    /// Whether a chunk of this stage is the last part of the model.
    pub fn is_last(&self, chunk: usize) -> bool {
        self.part(chunk) + 1 == self.parts.len()
    }

    /// Whether anything of a chunk of this stage is trained.
    pub fn trains(&self, chunk: usize) -> bool {
        self.units[self.units(chunk)].iter().any(|unit| unit.n_trained > 0)
    }

    /// The stage of each unit of the model.
    pub fn stage_of_unit(&self) -> Vec<usize> {
        let parts = self.parts.iter().enumerate();
        parts.flat_map(|(part, units)| units.clone().map(move |_| part % self.n_stages())).collect()
    }

    fn part(&self, chunk: usize) -> usize {
        chunk * self.n_stages() + self.stage()
    }

    /// Carries out the schedule of this stage over `n_micro` micro-batches. All stages call it.
    ///
    /// # Errors
    /// A number of micro-batches that the schedule does not take, what the work reports, a failed rank.
    pub fn run(&self, passes: Passes, n_micro: usize, work: &mut dyn Work) -> Result<()> {
        let schedule = schedules(passes, self.n_stages(), self.n_chunks, n_micro)?.swap_remove(self.stage());
        // After a panic the stages no longer agree on where they are, and the next message says so.
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = || (0..schedule.n_buffers).map(|_| None).collect::<Vec<Option<Tensor>>>();
        let (mut received, mut made) = ([empty(), empty()], [empty(), empty()]);
        let missing = |what: &str, place: Place| {
            Error::Usage(format!("the schedule of stage {} has no {what} for {place:?}", self.stage()))
        };
        for instruction in &schedule.instructions {
            match *instruction {
                Instruction::Forward(place) => {
                    let x = received[Message::Activation as usize][place.buffer].take();
                    made[Message::Activation as usize][place.buffer] = work.forward(place, x)?;
                }
                Instruction::Backward(place) => {
                    let grad = received[Message::Gradient as usize][place.buffer].take();
                    made[Message::Gradient as usize][place.buffer] = work.backward(place, grad)?;
                }
                Instruction::Send { what, to, place } => {
                    let tensor = made[what as usize][place.buffer].take();
                    links.send(to, &tensor.ok_or_else(|| missing("message", place))?)?;
                }
                Instruction::Receive { what, from, place } => {
                    received[what as usize][place.buffer] = Some(links.receive(from)?);
                }
            }
        }
        Ok(())
    }
}

/// The units of a model as partition methods see them.
pub fn unit_weights(model: &dyn Module) -> Result<Vec<UnitWeight>> {
    let mut kinds = Kinds(Vec::new());
    model.visit(&mut kinds);
    let units = units_of(model);
    if let Some(outside) = units.iter().find(|unit| unit.run.is_none()).and_then(|unit| unit.params.first()) {
        return Err(Error::Usage(format!(
            "the parameter \"{}\" is in no unit, so it has no place in a pipeline; make a unit (`nn::Unit`) of each field of the \
             model that holds parameters",
            outside.name
        )));
    }
    let trained = |param: &Param| if param.is_frozen() { 0 } else { param.n_weights() };
    // A unit without parameters has been left out of neither list.
    Ok(units
        .iter()
        .zip(kinds.0)
        .map(|(unit, kind)| UnitWeight {
            kind,
            n_trained: unit.params.iter().map(|named| trained(&named.param)).sum::<usize>()
                + unit.shared.iter().map(trained).sum::<usize>(),
        })
        .collect())
}

/// The types of the units of a model.
struct Kinds(Vec<&'static str>);

impl Visitor for Kinds {
    fn param(&mut self, _name: &str, _param: &Param) {}

    fn child(&mut self, _name: &str, child: &dyn Module) {
        child.visit(self);
    }

    fn unit(&mut self, _unit: &UnitRun, inside: &dyn Module) {
        self.0.push(inside.kind());
    }
}
