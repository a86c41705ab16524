//! Two families of kernels under sanitizers: softmax, whose threads share memory, under ThreadSanitizer, and the rotation
//! of positions under AddressSanitizer. Each finds nothing in the kernels as they are, and finds a planted fault.
//!
//! A sanitizer's runtime must be there from the beginning of a process, so each test runs this program again, with the
//! runtime loaded first and the name of the family in the environment.

use std::process::Command;

use oarlock_cuda::table;

use crate::emulator::{Changed, Library, Sanitizer};
use crate::faults;

/// What the inner run is told: the sanitizer, the family, and the fault to plant.
const TASK: &str = "OARLOCK_SANITIZED";

/// Whether this is an inner run.
pub fn is_inner() -> bool {
    std::env::var_os(TASK).is_some()
}

/// What it is called among what tests need.
fn name(sanitizer: Sanitizer) -> &'static str {
    if sanitizer == Sanitizer::Thread { "tsan" } else { "asan" }
}

/// What an inner run said, and whether it went well; none where there is no sanitizer.
fn run(sanitizer: Sanitizer, family: &str, fault: &str) -> Option<(bool, String)> {
    let Some(runtime) = Library::runtime(sanitizer) else {
        oarlock_must::have(
            name(sanitizer),
            false,
            "the compiler has no such runtime, so no kernel was watched",
        );
        return None;
    };
    let mut program = Command::new(std::env::current_exe().expect("the path of this program"));
    program.args(["--exact", "sanitizers::inner", "--nocapture", "--test-threads=1"]);
    program.env("LD_PRELOAD", runtime).env(TASK, format!("{sanitizer:?}:{family}:{fault}"));
    program.env("TSAN_OPTIONS", "halt_on_error=1 exitcode=66 report_signal_unsafe=0 suppress_equal_stacks=1");
    program.env("ASAN_OPTIONS", "detect_leaks=0 handle_segv=0 handle_sigbus=0 exitcode=66");
    let output = program.output().expect("this program");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // Of the machine, not of the kernels: the layout of memory, or a file that only the linker can read.
    for reason in ["unexpected memory mapping", "cannot be preloaded"] {
        if said.contains(reason) {
            oarlock_must::have(name(sanitizer), false, &format!("{reason}, so no kernel was watched"));
            return None;
        }
    }
    Some((output.status.success(), said))
}

/// The inner run; nothing without a task.
#[test]
fn inner() {
    let Ok(task) = std::env::var(TASK) else { return };
    // The compiler and its children run without the sanitizer.
    // SAFETY: this process has one test, and no other thread reads the environment now.
    unsafe { std::env::remove_var("LD_PRELOAD") };
    let parts: Vec<&str> = task.split(':').collect();
    let sanitizer = if parts[0] == "Thread" { Sanitizer::Thread } else { Sanitizer::Address };
    let listed = faults::list();
    let listed = listed.iter().filter(|fault| fault.what == parts[2]).map(faults::Fault::planted);
    let changed: Vec<Changed> = listed.chain((parts[2] == BEHIND_ITS_END).then(behind_its_end)).collect();
    let units = faults::units_of(parts[1]);
    let library = Library::of_watched(&units, &changed, sanitizer).expect("a compiler").expect("a library");
    faults::tests_of(parts[1])(&library);
    eprintln!("THE TESTS OF {} WENT THROUGH", parts[1]);
    // The runtime sees only a half of what the standard library does afterward, and takes it for races.
    std::process::exit(0);
}

fn is_clean(sanitizer: Sanitizer, family: &str) {
    let Some((well, said)) = run(sanitizer, family, "") else { return };
    assert!(well && said.contains("WENT THROUGH"), "{said}");
}

#[test]
#[ignore = "heavy"]
fn threads_of_a_block_never_race() {
    is_clean(Sanitizer::Thread, "softmax");
    let fault = "two sums of a block share their memory without a barrier between them";
    let Some((well, said)) = run(Sanitizer::Thread, "softmax", fault) else { return };
    let names_both = said.contains("WARNING: ThreadSanitizer: data race") && said.contains("words.h:");
    assert!(!well && names_both, "{said}");
}

/// A fault that wrong numbers need not show: an element behind a local array is read, and has no effect.
const BEHIND_ITS_END: &str = "an element behind the end of a local array is read";

fn behind_its_end() -> Changed {
    let source = table::units().into_iter().map(|unit| unit.source).find(|source| source.file == "rope.cu");
    let source = source.expect("a source");
    let (old, new) = (
        ", u = to_f32(h.from[a]), v = to_f32(h.from[b]);",
        "; f32 pair[2] = {to_f32(h.from[a]), to_f32(h.from[b])}; volatile u32 last = 2; volatile f32 unused = pair[last]; (void)unused; \
         f32 u = pair[0], v = pair[1];",
    );
    assert!(source.text.contains(old), "the text of the fault");
    Changed { file: source.file.to_string(), text: source.text.replacen(old, new, 1) }
}

#[test]
#[ignore = "heavy"]
fn no_access_is_out_of_bounds() {
    is_clean(Sanitizer::Address, "rope");
    let Some((well, said)) = run(Sanitizer::Address, "rope", BEHIND_ITS_END) else { return };
    assert!(!well && said.contains("AddressSanitizer: stack-buffer-overflow"), "{said}");
}
