//! Programs with one mistake in what stands around the loop: loaders, checkpoints, collectives, plugins, groups.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oarlock::dataloader::DataLoader;
use oarlock::dataloader::DistributedSampler;
use oarlock::deepspeed::{self, Config, InitializeArgs};
use oarlock::distributed::{self, InitOptions};
use oarlock::nn::Linear;
use oarlock::optim::{self, CustomRule, Rule, Update};
use oarlock::shard::Placements;
use oarlock::{
    Accelerator, AcceleratorConfig, Checkpointed, DataLoaderConfiguration, DeepSpeedPlugin, LocalSgd,
    LogWith, ReduceOp, Result, ShardingConfig, Tensor, TrackerOptions,
};
use oarlock_comm::Communicator;
use serde_json::{Value, json};

use super::Wrong;
use super::programs::{Net, accelerator, input, trained, with};

fn config(comm: &Communicator, config: AcceleratorConfig) -> Result<Accelerator> {
    Accelerator::over(comm.clone(), &AcceleratorConfig { threads: Some(1), ..config })
}

/// A folder for a case, the same for its ranks.
fn folder(comm: &Communicator) -> Result<PathBuf> {
    static CASES: AtomicU64 = AtomicU64::new(0);
    let case = CASES.fetch_add(1, Ordering::Relaxed).to_string();
    let case = String::from_utf8_lossy(&comm.broadcast_bytes(0, case.as_bytes())?).into_owned();
    Ok(home().join(case))
}

/// Where the cases save.
pub fn home() -> PathBuf {
    std::env::temp_dir().join(format!("oarlock-misuse-{}", std::process::id()))
}

/// Removes what the cases have saved.
pub fn clean_up() {
    let _ = std::fs::remove_dir_all(home());
}

fn zero(stage: u8) -> Value {
    json!({
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": { "type": "AdamW", "params": { "lr": 0.01 } },
        "zero_optimization": { "stage": stage },
    })
}

fn plugins() -> AcceleratorConfig {
    let plugin = |stage| DeepSpeedPlugin {
        hf_ds_config: Some(Config::from_value(&zero(stage)).unwrap()),
        ..DeepSpeedPlugin::default()
    };
    AcceleratorConfig {
        deepspeed_plugins: vec![("student".to_owned(), plugin(2)), ("teacher".to_owned(), plugin(3))],
        ..AcceleratorConfig::default()
    }
}

fn engine(comm: &Communicator, value: Value) -> Result<oarlock::deepspeed::DeepSpeedEngine<Net>> {
    let args = InitializeArgs {
        accelerator: Some(accelerator(comm)?),
        ..InitializeArgs::new(Net::new()?, Config::from_value(&value)?)
    };
    Ok(deepspeed::initialize(args)?.0)
}

