//! ModelScope: both of its lists, its files, its cache of plain files, and that of older programs.

use std::fs;

use oarlock_hub::{Error, Hub, Kind, Site};

use crate::fake_hub::{FakeHub, Server, model, repo};

const TOKEN: (&str, &str) = ("MODELSCOPE_API_TOKEN", "ms-tokenmarker");

fn hub(fake: &FakeHub, home: &std::path::Path, variables: &[(&str, &str)]) -> Hub {
    Hub::new(fake.environment(home, variables), Site::ModelScope).unwrap()
}

#[test]
fn a_model_comes_as_plain_files_and_then_needs_no_network() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    // LLaMA-Factory's default revision names the default branch.
    let snapshot = hub(&fake, home.path(), &[TOKEN]).model("owner/tiny.model", Some("main")).unwrap();
    let folder = home.path().join(".cache/modelscope/models/owner--tiny.model/snapshots/master");
    assert_eq!((snapshot.folder.as_path(), snapshot.commit.as_str()), (folder.as_path(), "master"));
    for file in &snapshot.files {
        assert_eq!(fs::read(&file.local).unwrap(), model().files[&file.path].content, "{}", file.path);
        assert!(fs::symlink_metadata(&file.local).unwrap().is_file());
    }
    assert_eq!(snapshot.files.len(), 4);
    for request in fake.take_log() {
        let shown = format!("{request:?}");
        match request.server {
            Server::Cdn => assert!(!shown.contains("tokenmarker"), "{shown}"),
            Server::Hub => {
                assert_eq!(request.header("authorization"), Some("Bearer ms-tokenmarker"));
                assert_eq!(request.header("cookie"), Some("m_session_id=ms-tokenmarker"));
            }
        }
    }
    hub(&fake, home.path(), &[]).model("owner/tiny.model", None).unwrap();
    assert_eq!(fake.take_log().len(), 1, "the list alone");
    hub(&fake, home.path(), &[("HF_HUB_OFFLINE", "1")]).model("owner/tiny.model", None).unwrap();
    fake.set_down(true);
    hub(&fake, home.path(), &[]).model("owner/tiny.model", None).unwrap();
    fake.set_down(false);
    // A file that was changed is known by its hash.
    fs::write(folder.join("config.json"), b"{\"model_type\": \"other\"}").unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    fs::File::options().write(true).open(folder.join("config.json")).unwrap().set_modified(later).unwrap();
    hub(&fake, home.path(), &[]).model("owner/tiny.model", None).unwrap();
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), model().files["config.json"].content);
}

#[test]
fn downloads_go_on_and_are_hashed() {
    let fake = FakeHub::start(vec![model()]);
    fake.faults().cut_after = Some((30_000, 2));
    let home = tempfile::tempdir().unwrap();
    hub(&fake, home.path(), &[]).model("owner/tiny.model", None).unwrap();
    fake.faults().n_wrong = 100;
    let folder = home.path().join("here");
    let error = hub(&fake, home.path(), &[]).model_to("owner/tiny.model", None, &folder).unwrap_err();
    assert!(matches!(error, Error::Hash { .. }), "{error}");
    fake.faults().n_wrong = 0;
    hub(&fake, home.path(), &[]).model_to("owner/tiny.model", None, &folder).unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        model().files["model.safetensors"].content
    );
}

#[test]
fn what_older_programs_have_left_is_used() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let old = home.path().join(".cache/modelscope/hub/models/owner/tiny___model");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("model.safetensors"), &model().files["model.safetensors"].content).unwrap();
    let snapshot = hub(&fake, home.path(), &[]).model("owner/tiny.model", None).unwrap();
    assert_eq!(snapshot.folder, old);
    assert!(fake.take_log().iter().all(|request| request.server == Server::Hub), "the weights were there");
}

#[test]
fn lists_that_are_cut_are_read_folder_by_folder_and_those_of_data_page_by_page() {
    let names: Vec<String> = (0..3100).map(|n| format!("folder-{}/part-{n:04}.json", n % 2)).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"{}" as &[u8])).collect();
    let fake = FakeHub::start(vec![
        repo("models", "owner/many", &files),
        repo("datasets", "owner/rows", &files[..450]),
    ]);
    let home = tempfile::tempdir().unwrap();
    let hub = hub(&fake, home.path(), &[]);
    hub.file(Kind::Model, "owner/many", None, &names[3099]).unwrap();
    assert_eq!(fake.take_log().iter().filter(|request| request.target.contains("/repo/files")).count(), 4);
    hub.file(Kind::Dataset, "owner/rows", None, &names[449]).unwrap();
    assert_eq!(fake.take_log().iter().filter(|request| request.target.contains("/repo/tree")).count(), 3);
}

#[test]
fn errors_name_its_own_token() {
    let fake = FakeHub::start(vec![]);
    let home = tempfile::tempdir().unwrap();
    let error = hub(&fake, home.path(), &[TOKEN]).model("owner/none", None).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::RepositoryNotFound { .. }));
    assert!(
        said.contains("the token of MODELSCOPE_API_TOKEN") && said.contains("/models/owner/none"),
        "{said}"
    );
    assert!(said.ends_with("set MODELSCOPE_API_TOKEN") && !said.contains("tokenmarker"), "{said}");
}
