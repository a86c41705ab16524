//! What a rank asked of the others: the operation and everything that must agree, for matching and for reports.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use oarlock_tensor::DType;

use crate::transport::Request;

/// The collective operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Operation {
    /// Wait for all.
    Barrier,
    /// Reserve a region.
    Allocate,
    /// Divide the ranks into groups.
    Split,
    /// Sum over ranks, everywhere.
    AllReduce,
    /// Sum over ranks, each range at its owner.
    ReduceScatter,
    /// Each owner's ranges, everywhere.
    AllGather,
    /// One rank's range, everywhere.
    Broadcast,
    /// A few bytes of each rank, everywhere.
    AllGatherBytes,
    /// A few bytes of one rank, everywhere.
    BroadcastBytes,
    /// A few numbers, combined over ranks.
    AllReduceScalars,
    /// A value that must be the same on all ranks.
    Agree,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Operation; 11] = [
        Operation::Barrier,
        Operation::Allocate,
        Operation::Split,
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::Broadcast,
        Operation::AllGatherBytes,
        Operation::BroadcastBytes,
        Operation::AllReduceScalars,
        Operation::Agree,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Barrier => "barrier",
            Operation::Allocate => "allocate",
            Operation::Split => "split",
            Operation::AllReduce => "all_reduce",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllGather => "all_gather",
            Operation::Broadcast => "broadcast",
            Operation::AllGatherBytes => "all_gather_bytes",
            Operation::BroadcastBytes => "broadcast_bytes",
            Operation::AllReduceScalars => "all_reduce_f64",
            Operation::Agree => "agree",
        }
    }
}

/// How a few numbers are combined over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// The sum, in a fixed pairwise tree over ranks.
    Sum,
    /// The greatest; NaN if any is NaN.
    Max,
    /// The least; NaN if any is NaN.
    Min,
}

impl Scalar {
    pub(crate) fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            Scalar::Sum => a + b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Scalar::Max => a.max(b),
            Scalar::Min => a.min(b),
        }
    }
}

/// A collective as one rank called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who called.
    pub rank: usize,
    /// The how-manieth collective of the communicator it was, from 1.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// Elements; bytes where there is no dtype.
    pub elements: u64,
    /// The element type, where elements have one.
    pub dtype: Option<DType>,
    /// The region, where there is one, or what the call was about.
    pub subject: String,
    /// `file:line` of the caller.
    pub site: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} called {}", self.rank, self.operation.name())?;
        match self.dtype {
            Some(dtype) => write!(f, " of {} {dtype}", self.elements)?,
            None if self.elements > 0 => write!(f, " of {} bytes", self.elements)?,
            None => {}
        }
        if !self.subject.is_empty() {
            write!(f, " on {:?}", self.subject)?;
        }
        write!(f, " (call {}) at {}", self.sequence, self.site)
    }
}

/// A [`Call`] as it stands in shared memory.
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

/// Adds a word to a digest.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    let x = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

/// A digest of bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64 + 1, |d, &b| mix(d, b as u64))
}

/// The text in a zero-padded buffer.
pub(crate) fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&b| b == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}
