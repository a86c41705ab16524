//! The prompts of unpaired preferences with the answers of other rows, as a batch.

use super::batch::{ANSWERS, Batch, Field};
use super::rows::Rows;

impl Batch {
    /// Fills the batch with the prompts of these rows and the answers of others.
    pub(super) fn fill_mismatched(&mut self, data: &Rows, rows: &[Option<u64>]) {
        self.input_ids.clear();
        self.labels.clear();
        let mut starts = self.doc_start.take().unwrap_or_default();
        starts.clear();
        self.n_targets = 0;
        let mut spans = Vec::with_capacity(rows.len());
        for row in rows.iter().flatten() {
            let answered = data.answered(*row, data.other(*row));
            let at = self.input_ids.len()..self.input_ids.len() + answered.len();
            self.input_ids.resize(at.end, 0);
            self.labels.resize(at.end, 0);
            let (ids, labels) = (&mut self.input_ids[at.clone()], &mut self.labels[at.clone()]);
            self.n_targets += data.write_answered(&answered, ids, labels);
            starts.resize(at.end, at.start as i32);
            spans.push(at);
        }
        if self.input_ids.is_empty() {
            // A rank without a row takes part with one token and no target.
            data.write_filler_token(&mut self.input_ids, &mut self.labels);
            starts.push(0);
        }
        (self.rows, self.len) = (1, self.input_ids.len());
        self.doc_start = Some(starts);
        self.fields.set(ANSWERS, Field::Spans(spans));
    }
}
