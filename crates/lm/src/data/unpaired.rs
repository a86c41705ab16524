//! Rows of unpaired preferences: a prompt with its answer, and with the answer of another row, on which KTO estimates the
//! distance from its reference. A cache keeps both whole, as what is cut of a prompt depends on the answer that follows
//! it.

use std::ops::Range;

use super::cut::divide;
use super::rows::Rows;

/// So many rows take the answers of each other in a circle: LLaMA-Factory's `preprocessing_batch_size`.
const CIRCLE: u64 = 1000;

/// A prompt and an answer: which tokens of the cache are kept of them.
pub(super) struct Answered {
    prompt: Range<u64>,
    answer: Range<u64>,
}

impl Answered {
    pub(super) fn len(&self) -> usize {
        self.answer_at() + (self.answer.end - self.answer.start) as usize
    }

    pub(super) fn answer_at(&self) -> usize {
        (self.prompt.end - self.prompt.start) as usize
    }

    /// Which tokens are targets. Nothing predicts the first.
    pub(super) fn targets(&self) -> Range<usize> {
        self.answer_at().clamp(1, self.len().max(1))..self.len().max(1)
    }
}

impl Rows {
    /// The row whose answer stands behind the prompt of this one: the one before it.
    pub(super) fn other(&self, row: u64) -> u64 {
        let first = row - row % CIRCLE;
        match row == first {
            true => (first + CIRCLE).min(self.n_rows()) - 1,
            false => row - 1,
        }
    }

    /// The prompt of a row with the answer of another, or its own, in the room of a row.
    pub(super) fn answered(&self, row: u64, other: u64) -> Answered {
        let parts = |row: u64| {
            let (record, begin, len) = self.selection.record(row);
            let targets = self.selection.cache.targets(record).and_then(|mut runs| runs.next());
            let answer = begin + targets.map_or(len, |run| run.start) as u64;
            (begin..answer, answer..begin + len as u64)
        };
        let ((prompt, _), (_, answer)) = (parts(row), parts(other));
        let n = |run: &Range<u64>| (run.end - run.start) as usize;
        let (of_prompt, of_answer) = divide(n(&prompt), n(&answer), self.row_len());
        Answered {
            prompt: prompt.start..prompt.start + of_prompt as u64,
            answer: answer.start..answer.start + of_answer as u64,
        }
    }

    pub(super) fn write_answered(&self, answered: &Answered, ids: &mut [i32], labels: &mut [i32]) -> usize {
        let (prompt, answer) = ids.split_at_mut(answered.answer_at());
        self.selection.cache.copy(answered.prompt.start, prompt);
        self.selection.cache.copy(answered.answer.start, answer);
        labels.fill(-100);
        let targets = answered.targets();
        // Each token predicts the next one.
        labels[targets.start - 1..targets.end - 1].copy_from_slice(&ids[targets.clone()]);
        targets.len()
    }

    /// [`Rows::write`] of an unpaired preference.
    pub(super) fn write_unpaired(&self, row: u64, ids: &mut [i32], labels: &mut [i32]) -> usize {
        self.write_answered(&self.answered(row, row), ids, labels)
    }

    /// The targets of an unpaired preference.
    pub(super) fn unpaired_targets(&self, row: u64) -> Range<usize> {
        self.answered(row, row).targets()
    }

    /// The two segments of an unpaired preference, of which the one that it is not is empty.
    pub(super) fn unpaired_segments(&self, row: u64) -> Vec<Range<usize>> {
        let (record, ..) = self.selection.record(row);
        let (is_unwanted, len) =
            (self.selection.cache.segments(record) == [0], self.answered(row, row).len());
        let border = if is_unwanted { 0 } else { len };
        vec![0..border, border..len]
    }

