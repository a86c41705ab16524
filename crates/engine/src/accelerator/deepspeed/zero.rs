//! `zero`: whole parameters of a model whose parts lie on many ranks, for a while.

use std::collections::BTreeMap;
use std::ops::Range;

use oarlock_comm::Communicator;
use oarlock_config::dialect::DeepSpeedConfig as Config;
use oarlock_config::nearest::nearest_of;
use oarlock_tensor::Shape;

use crate::accelerator::models::prepared::Prepared;
use crate::accelerator::models::prepared_state::PreparedState;
use crate::checkpoint::share;
use crate::nn::{Module, NamedParam, parameters};
use crate::optim::Parameters;
use crate::shard::{Engine, MASTER, Slice, runs};
use crate::{Error, Result};

/// Elements that travel at once.
const CHUNK: usize = 1 << 18;

/// `with zero.Init(config): model = …`: a model that is never whole on any rank.
///
/// Here that is so of every model: its parameters have shapes and no memory until `initialize` or `prepare` gives each
/// rank its part, drawn or read part by part. So this scope changes nothing about the model; it looks whether the
/// configuration divides parameters, and whether the model is a fresh one. `enabled=False` is to build the model without
/// it.
///
/// # Errors
/// A configuration of another stage than 3, a model that is prepared already, what `build` reports.
pub fn init<M: Module>(config: &Config, build: impl FnOnce() -> crate::nn::Result<M>) -> Result<M> {
    let stage = config.get("zero_optimization.stage").unwrap_or_else(|| "0".to_owned());
    if stage != "3" {
        return Err(Error::Usage(format!(
            "zero::init: the configuration's stage is {stage}, and only stage 3 divides parameters; build the model without \
             it, or write \"stage\": 3"
        )));
    }
    let model = build()?;
    match parameters(&model).iter().find(|named| named.param.is_settled()) {
        Some(named) => Err(Error::Usage(format!(
            "zero::init: \"{}\" belongs to a prepared model; build the model inside",
            named.name
        ))),
        None => Ok(model),
    }
}

/// Whole parameters, by their names in the model.
#[derive(Clone, Debug)]
pub struct Gathered {
    params: BTreeMap<String, (Shape, Vec<f32>)>,
}

impl Gathered {
    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.params.keys().map(String::as_str)
    }

    /// The shape of one.
    ///
    /// # Errors
    /// A name that is not among them.
    pub fn shape(&self, name: &str) -> Result<&Shape> {
        self.find(name).map(|(shape, _)| shape)
    }

    /// The values of one, row by row, in f32.
    ///
    /// # Errors
    /// A name that is not among them.
    pub fn values(&self, name: &str) -> Result<&[f32]> {
        self.find(name).map(|(_, values)| values.as_slice())
    }

    /// The values of one, to be changed.
    ///
    /// # Errors
    /// A name that is not among them.
    pub fn values_mut(&mut self, name: &str) -> Result<&mut [f32]> {
        self.find(name)?;
        let (_, values) = self.params.get_mut(name).ok_or_else(|| not_among(name, ""))?;
        Ok(values)
    }

    fn find(&self, name: &str) -> Result<&(Shape, Vec<f32>)> {
        self.params.get(name).ok_or_else(|| match nearest_of(name, self.names()) {
            Some(near) => not_among(name, &format!("did you mean \"{near}\"?")),
            None => not_among(name, &format!("there are {}", self.names().collect::<Vec<_>>().join(", "))),
        })
    }
}

fn not_among(name: &str, help: &str) -> Error {
    Error::Usage(format!("no parameter \"{name}\" is gathered here; {help}"))
}

