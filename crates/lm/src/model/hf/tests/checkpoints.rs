//! Models in checkpoints: what ranks write together is what one writes alone, also where each machine has a folder of its own.

use std::collections::BTreeSet;
use std::fs;

use oarlock_comm::{Communicator, shm};
use oarlock_engine::Result;
use oarlock_engine::checkpoint::weights::{SafetensorsSource, WorkingCopies};
use oarlock_engine::checkpoint::{
    ClientState, Contents, MergeOptions, Problem, Saver, Stores, list, load, newest, retain, save_model,
    save_model_in,
};
use oarlock_engine::nn::{Module, NamedParam};
use oarlock_engine::optim::OptimizerConfig;
use oarlock_engine::shard::{Engine, Placements, ShardingConfig};

use super::*;
use crate::model::Decoder;

/// Runs `f` on each of `n` ranks and returns what they return, in their order.
fn on_ranks<T: Send>(n: usize, f: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    shm::on_threads(n, |comm| f(&comm)).unwrap()
}

/// Saves and waits.
fn save(dir: &Path, comm: &Communicator, engine: &Engine, contents: Contents) -> Result<()> {
    let mut saver = Saver::default();
    saver.begin(dir, comm, engine, contents)?;
    assert_eq!(saver.finish(comm)?.as_deref(), Some(dir));
    Ok(())
}

/// Four ranks on two machines.
fn stores() -> Stores {
    Stores::new(vec![0, 0, 2, 2]).unwrap()
}

/// The folder of a rank's machine.
fn on_machine(base: &Path, rank: usize) -> PathBuf {
    base.join(format!("machine-{}", stores().leader_of(rank))).join("checkpoint-7")
}

fn at_step(step: u64) -> ClientState {
    ClientState { step, ..ClientState::default() }
}

/// The names in a folder, but for the record of what is whose.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != oarlock_engine::disk::RECORD);
    names.sort();
    names
}

fn engine_of(model: &dyn Module, comm: &Communicator, placements: Placements, dtype: DType) -> Engine {
    let options = ShardingConfig { dtype, placements, ..ShardingConfig::default() };
    let (group, role) =
        (&|named: &NamedParam| usize::from(named.param.shape().sizes().len() < 2), &OptimizerConfig::role);
    let device = Device::strict(Isa::detect(), Par::threads(1).unwrap());
    Engine::new(model, comm, &device, options, OptimizerConfig::default().rule, group, role).unwrap()
}

/// An engine over a golden model on this rank, with what is needed to write it.
fn prepared(
    name: &str,
    comm: &Communicator,
    placements: Placements,
    dtype: DType,
) -> (HfConfig, Decoder, Engine) {
    let config = HfConfig::read(&golden(name)).unwrap();
    let model = Decoder::new(config.decoder().clone(), 8).unwrap();
    let mut weights = SafetensorsSource::open(&golden(name), &config, &model).unwrap();
    let mut engine = engine_of(&model, comm, placements, dtype);
    engine.initialize(&mut weights).unwrap();
    (config, model, engine)
}

#[test]
fn ranks_together_write_the_model_that_one_writes_alone() {
    for (name, working, dtype, max_shard_bytes) in [
        ("llama", DType::F32, DType::F32, 8000),
        ("llama", DType::BF16, DType::BF16, SaveOptions::MAX_SHARD_BYTES),
        ("minimind", DType::F32, DType::F16, SaveOptions::MAX_SHARD_BYTES),
    ] {
        let (from, folder) = (golden(name), tempfile::tempdir().unwrap());
        let options = SaveOptions { dtype, max_shard_bytes, side_files_from: Some(&from) };
        let alone = folder.path().join("alone");
        on_ranks(1, |comm| {
            let (config, model, _engine) = prepared(name, comm, Placements::WHOLE, working);
            save_pretrained(&alone, &config, &model, &mut WorkingCopies::of(&model), &options).unwrap();
        });
        for (n_ranks, placements) in
            [(1, Placements::OPTIMIZER), (2, Placements::PARAMETERS), (3, Placements::WHOLE)]
        {
            let [together, checkpoint, merged] =
                ["together", "checkpoint-4", "merged"].map(|name| folder.path().join(name));
            on_ranks(n_ranks, |comm| {
                let (config, model, engine) = prepared(name, comm, placements, working);
                let files = || config.files_of(&model, &options).unwrap();
                save_model(&together, comm, &engine, files(), &BTreeSet::new(), |_| Ok(())).unwrap();
                let contents = Contents { model: Some(files()), ..Contents::state(at_step(4)) };
                save(&checkpoint, comm, &engine, contents).unwrap();
            });
            let merge = MergeOptions {
                tag: None,
                model: None,
                dtype: Some(dtype),
                max_shard_bytes,
                overwrite: false,
            };
            merge_weights(&checkpoint, &merged, &merge).unwrap();
            let all = names(&alone);
            assert!(all.iter().any(|name| name == "tokenizer.json" || name == "config.json"));
            assert_eq!(names(&together), all);
            for file in &all {
                let expected = fs::read(alone.join(file)).unwrap();
                assert!(fs::read(together.join(file)).unwrap() == expected, "{name} {n_ranks} {file}");
                assert!(fs::read(checkpoint.join(file)).unwrap() == expected, "{name} {n_ranks} {file}");
            }
            let tensors = |dir: &Path| {
                let mut all = std::collections::BTreeMap::new();
                for file in names(dir).iter().filter(|name| name.ends_with(".safetensors")) {
                    let bytes = fs::read(dir.join(file)).unwrap();
                    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                    all.extend(read.iter().map(|(name, t)| {
                        (name.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec()))
                    }));
                }
                all
            };
            assert!(tensors(&merged) == tensors(&alone), "{name} {n_ranks}");
        }
    }
}

