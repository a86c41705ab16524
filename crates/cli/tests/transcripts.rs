//! What the commands say, word for word: each page in `transcripts/` is a list of cases, with the files of each case,
//! its commands and what they print.
//!
//! In a page `## name` begins a case, ```` ```file PATH ```` a file of it, ```` ```console ```` its commands: a line
//! `$ COMMAND` for the shell, then what it prints on both streams, then `exit N` unless N is 0. In what is printed
//! `[..]` stands for anything within a line and `...` for any number of lines; a line that begins with `[with gloo]`
//! or `[without gloo]` is printed by a program that was built so. Each case runs in a folder of its own with `model/`
//! (a tiny model), `text.jsonl` and the files of `tests/guides`; all names of the program are in PATH.
//! `OARLOCK_BLESS=1 cargo test -p oarlock-cli --test suite transcripts` writes down what is printed now; read the difference.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Site, run};

/// A command with what it should print.
struct Step {
    command: String,
    /// The lines of the page that hold the expectation.
    lines: std::ops::Range<usize>,
}

struct Case {
    name: String,
    files: Vec<(String, String)>,
    steps: Vec<Step>,
}

fn parse(page: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut lines = page.lines().enumerate().peekable();
    while let Some((_, line)) = lines.next() {
        if let Some(name) = line.strip_prefix("## ") {
            cases.push(Case { name: name.to_owned(), files: Vec::new(), steps: Vec::new() });
            continue;
        }
        let Some(fence) = line.strip_prefix("```").filter(|fence| !fence.is_empty()) else { continue };
        let case = cases.last_mut().expect("a case before the first block");
        let mut inside = Vec::new();
        let end = loop {
            let (number, line) = lines.next().expect("an end of the block");
            if line == "```" {
                break number;
            }
            inside.push((number, line));
        };
        if let Some(path) = fence.strip_prefix("file ") {
            let text = inside.iter().map(|(_, line)| format!("{line}\n")).collect();
            case.files.push((path.to_owned(), text));
        } else if fence == "console" {
            for (i, (number, line)) in inside.iter().enumerate() {
                if let Some(command) = line.strip_prefix("$ ") {
                    let next = inside[i + 1..].iter().find(|(_, line)| line.starts_with("$ "));
                    let lines = number + 1..next.map_or(end, |(number, _)| *number);
                    case.steps.push(Step { command: command.to_owned(), lines });
                }
            }
        } else {
            panic!("a block of an unknown kind: {fence}");
        }
    }
    cases
}

/// What a command prints, as the page would have it.
fn said(site: &Site, links: &Path, command: &str) -> Vec<String> {
    let script = format!("PATH={}:$PATH; exec 2>&1; {command}", links.display());
    let mut shell = site.shell(&script);
    shell
        .env("HOME", site.path("user"))
        .env("NO_COLOR", "1")
        .env_remove("HF_HOME")
        .env_remove("XDG_CACHE_HOME");
    for name in
        ["FORCE_TORCHRUN", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS", "PYTHON_EXEC"]
    {
        shell.env_remove(name);
    }
    // The pages are of a machine without GPUs.
    shell.env("CUDA_VISIBLE_DEVICES", "");
    let said = run(shell);
    let folder = site.path("").canonicalize().unwrap().display().to_string();
    let text = said.stdout.replace(&folder, "HERE");
    let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    match (said.code, said.signal) {
        (Some(0), _) => {}
        (Some(code), _) => lines.push(format!("exit {code}")),
        (None, signal) => lines.push(format!("signal {}", signal.unwrap_or(0))),
    }
    lines
}

/// Whether lines are what the page says.
fn fits(expected: &[&str], said: &[String]) -> bool {
    match expected.split_first() {
        None => said.is_empty(),
        Some((&"...", rest)) => (0..=said.len()).any(|skip| fits(rest, &said[skip..])),
        Some((line, rest)) => {
            said.split_first().is_some_and(|(first, said)| line_fits(line, first) && fits(rest, said))
        }
    }
}

fn line_fits(expected: &str, said: &str) -> bool {
    match expected.split_once("[..]") {
        None => expected == said,
        Some((before, rest)) => said.strip_prefix(before).is_some_and(|said| {
            said.char_indices().any(|(at, _)| line_fits(rest, &said[at..])) || line_fits(rest, "")
        }),
    }
}

/// How lines begin that one build prints and another does not.
const MARKS: [&str; 2] = ["[with gloo] ", "[without gloo] "];

/// What this build should print, of the lines of a page.
fn of_this_build<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let [with, without] = MARKS;
    let (ours, others) = match oarlock_comm::gloo_obstacle().is_none() {
        true => (with, without),
        false => (without, with),
    };
    let of_others = |line: &&&str| !line.starts_with(others);
    lines.iter().filter(of_others).map(|line| line.strip_prefix(ours).unwrap_or(line)).collect()
}

