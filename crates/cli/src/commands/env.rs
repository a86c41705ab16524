//! `oarlock env`: what a report of a problem should contain.

use oarlock_comm::{MachineMemory, available_cores};
use oarlock_engine::report::terminal::readable;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::update;
use oarlock_tensor::{DType, Device, Par};

use crate::console::{Outcome, print};
use crate::front::gpus;

pub(super) fn run() -> Outcome {
    let paths: Vec<String> = Isa::available().iter().map(|isa| isa.path().to_string()).collect();
    let mut lines = vec![
        format!("`oarlock` version: {}", env!("CARGO_PKG_VERSION")),
        format!("Platform: {}-{}", std::env::consts::OS, std::env::consts::ARCH),
        format!("CPU cores: {}", available_cores().len()),
        format!("CPU paths: {}", paths.join(", ")),
    ];
    let device = Device::cpu(Isa::detect(), Par::solo());
    for dtype in [DType::F32, DType::BF16] {
        let peak = update::peak_flops(&device, dtype) / 1e9;
        lines.push(format!("Peak of one core in {dtype}: {peak:.0} GFLOP/s"));
    }
    let memory = MachineMemory::current()?;
    lines.push(format!("System RAM: {}", readable(memory.total)));
    if let Some(limit) = memory.limit {
        lines.push(format!("Memory limit of this process: {}", readable(limit)));
    }
    lines.extend(gpus::described().into_iter().map(|(name, value)| format!("{name}: {value}")));
    print(&lines.iter().map(|line| format!("- {line}\n")).collect::<String>())
}
