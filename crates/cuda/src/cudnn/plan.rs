//! A plan: how cuDNN computes a graph, chosen among what gives bitwise identical results every time and makes do with a
//! workspace.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::api::{Api, Handle, call};
use super::descriptor::{Descriptor, Kind, Type};
use super::graph::Graph;
use crate::error::{Error, Result};

const HEURISTIC_MODE: c_int = 200;
const HEURISTIC_GRAPH: c_int = 201;
const HEURISTIC_RESULTS: c_int = 202;
const HEURISTIC_DEVICE: c_int = 204;
const CONFIG_ENGINE: c_int = 300;
const PLAN_HANDLE: c_int = 400;
const PLAN_CONFIG: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const PLAN_DEVICE: c_int = 407;
const GRAPH_HANDLE: c_int = 800;
const GRAPH_OPS: c_int = 801;
const PACK_IDS: c_int = 1000;
const PACK_POINTERS: c_int = 1001;
const PACK_WORKSPACE: c_int = 1003;
const ENGINE_INDEX: c_int = 1301;
const ENGINE_NUMERICAL_NOTE: c_int = 1303;
const DEVICE_JSON: c_int = 2702;

/// `CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC`.
const NONDETERMINISTIC: c_int = 4;
/// More notes than there are.
const MOST_NOTES: usize = 32;
/// `CUDNN_HEUR_MODE_A` and `CUDNN_HEUR_MODE_FALLBACK`.
const HEURISTICS: [c_int; 2] = [3, 2];
/// As many of the proposals of a heuristic are looked at.
const MOST_PROPOSALS: usize = 16;

/// What a plan is for.
pub(super) enum Target {
    /// The GPU of a handle.
    Handle(Handle),
    /// A GPU that need not be there.
    Properties(Descriptor),
}

impl Target {
    /// A GPU of these properties, in cuDNN's JSON.
    pub(super) fn properties(api: &Arc<Api>, json: &str) -> Result<Target> {
        let properties = Descriptor::new(api, Kind::DeviceProperties)?;
        properties.set(DEVICE_JSON, Type::Char, json.as_bytes())?;
        Ok(Target::Properties(properties.finalize()?))
    }

    /// Sets one of two attributes, of which 0 is none.
    fn put(&self, on: &Descriptor, handle: c_int, properties: c_int) -> Result<()> {
        match self {
            Target::Handle(value) if handle != 0 => on.set(handle, Type::Handle, &[*value]),
            Target::Properties(value) if properties != 0 => on.set_descriptors(properties, &[value]),
            _ => Ok(()),
        }
    }
}

/// What computes a graph.
pub(super) struct Plan {
    plan: Descriptor,
    /// The plan refers to what the graph consists of.
    graph: Graph,
    _graph_descriptor: Descriptor,
    pub(super) engine: i64,
    pub(super) workspace_bytes: usize,
}

