//! Files that name each other in one direction only: small types at the bottom, what is built on them above. A file of
//! modules (`mod.rs`, `lib.rs`) stands above the files that it declares, so those import from each other, not from it.
//! What the root of a crate exports (`crate::Error`) is named where it is defined.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Crates, and modules of crates, whose files form no ring, each with the files and the edges that there are at least, so
/// that nothing passes because it was not read.
const WITHOUT_RINGS: [(&str, &str, usize, usize); 8] = [
    ("comm", "", 15, 40),
    ("engine", "accelerator", 15, 40),
    ("engine", "checkpoint", 15, 40),
    ("lm", "estimate", 10, 25),
    ("config", "dialect", 11, 20),
    ("config", "settings", 14, 30),
    ("engine", "shard", 15, 40),
    ("cli", "config", 15, 40),
];

/// The modules that a module names, by path (`shm::segment`); the crate's root is the empty path.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The source of each module below a folder, without comments and unit tests.
fn sources(folder: &Path, path: &[String], found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if name.ends_with("tests") {
            continue;
        }
        if file.is_dir() {
            sources(&file, &[path, &[name]].concat(), found);
        } else {
            let is_parent = name == "mod" || (name == "lib" && path.is_empty());
            let module = if is_parent { path.to_vec() } else { [path, &[name]].concat() };
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
            let code: Vec<&str> =
                code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            found.insert(module.join("::"), code.join("\n"));
        }
    }
}

/// The paths of a use tree that begins here: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(tree: &str) -> Vec<Vec<String>> {
    if tree.starts_with('{') {
        let (mut depth, mut begin, mut found) = (0, 1, Vec::new());
        for (at, c) in tree.char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if (c == ',' && depth == 1) || depth == 0 {
                let part = tree[begin..at].trim();
                // Behind the last comma there is nothing.
                found.extend(if part.is_empty() { Vec::new() } else { paths(part) });
                begin = at + 1;
            }
            if depth == 0 {
                break;
            }
        }
        return found;
    }
    let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tree.len());
    let (name, rest) = (tree[..end].to_owned(), &tree[end..]);
    match rest.strip_prefix("::") {
        Some(rest) => paths(rest).into_iter().map(|path| [vec![name.clone()], path].concat()).collect(),
        None => vec![vec![name]],
    }
}

/// The longest beginning of a path that is a module.
fn module_of(path: &[String], modules: &BTreeMap<String, String>) -> String {
    let beginnings = (0..=path.len()).rev().map(|n| path[..n].join("::"));
    beginnings.into_iter().find(|path| modules.contains_key(path)).unwrap_or_default()
}

/// The names that the root exports from its modules, with their paths.
fn exports(modules: &BTreeMap<String, String>) -> BTreeMap<String, Vec<String>> {
    let root = modules.get("").map(String::as_str).unwrap_or_default();
    let statements = root.split(';').filter_map(|statement| statement.trim_start().strip_prefix("pub use "));
    let of_modules = statements.flat_map(|tree| paths(tree.trim_start_matches("crate::")));
    of_modules
        .filter(|path| modules.contains_key(&path[0]))
        .filter_map(|path| Some((path.last()?.clone(), path)))
        .collect()
}

/// What each module names by `crate::` and `super::`, and what it declares by `mod`.
fn graph(modules: &BTreeMap<String, String>) -> Graph {
    let (mut graph, exports) = (Graph::new(), exports(modules));
    for (module, code) in modules {
        let own: Vec<String> =
            module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let mut named = BTreeSet::new();
        for (at, word) in code.match_indices("crate::").chain(code.match_indices("super::")) {
            // A later part of `super::super::`.
            if code[..at].ends_with("::") {
                continue;
            }
            let tail = &code[at..];
            let n_up = tail.split("::").take_while(|part| *part == "super").count();
            let base = if word == "crate::" { &[][..] } else { &own[..own.len() - n_up] };
            for path in paths(&tail[word.len() * n_up.max(1)..]) {
                let path = [base, &path].concat();
                let path = path.first().and_then(|name| exports.get(name)).unwrap_or(&path);
                named.insert(module_of(path, modules));
            }
        }
        for line in code.lines() {
            let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            if let Some(child) = line.strip_prefix("mod ").and_then(|line| line.strip_suffix(';')) {
                named.insert([own.as_slice(), &[child.to_owned()]].concat().join("::"));
            }
        }
        // Modules of tests are not part of the graph.
        named.retain(|other| modules.contains_key(other));
        named.remove(module);
        graph.insert(module.clone(), named);
    }
    graph
}

