//! A hub on this machine that behaves as huggingface.co and modelscope.cn do, with a second server for large files.

mod http;
mod modelscope;
mod routes;

use std::collections::{BTreeMap, HashMap};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oarlock_hub::{Environment, Event, Hub, Site};
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub use http::{Request, Server};

/// The token that the hub accepts.
pub const TOKEN: &str = "hf_goodtokenmarker";

/// A hub with its server for large files, for as long as the test runs.
pub struct FakeHub {
    /// Where the hub answers.
    pub endpoint: String,
    /// Where the large files lie.
    pub cdn: String,
    state: Arc<State>,
}

/// What both servers share.
pub struct State {
    repos: Mutex<Vec<FakeRepo>>,
    faults: Mutex<Faults>,
    log: Mutex<Vec<Request>>,
    n_content_bytes: AtomicU64,
    is_down: AtomicBool,
    cdn: String,
    endpoint: String,
}

/// A repository.
#[derive(Clone)]
pub struct FakeRepo {
    /// `models` or `datasets`.
    pub kind: &'static str,
    /// `owner/name`.
    pub id: String,
    /// The commit that all its revisions name.
    pub commit: String,
    /// Its branches and tags.
    pub revisions: Vec<String>,
    /// Its files.
    pub files: BTreeMap<String, FakeFile>,
    /// Names in its list behind which there is nothing.
    pub listed: Vec<String>,
    /// Its former name.
    pub renamed_from: Option<String>,
    /// Who may see it.
    pub access: Access,
}

/// Who may see a repository.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    All,
    /// Who shows the token.
    Private,
    /// Nobody yet.
    Gated,
    Disabled,
    Forbidden,
}

/// A file of a repository.
#[derive(Clone)]
pub struct FakeFile {
    pub content: Vec<u8>,
    /// Whether it lies on the second server.
    pub is_large: bool,
}

impl FakeFile {
    pub fn etag(&self) -> String {
        match self.is_large {
            true => hex(&Sha256::digest(&self.content)),
            false => git_hash(&self.content),
        }
    }
}

/// An answer that a test orders: of a server, with a status and headers.
pub type Answer = (Server, u16, Vec<(&'static str, &'static str)>);

/// What goes wrong. Numbers count down to nothing.
#[derive(Default)]
pub struct Faults {
    /// Bodies that end after so many bytes, so many times.
    pub cut_after: Option<(usize, u32)>,
    /// Content is sent in parts of so many bytes with a pause behind each.
    pub slow: Option<(usize, Duration)>,
    /// Ranges are answered with everything.
    pub ignores_ranges: bool,
    /// So many contents have a wrong first byte.
    pub n_wrong: u32,
    /// What a file is once its headers were asked for.
    pub changes_to: Option<(String, Vec<u8>)>,
    /// Canned answers of a server to the next requests for content or headers: status and headers.
    pub answers: Vec<Answer>,
    /// Those that follow the last body that ends early.
    pub answers_after_cut: Vec<Answer>,
    /// Bodies that end early leave their connection open instead of closing it.
    pub cut_hangs: bool,
    /// Headers of answers that are missing.
    pub without: Vec<&'static str>,
    /// Entity tags are weak.
    pub is_weak: bool,
    /// Content is said to be compressed, whatever was asked for.
    pub forces_gzip: bool,
    /// Lists have pages of so many entries.
    pub page: Option<usize>,
    /// Entity tags of the second server, one for each content that it sends.
    pub tags: Vec<&'static str>,
    /// Answers never come.
    pub hangs: bool,
}

