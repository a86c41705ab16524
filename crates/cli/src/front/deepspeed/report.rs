//! `ds_report`: which ops this program has on this machine, in the form of the original.

use std::fmt::Write as _;

use oarlock_engine::report::terminal::readable;
use oarlock_tensor::cpu::Isa;

use crate::config::flags::{Abbreviations, Flags};
use crate::config::keys::Row;
use crate::config::keys::Status::Used;
use crate::config::keys::ValueType::Bool;
use crate::config::{Problem, Problems, Words};
use crate::console::{Outcome, print, print_styled};
use crate::front::gpus;
use crate::launch::devices::Devices;

oarlock_config::key_table! {
    /// The flags.
    const KEYS = [
        HIDE_OPERATOR_STATUS: bool = Row::flag(Bool, "hide_operator_status", "", Used, "Leave out the table of ops"),
        HIDE_ERRORS_AND_WARNINGS: bool = Row::flag(Bool, "hide_errors_and_warnings", "", Used, "Leave out warnings"),
    ];
}

pub(crate) const FLAGS: Flags = Flags {
    command: "ds_report",
    bare_switches: true,
    operands: "",
    example: "ds_report",
    about: "Says which ops this machine has, and what surrounds them.",
    keys: KEYS,
    aliases: &[],
    abbreviations: Abbreviations::AllBut(&[]),
};

/// DeepSpeed's ops, and what stands in their place here; `None` where nothing does.
const OPS: &[(&str, Option<&str>)] = &[
    ("async_io", Some("files past the page cache")),
    ("cpu_adagrad", Some("fused update")),
    ("cpu_adam", Some("fused update")),
    ("cpu_lion", Some("fused update")),
    ("fused_adam", Some("fused update")),
    ("fused_lamb", Some("fused update")),
    ("shm_comm", Some("ranks in shared memory")),
    ("transformer", Some("attention and matrix products")),
    ("sparse_attn", Some("attention of the blocks of a layout")),
    ("transformer_inference", None),
    ("quantizer", Some("integers with a scale a block")),
];

const GREEN: &str = "\u{1b}[92m";
const YELLOW: &str = "\u{1b}[93m";
const END: &str = "\u{1b}[0m";

/// Below this /dev/shm is too small for what containers usually do with it.
const ENOUGH_SHARED: u64 = 512 << 20;

/// Runs `ds_report`.
pub(crate) fn report(words: &[String], _: std::time::SystemTime) -> Outcome {
    let mut problems = Problems::default();
    let parsed = FLAGS.parse(&Words::new(words), &mut problems);
    if parsed.help {
        return print(&FLAGS.help());
    }
    if let Some(word) = parsed.rest.get(0) {
        problems.push(Problem::new(format!("unexpected argument `{word}`")).at(&parsed.rest.location(0), ""));
    }
    problems.into_result(|| ())?;
    let mut out = String::new();
    if !parsed.settings.get(HIDE_OPERATOR_STATUS) {
        out.push_str(&operators(Isa::detect()));
    }
    let shared = rustix::fs::statvfs("/dev/shm").ok().map(|stats| stats.f_frsize * stats.f_blocks);
    out.push_str(&surroundings(
        Devices::of_training().cores,
        &gpus::described(),
        shared,
        !parsed.settings.get(HIDE_ERRORS_AND_WARNINGS),
    ));
    print_styled(&out)
}

/// The table of ops. All that are there are compiled in, for every path of the CPU.
fn operators(isa: Isa) -> String {
    let line = "-".repeat(50);
    let mut out = format!("{line}\nDeepSpeed C++/CUDA extension op report\n{line}\n");
    let _ = writeln!(
        out,
        "NOTE: Nothing is compiled here; ops are part of this program. Those that\n      are there run on the CPU, on its path {}.",
        isa.path()
    );
    let _ = writeln!(out, "{line}\n{}\n{line}", row("op name", "installed", "compatible"));
    for (name, ours) in OPS {
        let (installed, compatible) = match ours {
            Some(_) => (format!("{GREEN}[YES]{END}"), format!("{GREEN}[OKAY]{END}")),
            None => (format!("{YELLOW}[NO]{END}"), format!("{YELLOW}[NO]{END}")),
        };
        let note = ours.map(|ours| format!(" {ours}")).unwrap_or_default();
        let _ = writeln!(out, "{}{note}", row(name, &installed, &compatible));
    }
    let _ = writeln!(out, "{line}");
    out
}

/// Three columns, joined by dots.
fn row(name: &str, installed: &str, compatible: &str) -> String {
    let shown =
        |text: &str| [GREEN, YELLOW, END].iter().fold(text.to_owned(), |text, c| text.replace(c, "")).len();
    let dots = |width: usize, text: &str| ".".repeat(width.saturating_sub(shown(text)).max(1));
    format!("{name} {} {installed} {} {compatible}", dots(23, name), dots(11, installed))
}

/// What surrounds the ops.
fn surroundings(cores: usize, gpus: &[(String, String)], shared: Option<u64>, warns: bool) -> String {
    let mut out = String::from("DeepSpeed general environment info:\n");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "{name} {} {value}", ".".repeat(33_usize.saturating_sub(name.len()).max(1)));
    };
    let program =
        std::env::current_exe().map_or_else(|_| "UNKNOWN".to_owned(), |path| path.display().to_string());
    line("torch install path", "none needed");
    line("torch version", "none needed");
    line("deepspeed install path", &program);
    line("deepspeed info", &format!("oarlock {}, which answers for deepspeed", env!("CARGO_PKG_VERSION")));
    line("torch cuda version", "none needed");
    line("nvcc version", "none needed");
    for (name, value) in gpus {
        line(name, value);
    }
    line("CPU cores", &cores.to_string());
    line("shared memory (/dev/shm) size", &shared.map_or_else(|| "UNKNOWN".to_owned(), readable));
    if warns && shared.is_some_and(|bytes| bytes < ENOUGH_SHARED) {
        let _ = writeln!(
            out,
            " {YELLOW} [WARNING] /dev/shm is small; ranks here do not need it, but programs on NCCL may: in a \
             container raise --shm-size {END}"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_original() {
        // Lines that ds_report 0.19.8 printed, with our statuses.
        assert_eq!(
            row("op name", "installed", "compatible"),
            "op name ................ installed .. compatible"
        );
        let table = operators(Isa::detect());
        let adam = format!("cpu_adam ............... {GREEN}[YES]{END} ...... {GREEN}[OKAY]{END}");
        assert!(table.contains(&adam), "{table}");
        assert!(
            table.contains(&format!("transformer_inference .. {YELLOW}[NO]{END} ....... {YELLOW}[NO]{END}"))
        );
        assert!(OPS.iter().all(|(name, _)| table.contains(name)));
    }

    #[test]
    fn a_small_shared_memory_is_warned_of_unless_hidden() {
        let gpus = [("GPU 0".to_owned(), "A100".to_owned())];
        let small = surroundings(2, &gpus, Some(64 << 20), true);
        assert!(small.contains("shared memory (/dev/shm) size .... 67 MB\n"), "{small}");
        assert!(small.contains("\nGPU 0 ............................ A100\n"), "{small}");
        assert!(small.contains("[WARNING] /dev/shm is small"));
        assert!(!surroundings(2, &gpus, Some(64 << 20), false).contains("WARNING"));
        assert!(!surroundings(2, &gpus, Some(512 << 20), true).contains("WARNING"));
        assert!(surroundings(2, &gpus, None, true).contains("size .... UNKNOWN"));
    }
}
