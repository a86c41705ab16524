//! Checkpoints of a loop of one's own: what comes back, on which ranks, what is refused, and what a dead run leaves.

use std::path::Path;
use std::sync::Arc;

use oarlock::checkpoint::{CheckpointError, Problem};
use oarlock::nn::{self, Forward, Linear, Mode, Module, Visitor};
use oarlock::shard::{Gather, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, DType, Error, GradientAccumulation, Kept, Options, Prepared,
    PreparedOptimizer, PreparedScheduler, ProjectConfiguration, Result, SaveModel, ShardSize, Tensor,
    lr_scheduler, optim,
};
use oarlock_comm::shm;
use safetensors::SafeTensors;

struct Net {
    up: nn::Unit<Linear>,
    down: nn::Unit<Linear>,
    /// As dropout has one.
    mode: Mode,
}

impl Net {
    fn new(inputs: usize, hidden: usize) -> Net {
        let linear = |inputs, outputs| nn::Unit::new(Linear::normal(inputs, outputs, true, 0.3).unwrap());
        Net { up: linear(inputs, hidden), down: linear(hidden, inputs), mode: Mode::default() }
    }
}

impl Module for Net {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.child("up", &self.up);
        visitor.child("down", &self.down);
        visitor.mode(&self.mode);
    }
}

impl Forward<Tensor> for Net {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let h = self.up.run(x, |up| up.forward(x))?.tanh()?;
        self.down.run(&h, |down| down.forward(&h))
    }
}

