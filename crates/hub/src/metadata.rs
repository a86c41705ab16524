//! What a hub says of one file before it is downloaded: commit, entity tag, size, and where the content lies.

use std::time::Duration;

use crate::address;
use crate::client::{Client, Method, Reply, Request};
use crate::error::Error;
use crate::names::{self, Etag, Repo, RepoPath};
use crate::refusal::{self, Subject};

/// One file as the hub has it now.
#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    pub(crate) commit: String,
    pub(crate) etag: Etag,
    /// Unknown where a redirect says nothing of it.
    pub(crate) size: Option<u64>,
    /// Where the content lies: on the hub, or on a server that needs no token.
    pub(crate) location: String,
}

/// The answer to the question for a file.
pub(crate) enum Answer {
    File(Metadata),
    /// The commit has no such file, which is worth remembering.
    Absent {
        commit: Option<String>,
        error: Error,
    },
}

/// The address of a file on the hub.
pub(crate) fn url(client: &Client, repo: &Repo, path: &RepoPath) -> String {
    let (endpoint, prefix, id) = (&client.endpoint, repo.kind.prefix(), &repo.id);
    let revision = address::encoded(&repo.revision, false);
    format!("{endpoint}/{prefix}{id}/resolve/{revision}/{}", address::encoded(path.as_str(), true))
}

/// Asks for a file once.
///
/// # Errors
/// No answer, a refusal, and an answer that no hub gives.
pub(crate) fn ask(client: &Client, repo: &Repo, path: &RepoPath, timeout: Duration) -> Result<Answer, Error> {
    let url = url(client, repo, path);
    let subject = Subject { repo, path: Some(path.as_str()) };
    let reply = client.send(&Request { method: Method::Head, url: &url, from_byte: 0, timeout })?;
    let commit = reply.header("x-repo-commit").map(str::to_owned);
    if reply.status < 400 {
        return of_reply(&reply, commit).map(Answer::File);
    }
    match refusal::of(&reply, &subject, client) {
        error @ Error::EntryNotFound { .. } => {
            Ok(Answer::Absent { commit: commit.filter(|commit| names::is_commit(commit)), error })
        }
        error => Err(error),
    }
}

fn of_reply(reply: &Reply, commit: Option<String>) -> Result<Metadata, Error> {
    let wrong =
        |problem: &str| Error::NotAHub { url: address::shown(&reply.url), problem: problem.to_owned() };
    let commit = commit.ok_or_else(|| wrong("its answer has no header X-Repo-Commit"))?;
    if !names::is_commit(&commit) {
        return Err(wrong("its header X-Repo-Commit is not a commit"));
    }
    let tag = reply.header("x-linked-etag").or_else(|| reply.header("etag"));
    let tag =
        tag.ok_or_else(|| wrong("its answer has no header ETag, by which the content could be checked"))?;
    let etag = Etag::of(tag).ok_or_else(|| wrong("its header ETag cannot be the name of a file"))?;
    let number = |name: &str| reply.header(name).and_then(|text| text.trim().parse::<u64>().ok());
    // The length of a redirect is that of its own text.
    let length = if reply.is_redirect() { None } else { number("content-length") };
    let location = match reply.header("location").filter(|_| reply.is_redirect()) {
        Some(location) => address::joined(&reply.url, location)
            .ok_or_else(|| wrong("it redirects to what is not an address"))?,
        None => reply.url.clone(),
    };
    Ok(Metadata { commit, etag, size: number("x-linked-size").or(length), location })
}
