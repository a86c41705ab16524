//! `oarlock env`: what a report of a problem should contain.

use oarlock_comm::{MachineMemory, available_cores};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::update;
use oarlock_tensor::{DType, Device, Par};

use crate::cli::Outcome;

pub(super) fn run() -> Outcome {
    let cores = available_cores().len();
    let paths: Vec<String> = Isa::available().iter().map(|isa| isa.path().to_string()).collect();
    println!("- `oarlock` version: {}", env!("CARGO_PKG_VERSION"));
    println!("- Platform: {}-{}", std::env::consts::OS, std::env::consts::ARCH);
    println!("- CPU cores: {cores}");
    println!("- CPU paths: {}", paths.join(", "));
    let device = Device::cpu(Isa::detect(), Par::solo());
    for dtype in [DType::F32, DType::BF16] {
        println!("- Peak of one core in {dtype}: {:.0} GFLOP/s", update::peak_flops(&device, dtype) / 1e9);
    }
    let memory = MachineMemory::current()?;
    println!("- System RAM: {:.2} GB", memory.total as f64 / 1e9);
    if let Some(limit) = memory.limit {
        println!("- Memory limit of this process: {:.2} GB", limit as f64 / 1e9);
    }
    println!("- GPU: none used (this version trains on CPU ranks)");
    Ok(())
}
