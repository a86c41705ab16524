//! What may come next in an answer, where not every token may: a grammar, a list of words.

use oarlock_engine::Result;

/// Says which tokens may follow, as a grammar does.
pub trait Constraint: Send {
    /// Adds to `allowed`, which comes empty, the tokens that may follow `answer`: what has been generated so far, without
    /// the prompt. Tokens that end an answer are allowed by their id as well.
    ///
    /// # Errors
    /// What makes the answer impossible to continue; it ends with this error.
    fn allow(&mut self, answer: &[u32], allowed: &mut TokenSet) -> Result<()>;
}

/// A set of tokens of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u64>,
    vocab_size: usize,
}

impl TokenSet {
    /// None of so many tokens.
    pub(super) fn empty(vocab_size: usize) -> TokenSet {
        TokenSet { words: vec![0; vocab_size.div_ceil(64)], vocab_size }
    }

    /// Takes all tokens out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds a token; one that the vocabulary does not have changes nothing.
    pub fn insert(&mut self, id: u32) {
        if (id as usize) < self.vocab_size {
            self.words[id as usize / 64] |= 1 << (id % 64);
        }
    }

    /// Whether a token is in it.
    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Whether no token is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// How many tokens the vocabulary has.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}
