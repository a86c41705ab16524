//! Checkpoints end to end, with ranks as threads: what comes back, what is refused, what a dead run leaves.

mod background;
mod damage;
mod folders;
mod frozen;
mod full_disk;
mod parts;
mod roundtrip;
mod tags;

use std::path::Path;

use oarlock_comm::{Communicator, shm};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par};

use super::{ClientState, Contents, Saver};
use crate::Result;
use crate::checkpoint::weights::{ModelFiles, Weight};
use crate::nn::{Embedding, Linear, Module, NamedParam, RmsNorm, Unit, Visitor};
use crate::optim::{OptimizerConfig, Rule};
use crate::shard::{Engine, Placements, SeededInit, ShardingConfig, Slice};

/// Units of several blocks, so that three ranks share each, and of less than one.
pub struct Model {
    pub embed: Unit<Embedding>,
    pub proj: Unit<Linear>,
    pub norm: RmsNorm,
}

impl Model {
    pub fn new(vocab: usize, bias: bool) -> Model {
        Model {
            embed: Unit::new(Embedding::normal(vocab, 50, 0.02).unwrap()),
            proj: Unit::new(Linear::normal(90, 131, bias, 0.02).unwrap()),
            norm: RmsNorm::new(33, 1e-5).unwrap(),
        }
    }
}

impl Module for Model {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("embed", &self.embed);
        visitor.child("proj", &self.proj);
        visitor.child("norm", &self.norm);
    }
}

/// Runs `f` on each of `n` ranks and returns what they return, in their order.
pub fn on_ranks<T: Send>(n: usize, f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    shm::on_threads(n, |comm| f(&comm)).unwrap()
}

/// Saving and loading may touch its memory through copies only.
pub fn device() -> Device {
    Device::strict(Isa::detect(), Par::threads(1).unwrap())
}

pub fn engine_of(model: &Model, comm: &Communicator, placements: Placements, dtype: DType) -> Engine {
    let mut engine = bare_engine(model, comm, placements, dtype);
    engine.initialize(&mut SeededInit::new(1, &device())).unwrap();
    engine
}

/// An engine without weights.
pub fn bare_engine(model: &dyn Module, comm: &Communicator, placements: Placements, dtype: DType) -> Engine {
    engine_with(OptimizerConfig::default().rule, model, comm, placements, dtype)
}

/// An engine without weights, for a rule.
pub fn engine_with(
    rule: Rule,
    model: &dyn Module,
    comm: &Communicator,
    placements: Placements,
    dtype: DType,
) -> Engine {
    let options = ShardingConfig { dtype, placements, ..ShardingConfig::default() };
    let (param_group, role) =
        (&|named: &NamedParam| usize::from(named.param.shape().sizes().len() < 2), &OptimizerConfig::role);
    Engine::new(model, comm, &device(), options, rule, param_group, role).unwrap()
}

/// The bits that a test puts into one element: any f32, NaN and infinity included.
pub fn pattern(name: &str, kind: &str, element: usize, salt: u64) -> f32 {
    let text = format!("{name} {kind} {element} {salt}");
    let value = f32::from_bits(twox_hash::XxHash64::oneshot(0, text.as_bytes()) as u32);
    // Weights that are not finite are not written into models.
    if kind == "master" && !value.is_finite() { 1.0 } else { value }
}

/// Fills all state with the pattern.
pub fn fill(engine: &mut Engine, n_steps: u64, salt: u64) {
    for slice in engine.needed_slices() {
        let values: Vec<f32> =
            slice.elements.clone().map(|i| pattern(&slice.name, slice.kind, i, salt)).collect();
        engine.write_state(&slice, &values).unwrap();
    }
    engine.finish_load(n_steps).unwrap();
}

/// The bits of the state that this rank owns.
pub fn state_of(engine: &Engine) -> Vec<(Slice, Vec<u32>)> {
    let snapshot = engine.snapshot();
    let mut all = Vec::new();
    for slice in (0..snapshot.units()).flat_map(|unit| snapshot.slices(unit)) {
        let mut values = vec![0.0; slice.elements.len()];
        snapshot.read(&slice, &mut values).unwrap();
        all.push((slice, values.into_iter().map(f32::to_bits).collect()));
    }
    all
}

/// Whether all state of this rank is the pattern.
pub fn is_pattern(engine: &Engine, salt: u64) -> bool {
    state_of(engine).into_iter().all(|(slice, bits)| {
        let expected = slice.elements.clone().map(|i| pattern(&slice.name, slice.kind, i, salt).to_bits());
        expected.eq(bits)
    })
}

/// Saves and waits.
pub fn save(dir: &Path, comm: &Communicator, engine: &Engine, contents: Contents) -> Result<()> {
    let mut saver = Saver::default();
    saver.begin(dir, comm, engine, contents)?;
    assert_eq!(saver.finish(comm)?.as_deref(), Some(dir));
    Ok(())
}

pub fn client(step: u64) -> ClientState {
    let mut client = ClientState { step, epoch: 1, consumed_samples: 1 << 60, ..ClientState::default() };
    client.seeds.insert("data".into(), u64::MAX);
    client.client.insert("best".into(), serde_json::json!(0.1 + 0.2));
    client.client.insert("tiny".into(), serde_json::json!(f64::from_bits(0x0010_0000_0000_0001)));
    client
}

/// Saves the pattern from `n` ranks, with one more file.
pub fn save_pattern(dir: &Path, n: usize, salt: u64) {
    on_ranks(n, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        fill(&mut engine, 7, salt);
        let extra = |dir: &Path| {
            std::fs::write(dir.join("config.json"), "{\"model_type\": \"own\"}").unwrap();
            Ok(())
        };
        save(dir, comm, &engine, Contents { extra: Box::new(extra), ..Contents::state(client(7)) }).unwrap();
    });
}

/// The names in a folder, but for the record of what is whose.
pub fn names(folder: &Path) -> Vec<String> {
    let names = super::folder::entries(folder).unwrap().into_iter().map(|(name, _)| name);
    names.filter(|name| name != crate::disk::RECORD).collect()
}

/// Loads on two ranks, expects the same refusal on both and the model as it was, and returns the refusal.
pub fn refusal(dir: &Path) -> String {
    refusal_for(dir, || Model::new(90, true))
}

pub fn refusal_for(dir: &Path, model: impl Fn() -> Model + Sync) -> String {
    let mut errors = on_ranks(2, |comm| {
        let model = model();
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        fill(&mut engine, 3, 99);
        let error = super::load(dir, comm, &mut engine).unwrap_err().to_string();
        assert!(is_pattern(&engine, 99) && engine.n_steps() == 3, "a refused checkpoint changes nothing");
        error
    });
    assert_eq!(errors[0], errors[1]);
    errors.swap_remove(0)
}

/// The files of a model as other programs may lay them out: the names of the parameters, and one file more.
pub fn lay_out(
    dir: &Path,
    shapes: Vec<(String, Vec<usize>)>,
    dtype: DType,
    max_shard_bytes: u64,
) -> Result<ModelFiles> {
    let weight = |(name, shape): (String, Vec<usize>)| Weight {
        stored: name.clone(),
        name,
        shape,
        dtype: dtype.into(),
    };
    let weights: Vec<Weight> = shapes.into_iter().map(weight).collect();
    let mut files = ModelFiles::new(&weights, max_shard_bytes)?;
    files.take_over(dir, ["config.json"]);
    Ok(files)
}
