//! Writes the example corpus: `cargo run --example make_corpus [DIRECTORY]`.
//!
//! The files depend on nothing but this folder, so a second run leaves the shipped files unchanged.

mod corpus;
mod rng;
mod template;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/corpus");
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| shipped.into()));
    match write(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("make_corpus: {message}");
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &std::path::Path) -> Result<(), String> {
    let corpus = corpus::generate().map_err(|e| e.to_string())?;
    for (name, records) in [("pretrain.jsonl", &corpus.pretrain), ("heldout.jsonl", &corpus.heldout)] {
        let path = directory.join(name);
        let lines = corpus::jsonl(records);
        std::fs::write(&path, &lines).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        println!("{}: {} records, {} bytes", path.display(), records.len(), lines.len());
    }
    Ok(())
}
