//! Runs the programs in threads, and those marked `no_run` each in a process and a folder of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use oarlock::DType;
use oarlock::distributed::{NotebookLaunch, notebook_launcher};

/// Says which program a process runs.
const PROGRAM: &str = "OARLOCK_DOCS_PROGRAM";

/// Says in which precision and on how many ranks it runs.
const WAY: &str = "OARLOCK_DOCS_WAY";

/// The precisions and the numbers of ranks.
const WAYS: [(DType, usize); 4] = [(DType::F32, 1), (DType::BF16, 1), (DType::F32, 3), (DType::BF16, 3)];

/// A block with a `main`.
struct Program {
    /// Its page and line.
    name: &'static str,
    /// The page and the number of the block in it.
    module: &'static str,
    runs_alone: bool,
    main: fn() -> oarlock::Result<()>,
}

/// What a `main` returns.
trait End {
    fn end(self) -> oarlock::Result<()>;
}

impl End for () {
    fn end(self) -> oarlock::Result<()> {
        Ok(())
    }
}

impl<E: Into<oarlock::Error>> End for Result<(), E> {
    fn end(self) -> oarlock::Result<()> {
        self.map_err(Into::into)
    }
}

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// Runs a program on ranks that are threads, in a precision that it does not choose itself.
fn run(program: &Program, (precision, num_processes): (DType, usize)) -> oarlock::Result<()> {
    let launch = NotebookLaunch {
        num_processes: Some(num_processes),
        mixed_precision: Some(precision),
        ..NotebookLaunch::default()
    };
    notebook_launcher(program.main, &launch)
}

fn assert_none(failed: Vec<String>) {
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn programs_run_in_both_precisions_on_one_rank_and_on_three() {
    let programs = || PROGRAMS.iter().filter(|program| !program.runs_alone);
    assert!(programs().count() > 8);
    let mut failed = Vec::new();
    for way in WAYS {
        for program in programs() {
            if let Err(error) = run(program, way) {
                failed.push(format!("{} in {} on {} ranks: {error}", program.name, way.0, way.1));
            }
        }
    }
    assert_none(failed);
}

/// Whether a program runs elsewhere, starts its ranks itself, or runs as the others do.
enum Kind {
    Elsewhere,
    StartsRanks,
    Plain,
}

fn kind(program: &Program) -> Kind {
    match program.module {
        // The recipe takes minutes; `crates/cli/tests/pretrain_loop.rs` runs it shortened.
        "library_4" => Kind::Elsewhere,
        "distributed_1" => Kind::StartsRanks,
        _ => Kind::Plain,
    }
}

/// A folder with what the programs name: a model and conversations.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    std::os::unix::fs::symlink(recipes.join("minimind-small"), folder.path().join("model")).unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    let chat = r#"{"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]}"#;
    fs::write(folder.path().join("data/chat.jsonl"), format!("{chat}\n").repeat(200)).unwrap();
    folder
}

#[test]
fn programs_that_need_files_or_start_ranks_run_in_a_process_of_their_own() {
    let mut failed = Vec::new();
    for program in PROGRAMS.iter().filter(|program| program.runs_alone) {
        let ways: &[(DType, usize)] = match kind(program) {
            Kind::Elsewhere => &[],
            Kind::StartsRanks => &WAYS[..1],
            Kind::Plain => &WAYS,
        };
        for (precision, ranks) in ways {
            let folder = folder();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "tests::child_program", "--ignored", "--nocapture", "--test-threads=1"]);
            command.env(PROGRAM, program.name).env(WAY, format!("{precision} {ranks}"));
            let output = command.current_dir(folder.path()).output().unwrap();
            let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
            // A filter that finds no test succeeds as well.
            if !output.status.success() || !said[0].contains("1 passed") {
                failed.push(format!("{} in {precision} on {ranks} ranks: {}", program.name, said.concat()));
            }
        }
    }
    assert_none(failed);
}

#[test]
#[ignore = "what the test of programs of their own starts"]
fn child_program() {
    let Ok(name) = std::env::var(PROGRAM) else { return };
    let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
    let said = std::env::var(WAY).unwrap();
    let way = WAYS.into_iter().find(|(precision, ranks)| format!("{precision} {ranks}") == said).unwrap();
    match kind(program) {
        Kind::Plain => run(program, way).unwrap(),
        _ => (program.main)().unwrap(),
    }
}
