//! What tests need of a machine: where it is missing they say so aloud, and fail if it must be there.
//!
//! The test program keeps what a passing test prints to itself, so a test that returns early looks like one that has passed.
//! Each such test asks [`have`] first, which prints a line past the test program. `OARLOCK_MUST` names what must be there,
//! as in `OARLOCK_MUST=g++,netns`: then these tests fail instead.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What tests may need that not every machine has.
pub const NAMES: [&str; 20] = [
    "gpu",
    "g++",
    "mpi",
    "gloo",
    "netns",
    "root",
    "nvrtc",
    "nvdisasm",
    "cudnn",
    "nccl",
    "tsan",
    "asan",
    "mount",
    "zsh",
    "fish",
    "groff",
    "mandoc",
    "avx512",
    "avx512_bf16",
    "huggingface_hub",
];

/// The variable that says what must be there.
pub const VARIABLE: &str = "OARLOCK_MUST";

/// Whether a test can run that needs `name`, which is here or not. If it is not, says that nothing is tested and why.
///
/// # Panics
/// If `OARLOCK_MUST` says that it must be here, or holds a name that is none of [`NAMES`].
#[track_caller]
pub fn have(name: &str, is_here: bool, why: &str) -> bool {
    let must = std::env::var(VARIABLE).unwrap_or_default();
    match decide(&must, name, is_here, why) {
        Ok(None) => true,
        Ok(Some(said)) => {
            say(&said);
            false
        }
        Err(problem) => panic!("{problem}"),
    }
}

/// As [`have`] for network namespaces that stand for machines: whether this user may make them, with a bridge between them.
/// Tried once, in a namespace without a name, where nobody else is: what fails later is a failure.
///
/// # Panics
/// As [`have`].
#[track_caller]
pub fn have_machines() -> bool {
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    let tried = TRIED.get_or_init(|| {
        let script = "ip link add bridge type bridge && ip link add one type veth peer name two";
        let output = Command::new("unshare").args(["--net", "--mount", "sh", "-c", script]).output();
        match output {
            Err(error) => Err(format!("unshare: {error}")),
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    });
    let problem = tried.as_ref().err().map_or("", String::as_str);
    have("netns", tried.is_ok(), &format!("network namespaces need root, iproute2 and unshare: {problem}"))
}

/// As [`have`] for Gloo, given what stands in its way.
///
/// # Panics
/// As [`have`].
#[track_caller]
pub fn have_gloo(obstacle: Option<&str>) -> bool {
    have("gloo", obstacle.is_none(), obstacle.unwrap_or_default())
}

/// As [`have_machines`] for ranks that meet over Gloo on them.
///
/// # Panics
/// As [`have`].
#[track_caller]
pub fn have_gloo_machines(obstacle: Option<&str>) -> bool {
    have_machines() && have_gloo(obstacle)
}

/// Says what is not tested, past what the test program keeps.
fn say(what: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let thread = std::thread::current();
    let line = format!("NOT TESTED: {}: {what}\n", thread.name().unwrap_or("a thread"));
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        // The macros are what the test program captures. A closed stderr is no reason to fail.
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}

/// What to say, if anything; what to fail with.
fn decide(must: &str, name: &str, is_here: bool, why: &str) -> Result<Option<String>, String> {
    let musts: Vec<&str> = must.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = musts.iter().chain([&name]).find(|name| !NAMES.contains(name)) {
        let known = NAMES.join(", ");
        return Err(format!("{VARIABLE}: no test needs {unknown:?}; they may need {known}"));
    }
    match is_here {
        true => Ok(None),
        false if musts.contains(&name) => {
            Err(format!("{VARIABLE} says that {name} is here, but it is not: {why}"))
        }
        false => Ok(Some(format!("{name} is not here: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_or_fails() {
        assert_eq!(decide("", "mpi", true, ""), Ok(None));
        assert_eq!(decide("mpi", "mpi", true, ""), Ok(None));
        let said = decide("g++, netns", "mpi", false, "no mpirun");
        assert_eq!(said, Ok(Some("mpi is not here: no mpirun".to_owned())));
        let failed = decide("g++,mpi,", "mpi", false, "no mpirun").unwrap_err();
        assert_eq!(failed, "OARLOCK_MUST says that mpi is here, but it is not: no mpirun");
    }

    #[test]
    fn a_name_that_nothing_needs_is_no_promise() {
        for (must, name) in [("gpus", "gpu"), ("g++,mpj", "mpi"), ("", "mpj")] {
            assert!(decide(must, name, true, "").unwrap_err().contains("no test needs"), "{must} {name}");
        }
    }

    /// The line gets out of a test that passes: this test runs itself again, as anybody would, and reads it.
    #[test]
    fn the_line_is_seen_although_the_test_passes() {
        const INNER: &str = "OARLOCK_MUST_INNER";
        if std::env::var_os(INNER).is_some() {
            assert!(!have("mount", false, "on purpose"));
            println!("this is kept by the test program");
            return;
        }
        let own = || {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "tests::the_line_is_seen_although_the_test_passes"]).env(INNER, "1");
            command
        };
        let passed = own().env_remove(VARIABLE).output().expect("this program");
        let said = String::from_utf8_lossy(&passed.stderr).into_owned();
        let test = "tests::the_line_is_seen_although_the_test_passes";
        assert!(said.contains(&format!("NOT TESTED: {test}: mount is not here: on purpose")), "{said}");
        assert!(passed.status.success() && !String::from_utf8_lossy(&passed.stdout).contains("this is kept"));
        let failed = own().env(VARIABLE, "asan,mount").output().expect("this program");
        assert!(!failed.status.success(), "{failed:?}");
    }
}
