//! The rules of the house that a compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/books.rs"]
mod books;

#[path = "tidy/pages.rs"]
mod pages;

#[path = "tidy/planted.rs"]
mod planted;

#[path = "tidy/rings.rs"]
mod rings;

#[path = "tidy/third_party.rs"]
mod third_party;

/// The most lines of a source file; tables and data are exempt.
const MAX_LINES: usize = 600;

/// Which top-level modules of its crate a module may name. Every module is here; what is not listed is forbidden. A module
/// stands below those that it names, so the edges make no circle.
type Edges = &'static [(&'static str, &'static [&'static str])];

/// The crates, each with those of ours that it is built on. Nothing that is not published is among them, and a program that
/// depends on the engine builds no language model.
const CRATES: Edges = &[
    ("files", &[]),
    ("gguf", &[]),
    ("hub", &["files"]),
    ("serve", &[]),
    ("kernels", &["gguf"]),
    ("derive", &[]),
    ("reference", &[]),
    ("cuda", &["files", "kernels"]),
    ("tensor", &["cuda", "kernels"]),
    ("comm", &["cuda", "tensor"]),
    ("config", &["comm", "tensor"]),
    ("engine", &["comm", "config", "derive", "files", "tensor"]),
    ("lm", &["comm", "config", "engine", "files", "gguf", "tensor"]),
    ("oarlock", &["config", "engine", "lm"]),
    (
        "cli",
        &[
            "comm",
            "config",
            "cuda",
            "engine",
            "files",
            "hub",
            "lm",
            "oarlock",
            "reference",
            "serve",
            "tensor",
        ],
    ),
];

/// Settings, plain values with their keys, and what reads them from configurations of other programs.
const CONFIG: Edges = &[
    ("json", &[]),
    ("json_edit", &[]),
    ("lookalikes", &[]),
    ("nearest", &["lookalikes"]),
    ("settings", &["lookalikes", "nearest"]),
    ("config", &["settings"]),
    ("dialect", &["config", "nearest", "settings"]),
];

/// It trains any module and knows no language model, which its manifest holds: it depends on no crate that has one.
const ENGINE: Edges = &[
    ("report", &[]),
    ("disk", &["report"]),
    ("distributed", &["report"]),
    ("nn", &["report"]),
    ("parallel", &["nn", "report"]),
    ("shard", &["disk", "nn", "report"]),
    ("optim", &["nn", "report", "shard"]),
    ("checkpoint", &["disk", "nn", "report", "shard"]),
    ("accelerator", &["checkpoint", "disk", "distributed", "nn", "optim", "parallel", "report", "shard"]),
    ("dataloader", &["accelerator", "nn", "report"]),
];

/// Hubs: names and requests below, one file and one list of files above them, models and data sets on top.
const HUB: Edges = &[
    ("address", &[]),
    ("card", &[]),
    ("glob", &[]),
    ("nearest", &[]),
    ("pauses", &[]),
    ("reading", &[]),
    ("secret", &[]),
    ("environment", &["reading", "secret"]),
    ("error", &["secret"]),
    ("splits", &["glob"]),
    ("names", &["error"]),
    ("parallel", &["error"]),
    ("progress", &["error"]),
    ("space", &["error"]),
    ("cache", &["environment", "error", "names", "reading"]),
    ("client", &["address", "environment", "error", "names", "pauses", "progress", "reading", "secret"]),
    ("digest", &["names"]),
    ("locks", &["progress"]),
    ("partial", &["error", "names", "reading"]),
    ("refusal", &["address", "client", "error", "names", "pauses"]),
    ("api", &["address", "client", "error", "refusal"]),
    ("metadata", &["address", "client", "error", "names", "refusal"]),
    (
        "transfer",
        &[
            "address", "client", "digest", "error", "metadata", "names", "partial", "pauses", "progress",
            "refusal", "space",
        ],
    ),
    (
        "file",
        &[
            "cache",
            "client",
            "environment",
            "error",
            "locks",
            "metadata",
            "names",
            "partial",
            "progress",
            "transfer",
        ],
    ),
    (
        "listing",
        &[
            "address",
            "api",
            "cache",
            "client",
            "environment",
            "error",
            "file",
            "names",
            "nearest",
            "reading",
            "refusal",
        ],
    ),
    (
        "folder",
        &["cache", "digest", "error", "file", "listing", "locks", "names", "partial", "progress", "reading"],
    ),
    ("store", &["error", "listing", "names"]),
    ("weights", &["error", "listing", "names"]),
    ("huggingface", &["cache", "error", "file", "folder", "listing", "names", "parallel", "space", "store"]),
    (
        "modelscope",
        &[
            "address", "api", "cache", "error", "file", "folder", "listing", "locks", "metadata", "names",
            "parallel", "partial", "pauses", "progress", "refusal", "space", "store", "transfer",
        ],
    ),
    (
        "hub",
        &[
            "client",
            "environment",
            "error",
            "file",
            "folder",
            "huggingface",
            "listing",
            "modelscope",
            "names",
            "progress",
            "reading",
            "store",
            "weights",
        ],
    ),
    ("dataset", &["card", "error", "hub", "listing", "names", "reading", "splits", "store"]),
];

