//! The content of one file: goes on where an earlier download ended, checks what came, and gives it out complete.

use std::io::{Read, Write};
use std::path::Path;

use crate::address;
use crate::client::{Client, Method, Reply, Request, failed};
use crate::digest::{CHUNK_BYTES, Check};
use crate::error::{At, Error};
use crate::metadata::Metadata;
use crate::names::{Etag, Repo, RepoPath};
use crate::partial::Partial;
use crate::progress::{Event, Progress};
use crate::refusal::{self, Subject};
use crate::{pauses, space};

/// How often one download may begin anew, for whatever reasons.
const N_RESTARTS: u32 = 3;

/// What became of a download.
pub(crate) enum Outcome {
    /// All came, and it has the right hash.
    Complete(Partial),
    /// The address has expired, or the file has changed: the hub must be asked again.
    Stale(Error),
}

/// What one request did.
enum Step {
    /// All bytes are there.
    End,
    /// Another request must follow.
    Again,
    Stale(Error),
}

/// A download at work.
struct Download<'d> {
    client: &'d Client,
    repo: &'d Repo,
    path: &'d RepoPath,
    etag: &'d Etag,
    url: &'d str,
    size: Option<u64>,
    progress: &'d Progress,
    partial: Partial,
    check: Check,
    /// How many bytes are on the disk.
    n_bytes: u64,
    /// Whether they all came in one reply.
    is_whole: bool,
    /// The entity tag of the server that sends the content.
    tag: Option<String>,
    n_restarts: u32,
}

/// Downloads a file into a partial download in a folder.
///
/// # Errors
/// A refusal, a network that does not come back, a full disk, and content with another hash.
pub(crate) fn fetch(
    client: &Client,
    repo: &Repo,
    path: &RepoPath,
    metadata: &Metadata,
    folder: &Path,
    progress: &Progress,
) -> Result<Outcome, Error> {
    let etag = &metadata.etag;
    let mut partial = Partial::begin(folder, etag)?;
    let mut check = Check::of(etag);
    let is_of_use =
        !matches!(check, Check::Unknown) && metadata.size.is_none_or(|size| partial.n_bytes <= size);
    if !is_of_use {
        partial.restart()?;
    }
    let place = partial.path().to_owned();
    let n_bytes = check.update_from(&mut partial.file).at(&place)?;
    progress(&Event::Begin { path: path.as_str(), size: metadata.size, present: n_bytes });
    space::check(folder, metadata.size.unwrap_or_default().saturating_sub(n_bytes))?;
    let (url, size) = (metadata.location.as_str(), metadata.size);
    let (is_whole, tag, n_restarts) = (n_bytes == 0, None, 0);
    Download {
        client,
        repo,
        path,
        etag,
        url,
        size,
        progress,
        partial,
        check,
        n_bytes,
        is_whole,
        tag,
        n_restarts,
    }
    .run()
}

