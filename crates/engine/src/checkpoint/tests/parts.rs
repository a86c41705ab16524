//! Nodes without a shared filesystem: each has its part of a checkpoint and the whole model; parts are loaded, and
//! joined.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::Error;
use crate::checkpoint::load::check_in;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::{Problem, Stores, gather, load, newest};

/// Four ranks on two machines.
fn stores() -> Stores {
    Stores::new(vec![0, 0, 2, 2]).unwrap()
}

/// The folder of a rank's machine.
fn on_machine(base: &Path, rank: usize) -> PathBuf {
    base.join(format!("machine-{}", stores().leader_of(rank))).join("checkpoint-7")
}

fn save_parts(base: &Path, placements: Placements) {
    on_ranks(4, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, placements, DType::F32);
        fill(&mut engine, 7, 5);
        let write = |path: PathBuf, text: &str| fs::write(&path, text).map_err(Error::io("write", &path));
        let extra = move |dir: &Path| write(dir.join("config.json"), "{\"model_type\": \"own\"}");
        let then = move |dir: &Path| write(dir.with_file_name("then"), "");
        let contents =
            Contents { extra: Box::new(extra), then: Box::new(then), ..Contents::state(client(7)) };
        let dir = on_machine(base, comm.rank());
        let mut saver = Saver::default();
        saver.set_stores(stores());
        saver.begin(&dir, comm, &engine, contents).unwrap();
        assert_eq!(saver.finish(comm).unwrap(), Some(dir));
    });
}

/// Loads on four ranks, and gives back why not.
fn load_parts(base: &Path, placements: Placements) -> Option<String> {
    let said = on_ranks(4, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, placements, DType::F32);
        let dir = on_machine(base, comm.rank());
        match check_in(&dir, comm, Some(&stores()), &[&engine]) {
            Ok(checked) => {
                assert_eq!(checked.restore(comm, &mut [&mut engine]).unwrap(), client(7));
                assert!(is_pattern(&engine, 5) && engine.n_steps() == 7);
                None
            }
            // Without the folder, which is another on each machine.
            Err(error) => Some(error.to_string().rsplit_once(": ").unwrap().1.to_string()),
        }
    });
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    said[0].clone()
}

fn states(dir: &Path) -> Vec<String> {
    names(&dir.join("state")).into_iter().filter(|name| name.starts_with("rank")).collect()
}

fn state(rank: usize) -> String {
    format!("rank-{rank:05}-of-00004.safetensors")
}

#[test]
fn each_machine_has_its_part_and_goes_on_from_it() {
    for placements in [Placements::PARAMETERS, Placements::WHOLE] {
        let base = tempfile::tempdir().unwrap();
        save_parts(base.path(), placements);
        let [first, second] = [0, 2].map(|rank| on_machine(base.path(), rank));
        assert_eq!(states(&first), [state(0), state(1)]);
        assert_eq!(states(&second), [state(2), state(3)]);
        for part in [&first, &second] {
            assert_eq!(names(part), ["config.json", "state"]);
            assert_eq!(names(part.parent().unwrap()), ["checkpoint-7", "then"]);
            assert_eq!(newest(part.parent().unwrap()).unwrap().path.as_ref(), Some(part));
            assert!(matches!(Manifest::open(part), Err(Problem::OnePart { .. })));
        }
        assert_eq!(
            fs::read(first.join("state/manifest.json")).unwrap(),
            fs::read(second.join("state/manifest.json")).unwrap()
        );
        assert!(refusal(&first).contains("oarlock gather-checkpoint"));

        assert_eq!(load_parts(base.path(), placements), None);
        // Who needs its own state alone has fetched nothing.
        let fetched = placements == Placements::WHOLE;
        assert_eq!(states(&first).len(), if fetched { 4 } else { 2 });
        // In another placement all is needed everywhere, and on a machine that comes new all.
        fs::remove_file(second.join("config.json")).unwrap();
        assert_eq!(load_parts(base.path(), Placements::WHOLE), None);
        assert_eq!(states(&second), [0, 1, 2, 3].map(state));
        fs::remove_dir_all(second.parent().unwrap()).unwrap();
        assert_eq!(load_parts(base.path(), placements), None);
        assert_eq!(names(&second), ["config.json", "state"]);
    }
}

#[test]
fn what_no_machine_has_is_named() {
    let base = tempfile::tempdir().unwrap();
    save_parts(base.path(), Placements::PARAMETERS);
    let [first, second] = [0, 2].map(|rank| on_machine(base.path(), rank));
    fs::remove_file(second.join("state").join(state(3))).unwrap();
    let said = load_parts(base.path(), Placements::PARAMETERS).unwrap();
    assert_eq!(said, format!("the file state/{} is missing", state(3)));
    let gathered = base.path().join("whole");
    let said = gather(&[first, second], &gathered).unwrap_err().to_string();
    assert!(said.contains(&format!("state/{} is in none of the folders", state(3))), "{said}");
    assert!(said.contains("the machine of rank 2 here, too") && !gathered.exists(), "{said}");
}

#[test]
fn parts_are_joined_to_the_whole() {
    let base = tempfile::tempdir().unwrap();
    save_parts(base.path(), Placements::OPTIMIZER);
    let [first, second] = [0, 2].map(|rank| on_machine(base.path(), rank));
    let whole = base.path().join("checkpoint-8");
    let gathered = gather(&[first.clone(), second.clone()], &whole).unwrap();
    assert_eq!((gathered.step, gathered.files), (7, 5));
    assert_eq!(names(&whole), ["config.json", "state"]);
    assert!(Manifest::open(&whole).is_ok());
    on_ranks(3, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::WHOLE, DType::F32);
        assert_eq!(load(&whole, comm, &mut engine).unwrap(), client(7));
        assert!(is_pattern(&engine, 5));
    });
    // A damaged copy is passed over for a sound one, and named where there is none.
    let damaged = second.join("state").join(state(2));
    let mut bytes = fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let out = base.path().join("again");
    assert!(gather(&[first.clone(), second.clone(), whole.clone()], &out).is_ok());
    let said = gather(&[first.clone(), second], &base.path().join("not")).unwrap_err().to_string();
    assert!(said.contains(&state(2)), "{said}");
    let other = base.path().join("other");
    save_parts(&other, Placements::WHOLE);
    let said = gather(&[first, on_machine(&other, 2)], &base.path().join("not")).unwrap_err().to_string();
    assert!(said.contains("is not a part of the checkpoint in"), "{said}");
}

#[test]
fn stores_begin_with_their_leaders() {
    assert!(Stores::new(vec![0, 0, 2, 2]).is_ok());
    assert!(Stores::new(vec![0, 2, 2, 2]).is_err());
    assert!(Stores::new(vec![1, 1]).is_err());
    assert!(Stores::one(3).are_one() && !stores().are_one());
    assert_eq!(stores().each().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(stores().ranks_of(2), [2, 3]);
}
