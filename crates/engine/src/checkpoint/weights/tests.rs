//! What a save finds in its folder: its own files, those of others, and what came while it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use oarlock_tensor::DType;

use super::*;
use crate::Error;
use crate::disk::{Outputs, Part, RECORD};

/// Files with two weights, in two shards or in one.
fn files(by: &'static str, overwrites: bool, n_shards: usize) -> ModelFiles {
    let weight = |name: &str| Weight {
        name: name.to_owned(),
        stored: name.to_owned(),
        shape: vec![100],
        dtype: DType::F32.into(),
    };
    let most = if n_shards == 1 { 1 << 20 } else { 500 };
    let mut files = ModelFiles::new(&[weight("a"), weight("b")], most).unwrap().written_by(by, overwrites);
    files.add_text("config.json", format!("{{\"shards\": {n_shards}}}"));
    files
}

fn save(dir: &Path, files: ModelFiles, value: f32) -> Result<(), Error> {
    files.save(dir, &mut |_, _, out| {
        out.fill(value);
        Ok(())
    })
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| {
        let bytes = fs::read(dir.join(&name)).unwrap();
        (name, bytes)
    };
    names(dir).into_iter().map(read).collect()
}

const SHARDS: [&str; 4] = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
];

#[test]
fn a_save_replaces_all_of_its_own_result_and_nothing_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("notes.txt"), "somebody's").unwrap();
    fs::write(dir.join("model.fp16.safetensors"), "somebody's").unwrap();
    for (n_shards, value) in [(2, 1.0), (2, 2.0), (1, 3.0), (2, 4.0)] {
        save(dir, files("one", false, n_shards), value).unwrap();
        let own = if n_shards == 2 { &SHARDS[..] } else { &["config.json", "model.safetensors"] };
        let mut expected: Vec<&str> =
            own.iter().copied().chain(["notes.txt", "model.fp16.safetensors", RECORD]).collect();
        expected.sort_unstable();
        assert_eq!(names(dir), expected);
    }
    let before = contents(dir);
    // Another writer, in one file or in two; and a folder in the place of a file.
    for n_shards in [1, 2] {
        let error = save(dir, files("two", false, n_shards), 5.0).unwrap_err();
        assert!(matches!(error, Error::Occupied(_)), "{error}");
        assert_eq!(contents(dir), before);
    }
    // It may be told to; what the first wrote and has no successor goes, since nobody changed it.
    save(dir, files("two", true, 1), 6.0).unwrap();
    assert_eq!(
        names(dir),
        ["config.json", "model.fp16.safetensors", "model.safetensors", "notes.txt", RECORD]
    );
    // What somebody changed stays, and the weights are not mixed with it.
    save(dir, files("two", false, 2), 7.0).unwrap();
    let shard = dir.join(SHARDS[2]);
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let before = contents(dir);
    for overwrites in [false, true] {
        let message = save(dir, files("two", overwrites, 1), 8.0).unwrap_err().to_string();
        assert!(
            message.contains(SHARDS[2]) && message.contains("beside the weights of another model"),
            "{message}"
        );
        assert_eq!(contents(dir), before);
    }
}

#[test]
fn what_comes_while_a_model_is_written_stays_and_so_does_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let files = Arc::new(files("one", false, 1));
    let staged = Staged::new(dir, files.clone(), "token".to_owned()).unwrap();
    let written = files.create(&|name| staged.path_of(name)).unwrap();
    files.write_rest(&|name| staged.path_of(name)).unwrap();
    fs::write(dir.join("model.safetensors"), "somebody's").unwrap();
    let message = staged.publish(written).unwrap_err().to_string();
    assert!(
        message.contains("model.safetensors would be replaced") && message.contains("unpublished-token"),
        "{message}"
    );
    assert_eq!(fs::read(dir.join("model.safetensors")).unwrap(), b"somebody's");
    assert_eq!(names(&dir.join("unpublished-token")), ["config.json", "model.safetensors"]);
    assert_eq!(names(dir), ["model.safetensors", "unpublished-token"]);
}

#[test]
fn a_writer_that_died_between_the_record_and_the_files_knows_both() {
    for n_renamed in 0..=2 {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        save(dir, files("one", false, 1), 1.0).unwrap();
        // As `publish` does up to a rename.
        let new = tempfile::tempdir().unwrap();
        save(new.path(), files("one", false, 1), 2.0).unwrap();
        fs::write(new.path().join("config.json"), "{\"another\": 1}").unwrap();
        let mut outputs = Outputs::of(dir);
        for name in ["config.json", "model.safetensors"] {
            outputs.add_file("one", Part::Model, name, &new.path().join(name)).unwrap();
        }
        outputs.save().unwrap();
        for name in ["config.json", "model.safetensors"].into_iter().take(n_renamed) {
            fs::rename(new.path().join(name), dir.join(name)).unwrap();
        }
        save(dir, files("one", false, 2), 3.0).unwrap();
        let mut expected: Vec<&str> = SHARDS.into_iter().chain([RECORD]).collect();
        expected.sort_unstable();
        assert_eq!(names(dir), expected, "{n_renamed}");
    }
}

#[test]
fn an_adapter_leaves_a_model_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    save(dir, files("one", false, 2), 1.0).unwrap();
    let before = contents(dir);
    let weights = [Weight {
        name: "lora_A".to_owned(),
        stored: "lora_A".to_owned(),
        shape: vec![3],
        dtype: DType::F32.into(),
    }];
    for overwrites in [false, true] {
        let adapter = ModelFiles::new(&weights, u64::MAX).unwrap().renamed("adapter_model.safetensors");
        save(dir, adapter.written_by("one", overwrites), 2.0).unwrap();
        let after = contents(dir);
        assert!(after.contains_key("adapter_model.safetensors"));
        assert!(
            before
                .iter()
                .filter(|(name, _)| *name != RECORD)
                .all(|(name, bytes)| after.get(name) == Some(bytes))
        );
    }
}
