//! The scripts of `oarlock completions` in the shells that they are for, and the pages of `oarlock man` in the programs that show
//! them.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::common::{CommandOutput, Site, run};

/// A folder with recipes and some names, in which `oarlock` is in PATH.
fn site() -> Site {
    let site = Site::new();
    fs::create_dir_all(site.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_oarlock"), site.path("bin/oarlock")).unwrap();
    fs::create_dir(site.path("my runs")).unwrap();
    site.write("my notes.txt", "");
    site
}

fn shell(site: &Site, words: &[&str]) -> CommandOutput {
    let mut command = site.shell("exec \"$@\"");
    let path = format!("{}:{}", site.path("bin").display(), std::env::var("PATH").unwrap());
    command.args(words).env("PATH", path).env("HOME", site.path("model"));
    let said = run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.stderr, "", "{words:?}");
    said
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|said| said.status.success())
}

/// The words of a line as bash hands them over: `=` and `:` are words of their own.
fn divided(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for word in line.split(' ') {
        let mut rest = word;
        loop {
            let is_mark = |c: char| c == '=' || c == ':';
            let len = match rest.find(is_mark) {
                Some(0) => rest.len() - rest.trim_start_matches(is_mark).len(),
                Some(at) => at,
                None => rest.len(),
            };
            words.push(rest[..len].to_owned());
            rest = &rest[len..];
            if rest.is_empty() {
                break;
            }
        }
    }
    words
}

/// What bash would offer, and whether it would put a blank behind it.
fn bash(site: &Site, line: &str) -> (Vec<String>, bool) {
    const SCRIPT: &str = "\
        compopt() { [[ $* != '-o nospace' ]] || blank=no; }
        source <(oarlock completions bash)
        COMP_LINE=$1 COMP_POINT=${#1} blank=yes
        shift
        COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))
        _oarlock
        printf '%s\\n' \"$blank\" \"${COMPREPLY[@]}\"";
    let words = divided(line);
    let words = words.iter().map(String::as_str);
    let said =
        shell(site, &["bash", "-c", SCRIPT, "bash", line].into_iter().chain(words).collect::<Vec<_>>());
    let mut lines = said.stdout.lines().filter(|line| !line.is_empty()).map(str::to_owned);
    let has_blank = lines.next().unwrap() == "yes";
    (lines.collect(), has_blank)
}

#[test]
fn bash_completes_commands_keys_values_and_files() {
    let site = site();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for (line, offered, has_blank) in [
        ("oarlock compl", &["completions"][..], true),
        (
            "oarlock train ",
            &[
                "pretrain",
                "sft",
                "lora",
                "dpo",
                "bin",
                "model",
                "my notes.txt",
                "my runs",
                "text.jsonl",
                "train.yaml",
            ],
            true,
        ),
        ("oarlock train train.yaml learning_ra", &["learning_rate="], false),
        // Bash replaces what follows the mark alone.
        ("oarlock train train.yaml stage=", &["pt", "sft", "dpo", "kto", "rm", "raft"], true),
        ("oarlock train train.yaml stage=s", &["sft"], true),
        ("oarlock train train.yaml report_to=csv,ten", &["csv,tensorboard"], true),
        ("oarlock train train.yaml output_dir=my", &["my notes.txt", "my runs"], true),
        ("oarlock train train.yaml --stage=k", &["kto"], true),
        ("oarlock train train.yaml --stage k", &["kto"], true),
        ("oarlock   init  s", &["sft"], true),
        ("oarlock chat --mod", &["--model"], true),
        ("oarlock torchrun --nproc", &["--nproc_per_node"], true),
        ("oarlock no-such-command x", &[], true),
    ] {
        let (mut found, blank) = bash(&site, line);
        if line.ends_with("train ") {
            found.retain(|name| !name.starts_with("said-"));
            found[4..].sort();
        }
        found.retain(|name| !name.starts_with("said-"));
        if offered.len() > 1 && line.contains("my") {
            found.sort();
        }
        assert_eq!((found, blank), (words(offered), has_blank), "{line}");
    }
}

