//! What the server asks of models: one trait, and the values that go through it.

use crate::conversation::{Call, Conversation, Tool};
use crate::events::EventSender;
use crate::form::{Form, ReadForm};

/// A model that can be asked, or an adapter on one, which is a model of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The name in requests.
    pub name: String,
    /// The model below, where this is an adapter.
    pub parent: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// How many tokens prompt and answer have at most.
    pub context_length: usize,
    /// How tokens are drawn where a request does not say; [`Sampling::OPENAI`] for what OpenAI's documentation says.
    pub sampling: Sampling,
    /// What changes when the same seed may give another answer: the weights, the program, the type of numbers.
    pub fingerprint: String,
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// In (0, 1]: the likeliest tokens that have this probability together.
    pub top_p: f32,
    /// So many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// In [0, 1): tokens of at least so much of the probability of the likeliest.
    pub min_p: f32,
    /// Positive: divides positive logits of tokens that are there, multiplies negative ones; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Is subtracted from the logits of tokens that are in the answer.
    pub presence_penalty: f32,
    /// Is subtracted for each time that a token is in the answer.
    pub frequency_penalty: f32,
    /// Is added to the logits of these tokens. Each is named once.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Sampling {
    /// What OpenAI's documentation gives as defaults: the model's own distribution.
    pub const OPENAI: Sampling = Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: Vec::new(),
    };
}

/// One sequence to be continued.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The name of the model.
    pub model: String,
    /// The tokens of the prompt: at least one, fewer than the context has.
    pub ids: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The same seed, prompt and sampling give the same answer.
    pub seed: u64,
    /// The most tokens of the answer, which together with the prompt fit into the context. 0 asks for the prompt alone.
    pub max_tokens: usize,
    /// Tokens that end the answer beside those of the model.
    pub stop_ids: Vec<u32>,
    /// Whether the answer goes on behind the tokens by which the model ends it.
    pub ignores_eos: bool,
    /// Whether tokens come with their log-probability, and with how many alternatives.
    pub logprobs: Option<usize>,
    /// The same of the tokens of the prompt, which then come as [`crate::Event::Prompt`].
    pub prompt_logprobs: Option<usize>,
    /// What the answer has to be: what [`Backend::read_form`] has made of it for this model.
    pub form: Option<ReadForm>,
}

/// A conversation as a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The text that they stand for.
    pub text: String,
    /// What has a meaning in the answer to it.
    pub format: AnswerFormat,
}

/// How answers are written, so that thoughts and calls are told from text while an answer comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// The marks around thoughts.
    pub thoughts: Option<ThoughtMarks>,
    /// The marks around calls. They matter only where a request has tools.
    pub calls: Option<CallMarks>,
}

/// The marks around thoughts, such as `<think>` and `</think>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// Not empty.
    pub open: String,
    /// Not empty.
    pub close: String,
    /// Whether the prompt ends inside of thoughts, so that the answer begins with them.
    pub is_open: bool,
}

/// The marks around calls, such as `<tool_call>` and `</tool_call>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallMarks {
    /// Where a call begins. Empty: the whole answer may be calls, and is looked at when it has ended.
    pub open: String,
    /// Where it ends; without it, at the end of the answer.
    pub close: Option<String>,
    /// Whether it is a mark only where the text of the answer begins.
    pub is_only_first: bool,
}

/// Numbers for `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Numbers {
    /// Sequences that are computed.
    pub n_running: usize,
    /// Sequences that wait.
    pub n_waiting: usize,
    /// How much of the cache of keys and values is in use, from 0 to 1.
    pub cache_usage: f64,
    /// What the keys and values of earlier prompts take, which later ones that begin alike go on with.
    pub prefix_bytes: usize,
    /// Tokens that were guessed ahead of the model.
    pub n_draft_tokens: u64,
    /// Guesses that were right.
    pub n_accepted_tokens: u64,
}

