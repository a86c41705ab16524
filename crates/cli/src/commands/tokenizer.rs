//! `oarlock tokenizer train`: learns a byte-level BPE from text.

use std::path::PathBuf;

use clap::Subcommand;
use oarlock::data::{Source, TOKENIZER_FILES, TrainSettings, learn_bpe};
use oarlock::{Outputs, Writer};

use crate::console::{OVERWRITE, Outcome, occupied, print};

#[derive(Subcommand)]
pub(super) enum TokenizerCommand {
    /// Learn a byte-level BPE with MiniMind's special tokens; writes tokenizer.json and tokenizer_config.json
    Train {
        /// A file or folder of text (jsonl, json, txt, csv, parquet), or several separated by commas
        #[arg(long)]
        dataset: String,
        /// Where dataset_info.json and its files are
        #[arg(long, default_value = "data")]
        dataset_dir: PathBuf,
        /// The folder to write to
        #[arg(long)]
        output_dir: PathBuf,
        /// The number of tokens, special tokens included
        #[arg(long, default_value_t = 6400)]
        vocab_size: usize,
        /// Read at most so many records of each data set
        #[arg(long)]
        max_samples: Option<u64>,
        /// Replace a tokenizer that no earlier training of one wrote
        #[arg(long)]
        overwrite: bool,
    },
}

pub(super) fn run(command: &TokenizerCommand) -> Outcome {
    let TokenizerCommand::Train { dataset, dataset_dir, output_dir, vocab_size, max_samples, overwrite } =
        command;
    let source = Source::resolve(dataset, dataset_dir, *max_samples)?;
    let writer = Writer { by: "tokenizer training", overwrites: *overwrite };
    let refused = |error| occupied(error, OVERWRITE);
    Outputs::of(output_dir).refuse(writer, TOKENIZER_FILES).map_err(refused)?;
    let learned = learn_bpe(&source, &TrainSettings::minimind(*vocab_size))?;
    let texts = learned.each_ref().map(|(name, text)| (*name, text.as_bytes()));
    Outputs::write(output_dir, writer, &texts).map_err(refused)?;
    let [json, config] = TOKENIZER_FILES.map(|name| output_dir.join(name));
    print(&format!("wrote {} and {}\n", json.display(), config.display()))
}
