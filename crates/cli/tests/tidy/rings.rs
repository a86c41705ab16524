//! Files that name each other in one direction only: small types at the bottom, what is built on them above. A file of
//! modules (`mod.rs`, `lib.rs`) stands above the files that it declares, so those import from each other, not from it.
//! What the root of a crate exports (`crate::Error`) is named where it is defined. A file that calls a method names the file
//! that gives it to the type (`impl Type`), which may be another than the type's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Every crate with sources, and how many files and edges it has at least, so that nothing passes because it was not read.
const CRATES: [(&str, usize, usize); 18] = [
    ("cli", 150, 600),
    ("comm", 80, 400),
    ("config", 40, 180),
    ("cuda", 60, 300),
    ("derive", 1, 0),
    ("docs", 1, 0),
    ("engine", 200, 900),
    ("fakes", 2, 0),
    ("files", 4, 5),
    ("gguf", 18, 40),
    ("hub", 30, 120),
    ("kernels", 60, 300),
    ("lm", 180, 700),
    ("must", 1, 0),
    ("oarlock", 1, 0),
    ("reference", 15, 30),
    ("serve", 35, 100),
    ("tensor", 100, 500),
];

/// The crates whose files form rings, with the files of each ring. It only becomes shorter: a ring that grows is a
/// mistake, and one that has shrunk is written down here.
const RINGS: [(&str, &[usize]); 3] =
    [("cuda", &[56, 2, 2, 2]), ("kernels", &[11, 6, 4, 4, 4, 3, 3, 2, 2]), ("tensor", &[107])];

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
            let code = without_tests(&text);
            let code: Vec<&str> =
                code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            found.insert(module.join("::"), code.join("\n"));
        }
    }
}

