//! huggingface_hub itself reads this cache without a network, and this crate reads what it has written.

use std::fs;
use std::path::Path;
use std::process::Command;

use oarlock_hub::{DatasetQuery, Kind};

use crate::fake_hub::{FakeHub, cache, model, noise, repo};

const NAME: &str = "owner/tiny.model";

/// A program in Python, with the cache below a home.
fn python(home: &Path, fake: &FakeHub, is_offline: bool, program: &str) -> Result<String, String> {
    let program = format!("import huggingface_hub as h, sys\n{program}");
    let output = Command::new(std::env::var("OARLOCK_PYTHON").unwrap_or_else(|_| "python3".to_owned()))
        .args(["-c", &program])
        .env("HOME", home)
        .env("HF_ENDPOINT", &fake.endpoint)
        .env("HF_HUB_OFFLINE", if is_offline { "1" } else { "0" })
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        .env_remove("HF_HOME")
        .env_remove("HF_HUB_CACHE")
        .env_remove("XDG_CACHE_HOME")
        .env("NO_PROXY", "*")
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn have(home: &Path, fake: &FakeHub) -> bool {
    let found = python(home, fake, true, "print(h.__version__)");
    let why = found.as_ref().err().and_then(|said| said.trim().lines().last()).unwrap_or_default();
    oarlock_must::have("huggingface_hub", found.is_ok(), why)
}

#[test]
fn huggingface_hub_reads_this_cache_offline() {
    let rows = repo("datasets", "owner/rows", &[("README.md", b"# Rows"), ("train.jsonl", b"{}\n")]);
    let fake = FakeHub::start(vec![model(), rows]);
    let home = tempfile::tempdir().unwrap();
    if !have(home.path(), &fake) {
        return;
    }
    let hub = fake.hub(home.path(), &[]);
    let snapshot = hub.model(NAME, None).unwrap();
    hub.dataset("owner/rows", &DatasetQuery::default()).unwrap();
    hub.file(Kind::Model, NAME, None, "none.json").unwrap_err();
    let said = python(
        home.path(),
        &fake,
        true,
        "print(h.hf_hub_download('owner/tiny.model', 'model.safetensors'))\n\
         print(h.hf_hub_download('owner/tiny.model', 'additional_chat_templates/rag.jinja', revision='main'))\n\
         print(h.snapshot_download('owner/tiny.model', allow_patterns=['*.json', '*.safetensors']))\n\
         print(h.hf_hub_download('owner/rows', 'train.jsonl', repo_type='dataset'))\n\
         print(h.try_to_load_from_cache('owner/tiny.model', 'none.json') is h._CACHED_NO_EXIST)\n\
         info = h.scan_cache_dir()\n\
         print(len(info.warnings), sorted((r.repo_id, r.nb_files, sorted(r.refs)) for r in info.repos))\n",
    )
    .unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let local = |path: &str| snapshot.folder.join(path).display().to_string();
    assert_eq!(lines[0], local("model.safetensors"));
    assert_eq!(lines[1], local("additional_chat_templates/rag.jinja"));
    assert_eq!(lines[2], snapshot.folder.display().to_string());
    assert!(lines[3].ends_with("/train.jsonl"));
    assert_eq!(lines[4], "True");
    assert_eq!(lines[5], "0 [('owner/rows', 2, ['main']), ('owner/tiny.model', 4, ['main'])]");
    // And online: it finds that nothing is to be done.
    let before = fake.n_content_bytes();
    let program = "h.snapshot_download('owner/tiny.model', allow_patterns=['*.json', '*.safetensors'])";
    python(home.path(), &fake, false, program).unwrap();
    assert_eq!(fake.n_content_bytes(), before);
    // A folder of its own is known by its notes.
    let folder = home.path().join("here");
    hub.model_to(NAME, None, &folder).unwrap();
    let before = fake.n_content_bytes();
    let program = format!(
        "h.hf_hub_download('owner/tiny.model', 'model.safetensors', local_dir={:?})",
        folder.display().to_string()
    );
    python(home.path(), &fake, false, &program).unwrap();
    assert_eq!(fake.n_content_bytes(), before);
}

#[test]
fn this_crate_reads_the_cache_of_huggingface_hub_offline() {
    let rows = repo("datasets", "owner/rows", &[("README.md", b"# Rows"), ("train.parquet", &noise(500))]);
    let fake = FakeHub::start(vec![model(), rows]);
    let home = tempfile::tempdir().unwrap();
    if !have(home.path(), &fake) {
        return;
    }
    let program = "h.snapshot_download('owner/tiny.model')\n\
                   h.snapshot_download('owner/rows', repo_type='dataset')\n\
                   h.hf_hub_download('owner/tiny.model', 'config.json', local_dir=sys.path[0] or '.')\n"
        .replace("sys.path[0] or '.'", &format!("{:?}", home.path().join("here").display().to_string()));
    python(home.path(), &fake, false, &program).unwrap();
    fake.take_log();
    let hub = fake.hub(home.path(), &[("HF_HUB_OFFLINE", "1")]);
    let snapshot = hub.model(NAME, None).unwrap();
    for file in &snapshot.files {
        let original = &model().files[&file.path];
        assert_eq!(fs::read(&file.local).unwrap(), original.content);
        assert_eq!(file.etag.as_deref(), Some(original.etag().as_str()));
    }
    let rows = hub.dataset("owner/rows", &DatasetQuery::default()).unwrap();
    assert_eq!(rows.splits[0].files[0].n_bytes, 500);
    assert_eq!(fake.take_log().len(), 0);
    // Online, nothing that it has is asked for again, and its list of files is taken.
    let before = fake.n_content_bytes();
    fake.hub(home.path(), &[]).model(NAME, None).unwrap();
    assert_eq!(fake.n_content_bytes(), before);
    assert_eq!(fake.take_log().len(), 1);
    assert!(cache(home.path()).join("models--owner--tiny.model").is_dir());
    fake.hub(home.path(), &[]).model_to(NAME, None, &home.path().join("here")).unwrap();
    let requests = fake.take_log();
    let n_configs = requests.iter().filter(|request| request.target.ends_with("config.json")).count();
    assert_eq!(n_configs, 0, "the note on it is understood");
}
