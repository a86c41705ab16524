//! Requests: the headers that hubs expect, redirects, time limits, proxies, and which server may see the token.

use std::sync::Mutex;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Proxy};

use crate::address::{self, Origin};
use crate::environment::{Environment, HUGGING_FACE};
use crate::error::Error;
use crate::names::Repo;
use crate::pauses;
use crate::progress::{Event, Progress};
use crate::reading;
use crate::secret::{Secret, Token, TokenSource};

/// The most redirects that one request follows.
const N_REDIRECTS: usize = 20;

/// The servers of Hugging Face, to which a mirror may lead and which may see the token.
const HUBS: [&str; 3] = [HUGGING_FACE, "https://hf.co", "https://hub-ci.huggingface.co"];

/// The method of a request. Hubs are only read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Head,
    Get,
}

/// One request.
pub(crate) struct Request<'r> {
    pub(crate) method: Method,
    pub(crate) url: &'r str,
    /// The first byte to be sent, where not all are wanted.
    pub(crate) from_byte: u64,
    /// The limit for the connection and the headers.
    pub(crate) timeout: Duration,
}

/// An answer, whatever its status.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// The address that answered, behind all redirects that were followed.
    pub(crate) url: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }
}

/// How a hub wants to see the token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Login {
    /// In a header.
    Bearer,
    /// In a header and in a cookie, as older routes of ModelScope.
    BearerAndCookie,
}

/// What sends requests to one hub.
pub(crate) struct Client {
    agent: Agent,
    pub(crate) endpoint: String,
    token: Option<Token>,
    login: Login,
    trusted: Vec<Origin>,
    proxies: [Option<Proxy>; 2],
    no_proxy: Vec<String>,
    user_agent: String,
    pub(crate) etag_timeout: Duration,
    download_timeout: Duration,
    first_pause: Duration,
    /// Only one thread waits for a rate limit aloud.
    said: Mutex<()>,
}

impl Client {
    /// # Errors
    /// Certificates that cannot be read, and an address that is none.
    pub(crate) fn new(
        environment: &Environment,
        endpoint: &str,
        token: Option<Token>,
        login: Login,
    ) -> Result<Client, Error> {
        let own = Origin::of(endpoint).ok_or_else(|| Error::NotAHub {
            url: address::shown(endpoint),
            problem: "it is not an address with http or https".to_owned(),
        })?;
        let mut trusted = vec![own];
        if login == Login::Bearer {
            trusted.extend(HUBS.iter().filter_map(|hub| Origin::of(hub)));
        }
        let roots = match &environment.certificates {
            Some(_) => certificates(environment)?,
            None => RootCerts::WebPki,
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_resolve(Some(environment.etag_timeout))
            .timeout_per_read(Some(environment.download_timeout))
            .proxy(None)
            .max_idle_connections_per_host(8)
            .build();
        let version = env!("CARGO_PKG_VERSION");
        let user_agent = match environment.no_telemetry {
            true => "oarlock".to_owned(),
            false => format!("oarlock/{version}; rust"),
        };
        let [https, http] = &environment.proxies;
        let proxies = [proxy(https, endpoint)?, proxy(http, endpoint)?];
        Ok(Client {
            agent: agent.into(),
            endpoint: endpoint.to_owned(),
            token,
            login,
            trusted,
            proxies,
            no_proxy: environment.no_proxy.clone(),
            user_agent,
            etag_timeout: environment.etag_timeout,
            download_timeout: environment.download_timeout,
            first_pause: environment.first_pause,
            said: Mutex::new(()),
        })
    }

    /// Which token requests show.
    pub(crate) fn token_source(&self) -> TokenSource {
        self.token.as_ref().map_or(TokenSource::None, |token| token.source.clone())
    }

    /// The page of a repository, for people.
    pub(crate) fn page(&self, repo: &Repo) -> String {
        let prefix = match self.login {
            Login::Bearer => repo.kind.prefix().to_owned(),
            Login::BearerAndCookie => format!("{}/", repo.kind.plural()),
        };
        format!("{}/{prefix}{}", self.endpoint, repo.id)
    }

    /// How a user gives a token.
    pub(crate) fn login_advice(&self) -> &'static str {
        match self.login {
            Login::Bearer => "set HF_TOKEN or run `hf auth login`",
            Login::BearerAndCookie => "set MODELSCOPE_API_TOKEN",
        }
    }

    /// The time limit of requests for content.
    pub(crate) fn content_timeout(&self) -> Duration {
        self.download_timeout
    }

    /// Whether an address is of this hub, so that it may see the token.
    pub(crate) fn is_trusted(&self, url: &str) -> bool {
        Origin::of(url).is_some_and(|origin| self.trusted.contains(&origin))
    }

