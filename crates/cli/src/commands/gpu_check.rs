//! `oarlock gpu-check`: whether everything works on the GPU of this machine, and how fast it is.

mod case;
mod cases;
mod device;
mod devices;
mod finding;
mod large;
mod nccl;
mod next;
mod offload;
mod ops;
mod optimizers;
mod part;
mod peers;
mod place;
mod ranks;
mod report;
mod roofline;
mod sanitizer;
mod section;
mod shapes;
mod speed;
mod throughput;
mod training;
mod tune;
mod watch;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use oarlock_engine::report::replace;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

use crate::console::{Failure, Outcome, print};
use crate::error::Error;

use devices::Devices;
use finding::Finding;
use part::Part;
use report::Report;
use section::Section;

#[derive(Args)]
pub(super) struct GpuCheckArgs {
    /// Tiny shapes and few steps, whose speed means nothing
    #[arg(long)]
    quick: bool,
    /// Time the algorithms of matrix products and the tiles of attention, and write the fastest to a table in this folder
    #[arg(long)]
    tune: bool,
    /// Only these sections, as the table at the end names them
    #[arg(long, value_name = "SECTIONS", value_delimiter = ',')]
    only: Vec<Section>,
    /// Write everything that was found to this file as well; where a call before has written it, go on with what that left
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End a check that takes longer than this, and go on with the next one
    #[arg(long, value_name = "SECONDS", default_value_t = 150.0, value_parser = seconds)]
    patience: f64,
    /// Begin nothing more after this time; --json FILE lets another call go on
    #[arg(long, value_name = "SECONDS", default_value_t = 1740.0, value_parser = seconds)]
    seconds: f64,
    /// Only this section, in this process, told in lines of JSON
    #[arg(long, hide = true)]
    part: Option<Section>,
    /// Checks of the section that are left out
    #[arg(long, hide = true, default_value_t = 0)]
    skip: usize,
    /// A sanitizer started this process, by a thread that may end before it
    #[arg(long, hide = true)]
    sanitized: bool,
}

/// A number of seconds that a clock can have.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    let is_time = (0.0..=1e6).contains(&seconds);
    if is_time { Ok(seconds) } else { Err("between 0 and a million seconds".to_owned()) }
}

/// Names a table of algorithms to `oarlock-cuda`.
const TABLE: &str = oarlock_cuda::tables::VARIABLE;

pub(super) fn run(args: &GpuCheckArgs) -> Outcome {
    match args.part {
        Some(section) => run_part(section, args),
        None => run_all(args),
    }
}