/// Runs `f` on each of `n` ranks and returns what they return.
fn on_ranks<T: Send>(n: usize, config: &AcceleratorConfig, f: impl Fn(&Accelerator) -> T + Sync) -> Vec<T> {
    let config = AcceleratorConfig { threads: Some(1), ..config.clone() };
    std::thread::scope(|scope| {
        let run = |comm: oarlock_comm::Communicator| {
            let (f, config) = (&f, &config);
            scope.spawn(move || {
                let out = f(&Accelerator::over(comm.clone(), config).unwrap());
                comm.finish();
                out
            })
        };
        let running: Vec<_> = shm::threads(n).unwrap().into_iter().map(run).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Two models that one loop trains, each with its own optimizer and schedule.
struct Loop {
    nets: [Prepared<Net>; 2],
    optimizers: [PreparedOptimizer; 2],
    schedulers: [PreparedScheduler; 2],
    best: Arc<Kept<Option<f32>>>,
}

impl Loop {
    fn new(accelerator: &Accelerator) -> Result<Loop> {
        let (first, second) = (Net::new(4, 150), Net::new(4, 9));
        let (adam, sgd) = (optim::adamw(&first).lr(0.01), optim::sgd(&second).lr(0.1));
        let (linear, cosine) = (lr_scheduler::linear(&adam, 2, 12), lr_scheduler::cosine(&sgd, 0, 12));
        let (a, b, sgd, second, first, adam) =
            accelerator.prepare((linear, cosine, sgd, second, first, adam))?;
        let best = Arc::new(Kept::new(None));
        accelerator.register_for_checkpointing(best.clone());
        Ok(Loop { nets: [first, second], optimizers: [adam, sgd], schedulers: [a, b], best })
    }

    /// The losses of both models in these steps of 8 rows, the same on all ranks.
    fn train(&self, accelerator: &Accelerator, steps: std::ops::Range<usize>) -> Result<Vec<f64>> {
        let (rank, world) = (accelerator.process_index(), accelerator.num_processes());
        let mut losses = Vec::new();
        for step in steps {
            let mut sums = [0.0; 2];
            let rows = 4 / world;
            for micro in 0..2 {
                let first = step * 8 + (micro * world + rank) * rows;
                let x: Vec<f32> =
                    (first * 4..(first + rows) * 4).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
                let x = Tensor::from_slice(&x, [rows, 4], accelerator.device())?;
                accelerator.accumulate(|| {
                    for (index, net) in self.nets.iter().enumerate() {
                        let loss = net.forward(&x)?.sub(&x.tanh()?)?.square()?.mean_all()?;
                        accelerator.backward(&loss)?;
                        self.optimizers[index].step()?;
                        self.schedulers[index].step();
                        sums[index] += f64::from(loss.item()?) / (2 * world) as f64;
                    }
                    Ok(())
                })?;
            }
            accelerator.reduce_sum(&mut sums)?;
            *self.best.lock() = Some(sums[0] as f32);
            losses.extend(sums);
        }
        Ok(losses)
    }
}

fn config(placements: Placements, gather: Gather) -> AcceleratorConfig {
    AcceleratorConfig {
        // Small parameters are divided as well.
        shard: Options { placements, gather, persistence_elems: 0, ..Options::default() },
        gradient_accumulation: GradientAccumulation::steps(2),
        ..AcceleratorConfig::default()
    }
}

fn numbered(folder: &Path) -> AcceleratorConfig {
    AcceleratorConfig {
        project: ProjectConfiguration::numbered(folder),
        ..config(Placements::OPTIMIZER, Gather::InPlace)
    }
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

const WAYS: [(Placements, Gather); 5] = [
    (Placements::WHOLE, Gather::InPlace),
    (Placements::OPTIMIZER, Gather::InPlace),
    (Placements::GRADIENTS, Gather::InPlace),
    (Placements::PARAMETERS, Gather::InPlace),
    (Placements::PARAMETERS, Gather::Copy),
];

#[test]
fn two_models_resume_to_the_bit_and_on_other_ranks_nearly() {
    let folder = tempfile::tempdir().unwrap();
    for (world, way) in [(1, WAYS[0]), (2, WAYS[1]), (4, WAYS[2]), (2, WAYS[3]), (4, WAYS[4])] {
        let dir = folder.path().join(format!("{world}-{way:?}"));
        let whole = on_ranks(world, &config(way.0, way.1), |accelerator| {
            let training = Loop::new(accelerator).unwrap();
            let mut losses = training.train(accelerator, 0..3).unwrap();
            assert_eq!(accelerator.save_state(Some(&dir)).unwrap(), dir);
            losses.extend(training.train(accelerator, 3..6).unwrap());
            losses
        });
        let (before, after) = whole[0].split_at(6);
        assert!(after[4] < 0.8 * before[0], "{whole:?}");
        for other in [1, 2, 4] {
            for other_way in WAYS {
                let resumed = on_ranks(other, &config(other_way.0, other_way.1), |accelerator| {
                    let training = Loop::new(accelerator).unwrap();
                    accelerator.load_state(Some(&dir)).unwrap();
                    assert_eq!(training.schedulers[1].steps(), 3);
                    assert_eq!(training.optimizers[1].n_steps().unwrap(), 3);
                    assert_eq!(training.best.lock().unwrap(), before[4] as f32);
                    training.train(accelerator, 3..6).unwrap()
                });
                let case = format!("{world} {way:?} to {other} {other_way:?}");
                for losses in resumed {
                    if (other, other_way) == (world, way) {
                        assert_eq!(bits(&losses), bits(after), "{case}");
                    }
                    let near = losses.iter().zip(after).all(|(a, b)| (a - b).abs() < 1e-5);
                    assert!(near, "{case}: {losses:?} {after:?}");
                }
            }
        }
    }
}

fn problem(error: Error) -> Problem {
    match error {
        Error::Checkpoint(CheckpointError::NotLoaded { problem, .. }) => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_on_all_ranks_and_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = config(Placements::OPTIMIZER, Gather::InPlace);
    on_ranks(2, &config, |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        training.train(accelerator, 0..1).unwrap();
        accelerator.save_state(Some(&dir)).unwrap();
    });

    // Loops with other parts.
    let told = on_ranks(2, &config, |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        accelerator.register_for_checkpointing(Arc::new(Kept::new(0u8)));
        let error = accelerator.load_state(Some(&dir)).unwrap_err();
        assert_eq!(training.schedulers[0].steps(), 0);
        error.to_string()
    });
    assert_eq!(told[0], told[1]);
    let words =
        "it holds the states of 1 of the loop's objects registered for checkpointing, and this loop has 2";
    assert!(told[0].contains(words), "{}", told[0]);
    let problems = on_ranks(2, &config, |accelerator| {
        let net = Net::new(4, 150);
        let adam = optim::adamw(&net);
        let _one = accelerator.prepare((net, adam)).unwrap();
        problem(accelerator.load_state(Some(&dir)).unwrap_err())
    });
    assert!(problems.iter().all(|found| *found == Problem::OtherModels { found: 2, expected: 1 }));
    let problems = on_ranks(2, &config, |accelerator| {
        let nets = (Net::new(4, 9), Net::new(4, 151));
        let optimizers = (optim::sgd(&nets.0), optim::adamw(&nets.1));
        let _swapped = accelerator.prepare((nets.0, nets.1, optimizers.0, optimizers.1)).unwrap();
        problem(accelerator.load_state(Some(&dir)).unwrap_err())
    });
    for found in problems {
        let Problem::Shape { name, .. } = &found else { panic!("{found}") };
        assert!(name.starts_with("model_1/"), "{found}");
    }

    // A part that does not go on, on one rank: all others go back.
    let before = on_ranks(2, &config, |accelerator| {
        let net = Net::new(4, 9);
        let second = Net::new(4, 150);
        let (sgd, adam) = (optim::sgd(&net).lr(0.3), optim::adamw(&second));
        let (linear, cosine) = (lr_scheduler::linear(&adam, 2, 12), lr_scheduler::cosine(&sgd, 0, 12));
        let prepared = accelerator.prepare((linear, cosine, sgd, net, second, adam)).unwrap();
        let kept = Arc::new(Kept::new(0.5f32));
        match accelerator.process_index() {
            0 => accelerator.register_for_checkpointing(kept.clone()),
            _ => accelerator.register_for_checkpointing(Arc::new(Kept::new(String::from("text")))),
        }
        let weights = accelerator.get_state_dict(&prepared.3).unwrap()["up.weight"].to_vec::<f32>().unwrap();
        let error = accelerator.load_state(Some(&dir)).unwrap_err();
        let after = accelerator.get_state_dict(&prepared.3).unwrap()["up.weight"].to_vec::<f32>().unwrap();
        assert_eq!((weights, *kept.lock()), (after, 0.5));
        assert_eq!((prepared.0.steps(), prepared.2.lr()), (0, 0.3));
        problem(error)
    });
    assert!(matches!(&before[0], Problem::Part { what, .. } if what == "custom 0"), "{}", before[0]);
    assert_eq!(before[0], before[1]);

    // Files that are damaged or gone.
    let file = dir.join("state/rank-00001-of-00002.safetensors");
    let good = std::fs::read(&file).unwrap();
    let load = || {
        on_ranks(2, &config, |accelerator| {
            let training = Loop::new(accelerator).unwrap();
            let found = problem(accelerator.load_state(Some(&dir)).unwrap_err());
            assert_eq!((training.schedulers[0].steps(), *training.best.lock()), (0, None));
            found
        })
    };
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    assert!(
        load()
            .iter()
            .all(|found| matches!(found, Problem::Checksum { file, .. } if file.contains("rank-00001")))
    );
    std::fs::remove_file(&file).unwrap();
    assert!(
        load()
            .iter()
            .all(|found| matches!(found, Problem::MissingFile { file } if file.contains("rank-00001")))
    );
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(load().iter().all(|found| *found == Problem::NoManifest));
}

#[test]
fn a_save_belongs_between_two_steps() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let run = |config: &AcceleratorConfig| {
        on_ranks(2, config, |accelerator| {
            let training = Loop::new(accelerator).unwrap();
            let x = Tensor::from_slice(&[0.5f32; 4], [1, 4], accelerator.device()).unwrap();
            accelerator
                .accumulate(|| {
                    // On one rank alone: all are told.
                    if accelerator.is_main_process() {
                        accelerator.backward(&training.nets[1].forward(&x)?.mean_all()?)?;
                    }
                    Ok(())
                })
                .unwrap();
            accelerator.save_state(Some(&dir)).map_err(|error| error.to_string())
        })
    };
    let mut config = config(Placements::OPTIMIZER, Gather::InPlace);
    let told = run(&config);
    assert!(
        told[0].as_ref().unwrap_err().contains("inside of an accumulation window: Net holds"),
        "{told:?}"
    );
    assert_eq!(told[0], told[1]);
    assert!(!dir.exists());
    config.project.save_inside_window = true;
    assert!(run(&config).iter().all(|saved| saved.is_ok()));
    on_ranks(1, &config, |accelerator| {
        let _training = Loop::new(accelerator).unwrap();
        accelerator.load_state(Some(&dir)).unwrap();
        assert_eq!(accelerator.gradient_state().step, 1);
    });
}

#[test]
fn checkpoints_are_numbered_and_the_oldest_goes_when_the_new_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let names = || {
        let mut names: Vec<String> = std::fs::read_dir(&checkpoints)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let mut config = numbered(folder.path());
    config.project.total_limit = Some(2);
    on_ranks(2, &config, |accelerator| {
        let _training = Loop::new(accelerator).unwrap();
        let empty = accelerator.load_state(None).unwrap_err();
        assert!(matches!(empty, Error::Checkpoint(CheckpointError::NotFound { .. })), "{empty}");
        for n in 0..3 {
            assert_eq!(accelerator.save_state(None).unwrap(), checkpoints.join(format!("checkpoint_{n}")));
        }
        // What cannot be written costs no other.
        let hook =
            accelerator.register_save_state_pre_hook(|accelerator, _| match accelerator.is_main_process() {
                true => Ok(()),
                false => Err(Error::Usage("the disk is full".to_owned())),
            });
        let error = accelerator.save_state(None).unwrap_err().to_string();
        assert!(error.contains("checkpoint_3 was not saved: rank 1: the disk is full"), "{error}");
        assert_eq!(accelerator.save_iteration(), 3);
        hook.remove();
    });
    assert_eq!(names(), ["checkpoint_1", "checkpoint_2"]);

    // A new run does not write beside those of another one that it has not loaded.
    let fresh = on_ranks(2, &config, |accelerator| {
        let _training = Loop::new(accelerator).unwrap();
        accelerator.save_state(None).unwrap_err().to_string()
    });
    assert!(fresh[1].contains("checkpoint_1 exists already"), "{}", fresh[1]);
    on_ranks(2, &config, |accelerator| {
        let _training = Loop::new(accelerator).unwrap();
        assert_eq!(accelerator.load_state(None).unwrap(), checkpoints.join("checkpoint_2"));
        assert_eq!(accelerator.save_state(None).unwrap(), checkpoints.join("checkpoint_3"));
    });
    assert_eq!(names(), ["checkpoint_2", "checkpoint_3"]);

    let nameless = AcceleratorConfig::default();
    let told = on_ranks(1, &nameless, |accelerator| accelerator.save_state(None).unwrap_err().to_string());
    assert!(told[0].contains("give one, or set automatic_checkpoint_naming"), "{}", told[0]);
}

#[test]
fn hooks_add_files_that_belong_to_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = config(Placements::PARAMETERS, Gather::Copy);
    let found = on_ranks(2, &config, |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        let (net, seen) = (training.nets[1].clone(), Arc::new(Kept::new(String::new())));
        // With collectives, and weights in another form.
        accelerator.register_save_state_pre_hook(move |accelerator, dir| {
            let elems = accelerator.get_state_dict(&net)?["up.weight"].n_elems();
            let path = dir.join(format!("rank-{}.txt", accelerator.process_index()));
            std::fs::write(&path, elems.to_string()).map_err(Error::io("write", &path))
        });
        accelerator.save_state(Some(&dir)).unwrap();
        let kept = seen.clone();
        accelerator.register_load_state_pre_hook(move |accelerator, dir| {
            let path = dir.join(format!("rank-{}.txt", 1 - accelerator.process_index()));
            *kept.lock() = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            Ok(())
        });
        accelerator.load_state(Some(&dir)).unwrap();
        seen.lock().clone()
    });
    assert_eq!(found, ["36", "36"]);
    std::fs::write(dir.join("rank-1.txt"), "37").unwrap();
    let refused = on_ranks(1, &config, |accelerator| {
        let _training = Loop::new(accelerator).unwrap();
        problem(accelerator.load_state(Some(&dir)).unwrap_err())
    });
    assert!(matches!(&refused[0], Problem::Checksum { file, .. } if file == "rank-1.txt"), "{}", refused[0]);
}