    /// The tokens of a prompt with the answer of another row; 0 where rows are not unpaired preferences.
    pub(super) fn mismatched_len(&self, row: u64) -> usize {
        if self.is_unpaired() { self.answered(row, self.other(row)).len() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::batch::{ANSWERS, Batch};
    use super::super::cache::TokenCache;
    use super::super::encode::Encoder;
    use super::super::pack::{Packing, RowSettings};
    use super::super::sft::Chat;
    use super::super::show::Statistics;
    use super::super::source::Source;
    use super::super::tokenizer::tests::small;
    use super::*;
    use oarlock_config::config::{ChatArgs, ExampleKind};

    /// Rows of prompts and answers of so many words, and what the tokenizer makes of each prompt and answer.
    fn rows(sizes: &[(usize, usize)], cutoff_len: usize) -> (Rows, Vec<[Vec<i32>; 2]>) {
        let (rows, whole, _) = with_statistics(sizes, cutoff_len);
        (rows, whole)
    }

    /// The same, and what people are shown of them.
    fn with_statistics(
        sizes: &[(usize, usize)],
        cutoff_len: usize,
    ) -> (Rows, Vec<[Vec<i32>; 2]>, Statistics) {
        let (dir, tokenizer) = small();
        let words = |word: &str, n: usize| vec![word; n].join(" ");
        let texts: Vec<[String; 2]> =
            sizes.iter().map(|&(p, a)| [words("lazy", p), words("fox", a)]).collect();
        let lines: Vec<_> = (0..)
            .zip(&texts)
            .map(|(i, [q, a])| serde_json::json!({"q": q, "a": a, "ok": i % 2 == 0}).to_string())
            .collect();
        std::fs::write(dir.path().join("rows.jsonl"), lines.join("\n")).unwrap();
        let info = r#"{"rows": {"file_name": "rows.jsonl",
            "columns": {"prompt": "q", "response": "a", "kto_tag": "ok"}}}"#;
        std::fs::write(dir.path().join("dataset_info.json"), info).unwrap();
        let args = ChatArgs {
            template: Some("empty".into()),
            examples: ExampleKind::UnpairedPreferences,
            ..ChatArgs::default()
        };
        let chat = Chat::new(&tokenizer, dir.path(), &args, cutoff_len).unwrap();
        let source = Source::resolve("rows", dir.path(), None).unwrap();
        let encoder = Encoder::sft(&tokenizer, &chat);
        let build = TokenCache::build(dir.path(), &source, encoder, &mut |_| {}).unwrap();
        let cache = Arc::new(TokenCache::open(&build.path).unwrap());
        let settings =
            RowSettings { packing: Packing::Examples, len: cutoff_len, special: tokenizer.special() };
        let ids = |text: &String| tokenizer.encode(text).unwrap().into_iter().map(|id| id as i32).collect();
        let whole = texts.iter().map(|texts| texts.each_ref().map(ids)).collect();
        let statistics = Statistics::of(&source, encoder, sizes.len()).unwrap();
        (Rows::new(cache, &settings).unwrap(), whole, statistics)
    }

    /// What LLaMA-Factory's FeedbackDatasetProcessor makes of a prompt and an answer.
    fn cut(prompt: &[i32], answer: &[i32], room: usize) -> (Vec<i32>, Vec<i32>) {
        let (s, t) = divide(prompt.len(), answer.len(), room);
        let ids = [&prompt[..s], &answer[..t]].concat();
        let mut labels = vec![-100; ids.len()];
        let answer = &ids[s.max(1).min(ids.len())..];
        let at = ids.len() - answer.len();
        if !answer.is_empty() {
            labels[at - 1..at - 1 + answer.len()].copy_from_slice(answer);
        }
        (ids, labels)
    }