impl FakeHub {
    pub fn start(repos: Vec<FakeRepo>) -> FakeHub {
        // By another name, as clients know the hosts of a hub.
        let listen = |host: &str| TcpListener::bind((host, 0)).unwrap();
        let (hub, cdn) = (listen("127.0.0.1"), listen("127.0.0.2"));
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            repos: Mutex::new(repos),
            faults: Mutex::default(),
            log: Mutex::default(),
            n_content_bytes: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            cdn: address(&cdn),
            endpoint: address(&hub),
        });
        http::serve(hub, Server::Hub, state.clone());
        http::serve(cdn, Server::Cdn, state.clone());
        FakeHub { endpoint: state.endpoint.clone(), cdn: state.cdn.clone(), state }
    }

    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.state.faults.lock().unwrap()
    }

    pub fn repos(&self) -> MutexGuard<'_, Vec<FakeRepo>> {
        self.state.repos.lock().unwrap()
    }

    /// The requests so far, which are forgotten by this.
    pub fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.log.lock().unwrap())
    }

    /// How many bytes of content were sent.
    pub fn n_content_bytes(&self) -> u64 {
        self.state.n_content_bytes.load(Ordering::SeqCst)
    }

    /// Cuts the network, or repairs it.
    pub fn set_down(&self, is_down: bool) {
        self.state.is_down.store(is_down, Ordering::SeqCst);
    }

    /// The environment of a user with this hub, with a cache in a folder.
    pub fn environment(&self, home: &Path, variables: &[(&str, &str)]) -> Environment {
        let home = home.to_str().unwrap();
        let mut all: HashMap<_, _> = [
            ("HOME", home),
            ("HF_ENDPOINT", self.endpoint.as_str()),
            ("MODELSCOPE_ENDPOINT", self.endpoint.as_str()),
        ]
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
        all.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        let mut environment = Environment::of(&all);
        environment.first_pause = Duration::from_millis(5);
        environment.download_timeout = Duration::from_secs(5);
        environment.etag_timeout = Duration::from_secs(2);
        environment
    }

    pub fn hub(&self, home: &Path, variables: &[(&str, &str)]) -> Hub {
        Hub::new(self.environment(home, variables), Site::HuggingFace).unwrap()
    }
}

/// The folder of the cache below a home.
pub fn cache(home: &Path) -> std::path::PathBuf {
    home.join(".cache/huggingface/hub")
}

/// Events as words, to be compared.
pub fn words(event: &Event<'_>) -> String {
    match event {
        Event::Begin { path, present, .. } => format!("begin {path} {present}"),
        Event::Bytes { .. } => String::new(),
        Event::Restart { path, why } => format!("restart {path}: {why}"),
        Event::Done { path } => format!("done {path}"),
        Event::Pause { why, .. } => format!("pause: {why}"),
        Event::Waiting { path } => format!("waiting {path}"),
        Event::Note(text) => format!("note: {text}"),
        other => format!("{other:?}"),
    }
}

/// A hub that keeps its events as words.
pub fn listening(hub: Hub) -> (Hub, Arc<Mutex<Vec<String>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keep = heard.clone();
    let hub = hub.with_progress(move |event| {
        let words = words(event);
        if !words.is_empty() {
            keep.lock().unwrap().push(words);
        }
    });
    (hub, heard)
}

/// A repository with small files, and large ones where the name says so.
pub fn repo(kind: &'static str, id: &str, files: &[(&str, &[u8])]) -> FakeRepo {
    let file = |(path, content): &(&str, &[u8])| {
        let is_large = [".safetensors", ".bin", ".parquet", ".gguf"].iter().any(|end| path.ends_with(end));
        ((*path).to_owned(), FakeFile { content: content.to_vec(), is_large })
    };
    FakeRepo {
        kind,
        id: id.to_owned(),
        commit: hex(&Sha1::digest(id)),
        revisions: vec!["main".to_owned(), "v1.0".to_owned(), "refs/pr/1".to_owned()],
        files: files.iter().map(file).collect(),
        listed: Vec::new(),
        renamed_from: None,
        access: Access::All,
    }
}

/// A small model with all that a model has.
pub fn model() -> FakeRepo {
    repo(
        "models",
        "owner/tiny.model",
        &[
            ("config.json", b"{\"model_type\": \"llama\"}"),
            ("tokenizer.json", b"{}"),
            ("additional_chat_templates/rag.jinja", b"{{ x }}"),
            ("model.safetensors", &noise(100_000)),
            ("pytorch_model.bin", b"a pickle"),
            ("README.md", b"# Tiny"),
        ],
    )
}

/// Bytes that repeat nowhere.
pub fn noise(n_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..n_bytes).map(|_| next() as u8).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn git_hash(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hex(&hash.finalize())
}