/// A ring that can be reached from a module, if there is one; modules that the graph lacks are passed over. `done` are
/// modules that reach none.
fn ring(graph: &Graph, module: &str, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
    if let Some(begin) = way.iter().position(|other| other == module) {
        return Some(format!("{} -> {module}", way[begin..].join(" -> ")));
    }
    if done.contains(module) {
        return None;
    }
    way.push(module.to_owned());
    let found = graph.get(module).into_iter().flatten().find_map(|next| ring(graph, next, way, done));
    way.pop();
    done.insert(module.to_owned());
    found
}

/// The modules of a crate, without those of tests, and what each names.
pub fn graph_of(name: &str) -> Graph {
    let mut modules = BTreeMap::new();
    sources(&super::root().join("crates").join(name).join("src"), &[], &mut modules);
    graph(&modules)
}

#[test]
fn no_files_form_a_ring() {
    for (name, part, files, edges) in WITHOUT_RINGS {
        let mut graph = graph_of(name);
        // The root stays: what is imported through it comes from anywhere.
        let inside = |module: &str| module.is_empty() || part.is_empty() || module.starts_with(part);
        graph.retain(|module, _| inside(module));
        let n_edges: usize = graph.values().flatten().filter(|module| inside(module)).count();
        assert!(
            graph.len() > files && n_edges > edges,
            "{name} {part}: {} modules, {n_edges} edges",
            graph.len()
        );
        let found = ring(&graph, part, &mut Vec::new(), &mut BTreeSet::new());
        assert_eq!(found, None, "{name} {part}");
    }
}

/// Transports know the traits; what lies below knows no transport; nothing knows the processes.
#[test]
fn transports_stand_above_the_traits_and_processes_apart() {
    let graph = graph_of("comm");
    for (module, named) in &graph {
        let room = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
        let rooms: BTreeSet<String> = named.iter().map(|module| room(module)).collect();
        let may = match &*room(module) {
            "" => continue,
            "join" => &["shm", "mpi"][..],
            "process" => &["process", "shm"],
            "shm" => &["shm"],
            "mpi" => &["mpi"],
            _ => &[],
        };
        for above in ["shm", "mpi", "process", "join"] {
            assert!(!rooms.contains(above) || may.contains(&above), "`{module}` names `{above}`");
        }
    }
}

#[test]
fn a_ring_is_found() {
    let found = |modules: &[(&str, &str)]| {
        let owned = modules.iter().map(|(module, code)| ((*module).to_owned(), (*code).to_owned()));
        ring(&graph(&owned.collect()), "", &mut Vec::new(), &mut BTreeSet::new())
    };
    let root = ("", "mod a;\npub(crate) mod b;\nmod tests;");
    let b = ("b", "fn f() { super::a::g() }");
    assert_eq!(found(&[root, ("a", "use crate::c::D;"), b]).as_deref(), Some(" -> a -> "));
    for a in ["use crate::b::{C, d::{E, F}};", "use crate::{b::{C, D}};"] {
        assert!(found(&[root, ("a", a), b]).is_some_and(|ring| ring.contains("b -> a")), "{a}");
    }
    assert_eq!(found(&[root, ("a", "use std::fmt;"), b]), None);
    // A name of the root stands where it is defined.
    let exporting = ("", "mod a;\npub(crate) mod b;\npub use b::{Error, Result};");
    assert_eq!(found(&[exporting, ("a", "use crate::Error;"), ("b", "")]), None);
    assert!(found(&[exporting, ("a", "use crate::Error;"), b]).is_some_and(|ring| ring.contains("b -> a")));
}
