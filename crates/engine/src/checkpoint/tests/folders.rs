//! What lies beside a checkpoint: leftovers of dead runs, older checkpoints, other people's folders.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::Error;
use crate::checkpoint::folder::TempFolder;
use crate::checkpoint::manifest::MANIFEST;
use crate::checkpoint::{Problem, list, load, newest, remove_later, retain};

const TOKEN: &str = "0123456789abcdef";

fn salt_of(dir: &Path) -> u64 {
    on_ranks(1, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::WHOLE, DType::F32);
        load(dir, comm, &mut engine).unwrap();
        (0..9).find(|&salt| is_pattern(&engine, salt)).unwrap()
    })
    .remove(0)
}

#[test]
fn the_next_save_sweeps_what_dead_runs_left_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let beside = |name: &str| folder.path().join(name);
    for name in
        [format!("checkpoint-3.tmp-{TOKEN}"), format!("mine.tmp-{TOKEN}"), "checkpoint-3.tmp-notes".into()]
    {
        fs::create_dir_all(beside(&name).join("state")).unwrap();
        fs::write(beside(&name).join("state/manifest.json"), "{\"format_ver").unwrap();
    }
    let alive = TempFolder::create(&beside("checkpoint-4")).unwrap();
    save_pattern(&beside("checkpoint-5"), 2, 1);
    let living = alive.path().file_name().unwrap().to_str().unwrap().to_string();
    let mine = format!("mine.tmp-{TOKEN}");
    assert_eq!(names(folder.path()), ["checkpoint-3.tmp-notes", &living, "checkpoint-5", &mine]);
    drop(alive);
    assert_eq!(names(folder.path()), ["checkpoint-3.tmp-notes", "checkpoint-5", &mine]);
}

#[test]
fn a_checkpoint_of_the_same_name_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-5");
    save_pattern(&dir, 2, 1);
    save_pattern(&dir, 1, 2);
    assert_eq!(names(folder.path()), ["checkpoint-5"]);
    assert_eq!(names(&dir.join("state")), ["manifest.json", "rank-00000-of-00001.safetensors"]);
    assert_eq!(salt_of(&dir), 2);
}

#[test]
fn an_interrupted_replacement_is_finished() {
    type Look = fn(&Path);
    let looks: [Look; 2] =
        [|dir| drop(newest(dir.parent().unwrap()).unwrap()), |dir| assert!(salt_of(dir) > 0)];
    for looks_at in looks {
        let folder = tempfile::tempdir().unwrap();
        let [dir, old, new] = ["", ".old-", ".tmp-"].map(|marker| {
            let token = if marker.is_empty() { "" } else { TOKEN };
            folder.path().join(format!("checkpoint-5{marker}{token}"))
        });
        // Between the renames: the new one is whole and takes the name.
        let elsewhere = tempfile::tempdir().unwrap();
        for (salt, path) in [(1, &old), (2, &new)] {
            save_pattern(&elsewhere.path().join("made"), 1, salt);
            fs::rename(elsewhere.path().join("made"), path).unwrap();
        }
        looks_at(&dir);
        assert_eq!(names(folder.path()), ["checkpoint-5"]);
        assert_eq!(salt_of(&dir), 2);
        // The same, but the new one is lost: the old one gets its name back.
        fs::rename(&dir, &old).unwrap();
        looks_at(&dir);
        assert_eq!(names(folder.path()), ["checkpoint-5"]);
        // After the renames: the old one is in the way.
        fs::create_dir_all(old.join("state")).unwrap();
        looks_at(&dir);
        assert_eq!(names(folder.path()), ["checkpoint-5"]);
        assert_eq!(salt_of(&dir), 2);
    }
}

#[test]
fn a_failure_on_one_rank_is_everybodys_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    save_pattern(&folder.path().join("checkpoint-1"), 2, 1);
    fs::write(folder.path().join("file"), "").unwrap();
    let dirs: [PathBuf; 2] = [folder.path().join("checkpoint-2"), folder.path().join("file/checkpoint-2")];
    let errors = on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        let error = save(&dirs[comm.rank()], comm, &engine, Contents::state(client(2))).unwrap_err();
        comm.barrier().unwrap();
        error.to_string()
    });
    for error in &errors {
        assert!(
            error.contains("was not saved: rank 1: cannot create ") && error.contains("Not a directory"),
            "{error}"
        );
    }
    assert_eq!(names(folder.path()), ["checkpoint-1", "file"]);

    // The same for the caller's files; every write to /dev/full fails as on a full disk.
    let errors = on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        let extra =
            |_: &Path| fs::write("/dev/full", "model").map_err(Error::io("write", "model.safetensors"));
        let contents = Contents { extra: Box::new(extra), ..Contents::state(client(2)) };
        save(&dirs[0], comm, &engine, contents).unwrap_err().to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].contains("rank 0: cannot write model.safetensors: No space left on device"),
        "{}",
        errors[0]
    );
    assert_eq!(names(folder.path()), ["checkpoint-1", "file"]);
    assert_eq!(salt_of(&folder.path().join("checkpoint-1")), 1);
}