    /// Sends a request and follows its redirects. One that asks for headers alone stops before a server that is no hub:
    /// what is wanted is in the headers of the reply that leads there.
    ///
    /// # Errors
    /// No answer. A refusal is an answer.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Reply, Error> {
        let mut url = request.url.to_owned();
        for _ in 0..=N_REDIRECTS {
            let reply = self.send_once(request, &url)?;
            let Some(location) = reply.header("location").filter(|_| reply.is_redirect()) else {
                return Ok(reply);
            };
            let target = address::joined(&url, location).ok_or_else(|| Error::NotAHub {
                url: address::shown(&url),
                problem: "it redirects to what is not an address".to_owned(),
            })?;
            let is_same = Origin::of(&target) == Origin::of(&url);
            if request.method == Method::Head && !is_same && !self.is_trusted(&target) {
                return Ok(reply);
            }
            url = target;
        }
        let problem = format!("it redirects more than {N_REDIRECTS} times");
        Err(Error::NotAHub { url: address::shown(request.url), problem })
    }

    fn send_once(&self, request: &Request<'_>, url: &str) -> Result<Reply, Error> {
        let mut builder = match request.method {
            Method::Head => self.agent.head(url),
            Method::Get => self.agent.get(url),
        };
        builder = builder.header("User-Agent", &self.user_agent).header("X-HF-Download-Counter", "1");
        if request.from_byte > 0 {
            builder = builder.header("Range", format!("bytes={}-", request.from_byte));
        }
        if let Some(token) = self.token.as_ref().filter(|_| self.is_trusted(url)) {
            builder = builder.header("Authorization", format!("Bearer {}", token.secret.reveal()));
            if self.login == Login::BearerAndCookie {
                builder = builder.header("Cookie", format!("m_session_id={}", token.secret.reveal()));
            }
        }
        let proxy = Origin::of(url).and_then(|origin| {
            let proxy = &self.proxies[usize::from(!origin.is_https())];
            proxy.clone().filter(|_| !address::is_without_proxy(&origin.host, &self.no_proxy))
        });
        let has_proxy = proxy.is_some();
        let builder = builder
            .config()
            .proxy(proxy)
            .timeout_connect(Some(request.timeout))
            .timeout_recv_response(Some(request.timeout))
            .build();
        let response = builder.call().map_err(|error| failed(url, has_proxy, &error))?;
        let (parts, body) = response.into_parts();
        let status = StatusCode::as_u16(&parts.status);
        Ok(Reply { status, headers: parts.headers, body, url: url.to_owned() })
    }

    /// Tries again what failed for a reason that passes, with pauses.
    ///
    /// # Errors
    /// The last one.
    pub(crate) fn patiently<T>(
        &self,
        progress: &Progress,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let first = attempt();
        self.patiently_after(first, progress, attempt)
    }

    /// As [`Client::patiently`], behind a try that has been made already.
    ///
    /// # Errors
    /// The last one.
    pub(crate) fn patiently_after<T>(
        &self,
        first: Result<T, Error>,
        progress: &Progress,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut last = first;
        let mut retry = 0;
        loop {
            let error = match last {
                Err(error) if error.is_transient() && retry < pauses::N_RETRIES => error,
                done => return done,
            };
            let Some(pause) = self.pause_after(&error, retry) else { return Err(error) };
            self.wait(progress, pause, &error);
            retry += 1;
            last = attempt();
        }
    }

    /// How long to wait after an error; `None` if the hub asks for longer than anybody waits.
    pub(crate) fn pause_after(&self, error: &Error, retry: u32) -> Option<Duration> {
        match error {
            Error::TooManyRequests { pause: Some(pause), .. } => {
                (*pause <= pauses::LONGEST).then_some(*pause)
            }
            _ => Some(pauses::before(retry, self.first_pause)),
        }
    }

    /// Says why, and waits.
    pub(crate) fn wait(&self, progress: &Progress, pause: Duration, why: &Error) {
        if let Ok(_alone) = self.said.try_lock() {
            progress(&Event::Pause { pause, why });
        }
        std::thread::sleep(pause);
    }
}

/// The proxy behind an address. Requests must not go past one that a user has written wrongly.
fn proxy(address: &Option<Secret>, endpoint: &str) -> Result<Option<Proxy>, Error> {
    let wrong = |_| Error::Proxy { url: address::shown(endpoint), cause: "its address is none".to_owned() };
    address.as_ref().map(|address| Proxy::new(address.reveal()).map_err(wrong)).transpose()
}

/// The certificates of a file of them.
fn certificates(environment: &Environment) -> Result<RootCerts, Error> {
    let Some(path) = &environment.certificates else { return Ok(RootCerts::WebPki) };
    let problem = |problem: String| Error::Certificates { path: path.clone(), problem };
    let text = reading::text(path, 64 << 20).map_err(|error| problem(error.to_string()))?;
    let certificates: Vec<_> = parse_pem(text.as_bytes())
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match certificates.is_empty() {
        true => Err(problem("it holds no certificate in PEM".to_owned())),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}

/// What a failure of the transport means.
pub(crate) fn failed(url: &str, has_proxy: bool, error: &ureq::Error) -> Error {
    let url = address::shown(url);
    match error {
        ureq::Error::ConnectProxyFailed(cause) => Error::Proxy { url, cause: cause.clone() },
        ureq::Error::InvalidProxyUrl => Error::Proxy { url, cause: "its address is none".to_owned() },
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            Error::NotAHub { url, problem: "its address cannot be asked".to_owned() }
        }
        ureq::Error::Protocol(cause) => Error::NotAHub { url, problem: cause.to_string() },
        ureq::Error::Rustls(cause) => Error::NotAHub { url, problem: untrusted(&cause.to_string()) },
        // Another try finds the same certificate.
        ureq::Error::Io(cause) if cause.to_string().contains("certificate") => {
            Error::NotAHub { url, problem: untrusted(&cause.to_string()) }
        }
        other if has_proxy => Error::Connection { url, cause: format!("through a proxy: {other}") },
        other => Error::Connection { url, cause: other.to_string() },
    }
}

/// Networks of companies have certificates of their own.
fn untrusted(cause: &str) -> String {
    format!("{cause}; if this network has certificates of its own, name their file in SSL_CERT_FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_nobody_knows_is_no_failure_that_passes() {
        let cause =
            std::io::Error::new(std::io::ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer");
        let error = failed("https://hub.example/x?Signature=s", false, &ureq::Error::Io(cause));
        let said = error.to_string();
        assert!(
            !error.is_transient() && said.contains("SSL_CERT_FILE") && !said.contains("Signature"),
            "{said}"
        );
        assert!(failed("https://hub.example", false, &ureq::Error::HostNotFound).is_transient());
    }
}
