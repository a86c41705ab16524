//! The texts of the API of a hub: asked for once, with refusals as errors.

use std::io::Read;

use ureq::http::HeaderMap;

use crate::address;
use crate::client::{Client, Method, Request, failed};
use crate::error::Error;
use crate::refusal::{self, Subject};

/// The longest text that is read whole.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The text of an answer and its headers.
///
/// # Errors
/// No answer, a refusal, and what is no text.
pub(crate) fn text(client: &Client, url: &str, subject: Subject<'_>) -> Result<(String, HeaderMap), Error> {
    let reply =
        client.send(&Request { method: Method::Get, url, from_byte: 0, timeout: client.etag_timeout })?;
    if reply.status >= 400 {
        return Err(refusal::of(&reply, &subject, client));
    }
    let mut bytes = Vec::new();
    let read = reply.body.into_reader().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(url, false, &ureq::Error::from(error)))?;
    let problem = |problem: &str| Error::NotAHub { url: address::shown(url), problem: problem.to_owned() };
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(problem("its answer is longer than a listing ever is"));
    }
    let text = String::from_utf8(bytes).map_err(|_| problem("its answer is not a text"))?;
    Ok((text, reply.headers))
}