#[test]
fn fish_completes_with_descriptions() {
    if !oarlock_must::have("fish", is_there("fish"), "fish is not installed") {
        return;
    }
    let site = site();
    let fish = |line: &str| {
        let script = format!("oarlock completions fish | source; complete --do-complete '{line}'");
        let said = shell(&site, &["fish", "--no-config", "-c", &script]);
        said.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(fish("oarlock train train.yaml learning_ra"), ["learning_rate=\tPeak learning rate [5e-5]"]);
    let stages = fish("oarlock train train.yaml stage=");
    assert!(stages.len() == 6 && stages[0] == "stage=pt\tthe default", "{stages:?}");
    assert!(fish("oarlock init ").iter().any(|line| line.starts_with("lora")));
    let files = fish("oarlock train train.yaml output_dir=my");
    let mut files: Vec<&str> = files.iter().map(|line| line.split('\t').next().unwrap()).collect();
    files.sort_unstable();
    assert_eq!(files, ["output_dir=my notes.txt", "output_dir=my runs/"]);
    assert_eq!(
        fish("oarlock compl"),
        ["completions\tPrint the script by which a shell completes commands, keys and their values"]
    );
}

#[test]
fn zsh_completes_with_descriptions() {
    if !oarlock_must::have("zsh", is_there("zsh"), "zsh is not installed") {
        return;
    }
    let site = site();
    // The functions of its completion system say what they were asked for.
    const SCRIPT: &str = "\
        compdef() { }
        _describe() { print -l -- \"${(P@)4} ${@[5,-1]}\" \"${(P@)4[2,-1]}\"; }
        _files() { print -- \"files of '$PREFIX' $*\"; }
        compset() { PREFIX=${PREFIX#$~2}; }
        source <(oarlock completions zsh)
        words=(\"$@\") CURRENT=$# PREFIX=${@[-1]}
        _oarlock";
    let zsh = |line: &str| {
        let words = line.split(' ');
        let said =
            shell(&site, &["zsh", "-f", "-c", SCRIPT, "zsh"].into_iter().chain(words).collect::<Vec<_>>());
        said.stdout
    };
    let key = zsh("oarlock train train.yaml learning_ra");
    assert!(key.contains("learning_rate=:Peak learning rate [5e-5] -S"), "{key}");
    let stages = zsh("oarlock train train.yaml stage=");
    assert!(stages.contains("stage=pt:the default") && stages.contains("stage=raft:"), "{stages}");
    assert_eq!(zsh("oarlock train train.yaml output_dir=my"), "files of 'my' \n");
    let first = zsh("oarlock train ");
    assert!(first.contains("pretrain:The recipe pretrain") && first.contains("files of '' \n"), "{first}");
}

#[test]
fn pages_of_the_manual_are_right() {
    let site = site();
    let said = run(site.oarlock(&["man", "man1"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let pages: Vec<String> = fs::read_dir(site.path("man1"))
        .unwrap()
        .map(|entry| format!("man1/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    assert!(pages.len() > 20, "{pages:?}");
    if oarlock_must::have("groff", is_there("groff"), "groff is not installed") {
        for page in &pages {
            // `shell` refuses what it says of faults.
            let shown = shell(&site, &["groff", "-man", "-ww", "-Tutf8", "-P-cbou", page]).stdout;
            assert!(shown.contains("SYNOPSIS"), "{page}: {shown}");
        }
    }
    if oarlock_must::have("mandoc", Command::new("mandoc").output().is_ok(), "mandoc is not installed") {
        for page in &pages {
            let mut command = site.shell("mandoc -T lint -W warning \"$1\"");
            let said = run({
                command.arg(page);
                command
            });
            // A page has no date, so that the same version gives the same bytes.
            let faults = said.stdout.lines().filter(|line| !line.contains("missing date"));
            assert_eq!(faults.collect::<Vec<_>>(), Vec::<&str>::new());
        }
    }
}
