//! DeepSpeed's shape of a training run: engines, plugins, whole parameters; the examples beside the Python originals.

use std::fmt::Debug;
use std::path::Path;

use oarlock::config::LossScale;
use oarlock::deepspeed::{self, Config, DeepSpeedEngine, InitializeArgs, zero};
use oarlock::nn::{self, Linear};
use oarlock::optim::Parameters;
use oarlock::optim::Stepped;
use oarlock::shard::Gather;
use oarlock::{
    Accelerator, AcceleratorConfig, DType, DeepSpeedPlugin, DummyOptim, DummyScheduler, OffloadDevice,
    Result, ShardingConfig, Tensor, lr_scheduler, optim,
};
use oarlock_comm::{Communicator, shm};
use oarlock_tensor::cpu::difference::largest_difference;
use oarlock_tensor::ops;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[allow(dead_code)]
#[path = "../examples/deepspeed_loop.rs"]
mod deepspeed_loop;
#[allow(dead_code)]
#[path = "../examples/two_models.rs"]
mod two_models;
#[path = "deepspeed/wrong.rs"]
mod wrong;

use deepspeed_loop::{Net, batch};

/// What each rank of a world comes to.
fn on_ranks<T: Send>(world: usize, run: impl Fn(&Communicator) -> Result<T> + Sync) -> Vec<Result<T>> {
    shm::try_on_threads(world, |comm| run(&comm)).unwrap()
}

/// What all ranks come to, which is the same.
fn same<T: Send + PartialEq + Debug>(world: usize, run: impl Fn(&Communicator) -> Result<T> + Sync) -> T {
    let mut all: Vec<T> = on_ranks(world, run).into_iter().map(Result::unwrap).collect();
    let first = all.remove(0);
    assert!(all.iter().all(|other| *other == first), "{first:?} {all:?}");
    first
}

fn accelerator(comm: &Communicator, config: AcceleratorConfig) -> Result<Accelerator> {
    Accelerator::over(comm.clone(), &AcceleratorConfig { threads: Some(1), ..config })
}

fn solo(config: AcceleratorConfig) -> Result<Accelerator> {
    accelerator(&Communicator::solo(), config)
}

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deepspeed_library/golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[track_caller]
fn close(ours: &[f32], expected: &[f32], within: f32) {
    let apart = largest_difference(ours, expected).unwrap();
    assert!(apart < f64::from(within), "{apart}: {ours:?} {expected:?}");
}

fn config(value: &Value) -> Config {
    Config::from_value(value).unwrap()
}

fn ds_config(stage: u8) -> Value {
    json!({
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": { "stage": stage, "stage3_param_persistence_threshold": 0 },
        "optimizer": { "type": "AdamW", "params": { "lr": 0.02 } },
    })
}

fn engine(accelerator: &Accelerator, value: &Value) -> Result<DeepSpeedEngine<Net>> {
    let args = InitializeArgs {
        accelerator: Some(accelerator.clone()),
        ..InitializeArgs::new(Net::new()?, config(value))
    };
    Ok(deepspeed::initialize(args)?.0)
}

/// A micro-batch: forward and backward.
fn pass(engine: &DeepSpeedEngine<Net>, at: usize) -> Result<f32> {
    let (x, y) = batch(at * 4, 4);
    let x = Tensor::from_slice(&x, [4, 4], engine.device())?;
    let y = Tensor::from_slice(&y, [4, 1], engine.device())?;
    let x = ops::cast(&x, engine.accelerator().dtype())?;
    let loss = ops::cast(&engine.forward(&x)?, DType::F32)?.sub(&y)?.square()?.mean_all()?;
    engine.backward(&loss)?;
    loss.item::<f32>().map_err(Into::into)
}

#[test]
fn the_loop_of_the_guide_has_deepspeeds_losses_and_goes_on_to_the_bit() {
    let expected = numbers(&golden()["deepspeed_loop"]["losses"]);
    let mut of_one = Vec::new();
    for world in [1, 2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        let whole = same(world, move |comm| {
            deepspeed_loop::train(&accelerator(comm, AcceleratorConfig::default())?, &path, usize::MAX)
        });
        close(&whole, &expected, 1e-4);
        if of_one.is_empty() {
            of_one.clone_from(&whole);
        }
        close(&whole, &of_one, 1e-5);

        // Stopped after 21 micro-batches, it goes on behind its checkpoint after 16.
        let folder = tempfile::tempdir().unwrap();
        for (stop, from) in [(21, 0), (usize::MAX, 16)] {
            let path = folder.path().to_path_buf();
            let losses = same(world, move |comm| {
                deepspeed_loop::train(&accelerator(comm, AcceleratorConfig::default())?, &path, stop)
            });
            assert_eq!(losses, whole[from..stop.min(whole.len())], "{world} ranks");
        }
    }
}

