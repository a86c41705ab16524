//! A collective as a rank requests it, and as reports name it.

use std::fmt;
use std::ops::Range;
use std::panic::Location;

use oarlock_tensor::DType;

use crate::digest::{digest, mix};
use crate::error::{Error, Result};
use crate::operation::Operation;
use crate::region::Region;

/// A collective as this rank requests it: everything that must agree between ranks, and the call site.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its sequence number: the collectives of a communicator count from 1.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// Elements; bytes where there is no dtype.
    pub elements: usize,
    /// The element type, where elements have one.
    pub dtype: Option<DType>,
    /// The region, or what the call is about.
    pub subject: &'a str,
    /// A digest of the further arguments: ranges, root, owners.
    pub detail: u64,
    /// The caller.
    pub site: &'static Location<'static>,
}

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
}

/// A request that outlives its call.
pub(crate) struct OwnedRequest {
    request: Request<'static>,
    subject: String,
}

impl OwnedRequest {
    pub(crate) fn of(request: &Request) -> OwnedRequest {
        OwnedRequest { request: Request { subject: "", ..*request }, subject: request.subject.to_owned() }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        Request { subject: &self.subject, ..self.request }
    }
}

/// A collective as one rank called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The rank that called.
    pub rank: usize,
    /// Its sequence number: the collectives of a communicator count from 1.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// Elements; bytes where there is no dtype.
    pub elements: u64,
    /// The element type, where elements have one.
    pub dtype: Option<DType>,
    /// The region, or what the call is about.
    pub subject: String,
    /// `file:line` of the caller.
    pub site: String,
}

impl Call {
    /// The call in a report that names the rank already.
    pub(crate) fn without_rank(&self) -> String {
        let of = match self.dtype {
            Some(dtype) => format!(" of {} {dtype}", self.elements),
            None if self.elements > 0 => format!(" of {} bytes", self.elements),
            None => String::new(),
        };
        let on = if self.subject.is_empty() { String::new() } else { format!(" on {:?}", self.subject) };
        format!("{}{of}{on} (call {}) at {}", self.operation.name(), self.sequence, self.site)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} called {}", self.rank, self.without_rank())
    }
}