/// Why a backend does not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The models are not loaded yet.
    #[error("the model is being loaded")]
    Loading,
    /// So much waits that this would wait too long. Clients try again by themselves.
    #[error("the queue is full")]
    QueueFull {
        /// When it makes sense to try again, in seconds.
        retry_after_s: u64,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {n_prompt_tokens} tokens, and the context has room for {context_length}")]
    TooLong {
        /// The tokens of the prompt.
        n_prompt_tokens: usize,
        /// The most tokens of prompt and answer.
        context_length: usize,
    },
    /// The request asks for something wrong.
    #[error("{message}")]
    Invalid {
        /// What is wrong, and what would be right.
        message: String,
        /// The field that is wrong.
        param: Option<String>,
    },
    /// The model has no such ability.
    #[error("{0}")]
    Unsupported(String),
    /// The backend is at fault.
    #[error("{0}")]
    Failed(String),
}

/// What the server serves. All methods are called from several threads at once. Those that compute (all but
/// [`Backend::models`], [`Backend::is_ready`], [`Backend::numbers`], [`Backend::submit`] and [`Backend::calls`]) are called
/// on threads that may block; a panic in them is the answer 500.
pub trait Backend: Send + Sync + 'static {
    /// The models that there are. The first one answers requests that name none.
    fn models(&self) -> Vec<Model>;

    /// Whether the models are loaded.
    fn is_ready(&self) -> bool {
        true
    }

    /// A conversation as a prompt, by the template of a model.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where the template refuses it, [`Refusal::Failed`].
    fn render(&self, model: &str, conversation: &Conversation) -> Result<Prompt, Refusal>;

    /// The tokens of a text, in which the names of special tokens are these tokens. `adds_special` puts before it what the
    /// model expects at the beginning of a text.
    ///
    /// # Errors
    /// [`Refusal::Failed`].
    fn tokenize(&self, model: &str, text: &str, adds_special: bool) -> Result<Vec<u32>, Refusal>;

    /// The bytes of each token.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where there is no such token.
    fn detokenize(&self, model: &str, ids: &[u32]) -> Result<Vec<Vec<u8>>, Refusal>;

    /// The calls in a part of an answer, which begins and ends with the marks of [`CallMarks`]; `None` where it is not
    /// written as calls are, and so is text.
    fn calls(&self, model: &str, text: &str, tools: &[Tool]) -> Option<Vec<Call>>;

    /// Reads what answers have to be, whose thoughts and calls are written in this format.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where no answer can be held to it, [`Refusal::Unsupported`] for models that can be held to
    /// nothing, which is what a backend without this method says.
    fn read_form(&self, model: &str, form: &Form, format: &AnswerFormat) -> Result<ReadForm, Refusal> {
        _ = (form, format);
        Err(Refusal::Unsupported(format!("`{model}` cannot be held to a form")))
    }

    /// Begins a sequence, or lets it wait, and returns at once. Its events go into `events` from whatever thread; the
    /// sequence is given up as soon as [`EventSender::send`] says [`crate::Canceled`] or
    /// [`EventSender::is_canceled`] is true.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`], [`Refusal::TooLong`], [`Refusal::Invalid`], [`Refusal::Unsupported`]: the sequence is not
    /// begun.
    fn submit(&self, request: Request, events: EventSender) -> Result<(), Refusal>;

    /// The embedding of each text, all of the same length.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for models that have none, which is what a backend without this method says.
    fn embed(&self, model: &str, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, Refusal> {
        _ = texts;
        Err(Refusal::Unsupported(format!("`{model}` makes no embeddings")))
    }

    /// What a reward model thinks of each text.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for models that are none, which is what a backend without this method says.
    fn score(&self, model: &str, texts: Vec<Vec<u32>>) -> Result<Vec<f32>, Refusal> {
        _ = texts;
        Err(Refusal::Unsupported(format!("`{model}` is not a reward model")))
    }

    /// How much there is to do.
    fn numbers(&self) -> Numbers {
        Numbers::default()
    }
}