/// Folder of links to the program under all its names.
fn links() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let names = oarlock_cli::front::ALL.iter().flat_map(|front_end| front_end.names);
    for name in names.copied().chain(["oarlock"]) {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_oarlock"), folder.path().join(name)).unwrap();
    }
    folder
}

fn copy_guides(site: &Site) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guides");
    fs::create_dir(site.path("guides")).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, site.path("guides").join(path.file_name().unwrap())).unwrap();
    }
}

fn page(name: &str) {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(name).with_extension("md");
    let page = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = page.lines().collect();
    let (links, mut wrong, mut by_hand, mut new) = (links(), Vec::new(), Vec::new(), Vec::new());
    let mut copied = 0;
    for case in parse(&page) {
        let site = Site::new();
        copy_guides(&site);
        for (path, text) in &case.files {
            fs::create_dir_all(site.path(path).parent().unwrap()).unwrap();
            site.write(path, text);
        }
        for step in &case.steps {
            let expected = &lines[step.lines.clone()];
            let said = said(&site, links.path(), &step.command);
            new.extend(lines[copied..step.lines.start].iter().map(|line| line.to_string()));
            copied = step.lines.end;
            let of_build = of_this_build(expected);
            let fits = fits(&of_build, &said);
            // What another build prints cannot be seen here, so such lines are changed by hand.
            let is_of_builds = expected.iter().any(|line| MARKS.iter().any(|mark| line.starts_with(mark)));
            if fits || is_of_builds {
                new.extend(expected.iter().map(|line| line.to_string()));
            }
            if !fits {
                let case_lines = expected.to_vec();
                let (expected, printed) = (of_build.join("\n"), said.join("\n"));
                wrong.push(format!(
                    "{}: $ {}\n--- expected\n{expected}\n--- printed\n{printed}",
                    case.name, step.command
                ));
                if is_of_builds {
                    by_hand.push(wrong.last().cloned().unwrap_or_default());
                    continue;
                }
                // What changes from run to run stays a pattern.
                new.extend(said.into_iter().map(|line| {
                    let of = |pattern: &&str| pattern.contains("[..]") && line_fits(pattern, &line);
                    let pattern = case_lines.iter().copied().find(of).map(str::to_owned);
                    pattern.unwrap_or(line)
                }));
            }
        }
    }
    new.extend(lines[copied..].iter().map(|line| line.to_string()));
    if std::env::var_os("OARLOCK_BLESS").is_some() {
        fs::write(&path, new.join("\n") + "\n").unwrap();
        assert!(by_hand.is_empty(), "to be changed by hand, for every build:\n{}", by_hand.join("\n\n"));
    } else {
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n\n"));
    }
}

#[test]
fn wrong_configurations() {
    page("wrong");
}

#[test]
fn commands_of_the_guides() {
    page("guides");
}

#[test]
fn patterns() {
    let said = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits(&["a[..]c", "..."], &said("abbc\nx\ny")));
    assert!(fits(&["...", "y"], &said("x\ny")) && !fits(&["...", "y"], &said("y\nx")));
    assert!(
        fits(&["a[..]"], &said("a")) && fits(&["a[..]"], &said("abc")) && !fits(&["a[..]d"], &said("abc"))
    );
}
