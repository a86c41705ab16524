//! Prompts with the answers of other rows: what KTO estimates the distance from its reference on.

use super::cut::divide;
use super::loader::Batch;
use super::pack::Rows;

impl Rows {
    /// The prompt of a row with the answer of the row before it (of the last one for the first), and where the answer
    /// begins.
    fn mismatched(&self, row: u64) -> (Vec<i32>, usize) {
        let before = (row + self.n_rows() - 1) % self.n_rows();
        let ([prompt, _], [_, answer]) = (self.prompt_and_answer(row), self.prompt_and_answer(before));
        let (of_prompt, of_answer) = divide(prompt.len(), answer.len(), self.row_len());
        let mut ids = prompt;
        ids.truncate(of_prompt);
        ids.extend_from_slice(&answer[..of_answer]);
        (ids, of_prompt)
    }

    /// The tokens of a prompt with the answer of the row before it; 0 where answers are not judged.
    pub(super) fn mismatched_len(&self, row: u64) -> usize {
        if !self.is_judged() {
            return 0;
        }
        let before = (row + self.n_rows() - 1) % self.n_rows();
        let (prompt, answer) = (self.answer(row).start, self.answer(before).len());
        (prompt + answer).min(self.row_len())
    }
}

impl Batch {
    /// Fills the batch with the prompts of these rows and the answers of others.
    pub(super) fn fill_mismatched(&mut self, data: &Rows, rows: &[Option<u64>]) {
        self.input_ids.clear();
        self.labels.clear();
        self.segments.clear();
        let mut starts = self.doc_start.take().unwrap_or_default();
        starts.clear();
        self.n_targets = 0;
        for row in rows.iter().flatten() {
            let (ids, answer) = data.mismatched(*row);
            let first = self.input_ids.len();
            starts.resize(first + ids.len(), first as i32);
            // Each token predicts the next one; nothing predicts the first.
            let label =
                |at: usize| if at + 1 >= answer.max(1) && at + 1 < ids.len() { ids[at + 1] } else { -100 };
            self.labels.extend((0..ids.len()).map(label));
            self.n_targets += ids.len() - answer.max(1).min(ids.len());
            self.segments.push(first..first + ids.len());
            self.input_ids.extend(ids);
        }
        if self.input_ids.is_empty() {
            // A rank without a row takes part with one token and no target.
            data.write_filler_token(&mut self.input_ids, &mut self.labels);
            starts.push(0);
        }
        (self.rows, self.len) = (1, self.input_ids.len());
        self.doc_start = Some(starts);
    }
}
