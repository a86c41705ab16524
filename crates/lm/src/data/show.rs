//! Examples as the model sees them, for people, and statistics of their lengths.

use oarlock_engine::report::terminal::shown;

use super::encode::Encoder;
use super::encoded::{Encoded, Labels};
use super::error::Result;
use super::report::RowReport;
use super::sft::Outcome;
use super::source::Source;
use super::tokenizer::Tokenizer;

/// The text of tokens, with « » around the supervised tokens.
///
/// # Errors
/// A tokenizer that cannot be used.
pub fn bracketed(tokenizer: &Tokenizer, ids: &[u32], supervised: &[bool]) -> Result<String> {
    marked(tokenizer, ids, supervised, [("", ""), ("«", "»")])
}

/// The text of tokens for a terminal: the supervised tokens bright, the rest dim.
///
/// # Errors
/// A tokenizer that cannot be used.
pub fn colored(tokenizer: &Tokenizer, ids: &[u32], supervised: &[bool]) -> Result<String> {
    marked(tokenizer, ids, supervised, [("\u{1b}[2m", "\u{1b}[0m"), ("\u{1b}[1m", "\u{1b}[0m")])
}

fn marked(
    tokenizer: &Tokenizer,
    ids: &[u32],
    supervised: &[bool],
    marks: [(&str, &str); 2],
) -> Result<String> {
    let (mut out, mut begin) = (String::new(), 0);
    let n = ids.len().min(supervised.len());
    for end in 1..=n {
        if end < n && supervised[end] == supervised[begin] {
            continue;
        }
        let (before, behind) = marks[usize::from(supervised[begin])];
        // What control characters a text holds is shown, not obeyed.
        let text = tokenizer.decode(&ids[begin..end], false)?;
        out.push_str(before);
        out.push_str(&shown(&text));
        out.push_str(behind);
        begin = end;
    }
    Ok(out)
}

/// What a data set is in tokens.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// What became of the rows.
    pub report: RowReport,
    /// The tokens of each example, in the order of the rows.
    pub lens: Vec<usize>,
    /// The first examples.
    pub first: Vec<Encoded>,
    /// The tokens of a row, where each text has one, which is cut to it or filled up.
    pub room: Option<usize>,
}

impl Statistics {
    /// Reads all rows of a source and keeps the first `n_shown` examples.
    ///
    /// # Errors
    /// A record that cannot be read, or a tokenizer that cannot be used.
    pub fn of(source: &Source, encoder: Encoder, n_shown: usize) -> Result<Statistics> {
        Statistics::of_rows(source, encoder, n_shown, None)
    }

    /// As [`Statistics::of`], of texts that have a row of so many tokens each (`packing: false`).
    ///
    /// # Errors
    /// As there.
    pub fn of_rows(
        source: &Source,
        encoder: Encoder,
        n_shown: usize,
        room: Option<usize>,
    ) -> Result<Statistics> {
        let mut out = Statistics { room, ..Statistics::default() };
        for row in source.rows(encoder.content()) {
            let encoding = encoder.row(row?)?;
            encoding.guessed.iter().for_each(|kind| out.report.guess(kind.name()));
            out.report.unread(encoding.unread, &encoding.record);
            match encoding.outcome {
                Outcome::Dropped(reason) => out.report.drop(reason, &encoding.record),
                Outcome::Encoded(encoded, mut cuts) => {
                    let beyond = room.map_or(0, |room| encoded.ids.len().saturating_sub(room));
                    cuts.left_out[1] += beyond as u64;
                    out.report.add(&encoded, &cuts);
                    let encoded = encoded.without(cuts.left_out);
                    out.lens.push(encoded.ids.len());
                    if out.first.len() < n_shown {
                        out.first.push(encoded);
                    }
                }
            }
        }
        Ok(out)
    }

    /// The statistics as lines for people: an example has so many segments, each cut to `cutoff_len`; `batch_size` is that of a
    /// micro-batch.
    pub fn lines(&self, cutoff_len: usize, n_segments: usize, batch_size: usize) -> Vec<String> {
        let mut lines = self.report.lines(cutoff_len);
        let mut sorted = self.lens.clone();
        sorted.sort_unstable();
        let Some(&longest) = sorted.last() else { return lines };
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
        let total: usize = sorted.iter().sum();
        let most = match n_segments {
            1 => format!("cutoff_len {cutoff_len}"),
            n => format!("{n} times cutoff_len {cutoff_len}, for an answer each"),
        };
        lines.push(format!(
            "lengths: shortest {}, median {}, mean {:.1}, 95 % up to {}, longest {longest} of {most}",
            sorted[0],
            at(0.5),
            total as f64 / sorted.len() as f64,
            at(0.95),
        ));
        if let Some(room) = self.room {
            // The end token stands behind each text that leaves room for it.
            let used: usize = self.lens.iter().map(|len| (len + 1).min(room)).sum();
            let all = self.lens.len() * room;
            lines.push(format!(
                "padding: {:.1} % of the tokens are padding, as each text has a row of {room} tokens",
                100.0 * (all - used) as f64 / all.max(1) as f64
            ));
            return lines;
        }
        let padded: usize = self
            .lens
            .chunks(batch_size.max(1))
            .map(|batch| batch.len() * batch.iter().max().copied().unwrap_or(0).next_multiple_of(8))
            .sum();
        lines.push(format!(
            "padding: {:.1} % of the tokens would be padding in batches of {batch_size} (in the order of the rows); here \
             0 %, since examples run one after another",
            100.0 * (padded - total) as f64 / padded.max(1) as f64
        ));
        lines
    }
}

impl Encoded {
    /// As a row of it is trained on: without so many tokens at the end of its prompt and of its answer.
    fn without(mut self, left_out: [u64; 2]) -> Encoded {
        let [of_prompt, of_answer] = left_out.map(|tokens| tokens as usize);
        let Labels::Spans(spans) = &mut self.labels else {
            self.ids.truncate(self.ids.len() - of_answer);
            return self;
        };
        let ([answer], true) = (&mut spans[..], of_prompt + of_answer > 0) else { return self };
        let begin = answer.start as usize;
        self.ids.truncate(self.ids.len() - of_answer);
        self.ids.drain(begin - of_prompt..begin);
        let len = self.ids.len() as u32;
        // Nothing predicts the first token.
        *answer = ((begin - of_prompt).max(1) as u32)..len;
        self.segments.iter_mut().filter(|segment| **segment > 0).for_each(|segment| *segment = len);
        self
    }

    /// The loss mask: which tokens are supervised.
    pub fn loss_mask(&self) -> Vec<bool> {
        match &self.labels {
            Labels::All => (0..self.ids.len()).map(|at| at > 0).collect(),
            Labels::Spans(spans) => {
                let mut supervised = vec![false; self.ids.len()];
                spans.iter().for_each(|span| supervised[span.start as usize..span.end as usize].fill(true));
                supervised
            }
        }
    }

    /// The target at each token, as transformers names it: the token itself, `end` where the end-of-text token is
    /// supervised instead, -100 where nothing is.
    pub fn labels(&self, end: Option<u32>) -> Vec<i64> {
        let supervised = self.loss_mask();
        let mut labels: Vec<i64> = self
            .ids
            .iter()
            .zip(supervised)
            .map(|(&id, supervised)| if supervised { i64::from(id) } else { -100 })
            .collect();
        if let (Labels::Spans(spans), Some(end)) = (&self.labels, end) {
            spans
                .iter()
                .filter(|span| span.is_empty())
                .for_each(|span| labels[span.start as usize] = i64::from(end));
        }
        labels
    }
}
