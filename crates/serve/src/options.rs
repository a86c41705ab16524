//! What can be chosen of a server, and the limits that it holds everybody to.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Where a server listens unless somebody says otherwise: on this machine alone.
pub const DEFAULT_HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The port unless somebody says otherwise.
pub const DEFAULT_PORT: u16 = 8000;

/// A key that clients show. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key; `None` for one that no client can send: empty, with spaces, or with other characters than ASCII has.
    pub fn new(key: &str) -> Option<ApiKey> {
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        is_key.then(|| ApiKey(key.to_owned()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// How a server behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Keys of which a request must show one; without any, everybody who reaches the server may use it.
    pub api_keys: Vec<ApiKey>,
    /// Names by which the server may be addressed while there is no key, beside those of this machine.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://chat.example`) whose pages may use the server from a browser.
    pub allowed_origins: Vec<String>,
    /// Whether a name that no model has means the first model, as LLaMA-Factory's and MiniMind's servers take it.
    pub accepts_any_model: bool,
    /// Whether chats stream where they do not say, as MiniMind's do.
    pub streams_by_default: bool,
    /// The most tokens of an answer to a chat that does not say; without it, what the context has room for.
    pub max_tokens: Option<usize>,
    /// How many threads serve connections, 1 or 2: more would take cores from the model.
    pub n_threads: usize,
    /// What nobody may exceed.
    pub limits: Limits,
}

impl Options {
    /// For a server on this machine alone.
    pub fn local() -> Options {
        Options {
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            accepts_any_model: false,
            streams_by_default: false,
            max_tokens: None,
            n_threads: 1,
            limits: Limits::STANDARD,
        }
    }
}

/// What nobody may exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time; others wait to be accepted.
    pub n_connections: usize,
    /// The head of a request: its line and its headers.
    pub head_bytes: usize,
    /// How long a head may take, and how long a connection may be idle.
    pub head_time: Duration,
    /// The body of a request.
    pub body_bytes: usize,
    /// How long a body may take.
    pub body_time: Duration,
    /// The bodies that are being read or made into tokens, together.
    pub all_bodies_bytes: usize,
    /// The values of a body: each takes many times the memory of its text.
    pub n_values: usize,
    /// How deeply the values of a body may be nested.
    pub depth: usize,
    /// The messages of a conversation.
    pub n_messages: usize,
    /// The functions that a model may call.
    pub n_tools: usize,
    /// The answers to one prompt.
    pub n_choices: usize,
    /// The sequences of one request: prompts times answers.
    pub n_sequences: usize,
    /// The texts of one request for embeddings or scores.
    pub n_texts: usize,
    /// The strings that end an answer.
    pub n_stops: usize,
    /// The length of such a string.
    pub stop_bytes: usize,
    /// How long a request waits for its turn.
    pub wait_time: Duration,
    /// How often a stream says that it is alive.
    pub ping_time: Duration,
    /// How long a client may take nothing of its answer.
    pub write_time: Duration,
    /// How long answers may go on when the server is ended.
    pub drain_time: Duration,
}

impl Limits {
    /// What suits a server of one machine.
    pub const STANDARD: Limits = Limits {
        n_connections: 512,
        head_bytes: 32 << 10,
        head_time: Duration::from_secs(10),
        body_bytes: 8 << 20,
        body_time: Duration::from_secs(30),
        all_bodies_bytes: 64 << 20,
        n_values: 1 << 18,
        depth: 64,
        n_messages: 1024,
        n_tools: 128,
        n_choices: 8,
        n_sequences: 128,
        n_texts: 2048,
        n_stops: 16,
        stop_bytes: 256,
        wait_time: Duration::from_secs(540),
        ping_time: Duration::from_secs(15),
        write_time: Duration::from_secs(60),
        drain_time: Duration::from_secs(30),
    };
}
