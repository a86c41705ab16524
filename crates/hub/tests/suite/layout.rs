//! The cache as huggingface_hub lays it out: links, what is absent, the second store, folders of users.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use oarlock_hub::{Error, Kind};

use crate::fake_hub::{FakeHub, cache, hex, model};

const NAME: &str = "owner/tiny.model";

#[test]
fn every_part_of_the_cache_is_where_huggingface_has_it() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), &[]);
    hub.model(NAME, None).unwrap();
    hub.model(NAME, Some("refs/pr/1")).unwrap();
    let root = cache(home.path());
    let folder = root.join("models--owner--tiny.model");
    let commit = model().commit;
    let tag = fs::read_to_string(root.join("CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));
    for revision in ["main", "refs/pr/1"] {
        assert_eq!(fs::read_to_string(folder.join("refs").join(revision)).unwrap(), commit);
    }
    let weights = model().files["model.safetensors"].etag();
    let template = model().files["additional_chat_templates/rag.jinja"].etag();
    let snapshot = folder.join("snapshots").join(&commit);
    let link = |path: &str| fs::read_link(snapshot.join(path)).unwrap();
    assert_eq!(link("model.safetensors"), Path::new(&format!("../../blobs/{weights}")));
    assert_eq!(link("additional_chat_templates/rag.jinja"), Path::new(&format!("../../../blobs/{template}")));
    assert!(folder.join("blobs").join(&weights).is_file());
    assert!(root.join(format!(".locks/models--owner--tiny.model/{weights}.lock")).is_file());
    let tree = fs::read_to_string(folder.join(format!("trees/{commit}.json"))).unwrap();
    let tree: serde_json::Value = serde_json::from_str(&tree).unwrap();
    assert_eq!(tree["format_version"], 1);
    assert_eq!(tree["files"]["model.safetensors"]["lfs_sha256"], weights);
    assert_eq!(tree["files"]["model.safetensors"]["xet_hash"], hex(&[7; 32]));
    assert_eq!(tree["files"]["config.json"]["blob_id"], model().files["config.json"].etag());
    let names = |folder: &Path| {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    assert_eq!(names(&folder.join("blobs")).len(), 4, "nothing is left of the downloads");
    assert!(!snapshot.join("pytorch_model.bin").exists());
}

#[test]
fn what_is_not_there_is_remembered_and_named() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), &[]);
    let said = hub.file(Kind::Model, NAME, None, "cofig.json").unwrap_err().to_string();
    assert!(said.contains("has no file \"cofig.json\" at main; did you mean \"config.json\"?"), "{said}");
    let commit = model().commit;
    let mark = cache(home.path()).join(format!("models--owner--tiny.model/.no_exist/{commit}/cofig.json"));
    assert_eq!(fs::read(mark).unwrap(), b"");
    fake.take_log();
    let error = hub.file(Kind::Model, NAME, Some(&commit), "cofig.json").unwrap_err();
    assert!(matches!(error, Error::EntryNotFound { .. }), "{error}");
    assert_eq!(fake.take_log().len(), 0);
}

#[test]
fn without_links_new_files_are_moved_and_old_ones_copied() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let no_links = [("HF_HUB_DISABLE_SYMLINKS", "1")];
    let snapshot = fake.hub(home.path(), &no_links).model(NAME, None).unwrap();
    for file in &snapshot.files {
        assert!(fs::symlink_metadata(&file.local).unwrap().is_file(), "{}", file.path);
    }
    let blobs = cache(home.path()).join("models--owner--tiny.model/blobs");
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), 0);
    // A blob that a program with links has left is copied.
    let config = &model().files["config.json"];
    fs::write(blobs.join(config.etag()), &config.content).unwrap();
    fs::remove_file(snapshot.folder.join("config.json")).unwrap();
    fake.take_log();
    fake.hub(home.path(), &no_links).model(NAME, None).unwrap();
    assert_eq!(fs::read(snapshot.folder.join("config.json")).unwrap(), config.content);
    assert!(blobs.join(config.etag()).is_file());
    assert!(
        fake.take_log().iter().all(|request| request.method == "HEAD" || request.target.contains("/api/"))
    );
}

