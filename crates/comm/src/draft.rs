//! A collective before it has its number: what the communicator has checked of the arguments.

use std::ops::Range;

use oarlock_tensor::DType;

use crate::digest::{digest, mix};
use crate::error::{Error, Result};
use crate::operation::Operation;
use crate::region::Region;

/// A request before it has its sequence number.
pub(crate) struct Draft<'a> {
    pub operation: Operation,
    pub elements: usize,
    pub dtype: Option<DType>,
    pub subject: &'a str,
    pub detail: u64,
}

impl<'a> Draft<'a> {
    /// Of a collective on no region.
    pub fn small(operation: Operation, subject: &'a str, detail: u64) -> Draft<'a> {
        Draft { operation, elements: 0, dtype: None, subject, detail }
    }

    /// Of a collective on elements of a region, which has them.
    pub fn range(
        operation: Operation,
        region: &'a Region,
        dtype: DType,
        range: &Range<usize>,
        detail: u64,
    ) -> Result<Draft<'a>> {
        let inside = range.end.checked_mul(dtype.size()).is_some_and(|end| end <= region.bytes());
        if range.start > range.end || !inside {
            return Err(Error::Argument {
                operation: operation.name(),
                expected: format!(
                    "a range of {dtype} inside the {} bytes of region {:?}",
                    region.bytes(),
                    region.name()
                ),
                got: format!("{}..{}", range.start, range.end),
            });
        }
        let detail = mix(mix(digest(region.name().as_bytes()), detail), range.start as u64);
        Ok(Draft { operation, elements: range.len(), dtype: Some(dtype), subject: region.name(), detail })
    }

    /// Of an all-to-all, in which no rank sends more than the first of these ranges or receives more than the second.
    pub fn exchange(
        from: &'a Region,
        to: &'a Region,
        dtype: DType,
        [sent, received]: [&Range<usize>; 2],
        detail: u64,
    ) -> Result<Draft<'a>> {
        let first = Draft::range(Operation::AllToAll, from, dtype, sent, detail)?;
        let other = Draft::range(Operation::AllToAll, to, dtype, received, first.detail)?;
        Ok(Draft { detail: other.detail, ..first })
    }
}
