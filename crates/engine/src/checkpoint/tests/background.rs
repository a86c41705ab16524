//! Saving while training goes on.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::roundtrip::steps;
use super::*;
use crate::Error;
use crate::checkpoint::{load, newest, retain};

/// Contents whose last file takes a moment.
fn slow(step: u64) -> Contents {
    let extra = |_: &Path| {
        std::thread::sleep(Duration::from_millis(30));
        Ok(())
    };
    Contents { extra: Box::new(extra), ..Contents::state(client(step)) }
}

#[test]
fn what_is_saved_is_the_state_at_the_beginning() {
    for (n_ranks, placement, dtype) in [
        (1, Placements::OPTIMIZER, DType::F32),
        (2, Placements::OPTIMIZER, DType::BF16),
        (3, Placements::WHOLE, DType::F32),
        (2, Placements::PARAMETERS, DType::F32),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("checkpoint-5");
        on_ranks(n_ranks, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine_of(&model, comm, placement, dtype);
            fill(&mut engine, 5, 1);
            let before = state_of(&engine);
            let mut saver = Saver::default();
            saver.begin(&dir, comm, &engine, slow(5)).unwrap();
            // Training goes on, and asks now and then.
            assert!(saver.is_saving());
            for _ in 0..3 {
                steps(&mut engine, 1);
                comm.barrier().unwrap();
                saver.poll(comm).unwrap();
            }
            assert!(state_of(&engine) != before);
            assert_eq!(engine.n_steps(), 8);
            saver.finish(comm).unwrap();
            assert!(!saver.is_saving() && saver.poll(comm).unwrap().is_none());
            load(&dir, comm, &mut engine).unwrap();
            assert!(state_of(&engine) == before && engine.n_steps() == 5);
        });
    }
}

#[test]
fn a_second_save_waits_for_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let dirs = [5, 6].map(|step| folder.path().join(format!("checkpoint-{step}")));
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        let mut saver = Saver::default();
        saver.begin(&dirs[0], comm, &engine, slow(5)).unwrap();
        saver.begin(&dirs[1], comm, &engine, slow(6)).unwrap();
        assert!(dirs[0].is_dir() && !dirs[1].is_dir());
        assert_eq!(saver.finish(comm).unwrap().as_ref(), Some(&dirs[1]));
    });
    assert_eq!(names(folder.path()), ["checkpoint-5", "checkpoint-6"]);
}

#[test]
fn a_save_that_fails_leaves_training_and_the_next_save_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let dir = folder.path().join("checkpoint-2");
    // Rank 1 cannot write, and cannot even say so in the folder.
    let nowhere = folder.path().join("file/checkpoint-2");
    on_ranks(3, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        let mut saver = Saver::default();
        saver.begin(if comm.rank() == 1 { &nowhere } else { &dir }, comm, &engine, slow(2)).unwrap();
        let mut failed = None;
        while failed.is_none() {
            steps(&mut engine, 1);
            failed = saver.poll(comm).map(|_| ()).err().map(|error| error.to_string());
        }
        assert!(failed.unwrap().contains("was not saved: rank 1: cannot create "));
        assert_eq!(names(folder.path()), ["file"]);
        comm.barrier().unwrap();

        let panicking = Contents { extra: Box::new(|_| panic!("on purpose")), ..Contents::state(client(2)) };
        saver.begin(&dir, comm, &engine, panicking).unwrap();
        let error = saver.finish(comm).unwrap_err().to_string();
        assert!(error.contains("rank 0: the thread that writes has panicked"), "{error}");

        let then = |_: &Path| Err(Error::Usage("no more".into()));
        let contents = Contents { then: Box::new(then), ..Contents::state(client(3)) };
        saver.begin(&dir, comm, &engine, contents).unwrap();
        let error = saver.finish(comm).unwrap_err().to_string();
        assert!(error.ends_with("checkpoint-2 was saved, but afterward: no more"), "{error}");
        load(&dir, comm, &mut engine).unwrap();
    });
    assert_eq!(names(folder.path()), ["checkpoint-2", "file"]);
}

#[test]
fn a_loop_that_ends_without_asking_still_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-5");
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        Saver::default().begin(&dir, comm, &engine, slow(5)).unwrap();
    });
    assert_eq!(newest(folder.path()).unwrap().path, Some(dir));
}

#[test]
fn the_folder_has_its_name_before_others_go() {
    let folder = tempfile::tempdir().unwrap();
    save_pattern(&folder.path().join("checkpoint-1"), 2, 1);
    let dir = folder.path().join("checkpoint-2");
    let looked = AtomicBool::new(false);
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        let then = |dir: &Path| {
            assert!(dir.join("state/manifest.json").is_file());
            retain(dir.parent().unwrap(), 1).map(|removed| assert_eq!(removed.len(), 1))
        };
        save(&dir, comm, &engine, Contents { then: Box::new(then), ..Contents::state(client(2)) }).unwrap();
        looked.store(true, Ordering::Relaxed);
    });
    assert!(looked.into_inner());
    assert_eq!(names(folder.path()), ["checkpoint-2"]);
}
