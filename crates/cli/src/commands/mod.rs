//! The command line: one file for each subcommand; here they are listed, and errors become exit codes.

mod complete;
mod completions;
mod data;
mod dtypes;
mod env;
mod estimate;
mod estimate_table;
mod eval;
mod examples;
mod export;
mod gather_checkpoint;
mod generate;
mod gpu_check;
mod gpu_compile;
mod import_checkpoint;
mod init;
mod licenses;
mod link_tools;
mod man;
mod merge_weights;
mod model;
mod plan;
mod plan_table;
mod pull;
mod serve;
mod token;
mod tokenizer;
mod train;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use oarlock_config::settings::secret::masked;
use oarlock_engine::distributed::rank;

use crate::config::render::visible;
use crate::{console, front, launch};

/// Trains language models on many ranks from one binary.
#[derive(Parser)]
#[command(name = "oarlock", version, about, max_term_width = 100, after_help = front_ends())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a folder in which a recipe runs at once, with its data
    Init(init::InitArgs),
    /// Train a model: oarlock train FILE.yaml [key=value …], or pretrain for a recipe; --help lists every key, --help WORD some
    #[command(disable_help_flag = true)]
    Train {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE.yaml [key=value …]")]
        arguments: Vec<String>,
    },
    /// Fetch a model from Hugging Face or ModelScope, into the cache that transformers shares or into a folder
    Pull(pull::PullArgs),
    /// Continue a prompt with a trained model
    Generate(generate::GenerateArgs),
    /// Talk to a trained model: `clear` forgets the conversation, `exit` ends it
    Chat(generate::ChatArgs),
    /// Answer programs that speak OpenAI's API: oarlock serve MODEL
    Serve(serve::ServeArgs),
    /// Count the questions of MMLU, C-Eval or CMMLU that a model answers rightly
    Eval(eval::EvalArgs),
    /// Put the model in a checkpoint together, in Hugging Face form
    #[command(alias = "merge_weights")]
    MergeWeights(merge_weights::MergeArgs),
    /// Join the parts of a checkpoint that nodes without a shared filesystem wrote
    #[command(alias = "gather_checkpoint")]
    GatherCheckpoint(gather_checkpoint::GatherArgs),
    /// Merge adapters into their base, and write one model: oarlock export FILE.yaml [key=value …]
    Export {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE.yaml [key=value …]")]
        arguments: Vec<String>,
    },
    /// Turn a checkpoint that DeepSpeed saved into one to go on from
    #[command(alias = "import_checkpoint")]
    ImportCheckpoint(import_checkpoint::ImportArgs),
    /// Make tokenizers
    Tokenizer {
        #[command(subcommand)]
        command: tokenizer::TokenizerCommand,
    },
    /// Make the secret of a run on several machines, which keeps others out
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
    /// Look at the data of a training run
    Data {
        #[command(subcommand)]
        command: data::DataCommand,
    },
    /// Say what a training run takes of memory, by part and for every stage, without starting it
    EstimateMemory(estimate::EstimateArgs),
    /// Predict the time, the memory and the traffic of a training run for each placement, and recommend one
    Plan(plan::PlanArgs),
    /// Make links under which this program is torchrun, accelerate, deepspeed and others
    #[command(alias = "link_tools")]
    LinkTools(link_tools::LinkArgs),
    /// Print the script by which a shell completes commands, keys and their values
    Completions(completions::CompletionsArgs),
    /// Say what may stand in the place of a word
    #[command(hide = true)]
    CompleteWords(complete::CompleteArgs),
    /// Write a man page for each command
    Man(man::ManArgs),
    /// Check that the GPU of this machine gives right results, and how fast it is (experimental)
    GpuCheck(gpu_check::GpuCheckArgs),
    /// Compile the kernels for GPUs into the cache, on a machine that needs no GPU (experimental)
    GpuCompile(gpu_compile::GpuCompileArgs),
    /// Print the version, the machine and what the kernels use of it
    Env,
    /// Print the licenses of the works of others that this program contains
    Licenses,
}

/// The most characters of what is wrong with the words.
const MOST_SAID: usize = 10_000;

/// The commands of other programs, for the help.
fn front_ends() -> String {
    let lines = front::ALL.iter().map(|one| format!("  {:17}  {}\n", one.names[0], one.about));
    format!(
        "Commands of other programs (`link-tools` makes links under their names):\n{}",
        lines.collect::<String>()
    )
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let started = SystemTime::now();
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if launch::is_rank() {
        arguments = rank::without_local_rank(arguments.into_iter());
    }
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some((front_end, words)) = front_end(&words) {
        // A program must get its arguments as they are, or not be started.
        if let Some(word) = arguments.iter().skip(1).find(|word| word.to_str().is_none()) {
            console::eprint(&format!(
                "error: the argument {word:?} is not valid UTF-8; rename what it names\n"
            ));
            return ExitCode::from(2);
        }
        return console::exit((front_end.run)(words, started));
    }
    let parsed = examples::with_examples(Cli::command()).try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return unparsed(&error),
    };
    let outcome = match cli.command {
        Command::Init(args) => init::run(&args),
        Command::Train { arguments } => train::run(&arguments, started),
        Command::Pull(args) => pull::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Generate(args) => generate::generate(&args),
        Command::Chat(args) => generate::chat(&args),
        Command::Eval(args) => eval::run(&args),
        Command::MergeWeights(args) => merge_weights::run(&args),
        Command::GatherCheckpoint(args) => gather_checkpoint::run(&args),
        Command::Export { arguments } => export::run(&arguments),
        Command::ImportCheckpoint(args) => import_checkpoint::run(&args),
        Command::Tokenizer { command } => tokenizer::run(&command),
        Command::Token { command } => token::run(&command),
        Command::Data { command } => data::run(&command),
        Command::EstimateMemory(args) => estimate::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::LinkTools(args) => link_tools::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::CompleteWords(args) => complete::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, examples::with_examples(Cli::command())),
        Command::GpuCheck(args) => gpu_check::run(&args),
        Command::GpuCompile(args) => gpu_compile::run(&args),
        Command::Env => env::run(),
        Command::Licenses => licenses::run(),
    };
    console::exit(outcome)
}

/// Shows the help, or what is wrong with the words, which clap repeats as they are.
fn unparsed(error: &clap::Error) -> ExitCode {
    let said = error.render();
    if error.use_stderr() {
        console::eprint(&visible(&masked(&said.to_string()), MOST_SAID));
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let is_colored = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // The help holds nothing of others; the colors are its own.
    console::exit(console::print_styled(&if is_colored { said.ansi().to_string() } else { said.to_string() }))
}

/// The front end that this process is called as, by the name of the binary or by its first argument, and its words.
fn front_end(words: &[String]) -> Option<(&'static front::FrontEnd, &[String])> {
    let (name, words) = words.split_first()?;
    let name = Path::new(name).file_name()?.to_str()?;
    if let Some(front_end) = front::find(name) {
        return Some((front_end, words));
    }
    let (name, words) = words.split_first()?;
    Some((front::find(name)?, words))
}
