//! `oarlock train`: the run of a configuration file, or of a recipe inside the program.

use std::io::{ErrorKind, Read};
use std::time::SystemTime;

use rustix::process::{Signal, getpid, kill_process};

use crate::console::Outcome;
use crate::error::Error;
use crate::front::llamafactory;
use crate::launch;

/// With this variable a run ends with the program that started it, which keeps the other end of the run's standard input.
const STOP_WITH_STDIN: &str = "OARLOCK_STOP_WITH_STDIN";

/// Runs the command; `started` is when this process began.
pub(super) fn run(words: &[String], started: SystemTime) -> Outcome {
    if std::env::var_os(STOP_WITH_STDIN).is_some_and(|value| value == "1") && !launch::is_rank() {
        std::thread::Builder::new()
            .name("standard input".to_owned())
            .spawn(stop_with_stdin)
            .map_err(Error::io("start", "a thread"))?;
    }
    llamafactory::train(words, &llamafactory::Called::OARLOCK, started)
}

/// Waits for the end of standard input, and then stops this process as a signal from outside does.
fn stop_with_stdin() {
    let (mut input, mut bytes) = (std::io::stdin().lock(), [0; 64]);
    loop {
        match input.read(&mut bytes) {
            Ok(n) if n > 0 => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    // It fails only where this process may send itself no signal, and then nobody stops the run.
    let _ = kill_process(getpid(), Signal::TERM);
}
