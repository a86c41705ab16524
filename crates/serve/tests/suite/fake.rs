//! A backend without a model: its answers follow from the last thing that was said, and it remembers what it was asked for.
//!
//! Tokens are bytes, and pieces of words from a table that grows. `say TEXT` answers TEXT, `count N` answers N words that
//! depend on the seed, `fail N` fails behind N words, `drop N` gives up without a
//! word, `hang` answers nothing, `panic` is a mistake of the backend, `slow` a prompt that takes half a second. `either TEXT` answers TEXT for even seeds, else 60 words.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_serve::{
    Alternative, AnswerFormat, Backend, Call, CallMarks, Canceled, Conversation, Event, EventSender,
    Finished, Form, Model, Numbers, Prompt, ReadForm, Refusal, Request, Sampling, Schema, StopReason,
    TextForm, ThoughtMarks, Token, Tool,
};

/// What a backend pretends.
pub struct Fake {
    /// How long each token takes.
    pub delay: Duration,
    /// How many sequences are computed at once; others wait.
    pub n_slots: usize,
    /// How many sequences there may be; more are refused.
    pub n_places: usize,
    pub context_length: usize,
    pub is_ready: bool,
    /// Whether requests and conversations are kept for the test.
    pub remembers: bool,
    pub state: Arc<State>,
}

/// What was asked for, and what there is.
#[derive(Default)]
pub struct State {
    pub requests: Mutex<Vec<Request>>,
    pub conversations: Mutex<Vec<Conversation>>,
    pub forms: Mutex<Vec<Form>>,
    pub n_canceled: AtomicUsize,
    n_sequences: AtomicUsize,
    n_running: AtomicUsize,
    n_embedding: AtomicUsize,
    words: Mutex<Words>,
}

#[derive(Default)]
struct Words {
    ids: BTreeMap<Vec<u8>, u32>,
    bytes: Vec<Vec<u8>>,
}

/// Ids below are bytes.
const FIRST_WORD: u32 = 256;

const WORDS: [&str; 8] = [" wind", " sea", " boat", " oar", " lock", " tide", " rope", " sail"];

impl Fake {
    pub fn new() -> Fake {
        Fake {
            delay: Duration::ZERO,
            n_slots: 64,
            n_places: 1024,
            context_length: 4096,
            is_ready: true,
            remembers: true,
            state: Arc::default(),
        }
    }
}

impl State {
    fn word(&self, bytes: &[u8]) -> u32 {
        let mut words = self.words.lock().unwrap();
        if let Some(id) = words.ids.get(bytes) {
            return *id;
        }
        let id = FIRST_WORD + u32::try_from(words.bytes.len()).unwrap();
        words.ids.insert(bytes.to_vec(), id);
        words.bytes.push(bytes.to_vec());
        id
    }

    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match u8::try_from(id) {
            Ok(byte) => Some(vec![byte]),
            Err(_) => self.words.lock().unwrap().bytes.get((id - FIRST_WORD) as usize).cloned(),
        }
    }

    pub fn last_form(&self) -> Option<Form> {
        self.forms.lock().unwrap().pop()
    }

    pub fn n_canceled(&self) -> usize {
        self.n_canceled.load(Ordering::SeqCst)
    }

    /// Sequences that have begun and not ended.
    pub fn n_sequences(&self) -> usize {
        self.n_sequences.load(Ordering::SeqCst)
    }

    /// Calls for embeddings that have begun and not ended.
    pub fn n_embedding(&self) -> usize {
        self.n_embedding.load(Ordering::SeqCst)
    }

    pub fn n_running(&self) -> usize {
        self.n_running.load(Ordering::SeqCst)
    }

    pub fn last_request(&self) -> Request {
        self.requests.lock().unwrap().last().unwrap().clone()
    }
}

/// Pieces of a text: words with the space before them, and the bytes of what is not ASCII.
fn pieces(text: &str) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for c in text.chars() {
        let is_new = c == ' ' || c == '\n' || c == '<' || pieces.last().is_none_or(|last| !last.is_ascii());
        if !c.is_ascii() {
            pieces.extend(c.to_string().bytes().map(|byte| vec![byte]));
        } else if is_new {
            pieces.push(vec![c as u8]);
        } else if let Some(last) = pieces.last_mut() {
            last.push(c as u8);
        }
    }
    pieces
}