/// `with zero.GatheredParameters(params, modifier_rank=…)`: inside, every rank has the whole values of these parameters,
/// in f32: the master weights where the model computes in 16 bits. What the closure writes on `modifier_rank` is what all
/// ranks go on with; what it writes elsewhere, or with `None`, is gone. All ranks call it, between two steps.
///
/// ```
/// # use oarlock::{Accelerator, AcceleratorConfig, deepspeed::zero, nn::Linear, optim};
/// # fn main() -> oarlock::Result<()> {
/// # let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
/// # let net = Linear::normal(4, 1, true, 0.1)?;
/// # let optimizer = optim::adamw(&net);
/// # let (net, optimizer) = accelerator.prepare((net, optimizer))?;
/// zero::gathered_parameters(&net, &net, Some(0), |whole| {
///     whole.values_mut("weight")?.fill(0.5);
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Parameters of another model, a rank that does not exist, writing inside of a window of micro-batches (whose gradients
/// are those of the old weights), what the closure reports on any rank; no weight has changed then.
#[track_caller]
pub fn gathered_parameters<M: Module, R>(
    model: &Prepared<M>,
    params: impl Into<Parameters>,
    modifier_rank: Option<usize>,
    body: impl FnOnce(&mut Gathered) -> Result<R>,
) -> Result<R> {
    let (state, comm) = (&model.state, model.communicator());
    let chosen = choose(model, &params.into())?;
    if let Some(rank) = modifier_rank.filter(|rank| *rank >= comm.world_size()) {
        return Err(Error::Usage(format!(
            "gathered_parameters: modifier_rank is {rank}, and there are {} ranks, from 0 on",
            comm.world_size()
        )));
    }
    let mut whole = Gathered { params: BTreeMap::new() };
    {
        let optimizer = state.optimizer()?;
        for named in &chosen {
            let shape = *named.param.shape();
            let mut values = vec![0.0; shape.n_elems()];
            read(optimizer.engine(), comm, &named.name, &mut values)?;
            whole.params.insert(named.name.clone(), (shape, values));
        }
    }
    let result = body(&mut whole);
    let open = modifier_rank.is_some() && state.has_gradients();
    let result = result.and_then(|result| match open {
        true => Err(Error::Usage(format!(
            "gathered_parameters: weights of {} are written inside of a window of micro-batches, whose gradients belong to \
             the old ones; write them behind `step`",
            state.name
        ))),
        false => Ok(result),
    });
    let result = together(comm, "gathered_parameters", result)?;
    if let Some(root) = modifier_rank {
        let mut optimizer = state.optimizer()?;
        let n_steps = optimizer.n_steps();
        for (name, (_, values)) in &whole.params {
            write(optimizer.engine_mut(), comm, name, values, root)?;
        }
        optimizer.engine_mut().finish_load(n_steps)?;
        state.update();
    }
    Ok(result)
}

/// The parameters as the model names them.
fn choose<M: Module>(model: &Prepared<M>, params: &Parameters) -> Result<Vec<NamedParam>> {
    let own = parameters(&**model.module());
    let named = params.iter().map(|wanted| {
        own.iter().find(|named| named.param.id() == wanted.param.id()).cloned().ok_or_else(|| {
            let of = if wanted.param.is_settled() { "of another prepared model" } else { "of no prepared model" };
            Error::Usage(format!(
                "gathered_parameters: \"{}\" is {of}, and not of {}; give parameters of the model that is named first",
                wanted.name, model.state.name
            ))
        })
    });
    named.collect()
}

/// The outcome of a rank, or that of the first that failed.
#[track_caller]
pub(super) fn together<T>(comm: &Communicator, what: &str, mine: Result<T>) -> Result<T> {
    let message = share(comm, mine.as_ref().map(|_| ()).map_err(ToString::to_string))?;
    let mine = mine?;
    message.map_err(|(rank, cause)| Error::Usage(format!("{what} failed on rank {rank}: {cause}")))?;
    Ok(mine)
}

/// The whole f32 values of a parameter: each rank gives what it updates.
pub(super) fn read(engine: &Engine, comm: &Communicator, name: &str, out: &mut [f32]) -> Result<()> {
    let own = slices_of(engine, name);
    let mut values = Vec::new();
    for chunk in runs(0..out.len(), CHUNK) {
        let mut bytes = Vec::new();
        for slice in own.iter().filter_map(|slice| inside(slice, &chunk)) {
            values.resize(slice.elements.len(), 0.0f32);
            engine.read_state(&slice, &mut values)?;
            for number in [slice.elements.start, slice.elements.len()] {
                bytes.extend((number as u64).to_le_bytes());
            }
            bytes.extend_from_slice(bytemuck::cast_slice(&values));
        }
        for mut rest in comm.all_gather_bytes(&bytes)?.iter().map(Vec::as_slice) {
            while let Some((head, behind)) = rest.split_at_checked(16) {
                let [start, len] =
                    [0, 8].map(|at| head[at..at + 8].iter().rev().fold(0, |x, &b| x << 8 | usize::from(b)));
                let split = behind.split_at_checked(len * 4).zip(out.get_mut(start..start + len));
                let ((run, behind), out) = split.ok_or_else(|| {
                    Error::Usage(format!("the ranks hold \"{name}\" in other shapes than this one"))
                })?;
                out.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(run));
                rest = behind;
            }
        }
    }
    Ok(())
}

/// Gives all ranks the values of a parameter on `root`; each writes what it updates.
fn write(engine: &mut Engine, comm: &Communicator, name: &str, values: &[f32], root: usize) -> Result<()> {
    let own = slices_of(engine, name);
    for chunk in runs(0..values.len(), CHUNK) {
        let given = if comm.rank() == root { bytemuck::cast_slice(&values[chunk.clone()]) } else { &[] };
        let given: Vec<f32> = bytemuck::pod_collect_to_vec(&comm.broadcast_bytes(root, given)?);
        for slice in own.iter().filter_map(|slice| inside(slice, &chunk)) {
            let at = slice.elements.start - chunk.start..slice.elements.end - chunk.start;
            let part = given.get(at).ok_or_else(|| {
                Error::Usage(format!("rank {root} gave other than the {} values of \"{name}\"", values.len()))
            })?;
            engine.write_state(&slice, part)?;
        }
    }
    Ok(())
}

fn slices_of(engine: &Engine, name: &str) -> Vec<Slice> {
    let slices = engine.needed_slices().into_iter();
    slices.filter(|slice| slice.kind == MASTER && slice.name == name).collect()
}

fn inside(slice: &Slice, chunk: &Range<usize>) -> Option<Slice> {
    let elements = slice.elements.start.max(chunk.start)..slice.elements.end.min(chunk.end);
    (!elements.is_empty()).then(|| Slice { elements, ..slice.clone() })
}

/// All weights of a model, parameter after parameter; `take` gets each on every rank.
pub(super) fn each_parameter(
    state: &PreparedState,
    model: &dyn Module,
    comm: &Communicator,
    take: &mut dyn FnMut(&NamedParam, &[f32]),
) -> Result<()> {
    let optimizer = state.optimizer()?;
    for named in parameters(model) {
        let mut values = vec![0.0; named.param.shape().n_elems()];
        read(optimizer.engine(), comm, &named.name, &mut values)?;
        take(&named, &values);
    }
    Ok(())
}
