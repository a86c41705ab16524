//! What is asked of a hub, and what is not: requests, redirects, tokens, and caches without a network.

use std::fs;

use oarlock_hub::{Error, Hub, Kind, Site};

use crate::fake_hub::{FakeHub, Server, TOKEN, cache, listening, model, noise, repo};

#[test]
fn a_model_comes_once_and_then_needs_no_network() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let snapshot = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    assert_eq!(snapshot.commit, model().commit);
    let names: Vec<&str> = snapshot.files.iter().map(|file| file.path.as_str()).collect();
    let expected =
        ["additional_chat_templates/rag.jinja", "config.json", "tokenizer.json", "model.safetensors"];
    assert_eq!(names, expected);
    for file in &snapshot.files {
        let original = &model().files[&file.path];
        assert_eq!(fs::read(&file.local).unwrap(), original.content, "{}", file.path);
        assert_eq!(file.etag.as_deref(), Some(original.etag().as_str()));
        assert_eq!(file.local, snapshot.folder.join(&file.path));
    }
    for request in fake.take_log() {
        assert_eq!(request.header("accept-encoding"), Some("identity"), "{request:?}");
        assert!(request.header("user-agent").unwrap().starts_with("oarlock/"), "{request:?}");
    }
    // Named again by its branch: one request for the commit, no more.
    let again = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    assert_eq!(again.folder, snapshot.folder);
    assert_eq!(fake.take_log().len(), 1);
    // By its commit, and without being asked to: none.
    let name = format!("owner/tiny.model@{}", snapshot.commit);
    fake.hub(home.path(), &[]).model(&name, None).unwrap();
    fake.hub(home.path(), &[("HF_HUB_OFFLINE", "1")]).model("owner/tiny.model", None).unwrap();
    fake.hub(home.path(), &[("TRANSFORMERS_OFFLINE", "yes")]).model("owner/tiny.model", None).unwrap();
    assert_eq!(fake.take_log().len(), 0);
    // A hub that does not answer is worth a note, and no error.
    for endpoint in ["http://127.0.0.1:1", fake.endpoint.as_str()] {
        fake.set_down(true);
        let (hub, heard) = listening(fake.hub(home.path(), &[("HF_ENDPOINT", endpoint)]));
        assert_eq!(hub.model("owner/tiny.model", None).unwrap().folder, snapshot.folder);
        assert!(hub.file(Kind::Model, "owner/tiny.model", None, "config.json").unwrap().is_file());
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(
            heard[0].starts_with("note: the model owner/tiny.model is taken from the cache, since"),
            "{heard:?}"
        );
    }
}

#[test]
fn a_snapshot_without_a_list_serves_without_a_network_as_far_as_it_is_whole() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let snapshot = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    let trees = cache(home.path()).join("models--owner--tiny.model/trees");
    fs::remove_dir_all(trees).unwrap();
    let offline = || fake.hub(home.path(), &[("HF_HUB_OFFLINE", "1")]);
    let again = offline().model("owner/tiny.model", None).unwrap();
    let etags: Vec<_> = again.files.iter().map(|file| file.etag.clone().unwrap()).collect();
    assert!(etags.contains(&model().files["model.safetensors"].etag()));
    fs::remove_file(snapshot.folder.join("model.safetensors")).unwrap();
    let said = offline().model("owner/tiny.model", None).unwrap_err().to_string();
    assert!(
        said.contains("outgoing traffic has been disabled: weights of the model owner/tiny.model"),
        "{said}"
    );
}

#[test]
fn the_token_never_reaches_the_second_server() {
    let mut private = model();
    private.access = crate::fake_hub::Access::Private;
    let fake = FakeHub::start(vec![private]);
    let home = tempfile::tempdir().unwrap();
    fake.hub(home.path(), &[("HF_TOKEN", TOKEN)]).model("owner/tiny.model", None).unwrap();
    let log = fake.take_log();
    let (hub, cdn): (Vec<_>, Vec<_>) = log.iter().partition(|request| request.server == Server::Hub);
    assert!(!cdn.is_empty() && hub.len() > 5);
    let expected = format!("Bearer {TOKEN}");
    assert!(hub.iter().all(|request| request.header("authorization") == Some(&expected)));
    for request in cdn {
        assert!(!format!("{request:?}").contains(TOKEN), "{request:?}");
        assert!(request.target.contains("Signature="), "the address is used as it was given");
    }
}

