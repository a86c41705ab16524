//! The examples of data parallel training give the losses of torch's DDP, on any number of ranks.

use std::path::{Path, PathBuf};

use oarlock::{Result, distributed};

#[allow(dead_code)]
#[path = "../examples/ddp_minimal.rs"]
mod ddp_minimal;
#[allow(dead_code)]
#[path = "../examples/ddp_trainer.rs"]
mod ddp_trainer;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ddp").join(name)
}

/// What torch's program found.
fn expected(program: &str) -> Vec<f32> {
    let losses: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden("losses.json")).unwrap()).unwrap();
    losses[program].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap() as f32).collect()
}

/// The losses of a program in `world` ranks, which all agree on them.
fn losses(world: usize, program: impl Fn(usize) -> Result<Vec<f32>> + Sync) -> Vec<f32> {
    let mut all = distributed::spawn(world, program).unwrap();
    let first = all.swap_remove(0);
    assert!(all.iter().all(|losses| *losses == first), "ranks found different losses");
    first
}

/// Checks the losses on 1, 2 and 4 ranks against torch and against each other.
fn check(program: &str, of: impl Fn(usize) -> Vec<f32>) {
    let torch = expected(program);
    let one = of(1);
    assert_eq!(one.len(), torch.len());
    assert!(one.last() < one.first(), "nothing was learned: {one:?}");
    for world in [1, 2, 4] {
        let ours = of(world);
        assert_eq!(ours.len(), torch.len());
        for (step, ours) in ours.iter().enumerate() {
            assert!((ours - one[step]).abs() < 1e-5, "{world} ranks, step {step}: {ours} and {}", one[step]);
            assert!(
                (ours - torch[step]).abs() < 1e-4,
                "{world} ranks, step {step}: {ours} and torch {}",
                torch[step]
            );
        }
    }
}

#[test]
fn the_minimal_example_does_what_torch_does() {
    ddp_minimal::main().unwrap();
    check("minimal", |world| {
        losses(world, |rank| {
            Ok(ddp_minimal::example(rank, world, Some(&golden("minimal.safetensors")))?.to_vec())
        })
    });
}

#[test]
fn the_trainer_does_what_torch_does_and_keeps_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    let trained = |world: usize, weights: &Path, total_epochs: u64| {
        let settings = ddp_trainer::Settings {
            total_epochs,
            save_every: 1,
            batch_size: 32 / world,
            checkpoint: &checkpoint,
            weights: Some(weights),
        };
        losses(world, |rank| ddp_trainer::train(rank, world, &settings))
    };
    check("trainer", |world| trained(world, &golden("trainer.safetensors"), 2));
    // What was kept is the trained model: on the first batch it is far better than the one that came to it first.
    let (again, first) = (trained(2, &checkpoint, 1)[0], expected("trainer")[0]);
    assert!(again < 0.5 * first, "{again} after {first}");
}