pub fn all() -> Vec<Wrong> {
    vec![
        Wrong {
            title: "a batch that the ranks do not divide",
            ranks: 3,
            program: |comm| {
                let dataloader =
                    DataLoaderConfiguration { split_batches: true, ..DataLoaderConfiguration::default() };
                let accelerator =
                    config(comm, AcceleratorConfig { dataloader, ..AcceleratorConfig::default() })?;
                accelerator.prepare(DataLoader::new(vec![1.0f32; 9], 4)).map(|_| ())
            },
        },
        Wrong {
            title: "batches of no samples",
            ranks: 1,
            program: |comm| accelerator(comm)?.prepare(DataLoader::new(vec![1.0f32; 9], 0)).map(|_| ()),
        },
        Wrong {
            title: "a sampler beside shuffle",
            ranks: 1,
            program: |comm| {
                let sampler = DistributedSampler::new(9, (0, 1));
                let loader = DataLoader::new(vec![1.0f32; 9], 3).sampler(sampler).shuffle(true);
                accelerator(comm)?.prepare(loader).map(|_| ())
            },
        },
        Wrong {
            title: "data sets of other lengths on the ranks",
            ranks: 2,
            program: |comm| {
                let samples = vec![1.0f32; 8 + comm.rank()];
                accelerator(comm)?.prepare(DataLoader::new(samples, 2)).map(|_| ())
            },
        },
        Wrong {
            title: "a worker of a loader panics",
            ranks: 1,
            program: |comm| {
                let data = oarlock::dataloader::from_fn(4, |i| {
                    if i == 2 { panic!("sample 2 is broken") } else { Ok(i as f32) }
                });
                let loader = accelerator(comm)?.prepare(DataLoader::new(data, 1).num_workers(2))?;
                loader.iter()?.try_for_each(|batch| batch.map(|_| ()))
            },
        },
        Wrong {
            title: "values of other shapes are gathered",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let rows = 1 + accelerator.process_index();
                let x = Tensor::from_slice(&vec![0.0f32; 2 * rows], [rows, 2], accelerator.device())?;
                accelerator.gather(&x).map(|_| ())
            },
        },
        Wrong {
            title: "values are reduced in two ways",
            ranks: 2,
            program: |comm| {
                let accelerator = accelerator(comm)?;
                let how = if accelerator.is_main_process() { ReduceOp::Sum } else { ReduceOp::Avg };
                accelerator.reduce(&input(&accelerator)?, how, 1.0).map(|_| ())
            },
        },
        Wrong {
            title: "loading on one rank only",
            ranks: 2,
            program: |comm| {
                let (accelerator, dir) = (accelerator(comm)?, folder(comm)?);
                let _prepared = trained(&accelerator)?;
                accelerator.save_state(Some(&dir))?;
                if accelerator.is_main_process() {
                    accelerator.load_state(Some(&dir)).map(|_| ())
                } else {
                    Ok(())
                }
            },
        },
        Wrong {
            title: "the checkpoint of another model",
            ranks: 2,
            program: |comm| {
                let dir = folder(comm)?;
                let save = accelerator(comm)?;
                let _saved = save.prepare(Net::new()?)?;
                save.save_state(Some(&dir))?;
                let load = accelerator(comm)?;
                let _other = load.prepare(Net::wide(5)?)?;
                load.load_state(Some(&dir)).map(|_| ())
            },
        },
        Wrong {
            title: "a checkpoint that is not there",
            ranks: 2,
            program: |comm| {
                let (accelerator, dir) = (accelerator(comm)?, folder(comm)?);
                let _prepared = accelerator.prepare(Net::new()?)?;
                accelerator.load_state(Some(&dir)).map(|_| ())
            },
        },
        Wrong {
            title: "more is registered than was saved",
            ranks: 1,
            program: |comm| {
                let (accelerator, dir) = (accelerator(comm)?, folder(comm)?);
                let _prepared = accelerator.prepare(Net::new()?)?;
                accelerator.save_state(Some(&dir))?;
                accelerator.register_for_checkpointing(Arc::new(Checkpointed::new(7)));
                accelerator.load_state(Some(&dir)).map(|_| ())
            },
        },
        Wrong {
            title: "saving in the middle of a window",
            ranks: 1,
            program: |comm| {
                let (accelerator, dir) = (accelerator(comm)?, folder(comm)?);
                let (net, _optimizer) = trained(&accelerator)?;
                accelerator.backward(&net.forward(&input(&accelerator)?)?.mean_all()?)?;
                accelerator.save_state(Some(&dir)).map(|_| ())
            },
        },
        Wrong {
            title: "local steps on divided states",
            ranks: 2,
            program: |comm| {
                let accelerator = with(
                    comm,
                    ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() },
                )?;
                let (net, _optimizer) = trained(&accelerator)?;
                accelerator.local_sgd(
                    &net,
                    LocalSgd { local_sgd_steps: 4, ..LocalSgd::default() },
                    |_| Ok(()),
                )
            },
        },
        Wrong {
            title: "no batch size fits",
            ranks: 1,
            program: |comm| {
                accelerator(comm)?.find_executable_batch_size(4, |n| {
                    Err::<(), _>(oarlock_tensor::Error::OutOfMemory { bytes: n, what: "a batch" }.into())
                })
            },
        },
        Wrong {
            title: "a tracker that nobody knows",
            ranks: 1,
            program: |comm| {
                "tensorbord".parse::<LogWith>().map(|_| ())?;
                accelerator(comm)?.init_trackers("p", &json!({}), &TrackerOptions::default())
            },
        },
        Wrong {
            title: "a plugin that does not exist",
            ranks: 1,
            program: |comm| config(comm, plugins())?.select_deepspeed_plugin("techer"),
        },
        Wrong {
            title: "a second accelerator with plugins of its own",
            ranks: 1,
            program: |comm| config(comm, plugins())?.another_with(&plugins()).map(|_| ()),
        },
        Wrong {
            title: "a model without an optimizer in stage 2",
            ranks: 1,
            program: |comm| config(comm, plugins())?.prepare(Net::new()?).map(|_| ()),
        },
        Wrong {
            title: "a configuration without a batch size",
            ranks: 1,
            program: |comm| engine(comm, json!({ "zero_optimization": { "stage": 3 } })).map(|_| ()),
        },
        Wrong {
            title: "no_sync in stage 2",
            ranks: 1,
            program: |comm| engine(comm, zero(2))?.no_sync(|| Ok(())),
        },
        Wrong {
            title: "the backward of another engine",
            ranks: 1,
            program: |comm| {
                let (first, second) = (engine(comm, zero(1))?, engine(comm, zero(1))?);
                let x = Tensor::from_slice(&[0.5f32; 8], [2, 4], first.device())?;
                second.backward(&first.forward(&x)?.mean_all()?)
            },
        },
        Wrong {
            title: "a client state of another type",
            ranks: 2,
            program: |comm| {
                let (engine, dir) = (engine(comm, zero(2))?, folder(comm)?);
                engine.save_checkpoint(&dir, Some("a"), &json!({ "step": 3 }))?;
                engine.load_checkpoint::<Vec<String>>(&dir, Some("a")).map(|_| ())
            },
        },
        Wrong {
            title: "tags that differ among the ranks",
            ranks: 2,
            program: |comm| {
                let (engine, dir) = (engine(comm, zero(2))?, folder(comm)?);
                engine.save_checkpoint(&dir, Some(&format!("step{}", comm.rank())), &()).map(|_| ())
            },
        },
        Wrong { title: "a process group that nobody made", ranks: 1, program: |_| distributed::barrier() },
        Wrong {
            title: "another number of ranks than were started",
            ranks: 1,
            program: |_| {
                distributed::spawn(2, |rank| {
                    // One of them alone, so that none can be first by chance.
                    let world_size = if rank == 0 { 4 } else { 2 };
                    let options = InitOptions {
                        rank: Some(rank),
                        world_size: Some(world_size),
                        ..InitOptions::default()
                    };
                    distributed::init_process_group("gloo".parse()?, &options).map(|_| ())
                })
                .map(|_| ())
            },
        },
        Wrong {
            title: "a rank panics",
            ranks: 1,
            program: |_| {
                distributed::spawn(2, |rank| {
                    let group = distributed::init_process_group("gloo".parse()?, &InitOptions::default())?;
                    assert!(rank == 0, "no data for rank {rank}");
                    group.barrier()
                })
                .map(|_| ())
            },
        },
        Wrong {
            title: "two layers of other widths",
            ranks: 1,
            program: |comm| {
                let layers = oarlock::nn::Sequential::new().add(Linear::new(4, 3)?).add(Linear::new(4, 2)?);
                let accelerator = accelerator(comm)?;
                let layers = accelerator.prepare(layers)?;
                layers.forward(&input(&accelerator)?).map(|_| ())
            },
        },
        Wrong {
            title: "a gradient that is not finite, in a loop that does not clip",
            ranks: 2,
            program: |comm| {
                let accelerator = with(
                    comm,
                    ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() },
                )?;
                let (net, optimizer) = trained(&accelerator)?;
                // One rank alone has a bad record.
                let bad = if comm.rank() == 1 { f32::NAN } else { 0.5 };
                let x = Tensor::from_slice(&[bad; 8], [2, 4], accelerator.device())?;
                accelerator.backward(&oarlock_tensor::ops::mean_all(&net.forward(&x)?)?)?;
                let stepped = optimizer.step().map(|_| ());
                let weights = net.forward(&input(&accelerator)?)?.to_vec::<f32>()?;
                assert!(weights.iter().all(|x| x.is_finite()), "the weights are spoilt");
                stepped
            },
        },
        Wrong {
            title: "an error of the program's own, through a closure that the library calls",
            ranks: 1,
            program: |comm| {
                accelerator(comm)?.accumulate(|| {
                    let rows: usize = "seven".parse().map_err(oarlock::Error::other)?;
                    std::fs::read("/nowhere/rows")?;
                    Ok(rows)
                })?;
                Ok(())
            },
        },
        Wrong {
            title: "a custom rule gives two states one name",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let optimizer = optim::custom(&net, Named(["momentum", "momentum"]));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a custom rule gives a state the name of the weights",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let optimizer = optim::custom(&net, Named(["momentum", "master"]));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
        Wrong {
            title: "a group has a custom rule that keeps other states",
            ranks: 1,
            program: |comm| {
                let net = Net::new()?;
                let other = Rule::custom(Named(["momentum", "sum"]));
                let optimizer = optim::custom(&net, Named(["momentum", "variance"]))
                    .group(&net, |group| group.rule(other));
                accelerator(comm)?.prepare((net, optimizer)).map(|_| ())
            },
        },
    ]
}

/// A rule that does nothing.
#[derive(Clone, Debug)]
struct Named([&'static str; 2]);

impl CustomRule<2> for Named {
    fn name(&self) -> &'static str {
        "signum"
    }

    fn states(&self) -> [&'static str; 2] {
        self.0
    }

    fn update(&self, _: Update<'_, 2>) {}
}