#[test]
fn a_renamed_repository_is_found_under_its_old_name() {
    let mut renamed = model();
    renamed.renamed_from = Some("old/name".to_owned());
    let fake = FakeHub::start(vec![renamed]);
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), &[("HF_TOKEN", TOKEN)]);
    for path in ["config.json", "model.safetensors"] {
        let local = hub.file(Kind::Model, "old/name", None, path).unwrap();
        assert_eq!(fs::read(local).unwrap(), model().files[path].content);
    }
    assert!(cache(home.path()).join("models--old--name/refs/main").is_file());
    assert_eq!(hub.model("old/name", None).unwrap().files.len(), 4);
    let cdn = fake.take_log().into_iter().filter(|request| request.server == Server::Cdn);
    assert!(cdn.into_iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn odd_names_come_as_they_are_and_hostile_ones_not_at_all() {
    let odd = ["a b#c%20.json", "folder/\u{6570}\u{636e}.txt", "x?y&z=1.json", "a+b.json"];
    let files: Vec<(&str, &[u8])> = odd.iter().map(|path| (*path, b"content" as &[u8])).collect();
    let mut rows = repo("datasets", "owner/odd", &files);
    rows.listed =
        ["../../escaped.json", "/etc/absolute.json", "a/../../up.json", "back\\slash.json", "C:/drive.json"]
            .map(str::to_owned)
            .to_vec();
    let fake = FakeHub::start(vec![rows]);
    let home = tempfile::tempdir().unwrap();
    let (hub, heard) = listening(fake.hub(home.path(), &[]));
    for path in odd {
        let local = hub.file(Kind::Dataset, "owner/odd", None, path).unwrap();
        assert_eq!(fs::read(&local).unwrap(), b"content", "{path}");
        assert!(local.ends_with(path));
    }
    let rows = hub.dataset("owner/odd", &Default::default()).unwrap();
    assert_eq!(
        rows.splits.iter().map(|split| split.files.len()).sum::<usize>(),
        3,
        "the text is of another form"
    );
    let refused = heard.lock().unwrap().iter().filter(|words| words.contains("refused")).count();
    assert_eq!(refused, 5);
    for path in ["../x", "/etc/passwd", "a/../../x", "a\\b", "C:/x", ""] {
        let error = hub.file(Kind::Dataset, "owner/odd", None, path).unwrap_err();
        assert!(matches!(error, Error::Path { .. }), "{path}: {error}");
    }
    assert!(fake.take_log().iter().all(|request| !request.target.contains("..")));
}

#[test]
fn headers_in_all_their_forms_are_understood() {
    let fake = FakeHub::start(vec![model()]);
    fake.faults().is_weak = true;
    // Then the size is known only with the content: the length of the redirect is that of its own text.
    fake.faults().without = vec!["X-Linked-Size"];
    let home = tempfile::tempdir().unwrap();
    let snapshot = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    let weights = fs::read(snapshot.folder.join("model.safetensors")).unwrap();
    assert_eq!(weights, model().files["model.safetensors"].content);
    let config = &model().files["config.json"];
    assert!(cache(home.path()).join("models--owner--tiny.model/blobs").join(config.etag()).is_file());
}

#[test]
fn lists_of_many_pages_are_read_through_a_mirror() {
    let names: Vec<String> = (0..25).map(|n| format!("data/part-{n:02}.json")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"{}" as &[u8])).collect();
    let fake = FakeHub::start(vec![repo("datasets", "owner/many", &files)]);
    fake.faults().page = Some(4);
    let home = tempfile::tempdir().unwrap();
    let rows = fake.hub(home.path(), &[]).dataset("owner/many", &Default::default()).unwrap();
    assert_eq!(rows.splits[0].files.len(), 25);
    let n_pages = fake.take_log().iter().filter(|request| request.target.contains("/tree/")).count();
    assert_eq!(n_pages, 7);
}