/// What a prompt asks for, as pieces of an answer, and whether it fails or hangs behind them.
fn script(prompt: &str, seed: u64) -> (Vec<Vec<u8>>, &'static str) {
    let word = |at: usize| {
        let number = seed.wrapping_mul(31).wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        WORDS[(number % 8) as usize].as_bytes().to_vec()
    };
    let line = prompt.rsplit("user: ").next().unwrap_or_default();
    let line = line.split("\u{1}").next().unwrap_or_default();
    let count = |text: &str| text.trim().parse::<usize>().unwrap_or(4);
    match line.split_once(' ').unwrap_or((line, "")) {
        ("say", text) => (pieces(text), ""),
        ("count", n) => ((0..count(n)).map(word).collect(), ""),
        ("fail", n) => ((0..count(n)).map(word).collect(), "fail"),
        ("misfit", n) => ((0..count(n)).map(word).collect(), "misfit"),
        ("hang", _) => (Vec::new(), "hang"),
        ("drop", n) => ((0..count(n)).map(word).collect(), "drop"),
        ("either", text) if seed.is_multiple_of(2) => (pieces(text), ""),
        ("either", _) => ((0..60).map(word).collect(), ""),
        _ => ((0..5).map(word).collect(), ""),
    }
}

impl Backend for Fake {
    fn models(&self) -> Vec<Model> {
        let model = |name: &str, parent: Option<&str>| Model {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            created: 1_700_000_000,
            context_length: self.context_length,
            sampling: Sampling::OPENAI,
            fingerprint: "fp_fake".to_owned(),
        };
        vec![model("fake", None), model("owner/fake-lora", Some("fake"))]
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn render(&self, _: &str, conversation: &Conversation) -> Result<Prompt, Refusal> {
        if self.remembers {
            self.state.conversations.lock().unwrap().push(conversation.clone());
        }
        let mut text = String::new();
        for message in &conversation.messages {
            if message.content == "panic" {
                panic!("a mistake of the backend, as the test wants it");
            }
            if message.content.starts_with("slow") {
                std::thread::sleep(Duration::from_millis(500));
            }
            if message.content == "refuse" {
                let param = Some("messages[0]".to_owned());
                return Err(Refusal::Invalid { message: "The template refuses this.".to_owned(), param });
            }
            // U+0001 ends a message.
            text += &format!("{}: {}\u{1}\n", message.role.name(), message.content);
        }
        if conversation.adds_generation_prompt {
            text += "assistant: ";
        }
        let is_open = conversation.template_options.get("enable_thinking") == Some(&true.into());
        let marks = |open: &str, close: &str| (open.to_owned(), close.to_owned());
        let ((think, end_think), (call, end_call)) =
            (marks("<think>", "</think>"), marks("<tool_call>", "</tool_call>"));
        let format = AnswerFormat {
            thoughts: Some(ThoughtMarks { open: think, close: end_think, is_open }),
            calls: Some(CallMarks { open: call, close: Some(end_call), is_only_first: false }),
        };
        Ok(Prompt { ids: text.bytes().map(u32::from).collect(), text, format })
    }

    fn tokenize(&self, _: &str, text: &str, adds_special: bool) -> Result<Vec<u32>, Refusal> {
        let bytes = text.bytes().map(u32::from);
        Ok(if adds_special { std::iter::once(2).chain(bytes).collect() } else { bytes.collect() })
    }

    fn detokenize(&self, _: &str, ids: &[u32]) -> Result<Vec<Vec<u8>>, Refusal> {
        let bytes = |id: &u32| {
            let unknown = || Refusal::Invalid {
                message: format!("There is no token {id}."),
                param: Some("tokens".to_owned()),
            };
            self.state.bytes(*id).ok_or_else(unknown)
        };
        ids.iter().map(bytes).collect()
    }

    fn calls(&self, _: &str, text: &str, tools: &[Tool]) -> Option<Vec<Call>> {
        let inner = text.strip_prefix("<tool_call>")?.strip_suffix("</tool_call>")?;
        let value: serde_json::Value = serde_json::from_str(inner.trim()).ok()?;
        let name = value.get("name")?.as_str()?.to_owned();
        let arguments = value.get("arguments")?.to_string();
        tools.iter().any(|tool| tool.name == name).then(|| vec![Call { id: None, name, arguments }])
    }

    fn read_form(&self, model: &str, form: &Form, _: &AnswerFormat) -> Result<ReadForm, Refusal> {
        if model != "fake" {
            return Err(Refusal::Unsupported(format!("`{model}` cannot be held to a form")));
        }
        if self.remembers {
            self.state.forms.lock().unwrap().push(form.clone());
        }
        match &form.text {
            Some(TextForm::Json(Schema { value, .. })) if value.get("never").is_some() => {
                Err(Refusal::Invalid { message: "nothing is like this".to_owned(), param: None })
            }
            _ => Ok(ReadForm::new(form.clone())),
        }
    }

    fn submit(&self, request: Request, events: EventSender) -> Result<(), Refusal> {
        let state = Arc::clone(&self.state);
        if state.n_sequences.fetch_add(1, Ordering::SeqCst) >= self.n_places {
            state.n_sequences.fetch_sub(1, Ordering::SeqCst);
            return Err(Refusal::QueueFull { retry_after_s: 2 });
        }
        if self.remembers {
            state.requests.lock().unwrap().push(request.clone());
        }
        let (delay, n_slots) = (self.delay, self.n_slots);
        std::thread::spawn(move || {
            let is_canceled = answer(&state, request, events, delay, n_slots).is_err();
            state.n_canceled.fetch_add(usize::from(is_canceled), Ordering::SeqCst);
            state.n_sequences.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(())
    }

    fn embed(&self, model: &str, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, Refusal> {
        if model != "fake" {
            return Err(Refusal::Unsupported(format!("`{model}` makes no embeddings")));
        }
        self.state.n_embedding.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.delay * u32::try_from(texts.concat().len()).unwrap());
        self.state.n_embedding.fetch_sub(1, Ordering::SeqCst);
        Ok(texts.iter().map(|ids| vec![ids.len() as f32, -0.5, ids[0] as f32, 1e-3]).collect())
    }

    fn score(&self, _: &str, texts: Vec<Vec<u32>>) -> Result<Vec<f32>, Refusal> {
        Ok(texts.iter().map(|ids| ids.len() as f32 / 2.0).collect())
    }

    fn numbers(&self) -> Numbers {
        let n_running = self.state.n_running();
        let n_waiting = self.state.n_sequences().saturating_sub(n_running);
        Numbers {
            n_running,
            n_waiting,
            cache_usage: 0.25,
            prefix_bytes: 4096,
            n_draft_tokens: 30,
            n_accepted_tokens: 20,
        }
    }
}

/// Counts down when it goes.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer(
    state: &State,
    request: Request,
    mut events: EventSender,
    delay: Duration,
    n_slots: usize,
) -> Result<(), Canceled> {
    let pause = |events: &EventSender, time| {
        std::thread::sleep(time);
        if events.is_canceled() { Err(Canceled) } else { Ok(()) }
    };
    let take = |n: usize| (n < n_slots).then_some(n + 1);
    while state.n_running.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
        pause(&events, Duration::from_millis(1))?;
    }
    let _running = Running(&state.n_running);
    events.send(Event::Started)?;
    let token = |bytes: &[u8], at: usize, n_top: Option<usize>| {
        let logprob = |rank: usize| -((at + 1) as f32) / 8.0 - rank as f32;
        let other = |rank: usize| {
            let bytes = if rank == 0 { bytes } else { WORDS[rank % 8].as_bytes() };
            Alternative { id: state.word(bytes), bytes: bytes.to_vec(), logprob: logprob(rank) }
        };
        Token {
            id: state.word(bytes),
            bytes: bytes.to_vec(),
            logprob: n_top.map(|_| logprob(0)),
            top: (0..n_top.unwrap_or(0)).map(other).collect(),
        }
    };
    let prompt: Vec<Vec<u8>> = request.ids.iter().map(|id| state.bytes(*id).unwrap_or_default()).collect();
    if let Some(n_top) = request.prompt_logprobs {
        let of_prompt = |(at, bytes): (usize, &Vec<u8>)| token(bytes, at, (at > 0).then_some(n_top));
        events.send(Event::Prompt(prompt.iter().enumerate().map(of_prompt).collect()))?;
    }
    let text = String::from_utf8_lossy(&prompt.concat()).into_owned();
    let seed = if request.sampling.temperature == 0.0 { 0 } else { request.seed };
    let (pieces, then) = script(&text, seed);
    let is_cut = pieces.len() > request.max_tokens;
    for (at, piece) in pieces.iter().take(request.max_tokens).enumerate() {
        pause(&events, delay)?;
        events.send(Event::Token(token(piece, at, request.logprobs)))?;
    }
    if then == "hang" {
        loop {
            pause(&events, Duration::from_millis(1))?;
        }
    }
    if then == "drop" {
        return Ok(());
    }
    if then == "misfit" {
        return events
            .send(Event::Refused("the form of the answer: it takes too much for a token".to_owned()));
    }
    if then == "fail" {
        return events.send(Event::Failed("the model is out of memory".to_owned()));
    }
    let reason = if is_cut { StopReason::Length } else { StopReason::Stop };
    events.send(Event::Finished(Finished { reason, n_cached_tokens: 1, timings: None }))
}
