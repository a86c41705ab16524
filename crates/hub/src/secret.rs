//! The token: a value that no output shows, and where it came from, which messages may say.

use std::fmt;
use std::path::PathBuf;

/// A text that no output shows: all its forms in words are `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the header of a request.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where a token came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// No token was found.
    None,
    /// The program gave it.
    Given,
    /// A variable of the environment.
    Variable(&'static str),
    /// A file, as `hf auth login` writes it.
    File(PathBuf),
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::None => f.write_str("no token"),
            TokenSource::Given => f.write_str("the token that was given"),
            TokenSource::Variable(name) => write!(f, "the token of {name}"),
            TokenSource::File(path) => write!(f, "the token in {}", path.display()),
        }
    }
}

/// A token and where it came from.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub secret: Secret,
    /// Where it came from.
    pub source: TokenSource,
}

impl Token {
    /// Keeps a token; a text that no header can hold is none.
    pub(crate) fn of(text: &str, source: TokenSource) -> Option<Token> {
        // Line ends within are those of a file that was edited by hand; huggingface drops them as well.
        let text: String = text.trim().chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        let is_sound = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_sound.then(|| Token { secret: Secret::new(text), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_token_shows_it() {
        let token = Token::of("hf_marker\n", TokenSource::Variable("HF_TOKEN")).unwrap();
        assert_eq!(token.secret.reveal(), "hf_marker");
        for shown in [format!("{token:?}"), format!("{}", token.secret), format!("{}", token.source)] {
            assert!(!shown.contains("marker"), "{shown}");
        }
        assert!(Token::of(" \n", TokenSource::Given).is_none());
        assert!(Token::of("a b", TokenSource::Given).is_none());
    }
}
