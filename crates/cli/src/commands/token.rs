//! `oarlock token`: makes the secret of a run on several machines, and checks one.

use std::fs::Permissions;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use oarlock_comm::wire::{Access, hex, nonce};
use oarlock_config::settings::Problem;
use rustix::fs::{FileType, Mode};

use crate::console::{Outcome, eprint, print};
use crate::error::Error;

#[derive(Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token of 256 random bits, and write it to a new file that only its owner can read, or print it
    New {
        /// The file to make; one that is there is left as it is
        file: Option<PathBuf>,
    },
    /// Say whether the token in a file is strong enough, and that nobody else can change it
    Check {
        /// The file
        file: PathBuf,
    },
}

pub(super) fn run(command: &TokenCommand) -> Outcome {
    match command {
        TokenCommand::New { file } => make(file.as_deref()),
        TokenCommand::Check { file } => check(file),
    }
}

fn make(path: Option<&Path>) -> Outcome {
    let random = nonce().map_err(|broken| Error::Usage(format!("no token can be made: {broken}")))?;
    let token = hex(&random);
    let Some(path) = path else {
        // With `> run.token` the shell has made the file, and others may read it.
        let out = std::io::stdout();
        if rustix::fs::fstat(out.as_fd())
            .is_ok_and(|is| FileType::from_raw_mode(is.st_mode) == FileType::RegularFile)
        {
            // A file system without modes changes nothing; whoever reads the token then says so.
            let _ = rustix::fs::fchmod(out.as_fd(), Mode::RUSR | Mode::WUSR);
        }
        return print(&format!("{token}\n"));
    };
    let written = oarlock_files::create_new(path).and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(format!("{token}\n").as_bytes())?;
        file.sync_all()
    });
    Ok(written.map_err(Error::io("write", path))?)
}

fn check(path: &Path) -> Outcome {
    let mut access = Access::default();
    if let Err(denied) = access.take_file("token", path) {
        return Err(Error::Library(oarlock::Error::Config(Problem::new(denied.to_string()).into())).into());
    }
    access.warnings.iter().for_each(|warning| eprint(&format!("warning: {warning}\n")));
    print("the token is strong enough\n")
}
