//! Stretches of memory that one launch works on as if they were one.

use crate::driver::Slice;

/// Addresses of up to 64 pieces, each with up to five operands of one length, as kernels take them: the table is a parameter of
/// the launch, so that nothing has to be copied to the GPU before it.
#[derive(Clone)]
pub struct Pieces<'a> {
    words: [u64; Pieces::WORDS],
    n: usize,
    memory: Vec<Slice<'a>>,
}

/// Where the parts of the table begin, in words: the number of pieces, the ends of their tasks, their sizes, their operands.
const ENDS: usize = 1;
const SIZES: usize = ENDS + Pieces::MOST / 2;
const OPERANDS: usize = SIZES + Pieces::MOST;

impl<'a> Pieces<'a> {
    /// The most pieces of a launch.
    pub const MOST: usize = 64;
    /// Operands of a piece.
    pub const OPERANDS: usize = 5;
    /// Elements of a tile, the work of a block; a piece begins with a tile.
    pub const TILE: usize = 4096;
    const WORDS: usize = OPERANDS + Pieces::OPERANDS * Pieces::MOST;
    /// What a launch passes.
    pub(crate) const BYTES: usize = 8 * Pieces::WORDS;

    /// None.
    pub fn new() -> Pieces<'a> {
        Pieces { words: [0; Pieces::WORDS], n: 0, memory: Vec::new() }
    }

    /// Adds a piece of so many elements, at least one, whose tiles are its tasks; false where there is no room, or more elements
    /// than a launch takes.
    #[must_use]
    pub fn push(&mut self, n_elems: usize, operands: [Option<Slice<'a>>; Pieces::OPERANDS]) -> bool {
        self.push_tasks(n_elems.div_ceil(Pieces::TILE), n_elems, operands)
    }

    /// As [`Pieces::push`], where a task of a block is something else than a tile.
    #[must_use]
    pub fn push_tasks(
        &mut self,
        n_tasks: usize,
        n_elems: usize,
        operands: [Option<Slice<'a>>; Pieces::OPERANDS],
    ) -> bool {
        let words = operands.map(|operand| operand.map_or(0, |slice| slice.address()));
        let pushed = self.push_words(n_tasks, n_elems, words);
        if pushed {
            self.memory.extend(operands.into_iter().flatten());
        }
        pushed
    }

    /// As [`Pieces::push_tasks`], with rows and columns in the place of the last operand.
    #[must_use]
    pub fn push_matrix(
        &mut self,
        n_tasks: usize,
        n_elems: usize,
        operands: [Option<Slice<'a>>; Pieces::OPERANDS - 1],
        sides: [u32; 2],
    ) -> bool {
        let [a, b, c, d] = operands.map(|operand| operand.map_or(0, |slice| slice.address()));
        let pushed = self.push_words(n_tasks, n_elems, [a, b, c, d, Pieces::sides(sides)]);
        if pushed {
            self.memory.extend(operands.into_iter().flatten());
        }
        pushed
    }

    /// Rows and columns as a word of the table.
    pub fn sides([rows, cols]: [u32; 2]) -> u64 {
        u64::from(rows) | u64::from(cols) << 32
    }

    /// As [`Pieces::push`], by addresses, of which 0 is none.
    #[must_use]
    pub fn push_addresses(&mut self, n_elems: usize, addresses: [u64; Pieces::OPERANDS]) -> bool {
        self.push_words(n_elems.div_ceil(Pieces::TILE), n_elems, addresses)
    }

    /// As [`Pieces::push_tasks`], by the words of the table: addresses, of which 0 is none, or [`Pieces::sides`].
    #[must_use]
    pub fn push_words(&mut self, n_tasks: usize, n_elems: usize, words: [u64; Pieces::OPERANDS]) -> bool {
        let Some(end) = u32::try_from(n_tasks).ok().and_then(|tasks| self.end().checked_add(tasks)) else {
            return false;
        };
        if self.n == Pieces::MOST || n_elems == 0 || n_tasks == 0 {
            return false;
        }
        // Two numbers of 32 bits to a word, in the order of memory.
        let mut pair = self.words[ENDS + self.n / 2].to_ne_bytes();
        let at = self.n % 2 * 4;
        pair[at..at + 4].copy_from_slice(&end.to_ne_bytes());
        self.words[ENDS + self.n / 2] = u64::from_ne_bytes(pair);
        self.words[SIZES + self.n] = n_elems as u64;
        for (operand, word) in words.into_iter().enumerate() {
            self.words[OPERANDS + operand * Pieces::MOST + self.n] = word;
        }
        self.n += 1;
        let mut count = [0; 8];
        count[..4].copy_from_slice(&(self.n as u32).to_ne_bytes());
        self.words[0] = u64::from_ne_bytes(count);
        true
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Tasks of all pieces.
    pub fn n_tasks(&self) -> usize {
        self.end() as usize
    }

    /// The end of the last one's tasks.
    fn end(&self) -> u32 {
        let Some(last) = self.n.checked_sub(1) else { return 0 };
        let pair = self.words[ENDS + last / 2].to_ne_bytes();
        let mut end = [0; 4];
        end.copy_from_slice(&pair[last % 2 * 4..][..4]);
        u32::from_ne_bytes(end)
    }

    /// The table as a launch passes it.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// All memory that is in it.
    pub(crate) fn memory(&self) -> &[Slice<'a>] {
        &self.memory
    }
}

impl Default for Pieces<'_> {
    fn default() -> Self {
        Pieces::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_with_its_room() {
        let mut pieces = Pieces::new();
        assert!(pieces.is_empty() && pieces.n_tasks() == 0 && !pieces.push_addresses(0, [0; 5]));
        for piece in 0..Pieces::MOST {
            assert!(pieces.push_addresses(1 + piece * Pieces::TILE, [piece as u64; 5]));
        }
        // 1 + 2 + .. + 64 tiles.
        assert_eq!(pieces.n_tasks(), 65 * 32);
        assert!(!pieces.push_addresses(1, [0; 5]));
        let mut huge = Pieces::new();
        assert!(!huge.push_addresses(Pieces::TILE << 32, [0; 5]));
        assert!(huge.push_words(u32::MAX as usize - 1, 9, [0; 5]) && huge.push_words(1, 9, [0; 5]));
        assert!(!huge.push_words(1, 9, [0; 5]) && !huge.push_words(0, 9, [0; 5]));
        assert_eq!(Pieces::sides([3, 5]), 5 << 32 | 3);
        // With its other arguments it is below the 4,096 bytes that a launch may pass.
        const { assert!(Pieces::BYTES < 3600) };
    }
}