/// Where the run that dies has its project.
const PROJECT: &str = "OARLOCK_TEST_PROJECT_OF_A_RUN_THAT_DIES";

#[test]
fn a_process_that_dies_inside_of_a_save_leaves_the_former() {
    if let Some(project) = std::env::var_os(PROJECT) {
        on_ranks(2, &numbered(Path::new(&project)), |accelerator| {
            let training = Loop::new(accelerator).unwrap();
            training.train(accelerator, 0..1).unwrap();
            accelerator.save_state(None).unwrap();
            accelerator.register_save_state_pre_hook(|_, dir| {
                assert!(dir.join("state").is_dir());
                // As abruptly as kill -9.
                std::process::abort()
            });
            training.train(accelerator, 1..2).unwrap();
            let _ = accelerator.save_state(None);
        });
        unreachable!("the process has died");
    }
    let folder = tempfile::tempdir().unwrap();
    let died = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_dies_inside_of_a_save_leaves_the_former"])
        .env(PROJECT, folder.path())
        .output()
        .unwrap();
    assert!(!died.status.success());
    let checkpoints = folder.path().join("checkpoints");
    let entries = || std::fs::read_dir(&checkpoints).unwrap().count();
    assert_eq!(entries(), 2, "the former, and what the dead run left: {died:?}");
    on_ranks(2, &numbered(folder.path()), |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        assert_eq!(accelerator.load_state(None).unwrap(), checkpoints.join("checkpoint_0"));
        assert_eq!(training.schedulers[0].steps(), 1);
        accelerator.save_state(None).unwrap();
    });
    assert_eq!(entries(), 2, "the next save clears the rest away");
}