#[test]
fn rates_norms_and_counts_are_deepspeeds() {
    let golden = &golden()["deepspeed_loop"];
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/deepspeed_loop/ds_config.json"),
    );
    let config = Config::from_text("ds_config.json", &text.unwrap()).unwrap();
    let accelerator = solo(AcceleratorConfig::default()).unwrap();
    let net = Net::new().unwrap();
    let args = InitializeArgs { accelerator: Some(accelerator.clone()), ..InitializeArgs::new(net, config) };
    let (engine, ()) = deepspeed::initialize(args).unwrap();
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deepspeed_library/first.safetensors");
    accelerator.load_model(engine.model(), weights).unwrap();
    assert_eq!((engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()), (8, 4));
    assert_eq!((engine.gradient_accumulation_steps(), engine.zero_optimization_stage()), (2, 2));
    assert_eq!(engine.get_global_grad_norm(), None);
    let (mut rates, mut norms) = (Vec::new(), Vec::new());
    for at in 0..32 {
        pass(&engine, at).unwrap();
        rates.push(engine.get_lr().unwrap() as f32);
        assert_eq!(engine.is_gradient_accumulation_boundary(), at % 2 == 1);
        if engine.step().unwrap().is_some() {
            norms.push(engine.get_global_grad_norm().unwrap() as f32);
        }
    }
    close(&rates, &numbers(&golden["rates"]), 1e-8);
    close(&norms, &numbers(&golden["norms"]), 1e-3);
    assert_eq!((engine.global_steps(), engine.micro_steps(), engine.skipped_steps()), (16, 32, 0));
    assert_eq!(engine.loss_scale().unwrap(), 1.0);
}

#[test]
fn two_models_in_turn_have_the_losses_of_accelerate() {
    let golden = &golden()["two_models"];
    let mut of_one: Vec<Vec<f32>> = Vec::new();
    for world in [1, 2, 4] {
        let both = same(world, move |comm| {
            two_models::train(&accelerator(comm, two_models::config(comm.world_size())?)?)
        });
        for (index, name) in ["first", "second"].into_iter().enumerate() {
            close(&both[index], &numbers(&golden[name]), 1e-4);
            if world > 1 {
                close(&both[index], &of_one[index], 1e-5);
            }
        }
        if world == 1 {
            of_one = both.to_vec();
        }
    }
}

#[test]
fn a_window_ends_where_one_says() {
    let mut value = ds_config(1);
    value["gradient_accumulation_steps"] = json!(2);
    let engine = engine(&solo(AcceleratorConfig::default()).unwrap(), &value).unwrap();
    engine.set_gradient_accumulation_boundary(false);
    for at in 0..3 {
        pass(&engine, at).unwrap();
        assert_eq!(engine.step().unwrap(), None);
    }
    engine.set_gradient_accumulation_boundary(true);
    pass(&engine, 3).unwrap();
    assert_eq!(engine.step().unwrap(), Some(Stepped::Done));
    assert_eq!((engine.global_steps(), engine.micro_steps()), (1, 4));
    let reported = engine.no_sync(|| engine.step()).unwrap_err().to_string();
    assert!(reported.contains("inside of `no_sync`"), "{reported}");
    assert_eq!(engine.no_sync(|| Ok(7)).unwrap(), 7);
}

#[test]
fn a_step_that_overflows_is_skipped_and_leaves_schedule_and_moments() {
    let mut value = ds_config(2);
    value["fp16"] = json!({ "enabled": true, "initial_scale_power": 40, "hysteresis": 1 });
    value["scheduler"] =
        json!({ "type": "WarmupLR", "params": { "warmup_num_steps": 10, "warmup_max_lr": 0.02 } });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let counts = same(2, move |comm| {
        let accelerator = accelerator(comm, AcceleratorConfig::default())?;
        let engine = engine(&accelerator, &value)?;
        assert_eq!(engine.loss_scale()?, 2f64.powi(40));
        let before = whole(engine.model())?;
        let mut skipped = 0;
        loop {
            pass(&engine, 0)?;
            if engine.step()? == Some(Stepped::Done) {
                break;
            }
            skipped += 1;
            assert_eq!(engine.lr_scheduler().map(|scheduler| scheduler.steps()), Some(0));
            assert_eq!(engine.loss_scale()?, 2f64.powi(40 - skipped as i32));
            assert_eq!(whole(engine.model())?, before);
        }
        assert_eq!(engine.global_steps(), skipped + 1);
        assert_eq!(engine.skipped_steps(), skipped);
        assert_eq!(engine.lr_scheduler().map(|scheduler| scheduler.steps()), Some(1));
        engine.save_checkpoint(&path, None, &())?;

        let other = self::engine(&accelerator, &value)?;
        let (loaded, ()) = other.load_checkpoint(&path, None)?.unwrap();
        assert!(loaded.ends_with(format!("global_step{}", engine.global_steps())));
        let state = |engine: &DeepSpeedEngine<Net>| -> Result<_> {
            Ok((engine.loss_scale()?, engine.get_lr()?, engine.skipped_steps(), engine.global_steps()))
        };
        assert_eq!(state(&other)?, state(&engine)?);
        assert_eq!(pass(&other, 1)?, pass(&engine, 1)?);
        Ok(skipped)
    });
    assert!(counts > 3, "{counts}");
}

