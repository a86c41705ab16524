//! Where a text ends with what could become a mark.

/// How many bytes at the end of a text are the beginning of a mark, but not all of it.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    let ends_so = |n: &usize| text.as_bytes()[text.len() - n..] == mark.as_bytes()[..*n];
    // Both are UTF-8, so that equal bytes that begin a mark begin a character.
    (1..=longest).rev().find(ends_so).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn the_longest_beginning_counts() {
        assert_eq!(overlap("a <th", "<think>"), 3);
        assert_eq!(overlap("<think>", "<think>"), 0);
        assert_eq!(overlap("aabaab", "aabaaba"), 6);
        assert_eq!(overlap("xaab", "aabaaba"), 3);
        assert_eq!(overlap("", "a"), 0);
        assert_eq!(overlap("a", ""), 0);
        assert_eq!(overlap("é", "é"), 0);
    }
}
