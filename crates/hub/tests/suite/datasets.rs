//! Data sets by name: configurations, splits, formats, and the files with what names their contents.

use std::fs;

use oarlock_hub::{DatasetQuery, Error, Format};

use crate::fake_hub::{FakeHub, noise, repo};

const CARD: &[u8] = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: \
test\n    path: main/test-*\n- config_name: socratic\n  data_dir: socratic\n---\n# Rows\n";

fn query(text: &str) -> DatasetQuery {
    let mut query = DatasetQuery::default();
    for (name, value) in text.split_whitespace().filter_map(|pair| pair.split_once('=')) {
        let value = Some(value.to_owned());
        match name {
            "config" => query.config = value,
            "folder" => query.folder = value,
            _ => query.split = value,
        }
    }
    query
}

#[test]
fn configurations_and_splits_are_those_of_the_card() {
    let rows = repo(
        "datasets",
        "openai/rows",
        &[
            ("README.md", CARD),
            ("main/train-00000-of-00001.parquet", &noise(5000)),
            ("main/test-00000-of-00001.parquet", &noise(700)),
            ("socratic/train.jsonl", b"{}\n"),
            ("socratic/validation.jsonl", b"{}\n"),
        ],
    );
    let fake = FakeHub::start(vec![rows]);
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), &[]);
    let said = hub.dataset("openai/rows", &query("")).unwrap_err().to_string();
    assert_eq!(said, "the data set openai/rows: it has several configurations; name one of main, socratic");
    let main = hub.dataset("openai/rows", &query("config=main")).unwrap();
    assert_eq!((main.format, main.config.as_deref()), (Format::Parquet, Some("main")));
    let names: Vec<_> = main.splits.iter().map(|split| (split.name.as_str(), split.files.len())).collect();
    assert_eq!(names, [("train", 1), ("test", 1)]);
    let file = &main.splits[0].files[0];
    let original = &fake.repos()[0].files["main/train-00000-of-00001.parquet"].clone();
    assert_eq!(file.etag.as_deref(), Some(original.etag().as_str()));
    assert_eq!(fs::read(&file.local).unwrap(), original.content);
    assert!(
        file.local.ends_with("main/train-00000-of-00001.parquet") && file.local.starts_with(&main.folder)
    );
    let one = hub.dataset("openai/rows", &query("config=main split=test[:10]")).unwrap();
    assert_eq!(one.splits.len(), 1);
    let socratic = hub.dataset("openai/rows", &query("config=socratic")).unwrap();
    assert_eq!((socratic.format, socratic.splits.len()), (Format::Json, 2));
    let folder = hub.dataset("openai/rows", &query("folder=socratic split=train")).unwrap();
    assert_eq!(folder.splits[0].files[0].path, "socratic/train.jsonl");
    for (wrong, expected) in [
        ("config=other", "it has no configuration \"other\"; it has main, socratic"),
        ("config=main split=dev", "it has no split \"dev\"; it has train, test"),
        ("folder=nowhere", "it has no files of rows in \"nowhere\""),
        ("folder=../..", "is refused"),
    ] {
        let said = hub.dataset("openai/rows", &query(wrong)).unwrap_err().to_string();
        assert!(said.contains(expected), "{wrong}: {said}");
    }
    // All of it again without a network.
    let offline = fake.hub(home.path(), &[("HF_DATASETS_OFFLINE", "1")]);
    fake.take_log();
    let again = offline.dataset("openai/rows", &query("config=main")).unwrap();
    assert_eq!(again.splits[0].files[0].etag, main.splits[0].files[0].etag);
    assert_eq!(fake.take_log().len(), 0);
}

#[test]
fn splits_follow_from_names_where_no_card_says_more() {
    let rows = repo(
        "datasets",
        "owner/names",
        &[
            ("train.csv", b"a\n1\n"),
            ("my-eval.csv", b"a\n1\n"),
            ("notes.txt", b"x"),
            (".gitattributes", b"x"),
        ],
    );
    let fake = FakeHub::start(vec![rows]);
    let home = tempfile::tempdir().unwrap();
    let rows = fake.hub(home.path(), &[]).dataset("owner/names@v1.0", &query("")).unwrap();
    let shown: Vec<_> =
        rows.splits.iter().map(|split| format!("{} {}", split.name, split.files[0].path)).collect();
    assert_eq!(shown, ["train train.csv", "test my-eval.csv"]);
    assert_eq!(rows.format, Format::Csv);
}

#[test]
fn what_is_not_read_is_said() {
    for (files, expected) in [
        (vec![("image.tar", b"x" as &[u8])], "files such as \"image.tar\", which Oarlock does not read"),
        (vec![("rows.py", b"x")], "files such as \"rows.py\", which Oarlock does not read"),
        (vec![("rows.jsonl.gz", b"x")], "\"rows.jsonl.gz\" is compressed"),
        (vec![("README.md", b"---\nconfigs: 3\n---\n")], "`configs` in its README.md is not a list"),
        (vec![("README.md", b"# Nothing")], "it has no files of rows"),
        (
            vec![
                ("README.md", b"---\nconfigs:\n- config_name: a\n  data_files: x*\n---\n"),
                ("y.json", b"{}"),
            ],
            "names [\"x*\"] for \"train\", and no file is called so",
        ),
        (
            vec![("README.md", b"---\nconfigs:\n- config_name: a\n  data_files: https://x/y.csv\n---\n")],
            "which lies elsewhere",
        ),
    ] {
        let fake = FakeHub::start(vec![repo("datasets", "owner/odd", &files)]);
        let home = tempfile::tempdir().unwrap();
        let error = fake.hub(home.path(), &[]).dataset("owner/odd", &query("")).unwrap_err();
        assert!(matches!(error, Error::Dataset { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
