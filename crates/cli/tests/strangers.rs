//! What others wrote is shown and not obeyed: a terminal gets no control characters of a model or a file, and no module that lies
//! in the working directory runs.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::common::{Site, run};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const TITLE: &str = "\u{1b}]0;owned\u{7}";

/// What a terminal gets from a command, of both streams.
fn on_a_terminal(site: &Site, words: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = site.oarlock(words);
    command.stdin(Stdio::null()).stdout(slave.try_clone().unwrap()).stderr(slave);
    let mut child = command.spawn().unwrap();
    // It has the last ends of the terminal, so that reading ends with it.
    drop(command);
    let (mut shown, mut some, mut master) = (Vec::new(), [0; 4096], File::from(master));
    while let Ok(n @ 1..) = master.read(&mut some) {
        shown.extend_from_slice(&some[..n]);
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn a_terminal_obeys_no_text_of_a_model_or_a_file() {
    let site = Site::new();
    let config = String::from_utf8(site.read("train.yaml")).unwrap();
    site.write("titled.yaml", &format!("{config}run_name: \"\\e]0;owned\\a\\u202E\"\n"));
    let broken = format!("{config}max_stepz: \"\\e]0;owned\\a\"\n# {TITLE}\n");
    site.write("broken.yaml", &broken);
    site.write("text.txt", &format!("{{\"text\": \"{TITLE}\""));
    fs::create_dir_all(site.path("templated")).unwrap();
    for entry in fs::read_dir(site.path("model")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, site.path("templated").join(path.file_name().unwrap())).unwrap();
    }
    let template = format!("{{{{ raise_exception('{TITLE}') }}}}");
    site.write(
        "templated/tokenizer_config.json",
        &serde_json::json!({"chat_template": template}).to_string(),
    );
    site.write("talk.json", r#"[{"instruction": "Hi", "input": "", "output": "Ho"}]"#);
    let entry = serde_json::json!({"a": {"file_name": "talk.json", TITLE: 1}});
    site.write("dataset_info.json", &entry.to_string());
    let data = ["data", "show", "train.yaml", "stage=sft", "dataset_dir=.", "output_dir=x", "cutoff_len=200"];
    // Of an error, clap drops what a terminal would obey altogether.
    let word = format!("{TITLE}owned");
    let named = format!("{TITLE}.yaml");
    site.write(&named, "max_stepz: 1\n");
    let prompt = format!("the {TITLE}\r");
    let generate =
        ["generate", "--model", "model", "--prompt", &prompt, "--max-new-tokens", "2", "--temperature", "0"];
    for words in [
        &generate[..],
        &["train", "titled.yaml", "output_dir=x", "--print-config"],
        &["train", "broken.yaml", "output_dir=x"],
        &["train", "train.yaml", &format!("output_dir=x{TITLE}"), "--dry-run"],
        &["train", &format!("no{TITLE}.yaml")],
        &["generate", "--model", &format!("no{TITLE}"), "--prompt", "x"],
        &[&data[..], &["dataset=talk.json", "model_name_or_path=templated"]].concat(),
        &[&data[..], &["dataset=a", "template=alpaca"]].concat(),
        &["train", &named, "output_dir=x"],
        &["data", "show", &format!("no{TITLE}.yaml")],
        &[&word],
        &["data", &word],
        &["token", &word],
        &["plan", "train.yaml", "--memory", &word],
        &["estimate-memory", "--params", &word],
        &["generate", "--model", "model", "--prompt", "x", "--seed", &word],
    ] {
        let shown = on_a_terminal(&site, words);
        assert!(shown.contains("owned"), "{words:?}: {shown:?}");
        for obeyed in ["\u{1b}]", "\u{7}", "\u{202e}"] {
            assert!(!shown.contains(obeyed), "{words:?}: {obeyed:?} in {shown:?}");
        }
    }
    // A file gets the text as it is.
    let said = run(site.oarlock(&generate));
    assert!(said.stdout.starts_with(&prompt), "{said:?}");
}

#[test]
fn python_is_asked_apart_from_the_working_directory() {
    let site = Site::new();
    fs::create_dir_all(site.path("bin")).unwrap();
    site.write("bin/python3", "#!/bin/sh\necho \"$1\" >> asked\n");
    fs::set_permissions(site.path("bin/python3"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = site.oarlock(&["ds_report"]);
    let path = format!("{}:{}", site.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).env("PYTHONPATH", site.path("")).env_remove("OARLOCK_CUDA_LIBRARIES");
    run(command);
    let asked = String::from_utf8(site.read("asked")).unwrap();
    assert!(asked.lines().all(|word| word == "-I"), "{asked}");
}
