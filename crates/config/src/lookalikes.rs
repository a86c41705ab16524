//! Characters that look like those of a configuration and are others: the full-width forms of Chinese and Japanese keyboards,
//! and the quotes and dashes of word processors and web pages.

/// Longer texts are sentences, in which these characters have their place.
const MAX_BYTES: usize = 200;

/// The character that was meant by such a one.
pub fn meant(c: char) -> Option<char> {
    Some(match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0)?,
        '\u{3000}' | '\u{a0}' => ' ',
        '、' => ',',
        '。' => '.',
        '“' | '”' | '„' | '‟' => '"',
        '‘' | '’' | '‚' | '‛' => '\'',
        '‐' | '‑' | '–' | '—' | '―' | '−' => '-',
        _ => return None,
    })
}

/// What to call such a character.
pub(crate) fn described(c: char) -> &'static str {
    match meant(c) {
        Some('"' | '\'') if !matches!(c, '＂' | '＇') => "a typographic quote",
        Some('-') if c != '－' => "a dash of typography",
        Some(' ') => "a wide blank",
        _ => "a full-width character",
    }
}

/// The text as it was meant: with plain characters, and without quotes around it that quote nothing here.
pub fn plain(text: &str) -> String {
    let is_quote = |c: char| matches!(meant(c), Some('"' | '\''));
    text.trim_matches(is_quote).chars().map(|c| meant(c).unwrap_or(c)).collect()
}

/// Whether a word of a command begins as a flag, or joins a name and a value, with such characters.
pub fn is_argument(word: &str) -> bool {
    let first = word.chars().next().unwrap_or_default();
    (meant(first) == Some('-')) || (word.contains('＝') && !word.contains('='))
}

/// What to do about a word that is wrong and has such characters.
pub fn advice(text: &str) -> Option<String> {
    let is_ideograph = |c: char| matches!(c, '\u{3400}'..='\u{9fff}' | '\u{3040}'..='\u{30ff}');
    let is_quoted = text.starts_with(['“', '”', '‘', '’']);
    let c = text.chars().find(|c| meant(*c).is_some())?;
    if text.len() > MAX_BYTES || (text.contains(is_ideograph) && !is_quoted) {
        return None;
    }
    Some(format!("`{c}` in it is {}; write `{}`", described(c), plain(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_as_they_were_meant() {
        for (word, message) in [
            ("learning_rate＝1e-3", "`＝` in it is a full-width character; write `learning_rate=1e-3`"),
            ("“data/a.json”", "`“` in it is a typographic quote; write `data/a.json`"),
            ("‘数据，一’", "`‘` in it is a typographic quote; write `数据,一`"),
            ("—nproc_per_node", "`—` in it is a dash of typography; write `-nproc_per_node`"),
            ("１２８", "`１` in it is a full-width character; write `128`"),
            ("a\u{3000}b", "is a wide blank; write `a b`"),
        ] {
            assert!(advice(word).unwrap().ends_with(message), "{:?}", advice(word));
        }
        for word in ["data/数据.json", "你好，世界", "stage", ""] {
            assert_eq!(advice(word), None, "{word}");
        }
        assert!(is_argument("－－lr") && is_argument("lr＝1") && is_argument("—lr"));
        assert!(!is_argument("a=b＝c") && !is_argument("--lr") && !is_argument("训练.yaml"));
    }
}
