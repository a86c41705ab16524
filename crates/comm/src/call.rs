//! A collective as a rank requests it, and as reports name it.

use std::fmt;
use std::panic::Location;

use oarlock_tensor::DType;

use crate::operation::Operation;

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
