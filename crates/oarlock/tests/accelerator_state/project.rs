//! Numbered checkpoints, hooks, and what a dead run leaves.

use std::path::Path;
use std::sync::Arc;

use oarlock::checkpoint::{CheckpointError, Problem};
use oarlock::shard::{Gather, Placements};
use oarlock::{AcceleratorConfig, Checkpointed, Error, ProjectConfiguration};

use super::{Loop, config, on_ranks, problem};

fn numbered(folder: &Path) -> AcceleratorConfig {
    AcceleratorConfig {
        project: ProjectConfiguration::numbered(folder),
        ..config(Placements::OPTIMIZER, Gather::InPlace)
    }
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
    let message = on_ranks(1, &nameless, |accelerator| accelerator.save_state(None).unwrap_err().to_string());
    assert!(message[0].contains("give one, or set automatic_checkpoint_naming"), "{}", message[0]);
}

#[test]
fn hooks_add_files_that_belong_to_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let config = config(Placements::PARAMETERS, Gather::Copy);
    let found = on_ranks(2, &config, |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        let (net, seen) = (training.nets[1].clone(), Arc::new(Checkpointed::new(String::new())));
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
        .args([
            "--exact",
            "accelerator_state::project::a_process_that_dies_inside_of_a_save_leaves_the_former",
        ])
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
