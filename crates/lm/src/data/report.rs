//! What became of the rows of a data set: how many are trained on, what was cut, what was dropped and why.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::cut::Cuts;
use super::encoded::{Encoded, Labels};
use super::error::Error;
use super::record::Record;

/// Reasons that are distinguished.
const MAX_REASONS: usize = 20;
const OTHER_REASONS: &str = "for other reasons";

/// Counts over the rows of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReport {
    /// Rows that were read.
    pub rows: u64,
    /// Rows that are trained on.
    pub examples: u64,
    /// Texts without a token among them, of which only the end is trained on.
    #[serde(default)]
    pub empty: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Supervised tokens of these.
    pub trained: u64,
    /// Rows that were longer than `cutoff_len` and were cut.
    pub cut: u64,
    /// Questions that lost their end, and with it the header of the answer.
    pub cut_questions: u64,
    /// Answers that lost their end, and with it the end token.
    pub cut_answers: u64,
    /// Turns that were left out.
    pub cut_turns: u64,
    /// Unpaired preferences (`kto_tag`).
    #[serde(default)]
    pub unpaired: u64,
    /// How many of these are wanted.
    #[serde(default)]
    pub wanted: u64,
    /// Rows that are not trained on, by reason, in the order in which the reasons were met.
    pub dropped: Vec<Dropped>,
    /// What rows hold that nothing reads, in the order in which it was met.
    #[serde(default)]
    pub unread: Vec<Unread>,
    /// As which format rows of files without an entry in `dataset_info.json` were read, and how many.
    pub guessed: Vec<(String, u64)>,
}

/// Rows that are not trained on, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Why.
    pub reason: String,
    /// How many rows.
    pub rows: u64,
    /// The first of them, as file and line.
    pub first: String,
}

/// A column, or a field of messages, that nothing reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// Which.
    pub what: String,
    /// How many rows have it.
    pub rows: u64,
    /// The first of them, as file and line.
    pub first: String,
}

impl RowReport {
    pub(super) fn add(&mut self, encoded: &Encoded, cuts: &Cuts) {
        self.rows += 1;
        self.examples += 1;
        self.empty += u64::from(encoded.ids.is_empty());
        let [of_prompt, of_answer] = cuts.left_out;
        self.tokens += encoded.ids.len() as u64 - of_prompt - of_answer;
        self.trained += n_trained(encoded) - of_answer;
        self.cut += u64::from(cuts.any());
        self.cut_questions += cuts.questions;
        self.cut_answers += cuts.answers;
        self.cut_turns += cuts.turns;
        if let [other] = encoded.segments[..]
            && (other == 0 || other as usize == encoded.ids.len())
        {
            self.unpaired += 1;
            self.wanted += u64::from(other > 0);
        }
    }

    pub(super) fn drop(&mut self, reason: Cow<'static, str>, record: &Record) {
        self.rows += 1;
        let is_known = self.dropped.iter().any(|dropped| dropped.reason == *reason);
        // A chat template may give a reason of its own for every row.
        let reason = match is_known || self.dropped.len() < MAX_REASONS {
            true => reason,
            false => OTHER_REASONS.into(),
        };
        match self.dropped.iter_mut().find(|dropped| dropped.reason == *reason) {
            Some(dropped) => dropped.rows += 1,
            None => {
                let first = format!("{}:{}", record.file.display(), record.line);
                self.dropped.push(Dropped { reason: reason.into_owned(), rows: 1, first });
            }
        }
    }

    pub(super) fn unread(&mut self, unread: Vec<String>, record: &Record) {
        for what in unread {
            let n = self.unread.len();
            match self.unread.iter_mut().find(|known| known.what == what) {
                Some(known) => known.rows += 1,
                None if n >= MAX_REASONS => {}
                None => {
                    let first = format!("{}:{}", record.file.display(), record.line);
                    self.unread.push(Unread { what, rows: 1, first });
                }
            }
        }
    }

    pub(super) fn guess(&mut self, kind: &str) {
        match self.guessed.iter_mut().find(|(name, _)| name == kind) {
            Some((_, n)) => *n += 1,
            None => self.guessed.push((kind.to_owned(), 1)),
        }
    }

    /// Whether something of the rows, or some of them, is not trained on.
    pub(super) fn is_worth_a_warning(&self) -> bool {
        !self.unread.is_empty() || self.n_dropped() > 0 || self.empty > 0
    }

    /// Rows that are not trained on.
    pub fn n_dropped(&self) -> u64 {
        self.dropped.iter().map(|dropped| dropped.rows).sum()
    }

    /// The report as lines for people; `cutoff_len` is what rows were cut to.
    pub fn lines(&self, cutoff_len: usize) -> Vec<String> {
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let mut lines = vec![format!(
            "{} rows: {} examples of {} tokens, {} of them trained ({:.1} %); {} cut, {} dropped",
            self.rows,
            self.examples,
            self.tokens,
            self.trained,
            share(self.trained, self.tokens),
            self.cut,
            self.n_dropped()
        )];
        if self.unpaired > 0 {
            let warning = match self.wanted == 0 || self.wanted == self.unpaired {
                true => "warning: Your dataset only has one preference type: ",
                false => "",
            };
            let unwanted = self.unpaired - self.wanted;
            lines.push(format!("{warning}{} answers are wanted, {unwanted} are not", self.wanted));
        }
        for (kind, n) in &self.guessed {
            lines.push(format!(
                "{n} rows were read as {kind}, which their keys say (no entry in dataset_info.json)"
            ));
        }
        if self.cut > 0 {
            let parts = [
                (self.cut_answers, "answers lost their end and teach no stopping"),
                (self.cut_questions, "questions lost their end, with the header of the answer"),
                (self.cut_turns, "turns are left out"),
            ];
            let mut reported: Vec<String> =
                parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            if reported.is_empty() {
                reported.push("these texts lost their end".to_owned());
            }
            lines.push(format!(
                "warning: {} rows are longer than cutoff_len {cutoff_len} and were cut: {}; raise cutoff_len to keep them whole",
                self.cut,
                reported.join(", ")
            ));
        }
        if self.empty > 0 {
            let all = if self.empty == self.examples { "warning: all" } else { "note:" };
            lines.push(format!(
                "{all} {} texts are empty, so nothing but their ends is trained on",
                self.empty
            ));
        }
        for Unread { what, rows, first } in &self.unread {
            lines.push(format!("note: {what} is not read ({rows} rows, the first is {first})"));
        }
        for Dropped { reason, rows, first } in &self.dropped {
            lines.push(format!("warning: {rows} rows dropped: {reason} (the first is {first})"));
        }
        lines
    }

    /// Why nothing is left to train on.
    pub(super) fn nothing_left(&self) -> Error {
        let mut text = format!("Cannot find valid samples: none of {} rows can be trained on", self.rows);
        for Dropped { reason, rows, first } in &self.dropped {
            text.push_str(&format!("; {rows} dropped: {reason} (the first is {first})"));
        }
        Error::TooLittle(text)
    }
}

/// The targets of an example.
pub(super) fn n_trained(encoded: &Encoded) -> u64 {
    match &encoded.labels {
        Labels::All => encoded.ids.len().saturating_sub(1) as u64,
        // An empty run is one target, too.
        Labels::Spans(spans) => spans.iter().map(|span| u64::from((span.end - span.start).max(1))).sum(),
    }
}