#[test]
fn the_second_store_is_read_through_two_links_and_never_written() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let weights = model().files["model.safetensors"].clone();
    let store = cache(home.path()).join("blobs/ab");
    let blobs = cache(home.path()).join("models--owner--tiny.model/blobs");
    fs::create_dir_all(&store).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    let shared = store.join(format!("ab{}", "0".repeat(62)));
    fs::write(&shared, &weights.content).unwrap();
    let blob = blobs.join(weights.etag());
    let target = format!("../../blobs/ab/ab{}", "0".repeat(62));
    symlink(&target, &blob).unwrap();
    let snapshot = fake.hub(home.path(), &[]).model(NAME, None).unwrap();
    assert_eq!(fs::read(snapshot.folder.join("model.safetensors")).unwrap(), weights.content);
    assert_eq!(fs::read_link(&blob).unwrap(), Path::new(&target));
    assert_eq!(fake.n_content_bytes(), 32, "the weights did not come again");
    // The store was cleaned: the link leads nowhere, and a file takes its place instead of being written through it.
    fs::remove_file(&shared).unwrap();
    fake.hub(home.path(), &[]).model(NAME, None).unwrap();
    assert!(fs::symlink_metadata(&blob).unwrap().is_file() && !shared.exists());
    assert_eq!(fs::read(snapshot.folder.join("model.safetensors")).unwrap(), weights.content);
}

#[test]
fn a_read_only_cache_serves_what_it_has() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    fake.hub(home.path(), &[]).model(NAME, None).unwrap();
    let refs = cache(home.path()).join("models--owner--tiny.model/refs");
    // Root writes everywhere, so the folder is one that nobody can write to: a file.
    fs::remove_dir_all(&refs).unwrap();
    fs::write(&refs, "").unwrap();
    fake.hub(home.path(), &[]).model(NAME, None).unwrap();
    fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, "config.json").unwrap();
}

#[test]
fn a_folder_of_a_user_has_the_files_and_huggingfaces_notes() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("here");
    let hub = fake.hub(home.path(), &[]);
    let snapshot = hub.model_to(NAME, None, &folder).unwrap();
    assert_eq!(snapshot.folder, folder);
    let weights = &model().files["model.safetensors"];
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights.content);
    let notes = folder.join(".cache/huggingface/download");
    let note = fs::read_to_string(notes.join("model.safetensors.metadata")).unwrap();
    let lines: Vec<&str> = note.lines().collect();
    assert_eq!(lines[..2], [model().commit, weights.etag()]);
    assert!(lines[2].parse::<f64>().unwrap() > 1.7e9 && note.ends_with('\n'));
    assert_eq!(fs::read_to_string(folder.join(".cache/huggingface/.gitignore")).unwrap(), "*");
    // Unchanged at the same commit: nothing is asked but which commit it is.
    fake.take_log();
    hub.model_to(NAME, None, &folder).unwrap();
    assert_eq!(fake.take_log().len(), 1);
    // Without its note a large file is known by its hash, and a changed one comes again.
    fs::remove_file(notes.join("model.safetensors.metadata")).unwrap();
    let before = fake.n_content_bytes();
    hub.model_to(NAME, None, &folder).unwrap();
    assert_eq!(fake.n_content_bytes(), before);
    fs::remove_file(notes.join("model.safetensors.metadata")).unwrap();
    fs::write(folder.join("model.safetensors"), "damaged").unwrap();
    hub.model_to(NAME, None, &folder).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights.content);
    // A link in the place of a file is replaced, and what it leads to stays.
    let victim = home.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::remove_file(folder.join("config.json")).unwrap();
    symlink(&victim, folder.join("config.json")).unwrap();
    fs::remove_file(notes.join("config.json.metadata")).unwrap();
    hub.model_to(NAME, None, &folder).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), model().files["config.json"].content);
    // What the cache has is copied from there.
    let other = home.path().join("there");
    hub.model(NAME, None).unwrap();
    let before = fake.n_content_bytes();
    hub.model_to(NAME, None, &other).unwrap();
    assert_eq!(fake.n_content_bytes(), before);
    fake.set_down(true);
    hub.model_to(NAME, None, &other).unwrap();
    // Without the hub and without the cache, the notes say what is there.
    fs::remove_dir_all(cache(home.path())).unwrap();
    for variables in [&[][..], &[("HF_HUB_OFFLINE", "1")]] {
        let again = fake.hub(home.path(), variables).model_to(NAME, None, &folder).unwrap();
        assert_eq!((again.commit, again.files.len()), (model().commit, 4));
    }
}
