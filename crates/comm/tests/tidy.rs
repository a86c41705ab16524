//! The files of this crate form a graph without rings: small types at the bottom, the transports above the traits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The modules that a module names, by path (`shm::segment`); the crate's root is the empty path.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The source of each module below a folder, without comments and unit tests.
fn sources(folder: &Path, path: &[String], found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if file.is_dir() {
            sources(&file, &[path, &[name]].concat(), found);
        } else {
            let is_parent = name == "mod" || (name == "lib" && path.is_empty());
            let module = if is_parent { path.to_vec() } else { [path, &[name]].concat() };
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
            let code: Vec<&str> =
                code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            found.insert(module.join("::"), code.join("\n"));
        }
    }
}

/// The paths of a use tree that begins here: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tree.len());
    let (name, rest) = (tree[..end].to_owned(), &tree[end..]);
    match rest.strip_prefix("::") {
        Some(rest) if rest.starts_with('{') => {
            let (mut depth, mut begin, mut found) = (0, 1, Vec::new());
            for (at, c) in rest.char_indices() {
                depth += i32::from(c == '{') - i32::from(c == '}');
                if (c == ',' && depth == 1) || depth == 0 {
                    found.extend(paths(rest[begin..at].trim()));
                    begin = at + 1;
                }
                if depth == 0 {
                    break;
                }
            }
            found.into_iter().map(|path| [vec![name.clone()], path].concat()).collect()
        }
        Some(rest) => paths(rest).into_iter().map(|path| [vec![name.clone()], path].concat()).collect(),
        None => vec![vec![name]],
    }
}

/// The longest beginning of a path that is a module.
fn module_of(path: &[String], modules: &BTreeMap<String, String>) -> String {
    let beginnings = (0..=path.len()).rev().map(|n| path[..n].join("::"));
    beginnings.into_iter().find(|path| modules.contains_key(path)).unwrap_or_default()
}

/// What each module names by `crate::` and `super::`, and what it declares by `mod`.
fn graph(modules: &BTreeMap<String, String>) -> Graph {
    let mut graph = Graph::new();
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
                named.insert(module_of(&[base, &path].concat(), modules));
            }
        }
        for line in code.lines() {
            let line = line.trim_start_matches("pub ");
            if let Some(child) = line.strip_prefix("mod ").and_then(|line| line.strip_suffix(';')) {
                named.insert([own.as_slice(), &[child.to_owned()]].concat().join("::"));
            }
        }
        named.remove(module);
        graph.insert(module.clone(), named);
    }
    graph
}

/// A ring that can be reached from a module, if there is one. `done` are modules that reach none.
fn ring(graph: &Graph, module: &str, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> Option<String> {
    if let Some(begin) = way.iter().position(|other| other == module) {
        return Some(format!("{} -> {module}", way[begin..].join(" -> ")));
    }
    if done.contains(module) {
        return None;
    }
    way.push(module.to_owned());
    let found = graph[module].iter().find_map(|next| ring(graph, next, way, done));
    way.pop();
    done.insert(module.to_owned());
    found
}

fn this_crate() -> Graph {
    let mut modules = BTreeMap::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &[], &mut modules);
    graph(&modules)
}

#[test]
fn no_files_form_a_ring() {
    let graph = this_crate();
    let n_edges: usize = graph.values().map(BTreeSet::len).sum();
    assert!(graph.len() > 40 && n_edges > 150, "{} modules, {n_edges} edges", graph.len());
    assert_eq!(ring(&graph, "", &mut Vec::new(), &mut BTreeSet::new()), None);
}

/// Transports know the traits; what lies below knows no transport; nothing knows the processes.
#[test]
fn transports_stand_above_the_traits_and_processes_apart() {
    let graph = this_crate();
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
    let modules =
        [("", "mod a;\nmod b;"), ("a", "use crate::b::{C, d::{E, F}};"), ("b", "fn f() { super::a::g() }")];
    let modules = modules.map(|(module, code)| (module.to_owned(), code.to_owned())).into();
    let found = ring(&graph(&modules), "", &mut Vec::new(), &mut BTreeSet::new());
    assert_eq!(found.as_deref(), Some("a -> b -> a"));
}
