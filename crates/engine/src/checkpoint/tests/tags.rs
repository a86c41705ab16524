//! Checkpoints by tag, and what is found where one is looked for.

use std::fs;

use super::*;
use crate::checkpoint::{MergeOptions, find, load_checkpoint, merge_weights, save_checkpoint};

#[test]
fn the_latest_is_the_last_one_that_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        assert_eq!(load_checkpoint(dir, None, comm, &mut engine).unwrap(), None);
        let mut saver = Saver::default();
        for (n_steps, salt, tag) in [(4, 1, None), (6, 2, Some("best"))] {
            fill(&mut engine, n_steps, salt);
            save_checkpoint(&mut saver, dir, tag, comm, &engine, Contents::state(client(n_steps))).unwrap();
            saver.finish(comm).unwrap();
        }
        for (tag, name, salt) in [(None, "best", 2), (Some("global_step4"), "global_step4", 1)] {
            let (path, kept) = load_checkpoint(dir, tag, comm, &mut engine).unwrap().unwrap();
            assert_eq!((path, kept.step), (dir.join(name), engine.n_steps()));
            assert!(is_pattern(&engine, salt));
        }
        // One that fails is not the latest.
        let extra = |_: &Path| Err(crate::Error::Usage("no".into()));
        let contents = Contents { extra: Box::new(extra), ..Contents::state(client(9)) };
        save_checkpoint(&mut saver, dir, Some("worst"), comm, &engine, contents).unwrap();
        assert!(saver.finish(comm).is_err());
    });
    assert_eq!(fs::read_to_string(dir.join("latest")).unwrap(), "best");
    assert_eq!(names(dir), ["best", "global_step4", "latest"]);
}

#[test]
fn tags_are_one_name_for_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        let mut saver = Saver::default();
        let mut attempt = |tag: &str| {
            save_checkpoint(&mut saver, folder.path(), Some(tag), comm, &engine, Contents::state(client(1)))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            attempt(["one", "two"][comm.rank()]),
            "the tag is \"one\" on rank 0 and \"two\" on rank 1; give the same"
        );
        for tag in ["", "..", "a/b", "/a"] {
            assert_eq!(attempt(tag), format!("the tag \"{tag}\" is not a name for a folder"));
        }
        let error = load_checkpoint(folder.path(), Some("gone"), comm, &mut engine).unwrap_err().to_string();
        assert!(error.contains("gone cannot be loaded: there is no state/manifest.json"), "{error}");
        fs::write(folder.path().join("latest"), "../elsewhere").unwrap();
        comm.barrier().unwrap();
        let error = load_checkpoint(folder.path(), None, comm, &mut engine).unwrap_err().to_string();
        assert!(error.contains("`latest` that does not hold the name of a folder"), "{error}");
    });
}

#[test]
fn a_rank_in_another_call_is_told_the_line_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    for saves in [true, false] {
        let message = on_ranks(2, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
            let error = match (comm.rank(), saves) {
                (0, true) => {
                    let contents = Contents::state(client(1));
                    save_checkpoint(&mut Saver::default(), folder.path(), None, comm, &engine, contents)
                }
                (0, false) => load_checkpoint(folder.path(), None, comm, &mut engine).map(|_| ()),
                _ => comm.barrier().map_err(Into::into),
            };
            error.unwrap_err().to_string()
        });
        assert!(message.iter().all(|message| message.matches("tests/tags.rs:").count() == 2), "{message:?}");
    }
}

#[test]
fn a_checkpoint_is_found_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let message = |path: &Path, tag| find(path, tag).unwrap_err().to_string();
    assert!(message(dir, None).contains("is not a checkpoint, and holds neither checkpoint-N folders nor"));
    save_pattern(&dir.join("checkpoint-5"), 1, 1);
    save_pattern(&dir.join("best"), 1, 1);
    assert_eq!(find(&dir.join("best"), None).unwrap(), dir.join("best"));
    assert_eq!(find(dir, None).unwrap(), dir.join("checkpoint-5"));
    assert_eq!(find(dir, Some("best")).unwrap(), dir.join("best"));
    assert!(message(dir, Some("worst")).ends_with("holds no checkpoint \"worst\""));
    fs::write(dir.join("latest"), "best\n").unwrap();
    assert_eq!(find(dir, None).unwrap(), dir.join("best"));
    fs::write(dir.join("latest"), "gone").unwrap();
    assert!(message(dir, None).ends_with("holds no checkpoint \"gone\""));
}

#[test]
fn weights_come_out_of_any_checkpoint_and_out_of_no_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, out) = (folder.path().join("checkpoint-7"), folder.path().join("out"));
    save_pattern(&dir, 3, 5);
    let options =
        MergeOptions { tag: None, model: None, dtype: None, max_shard_bytes: 20_000, overwrite: false };
    let merged = merge_weights(folder.path(), &out, &options, &lay_out).unwrap();
    assert_eq!((merged.n_elems, merged.dtype), (90 * 50 + 90 * 131 + 131 + 33, DType::F32));
    // Settings that are none of ours are taken over as they are.
    assert_eq!(fs::read(out.join("config.json")).unwrap(), fs::read(dir.join("config.json")).unwrap());
    let mut n_elems = 0;
    for file in names(&out).iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = fs::read(out.join(file)).unwrap();
        for (name, tensor) in safetensors::SafeTensors::deserialize(&bytes).unwrap().iter() {
            let values: Vec<f32> = bytemuck::pod_collect_to_vec(tensor.data());
            for (i, value) in values.iter().enumerate() {
                assert_eq!(value.to_bits(), pattern(name, "master", i, 5).to_bits(), "{name} {i}");
            }
            n_elems += values.len();
        }
    }
    assert_eq!(n_elems, merged.n_elems);
    assert!(names(&out).contains(&"model.safetensors.index.json".to_string()), "{:?}", names(&out));

    let manifest = crate::checkpoint::Manifest::open(&dir).unwrap();
    let piece = manifest.parameters["proj.weight"].state["master"][1].clone();
    let path = dir.join(&piece.file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[piece.offset as usize + 17] ^= 4;
    fs::write(&path, bytes).unwrap();
    let error =
        merge_weights(&dir, &folder.path().join("other"), &options, &lay_out).unwrap_err().to_string();
    assert!(error.contains(&format!("{} has changed since it was written", piece.file)), "{error}");
    assert!(!folder.path().join("other").exists());

    // The only checkpoint of a folder.
    fs::remove_file(&path).unwrap();
    let error = merge_weights(folder.path(), &folder.path().join("other"), &options, &lay_out)
        .unwrap_err()
        .to_string();
    let expected = format!(
        "{} holds no whole checkpoint: checkpoint-7, the newest, cannot be loaded: the file {} is missing; restore it from \
         a copy, or give another checkpoint",
        folder.path().display(),
        piece.file
    );
    assert_eq!(error, expected);
}
