//! The `oarlock` command.

use std::process::ExitCode;

/// It counts what templates of others take.
#[global_allocator]
static ALLOCATOR: oarlock::MeteredAllocator = oarlock::MeteredAllocator;

fn main() -> ExitCode {
    oarlock_cli::commands::main()
}
