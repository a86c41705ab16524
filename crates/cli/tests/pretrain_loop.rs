//! A custom training loop trains what the program trains, bit by bit.

use std::path::Path;
use std::process::Command;

use oarlock::distributed;

#[allow(dead_code)]
#[path = "../../oarlock/examples/pretrain_loop.rs"]
mod example;

#[test]
fn the_loop_of_the_example_trains_what_the_recipe_trains() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["loop", "program"].map(|name| folder.path().join(name));
    distributed::spawn(2, |_| example::train(&root, &ours, Some(3))).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_oarlock"))
        .current_dir(&root)
        .args(["train", "recipes/pretrain.yaml", "max_steps=3", "save_strategy=no", "eval_strategy=no"])
        .arg(format!("output_dir={}", theirs.display()))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        let [ours, theirs] = [&ours, &theirs].map(|dir| std::fs::read(dir.join(file)).unwrap());
        assert!(ours == theirs, "{file} differs");
    }
}

#[test]
fn the_page_of_the_library_shows_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = include_str!("../../oarlock/examples/pretrain_loop.rs");
    let code = &example[example.find("use ").unwrap()..];
    let page = std::fs::read_to_string(root.join("docs/library.md")).unwrap();
    assert!(page.contains(code), "docs/library.md shows another loop than examples/pretrain_loop.rs");
}
