//! Turns every block of Rust of README.md and of the pages in docs/ into a module, and those that have a `main` into a row
//! of a table, so that one test binary compiles all of them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = root.join("docs");
    let mut pages = vec![root.join("README.md")];
    println!("cargo::rerun-if-changed={}", docs.display());
    for entry in fs::read_dir(&docs).unwrap() {
        pages.push(entry.unwrap().path());
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let (mut modules, mut table) = (String::new(), String::new());
    for page in pages {
        println!("cargo::rerun-if-changed={}", page.display());
        let text = fs::read_to_string(&page).unwrap();
        let stem = page.file_stem().unwrap().to_str().unwrap().to_lowercase().replace('-', "_");
        for (index, block) in blocks(&page, &text).into_iter().enumerate() {
            let module = format!("{stem}_{}", index + 1);
            let has_main = block.code.contains("fn main()");
            let code = match has_main {
                true => block.code.replacen("fn main()", "pub fn main()", 1),
                // As rustdoc does.
                false => format!("pub fn main() {{\n{}}}\n", block.code),
            };
            writeln!(modules, "#[allow(warnings, clippy::all)]\npub mod {module} {{\n{code}}}").unwrap();
            if has_main {
                let Block { line, runs_alone, .. } = block;
                let name = format!("{}:{line}", page.file_name().unwrap().to_str().unwrap());
                let fields = format!(
                    "name: {name:?}, module: {module:?}, runs_alone: {runs_alone}, main: || {module}::main().end()"
                );
                writeln!(table, "    Program {{ {fields} }},").unwrap();
            }
        }
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap()).join("programs.rs");
    let table = format!("const PROGRAMS: &[Program] = &[\n{table}];\n");
    fs::write(out, modules + &table).unwrap();
}

struct Block {
    /// Where it begins in its page.
    line: usize,
    code: String,
    /// Whether it is marked `no_run`: it needs files, or starts ranks itself.
    runs_alone: bool,
}

fn blocks(page: &Path, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        match (inside, line.strip_prefix("```")) {
            (false, Some(marks)) if marks == "rust" || marks.starts_with("rust,") => {
                let runs_alone = match marks {
                    "rust" => false,
                    "rust,no_run" => true,
                    _ => panic!("{}:{}: `{marks}`: every block compiles", page.display(), index + 1),
                };
                blocks.push(Block { line: index + 1, code: String::new(), runs_alone });
                inside = true;
            }
            // Blocks of other languages end here as well.
            (true, Some(_)) => inside = false,
            (true, None) => {
                // What rustdoc hides from readers.
                let code = line.strip_prefix("# ").unwrap_or(if line == "#" { "" } else { line });
                let block = blocks.last_mut().unwrap();
                block.code += code;
                block.code.push('\n');
            }
            (false, _) => {}
        }
    }
    blocks
}
