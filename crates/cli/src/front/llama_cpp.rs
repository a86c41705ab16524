//! Asks llama.cpp about a GGUF file, where this machine has it: through its Python package, or by its programs.
//!
//! What it says is compared and never shown as it came.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use oarlock::Error;
use oarlock::export::Questions;
use oarlock_tensor::Device;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::console::{Outcome, eprint, print};

/// What Python runs.
const PROGRAM: &str = include_str!("llama_cpp.py");
/// The programs that go on with a text, the one for scripts first.
const PROGRAMS: [&str; 2] = ["llama-completion", "llama-cli"];
/// How long an answer may take, with loading the file.
const PATIENCE: Duration = Duration::from_secs(300);
/// The most bytes of an answer.
const MOST_BYTES: u64 = 1 << 25;
/// How often a program is looked after.
const LOOK: Duration = Duration::from_millis(10);

/// Compares what llama.cpp makes of a file with what this program makes of it.
///
/// # Errors
/// A difference, and a file that llama.cpp does not read.
pub(crate) fn compare(file: &Path, device: &Device) -> Outcome {
    let broken = |what: String| {
        Error::bad_file(
            file,
            format!("llama.cpp does not agree with this file, do not use it: {what}; report this"),
        )
    };
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM]).env("PYTHONSAFEPATH", "1");
    // Nothing is computed for a program that is not there.
    if is_python_package() {
        let questions = Questions::of(file, device)?;
        let mut asked = questions.to_json();
        asked["file"] = file.to_string_lossy().into();
        let answer = ask(python, asked.to_string().into_bytes()).map_err(broken)?;
        let answers: Value = serde_json::from_slice(last_line(&answer.out))
            .map_err(|_| broken(format!("it gave no answer ({})", shown(&answer.errors))))?;
        let agreement = questions.compare(&answers).map_err(broken)?;
        return print(&format!(
            "llama.cpp reads it (llama_cpp {}): the same tokens of {} texts; logits of {} positions differ by {:.2e} of their \
             size\n",
            shown(answers["version"].as_str().unwrap_or_default().as_bytes()),
            agreement.n_texts,
            agreement.n_positions,
            agreement.relative
        ));
    }
    let Some(program) = PROGRAMS.into_iter().find(|program| starts(program)) else {
        eprint(
            "note: llama.cpp was not asked about the file: there is no Python package llama_cpp and no llama-cli\n",
        );
        return Ok(());
    };
    let questions = Questions::of(file, device)?;
    let mut n_same = 0;
    for (prompt, word) in questions.words() {
        let mut command = Command::new(program);
        command.arg("-m").arg(file).args(["-p", prompt, "-n", "1", "--temp", "0", "-c", "512", "-no-cnv"]);
        command.arg("--no-display-prompt");
        let answer = ask(command, Vec::new()).map_err(broken)?;
        let found = String::from_utf8_lossy(&answer.out);
        if found.trim() != word {
            let found = shown(found.trim().as_bytes());
            return Err(
                broken(format!("after {prompt:?} it writes \"{found}\", and this program {word:?}")).into()
            );
        }
        n_same += 1;
    }
    print(&match n_same {
        0 => format!("{program} was not asked about the file: none of the prompts has a clear answer\n"),
        n => format!("llama.cpp reads it ({program}): it goes on with {n} prompts as this program does\n"),
    })
}

/// Whether Python finds the package, which is not loaded for it.
fn is_python_package() -> bool {
    let mut command = Command::new("python3");
    let find = "import importlib.util, sys; sys.path = [p for p in sys.path if p not in ('', '.')]; \
                sys.exit(importlib.util.find_spec('llama_cpp') is None)";
    command.args(["-c", find]).env("PYTHONSAFEPATH", "1");
    ask(command, Vec::new()).is_ok()
}

/// Whether a program is there.
fn starts(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    ask(command, Vec::new()).is_ok()
}

/// What a program has written.
struct Answer {
    out: Vec<u8>,
    errors: Vec<u8>,
}

/// Runs a program with this input.
///
/// # Errors
/// One that does not start, takes too long, or ends with a failure.
fn ask(mut command: Command, input: Vec<u8>) -> Result<Answer, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group, so that what it starts ends with it.
    let child = command.process_group(0).spawn().map_err(|error| format!("it does not start: {error}"))?;
    let mut process = Process(child);
    let [out, errors] = [
        process.0.stdout.take().map(|pipe| read(pipe, MOST_BYTES)),
        process.0.stderr.take().map(|pipe| read(pipe, MOST_BYTES)),
    ];
    if let Some(mut pipe) = process.0.stdin.take() {
        // One that does not read its input ends by itself.
        thread::spawn(move || pipe.write_all(&input));
    }
    let status = process.wait(Instant::now() + PATIENCE)?;
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    let answer = Answer { out: text(out), errors: text(errors) };
    match status.success() {
        true => Ok(answer),
        false => Err(format!("it ends with {status} ({})", shown(&answer.errors))),
    }
}

/// Reads a pipe to its end, and keeps so many bytes of it.
fn read(mut pipe: impl Read + Send + 'static, most: u64) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        // What is read until an error is what there is.
        let _ = pipe.by_ref().take(most).read_to_end(&mut kept);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        kept
    })
}

struct Process(Child);

impl Process {
    fn wait(&mut self, until: Instant) -> Result<ExitStatus, String> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < until => thread::sleep(LOOK),
                Ok(None) => return Err(format!("it did not answer within {} s", PATIENCE.as_secs())),
                Err(error) => return Err(format!("it cannot be waited for: {error}")),
            }
        }
    }
}

impl Drop for Process {
    /// Ends it with all that it has started, unless it has ended itself.
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(self.0.wait());
    }
}

/// The last line that says something.
fn last_line(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b'\n').rfind(|line| !line.trim_ascii().is_empty()).unwrap_or_default()
}

/// The last line of what another program says, short and without control characters.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(last_line(text)).chars().take(200).flat_map(char::escape_debug).collect()
}
