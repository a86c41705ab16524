//! Small checks under compute-sanitizer of the CUDA toolkit, where that is: accesses out of bounds, races in shared memory,
//! barriers that not all threads come to.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::finding::{Finding, Verdict};
use super::part::{Line, Part};
use crate::console::Outcome;
use crate::error::Error;

/// Its tools, with what they find. The kernels need no initcheck: the tests fill memory with NaN.
const TOOLS: [&str; 3] = ["memcheck", "racecheck", "synccheck"];
/// The sections that run under it.
const SECTIONS: [&str; 2] = ["words", "ops"];
/// Seconds for one of both under a tool, which makes all of it many times slower.
const LONG: f64 = 60.0;
/// Its exit code where it has found something, which is none of the program's.
const FOUND: i32 = 99;

pub(super) fn check(part: &mut Part<'_>) -> Outcome {
    let tool = find();
    for (name, section) in TOOLS.into_iter().flat_map(|tool| SECTIONS.map(|section| (tool, section))) {
        let seconds = part.time_left().as_secs_f64().min(LONG);
        part.check(&format!("{name} of {section}"), || match &tool {
            Some(tool) => run(tool, name, section, seconds),
            None => Ok(Finding::skipped("compute-sanitizer is neither in PATH nor in CUDA_HOME")),
        })?;
    }
    Ok(())
}

/// In the folders of PATH, else in CUDA_HOME or where the toolkit usually is.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    let homes = home.into_iter().chain([PathBuf::from("/usr/local/cuda")]);
    let in_homes = homes.flat_map(|home| [home.join("bin"), home.join("compute-sanitizer")]);
    let folders = std::env::split_paths(&path).chain(in_homes);
    folders.map(|folder| folder.join("compute-sanitizer")).find(|file| file.is_file())
}

/// Runs a section with tiny shapes under a tool. It is slow, so what is not done in the given time is left out.
fn run(sanitizer: &PathBuf, tool: &str, section: &str, seconds: f64) -> Result<Finding, Error> {
    let itself = std::env::current_exe().map_err(Error::io("find", "the program itself"))?;
    let mut command = Command::new(sanitizer);
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string(), "--print-limit", "5"]);
    command.arg(itself).args(["gpu-check", "--quick", "--sanitized", "--part", section]);
    command.args(["--seconds", &seconds.to_string()]);
    let output = command.stdin(Stdio::null()).output().map_err(Error::io("start", sanitizer))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let ends = said.lines().filter_map(|line| match Line::from_text(line) {
        Some(Line::End(finding, _)) => Some(finding),
        _ => None,
    });
    let ends: Vec<Finding> = ends.collect();
    let count = |verdict| ends.iter().filter(|finding| finding.verdict == verdict).count();
    let counts = format!("{} checks, {} left out", count(Verdict::Ok), count(Verdict::Skipped));
    // Its own lines begin with this mark, wherever it writes them.
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let marked = said.lines().chain(errors.lines()).filter_map(|line| line.strip_prefix("========="));
    let first = marked.map(str::trim).find(|line| !line.is_empty() && !line.starts_with("COMPUTE-SANITIZER"));
    let code = output.status.code();
    Ok(match (code, count(Verdict::Failed)) {
        (Some(0), 0) if count(Verdict::Ok) > 0 => Finding::ok(counts),
        (Some(0), 0) => Finding::skipped(format!("there was no time: {counts}")),
        (Some(FOUND), _) => {
            Finding::of(false, format!("{}; {counts}", first.unwrap_or("it found something")))
        }
        (_, n) => Finding::of(false, format!("{n} checks failed under it, exit code {code:?}; {counts}")),
    }
    .with("said", said.lines().filter(|line| line.starts_with("=========")).take(60).collect::<Vec<_>>()))
}
