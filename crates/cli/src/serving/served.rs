//! A model that is served: its engine, its tokenizer, its chat template, and what is said of it.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oarlock::data::{ChatTemplate, Tokenizer};
use oarlock::generate::engine::{Engine, Limits};
use oarlock::generate::{Generator, Vocabulary};
use oarlock::model::hf::generation_stops;
use oarlock_lm::gguf;
use oarlock_serve::Sampling;
use serde_json::Value;

use crate::error::{Error, Result};

/// How many sequences are computed at a time, and how many wait.
const AT_ONCE: usize = 8;
const QUEUE: usize = 256;

/// The engine of a loaded model, which guesses so many tokens of an answer at most.
///
/// # Errors
/// No thread.
pub fn start(generator: Generator, speculative_tokens: usize) -> Result<Engine> {
    let limits = Limits { at_once: AT_ONCE, queue: QUEUE, speculative_tokens, ..Limits::default() };
    Ok(Engine::start(generator, limits)?)
}

/// A model that is served.
pub struct Served {
    name: String,
    /// The model below an adapter.
    parent: Option<String>,
    /// It may answer for others as well.
    pub(super) engine: Arc<Engine>,
    /// The adapter of the engine's model that this is, unless that is the model itself.
    pub(super) adapter: Option<usize>,
    pub(super) tokenizer: Tokenizer,
    /// Unless the model was only pretrained.
    pub(super) template: Option<ChatTemplate>,
    /// The tokens that end an answer.
    pub(super) stop_ids: Vec<u32>,
    /// Made when the first request wants it, and why it cannot be made.
    vocabulary: OnceLock<std::result::Result<Vocabulary, String>>,
    created: u64,
    sampling: Sampling,
}

impl Served {
    /// A model, or one of its adapters, whose tokenizer lies in `side`. The stops of a template end its answers beside its own.
    ///
    /// # Errors
    /// Settings and templates that cannot be read.
    pub fn new(
        name: &str,
        parent: Option<&str>,
        (engine, adapter): (Arc<Engine>, Option<usize>),
        tokenizer: Tokenizer,
        side: &Path,
        template: Option<(ChatTemplate, Vec<u32>)>,
    ) -> Result<Served> {
        let mut stop_ids = engine.generator().stop_ids(&tokenizer);
        stop_ids.extend(generation_stops(side)?);
        let template = match template {
            Some((template, more_stops)) => {
                stop_ids.extend(more_stops);
                Some(template)
            }
            None => ChatTemplate::is_in(side)?.then(|| ChatTemplate::read(side)).transpose()?,
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Ok(Served {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            engine,
            adapter,
            tokenizer,
            template,
            stop_ids,
            vocabulary: OnceLock::new(),
            created,
            sampling: sampling(side)?,
        })
    }

    /// The name in requests.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells its template whether the model is to think where a request does not say.
    pub fn think(&mut self, on: bool) {
        self.template = self.template.take().map(|template| template.thinking(on));
    }

    /// How tokens are drawn where a request does not say.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Draws tokens so where a request does not say.
    ///
    /// # Errors
    /// Settings that make no sense.
    pub fn sample_by(&mut self, sampling: Sampling) -> Result<()> {
        let is_sound = (0.0..=2.0).contains(&sampling.temperature)
            && (sampling.top_p > 0.0 && sampling.top_p <= 1.0)
            && (sampling.repetition_penalty > 0.0 && sampling.repetition_penalty.is_finite());
        if !is_sound {
            return Err(Error::Usage(format!(
                "temperature {} is from 0 to 2, top_p {} above 0 and at most 1, repetition_penalty {} above 0",
                sampling.temperature, sampling.top_p, sampling.repetition_penalty
            )));
        }
        self.sampling = sampling;
        Ok(())
    }

    /// Its tokens, as grammars see them; or why no answer can be held to one.
    pub(super) fn vocabulary(&self) -> std::result::Result<&Vocabulary, &String> {
        let made = self.vocabulary.get_or_init(|| {
            let n_tokens = self.engine.generator().model().decoder.config().vocab_size;
            Vocabulary::new(&self.tokenizer, n_tokens, &self.stop_ids).map_err(|error| error.to_string())
        });
        made.as_ref()
    }

    /// What the server says of it.
    pub(super) fn described(&self) -> oarlock_serve::Model {
        let model = self.engine.generator().model();
        oarlock_serve::Model {
            name: self.name.clone(),
            parent: self.parent.clone(),
            created: self.created,
            context_length: self.engine.n_positions(),
            sampling: self.sampling.clone(),
            fingerprint: format!(
                "fp_oarlock_{}_{}",
                env!("CARGO_PKG_VERSION").replace('.', "_"),
                model.dtype
            ),
        }
    }
}

/// How tokens are drawn where a request does not say: as `generation_config.json` recommends, else as OpenAI's documentation
/// says.
fn sampling(side: &Path) -> Result<Sampling> {
    let path = side.join("generation_config.json");
    let config: Value = match gguf::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| Error::Library(oarlock::Error::bad_file(&path, error.to_string())))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let mut sampling = Sampling::OPENAI;
    if config["do_sample"] == false {
        sampling.temperature = 0.0;
        return Ok(sampling);
    }
    let within = |name: &str, range: std::ops::RangeInclusive<f64>| {
        config[name].as_f64().filter(|x| range.contains(x)).map(|x| x as f32)
    };
    sampling.temperature = within("temperature", 0.0..=2.0).unwrap_or(sampling.temperature);
    sampling.top_p = within("top_p", 1e-6..=1.0).unwrap_or(sampling.top_p);
    sampling.min_p = within("min_p", 0.0..=0.999).unwrap_or(sampling.min_p);
    sampling.repetition_penalty = within("repetition_penalty", 0.01..=100.0).unwrap_or(1.0);
    sampling.top_k = config["top_k"].as_u64().and_then(|k| usize::try_from(k).ok()).unwrap_or(0);
    Ok(sampling)
}
