//! `oarlock gpu-check`: whether everything works on the GPU of this machine, and how fast it is.

mod case;
mod cases;
mod device;
mod ops;
mod optimizers;
mod place;
mod ranks;
mod report;
mod speed;
mod training;

use std::path::{Path, PathBuf};

use clap::Args;
use oarlock::report::replace;
use oarlock_comm::available_cores;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Tensor};
use serde_json::json;

use crate::console::{Failure, Outcome, print};
use crate::error::Error;

use report::{Finding, Report, Section};

#[derive(Args)]
pub(super) struct GpuCheckArgs {
    /// Tiny shapes and few steps, and no measurements of speed
    #[arg(long)]
    quick: bool,
    /// Write everything that was found to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The two devices that are compared.
struct Devices {
    gpu: Device,
    cpu: Device,
}

impl Devices {
    fn open() -> oarlock::Result<Devices> {
        let par = Par::threads(available_cores().len())?;
        let cpu = Device::cpu(Isa::detect(), par.clone());
        Ok(Devices { gpu: Device::cuda(0, Isa::detect(), par)?, cpu })
    }

    /// Whether the GPU still takes and gives numbers: after some errors of a kernel it does not.
    fn gpu_answers(&self) -> bool {
        let there = Tensor::from_slice(&[1.5f32, -2.0], [2], &self.gpu);
        there.and_then(|there| there.to_vec::<f32>()).is_ok_and(|back| back == [1.5, -2.0])
    }
}

/// What runs a section.
type Check<'a> = dyn Fn(&mut Report<'_>) -> Outcome + 'a;

pub(super) fn run(args: &GpuCheckArgs) -> Outcome {
    let devices = match Devices::open() {
        Ok(devices) => devices,
        Err(error) => {
            if let Some(path) = &args.json {
                write(path, &json!({ "version": env!("CARGO_PKG_VERSION"), "error": error.to_string() }))?;
            }
            return Err(error.into());
        }
    };
    let sections: [(Section, &Check<'_>); 5] = [
        (Section::Device, &|report| device::check(report, &devices)),
        (Section::Ops, &|report| ops::check(report, &devices, args.quick)),
        (Section::Training, &|report| training::check(report, args.quick)),
        (Section::Ranks, &|report| ranks::check(report, args.quick)),
        (Section::Speed, &|report| speed::check(report, &devices.gpu, args.quick)),
    ];
    let answers = || devices.gpu_answers();
    let mut report = Report::new(args.quick, &answers);
    let mut is_useless = false;
    for (section, check) in sections {
        report.begin(section)?;
        // Where no kernel runs at all, the same reason a hundred times helps nobody.
        if is_useless {
            report.check("all", || Ok::<_, Error>(Finding::skipped("the first kernel does not run")))?;
            continue;
        }
        check(&mut report)?;
        is_useless = section == Section::Device && report.has_failed();
        // After each section, so that a machine that stops in the next one leaves what was found.
        if let Some(path) = &args.json {
            write(path, &report.json())?;
        }
    }
    print("\n")?;
    device::tell_kernels(&mut report, &devices)?;
    if let Some(path) = &args.json {
        write(path, &report.json())?;
    }
    print(&report.summary())?;
    if report.has_failed() { Err(Failure::Reported(1)) } else { Ok(()) }
}

fn write(path: &Path, content: &serde_json::Value) -> Result<(), Error> {
    let text = format!("{content:#}\n");
    Ok(replace(path, text.as_bytes()).map_err(oarlock::Error::from)?)
}
