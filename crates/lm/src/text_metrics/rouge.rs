//! ROUGE-1, -2 and -L (Lin 2004) of words between spaces, as rouge_chinese computes them: n-grams count once each, and
//! sentences are taken apart and joined again, which leaves an empty word where a line is blank.

use std::collections::HashSet;

/// F1 scores from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rouge {
    /// Of words.
    pub one: f64,
    /// Of pairs of words.
    pub two: f64,
    /// Of the longest common subsequence.
    pub l: f64,
}

/// The scores of a text of words between spaces; 0 where one of the two has none.
pub fn rouge(prediction: &str, label: &str) -> Rouge {
    if prediction.split_whitespace().next().is_none() || label.split_whitespace().next().is_none() {
        return Rouge::default();
    }
    let (prediction, label) = (words(prediction), words(label));
    Rouge {
        one: of_grams(&prediction, &label, 1),
        two: of_grams(&prediction, &label, 2),
        l: f1(longest_common(&prediction, &label), prediction.len(), label.len()),
    }
}

fn f1(hits: usize, n_ours: usize, n_theirs: usize) -> f64 {
    let share = |n: usize| if n == 0 { 0.0 } else { hits as f64 / n as f64 };
    let (precision, recall) = (share(n_ours), share(n_theirs));
    2.0 * (precision * recall / (precision + recall + 1e-8))
}

fn of_grams(ours: &[String], theirs: &[String], n: usize) -> f64 {
    let grams = |words| -> HashSet<&[String]> { <[String]>::windows(words, n).collect() };
    let (ours, theirs) = (grams(ours), grams(theirs));
    f1(ours.intersection(&theirs).count(), ours.len(), theirs.len())
}

fn longest_common(ours: &[String], theirs: &[String]) -> usize {
    let mut before = vec![0; theirs.len() + 1];
    for word in ours {
        let mut row = vec![0; theirs.len() + 1];
        for (j, other) in theirs.iter().enumerate() {
            row[j + 1] = if word == other { before[j] + 1 } else { before[j + 1].max(row[j]) };
        }
        before = row;
    }
    before[theirs.len()]
}

/// The words of all sentences.
fn words(text: &str) -> Vec<String> {
    let is_end = |c: char| matches!(c, '。' | '！' | '？' | '?');
    let is_quote = |c: char| matches!(c, '”' | '’');
    let all = |text: &[char], n: usize, c: char| text.len() >= n && text[..n].iter().all(|x| *x == c);
    let mut text: Vec<char> = text.chars().collect();
    text = broken(&text, 1, |head| is_end(head[0]), |next| !is_quote(next));
    text = broken(&text, 6, |head| all(head, 6, '.'), |next| !is_quote(next));
    text = broken(&text, 2, |head| all(head, 2, '…'), |next| !is_quote(next));
    let quoted = |head: &[char]| is_end(head[0]) && is_quote(head[1]);
    text = broken(&text, 2, quoted, |next| next != '，' && !is_end(next));
    let text: String = text.into_iter().collect();
    let lines = text.trim_end().split('\n').filter(|line| !line.is_empty());
    let sentences = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    sentences.flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The text with a line break between every `n` characters that are a head and the next that may follow one.
fn broken(
    text: &[char],
    n: usize,
    is_head: impl Fn(&[char]) -> bool,
    follows: impl Fn(char) -> bool,
) -> Vec<char> {
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        match text.get(at + n) {
            Some(&next) if is_head(&text[at..at + n]) && follows(next) => {
                out.extend_from_slice(&text[at..at + n]);
                out.extend(['\n', next]);
                at += n + 1;
            }
            _ => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_line_leaves_an_empty_word() {
        assert_eq!(words("a b。 c\n \nd"), ["a", "b。", "c", "", "d"]);
        assert_eq!(words("a？ b? c"), ["a？", "b?", "c"]);
    }

    #[test]
    fn n_grams_count_once_and_subsequences_each_time() {
        let scores = rouge("a a a b", "a b");
        assert!((scores.one - 1.0).abs() < 1e-6);
        assert!((scores.two - 2.0 * (0.5 / 1.5)).abs() < 1e-6);
        assert!((scores.l - 2.0 * (0.5 / 1.5)).abs() < 1e-6);
        assert_eq!(rouge(" ", "a"), Rouge::default());
    }
}