#[test]
fn the_optimizer_and_the_schedule_of_the_code_win_and_ones_own_rates_hold() {
    let accelerator = solo(AcceleratorConfig::default()).unwrap();
    let mut value = ds_config(0);
    value["scheduler"] = json!({ "type": "WarmupLR" });
    let net = Net::new().unwrap();
    let optimizer = optim::sgd(&net).lr(0.5);
    let schedule = lr_scheduler::linear(&optimizer, 0, 10);
    let args = InitializeArgs {
        accelerator: Some(accelerator.clone()),
        optimizer: Some(optimizer),
        lr_scheduler: Some(schedule),
        ..InitializeArgs::new(net, config(&value))
    };
    let (engine, ()) = deepspeed::initialize(args).unwrap();
    for expected in [0.5, 0.45, 0.4] {
        assert!((engine.get_lr().unwrap() - expected).abs() < 1e-12);
        pass(&engine, 0).unwrap();
        engine.step().unwrap();
    }
    let reported = engine.set_lr(0.1).unwrap_err().to_string();
    assert!(reported.contains("this engine steps a schedule"), "{reported}");

    let own = self::engine(&accelerator, &ds_config(0)).unwrap();
    own.set_lr(0.25).unwrap();
    pass(&own, 0).unwrap();
    own.step().unwrap();
    assert_eq!(own.get_lr().unwrap(), 0.25);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Client {
    step: u64,
    best: f64,
}

#[test]
fn a_client_state_comes_back_as_the_type_that_was_saved_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let reported = same(2, move |comm| {
        let engine = engine(&accelerator(comm, AcceleratorConfig::default())?, &ds_config(3))?;
        assert!(engine.load_checkpoint::<Client>(&path, None)?.is_none());
        pass(&engine, 0)?;
        let reported = engine.save_checkpoint(&path, Some("a"), &()).unwrap_err().to_string();
        assert!(reported.contains("a window of micro-batches is open"), "{reported}");
        engine.step()?;
        engine.save_checkpoint(&path, Some("a"), &Client { step: 1, best: 0.1 + 0.2 })?;
        let (_, client) = engine.load_checkpoint::<Client>(&path, Some("a"))?.unwrap();
        assert_eq!(client, Client { step: 1, best: 0.1 + 0.2 });
        // JSON has no word for what a best loss begins with.
        engine.save_checkpoint(&path, Some("first"), &Client { step: 1, best: f64::INFINITY })?;
        let (_, client) = engine.load_checkpoint::<Client>(&path, Some("first"))?.unwrap();
        assert_eq!(client.best, f64::INFINITY);
        // Nothing has changed when the type is another one.
        pass(&engine, 1)?;
        engine.step()?;
        let before = whole(engine.model())?;
        let reported = engine.load_checkpoint::<Vec<String>>(&path, None).unwrap_err().to_string();
        assert_eq!(whole(engine.model())?, before);
        assert_eq!(engine.global_steps(), 2);
        let reported = reported.replace("load_checkpoint failed on rank 0: ", "");
        Ok(reported.replace(&path.display().to_string(), "…"))
    });
    assert!(
        reported.contains("saved as suite::deepspeed::Client and cannot be read as alloc::vec::Vec<"),
        "{reported}"
    );
}

/// All weights of a model.
fn whole(model: &oarlock::Prepared<Net>) -> Result<Vec<(String, Vec<f32>)>> {
    zero::gathered_parameters(model, model.module(), None, |params| {
        let names: Vec<String> = params.names().map(str::to_owned).collect();
        names.into_iter().map(|name| Ok((name.clone(), params.values(&name)?.to_vec()))).collect()
    })
}

