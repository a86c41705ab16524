//! The unique id of a communicator, which one rank makes and gives to the others.

use std::fmt;
use std::str::FromStr;

use super::api::Id;
use crate::error::{Error, Result};

/// What ranks find each other by. One of them makes it ([`Nccl::unique_id`](super::Nccl::unique_id)); all need it, as bytes
/// or as text. It is good for one communicator, while the process that made it lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::BYTES]);

impl UniqueId {
    /// Its length.
    pub const BYTES: usize = 128;

    /// From what [`UniqueId::to_bytes`] has given.
    pub fn from_bytes(bytes: [u8; UniqueId::BYTES]) -> UniqueId {
        UniqueId(bytes)
    }

    /// As bytes, which mean the same on all machines.
    pub fn to_bytes(self) -> [u8; UniqueId::BYTES] {
        self.0
    }

    pub(super) fn raw(self) -> Id {
        Id(self.0)
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self})")
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<UniqueId> {
        let wrong = |reason: String| Error::UniqueId { reason };
        if text.len() != 2 * UniqueId::BYTES {
            return Err(wrong(format!("a text of {} bytes", text.len())));
        }
        let digit = |digit: &u8| char::from(*digit).to_digit(16).map(|digit| digit as u8);
        let mut bytes = [0; UniqueId::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = digit(&pair[0]).zip(digit(&pair[1]));
            let (high, low) = digits.ok_or_else(|| wrong("a text with other characters".into()))?;
            *byte = high << 4 | low;
        }
        Ok(UniqueId(bytes))
    }
}