#[test]
fn what_no_hub_sends_is_an_error_that_names_the_proxy() {
    for missing in ["X-Repo-Commit", "ETag"] {
        let fake = FakeHub::start(vec![model()]);
        fake.faults().without = vec![missing];
        let home = tempfile::tempdir().unwrap();
        let error = fake
            .hub(home.path(), &[])
            .file(Kind::Model, "owner/tiny.model", None, "config.json")
            .unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(error, Error::NotAHub { .. }) && said.contains(missing) && said.contains("proxy"),
            "{said}"
        );
    }
    let fake = FakeHub::start(vec![model()]);
    fake.faults().forces_gzip = true;
    let home = tempfile::tempdir().unwrap();
    let error =
        fake.hub(home.path(), &[]).file(Kind::Model, "owner/tiny.model", None, "config.json").unwrap_err();
    assert!(error.to_string().contains("compresses"), "{error}");
    // Entity tags and commits become names of files.
    for (name, value) in [("ETag", "\"../../../evil\""), ("X-Repo-Commit", "../../evil")] {
        let fake = FakeHub::start(vec![model()]);
        let commit = "a".repeat(40);
        let commit: &'static str = commit.leak();
        let mut headers = vec![("ETag", "\"x\""), ("X-Repo-Commit", commit)];
        headers.retain(|(known, _)| *known != name);
        headers.push((name, value));
        fake.faults().answers = vec![(Server::Hub, 200, headers)];
        let home = tempfile::tempdir().unwrap();
        let error = fake
            .hub(home.path(), &[])
            .file(Kind::Model, "owner/tiny.model", None, "config.json")
            .unwrap_err();
        assert!(matches!(error, Error::NotAHub { .. }), "{error}");
    }
}

#[test]
fn a_hub_that_hangs_is_given_up_and_the_cache_serves() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    fake.faults().hangs = true;
    let mut environment = fake.environment(home.path(), &[]);
    environment.etag_timeout = std::time::Duration::from_millis(200);
    let (hub, heard) = listening(Hub::new(environment, Site::HuggingFace).unwrap());
    let begin = std::time::Instant::now();
    hub.model("owner/tiny.model", None).unwrap();
    assert!(begin.elapsed().as_secs() < 10);
    assert!(heard.lock().unwrap()[0].contains("timeout"), "{heard:?}");
}

#[test]
fn proxies_are_asked_unless_the_host_is_excepted() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let proxy = ("http_proxy", "http://user:proxypassword@127.0.0.1:1");
    let get = |variables: &[(&str, &str)]| {
        fake.hub(home.path(), variables).file(Kind::Model, "owner/tiny.model", None, "config.json")
    };
    let error = get(&[proxy]).unwrap_err();
    assert!(
        error.to_string().contains("through a proxy") && !error.to_string().contains("proxypassword"),
        "{error}"
    );
    assert!(!format!("{:?}", fake.environment(home.path(), &[proxy])).contains("proxypassword"));
    assert!(fake.take_log().is_empty());
    get(&[proxy, ("NO_PROXY", "example.com, 127.0.0.1, 127.0.0.2")]).unwrap();
    let wrong = fake.environment(home.path(), &[("ALL_PROXY", "nonsense://secretmarker")]);
    let error = Hub::new(wrong, Site::HuggingFace).err().unwrap();
    assert!(matches!(error, Error::Proxy { .. }) && !error.to_string().contains("secretmarker"), "{error}");
}

#[test]
fn sharded_weights_come_with_their_index() {
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("model-1.safetensors", &noise(1000)),
        ("model-2.safetensors", &noise(2000)),
        ("model-3.safetensors", &noise(3000)),
    ];
    let fake = FakeHub::start(vec![repo("models", "owner/sharded", &files)]);
    let home = tempfile::tempdir().unwrap();
    let snapshot = fake.hub(home.path(), &[]).model("owner/sharded", Some("v1.0")).unwrap();
    let names: Vec<&str> = snapshot.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        names,
        ["config.json", "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors"]
    );
    let gguf = repo("models", "owner/quants", &[("m-Q8_0.gguf", b"8"), ("m-q4_k_m.gguf", b"4")]);
    fake.repos().push(gguf);
    let hub = fake.hub(home.path(), &[]);
    assert_eq!(hub.gguf("owner/quants", None).unwrap().files[0].path, "m-q4_k_m.gguf");
    assert_eq!(hub.gguf("owner/quants:q8_0", None).unwrap().files[0].path, "m-Q8_0.gguf");
}