#[test]
fn whole_parameters_are_read_everywhere_and_written_by_one_rank() {
    for (stage, gather, dtype) in [
        (0, Gather::InPlace, DType::F32),
        (1, Gather::InPlace, DType::BF16),
        (2, Gather::InPlace, DType::F32),
        (3, Gather::InPlace, DType::F32),
        (3, Gather::Copy, DType::F32),
        (3, Gather::Copy, DType::BF16),
    ] {
        let weights = same(2, move |comm| {
            let shard = ShardingConfig { gather, ..ShardingConfig::default() };
            let accelerator = accelerator(comm, AcceleratorConfig { shard, ..AcceleratorConfig::default() })?;
            let mut value = ds_config(stage);
            value["bf16"] = json!({ "enabled": dtype == DType::BF16 });
            let engine = engine(&accelerator, &value)?;
            let rank = accelerator.process_index() as f32;
            zero::gathered_parameters(
                engine.model(),
                Parameters::of(engine.module().as_ref()),
                Some(1),
                |params| {
                    assert_eq!(params.shape("up.weight")?.sizes(), [24, 4]);
                    for (i, value) in params.values_mut("up.weight")?.iter_mut().enumerate() {
                        *value = i as f32 / 96.0 + rank;
                    }
                    params.values_mut("down.bias")?.fill(rank);
                    let reported = params.values("down.wieght").unwrap_err().to_string();
                    assert!(reported.ends_with("did you mean \"down.weight\"?"), "{reported}");
                    Ok(())
                },
            )?;
            let weights = whole(engine.model())?;
            // What was not written is as it was drawn, and all of it is what a forward pass sees.
            pass(&engine, 0)?;
            let reported = zero::gathered_parameters(engine.model(), engine.module(), Some(0), |_| Ok(()));
            assert!(reported.unwrap_err().to_string().contains("inside of a window"));
            engine.step()?;
            assert_ne!(whole(engine.model())?, weights);
            Ok(weights)
        });
        let of = |name: &str| &weights.iter().find(|(other, _)| other == name).unwrap().1;
        assert!(
            of("up.weight").iter().enumerate().all(|(i, &x)| x == i as f32 / 96.0 + 1.0),
            "{stage} {gather:?}"
        );
        assert_eq!(of("down.bias"), &[1.0]);
        assert!(of("down.weight").iter().any(|&x| x != 0.0));
    }
}

#[test]
fn written_parameters_are_those_of_the_next_pass() {
    for (stage, gather) in
        [(0, Gather::InPlace), (1, Gather::InPlace), (3, Gather::InPlace), (3, Gather::Copy)]
    {
        let losses = same(2, move |comm| {
            let shard = ShardingConfig { gather, ..ShardingConfig::default() };
            let accelerator = accelerator(comm, AcceleratorConfig { shard, ..AcceleratorConfig::default() })?;
            let engine = engine(&accelerator, &ds_config(stage))?;
            zero::gathered_parameters(engine.model(), engine.module(), Some(0), |params| {
                params.values_mut("down.weight")?.fill(0.0);
                params.values_mut("down.bias").map(|bias| bias.fill(3.0))
            })?;
            engine.eval();
            let y = engine.forward(&Tensor::from_slice(&[0.5f32; 8], [2, 4], engine.device())?)?;
            Ok(y.to_vec::<f32>()?)
        });
        assert_eq!(losses, [3.0, 3.0], "{stage} {gather:?}");
    }
}

#[test]
fn a_closure_that_fails_on_one_rank_fails_on_all() {
    let results = on_ranks(2, |comm| {
        let engine = engine(&accelerator(comm, AcceleratorConfig::default())?, &ds_config(3))?;
        let rank = comm.rank();
        zero::gathered_parameters(engine.model(), engine.module(), Some(0), |params| {
            if rank == 1 { params.values("nothing").map(|_| ()) } else { Ok(()) }
        })
    });
    let reported: Vec<String> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    assert!(
        reported[0].starts_with("gathered_parameters failed on rank 1: no parameter \"nothing\""),
        "{reported:?}"
    );
    assert!(reported[1].starts_with("no parameter \"nothing\""), "{reported:?}");
}

#[test]
fn sixteen_bits_of_the_whole_model_are_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let weights = same(2, move |comm| {
        let mut value = ds_config(3);
        value["bf16"] = json!({ "enabled": true });
        let engine = engine(&accelerator(comm, AcceleratorConfig::default())?, &value)?;
        engine.save_16bit_model(&path, None)?;
        whole(engine.model())
    });
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), weights.len());
    for (name, values) in &weights {
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), safetensors::Dtype::BF16);
        let rounded: Vec<u8> = values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(view.data(), rounded, "{name}");
    }
}

