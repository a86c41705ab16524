//! The command line: one file for each subcommand; here they are listed, and errors become exit codes.

mod env;
mod estimate;
mod generate;
mod import_checkpoint;
mod merge_weights;
mod tokenizer;
mod train;

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Parser, Subcommand};

use crate::error::Error;

/// What can go wrong at the command line: an error, or a list of problems with the configuration.
enum Failure {
    Error(Error),
    Problems(crate::config::Problems),
    /// Already told; this is the exit code.
    Told(u8),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Error(error.into())
    }
}

type Outcome = Result<(), Failure>;

/// Trains language models on many ranks from one binary.
#[derive(Parser)]
#[command(name = "oarlock", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model: oarlock train FILE.yaml [key=value …]; --help lists every key
    #[command(disable_help_flag = true)]
    Train {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE.yaml [key=value …]")]
        arguments: Vec<String>,
    },
    /// Continue a prompt with a trained model
    Generate(generate::GenerateArgs),
    /// Talk to a trained model: `clear` forgets the conversation, `exit` ends it
    Chat(generate::ChatArgs),
    /// Put the model in a checkpoint together, in Hugging Face form
    #[command(alias = "merge_weights")]
    MergeWeights(merge_weights::MergeArgs),
    /// Turn a checkpoint that DeepSpeed saved into one to go on from
    #[command(alias = "import_checkpoint")]
    ImportCheckpoint(import_checkpoint::ImportArgs),
    /// Make tokenizers
    Tokenizer {
        #[command(subcommand)]
        command: tokenizer::TokenizerCommand,
    },
    /// Say what a training takes of memory, by part and for every stage, without starting it
    EstimateMemory(estimate::EstimateArgs),
    /// Print the version, the machine and what the kernels use of it
    Env,
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let started = SystemTime::now();
    let arguments = crate::rank::without_local_rank(std::env::args_os());
    let outcome = match Cli::parse_from(arguments).command {
        Command::Train { arguments } => train::run(&arguments, started),
        Command::Generate(args) => generate::generate(&args),
        Command::Chat(args) => generate::chat(&args),
        Command::MergeWeights(args) => merge_weights::run(&args),
        Command::ImportCheckpoint(args) => import_checkpoint::run(&args),
        Command::Tokenizer { command } => tokenizer::run(&command),
        Command::EstimateMemory(args) => estimate::run(&args),
        Command::Env => env::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told(code)) => ExitCode::from(code),
        Err(Failure::Problems(problems)) => {
            let (colour, width) = terminal();
            tell(&problems.render(colour, width));
            ExitCode::from(2)
        }
        Err(Failure::Error(error)) => {
            tell(&format!("error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output; a reader that goes away, as `head` does, ends the command quietly.
fn say(text: &str) -> Outcome {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::Told(0)),
        result => Ok(result.map_err(Error::io("write to", "standard output"))?),
    }
}

/// Tells standard error. Where that fails there is nobody to tell; the exit code still says it.
fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Whether standard error is a terminal that shows colours, and its width.
fn terminal() -> (bool, usize) {
    use std::io::IsTerminal;
    let stderr = std::io::stderr();
    let width = terminal_size::terminal_size_of(&stderr).map_or(100, |(width, _)| usize::from(width.0));
    (stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none(), width)
}