#[test]
fn weights_are_whole_on_every_rank_and_in_files_that_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for (world, way) in [(1, WAYS[0]), (2, WAYS[1]), (2, WAYS[2]), (2, WAYS[3]), (4, WAYS[4])] {
        let dir = folder.path().join(format!("{world}-{way:?}"));
        let states = on_ranks(world, &config(way.0, way.1), |accelerator| {
            let training = Loop::new(accelerator).unwrap();
            let net = &training.nets[0];
            accelerator.save_model(net, &dir.join("one"), &SaveModel::default()).unwrap();
            let small = SaveModel { max_shard_size: "1KB".parse().unwrap(), ..SaveModel::default() };
            accelerator.save_model(net, &dir.join("many"), &small).unwrap();
            let halves = SaveModel { dtype: Some(DType::BF16), ..SaveModel::default() };
            accelerator.save_model(net, &dir.join("halves"), &halves).unwrap();
            let pickle = SaveModel { safe_serialization: false, ..SaveModel::default() };
            let refused = accelerator.save_model(net, &dir.join("pickle"), &pickle).unwrap_err();
            assert!(refused.to_string().contains("runs code when it is read"), "{refused}");
            let state = accelerator.get_state_dict(net).unwrap();
            state
                .into_iter()
                .map(|(name, t)| (name, t.sizes().to_vec(), t.to_vec::<f32>().unwrap()))
                .collect()
        });
        all.extend(states.into_iter().map(|state: Vec<_>| (dir.clone(), state)));
    }
    let (first_dir, first) = &all[0];
    let names: Vec<&str> = first.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["down.bias", "down.weight", "up.bias", "up.weight"]);
    assert!(first[1].2.iter().any(|&x| x != 0.0) && first[1].1 == [4, 150]);
    for (dir, state) in &all {
        assert_eq!(state, first, "{}", dir.display());
        let file = std::fs::read(dir.join("one/model.safetensors")).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.len(), 4);
        for (name, sizes, values) in state {
            let tensor = read.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::F32, sizes.as_slice()));
            assert!(tensor.data().chunks(4).zip(values).all(|(bytes, x)| bytes == x.to_le_bytes()));
        }
        for file in ["halves/model.safetensors", "many/model.safetensors.index.json"] {
            let [this, other] = [dir, first_dir].map(|dir| std::fs::read(dir.join(file)).unwrap());
            assert!(this == other, "{file}");
        }
    }
    let text = std::fs::read_to_string(first_dir.join("many/model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4 * (2 * 600 + 150 + 4));
    for (name, _, values) in first {
        let shard = first_dir.join("many").join(index["weight_map"][name].as_str().unwrap());
        let file = std::fs::read(shard).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.tensor(name).unwrap().data(), bytemuck::cast_slice::<f32, u8>(values));
    }
    let wrong = "ten gigabytes".parse::<ShardSize>().unwrap_err().to_string();
    assert!(wrong.starts_with("max_shard_size: \"ten gigabytes\" is no size"), "{wrong}");
}

#[test]
fn passes_of_each_rank_and_the_learning_rate_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = config(Placements::GRADIENTS, Gather::InPlace);
    let prepare = |accelerator: &Accelerator| {
        let net = Net::new(4, 9);
        let adam = optim::adamw(&net).lr(0.5);
        accelerator.prepare((net, adam)).unwrap()
    };
    on_ranks(2, &config, |accelerator| {
        let (net, optimizer) = prepare(accelerator);
        let x = Tensor::from_slice(&[0.5f32; 4], [1, 4], accelerator.device()).unwrap();
        net.eval();
        for _ in 0..3 + accelerator.process_index() {
            net.forward(&x).unwrap();
        }
        optimizer.set_lr(1.0 / 3.0);
        accelerator.save_state(Some(&dir)).unwrap();
    });
    for (world, expected) in [(2, vec![3, 4]), (1, vec![3]), (4, vec![3; 4])] {
        let passes = on_ranks(world, &config, |accelerator| {
            let (net, optimizer) = prepare(accelerator);
            accelerator.load_state(Some(&dir)).unwrap();
            assert_eq!(optimizer.lr().to_bits(), (1.0f64 / 3.0).to_bits());
            nn::n_passes(&net)
        });
        assert_eq!(passes, expected);
    }
}
