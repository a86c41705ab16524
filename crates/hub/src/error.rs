//! What can go wrong, each with its cause and what to do. No message holds a token or the signature of an address.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::secret::TokenSource;

/// Why something could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that no repository has.
    #[error("{name:?} names no repository on a hub: {problem}")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A path that could lead out of the folder it is meant for.
    #[error(
        "the path {path:?}, {problem}, is refused: nothing is written for it; ask the owner of the repository to rename it"
    )]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No requests are allowed, and the cache does not have it.
    #[error("Cannot find the requested files in the disk cache and outgoing traffic has been disabled: {what} of the {repo} is not in {cache}; unset HF_HUB_OFFLINE, or fetch it once with a network", cache = .cache.display())]
    Offline {
        /// The repository.
        repo: String,
        /// What is missing of it.
        what: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub cannot be reached, and the cache does not have it.
    #[error("{what} of the {repo} is not in {cache}, and the hub did not answer: {cause}", cache = .cache.display())]
    Unreachable {
        /// The repository.
        repo: String,
        /// What is missing of it.
        what: String,
        /// The cache.
        cache: PathBuf,
        /// Why the hub was of no help.
        cause: Box<Error>,
    },
    /// The hub shows no such repository.
    #[error(
        "{endpoint} shows no {repo} to {token}: either the name is wrong, or it is private or gated and asks for a token that may read it; look at {page}, then {login}"
    )]
    RepositoryNotFound {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        repo: String,
        /// Its page, for people.
        page: String,
        /// Which token was shown.
        token: TokenSource,
        /// How a token is given.
        login: &'static str,
    },
    /// The owner lets in who has asked.
    #[error(
        "Cannot access gated repo with {token}: ask for access to the {repo} at {page} with the account of that token, and try again once it is granted; to use another account, {login}"
    )]
    Gated {
        /// What was asked for.
        repo: String,
        /// Its page, for people.
        page: String,
        /// Which token was shown.
        token: TokenSource,
        /// How a token is given.
        login: &'static str,
    },
    /// The hub does not know the token.
    #[error(
        "the hub does not accept {token}: it may have been revoked or have expired; make another at {endpoint}/settings/tokens"
    )]
    Token {
        /// The hub.
        endpoint: String,
        /// Which token was shown.
        token: TokenSource,
    },
    /// There is no such branch, tag or commit.
    #[error("the {repo} has no revision {revision:?}{hint}", hint = hint(.nearest, "name a branch, a tag or a commit of it"))]
    RevisionNotFound {
        /// The repository.
        repo: String,
        /// What was asked for.
        revision: String,
        /// The closest name that there is.
        nearest: Option<String>,
    },
    /// There is no such file.
    #[error("the {repo} has no file {path:?} at {revision}{hint}", hint = hint(.nearest, "look at its list of files"))]
    EntryNotFound {
        /// The repository.
        repo: String,
        /// What was asked for.
        path: String,
        /// At which revision.
        revision: String,
        /// The closest name that there is.
        nearest: Option<String>,
    },
    /// The hub has closed the repository.
    #[error("Access to this resource is disabled: the hub has closed the {repo}; take another one")]
    Disabled {
        /// The repository.
        repo: String,
    },
    /// The hub refuses.
    #[error("403 Forbidden: {message} ({url}). Make sure that {token} has the correct permissions")]
    Forbidden {
        /// The address, without its query.
        url: String,
        /// What the hub says.
        message: String,
        /// Which token was shown.
        token: TokenSource,
    },
    /// Too many requests.
    #[error("429 Too Many Requests for {url}{detail}; wait, or set HF_TOKEN: accounts may ask more often")]
    TooManyRequests {
        /// The address, without its query.
        url: String,
        /// Which limit, for how long.
        detail: String,
        /// How long the hub asks to wait.
        pause: Option<Duration>,
    },
    /// Any other refusal.
    #[error("{url} answered {status}{message}")]
    Status {
        /// The address, without its query.
        url: String,
        /// The status.
        status: u16,
        /// What it says, behind a colon.
        message: String,
    },
    /// The answer is not that of a hub.
    #[error("{url} did not answer as a hub does: {problem}; check HF_ENDPOINT, the firewall and the proxy")]
    NotAHub {
        /// The address, without its query.
        url: String,
        /// What is missing or wrong.
        problem: String,
    },
    /// No answer, or one that breaks off.
    #[error("{url}: {cause}; check the network and the proxy")]
    Connection {
        /// The address, without its query.
        url: String,
        /// What happened.
        cause: String,
    },
    /// The proxy does not do its work.
    #[error("the proxy for {url} failed: {cause}; check HTTPS_PROXY and NO_PROXY")]
    Proxy {
        /// The address, without its query.
        url: String,
        /// What happened.
        cause: String,
    },
    /// What came is not what the hub has.
    #[error(
        "{path} of the {repo} came with the hash {found}, and the hub names {expected}; it was not kept. Try again; if it stays so, something between here and the hub changes files"
    )]
    Hash {
        /// The repository.
        repo: String,
        /// The file.
        path: String,
        /// The hash that the hub names.
        expected: String,
        /// The hash of what came.
        found: String,
    },
    /// The disk is too full.
    #[error("the download needs {needs}, {free} free in {folder}; free some space, or set HF_HUB_CACHE to another disk", needs = bytes(*.needs), free = bytes(*.free), folder = .folder.display())]
    Space {
        /// Where it would be written.
        folder: PathBuf,
        /// Bytes that are still to come.
        needs: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// Reading or writing failed.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The repository has nothing that a model can be read from.
    #[error(
        "the {repo} has no weights that Oarlock reads: {found}; it reads model.safetensors, its shards, and adapter_model.safetensors"
    )]
    NoWeights {
        /// The repository.
        repo: String,
        /// What is there instead.
        found: String,
    },
    /// The data set cannot be read without more.
    #[error("the data set {id}: {problem}")]
    Dataset {
        /// Its name.
        id: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The file of certificates is of no use.
    #[error("{path} of SSL_CERT_FILE or REQUESTS_CA_BUNDLE: {problem}", path = .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// Whether the same may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Connection { .. } | Error::TooManyRequests { .. } => true,
            Error::Status { status, .. } => is_transient_status(*status),
            _ => false,
        }
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Error {
        Error::Io { path: path.to_owned(), source }
    }

    pub(crate) fn dataset(id: &str, problem: impl Into<String>) -> Error {
        Error::Dataset { id: id.to_owned(), problem: problem.into() }
    }
}

/// Adds the path to what the system says.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, Error>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::io(path, source))
    }
}

pub(crate) fn is_transient_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn hint(nearest: &Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(name) => format!("; did you mean {name:?}?"),
        None => format!("; {otherwise}"),
    }
}

/// A size as people say it, in decimal units as disks have them.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} bytes"),
        1_000..1_000_000 => format!("{} kB", n / 1_000),
        1_000_000..1_000_000_000 => format!("{} MB", n / 1_000_000),
        _ => format!("{}.{} GB", n / 1_000_000_000, n / 100_000_000 % 10),
    }
}
