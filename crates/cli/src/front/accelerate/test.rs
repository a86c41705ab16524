//! `accelerate test`: starts the ranks of a configuration and has them check what a training run relies on.

use std::path::Path;
use std::time::SystemTime;

use oarlock_engine::distributed::rank;
use oarlock_tensor::DType;

use super::checks::{self, CHECKS};
use super::cluster::{Cluster, config_file};
use super::command::{COMMAND, parse};
use super::site::Site;
use crate::config::flags::{Abbreviations, Flags, Parsed};
use crate::config::keys::{Row, Status, ValueType, row};
use crate::config::{Problem, Problems, Words};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::{Error, Result};
use crate::front::job::{ended, too_few_gpus};
use crate::launch::devices::Devices;
use crate::launch::{self, Launch};

oarlock_config::key_table! {
    /// The flags.
    const KEYS = [
        CONFIG_FILE: Option<String> = row(super::command::CONFIG_FILE),
        CPU: bool = Row::flag(ValueType::Bool, "cpu", "false", Status::Used, "Check as many ranks on the CPU, whatever the configuration asks for"),
        NUM_PROCESSES: Option<usize> = Row::flag(ValueType::Int(1), "num_processes", "", Status::Used, "How many ranks; by default those of the configuration, else as many as the machine has devices"),
    ];
}

pub(super) const FLAGS: Flags = Flags {
    command: "accelerate test",
    example: "accelerate test",
    about: "Checks that the ranks of this machine train as one would: collectives, seeds, the split of the data, losses of \
            every way to divide the model, and checkpoints.",
    keys: KEYS,
    abbreviations: Abbreviations::AllBut(&["cpu", "num_processes"]),
    ..COMMAND
};

/// What the words and the configuration ask for.
struct TestRun {
    ranks: usize,
    /// The precision of the configuration, where it is not f32.
    dtype: Option<DType>,
}

/// Runs the command: the check itself, or in a rank its part of it.
pub fn run(words: &Words, started: SystemTime) -> Outcome {
    // Ranks are given the folder that they share, behind the words of the user.
    let Some(parsed) = parse(&FLAGS, words, usize::from(launch::is_our_rank()))? else { return Ok(()) };
    let devices = Devices::visible();
    let run = test_run(&parsed, &devices)?;
    match parsed.rest.get(0) {
        Some(folder) => in_rank(Path::new(folder), &run),
        None if parsed.dry_run => {
            print(&format!("would check {} rank(s) on the CPU of this machine\n", run.ranks))
        }
        None => start(words, &run, started),
    }
}

fn test_run(parsed: &Parsed, devices: &Devices) -> std::result::Result<TestRun, Problems> {
    let config = Cluster::configured(&parsed.settings)?;
    let num_processes = parsed.settings.get(NUM_PROCESSES);
    let on_cpu = parsed.settings.get(CPU);
    let dtype = config.as_ref().and_then(|config| match config.text("mixed_precision") {
        Some("bf16") => Some(DType::BF16),
        Some("fp16") => Some(DType::F16),
        _ => None,
    });
    let ranks = match (num_processes, &config) {
        (Some(ranks), _) => ranks,
        (None, None) => devices.count(),
        (None, Some(config)) => ranks_of(config, &config_file(&parsed.settings))?,
    };
    if let Some(config) = config.filter(|_| !on_cpu) {
        devices_are_there(&config, ranks, devices)?;
    }
    Ok(TestRun { ranks, dtype })
}

/// The ranks of this machine.
fn ranks_of(config: &Cluster, path: &Path) -> std::result::Result<usize, Problem> {
    let (all, machines) =
        (config.int("num_processes").unwrap_or(-1), config.int("num_machines").unwrap_or(1));
    let here = if machines > 0 { all / machines } else { 0 };
    usize::try_from(here).ok().filter(|ranks| *ranks > 0).ok_or_else(|| {
        let message =
            format!("`{}` says {all} process(es) on {machines} machine(s): none here", path.display());
        Problem::new(message).help("add --num_processes N")
    })
}

/// Whether the machine has what the configuration trains on.
fn devices_are_there(config: &Cluster, ranks: usize, devices: &Devices) -> std::result::Result<(), Problem> {
    let kind = config.text("distributed_type").unwrap_or_default();
    let instead = "accelerate test --cpu";
    match kind {
        _ if config.is_on("use_cpu") => Ok(()),
        "NO" | "MULTI_CPU" => Ok(()),
        "MULTI_GPU" | "DEEPSPEED" | "FSDP" | "MEGATRON_LM" if devices.gpus >= ranks => Ok(()),
        "MULTI_GPU" | "DEEPSPEED" | "FSDP" | "MEGATRON_LM" => Err(too_few_gpus(ranks, devices.gpus, instead)),
        kind => {
            let message = format!(
                "the configuration trains on {} devices, which this program cannot use",
                kind.trim_start_matches("MULTI_")
            );
            Err(Problem::new(message).help(format!("to check {ranks} ranks on the CPU: {instead}")))
        }
    }
}