impl Download<'_> {
    fn run(mut self) -> Result<Outcome, Error> {
        let mut retry = 0;
        loop {
            let before = self.n_bytes;
            let is_complete = self.size == Some(self.n_bytes);
            let step = if is_complete { Ok(Step::End) } else { self.request() };
            if self.n_bytes > before {
                retry = 0;
            }
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Stale(error)) => return Ok(Outcome::Stale(error)),
                Ok(Step::End) => match self.verified()? {
                    None => return Ok(Outcome::Complete(self.partial)),
                    // Bytes of several replies may be of several contents.
                    Some(_) if !self.is_whole => self.restart("its hash is another one")?,
                    Some(error) => {
                        self.partial.discard();
                        return Ok(Outcome::Stale(error));
                    }
                },
                Err(error) if error.is_transient() && retry < pauses::N_RETRIES => {
                    let Some(pause) = self.client.pause_after(&error, retry) else { return Err(error) };
                    self.client.wait(self.progress, pause, &error);
                    retry += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn request(&mut self) -> Result<Step, Error> {
        let subject = Subject { repo: self.repo, path: Some(self.path.as_str()) };
        let timeout = self.client.content_timeout();
        let (url, from_byte) = (self.url, self.n_bytes);
        let reply = self.client.send(&Request { method: Method::Get, url, from_byte, timeout })?;
        if let Some(error) = self.other_content(&reply) {
            return Ok(Step::Stale(error));
        }
        match reply.status {
            200 => self.whole(reply),
            206 => self.part(reply),
            416 if self.n_bytes > 0 => match total(&reply).or(self.size) {
                Some(total) if total == self.n_bytes => Ok(Step::End),
                _ => self.restart("the hub has fewer bytes of it").map(|()| Step::Again),
            },
            // The address was signed for a while.
            401 | 403 | 404 | 410 if !self.client.is_trusted(&reply.url) => {
                Ok(Step::Stale(refusal::of(&reply, &subject, self.client)))
            }
            _ => Err(refusal::of(&reply, &subject, self.client)),
        }
    }

    /// A reply with all bytes, wanted or not.
    fn whole(&mut self, reply: Reply) -> Result<Step, Error> {
        if self.n_bytes > 0 {
            self.restart("the server sends it from the beginning")?;
        }
        self.is_whole = true;
        self.tag = reply.header("etag").map(str::to_owned);
        let length = reply.header("content-length").and_then(|text| text.trim().parse::<u64>().ok());
        match (self.size, length) {
            (Some(size), Some(length)) if size != length => {
                return Ok(Step::Stale(self.not_a_hub(&format!("it has {length} bytes instead of {size}"))));
            }
            (None, Some(length)) => {
                self.size = Some(length);
                space::check(self.partial.path(), length)?;
            }
            _ => {}
        }
        self.read(reply)
    }

    /// A reply with the bytes that are missing.
    fn part(&mut self, reply: Reply) -> Result<Step, Error> {
        let range = reply.header("content-range").unwrap_or_default();
        let first = range.trim().strip_prefix("bytes ").and_then(|range| range.split('-').next());
        let begins_right = first.and_then(|first| first.trim().parse().ok()) == Some(self.n_bytes);
        let tag = reply.header("etag").map(str::to_owned);
        let same_tag = self.tag.is_none() || tag.is_none() || self.tag == tag;
        let same_total = match (self.size, total(&reply)) {
            (Some(size), Some(total)) => size == total,
            _ => true,
        };
        if !(begins_right && same_tag && same_total) || self.n_bytes == 0 {
            self.tag = None;
            return self.restart("the server has another content now").map(|()| Step::Again);
        }
        self.tag = tag;
        self.size = self.size.or(total(&reply));
        self.is_whole = false;
        self.read(reply)
    }

    /// Writes the body of a reply behind what is there.
    fn read(&mut self, reply: Reply) -> Result<Step, Error> {
        let encoding = reply.header("content-encoding").unwrap_or("identity").to_ascii_lowercase();
        if encoding != "identity" {
            return Err(self.not_a_hub(&format!("it compresses ({encoding}) although nobody asked for that")));
        }
        let mut body = reply.body.into_reader();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => return Err(failed(&reply.url, false, &ureq::Error::from(error))),
            };
            if self.size.is_some_and(|size| self.n_bytes + n as u64 > size) {
                return Ok(Step::Stale(self.not_a_hub("it sends more bytes than it has announced")));
            }
            self.partial.file.write_all(&buffer[..n]).at(self.partial.path())?;
            self.check.update(&buffer[..n]);
            self.n_bytes += n as u64;
            (self.progress)(&Event::Bytes { path: self.path.as_str(), n_bytes: n as u64 });
        }
        match self.size {
            Some(size) if self.n_bytes < size => Err(Error::Connection {
                url: address::shown(&reply.url),
                cause: format!("it broke off after {} of {size} bytes", self.n_bytes),
            }),
            _ => Ok(Step::End),
        }
    }

    /// Whether the hub itself says that the file has another content now than when it was asked.
    fn other_content(&self, reply: &Reply) -> Option<Error> {
        let own = reply.header("etag").filter(|_| self.client.is_trusted(&reply.url));
        let now = Etag::of(reply.header("x-linked-etag").or(own)?)?;
        let is_success = reply.status < 300;
        let same_kind =
            now.is_sha256() == self.etag.is_sha256() && now.is_git_hash() == self.etag.is_git_hash();
        (is_success && same_kind && now != *self.etag).then(|| self.not_a_hub("the file has just changed"))
    }

    /// The error, if what came has another hash than the hub names.
    fn verified(&mut self) -> Result<Option<Error>, Error> {
        let check = std::mem::replace(&mut self.check, Check::Unknown);
        let found = check.finish(&mut self.partial.file).at(self.partial.path())?;
        let expected = self.etag.to_string();
        Ok(found.filter(|found| *found != expected).map(|found| Error::Hash {
            repo: self.repo.to_string(),
            path: self.path.to_string(),
            expected,
            found,
        }))
    }

    fn restart(&mut self, why: &'static str) -> Result<(), Error> {
        self.n_restarts += 1;
        if self.n_restarts > N_RESTARTS {
            return Err(self.not_a_hub("its replies do not fit together"));
        }
        (self.progress)(&Event::Restart { path: self.path.as_str(), why });
        self.partial.restart()?;
        self.check = Check::of(self.etag);
        (self.n_bytes, self.is_whole) = (0, true);
        Ok(())
    }

    fn not_a_hub(&self, problem: &str) -> Error {
        Error::NotAHub { url: address::shown(self.url), problem: problem.to_owned() }
    }
}

/// The length of the whole content, as in `bytes 5-9/10` and `bytes */10`.
fn total(reply: &Reply) -> Option<u64> {
    reply.header("content-range")?.rsplit('/').next()?.trim().parse().ok()
}
