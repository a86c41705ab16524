//! Assembles the two files of the corpus from the plots of both languages.

use super::rng::Rng;
use super::template::{Book, Error, Language};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

const SEED: u64 = 20;
/// Bytes of text per language: English, Chinese.
const PRETRAIN_BYTES: [usize; 2] = [430_000, 185_000];
const HELDOUT_BYTES: [usize; 2] = [25_000, 11_000];
/// The length of a record in words, or in characters where words are not separated.
const ENGLISH_LENGTH: RangeInclusive<usize> = 60..=200;
const CHINESE_LENGTH: RangeInclusive<usize> = 90..=300;

/// The records of both files, in file order.
pub struct Corpus {
    pub pretrain: Vec<String>,
    pub heldout: Vec<String>,
}

/// Tells stories until both files are full. No two records are equal, and no held-out record shares its
/// plot and cast with a training record.
pub fn generate() -> Result<Corpus, Error> {
    let books = [
        Book::parse(Language::English, include_str!("english.txt"))?,
        Book::parse(Language::Chinese, include_str!("chinese.txt"))?,
    ];
    let mut rng = Rng::new(SEED);
    let mut texts = BTreeSet::new();
    let mut casts = BTreeSet::new();
    let mut corpus = Corpus { pretrain: Vec::new(), heldout: Vec::new() };
    for (book, bytes) in books.iter().zip(PRETRAIN_BYTES) {
        let told = fill(book, bytes, &mut rng, &mut texts, &BTreeSet::new())?;
        for (cast, text) in told {
            casts.insert(cast);
            corpus.pretrain.push(text);
        }
    }
    for (book, bytes) in books.iter().zip(HELDOUT_BYTES) {
        let told = fill(book, bytes, &mut rng, &mut texts, &casts)?;
        corpus.heldout.extend(told.into_iter().map(|(_, text)| text));
    }
    rng.shuffle(&mut corpus.pretrain);
    rng.shuffle(&mut corpus.heldout);
    Ok(corpus)
}

/// Tells the plots in turn, all before any comes again, until the texts hold `bytes`.
fn fill(
    book: &Book,
    bytes: usize,
    rng: &mut Rng,
    texts: &mut BTreeSet<String>,
    excluded: &BTreeSet<String>,
) -> Result<Vec<(String, String)>, Error> {
    let mut told = Vec::new();
    let mut total = 0;
    let mut turn: Vec<usize> = Vec::new();
    while total < bytes {
        let plot = match turn.pop() {
            Some(plot) => plot,
            None => {
                turn.extend(0..book.plots());
                rng.shuffle(&mut turn);
                continue;
            }
        };
        let story = book.tell(plot, rng)?;
        let fits = match book.language() {
            Language::English => ENGLISH_LENGTH.contains(&story.text.split(' ').count()),
            Language::Chinese => CHINESE_LENGTH.contains(&story.text.chars().count()),
        };
        if fits && !excluded.contains(&story.cast) && texts.insert(story.text.clone()) {
            total += story.text.len();
            told.push((story.cast, story.text));
        }
    }
    Ok(told)
}

/// One `{"text": …}` object a line. The texts hold no control characters.
pub fn jsonl(records: &[String]) -> String {
    let mut lines = String::new();
    for text in records {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        lines.push_str(&format!("{{\"text\": \"{escaped}\"}}\n"));
    }
    lines
}
