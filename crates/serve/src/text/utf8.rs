//! Bytes that come in pieces, as whole characters.

/// The most bytes of a character that is not complete yet.
const LONGEST_BEGINNING: usize = 3;

/// Holds back the beginning of a character until its end has come. What is not UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    held: Vec<u8>,
}

impl Utf8 {
    /// The characters that are complete with these bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let n_whole = self.held.len() - n_incomplete(&self.held);
        let whole: Vec<u8> = self.held.drain(..n_whole).collect();
        String::from_utf8(whole)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// What is left when nothing more comes.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How many bytes at the end are the beginning of a character.
fn n_incomplete(bytes: &[u8]) -> usize {
    let is_beginning = |n: &usize| {
        let tail = &bytes[bytes.len() - n..];
        matches!(std::str::from_utf8(tail), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(LONGEST_BEGINNING)).find(is_beginning).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that comes out of bytes in pieces of some size.
    fn decoded(bytes: &[u8], size: usize) -> String {
        let mut utf8 = Utf8::default();
        let text: String = bytes.chunks(size).map(|piece| utf8.push(piece)).collect();
        text + &utf8.finish()
    }

    #[test]
    fn a_character_comes_when_it_is_complete() {
        let mut utf8 = Utf8::default();
        let pieces: Vec<String> = "a😀é".bytes().map(|byte| utf8.push(&[byte])).collect();
        assert_eq!(pieces, ["a", "", "", "", "😀", "", "é"]);
        assert_eq!(utf8.finish(), "");
    }

    #[test]
    fn the_size_of_pieces_makes_no_difference() {
        let texts = [
            "Grüße 😀 你好".as_bytes(),
            b"\xff\xfea\xf0\x9f\x98",
            b"\xe4\xbd",
            b"\xf0\x9fa\xc3",
            b"\xed\xa0\x80",
        ];
        for bytes in texts {
            let expected = String::from_utf8_lossy(bytes);
            for size in 1..=bytes.len() {
                assert_eq!(decoded(bytes, size), expected, "{bytes:?} in pieces of {size}");
            }
        }
    }
}
