//! The tokens of a GGUF file: texts, kinds, and those that keys name.

use oarlock_gguf::Gguf;

use super::parts::{Found, shown};

/// Kinds of tokens (`tokenizer.ggml.token_type`).
pub(crate) const NORMAL: i32 = 1;
pub(crate) const UNKNOWN: i32 = 2;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER_DEFINED: i32 = 4;
pub(crate) const UNUSED: i32 = 5;
pub(crate) const BYTE: i32 = 6;

/// The tokens of a file by id.
pub(super) struct Tokens<'a> {
    pub(super) texts: Vec<&'a str>,
    kinds: Vec<i32>,
}

impl<'a> Tokens<'a> {
    /// # Errors
    /// A file without them.
    pub(super) fn of(gguf: &'a Gguf<&[u8]>) -> Found<Tokens<'a>> {
        let texts: Vec<&str> = gguf.require("tokenizer.ggml.tokens").map_err(shown)?;
        let kinds = gguf.get::<Vec<i32>>("tokenizer.ggml.token_type").map_err(shown)?;
        let kinds = kinds.unwrap_or_else(|| vec![NORMAL; texts.len()]);
        match kinds.len() == texts.len() {
            true => Ok(Tokens { texts, kinds }),
            false => Err(format!("there are {} tokens and {} types of tokens", texts.len(), kinds.len())),
        }
    }

    /// A token by a key that holds its id, such as `bos_token_id`.
    pub(super) fn special(&self, gguf: &Gguf<&[u8]>, key: &str) -> Found<Option<(u32, &'a str)>> {
        let key = format!("tokenizer.ggml.{key}");
        let Some(id) = gguf.get::<u32>(&key).map_err(shown)? else { return Ok(None) };
        match self.texts.get(id as usize) {
            Some(text) => Ok(Some((id, text))),
            None => Err(format!("{key} is {id}, and there are {} tokens", self.texts.len())),
        }
    }

    /// Whether a token is one with a meaning of its own.
    pub(super) fn is_control(&self, id: usize) -> bool {
        self.kinds.get(id) == Some(&CONTROL)
    }

    /// Those of some kinds: id, text and kind.
    pub(super) fn with(&self, kinds: &'a [i32]) -> impl Iterator<Item = (usize, &'a str, i32)> {
        let all = self.texts.iter().zip(&self.kinds).enumerate();
        all.filter(|(_, (_, kind))| kinds.contains(kind)).map(|(id, (text, kind))| (id, *text, *kind))
    }
}
