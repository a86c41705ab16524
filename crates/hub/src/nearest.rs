//! The name that somebody may have meant: the closest one of those that there are.

/// The longest names that are compared.
const MAX_CHARS: usize = 200;

/// The closest name, unless more than a third of it differs. Of two that are equally close, the first.
pub(crate) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    let lower = name.to_lowercase();
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_lowercase();
    let distance = |known: &str| {
        // A file that lies in another folder is as good as one with a typing error.
        let as_whole = edits(&lower, &known.to_lowercase());
        let elsewhere = last(known) == last(name) && !known.is_empty();
        if elsewhere { Some(as_whole.unwrap_or(1).min(1)) } else { as_whole }
    };
    let close = names.take(10_000).filter_map(|known| Some((distance(known)?, known)));
    let (edits, known) = close.min_by_key(|(edits, _)| *edits)?;
    (edits * 3 <= name.chars().count().max(3)).then(|| known.to_owned())
}

/// How many characters must be put in, taken out or replaced. `None` for names that are too long.
fn edits(one: &str, other: &str) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().max(other.len()) > MAX_CHARS {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_found_and_far_ones_are_not() {
        let names = ["config.json", "model.safetensors", "onnx/tokenizer.json", "main"];
        let nearest = |name| nearest(name, names.iter().copied());
        assert_eq!(nearest("cofig.json").as_deref(), Some("config.json"));
        assert_eq!(nearest("Model.safetensor").as_deref(), Some("model.safetensors"));
        assert_eq!(nearest("tokenizer.json").as_deref(), Some("onnx/tokenizer.json"));
        assert_eq!(nearest("mian").as_deref(), None);
        assert_eq!(nearest("man").as_deref(), Some("main"));
        assert_eq!(nearest("weights.bin"), None);
        assert_eq!(nearest(&"x".repeat(5000)), None);
    }
}
