//! Rows of tokens, packed and truncated, against a plain reference.

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::mix::{Mix, MixEnd};
use super::super::selection::{Chosen, Split};
use super::super::source::Source;
use super::super::tokenizer::Tokenizer;
use super::super::tokenizer::tests::small;
use super::*;

const PACKINGS: [Packing; 4] =
    [Packing::Concat, Packing::ConcatDocuments, Packing::Truncate, Packing::MiniMind];

/// Records of many lengths, an empty one and one with the fill token in it among them.
fn texts() -> Vec<String> {
    let words = ["the", "end", "of", "day", "日本", "<|endoftext|>"];
    (0..23)
        .map(|i| (0..i * 5 % 17).map(|j| words[(i + j * j) % words.len()]).collect::<Vec<_>>().join(" "))
        .collect()
}

struct Fixture {
    _dir: TempDir,
    tokenizer: Tokenizer,
    cache: Arc<TokenCache>,
    /// The ids of each text.
    ids: Vec<Vec<i32>>,
}

fn fixture() -> Fixture {
    let (dir, tokenizer) = small();
    let lines: Vec<String> = texts().iter().map(|t| serde_json::json!({"text": t}).to_string()).collect();
    std::fs::write(dir.path().join("data.jsonl"), lines.join("\n")).unwrap();
    let source = Source::resolve("data.jsonl", dir.path(), None).unwrap();
    let built = TokenCache::build(dir.path(), &source, &tokenizer, &mut |_| {}).unwrap();
    let cache = Arc::new(TokenCache::open(&built.path).unwrap());
    let encode = |t: String| tokenizer.encode(&t).unwrap().into_iter().map(|id| id as i32).collect();
    let ids = texts().into_iter().map(encode).collect();
    Fixture { _dir: dir, ids, tokenizer, cache }
}

impl Fixture {
    fn settings(&self, packing: Packing, len: usize) -> RowSettings {
        RowSettings { packing, len, special: self.tokenizer.special() }
    }
}

struct Row {
    ids: Vec<i32>,
    labels: Vec<i32>,
    doc_start: Vec<i32>,
    n: usize,
}

fn row(rows: &Rows, i: u64) -> Row {
    let blank = vec![i32::MIN; rows.row_len()];
    let mut out = Row { ids: blank.clone(), labels: blank.clone(), doc_start: blank, n: 0 };
    let starts = rows.has_documents().then_some(&mut out.doc_start[..]);
    out.n = rows.write(i, &mut out.ids, &mut out.labels, starts);
    out
}

/// The definition: everything joined, then chopped.
fn chopped<'a>(records: impl Iterator<Item = &'a Vec<i32>>, len: usize) -> Vec<Vec<i32>> {
    let stream: Vec<i32> = records.flat_map(|ids| ids.iter().copied().chain([2])).collect();
    stream.chunks_exact(len).map(<[i32]>::to_vec).collect()
}

#[test]
fn concat_is_the_joined_stream_in_blocks() {
    let f = fixture();
    for len in [2, 3, 5, 8, 64, 200] {
        let rows = Rows::new(f.cache.clone(), &f.settings(Packing::Concat, len)).unwrap();
        let expected = chopped(f.ids.iter(), len);
        assert_eq!(rows.n_rows(), expected.len() as u64);
        for (i, expected) in expected.iter().enumerate() {
            let row = row(&rows, i as u64);
            assert_eq!(&row.ids, expected);
            assert_eq!(row.labels[..len - 1], expected[1..]);
            assert_eq!(row.labels[len - 1], IGNORED);
            assert_eq!(row.n, len - 1);
        }
    }
}

#[test]
fn documents_keep_to_themselves() {
    let f = fixture();
    for len in [2, 7, 50, 120] {
        let plain = Rows::new(f.cache.clone(), &f.settings(Packing::Concat, len)).unwrap();
        let rows = Rows::new(f.cache.clone(), &f.settings(Packing::ConcatDocuments, len)).unwrap();
        // The document of every token of the stream.
        let document: Vec<usize> =
            f.ids.iter().enumerate().flat_map(|(d, ids)| vec![d; ids.len() + 1]).collect();
        assert_eq!(rows.n_rows(), plain.n_rows());
        for i in 0..rows.n_rows() {
            let row = row(&rows, i);
            assert_eq!(row.ids, self::row(&plain, i).ids);
            let document = &document[i as usize * len..][..len];
            for at in 0..len {
                let start = document.iter().position(|d| *d == document[at]).unwrap();
                assert_eq!(row.doc_start[at], start as i32);
                let inside = at + 1 < len && document[at + 1] == document[at];
                assert_eq!(row.labels[at], if inside { row.ids[at + 1] } else { IGNORED });
            }
        }
    }
}