#[test]
fn a_checkpoint_with_the_model_alone_counts_but_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = |n: u64| folder.path().join(format!("checkpoint-{n}"));
    on_ranks(1, |comm| {
        let (_, _model, engine) = prepared("qwen2", comm, Placements::OPTIMIZER, DType::F32);
        save(&dir(1), comm, &engine, Contents::state(at_step(1))).unwrap();
    });
    on_ranks(2, |comm| {
        let (config, model, mut engine) = prepared("qwen2", comm, Placements::GRADIENTS, DType::F32);
        let options = SaveOptions::new(DType::F32, None);
        for n in [2, 3] {
            let files = config.files_of(&model, &options).unwrap();
            let contents = Contents { state: false, model: Some(files), ..Contents::state(at_step(n)) };
            save(&dir(n), comm, &engine, contents).unwrap();
        }
        let error = load(&dir(3), comm, &mut engine).unwrap_err().to_string();
        assert!(error.ends_with(&Problem::OnlyModel.to_string()), "{error}");
    });
    assert_eq!(names(&dir(3)), ["config.json", "generation_config.json", "model.safetensors", "state"]);
    assert_eq!(names(&dir(3).join("state")), ["manifest.json"]);
    let listed: Vec<_> =
        list(folder.path()).unwrap().into_iter().map(|l| (l.only_model, l.problem)).collect();
    assert_eq!(listed, [(false, None), (true, None), (true, None)]);
    let newest = newest(folder.path()).unwrap();
    assert_eq!((newest.path, newest.skipped), (Some(dir(1)), vec![]));
    assert_eq!(retain(folder.path(), 2).unwrap(), [dir(1)]);
}
#[test]
fn every_machine_has_the_whole_model() {
    let (from, base) = (golden("llama"), tempfile::tempdir().unwrap());
    let options = SaveOptions { dtype: DType::F32, max_shard_bytes: 8000, side_files_from: Some(&from) };
    let alone = base.path().join("alone");
    on_ranks(1, |comm| {
        let (config, model, _engine) = prepared("llama", comm, Placements::WHOLE, DType::F32);
        save_pretrained(&alone, &config, &model, &mut WorkingCopies::of(&model), &options).unwrap();
    });
    on_ranks(4, |comm| {
        let (config, model, engine) = prepared("llama", comm, Placements::PARAMETERS, DType::F32);
        let files = || config.files_of(&model, &options).unwrap();
        let dir = on_machine(base.path(), comm.rank());
        let model = dir.with_file_name("model");
        save_model_in(&model, comm, &stores(), &engine, files(), &BTreeSet::new(), |_| Ok(())).unwrap();
        let mut saver = Saver::default();
        saver.set_stores(stores());
        let contents = Contents { model: Some(files()), ..Contents::state(at_step(7)) };
        saver.begin(&dir, comm, &engine, contents).unwrap();
        saver.finish(comm).unwrap();
    });
    for rank in [0, 2] {
        let dir = on_machine(base.path(), rank);
        assert_eq!(names(&dir.with_file_name("model")), names(&alone));
        for file in names(&alone) {
            let expected = fs::read(alone.join(&file)).unwrap();
            assert!(fs::read(dir.join(&file)).unwrap() == expected, "{file}");
            assert!(fs::read(dir.with_file_name("model").join(&file)).unwrap() == expected, "{file}");
        }
    }
}
