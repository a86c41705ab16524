//! The examples of a training run as the model sees them, and what its data are in tokens.

use std::io::IsTerminal;

use oarlock::config::Packing;
use oarlock::data::{Chat, Encoder, Source, Statistics, Tokenizer, bracketed, colored};

use super::variable::env_var;
use crate::config::environment::said_by;
use crate::config::written::{Authority, Entry, Layer};
use crate::config::{Problems, Words, paths, train_config_of, written};
use crate::console::{Outcome, print, print_styled};

/// Prints the first `rows` examples of the run that `words` describe, and statistics of all; with `json` the token ids
/// and labels of these examples alone, one a line.
pub(crate) fn show(words: &[String], rows: usize, json: bool) -> Outcome {
    let mut layers = written::arguments(&Words::new(words))?.layers().map_err(Problems::from)?;
    // Nothing is written.
    let nowhere = Entry::of("output_dir", said_by("data show", "."));
    layers.insert(0, Layer { authority: Authority::Replaces, entries: vec![nowhere] });
    let config = train_config_of(layers, &env_var)?.complete()?;
    paths::check(&config)?;
    let (data, cutoff_len) = (&config.data, config.data.cutoff_len);
    let tokenizer = Tokenizer::open_with(&config.model.tokenizer, &config.model.new_tokens)?;
    let chat = match &data.chat {
        Some(args) => Some(Chat::new(&tokenizer, &config.model.tokenizer, args, cutoff_len)?),
        None => None,
    };
    let encoder =
        chat.as_ref().map_or_else(|| Encoder::from(&tokenizer), |chat| Encoder::sft(&tokenizer, chat));
    let max_samples = data.max_samples.map(|n| n as u64);
    let names = data.datasets.join(",");
    let source = Source::with_remote(&names, &data.dataset_dir, max_samples, &data.remote)?;
    let room = (data.packing == Packing::Truncate && chat.is_none()).then_some(cutoff_len);
    let statistics = Statistics::of_rows(&source, encoder, rows, room)?;
    if json {
        let end = match &chat {
            Some(chat) => chat.end_token(&tokenizer)?,
            None => tokenizer.special().eos,
        };
        let line = |example: &oarlock::data::Encoded| {
            format!("{}\n", serde_json::json!({"input_ids": example.ids, "labels": example.labels(end)}))
        };
        return print(&statistics.first.iter().map(line).collect::<String>());
    }
    let is_terminal = std::io::stdout().is_terminal();
    if let Some(chat) = &chat {
        print(&format!("conversations are written by {}\n", chat.describe()))?;
    }
    let mut out = String::new();
    for (i, example) in statistics.first.iter().enumerate() {
        let (ids, supervised) = (&example.ids, example.loss_mask());
        let text = match is_terminal {
            true => colored(&tokenizer, ids, &supervised)?,
            false => bracketed(&tokenizer, ids, &supervised)?,
        };
        let n_supervised = supervised.iter().filter(|supervised| **supervised).count();
        out.push_str(&format!(
            "--- example {}: {} tokens, {n_supervised} supervised\n{text}\n",
            i + 1,
            ids.len()
        ));
    }
    // The examples are shown by the library; the colors are its own.
    print_styled(&out)?;
    let mut told = String::from("---\n");
    source.unread().for_each(|line| told.push_str(&format!("{line}\n")));
    for line in statistics.lines(cutoff_len, data.n_segments(), config.train.batch_size) {
        told.push_str(&format!("{line}\n"));
    }
    print(&told)
}