    #[test]
    fn a_prompt_is_cut_anew_with_the_answer_of_another_row() {
        let sizes = [(9, 40), (30, 2), (3, 5), (50, 50), (1, 1)];
        for room in [8, 20, 31, 1000] {
            let (rows, whole) = rows(&sizes, room);
            let all: Vec<Option<u64>> = (0..5).map(Some).collect();
            let mut batch = Batch::default();
            batch.fill_mismatched(&rows, &all);
            for row in 0..5 {
                let (prompt, answer) = (&whole[row][0], &whole[row][1]);
                let other = &whole[(row + 4) % 5][1];
                let (ids, labels) = cut(prompt, other, room);
                let at = batch.fields.spans(ANSWERS)[row].clone();
                assert_eq!(
                    (&batch.input_ids[at.clone()], &batch.labels[at.clone()]),
                    (&ids[..], &labels[..])
                );
                assert_eq!(at.len(), rows.mismatched_len(row as u64));
                let (ids, labels) = cut(prompt, answer, room);
                let n = rows.tokens_in(row as u64);
                let (mut own, mut own_labels, mut starts) = (vec![0; n], vec![0; n], vec![9; n]);
                let n_targets = rows.write(row as u64, &mut own, &mut own_labels, Some(&mut starts));
                assert_eq!((&own, &own_labels, starts), (&ids, &labels, vec![0; n]), "{room} {row}");
                assert_eq!(
                    (n_targets, rows.n_targets(row as u64)),
                    (rows.unpaired_targets(row as u64).len(), n_targets)
                );
                let segments = if row % 2 == 0 { [0..n, n..n] } else { [0..0, 0..n] };
                assert_eq!(rows.segments(row as u64), segments);
            }
            let report = rows.selection.cache.report().unwrap().unwrap();
            let tokens: usize = (0..5).map(|row| rows.tokens_in(row)).sum();
            assert_eq!((report.tokens, report.unpaired, report.wanted), (tokens as u64, 5, 3));
        }
    }

    /// What people are shown of the rows is what a run makes of them.
    #[test]
    fn the_rows_that_are_shown_are_cut_as_they_are_trained_on() {
        let sizes = [(9, 40), (30, 2), (3, 5), (50, 50), (1, 1)];
        for room in [8, 20, 31, 1000] {
            let (rows, _, statistics) = with_statistics(&sizes, room);
            let lens: Vec<usize> = (0..5).map(|row| rows.tokens_in(row)).collect();
            assert_eq!(statistics.lens, lens, "{room}");
            assert_eq!(statistics.report.tokens, lens.iter().sum::<usize>() as u64);
            for (row, shown) in statistics.first.iter().enumerate() {
                let (ids, supervised) = rows.shown(row as u64);
                assert_eq!((&shown.ids, shown.loss_mask()), (&ids, supervised), "{room} {row}");
                let n = ids.len() as u32;
                assert_eq!(shown.segments, [if row % 2 == 0 { n } else { 0 }]);
            }
        }
    }

    /// The same of texts that have a row each.
    #[test]
    fn texts_that_are_shown_are_cut_as_they_are_trained_on() {
        let (dir, tokenizer) = small();
        std::fs::write(dir.path().join("rows.txt"), "the quick brown fox jumps\nfox\n").unwrap();
        let source = Source::resolve("rows.txt", dir.path(), None).unwrap();
        let encoder = Encoder::from(&tokenizer);
        let build = TokenCache::build(dir.path(), &source, encoder, &mut |_| {}).unwrap();
        let cache = Arc::new(TokenCache::open(&build.path).unwrap());
        let settings = RowSettings { packing: Packing::Truncate, len: 4, special: tokenizer.special() };
        let rows = Rows::new(cache, &settings).unwrap();
        let whole = tokenizer.encode("fox").unwrap();
        assert!(whole.len() < 4);
        let shown = Statistics::of_rows(&source, encoder, 2, Some(4)).unwrap();
        assert_eq!((shown.first[0].ids.clone(), shown.first[0].loss_mask()), rows.shown(0));
        assert_eq!((&shown.first[1].ids, &shown.lens), (&whole, &vec![4, whole.len()]));
        assert_eq!((shown.report.cut, shown.report.tokens), (1, 4 + whole.len() as u64));
        let lines = shown.lines(4, 1, 2);
        assert!(lines.iter().any(|line| line.contains("these texts lost their end")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("as each text has a row of 4 tokens")), "{lines:?}");
    }

    #[test]
    fn answers_go_round_in_circles_of_a_thousand_rows() {
        let (rows, _) = rows(&vec![(1, 1); 1003], 20);
        assert_eq!([0, 1, 999, 1000, 1002].map(|row| rows.other(row)), [999, 0, 998, 1002, 1001]);
    }
}
