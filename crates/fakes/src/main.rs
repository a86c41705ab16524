//! Writes fake libraries of CUDA over the emulator into a folder, for runs without a GPU:
//! `OARLOCK_CUDA_LIBRARIES=FOLDER oarlock train FILE.yaml device=cuda`.
//!
//! Attention is compiled for heads of 32 and 64 elements, or for the sizes that OARLOCK_FAKE_HEAD_DIMS lists.

use std::process::ExitCode;

use oarlock_fakes::{compiler, units_with_heads, write_fakes};

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: oarlock-fakes FOLDER");
        return ExitCode::from(2);
    };
    let dims = std::env::var("OARLOCK_FAKE_HEAD_DIMS").unwrap_or_else(|_| "32,64".to_owned());
    let units = units_with_heads(&dims.split(',').map(str::trim).collect::<Vec<_>>());
    let compiler = compiler().ok_or_else(|| "there is no g++; set CXX to a compiler of C++20".to_owned());
    match compiler.and_then(|compiler| write_fakes(compiler, &units, folder.as_ref())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}
