//! Writes fake libraries of CUDA over the emulator into a folder, for runs without a GPU:
//! `OARLOCK_CUDA_LIBRARIES=FOLDER oarlock train FILE.yaml --device cuda`.
//!
//! Attention is compiled for heads of 32 and 64 elements, or for the sizes that OARLOCK_FAKE_HEAD_DIMS lists. With
//! `--shared PARENT` they are those that the tests of all crates share, compiled if no test has done so; it prints where.

#[path = "../tests/emulator/build.rs"]
#[allow(dead_code, reason = "the tests of the kernels use the rest")]
mod build;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let written = match &args[..] {
        [flag, parent] if flag == "--shared" => shared(parent.as_ref()),
        [folder] => write(folder.as_ref()),
        _ => {
            eprintln!("usage: fake_libraries FOLDER, or fake_libraries --shared PARENT");
            return ExitCode::from(2);
        }
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

const NO_COMPILER: &str = "there is no g++; set CXX to a compiler of C++20";

fn write(folder: &Path) -> Result<(), String> {
    let dims = std::env::var("OARLOCK_FAKE_HEAD_DIMS").unwrap_or_else(|_| "32,64".to_owned());
    let units = build::units_with_heads(&dims.split(',').map(str::trim).collect::<Vec<_>>());
    build::write_fakes(build::compiler().ok_or(NO_COMPILER)?, &units, folder)
}

fn shared(parent: &Path) -> Result<(), String> {
    let folder = build::shared_fakes(parent, &["32", "64"])?.ok_or(NO_COMPILER)?;
    println!("{}", folder.display());
    Ok(())
}
