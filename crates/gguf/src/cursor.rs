//! A position in the bytes of a file, which never passes their end.

use std::fmt::Display;

use crate::error::{Error, Result};

/// The bytes of a file and the place of the next one to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Begins at a byte; one behind the end finds nothing more.
    pub fn new(bytes: &'a [u8], at: usize) -> Cursor<'a> {
        Cursor { bytes, at }
    }

    /// The place of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// The next bytes. `part` says in an error what they belong to.
    pub fn take(&mut self, n_bytes: u64, part: &dyn Display) -> Result<&'a [u8]> {
        let cut = || Error::Cut {
            part: part.to_string(),
            at: self.at as u64,
            needs: n_bytes,
            left: self.left() as u64,
        };
        let n = usize::try_from(n_bytes).ok().filter(|n| *n <= self.left()).ok_or_else(cut)?;
        let taken = self.bytes.get(self.at..self.at + n).ok_or_else(cut)?;
        self.at += n;
        Ok(taken)
    }

    /// The next bytes as an array.
    pub fn array<const N: usize>(&mut self, part: &dyn Display) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, part)?);
        Ok(array)
    }

    pub fn u32(&mut self, part: &dyn Display) -> Result<u32> {
        self.array(part).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, part: &dyn Display) -> Result<u64> {
        self.array(part).map(u64::from_le_bytes)
    }

    /// The next text: its length and its bytes.
    pub fn text(&mut self, part: &dyn Display) -> Result<&'a [u8]> {
        let n_bytes = self.u64(part)?;
        self.take(n_bytes, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_behind_the_end() {
        let bytes = [1, 0, 0, 0, 7];
        let mut cursor = Cursor::new(&bytes, 0);
        assert_eq!(cursor.u32(&"it").unwrap(), 1);
        let error = cursor.u64(&"the header").unwrap_err().to_string();
        assert_eq!(
            error,
            "the file ends inside the header: 8 bytes are needed at byte 4, and 1 are left; fetch the file again"
        );
        assert!(cursor.take(u64::MAX, &"it").is_err());
        assert_eq!(cursor.take(1, &"it").unwrap(), [7]);
        assert!(Cursor::new(&bytes, 9).take(0, &"it").is_err());
    }
}