/// Starts the ranks and says how it ended.
fn start(words: &Words, run: &TestRun, started: SystemTime) -> Outcome {
    let folder = tempfile::Builder::new()
        .prefix("accelerate-test-")
        .tempdir()
        .map_err(Error::io("create", "a folder"))?;
    let this = std::env::current_exe().map_err(Error::io("find", "this program"))?;
    let mut again = vec![this.to_string_lossy().into_owned(), "accelerate".to_owned(), "test".to_owned()];
    again.extend(words.to_vec());
    again.extend(["--".to_owned(), folder.path().display().to_string()]);
    print(&format!("checking {} rank(s) on the CPU of this machine\n", run.ranks))?;
    ended(launch::run(&Launch::local(run.ranks), &again, Some(&|_| Ok(())), started)?)?;
    let verdict = oarlock_comm::read_text(folder.path().join(VERDICT), oarlock_comm::MAX_CONFIG_BYTES)
        .map_err(Error::io("read", "the verdict of rank 0"))?;
    if verdict.is_empty() {
        return print("Test is a success! You are ready for your distributed training!\n");
    }
    eprint(&format!("error: not as it should be: {verdict}\n"));
    Err(Failure::Reported(1))
}

/// Where rank 0 writes the names of the checks that failed.
const VERDICT: &str = "verdict";

/// One rank of the test.
fn in_rank(folder: &Path, run: &TestRun) -> Outcome {
    let comm = rank::join()?;
    let site = Site { comm: comm.clone(), folder: folder.to_path_buf(), dtype: run.dtype };
    match all_checks(&site) {
        Ok(()) => {
            comm.finish();
            Ok(())
        }
        Err(error) => {
            comm.abort(&error.to_string());
            Err(Failure::Reported(1))
        }
    }
}

fn all_checks(site: &Site) -> Result<()> {
    let mut failed = Vec::new();
    for check in CHECKS {
        site.comm.set_phase(check.name);
        // An error of a check names the check.
        let named = |error| Error::Usage(format!("{}: {error}", check.name));
        let found = (check.run)(site).map_err(named)?;
        let result = checks::together(&site.comm, found).map_err(named)?;
        if site.comm.rank() == 0 {
            // A reader that went away is no reason to stop.
            let _ = print(&format!(
                "{}: {}\n",
                check.name,
                result.as_ref().map_or_else(|wrong| wrong.clone(), |well| format!("ok{well}"))
            ));
        }
        failed.extend(result.is_err().then_some(check.name));
    }
    if site.comm.rank() == 0 {
        let path = site.folder.join(VERDICT);
        oarlock_files::replace(&path, failed.join("; ")).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(kind: &str, processes: i64, machines: i64) -> Cluster {
        let result =
            json!({ "distributed_type": kind, "num_processes": processes, "num_machines": machines });
        Cluster::of(result.as_object().unwrap().clone())
    }

    #[test]
    fn a_machine_checks_its_own_ranks() {
        let ranks =
            |processes, machines| ranks_of(&cluster("MULTI_CPU", processes, machines), Path::new("a.yaml"));
        assert_eq!(ranks(4, 1).unwrap(), 4);
        assert_eq!(ranks(16, 2).unwrap(), 8);
        for (processes, machines) in [(-1, 1), (1, 2), (0, 1), (4, 0), (4, -1)] {
            assert!(ranks(processes, machines).is_err(), "{processes} on {machines}");
        }
    }

    #[test]
    fn devices_that_are_not_there_are_told() {
        let cpu = Devices { gpus: 0, cores: 2 };
        let check = |kind, gpus| devices_are_there(&cluster(kind, 4, 1), 4, &Devices { gpus, ..cpu.clone() });
        assert!(check("MULTI_CPU", 0).is_ok() && check("NO", 0).is_ok() && check("MULTI_GPU", 4).is_ok());
        for kind in ["MULTI_GPU", "DEEPSPEED", "FSDP"] {
            let problem = check(kind, 2).unwrap_err().line();
            assert!(problem.contains("4 GPUs") && problem.contains("accelerate test --cpu"), "{problem}");
        }
        let problem = check("MULTI_XPU", 0).unwrap_err().line();
        assert!(problem.contains("XPU") && problem.contains("--cpu"), "{problem}");
    }
}