#[test]
fn truncated_rows_hold_one_record() {
    let f = fixture();
    for len in [2, 6, 40] {
        let rows = Rows::new(f.cache.clone(), &f.settings(Packing::Truncate, len)).unwrap();
        assert_eq!(rows.n_rows(), 23);
        for (i, ids) in f.ids.iter().enumerate() {
            let row = row(&rows, i as u64);
            let mut expected: Vec<i32> = ids.iter().copied().chain([2]).take(len).collect();
            let n = expected.len();
            expected.resize(len, 0);
            assert_eq!(row.ids, expected);
            assert_eq!(row.labels[..n - 1], expected[1..n]);
            assert!(row.labels[n - 1..].iter().all(|&l| l == IGNORED));
        }
    }
}

#[test]
fn minimind_rows_are_shifted_by_one_and_mask_the_fill_token() {
    let f = fixture();
    for len in [2, 6, 40] {
        let rows = Rows::new(f.cache.clone(), &f.settings(Packing::MiniMind, len)).unwrap();
        assert_eq!((rows.n_rows(), rows.row_len()), (23, len - 1));
        for (i, ids) in f.ids.iter().enumerate() {
            let mut whole: Vec<i32> =
                [1].into_iter().chain(ids.iter().copied()).chain([2]).take(len).collect();
            whole.resize(len, 0);
            let row = row(&rows, i as u64);
            assert_eq!(row.ids, whole[..len - 1]);
            let targets: Vec<i32> = whole[1..].iter().map(|&id| if id == 0 { IGNORED } else { id }).collect();
            assert_eq!(row.labels, targets);
        }
    }
}

#[test]
fn the_number_of_targets_is_known_without_the_row() {
    let f = fixture();
    for packing in PACKINGS {
        for len in [2, 3, 9, 33, 100] {
            let rows = Rows::new(f.cache.clone(), &f.settings(packing, len)).unwrap();
            for i in 0..rows.n_rows() {
                let row = row(&rows, i);
                assert_eq!(row.n, row.labels.iter().filter(|&&l| l != IGNORED).count());
                assert_eq!(rows.n_targets(i), row.n, "{packing:?} {len} {i}");
            }
        }
    }
}

#[test]
fn held_out_records_are_split_off_whole_and_as_datasets_chooses_them() {
    let f = fixture();
    for (size, n) in [(ValSize::Count(1), 1), (ValSize::Count(22), 22), (ValSize::Fraction(0.2), 5)] {
        let settings = f.settings(Packing::Truncate, 200);
        let (train, held_out) =
            Rows::split(f.cache.clone(), &settings, &Split::holding_out(size, 7)).unwrap();
        let held_out = held_out.unwrap();
        assert_eq!((train.n_rows(), held_out.n_rows()), (23 - n, n));
        // numpy.random.default_rng(7).permutation(23), by which datasets' train_test_split(seed=7) divides 23 rows.
        let order = [15, 4, 18, 3, 14, 12, 10, 0, 19, 17, 8, 7, 1, 21, 13, 6, 16, 5, 22, 20, 2, 9, 11];
        let chosen = &order[..n as usize];
        assert_eq!(held_out.selection.marked, chosen);
        let files: Vec<u64> = (0..23).filter(|record| !chosen.contains(record)).collect();
        for (len, keeps_order) in [(2, false), (5, false), (5, true)] {
            let settings = f.settings(Packing::Concat, len);
            let split = Split { keeps_order, ..Split::holding_out(size, 7) };
            let (train, held_out) = Rows::split(f.cache.clone(), &settings, &split).unwrap();
            let rest = if keeps_order { &order[n as usize..] } else { &files[..] };
            for (rows, records) in [(train, rest), (held_out.unwrap(), chosen)] {
                let expected = chopped(records.iter().map(|&record| &f.ids[record as usize]), len);
                let got: Vec<Vec<i32>> = (0..rows.n_rows()).map(|i| row(&rows, i).ids).collect();
                assert_eq!(got, expected);
            }
        }
    }
    let settings = f.settings(Packing::Truncate, 20);
    let marked = |seed| {
        let (_, held_out) =
            Rows::split(f.cache.clone(), &settings, &Split::holding_out(ValSize::Count(5), seed)).unwrap();
        held_out.unwrap().selection.marked
    };
    assert_eq!(marked(1), marked(1));
    assert_ne!(marked(1), marked(2));
    assert!(
        Rows::split(f.cache.clone(), &settings, &Split::holding_out(ValSize::Fraction(0.0), 1))
            .unwrap()
            .1
            .is_none()
    );
}

