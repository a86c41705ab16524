//! A request as it travels between ranks: fixed-size words, so that ranks can compare and report calls.

use bytemuck::{Pod, Zeroable};
use oarlock_tensor::DType;

use crate::call::{Call, Request};
use crate::digest::{digest, mix};
use crate::operation::Operation;
use crate::wire::printable;

/// A [`Call`] of fixed size, as it stands in shared memory and in messages.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Stamp {
    sequence: u64,
    elements: u64,
    detail: u64,
    operation: u16,
    dtype: u16,
    line: u32,
    subject: [u8; 32],
    file: [u8; 96],
}

/// The words of a [`Stamp`].
pub(crate) const STAMP_WORDS: usize = size_of::<Stamp>() / 8;
pub(crate) type StampWords = [u64; STAMP_WORDS];

const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::I32];

impl Stamp {
    pub(crate) fn new(request: &Request) -> Stamp {
        let dtype = request.dtype.and_then(|d| DTYPES.iter().position(|&x| x == d)).map_or(0, |i| i + 1);
        let file = request.site.file();
        let mut stamp = Stamp {
            sequence: request.sequence,
            elements: request.elements as u64,
            detail: request.detail,
            operation: request.operation as u16,
            dtype: dtype as u16,
            line: request.site.line(),
            ..Stamp::zeroed()
        };
        let head = request.subject.len().min(stamp.subject.len());
        stamp.subject[..head].copy_from_slice(&request.subject.as_bytes()[..head]);
        // The end of a path says more than its beginning.
        let tail = file.len().min(stamp.file.len());
        stamp.file[..tail].copy_from_slice(&file.as_bytes()[file.len() - tail..]);
        stamp
    }

    pub(crate) fn words(&self) -> StampWords {
        bytemuck::cast(*self)
    }

    pub(crate) fn from_words(words: StampWords) -> Stamp {
        bytemuck::cast(words)
    }

    /// One number for everything that must agree between ranks: not the call site.
    pub(crate) fn key(&self) -> u64 {
        [self.sequence, self.elements, self.detail, (self.operation as u64) << 16 | self.dtype as u64]
            .into_iter()
            .fold(digest(&self.subject), mix)
    }

    pub(crate) fn call(&self, rank: usize) -> Call {
        Call {
            rank,
            sequence: self.sequence,
            operation: Operation::ALL.get(self.operation as usize).copied().unwrap_or(Operation::Barrier),
            elements: self.elements,
            dtype: (self.dtype as usize).checked_sub(1).and_then(|i| DTYPES.get(i).copied()),
            subject: text(&self.subject),
            site: format!("{}:{}", text(&self.file), self.line),
        }
    }
}

/// Copies as much of a text as fits, cut between characters, into a zeroed buffer.
pub(crate) fn write_text(buffer: &mut [u8], text: &str) {
    let fits = |&end: &usize| text.is_char_boundary(end);
    let length = (0..=buffer.len().min(text.len())).rev().find(fits).unwrap_or(0);
    buffer[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// The text in a zero-padded buffer. Other ranks write such texts, so no line of it holds what a terminal would obey.
pub(crate) fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&b| b == 0).unwrap_or(buffer.len());
    let text = String::from_utf8_lossy(&buffer[..end]);
    text.split('\n').map(|line| printable(line, end)).collect::<Vec<_>>().join("\n")
}