/// Language models on the engine.
const LM: Edges = &[
    ("gguf", &[]),
    ("text_metrics", &[]),
    ("data", &["gguf"]),
    ("model", &["gguf"]),
    ("adapters", &["data", "gguf", "model"]),
    ("estimate", &["model"]),
    ("export", &["adapters", "data", "gguf", "model"]),
    ("generate", &["data", "model"]),
    ("train", &["adapters", "data", "estimate", "generate", "gguf", "model", "text_metrics"]),
    ("planner", &["data", "estimate", "model", "train"]),
];

const PROGRAM: Edges = &[
    ("error", &[]),
    ("config", &[]),
    ("plots", &["error"]),
    ("import", &["error"]),
    ("console", &["config", "error"]),
    ("launch", &["console", "error"]),
    ("serving", &["config", "console", "error", "launch"]),
    ("front", &["config", "console", "error", "launch", "plots", "serving"]),
    ("commands", &["config", "console", "error", "front", "import", "launch", "serving"]),
    ("main", &[]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder whose names end so, in order; build folders and hidden ones left aside.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extensions));
        } else if path.is_file() && path.extension().is_some_and(|e| extensions.iter().any(|want| e == *want))
        {
            found.push(path);
        }
    }
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let crates = files(&root().join("crates"), &["rs"]);
    assert!(crates.len() > 100);
    crates.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn assert_none(broken: Vec<String>, rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

#[test]
fn files_are_short() {
    let long = sources().into_iter().filter(|(_, text)| text.lines().count() > MAX_LINES);
    assert_none(
        long.map(|(path, _)| path.display().to_string()).collect(),
        "more than 600 lines; divide it by topics",
    );
}

#[test]
fn every_file_says_its_job_first() {
    let silent = sources().into_iter().filter(|(_, text)| !text.starts_with("//! "));
    assert_none(
        silent.map(|(path, _)| path.display().to_string()).collect(),
        "the first line begins with `//! `",
    );
}

#[test]
fn no_file_holds_what_is_unfinished_or_unsafe() {
    let unfinished =
        [concat!("to", "do!("), concat!("unim", "plemented!("), concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let inside = path.strip_prefix(root().join("crates")).unwrap();
        let above =
            !["kernels", "tensor", "comm", "cuda", "fakes"].iter().any(|name| inside.starts_with(name));
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_unsafe =
                above && ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| code.contains(word));
            if unfinished.iter().any(|word| line.contains(word)) || (is_unsafe && !path.ends_with("tidy.rs"))
            {
                broken.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(broken, "unfinished, or unsafe above the crates that may be");
}

/// Files that read what the kernel writes, or open what they have just written, to bring it to the disk.
const READERS_OF_THE_SYSTEM: &[&str] = &[
    "engine/src/checkpoint/publish.rs",
    "engine/src/checkpoint/stores.rs",
    "engine/src/accelerator/deepspeed/checkpoint.rs",
    "engine/src/disk/sums.rs",
    "lm/src/estimate/limits.rs",
    "lm/src/planner/power.rs",
    "cli/src/launch/cores.rs",
];

/// A name in a folder of somebody else can be a pipe, a device or a file without end.
#[test]
fn files_are_read_by_the_functions_that_refuse_what_is_no_file() {
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let name = path.display().to_string();
        let product = ["config", "engine", "hub", "lm", "oarlock", "cli"]
            .iter()
            .any(|part| name.contains(&format!("/{part}/src/")));
        let exempt = READERS_OF_THE_SYSTEM.iter().any(|exempt| name.ends_with(exempt));
        if !product || exempt || name.contains("tests") {
            continue;
        }
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in product.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let opens = code.match_indices("File::open(").any(|(at, _)| {
                !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            });
            let reads = ["fs::read(", "fs::read_to_string("].iter().any(|call| code.contains(call));
            if (opens || reads) && !code.contains("\"/proc/") && !code.contains("\"/sys/") {
                broken.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(broken, "read with oarlock_comm::{read_text, read_file, open_file}");
}

/// `max` passes over NaN, so a largest difference that is folded with it is small for results that are not numbers.
#[test]
fn largest_differences_are_found_by_what_passes_over_nothing() {
    // Of checked numbers: sizes and times, and the formats of printed ones, which are finite.
    let exempt =
        ["kernels/src/decompose/eigen.rs", "planner/pipeline.rs", "pipeline_idle.rs", "tensor/src/print.rs"];
    let mut broken = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| !exempt.iter().any(|name| path.ends_with(name))) {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let folds = code.split_once(concat!("fol", "d(")).is_some_and(|(_, rest)| {
                rest.starts_with(|c: char| c.is_ascii_digit())
                    && ["f32::max", "f64::max", ".max("].iter().any(|max| rest.contains(max))
            });
            let keeps =
                code.split_once(concat!(".ma", "x((")).is_some_and(|(_, rest)| rest.contains(".abs()"));
            if folds || keeps {
                broken.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(broken, "take `largest_difference` or `largest_magnitude` of oarlock_kernels::difference");
}

#[test]
fn modules_name_only_what_they_may() {
    for (name, edges) in [("config", CONFIG), ("engine", ENGINE), ("hub", HUB), ("lm", LM), ("cli", PROGRAM)]
    {
        let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
        for (module, named) in rings::graph_of(name) {
            // The root declares the modules, and is none.
            if !module.is_empty() {
                let named = named.iter().map(|other| top(other)).filter(|other| !other.is_empty());
                used.entry(top(&module)).or_default().extend(named);
            }
        }
        used.iter_mut().for_each(|(module, named)| _ = named.remove(module));
        let listed = |(module, named): &(&str, &[&str])| {
            ((*module).to_owned(), named.iter().map(|name| (*name).to_owned()).collect())
        };
        let allowed: BTreeMap<String, BTreeSet<String>> = edges.iter().map(listed).collect();
        assert_eq!(used, allowed, "left: what the modules of {name} name; right: the table of edges");
    }
}

/// What the manifest of a crate says it is built on, of ours.
fn built_on(name: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
    let (mut inside, mut found) = (false, BTreeSet::new());
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once(['.', ' ', '=']) {
            found.extend(
                name.strip_prefix("oarlock-").or((name == "oarlock").then_some(name)).map(str::to_owned),
            );
        }
    }
    found
}

#[test]
fn crates_are_built_on_nothing_but_what_they_may() {
    for (name, allowed) in CRATES {
        let allowed: BTreeSet<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(built_on(name), allowed, "{name}");
    }
    // The rest is for tests.
    let listed: BTreeSet<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    for folder in fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(listed.contains(name.as_str()) != manifest.contains("publish = false"), "{name}");
    }
}

/// Takes away module after module that names none that is left; what then stays goes in a circle.
#[test]
fn no_modules_go_in_a_circle() {
    for edges in [CRATES, CONFIG, ENGINE, HUB, LM, PROGRAM] {
        let mut left: Vec<_> = edges.to_vec();
        loop {
            let names: BTreeSet<&str> = left.iter().map(|(module, _)| *module).collect();
            let rests = |(_, allowed): &(&str, &[&str])| allowed.iter().any(|name| names.contains(name));
            left.retain(rests);
            if left.len() == names.len() {
                break;
            }
        }
        assert!(left.is_empty(), "a circle of modules: {left:#?}");
    }
}

/// Every test file is a module of a test binary, or a binary of its own.
#[test]
fn no_test_is_left_out() {
    let mut left_out = Vec::new();
    for folder in fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        // Cargo finds the binaries of tests by itself, unless the manifest names them.
        let finds = !manifest.contains("autotests = false");
        for part in ["src", "tests"].into_iter().filter(|part| folder.join(part).is_dir()) {
            let sources = files(&folder.join(part), &["rs"]);
            let texts: Vec<String> = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
            let all = texts.concat();
            for path in sources {
                let inside = path.strip_prefix(&folder).unwrap();
                let named = inside.to_str().unwrap();
                let file = path.file_stem().unwrap().to_str().unwrap();
                let depth = inside.components().count();
                let is_root = match (part, depth, file) {
                    ("src", 2, "lib" | "main") => true,
                    ("tests", 2, _) | ("tests", 3, "main") => finds,
                    _ => false,
                };
                let module = match file {
                    "mod" | "main" => path.parent().unwrap().file_name().unwrap().to_str().unwrap(),
                    _ => file,
                };
                let is_module =
                    all.contains(&format!("mod {module};")) || all.contains(&format!("{module}.rs\""));
                if !is_root && !is_module && !manifest.contains(&format!("path = \"{named}\"")) {
                    left_out.push(format!("{}: no `mod {module};`", path.display()));
                }
            }
        }
    }
    assert_none(left_out, "a file that no test and no library has");
}

/// What `cargo test` ignores is run by `.ci/run`, by another test or by hand, and its reason or its name says which.
#[test]
fn every_ignored_test_is_run_by_somebody() {
    let mut wrong = Vec::new();
    let mut n_heavy = 0;
    for (path, text) in sources() {
        for test in text.split(concat!("#[", "ignore")).skip(1) {
            let is_heavy = test.starts_with(" = \"heavy\"]");
            let name = test
                .split_once("fn ")
                .and_then(|(_, rest)| rest.split_once('('))
                .map_or("", |(name, _)| name);
            let is_apart = name.contains("child") || name.contains("by_hand");
            n_heavy += usize::from(is_heavy);
            if is_heavy == is_apart {
                wrong.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(n_heavy > 30, "{n_heavy} heavy tests");
    assert_none(wrong, "ignored tests have the reason heavy, or a name with child or by_hand");
}

/// Whether a file holds tests alone: all beside the sources of a crate, and in them the files that are named so.
fn is_for_tests(path: &Path) -> bool {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let beside = !parts.iter().any(|part| part == "src");
    beside || parts.iter().any(|part| part == "fakes" || part.trim_end_matches(".rs").ends_with("tests"))
}

/// Whoever writes by the standard library writes to where a link at the place leads.
#[test]
fn files_are_written_by_the_crate_for_it_alone() {
    let ways = [
        concat!("File::", "create"),
        concat!("File::", "options"),
        concat!("fs::", "write("),
        concat!("fs::", "copy("),
        concat!("fs::", "hard_link"),
        concat!("Open", "Options"),
        concat!("sym", "link("),
        concat!("serialize_to", "_file("),
    ];
    let mut broken = Vec::new();
    for (path, text) in sources() {
        // Where files are opened to be read alone.
        let reads = path.ends_with("comm/src/whole_file.rs");
        if is_for_tests(&path) || reads || path.starts_with(root().join("crates/files")) {
            continue;
        }
        // The tests of a file are its last part.
        let lines: Vec<&str> = text.lines().collect();
        let tests =
            lines.windows(2).position(|two| two[0] == "#[cfg(test)]" && two[1].ends_with("mod tests {"));
        let code = &lines[..tests.unwrap_or(lines.len())];
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        let is_of_process = |line: &str| line.contains("\"/proc/self/");
        let lines = code.iter().enumerate().filter(|(_, line)| !is_comment(line) && !is_of_process(line));
        for (number, line) in lines {
            // The whole name: `SummedFile::create` and the like stand on the crate.
            let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            for way in ways.iter().filter(|way| line.match_indices(**way).any(|(at, _)| begins(at))) {
                broken.push(format!("{}:{}: {} ({way})", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(broken, "a file is written beside crates/files, which follows no links");
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let places =
        [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];
    let mut broken = Vec::new();
    for path in files(&root(), &["rs", "toml", "md", "py", "yaml", "yml", "sh", "json"]) {
        if path.components().any(|part| part.as_os_str() == "golden")
            && path.extension().is_some_and(|e| e == "json")
        {
            continue;
        }
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if places.iter().any(|place| line.contains(place)) {
                broken.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(broken, "a path of one machine");
}

/// The targets of the links of a page that lead into the repository, without their anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let inside = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    inside.map(|target| target.split('#').next().unwrap_or_default()).collect()
}

#[test]
fn every_page_is_linked_from_a_readme() {
    let pages = files(&root(), &["md"]);
    let mut linked = BTreeSet::new();
    for page in pages.iter().filter(|page| page.ends_with("README.md")) {
        let text = fs::read_to_string(page).unwrap();
        linked.extend(
            links(&text).into_iter().filter_map(|link| page.parent()?.join(link).canonicalize().ok()),
        );
    }
    let docs = pages.iter().filter(|page| page.starts_with(root().join("docs")));
    let is_listed = |page: &Path| page.ends_with("README.md") || page.ends_with("SUMMARY.md");
    let alone = docs.filter(|page| !is_listed(page) && !linked.contains(*page));
    assert_none(alone.map(|page| page.display().to_string()).collect(), "no README links to the page");
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in files(&root(), &["md"]) {
        let text = fs::read_to_string(&page).unwrap();
        let lost = links(&text).into_iter().filter(|link| !page.parent().unwrap().join(link).exists());
        broken.extend(lost.map(|link| format!("{}: {link}", page.display())));
    }
    assert_none(broken, "a link that leads nowhere");
}

#[test]
fn the_changelog_tells_this_version() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let message = ["Unreleased", env!("CARGO_PKG_VERSION")]
        .iter()
        .any(|version| text.lines().any(|line| line.starts_with("## ") && line.contains(version)));
    assert!(message, "CHANGELOG.md has no section for {} or Unreleased", env!("CARGO_PKG_VERSION"));
}