#[test]
fn what_cannot_be_is_explained() {
    let f = fixture();
    let error = |settings: &RowSettings| Rows::new(f.cache.clone(), settings).unwrap_err().to_string();
    let too_long = error(&f.settings(Packing::Concat, 100_000));
    assert!(too_long.starts_with("23 records with") && too_long.contains("lower cutoff_len"), "{too_long}");
    assert!(error(&f.settings(Packing::Concat, 1)).contains("give at least 2"));
    let mut no_bos = f.settings(Packing::MiniMind, 8);
    no_bos.special.bos = None;
    assert!(error(&no_bos).contains("no bos_token"));
    let settings = f.settings(Packing::Concat, 8);
    let all = Rows::split(f.cache.clone(), &settings, &Split::holding_out(ValSize::Count(23), 0))
        .unwrap_err()
        .to_string();
    assert!(all.contains("23 of 23 records held out leave none"), "{all}");
}

#[test]
fn interleaved_records_are_never_held_out_ones() {
    let (dir, tokenizer) = small();
    for (name, n) in [("a.jsonl", 9), ("b.jsonl", 4)] {
        let line = |i: i32| serde_json::json!({"text": "the ".repeat(i as usize + 1) + name}).to_string();
        std::fs::write(dir.path().join(name), (0..n).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    }
    let source = Source::resolve("a.jsonl,b.jsonl", dir.path(), None).unwrap();
    let built = TokenCache::build(dir.path(), &source, &tokenizer, &mut |_| {}).unwrap();
    let cache = Arc::new(TokenCache::open(&built.path).unwrap());
    assert_eq!(cache.parts().unwrap(), [9, 4]);
    let settings = RowSettings { packing: Packing::Truncate, len: 40, special: tokenizer.special() };
    let records =
        |rows: &Rows| -> Vec<Vec<u32>> { (0..rows.n_records()).map(|i| rows.record(i).0).collect() };
    for (end, n_rows) in [(MixEnd::Once, 10), (MixEnd::AllExhausted, 12)] {
        let mix = Mix::Interleave { end, probabilities: None };
        let split = Split { mix, ..Split::holding_out(ValSize::Count(3), 11) };
        let (train, held_out) = Rows::split(cache.clone(), &settings, &split).unwrap();
        let (train, held_out) = (records(&train), records(&held_out.unwrap()));
        assert!(train.iter().all(|record| !held_out.contains(record)));
        let mut all = [&train[..], &held_out].concat();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), held_out.len()), (13, 3), "{end:?}");
        // Of the longer data set at least 6 are left, and each takes as many turns.
        assert!(train.len() >= n_rows, "{end:?}: {}", train.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_held_out_records_leave_the_rest_in_order(marks in proptest::collection::vec(any::<bool>(), 23), len in 2usize..30) {
        thread_local!(static FIXTURE: Fixture = fixture());
        FIXTURE.with(|f| {
            let marked: Vec<u64> = (0..23).filter(|&i| marks[i as usize]).collect();
            for (chosen, kept) in [(Chosen::AllBut, false), (Chosen::Only, true)] {
                let selection = Selection::new(f.cache.clone(), chosen, marked.clone());
                let records = f.ids.iter().zip(&marks).filter(|(_, m)| **m == kept);
                let expected = chopped(records.map(|(ids, _)| ids), len);
                match Rows::of(selection, &f.settings(Packing::Concat, len)) {
                    Ok(rows) => {
                        let got: Vec<Vec<i32>> = (0..rows.n_rows()).map(|i| row(&rows, i).ids).collect();
                        prop_assert_eq!(got, expected);
                    }
                    Err(_) => prop_assert!(expected.is_empty()),
                }
            }
            Ok(())
        })?;
    }
}

#[test]
fn the_mean_sequence_is_the_one_of_an_average_token() {
    let fixture = fixture();
    for packing in PACKINGS {
        let rows = Rows::new(fixture.cache.clone(), &fixture.settings(packing, 7)).unwrap();
        // How many tokens of its row begin their document where this one does.
        let (mut sum, mut n) = (0, 0);
        for row in (0..rows.n_rows()).map(|i| row(&rows, i)).filter(|_| rows.has_documents()) {
            for start in &row.doc_start {
                sum += row.doc_start.iter().filter(|other| *other == start).count();
                n += 1;
            }
        }
        let expected = if n == 0 { rows.row_len() } else { sum.div_ceil(n) };
        assert_eq!(rows.mean_sequence_len(), expected, "{packing:?}");
    }
}