/// A section, in the process that was started for it.
fn run_part(section: Section, args: &GpuCheckArgs) -> Outcome {
    // Nobody would read what it finds. The kernel sends the signal when the thread ends that started this process, so it is
    // none where that may be before the end.
    if !args.sanitized {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    let time = Duration::from_secs_f64(args.seconds);
    let devices = match Devices::open() {
        Ok(devices) => devices,
        // Only this section asks for a library that not everybody has.
        Err(error) if section == Section::Cudnn => {
            return Part::new(args.skip, time, &|| true)
                .check("all", || Ok::<_, String>(Finding::skipped(error.to_string())));
        }
        Err(error) => return Err(error.into()),
    };
    let answers = || devices.gpu_answers();
    let mut part = Part::new(args.skip, time, &answers);
    match section {
        Section::Device => device::check(&mut part, &devices),
        Section::Words => words::check(&mut part),
        Section::Ops => ops::check(&mut part, &devices, args.quick),
        Section::Training => training::check(&mut part, args.quick),
        Section::Nccl => nccl::check(&mut part),
        Section::Tune => tune::check(&mut part, args.quick),
        Section::Throughput => throughput::check(&mut part, &devices.gpu, args.quick),
        Section::Speed => speed::check(&mut part, &devices.gpu, args.quick),
        Section::Offload => offload::check(&mut part, args.quick),
        Section::Cudnn => {
            ops::check_attention(&mut part, &devices, args.quick)?;
            speed::check_attention(&mut part, &devices.gpu, args.quick)
        }
        Section::Large => large::check(&mut part, &devices.gpu, args.quick),
        Section::Ranks => ranks::check(&mut part, args.quick),
        Section::Sanitizer => sanitizer::check(&mut part),
        Section::Peers => peers::check(&mut part, args.quick),
    }
}

/// All sections, each in a process of its own.
fn run_all(args: &GpuCheckArgs) -> Outcome {
    let gpu = match Devices::open() {
        Ok(devices) => devices.gpu.gpu_info().ok().flatten().map_or_else(String::new, |info| info.name),
        Err(error) => {
            // What a call before has found stays.
            if let Some(path) = args.json.as_ref().filter(|path| !matches!(earlier(path), Ok(Some(_)))) {
                write(path, &json!({ "version": env!("CARGO_PKG_VERSION"), "error": error.to_string() }))?;
            }
            return Err(error.into());
        }
    };
    let mut report = begun(args, &gpu)?;
    let mut table = None;
    let mut is_useless = false;
    for section in Section::ALL {
        let is_chosen = args.only.is_empty() || args.only.contains(&section) || section == Section::Device;
        let is_tuned = section != Section::Tune || args.tune;
        if !is_chosen || !is_tuned || report.is_finished(section) {
            continue;
        }
        let n_done = report.begin(section)?;
        // Where no kernel runs at all, the same reason a hundred times helps nobody.
        if is_useless {
            report.add("all", Finding::left("the first kernel does not run"), 0.0)?;
            continue;
        }
        let time = Duration::from_secs_f64(args.seconds).saturating_sub(report.elapsed());
        let patience = Duration::from_secs_f64(args.patience);
        watch::watch(&mut report, n_done, (time, patience), &mut |skip, time| {
            let mut command = command(section, args, skip, time)?;
            // Speed is that with what was just tuned.
            command.envs(table.iter().map(|file| (TABLE, file)));
            Ok(command)
        })?;
        report.end();
        is_useless = section == Section::Device && report.has_failed_in(section);
        if section == Section::Tune {
            table = tune::write_table(&mut report)?;
        }
        if section == Section::Ops {
            report.record_staged()?;
        }
        // After each section, so that a machine that stops in the next one leaves what was found.
        if let Some(path) = &args.json {
            write(path, &report.json())?;
        }
    }
    if let Some(path) = &args.json {
        write(path, &report.json())?;
    }
    print(&report.summary())?;
    if report.has_failed() { Err(Failure::Reported(1)) } else { Ok(()) }
}

/// The report of a call before on this GPU, if there is one, else a new one.
fn begun(args: &GpuCheckArgs, gpu: &str) -> Result<Report, Error> {
    let Some(path) = &args.json else { return Ok(Report::new(args.quick)) };
    let found = earlier(path).and_then(|found| match found {
        Some(found) => Report::resumed(&found, args.quick, gpu),
        None => Ok(Report::new(args.quick)),
    });
    found.map_err(|why| {
        Error::Usage(format!(
            "{} is not gone on with: {why}; remove it, or name another file",
            path.display()
        ))
    })
}

/// What a call before has written; none where it has found no GPU, and where there is no file.
fn earlier(path: &Path) -> Result<Option<Value>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(|error| error.to_string())?;
    let found: Value = serde_json::from_str(&text).map_err(|_| report::NO_REPORT.to_owned())?;
    Ok((!found["error"].is_string()).then_some(found))
}

/// What checks a section from a check on, for so long.
fn command(section: Section, args: &GpuCheckArgs, skip: usize, time: Duration) -> Result<Command, Error> {
    let itself = std::env::current_exe().map_err(Error::io("find", "the program itself"))?;
    let mut command = Command::new(itself);
    command.args(["gpu-check", "--part", section.name(), "--skip", &skip.to_string()]);
    command.args(["--seconds", &time.as_secs_f64().to_string()]);
    if args.quick {
        command.arg("--quick");
    }
    if section == Section::Cudnn {
        command.env(oarlock_cuda::cudnn::VARIABLE, "cudnn");
    }
    Ok(command)
}

fn write(path: &Path, content: &Value) -> Result<(), Error> {
    let text = format!("{content:#}\n");
    Ok(replace(path, text.as_bytes()).map_err(oarlock::Error::from)?)
}

#[cfg(test)]
mod tests {
    mod page;
}
