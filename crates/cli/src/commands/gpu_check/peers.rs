//! The same steps by transformers and Accelerate, with torch.compile and SDPA, where the active Python has them.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::finding::Finding;
use super::part::Part;
use super::shapes;
use crate::console::Outcome;

/// What runs there.
const PROGRAM: &str = include_str!("peer.py");
/// Seconds that steps are timed for.
const LONG: f64 = 3.0;

pub(super) fn check(part: &mut Part<'_>, quick: bool) -> Outcome {
    let mut python = None;
    for shape in shapes::all(quick) {
        part.check(&shape.title(), || {
            if quick {
                return Ok(Finding::skipped("not measured with --quick"));
            }
            match python.get_or_insert_with(|| run(None)) {
                Err(why) => return Ok(Finding::skipped(format!("the active Python cannot: {why}"))),
                Ok(versions) if versions["gpu"].is_null() => {
                    return Ok(Finding::skipped("torch of the active Python sees no GPU"));
                }
                Ok(_) => {}
            }
            let mut job = shape.job();
            job["seconds"] = LONG.into();
            job["compile"] = true.into();
            run(Some(&job)).map(|found| finding(&found))
        })?;
    }
    Ok(())
}

fn finding(found: &Value) -> Finding {
    let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
    let detail = format!(
        "{:.0} tokens/s, {:.2} ms, {:.2} GB, {:.1}M parameters",
        number("tokens_per_second"),
        number("milliseconds"),
        number("bytes") / 1e9,
        number("parameters") / 1e6
    );
    let numbers = found.as_object().into_iter().flatten();
    numbers.fold(Finding::ok(detail), |finding, (key, value)| finding.with(key, value.clone()))
}

/// The last line of the program is what it found; otherwise why it found nothing, in the last line of its errors.
fn run(job: Option<&Value>) -> Result<Value, String> {
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM]).stdin(Stdio::null());
    if let Some(job) = job {
        command.arg(json!(job).to_string());
    }
    let output = command.output().map_err(|error| format!("python3 does not start: {error}"))?;
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    };
    if !output.status.success() {
        return Err(last(&output.stderr));
    }
    let line = last(&output.stdout);
    serde_json::from_str(&line).map_err(|_| format!("python3 printed {line:?}"))
}