fn plugins(named: &[(&str, Value)]) -> AcceleratorConfig {
    let deepspeed_plugins =
        named.iter().map(|(name, value)| ((*name).to_owned(), config(value).into())).collect();
    AcceleratorConfig { deepspeed_plugins, ..AcceleratorConfig::default() }
}

#[test]
fn the_first_plugin_is_active_until_another_is_selected() {
    let mut teacher = ds_config(3);
    teacher["bf16"] = json!({ "enabled": true });
    let accelerator = solo(plugins(&[("student", ds_config(2)), ("teacher", teacher)])).unwrap();
    assert_eq!(accelerator.get_active_deepspeed_plugin().unwrap().0, "student");
    let second = accelerator.another().unwrap();
    second.select_deepspeed_plugin("teacher").unwrap();
    assert_eq!(accelerator.get_active_deepspeed_plugin().unwrap().0, "teacher");
    let stage = accelerator
        .deepspeed_plugin()
        .and_then(|plugin| plugin.hf_ds_config.as_ref()?.get("zero_optimization.stage"));
    assert_eq!(stage.as_deref(), Some("3"));
    assert_eq!((accelerator.dtype(), second.dtype()), (DType::BF16, DType::BF16));
    accelerator.select_deepspeed_plugin("student").unwrap();
    assert_eq!(second.dtype(), DType::F32);
}

#[test]
fn a_plugin_without_a_file_says_all_by_its_fields() {
    let plugin = DeepSpeedPlugin {
        zero_stage: Some(3),
        gradient_accumulation_steps: Some(3),
        offload_optimizer_device: Some(OffloadDevice::Cpu),
        ..DeepSpeedPlugin::default()
    };
    let settings = AcceleratorConfig { deepspeed_plugin: Some(plugin), ..AcceleratorConfig::default() };
    let accelerator = solo(settings).unwrap();
    let net = Net::new().unwrap();
    let optimizer = optim::adamw(&net);
    let reported = accelerator.prepare((net, optimizer)).err().unwrap().to_string();
    assert!(reported.contains("\"auto\" for train_micro_batch_size_per_gpu"), "{reported}");
}

#[test]
fn a_teacher_is_only_asked_and_the_configuration_counts_the_micro_batches() {
    let mut student = ds_config(2);
    student["gradient_accumulation_steps"] = json!(2);
    student["scheduler"] =
        json!({ "type": "WarmupLR", "params": { "warmup_max_lr": "auto", "warmup_num_steps": "auto" } });
    student["optimizer"]["params"]["lr"] = json!("auto");
    let teacher = ds_config(3);
    let steps = same(2, move |comm| {
        let settings = plugins(&[("student", student.clone()), ("teacher", teacher.clone())]);
        let accelerator = accelerator(comm, settings)?;
        let net = Net::new()?;
        let optimizer = DummyOptim::new(&net).lr(0.125);
        let scheduler = DummyScheduler::new(&optimizer, 100, 2);
        let (net, optimizer, scheduler) = accelerator.prepare((net, optimizer, scheduler))?;
        accelerator.select_deepspeed_plugin("teacher")?;
        let teacher = accelerator.prepare(Net::new()?)?;
        let x = Tensor::from_slice(&[0.5f32; 8], [2, 4], accelerator.device())?;
        let mut steps = Vec::new();
        for _ in 0..8 {
            accelerator.accumulate(|| {
                let loss = net.forward(&x)?.sub(&teacher.forward(&x)?)?.square()?.mean_all()?;
                accelerator.backward(&loss)?;
                optimizer.step()?;
                scheduler.step();
                steps.push(optimizer.n_steps()?);
                Ok(())
            })?;
        }
        assert_eq!(optimizer.lr(), 0.125);
        Ok(steps)
    });
    assert_eq!(steps, [0, 1, 1, 2, 2, 3, 3, 4]);
}

#[test]
fn zero_init_gives_the_model_back() {
    let net = zero::init(&config(&ds_config(3)), || Linear::normal(4, 1, true, 0.3)).unwrap();
    assert_eq!(nn::parameters(&net).len(), 2);
    // A loss scale of the code stays beside a configuration that names none.
    let optimizer = optim::adamw(&net).loss_scale(LossScale::Static(8.0));
    let args = InitializeArgs {
        accelerator: Some(solo(AcceleratorConfig::default()).unwrap()),
        optimizer: Some(optimizer),
        ..InitializeArgs::new(net, config(&ds_config(3)))
    };
    assert_eq!(deepspeed::initialize(args).unwrap().0.loss_scale().unwrap(), 8.0);
}
