//! What the environment says about hubs, read once into plain values.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::reading;
use crate::secret::{Secret, Token, TokenSource};

/// The address of the Hugging Face hub.
pub(crate) const HUGGING_FACE: &str = "https://huggingface.co";

/// What the variables of the environment say. Everything else of the crate reads these fields and no variable.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The address of the hub, without a slash at its end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// The folder of the cache: `HF_HUB_CACHE`, else `hub` in `HF_HOME`.
    pub cache: PathBuf,
    /// The token: `HF_TOKEN`, else the file of `HF_TOKEN_PATH`.
    pub token: Option<Token>,
    /// No request at all: `HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE`.
    pub is_offline: bool,
    /// No request for data sets: `HF_DATASETS_OFFLINE`.
    pub datasets_are_offline: bool,
    /// How long the metadata of a file may take: `HF_HUB_ETAG_TIMEOUT`.
    pub etag_timeout: Duration,
    /// How long one read of a download may take: `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub download_timeout: Duration,
    /// Files are moved or copied into snapshots instead of linked: `HF_HUB_DISABLE_SYMLINKS`.
    pub no_symlinks: bool,
    /// Programs should draw no progress: `HF_HUB_DISABLE_PROGRESS_BARS`.
    pub no_progress: bool,
    /// What is said of this program in requests is its name alone: `HF_HUB_DISABLE_TELEMETRY`, `DO_NOT_TRACK`.
    pub no_telemetry: bool,
    /// The proxies for addresses with `https`, and with `http`: they may hold a password.
    pub proxies: [Option<Secret>; 2],
    /// The hosts that are reached without a proxy: `NO_PROXY`.
    pub no_proxy: Vec<String>,
    /// Certificates to trust instead of Mozilla's: `SSL_CERT_FILE`, else `REQUESTS_CA_BUNDLE`.
    pub certificates: Option<PathBuf>,
    /// Names of models go to ModelScope: `USE_MODELSCOPE_HUB`.
    pub uses_modelscope: bool,
    /// The address of ModelScope, without a slash at its end: `MODELSCOPE_ENDPOINT`.
    pub modelscope_endpoint: String,
    /// The folder of ModelScope's cache: `MODELSCOPE_CACHE`.
    pub modelscope_cache: PathBuf,
    /// The token of ModelScope: `MODELSCOPE_API_TOKEN`.
    pub modelscope_token: Option<Token>,
    /// The first pause between two tries; the next ones are twice as long each, up to eight times this.
    pub first_pause: Duration,
}

impl Environment {
    /// Reads the variables of this process.
    pub fn read() -> Environment {
        Environment::of(&std::env::vars_os().collect())
    }

