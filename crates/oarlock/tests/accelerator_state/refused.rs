//! What is refused, on all ranks, and changes nothing.

use std::sync::Arc;

use oarlock::checkpoint::Problem;
use oarlock::nn::Buffer;
use oarlock::shard::{Gather, Placements};
use oarlock::{AcceleratorConfig, Checkpointed, Tensor, lr_scheduler, optim};

use super::{Loop, Net, config, on_ranks, problem};

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
    let message = on_ranks(2, &config, |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        accelerator.register_for_checkpointing(Arc::new(Checkpointed::new(0u8)));
        let error = accelerator.load_state(Some(&dir)).unwrap_err();
        assert_eq!(training.schedulers[0].steps(), 0);
        error.to_string()
    });
    assert_eq!(message[0], message[1]);
    let words =
        "it holds the states of 1 of the loop's objects registered for checkpointing, and this loop has 2";
    assert!(message[0].contains(words), "{}", message[0]);
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
        let kept = Arc::new(Checkpointed::new(0.5f32));
        match accelerator.process_index() {
            0 => accelerator.register_for_checkpointing(kept.clone()),
            _ => accelerator.register_for_checkpointing(Arc::new(Checkpointed::new(String::from("text")))),
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

    // Buffers of another shape.
    let problems = on_ranks(2, &config, |accelerator| {
        let counted = Buffer::new([1], vec![0.0f32]).unwrap();
        let (second, first) = (Net { counted, ..Net::new(4, 9) }, Net::new(4, 150));
        let (sgd, adam) = (optim::sgd(&second), optim::adamw(&first));
        let _prepared = accelerator.prepare((second, first, sgd, adam)).unwrap();
        problem(accelerator.load_state(Some(&dir)).unwrap_err())
    });
    let expected = "the buffer \"counted\" does not go on from what was saved: it has the shape [2] there and [1] in this model";
    assert_eq!(problems[1].to_string(), expected);

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
                    // On one rank alone: all are reported.
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
    let message = run(&config);
    assert!(
        message[0].as_ref().unwrap_err().contains("inside of an accumulation window: Net holds"),
        "{message:?}"
    );
    assert_eq!(message[0], message[1]);
    assert!(!dir.exists());
    config.project.save_inside_window = true;
    assert!(run(&config).iter().all(|saved| saved.is_ok()));
    on_ranks(1, &config, |accelerator| {
        let _training = Loop::new(accelerator).unwrap();
        accelerator.load_state(Some(&dir)).unwrap();
        assert_eq!(accelerator.gradient_state().step, 1);
    });
}
