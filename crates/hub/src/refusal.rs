//! What a refusal means. The headers of the hub decide, not the status: 401 also stands for a name that does not exist.

use crate::address;
use crate::client::{Client, Reply};
use crate::error::Error;
use crate::names::Repo;
use crate::pauses::{self, RateLimit};

/// What a request was about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'s> {
    pub(crate) repo: &'s Repo,
    /// The file, where it was one.
    pub(crate) path: Option<&'s str>,
}

impl<'s> Subject<'s> {
    pub(crate) fn repo(repo: &'s Repo) -> Subject<'s> {
        Subject { repo, path: None }
    }
}

/// The error for a reply with a status of 400 or more.
pub(crate) fn of(reply: &Reply, subject: &Subject<'_>, client: &Client) -> Error {
    let repo = subject.repo;
    let code = reply.header("x-error-code").unwrap_or_default();
    let message = printable(reply.header("x-error-message").unwrap_or_default());
    let (endpoint, page, login) = (client.endpoint.clone(), client.page(repo), client.login_advice());
    let (token, url) = (client.token_source(), address::shown(&reply.url));
    // Content comes from other servers too, whose 401 and 404 say nothing about the repository.
    let is_hub = client.is_trusted(&reply.url);
    let entry_not_found = || Error::EntryNotFound {
        repo: repo.to_string(),
        path: subject.path.unwrap_or_default().to_owned(),
        revision: repo.revision.clone(),
        nearest: None,
    };
    match (code, reply.status) {
        ("RevisionNotFound", _) => {
            Error::RevisionNotFound { repo: repo.to_string(), revision: repo.revision.clone(), nearest: None }
        }
        ("EntryNotFound", _) => entry_not_found(),
        ("GatedRepo", _) => Error::Gated { repo: repo.to_string(), page, token, login },
        _ if message == "Access to this resource is disabled." => Error::Disabled { repo: repo.to_string() },
        (_, 401) if message == "Invalid credentials in Authorization header" => {
            Error::Token { endpoint, token }
        }
        ("RepoNotFound", _) => {
            Error::RepositoryNotFound { endpoint, repo: repo.to_string(), page, token, login }
        }
        (_, 404) if is_hub && subject.path.is_some() => entry_not_found(),
        (_, 401 | 404) if is_hub => {
            Error::RepositoryNotFound { endpoint, repo: repo.to_string(), page, token, login }
        }
        (_, 403) => {
            let message = if message.is_empty() { "the hub gives no reason".to_owned() } else { message };
            Error::Forbidden { url, message, token }
        }
        (_, 429) => too_many(reply, url),
        (_, 416) => {
            let message =
                format!(": Content-Range is {:?}", reply.header("content-range").unwrap_or_default());
            Error::Status { url, status: 416, message }
        }
        (_, status) => {
            let message = if message.is_empty() { String::new() } else { format!(": {message}") };
            Error::Status { url, status, message }
        }
    }
}

fn too_many(reply: &Reply, url: String) -> Error {
    let limit = RateLimit::of(reply.header("ratelimit"), reply.header("ratelimit-policy"));
    let pause = pauses::asked_for(limit.as_ref(), reply.header("retry-after"));
    let detail = match limit.filter(|limit| limit.remaining == 0) {
        Some(limit) => {
            let quota = limit.quota.map(|(q, w)| format!(" ({q} in {w} s)")).unwrap_or_default();
            format!(": the limit of {:?} is reached for {} s{quota}", limit.resource, limit.seconds)
        }
        None => pause.map(|pause| format!(": it asks to wait {} s", pause.as_secs())).unwrap_or_default(),
    };
    Error::TooManyRequests { url, detail, pause }
}

/// What a server says, as a terminal may show it.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}