impl Plan {
    /// The first plan of cuDNN's that is deterministic and needs no more workspace; none where there is none.
    pub(super) fn choose(
        api: &Arc<Api>,
        target: &Target,
        graph: Graph,
        workspace_bytes: usize,
    ) -> Result<Option<Plan>> {
        let descriptor = Descriptor::new(api, Kind::Graph)?;
        descriptor.set_descriptors(GRAPH_OPS, &graph.ops())?;
        target.put(&descriptor, GRAPH_HANDLE, 0)?;
        let descriptor = descriptor.finalize()?;
        for mode in HEURISTICS {
            // A heuristic that knows nothing of the graph refuses it.
            let Ok(proposals) = propose(api, target, &descriptor, mode) else { continue };
            for config in proposals {
                let Some(engine) = deterministic_engine(api, &config)? else { continue };
                let Ok(plan) = build(api, target, &config) else { continue };
                let mut bytes = [0i64];
                plan.get(PLAN_WORKSPACE, Type::Int64, &mut bytes)?;
                match usize::try_from(bytes[0]) {
                    Ok(needed) if needed <= workspace_bytes => {
                        return Ok(Some(Plan {
                            plan,
                            graph,
                            _graph_descriptor: descriptor,
                            engine,
                            workspace_bytes: needed,
                        }));
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// Runs it on the stream of a handle with the tensors of these numbers.
    ///
    /// # Safety
    /// The handle's stream is of the context of all memory. The tensors have the sizes that the graph says, and the workspace
    /// has as many bytes as the plan says; they live until the stream has done it.
    pub(super) unsafe fn execute(
        &self,
        api: &Arc<Api>,
        handle: Handle,
        tensors: &[(i64, u64)],
        workspace: u64,
    ) -> Result<()> {
        let device = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let memory = tensors.iter().map(|&(id, address)| (id, device(address)));
        let values = self.graph.values().map(|(id, value)| (id, std::ptr::from_ref(value).cast_mut().cast()));
        let (ids, pointers): (Vec<i64>, Vec<*mut c_void>) = memory.chain(values).unzip();
        let pack = Descriptor::new(api, Kind::VariantPack)?;
        pack.set(PACK_IDS, Type::Int64, &ids)?;
        pack.set(PACK_POINTERS, Type::Pointer, &pointers)?;
        pack.set(PACK_WORKSPACE, Type::Pointer, &[device(workspace)])?;
        let pack = pack.finalize()?;
        // SAFETY: both descriptors are live and complete, the handle is the one of the plan; the caller vouches for the memory.
        // Values are read before the call returns.
        api.check(unsafe { call!(api, execute(handle, self.plan.handle(), pack.handle())) })
    }
}

/// The configurations that a heuristic proposes, the best one first.
fn propose(api: &Arc<Api>, target: &Target, graph: &Descriptor, mode: c_int) -> Result<Vec<Descriptor>> {
    let heuristic = Descriptor::new(api, Kind::EngineHeuristic)?;
    heuristic.set_descriptors(HEURISTIC_GRAPH, &[graph])?;
    heuristic.set_number(HEURISTIC_MODE, Type::HeuristicMode, mode)?;
    target.put(&heuristic, 0, HEURISTIC_DEVICE)?;
    let heuristic = heuristic.finalize()?;
    let configs = (0..MOST_PROPOSALS).map(|_| Descriptor::new(api, Kind::EngineConfig));
    let mut configs = configs.collect::<Result<Vec<_>>>()?;
    heuristic.get_descriptors(HEURISTIC_RESULTS, &mut configs)?;
    Ok(configs)
}

/// The number of a configuration's engine, unless that gives other bits from time to time.
fn deterministic_engine(api: &Arc<Api>, config: &Descriptor) -> Result<Option<i64>> {
    let mut engine = vec![Descriptor::new(api, Kind::Engine)?];
    config.get_descriptors(CONFIG_ENGINE, &mut engine)?;
    let Some(engine) = engine.first() else { return Ok(None) };
    let (mut notes, mut index) = ([0; MOST_NOTES], [-1i64]);
    let n = engine.get(ENGINE_NUMERICAL_NOTE, Type::NumericalNote, &mut notes)?;
    engine.get(ENGINE_INDEX, Type::Int64, &mut index)?;
    Ok((!notes[..n].contains(&NONDETERMINISTIC)).then_some(index[0]))
}

fn build(api: &Arc<Api>, target: &Target, config: &Descriptor) -> Result<Descriptor> {
    let plan = Descriptor::new(api, Kind::Plan)?;
    target.put(&plan, PLAN_HANDLE, PLAN_DEVICE)?;
    plan.set_descriptors(PLAN_CONFIG, &[config])?;
    plan.finalize()
}

/// The error that there is no plan.
pub(super) fn none(api: &Api, what: String, workspace_bytes: usize) -> Error {
    Error::NoPlan { version: api.version(), what, workspace_bytes }
}
