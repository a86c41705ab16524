//! What stands in for `engine` in a build without the feature `tokenizers`: it is never built, and says how to.

use std::convert::Infallible;

use super::added_tokens::AddedToken;

type Result<T> = std::result::Result<T, String>;

/// No such thing.
pub(super) struct Engine(Infallible);

impl Engine {
    pub(super) fn build(_: &[u8], _: &[AddedToken]) -> Result<Engine> {
        Err("this build reads no tokenizers; build oarlock with its feature `tokenizers`".into())
    }

    pub(super) fn is_byte_level_bpe(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn vocab_size(&self) -> usize {
        match self.0 {}
    }

    pub(super) fn id_of(&self, _: &str) -> Option<u32> {
        match self.0 {}
    }

    pub(super) fn encode(&self, _: &str) -> Result<Vec<u32>> {
        match self.0 {}
    }

    pub(super) fn encode_with_begins(&self, _: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        match self.0 {}
    }

    pub(super) fn token_bytes(&self, _: u32, _: bool) -> Result<Option<Vec<u8>>> {
        match self.0 {}
    }

    pub(super) fn is_special(&self, _: u32) -> bool {
        match self.0 {}
    }

    pub(super) fn around(&self) -> Result<Vec<u32>> {
        match self.0 {}
    }

    pub(super) fn decode(&self, _: &[u32], _: bool) -> Result<String> {
        match self.0 {}
    }
}
