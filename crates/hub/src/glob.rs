//! Patterns for paths as `datasets` reads them: `*`, `?` and `[…]` within a part, `**` for any number of parts.

/// Whether a pattern is that of a path.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let path: Vec<&str> = path.split('/').collect();
    // Row by row: whether the first parts of the pattern are those of the first parts of the path.
    let mut row: Vec<bool> = (0..=path.len()).map(|n| n == 0).collect();
    for (number, part) in pattern.iter().enumerate() {
        let mut next = vec![false; path.len() + 1];
        if *part == "**" {
            // At the end it stands for at least the name of a file.
            let is_last = number + 1 == pattern.len();
            let mut any = false;
            for at in 0..=path.len() {
                next[at] = any || (row[at] && !is_last);
                any |= row[at];
            }
        } else {
            for at in 0..path.len() {
                next[at + 1] = row[at] && is_part(part, path[at]);
            }
        }
        row = next;
    }
    row[path.len()]
}

/// Whether hidden parts, or those between double underscores, stand in a path that the pattern does not ask for.
pub(crate) fn is_unrequested(pattern: &str, path: &str) -> bool {
    let is_hidden = |part: &&str| part.starts_with('.') && part.chars().any(|c| c != '.');
    let hidden = |text: &str| text.split('/').filter(is_hidden).count();
    let special = |text: &str| {
        let folders = text.rsplit_once('/').map_or("", |(folders, _)| folders);
        folders.split('/').filter(|part| part.starts_with("__")).count()
    };
    hidden(pattern) != hidden(path) || special(pattern) != special(path)
}

/// One part. Only the last star is ever tried again, so the time is the product of the lengths at most.
fn is_part(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where the last star stood, and how much of the text it stands for.
    let mut star = None;
    while t < text.len() {
        let one = match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern[p..], text[t]).filter(|(has, _)| *has).map(|(_, n)| n),
            Some(c) => (*c == text[t]).then_some(1),
            None => None,
        };
        match (one, star) {
            (Some(n), _) => (p, t) = (p + n, t + 1),
            (None, Some((at, taken))) => {
                star = Some((at, taken + 1));
                (p, t) = (at + 1, taken + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whether a class such as `[-._ 0-9]` has a character, and how long it is. One without an end is a bracket.
fn class(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let is_not = matches!(pattern.get(1), Some('!' | '^'));
    let begin = if is_not { 2 } else { 1 };
    // A bracket at the beginning is one of the characters.
    let Some(end) = pattern.iter().skip(begin + 1).position(|c| *c == ']').map(|n| n + begin + 1) else {
        return Some((c == '[', 1));
    };
    let (inside, mut at, mut has) = (&pattern[begin..end], 0, false);
    while at < inside.len() {
        match inside.get(at + 1..at + 3) {
            Some(['-', last]) => {
                has |= (inside[at]..=*last).contains(&c);
                at += 3;
            }
            _ => {
                has |= inside[at] == c;
                at += 1;
            }
        }
    }
    Some((has != is_not, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_python() {
        for (pattern, path, is_it) in [
            ("data/train-*", "data/train-00000-of-00001.parquet", true),
            ("data/train-*", "data/x/train-0", false),
            ("*.csv", "a.csv", true),
            ("*.csv", "a/a.csv", false),
            ("**", "a/b/c.txt", true),
            ("**", "c.txt", true),
            ("**/*.csv", "a.csv", true),
            ("**/*.csv", "a/b/c.csv", true),
            ("a/**", "a/b/c", true),
            ("a/**", "b/c", false),
            ("a/**", "a", false),
            ("**/train/**", "train/x.json", true),
            ("**/train/**", "a/train/b/x.json", true),
            ("**/train/**", "a/training/x.json", false),
            ("**/train[-._ 0-9]*", "train.json", true),
            ("**/train[-._ 0-9]*", "train_1.json", true),
            ("**/train[-._ 0-9]*", "trains.json", false),
            ("**/*[-._ 0-9]train[-._ 0-9]*", "my-train-1.json", true),
            ("**/*[-._ 0-9]train[-._ 0-9]*", "mytrain-1.json", false),
            ("[!a]*", "b", true),
            ("[!a]*", "a", false),
            ("[]x]", "]", true),
            ("a[b", "a[b", true),
            ("?.txt", "\u{e9}.txt", true),
            ("./a/*.txt", "a/b.txt", true),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern, path), is_it, "{pattern} {path}");
        }
        let many = "**/".repeat(60) + "x";
        assert!(!matches(&many, &"a/".repeat(60)));
    }

    #[test]
    fn hidden_parts_must_be_asked_for() {
        assert!(is_unrequested("**", ".hidden/a.txt") && is_unrequested("*", "__pycache__/b.txt"));
        assert!(
            !is_unrequested(".hidden/*", ".hidden/a.txt") && !is_unrequested("__*/*", "__pycache__/b.txt")
        );
        assert!(!is_unrequested("**", "a/b.txt") && !is_unrequested("**", "__x__.txt"));
    }
}