/// The text of a file up to its unit tests.
fn without_tests(text: &str) -> &str {
    const TESTS: &str = "\n#[cfg(test)]\n";
    let begins = |(at, _): &(usize, &str)| {
        text[at + TESTS.len()..].lines().next().is_some_and(|line| line.ends_with("mod tests {"))
    };
    text.match_indices(TESTS).find(begins).map_or(text, |(at, _)| &text[..at])
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

/// The names of types that each module has.
type Types = BTreeMap<String, BTreeSet<String>>;

/// What each module names by `crate::` and `super::`, and what it declares by `mod`; and the types that it names or defines.
fn names(modules: &BTreeMap<String, String>) -> (Graph, Types) {
    let (mut graph, exports) = (Graph::new(), exports(modules));
    let mut types = Types::new();
    for (module, code) in modules {
        let own: Vec<String> =
            module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let mut named = BTreeSet::new();
        for (at, word) in code.match_indices("crate::").chain(code.match_indices("super::")) {
            // A later part of `super::super::`, or who may see an item.
            if code[..at].ends_with("::") || code[..at].ends_with("(in ") {
                continue;
            }
            let tail = &code[at..];
            let n_up = tail.split("::").take_while(|part| *part == "super").count();
            let base = if word == "crate::" { &[][..] } else { &own[..own.len() - n_up] };
            for path in paths(&tail[word.len() * n_up.max(1)..]) {
                let is_type = |name: &&String| name.starts_with(char::is_uppercase);
                types.entry(module.clone()).or_default().extend(path.iter().filter(is_type).cloned());
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
        types.entry(module.clone()).or_default().extend(own_types(code).map(str::to_owned));
        // Modules of tests are not part of the graph.
        named.retain(|other| modules.contains_key(other));
        named.remove(module);
        graph.insert(module.clone(), named);
    }
    (graph, types)
}

/// As [`names`], with the calls of methods.
fn graph(modules: &BTreeMap<String, String>) -> Graph {
    let (mut graph, types) = names(modules);
    for (module, other) in calls(modules, &types) {
        graph.entry(module).or_default().insert(other);
    }
    graph
}

/// An `impl` block: the name of its type, whether it implements a trait, and the text inside.
struct Impl {
    of: String,
    is_of_trait: bool,
    body: String,
}

/// The blocks of a file, which begin and end at the left margin.
fn impls(code: &str) -> Vec<Impl> {
    let mut found = Vec::new();
    let mut lines = code.lines();
    while let Some(first) = lines.next() {
        let first_word = first.strip_prefix("unsafe ").unwrap_or(first);
        if !["impl ", "impl<"].iter().any(|word| first_word.starts_with(word)) {
            continue;
        }
        let rest = lines.by_ref().take_while(|line| *line != "}");
        let text = match first.ends_with('}') {
            true => first.to_owned(),
            false => std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n"),
        };
        let Some((header, body)) = text.split_once('{') else { continue };
        let header =
            header.split(" where").next().unwrap_or(header).split("\nwhere").next().unwrap_or(header);
        let (is_of_trait, named) = match header.rsplit_once(" for ") {
            Some((_, named)) => (true, named),
            None => (false, behind_generics(header.split_once("impl").map_or("", |(_, rest)| rest))),
        };
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let named = named.trim_start().split(|c| !is_path(c)).next().unwrap_or_default();
        let of = named.rsplit("::").next().unwrap_or(named).to_owned();
        found.push(Impl { of, is_of_trait, body: body.to_owned() });
    }
    found
}

/// What stands behind `<…>`, if a text begins with that.
fn behind_generics(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '<');
        depth -= i32::from(c == '>' && !text[..at].ends_with('-'));
        if depth == 0 {
            return if at == 0 { text } else { &text[at + 1..] };
        }
    }
    text
}

/// The name that a text begins with.
fn name_at(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The functions that a block defines.
fn defined(body: &str) -> impl Iterator<Item = &str> {
    let functions = body.lines().filter_map(|line| {
        let line = line.strip_prefix("    ").filter(|line| !line.starts_with(' '))?;
        let (before, name) = line.split_once("fn ")?;
        (!before.contains('(') || before.starts_with("pub(")).then_some(name)
    });
    functions.map(name_at)
}

/// The functions of its own type that a block calls: `self.name(`, `Self::name(`.
fn called(body: &str) -> BTreeSet<&str> {
    let is_word = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let of_self = body
        .match_indices("self")
        .filter(|(at, _)| is_word(&body[..*at]))
        .filter_map(|(at, word)| body[at + word.len()..].trim_start().strip_prefix('.').map(str::trim_start));
    let of_type = body.match_indices("Self::").map(|(at, word)| &body[at + word.len()..]);
    let names = of_self.chain(of_type).filter_map(|text| {
        let name = name_at(text);
        let behind = &text[name.len()..];
        (behind.starts_with('(') || behind.starts_with("::<")).then_some(name)
    });
    names.collect()
}

/// Methods of types of ours that iterators have as well.
const OF_ITERATORS: [&str; 1] = ["collect"];

/// The methods that a file calls on any value, outside of strings.
fn called_on_values(code: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut is_in_string = false;
    for line in code.lines() {
        for (index, part) in line.split('"').enumerate() {
            if index.is_multiple_of(2) != is_in_string {
                let calls = part.match_indices('.').map(|(at, _)| &part[at + 1..]);
                names.extend(
                    calls.filter(|text| text[name_at(text).len()..].starts_with(['(', ':'])).map(name_at),
                );
            }
        }
        // The next line goes on with it.
        is_in_string = line.ends_with('\\');
    }
    names
}

/// Which modules call functions that another gives to a type, with that one: to the same type, of whatever name, and to a type
/// that the module names, where no other has a function of that name. Of types with the same name the one in the same folder
/// is meant.
fn calls(modules: &BTreeMap<String, String>, types: &Types) -> Vec<(String, String)> {
    let mut homes: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    let of_module: Vec<(&str, Vec<Impl>)> =
        modules.iter().map(|(module, code)| (module.as_str(), impls(code))).collect();
    for (module, blocks) in &of_module {
        for block in blocks.iter().filter(|block| !block.is_of_trait) {
            for name in defined(&block.body) {
                homes.entry((block.of.clone(), name.to_owned())).or_default().insert(module);
            }
        }
    }
    let mut owners: BTreeMap<&str, Vec<(&str, &BTreeSet<&str>)>> = BTreeMap::new();
    for ((of, name), homes) in &homes {
        owners.entry(name).or_default().push((of, homes));
    }
    let n_alike = |a: &str, b: &str| a.split("::").zip(b.split("::")).take_while(|(a, b)| a == b).count();
    let mut found = Vec::new();
    for (module, blocks) in &of_module {
        for block in blocks {
            for name in called(&block.body) {
                let Some(homes) = homes.get(&(block.of.clone(), name.to_owned())) else { continue };
                if homes.contains(module) {
                    continue;
                }
                let most = homes.iter().map(|home| n_alike(home, module)).max();
                let nearest = homes.iter().filter(|home| Some(n_alike(home, module)) == most);
                found.extend(nearest.map(|home| ((*module).to_owned(), (*home).to_owned())));
            }
        }
        for name in called_on_values(&modules[*module]) {
            if let Some([(of, homes)]) = owners.get(name).map(Vec::as_slice)
                && !OF_ITERATORS.contains(&name)
                && types.get(*module).is_some_and(|types| types.contains(*of))
                && !homes.contains(module)
            {
                found.extend(homes.iter().map(|home| ((*module).to_owned(), (*home).to_owned())));
            }
        }
    }
    found
}

/// The types that a file defines.
fn own_types(code: &str) -> impl Iterator<Item = &str> {
    let items = code.lines().filter(|line| !line.starts_with(' '));
    items.filter_map(|line| {
        let (_, name) = line.split_once("struct ").or_else(|| line.split_once("enum "))?;
        Some(name_at(name))
    })
}

/// The modules that can be reached from one.
fn reached<'g>(graph: &'g Graph, module: &str) -> BTreeSet<&'g str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![module]);
    while let Some(module) = left.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if found.insert(next.as_str()) {
                left.push(next);
            }
        }
    }
    found
}

