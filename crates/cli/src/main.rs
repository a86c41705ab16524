//! The `oarlock` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    oarlock_cli::commands::main()
}
