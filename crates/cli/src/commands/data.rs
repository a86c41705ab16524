//! `oarlock data`: looks at the data of a training run.

use clap::Subcommand;

use crate::console::Outcome;
use crate::front::data;

#[derive(Subcommand)]
pub(super) enum DataCommand {
    /// Show examples as the model sees them, and what the data are in tokens
    Show {
        /// The configuration of the run
        #[arg(value_name = "FILE.yaml")]
        file: String,
        /// How many examples to show
        #[arg(long, default_value_t = 3)]
        rows: usize,
        /// Print token ids and labels instead, one JSON object a line
        #[arg(long)]
        json: bool,
        /// Settings over those of the file
        #[arg(value_name = "key=value")]
        settings: Vec<String>,
    },
}

pub(super) fn run(command: &DataCommand) -> Outcome {
    let DataCommand::Show { file, rows, json, settings } = command;
    let words: Vec<String> = [file].into_iter().chain(settings).cloned().collect();
    data::show(&words, *rows, *json)
}