/// The rings: modules that reach each other, the largest ring first.
fn rings(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (module.as_str(), reached(graph, module))).collect();
    let mut found = BTreeSet::new();
    for (module, others) in reached.iter().filter(|(module, others)| others.contains(*module)) {
        let back = |other: &&&str| reached.get(**other).is_some_and(|reached| reached.contains(module));
        found.insert(others.iter().filter(back).copied().collect::<BTreeSet<&str>>());
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|ring| std::cmp::Reverse(ring.len()));
    found
}

/// The modules of a crate, without those of tests.
fn modules_of(name: &str) -> BTreeMap<String, String> {
    let mut modules = BTreeMap::new();
    sources(&super::root().join("crates").join(name).join("src"), &[], &mut modules);
    modules
}

/// The modules of a crate, and what each names.
pub fn graph_of(name: &str) -> Graph {
    names(&modules_of(name)).0
}

#[test]
fn no_files_form_a_ring() {
    let folders = fs::read_dir(super::root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let with_sources = folders.filter(|folder| folder.join("src").is_dir());
    let names: BTreeSet<String> =
        with_sources.map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let listed: BTreeSet<String> = CRATES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(names, listed);
    let mut wrong = Vec::new();
    for (name, files, edges) in CRATES {
        let graph = graph(&modules_of(name));
        let n_edges: usize = graph.values().map(BTreeSet::len).sum();
        assert!(graph.len() >= files && n_edges >= edges, "{name}: {} files, {n_edges} edges", graph.len());
        let known = RINGS.iter().find(|(other, _)| *other == name).map_or(&[][..], |(_, sizes)| sizes);
        let rings = rings(&graph);
        if rings.iter().map(BTreeSet::len).ne(known.iter().copied()) {
            let sizes: Vec<usize> = rings.iter().map(BTreeSet::len).collect();
            wrong.push(format!("{name} has rings of {sizes:?} files, and {known:?} are known: {rings:#?}"));
        }
    }
    super::assert_none(wrong, "move types down or functions up; a ring that shrank is noted in RINGS");
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

/// The rings of modules with these texts.
fn found(modules: &[(&str, &str)]) -> Vec<Vec<String>> {
    let owned = modules.iter().map(|(module, code)| ((*module).to_owned(), (*code).to_owned()));
    let graph = graph(&owned.collect());
    let owned = |ring: BTreeSet<&str>| ring.into_iter().map(str::to_owned).collect();
    rings(&graph).into_iter().map(owned).collect()
}

#[test]
fn a_ring_is_found() {
    let root = ("", "mod a;\npub(crate) mod b;\nmod tests;");
    let b = ("b", "fn f() { super::a::g() }");
    assert_eq!(found(&[root, ("a", "use crate::c::D;"), b]), [["", "a", "b"]]);
    for a in ["use crate::b::{C, d::{E, F}};", "use crate::{b::{C, D}};"] {
        assert_eq!(found(&[root, ("a", a), b]), [["a", "b"]], "{a}");
    }
    for a in ["use std::fmt;", "pub(in crate::b) fn f() {}"] {
        assert!(found(&[root, ("a", a), b]).is_empty(), "{a}");
    }
    // A name of the root stands where it is defined.
    let exporting = ("", "mod a;\npub(crate) mod b;\npub use b::{Error, Result};");
    assert!(found(&[exporting, ("a", "use crate::Error;"), ("b", "")]).is_empty());
    assert_eq!(found(&[exporting, ("a", "use crate::Error;"), b]), [["a", "b"]]);
    // Two rings, the larger one first.
    let two = [
        ("a", "super::b::x"),
        ("b", "super::c::x"),
        ("c", "super::a::x"),
        ("d", "super::e::x"),
        ("e", "super::d::x"),
    ];
    assert_eq!(found(&two), [&["a", "b", "c"][..], &["d", "e"]]);
}

#[test]
fn a_ring_of_methods_is_found() {
    let core =
        ("a", "pub struct Core;\nimpl Core {\n    pub fn enter(&self) {\n        self.reduce();\n    }\n}");
    let methods = |body: &str| {
        let b = format!(
            "use crate::a::Core;\nimpl Core {{\n    pub(super) fn reduce(&self) {{\n{body}\n    }}\n}}"
        );
        found(&[core, ("b", &b)])
    };
    // `b` names the type, and the type calls back.
    assert_eq!(methods("        unrelated();"), [["a", "b"]]);
    // Two files that give methods to a type of a third.
    let of_two = |first: &str, second: &str| {
        let block = |name: &str, call: &str| {
            format!(
                "use crate::c::Core;\nimpl<'a, F: Fn() -> u8> Core<'a, F> {{\n    fn {name}(&self) {{\n        {call}\n    }}\n}}"
            )
        };
        found(&[("a", &block("first", first)), ("b", &block("second", second)), ("c", "pub struct Core;")])
    };
    assert!(of_two("self.second()", "").is_empty());
    for back in ["self.first()", "self\n            .first::<u8>(1)", "Self::first(self)"] {
        assert_eq!(of_two("self.second()", back), [["a", "b"]], "{back}");
    }
    for other in ["self.first", "self.firsts()", "first()"] {
        assert!(of_two("self.second()", other).is_empty(), "{other}");
    }
    // On another value of the type, where the file names it; not in a string.
    let on_value = |code: &str| {
        let callee = "use crate::c::Core;\nuse crate::a::X;\nimpl Core {\n    fn reduce(&self) {}\n}";
        found(&[("a", code), ("b", callee), ("c", "pub struct Core;")])
    };
    assert_eq!(on_value("use crate::c::Core;\nfn f(core: &Core) {\n    core.reduce();\n}"), [["a", "b"]]);
    for code in ["fn f(x: &X) { x.reduce(); }", "use crate::c::Core;\nconst A: &str = \"core.reduce()\";"] {
        assert!(on_value(code).is_empty(), "{code}");
    }
    // A trait's block calls too, and a type of the same name in another folder is another one.
    let display = "impl fmt::Display for Core {\n    fn fmt(&self) {\n        self.reduce()\n    }\n}";
    let inherent = "use super::a::X;\nimpl Core {\n    fn reduce(&self) {}\n}";
    let tree = |home: &'static str| {
        found(&[("x::a", display), (home, inherent), ("x", ""), ("y", ""), ("y::a", "")])
    };
    assert_eq!(tree("x::b"), [["x::a", "x::b"]]);
    let both = [
        ("x::a", display),
        ("x::c", "impl Core {\n    fn reduce(&self) {}\n}"),
        ("y::b", inherent),
        ("y::a", ""),
    ];
    assert!(found(&both).is_empty());
}