#[test]
fn the_newest_whole_one_is_taken_and_the_others_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(newest(&folder.path().join("not there")).unwrap().path, None);
    let dir = |n: u64| folder.path().join(format!("checkpoint-{n}"));
    for n in [9, 10, 100] {
        save_pattern(&dir(n), 1, 1);
    }
    fs::create_dir(dir(200)).unwrap();
    fs::create_dir(folder.path().join("checkpoint-best")).unwrap();
    fs::remove_file(dir(100).join("config.json")).unwrap();
    let found = newest(folder.path()).unwrap();
    assert_eq!(found.path, Some(dir(10)));
    let said = format!("{}: the file config.json is missing", dir(100).display());
    assert_eq!(found.skipped[1].to_string(), said);
    let skipped: Vec<_> = found.skipped.into_iter().map(|s| (s.step, s.problem.unwrap())).collect();
    let missing = Problem::MissingFile { file: "config.json".into() };
    assert_eq!(skipped, [(200, Problem::NoManifest), (100, missing)]);
    let steps: Vec<_> =
        list(folder.path()).unwrap().into_iter().map(|l| (l.step, l.problem.is_none())).collect();
    assert_eq!(steps, [(9, true), (10, true), (100, false), (200, false)]);
}

#[test]
fn old_ones_go_but_never_the_last_whole_one_nor_somebody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let dir = |n: u64| folder.path().join(format!("checkpoint-{n}"));
    fs::create_dir(dir(1)).unwrap();
    fs::write(dir(1).join("model.safetensors"), "transformers").unwrap();
    for n in [2, 3, 4, 5, 6] {
        save_pattern(&dir(n), 1, 1);
    }
    // Damaged: 2 is older than what is kept, 6 is not; 3 comes from a version that we do not know.
    fs::remove_file(dir(2).join("config.json")).unwrap();
    fs::remove_file(dir(6).join("config.json")).unwrap();
    let text = fs::read_to_string(dir(3).join(MANIFEST)).unwrap();
    fs::write(dir(3).join(MANIFEST), text.replace("\"format_version\": 2", "\"format_version\": 9")).unwrap();
    assert_eq!(retain(folder.path(), 2).unwrap(), [dir(2)]);
    assert_eq!(retain(folder.path(), 0).unwrap(), [dir(4)]);
    assert_eq!(retain(folder.path(), 0).unwrap(), [] as [PathBuf; 0]);
    assert_eq!(names(folder.path()), ["checkpoint-1", "checkpoint-3", "checkpoint-5", "checkpoint-6"]);
}

#[test]
fn those_of_a_replaced_training_go() {
    let folder = tempfile::tempdir().unwrap();
    let dir = |n: u64| folder.path().join(format!("checkpoint-{n}"));
    fs::create_dir(dir(9)).unwrap();
    fs::write(dir(9).join("model.safetensors"), "transformers").unwrap();
    for n in [1, 2, 5, 7] {
        save_pattern(&dir(n), 1, 1);
    }
    fs::remove_file(dir(5).join("config.json")).unwrap();
    assert_eq!(remove_later(folder.path(), 2).unwrap(), [dir(5), dir(7)]);
    assert_eq!(names(folder.path()), ["checkpoint-1", "checkpoint-2", "checkpoint-9"]);
    assert_eq!(newest(folder.path()).unwrap().path, Some(dir(2)));
}

#[test]
fn a_folder_of_other_things_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("home");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis.tex"), "years").unwrap();
    let save_to = |dir: &Path| {
        on_ranks(2, |comm| {
            let model = Model::new(90, true);
            let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
            save(dir, comm, &engine, Contents::state(client(1))).map_err(|error| error.to_string())
        })
    };
    for error in save_to(&dir).into_iter().map(|saved| saved.unwrap_err()) {
        assert!(
            error.contains("rank 0: ") && error.contains("is there already and is not a checkpoint"),
            "{error}"
        );
    }
    for error in save_to(Path::new("/")).into_iter().map(|saved| saved.unwrap_err()) {
        assert!(error.contains("/ is not a name for a checkpoint's folder"), "{error}");
    }
    assert_eq!(
        (names(folder.path()), names(&dir)),
        (vec!["home".to_string()], vec!["thesis.tex".to_string()])
    );
    fs::remove_file(dir.join("thesis.tex")).unwrap();
    assert!(save_to(&dir).into_iter().all(|saved| saved.is_ok()));
}

#[test]
fn what_somebody_put_into_a_checkpoint_stays_when_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let dir = |n: u64| folder.path().join(format!("checkpoint-{n}"));
    for n in 1..=3 {
        save_pattern(&dir(n), 1, n);
    }
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("rows"), "somebody's").unwrap();
    for n in [1, 3] {
        std::fs::create_dir(dir(n).join("notes")).unwrap();
        std::fs::write(dir(n).join("notes/today.txt"), "somebody's").unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir(n).join("link")).unwrap();
    }
    assert_eq!(retain(folder.path(), 1).unwrap(), [dir(2), dir(1)]);
    // One that is replaced keeps them as well, and a second time.
    for salt in 4..=5 {
        save_pattern(&dir(3), 1, salt);
        std::fs::create_dir(dir(3).join("notes")).unwrap();
        std::fs::write(dir(3).join("notes/today.txt"), "somebody's second").unwrap();
    }
    save_pattern(&dir(3), 1, 6);
    let kept = |n: u64| folder.path().join(format!("checkpoint-{n}.kept"));
    for n in [1, 3] {
        assert_eq!(std::fs::read_to_string(kept(n).join("notes/today.txt")).unwrap(), "somebody's");
        assert_eq!(std::fs::read_link(kept(n).join("link")).unwrap(), elsewhere);
    }
    let seconds = names(folder.path());
    let seconds: Vec<&String> =
        seconds.iter().filter(|name| name.starts_with("checkpoint-3.kept-")).collect();
    assert_eq!(seconds.len(), 2, "{seconds:?}");
    assert_eq!(std::fs::read_to_string(elsewhere.join("rows")).unwrap(), "somebody's");
    assert_eq!(newest(folder.path()).unwrap().path, Some(dir(3)));
}
