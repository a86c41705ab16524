//! `oarlock completions`: the script by which a shell completes the words of this program. What may stand somewhere the script
//! asks the program itself (`complete-words`), so it fits every version.

use clap::{Args, ValueEnum};

use crate::console::{Outcome, print};

#[derive(Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The shells that there are scripts for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
    Elvish,
}

impl Shell {
    fn script(self) -> &'static str {
        match self {
            Shell::Bash => include_str!("completions/oarlock.bash"),
            Shell::Zsh => include_str!("completions/oarlock.zsh"),
            Shell::Fish => include_str!("completions/oarlock.fish"),
            Shell::Powershell => include_str!("completions/oarlock.ps1"),
            Shell::Elvish => include_str!("completions/oarlock.elv"),
        }
    }
}

pub(super) fn run(args: &CompletionsArgs) -> Outcome {
    print(args.shell.script())
}
