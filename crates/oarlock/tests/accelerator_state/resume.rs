//! What comes back, on the same ranks and on others.

use oarlock::config::LossScale;
use oarlock::dataloader::{DataLoader, PreparedLoader};
use oarlock::nn::{self, BufferValues};
use oarlock::shard::{Gather, Placements};
use oarlock::{
    Accelerator, AcceleratorConfig, DType, DeviceSpecific, GradientAccumulation, Prepared, PreparedOptimizer,
    Tensor, optim,
};
use oarlock_tensor::cpu::difference::largest_difference;

use super::{Loop, Net, WAYS, config, on_ranks};

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

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
                    let counted = BufferValues::Floats(vec![3.0, f32::NEG_INFINITY]);
                    assert_eq!(training.nets[1].module().counted.values(), counted);
                    training.train(accelerator, 3..6).unwrap()
                });
                let case = format!("{world} {way:?} to {other} {other_way:?}");
                for losses in resumed {
                    if (other, other_way) == (world, way) {
                        assert_eq!(bits(&losses), bits(after), "{case}");
                    }
                    let far = largest_difference(&losses, after).unwrap();
                    assert!(far < 1e-5, "{case}: {losses:?} {after:?}");
                }
            }
        }
    }
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

#[test]
fn dropout_drops_what_it_would_have_dropped_and_a_loss_scale_stays() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = AcceleratorConfig {
        mixed_precision: Some(DType::F16),
        gradient_accumulation: GradientAccumulation::default(),
        ..config(Placements::PARAMETERS, Gather::Copy)
    };
    // The first steps overflow and are skipped.
    let scale = LossScale::Dynamic {
        initial_power: 24,
        growth_interval: 3,
        hysteresis: 1,
        consecutive_hysteresis: false,
        min_scale: 1.0,
    };
    let steps = |accelerator: &Accelerator, net: &Prepared<Net>, adam: &PreparedOptimizer, n: usize| {
        let x = Tensor::from_slice(&[0.5f32, -1.0, 2.0, 0.25], [1, 4], accelerator.device()).unwrap();
        let mut seen = Vec::new();
        for _ in 0..n {
            let loss = net.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
            accelerator.backward(&loss).unwrap();
            adam.step().unwrap();
            seen.push((loss.item::<f32>().unwrap().to_bits(), adam.step_was_skipped()));
        }
        seen
    };
    let whole = on_ranks(2, &config, |accelerator| {
        let net = Net::dropping(4, 150, 0.5);
        let adam = optim::adamw(&net).lr(0.01).loss_scale(scale);
        let (net, adam) = accelerator.prepare((net, adam)).unwrap();
        let before = steps(accelerator, &net, &adam, 12);
        // Of what is prepared from now on.
        accelerator.set_seed(3, DeviceSpecific::No);
        accelerator.save_state(Some(&dir)).unwrap();
        (before, steps(accelerator, &net, &adam, 5))
    });
    let skipped = |seen: &[(u32, bool)]| seen.iter().filter(|(_, skipped)| *skipped).count();
    assert!((1..12).contains(&skipped(&whole[0].0)), "{whole:?}");
    assert_ne!(whole[0].1, whole[1].1, "ranks drop otherwise");
    let resumed = on_ranks(2, &AcceleratorConfig { seed: Some(7), ..config }, |accelerator| {
        let net = Net::dropping(4, 150, 0.5);
        let adam = optim::adamw(&net).lr(0.5).loss_scale(scale);
        let (net, adam) = accelerator.prepare((net, adam)).unwrap();
        accelerator.load_state(Some(&dir)).unwrap();
        // A checkpoint of the resumed loop is as good.
        accelerator.save_state(Some(&dir)).unwrap();
        accelerator.load_state(Some(&dir)).unwrap();
        steps(accelerator, &net, &adam, 5)
    });
    for (rank, seen) in resumed.iter().enumerate() {
        assert_eq!(*seen, whole[rank].1, "{rank}");
    }
}

#[test]
fn loaders_go_on_after_the_last_sample() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = config(Placements::OPTIMIZER, Gather::InPlace);
    let prepare = |accelerator: &Accelerator| {
        let (net, samples) = (Net::new(4, 9), (0..16).collect::<Vec<i32>>());
        let loader = DataLoader::new(samples, 2).shuffle(true);
        accelerator.prepare((net, loader)).unwrap()
    };
    let given = |loader: &PreparedLoader<Tensor>, n: usize| -> Vec<i32> {
        loader.iter().unwrap().take(n).flat_map(|batch| batch.unwrap().to_vec::<i32>().unwrap()).collect()
    };
    let before = on_ranks(2, &config, |accelerator| {
        let (_net, loader) = prepare(accelerator);
        let before = given(&loader, 2);
        accelerator.save_state(Some(&dir)).unwrap();
        before
    });
    let before: Vec<i32> = before.concat();
    assert_eq!(before.len(), 8);
    for world in [1, 2] {
        let after = on_ranks(world, &config, |accelerator| {
            let (_net, loader) = prepare(accelerator);
            accelerator.load_state(Some(&dir)).unwrap();
            given(&loader, 9)
        });
        let mut all: Vec<i32> = before.iter().copied().chain(after.concat()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<i32>>(), "{world}: each sample once");
    }
}