    /// Reads given variables, and the file of the token that they lead to.
    pub fn of(variables: &HashMap<OsString, OsString>) -> Environment {
        let values = Values(variables);
        let home = values.path("HOME").unwrap_or_else(|| PathBuf::from("/"));
        let caches = values.expanded("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hf_home = values.expanded("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let cache = values
            .expanded("HF_HUB_CACHE")
            .or_else(|| values.expanded("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| hf_home.join("hub"));
        let endpoint = values.text("HF_ENDPOINT").unwrap_or_else(|| HUGGING_FACE.to_owned());
        Environment {
            endpoint: with_scheme(&endpoint),
            cache,
            token: values.token(&hf_home),
            is_offline: values.flag("HF_HUB_OFFLINE") || values.flag("TRANSFORMERS_OFFLINE"),
            datasets_are_offline: values.flag("HF_DATASETS_OFFLINE"),
            etag_timeout: values.seconds("HF_HUB_ETAG_TIMEOUT"),
            download_timeout: values.seconds("HF_HUB_DOWNLOAD_TIMEOUT"),
            no_symlinks: values.flag("HF_HUB_DISABLE_SYMLINKS"),
            no_progress: values.flag("HF_HUB_DISABLE_PROGRESS_BARS"),
            no_telemetry: values.flag("HF_HUB_DISABLE_TELEMETRY") || values.flag("DO_NOT_TRACK"),
            proxies: ["HTTPS_PROXY", "HTTP_PROXY"].map(|name| {
                values.either_case(name).or_else(|| values.either_case("ALL_PROXY")).map(Secret::new)
            }),
            no_proxy: values.either_case("NO_PROXY").map(|list| hosts(&list)).unwrap_or_default(),
            certificates: values.path("SSL_CERT_FILE").or_else(|| values.path("REQUESTS_CA_BUNDLE")),
            uses_modelscope: values.flag("USE_MODELSCOPE_HUB"),
            modelscope_endpoint: values.modelscope_endpoint(),
            modelscope_cache: values
                .expanded("MODELSCOPE_CACHE")
                .unwrap_or_else(|| home.join(".cache").join("modelscope")),
            modelscope_token: values
                .text("MODELSCOPE_API_TOKEN")
                .and_then(|text| Token::of(&text, TokenSource::Variable("MODELSCOPE_API_TOKEN"))),
            first_pause: Duration::from_secs(1),
        }
    }

    /// Takes a token of the Hugging Face hub instead of that of the variables. One that no header can hold is none.
    pub fn give_token(&mut self, token: &str) {
        self.token = Token::of(token, TokenSource::Given);
    }

    /// Takes a token of ModelScope instead of that of the variables.
    pub fn give_modelscope_token(&mut self, token: &str) {
        self.modelscope_token = Token::of(token, TokenSource::Given);
    }

    /// Where the token came from.
    pub fn token_source(&self) -> TokenSource {
        self.token.as_ref().map_or(TokenSource::None, |token| token.source.clone())
    }
}

/// The variables by name. An empty one is as if it were not there.
struct Values<'v>(&'v HashMap<OsString, OsString>);

impl Values<'_> {
    fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(std::ffi::OsStr::new(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn text(&self, name: &str) -> Option<String> {
        let value = self.path(name)?;
        value.to_str().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Proxies are written in small letters as often.
    fn either_case(&self, name: &str) -> Option<String> {
        self.text(name).or_else(|| self.text(&name.to_ascii_lowercase()))
    }

    fn flag(&self, name: &str) -> bool {
        self.text(name)
            .is_some_and(|text| matches!(text.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
    }

    /// Ten, where no sound number of seconds is given.
    fn seconds(&self, name: &str) -> Duration {
        let given = self.text(name).and_then(|text| text.parse::<u64>().ok());
        Duration::from_secs(given.filter(|seconds| (1..=86_400).contains(seconds)).unwrap_or(10))
    }

    /// A path in which `~` and `$NAME` or `${NAME}` are replaced, as Python's `expanduser` and `expandvars` do.
    fn expanded(&self, name: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        let Some(text) = path.to_str() else { return Some(path) };
        let text = match (text.strip_prefix('~'), self.path("HOME")) {
            (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
                format!("{}{rest}", home.display())
            }
            _ => text.to_owned(),
        };
        Some(PathBuf::from(self.with_variables(&text)))
    }

    fn with_variables(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            out.push_str(before);
            let (name, after) = match behind.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
                Some(braced) => braced,
                None => {
                    let end = behind.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
                    behind.split_at(end)
                }
            };
            match self.text(name) {
                Some(value) => {
                    out.push_str(&value);
                    rest = after;
                }
                None => {
                    out.push('$');
                    rest = behind;
                }
            }
        }
        out + rest
    }

    fn token(&self, hf_home: &Path) -> Option<Token> {
        if self.flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            return None;
        }
        let of_variable = |name| Token::of(&self.text(name)?, TokenSource::Variable(name));
        of_variable("HF_TOKEN").or_else(|| of_variable("HUGGING_FACE_HUB_TOKEN")).or_else(|| {
            let path = self.expanded("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
            let text = reading::text(&path, 4096).ok()?;
            Token::of(&text, TokenSource::File(path))
        })
    }

    fn modelscope_endpoint(&self) -> String {
        let named = self.text("MODELSCOPE_ENDPOINT").or_else(|| self.text("MODELSCOPE_DOMAIN"));
        let default = match self.flag("MODELSCOPE_PREFER_AI_SITE") {
            true => "https://www.modelscope.ai",
            false => "https://modelscope.cn",
        };
        with_scheme(&named.unwrap_or_else(|| default.to_owned()))
    }
}

/// An address without a slash at its end; one without a scheme gets `https`.
fn with_scheme(address: &str) -> String {
    let address = address.trim_end_matches('/');
    match address.contains("://") {
        true => address.to_owned(),
        false => format!("https://{address}"),
    }
}

fn hosts(list: &str) -> Vec<String> {
    let names = list.split(',').map(|name| name.trim().trim_start_matches('*').to_ascii_lowercase());
    // A lone star has become empty here, and stands for all hosts.
    let all = list.split(',').any(|name| name.trim() == "*");
    if all { vec!["*".to_owned()] } else { names.filter(|name| !name.is_empty()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Environment {
        Environment::of(&variables.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    #[test]
    fn folders_follow_the_order_of_huggingface() {
        let cache = |variables: &[(&str, &str)]| of(variables).cache.to_str().unwrap().to_owned();
        assert_eq!(cache(&[("HOME", "/h")]), "/h/.cache/huggingface/hub");
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), "/x/huggingface/hub");
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/hf")]), "/h/hf/hub");
        assert_eq!(cache(&[("HF_HOME", "$A/${B}/$C"), ("A", "/a"), ("B", "b")]), "/a/b/$C/hub");
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HOME", "/n")]), "/old");
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")]), "/new");
        assert_eq!(cache(&[("HF_HUB_CACHE", ""), ("HF_HOME", "/n")]), "/n/hub");
    }

    #[test]
    fn a_variable_wins_over_the_file_of_the_token() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let both = of(&[("HF_HOME", home), ("HF_TOKEN", " hf_variable\n")]).token.unwrap();
        assert_eq!((both.secret.reveal(), both.source), ("hf_variable", TokenSource::Variable("HF_TOKEN")));
        let file = of(&[("HF_HOME", home)]).token.unwrap();
        assert_eq!(file.secret.reveal(), "hf_file");
        assert_eq!(file.source, TokenSource::File(folder.path().join("token")));
        assert!(of(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).token.is_none());
        let shown = format!("{:?}", of(&[("HF_TOKEN", "hf_variable")]));
        assert!(!shown.contains("hf_variable"), "{shown}");
    }

    #[test]
    fn flags_and_numbers_are_read_as_python_reads_them() {
        for yes in ["1", "on", "Yes", "TRUE"] {
            assert!(of(&[("HF_HUB_OFFLINE", yes)]).is_offline, "{yes}");
        }
        for no in ["0", "", "off", "2"] {
            assert!(!of(&[("HF_HUB_OFFLINE", no)]).is_offline, "{no}");
        }
        assert_eq!(of(&[("HF_HUB_ETAG_TIMEOUT", "3")]).etag_timeout, Duration::from_secs(3));
        for wrong in ["-1", "x", "0", "99999999999999999999"] {
            let read = of(&[("HF_HUB_DOWNLOAD_TIMEOUT", wrong)]).download_timeout;
            assert_eq!(read, Duration::from_secs(10), "{wrong}");
        }
        assert_eq!(of(&[("HF_ENDPOINT", "https://mirror.example/")]).endpoint, "https://mirror.example");
        assert_eq!(of(&[("MODELSCOPE_DOMAIN", "x.cn")]).modelscope_endpoint, "https://x.cn");
        assert_eq!(of(&[("NO_PROXY", "a.com, .b.com,*.c.com")]).no_proxy, ["a.com", ".b.com", ".c.com"]);
        assert_eq!(of(&[("ALL_PROXY", "http://p:1")]).proxies[0].as_ref().unwrap().reveal(), "http://p:1");
    }
}
