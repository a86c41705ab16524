//! `accelerate env`: what a report of a problem should contain, in the lines of the original.

use oarlock_comm::MachineMemory;
use oarlock_config::settings::secret::masked_lines;
use oarlock_engine::report::terminal::readable;
use oarlock_tensor::{CudaLibraries, visible_gpus};

use super::cluster::Cluster;
use super::command::{ACCELERATE, COMMAND, CONFIG_FILE, parse};
use crate::config::Words;
use crate::config::flags::Flags;
use crate::console::{Outcome, print};
use crate::front::gpus;
use crate::front::script::program_in_path;

pub(super) const ENV: Flags = Flags {
    command: "accelerate env",
    example: "accelerate env",
    about: "Shows versions, the machine and the configuration, for a report of a problem.",
    keys: super::command::KEYS,
    ..COMMAND
};

/// Runs the command.
pub fn run(words: &Words) -> Outcome {
    let Some(parsed) = parse(&ENV, words, 0)? else { return Ok(()) };
    let config = match Cluster::configured(&parsed.settings)? {
        // What is shown is meant to be pasted where all can read it.
        Some(config) => masked_lines(&config.shown()),
        None => "\tNot found\n".to_owned(),
    };
    let heading = match parsed.settings.get(CONFIG_FILE) {
        Some(_) => "`Accelerate` config passed:",
        None => "`Accelerate` default config:",
    };
    let memory = MachineMemory::current()?.total;
    let mut out = String::from("\nCopy-and-paste the text below in your GitHub issue\n\n");
    let seen = visible_gpus(&CudaLibraries::from_environment()).unwrap_or_default();
    for (name, value) in lines(memory, !seen.is_empty()) {
        out.push_str(&format!("- {name}: {value}\n"));
    }
    if let Some(first) = seen.first() {
        out.push_str(&format!("- GPU type: {}\n", first.name));
        gpus::described().iter().for_each(|(name, value)| out.push_str(&format!("- {name}: {value}\n")));
    }
    print(&format!("{out}- {heading}\n{config}"))
}

/// The lines with a value.
fn lines(memory: u64, has_gpus: bool) -> Vec<(&'static str, String)> {
    let system = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let location = program_in_path("accelerate").map(|path| path.display().to_string());
    vec![
        ("`Accelerate` version", format!("Oarlock {}, for {ACCELERATE}", env!("CARGO_PKG_VERSION"))),
        ("Platform", [word(system.sysname()), word(system.release()), word(system.machine())].join("-")),
        ("`accelerate` bash location", location.unwrap_or_else(|| "Not found".to_owned())),
        ("Python version", "none needed".to_owned()),
        ("Numpy version", "none needed".to_owned()),
        ("PyTorch version", "none needed".to_owned()),
        ("PyTorch accelerator", if has_gpus { "CUDA" } else { "N/A" }.to_owned()),
        ("System RAM", readable(memory)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_original() {
        let names: Vec<&str> = lines(16_000_000_000, false).into_iter().map(|(name, _)| name).collect();
        let expected = [
            "`Accelerate` version",
            "Platform",
            "`accelerate` bash location",
            "Python version",
            "Numpy version",
            "PyTorch version",
            "PyTorch accelerator",
            "System RAM",
        ];
        assert_eq!(names[..8], expected);
        assert_eq!(lines(16_000_000_000, false)[7].1, "16.0 GB");
    }
}
