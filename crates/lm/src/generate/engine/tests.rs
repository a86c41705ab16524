//! The engine on the golden models: order, limits, cancellation and the end. That answers are exact is in `exact_tests`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par};

use super::request::Checked;
use super::scheduler::Scheduler;
use super::sink::Sink;
use super::worker::MOST_FREE_BYTES;
use super::*;
use crate::generate::{Constraint, Generator, Refusal, Sampling, Stop, TokenSet};
use crate::model::LayerCache;
use crate::model::hf::load_for_inference;

/// A golden model whose settings allow texts of so many positions.
pub(super) fn generator(name: &str, dtype: DType, n_positions: usize) -> Generator {
    generator_on(&Device::cpu(Isa::detect(), Par::solo()), name, dtype, n_positions)
}

/// As [`generator`], on a device.
pub(super) fn generator_on(device: &Device, name: &str, dtype: DType, n_positions: usize) -> Generator {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden").join(name);
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // The length from which dynamic scaling sets in stays.
    let is_dynamic = config["rope_parameters"]["rope_type"] == "dynamic";
    if !is_dynamic {
        config["max_position_embeddings"] = n_positions.into();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    Generator::new(load_for_inference(dir.path(), device, dtype, n_positions).unwrap())
}

/// What is seen of an answer in a test without threads.
#[derive(Debug, Default)]
pub(super) struct Seen {
    events: std::sync::Mutex<Vec<Event>>,
    is_cancelled: AtomicBool,
}

impl Seen {
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn tokens(&self) -> Vec<Token> {
        let tokens = self.events().into_iter().filter_map(|event| match event {
            Event::Token(token) => Some(token),
            _ => None,
        });
        tokens.collect()
    }

    fn finished(&self) -> Option<Finished> {
        self.events().into_iter().find_map(|event| match event {
            Event::Finished(finished) => Some(finished),
            _ => None,
        })
    }
}

impl Sink for Arc<Seen> {
    fn prompt(&mut self, tokens: Vec<Token>) {
        self.events.lock().unwrap().push(Event::Prompt(tokens));
    }

    fn token(&mut self, token: Token) -> ControlFlow<()> {
        self.events.lock().unwrap().push(Event::Token(token));
        ControlFlow::Continue(())
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn end(self, end: Result<Finished>) {
        let failed = |error: Error| {
            Event::Failed(match error {
                Error::Usage(problem) => Failure::Request(problem),
                other => Failure::Generation(other.to_string()),
            })
        };
        self.events.lock().unwrap().push(end.map_or_else(failed, Event::Finished));
    }
}

/// A scheduler whose clock goes on by a second whenever it is asked.
pub(super) fn scheduler(generator: &Generator, limits: Limits) -> Scheduler<Arc<Seen>> {
    let time = AtomicU64::new(0);
    let clock = move || Duration::from_secs(time.fetch_add(1, Ordering::Relaxed));
    Scheduler::new(generator.as_model(), limits, Box::new(clock)).unwrap()
}

pub(super) fn add(
    scheduler: &mut Scheduler<Arc<Seen>>,
    generator: &Generator,
    request: Request,
) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let asked = Checked::new(request, seen.clone(), generator.as_model(), Duration::ZERO).unwrap();
    scheduler.add(asked);
    seen
}

pub(super) fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| 3 + (i * 7 + salt * 17) % 50).collect()
}

fn request(n_prompt: usize, max_new_tokens: usize) -> Request {
    Request { max_new_tokens, ..Request::new(prompt(n_prompt, 1)) }
}

fn step(scheduler: &mut Scheduler<Arc<Seen>>, generator: &Generator) {
    scheduler.step(generator.as_model(), &Ok).unwrap();
}

#[test]
fn answers_flow_while_a_long_prompt_is_read_in_parts() {
    let generator = generator("llama", DType::F32, 512);
    assert_eq!(generator.model().n_positions, 512);
    let limits = Limits { prompt_tokens: 32, speculative_tokens: 0, ..Limits::default() };
    let mut scheduler = scheduler(&generator, limits);
    let short = add(&mut scheduler, &generator, request(4, 40));
    step(&mut scheduler, &generator);
    assert_eq!(short.tokens().len(), 1);
    let long = add(&mut scheduler, &generator, request(200, 5));
    for n_steps in 1..=5 {
        step(&mut scheduler, &generator);
        assert_eq!((short.tokens().len(), long.tokens().len()), (1 + n_steps, 0));
        assert_eq!(scheduler.metrics().n_prompt_tokens, 4 + 32 * n_steps as u64);
    }
    // Of the 40 that are left, eight would be a part of few rows: they go along, and the answer begins.
    step(&mut scheduler, &generator);
    assert_eq!((short.tokens().len(), long.tokens().len()), (7, 1));
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
    }
    let finished = long.finished().unwrap();
    assert_eq!((finished.stop, finished.n_prompt, finished.n_tokens), (Stop::MaxNewTokens, 200, 5));
    let Timings { waiting, prompt, answer } = finished.timings;
    assert!(waiting > Duration::ZERO && prompt > answer && answer > Duration::ZERO, "{finished:?}");
}

#[test]
fn no_short_prompt_waits_for_a_long_one_and_none_for_ever() {
    let generator = generator("llama", DType::F32, 512);
    let limits = Limits { prompt_tokens: 64, prefix_bytes: 0, speculative_tokens: 0, ..Limits::default() };
    let mut scheduler = scheduler(&generator, limits);
    // While this one is written, the budget holds.
    let writing = add(&mut scheduler, &generator, request(4, 100));
    step(&mut scheduler, &generator);
    let long = add(&mut scheduler, &generator, request(300, 1));
    let first = add(&mut scheduler, &generator, request(32, 1));
    step(&mut scheduler, &generator);
    assert_eq!((first.tokens().len(), long.tokens().len()), (1, 0));
    // More short ones come than the budget can take.
    for n_steps in 2..=10 {
        (0..2).for_each(|_| drop(add(&mut scheduler, &generator, request(32, 1))));
        step(&mut scheduler, &generator);
        assert_eq!(long.tokens().len(), usize::from(n_steps == 10), "step {n_steps}");
    }
    assert!(scheduler.metrics().n_waiting > 0 && writing.tokens().len() == 11);
}

#[test]
fn an_ended_answer_gives_its_place_to_the_next_at_once() {
    let generator = generator("qwen3", DType::F32, 64);
    let mut scheduler = scheduler(&generator, Limits { at_once: 2, ..Limits::default() });
    let seen: Vec<_> =
        [3, 6, 2, 0, 4].into_iter().map(|n| add(&mut scheduler, &generator, request(3, n))).collect();
    let mut most = 0;
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
        most = most.max(scheduler.metrics().n_running);
    }
    assert_eq!(most, 2);
    assert_eq!(seen.iter().map(|seen| seen.tokens().len()).collect::<Vec<_>>(), [3, 6, 2, 0, 4]);
    let metrics = scheduler.metrics();
    assert_eq!((metrics.n_finished, metrics.n_generated_tokens), (5, 15));
    // The answer without a token needs no prompt.
    assert_eq!((metrics.n_prompt_tokens, metrics.cache_bytes, metrics.n_running), (12, 0, 0));
    assert_eq!(metrics.max_cache_bytes, generator.as_model().decoder.cache_bytes(128, DType::F32));
}

#[test]
fn memory_is_waited_for_and_all_are_answered() {
    let generator = generator("llama", DType::F32, 512);
    let page = generator.as_model().decoder.cache_bytes(LayerCache::PAGE, DType::F32);
    let limits = Limits { at_once: 8, cache_bytes: Some(5 * page + 1), ..Limits::default() };
    let mut scheduler = scheduler(&generator, limits);
    assert_eq!(scheduler.longest(), 5 * LayerCache::PAGE);
    // Each begins in one page and may need three: five pages are fewer than four of them need.
    let seen: Vec<_> = (0..4).map(|_| add(&mut scheduler, &generator, request(20, 150))).collect();
    let (mut most, mut most_at_once) = (0, 0);
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
        let metrics = scheduler.metrics();
        assert!(metrics.cache_bytes <= 5 * page && metrics.max_cache_bytes == 5 * page);
        (most, most_at_once) = (most.max(metrics.cache_bytes), most_at_once.max(metrics.n_running));
    }
    assert_eq!((most, most_at_once), (5 * page, 3));
    let alone = seen[0].tokens();
    assert_eq!(alone.len(), 150);
    assert!(seen.iter().all(|seen| seen.tokens() == alone));
    // A text that needs more than all of it ends early.
    let long = add(&mut scheduler, &generator, request(300, 100));
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
    }
    assert_eq!(long.finished().map(|end| (end.stop, end.n_tokens)), Some((Stop::ModelLength, 20)));
    let none = Limits { cache_bytes: Some(page - 1), ..limits };
    let error = Scheduler::<Arc<Seen>>::new(generator.as_model(), none, Box::new(|| Duration::ZERO));
    assert!(error.err().unwrap().to_string().contains("keys and values of 64 positions"));
}

#[test]
fn what_prompts_begin_with_alike_is_read_once() {
    let generator = generator("families/gemma2", DType::F32, 512);
    let page = generator.as_model().decoder.cache_bytes(LayerCache::PAGE, DType::F32);
    let mut scheduler = scheduler(&generator, Limits { prefix_bytes: 4 * page, ..Limits::default() });
    let mut read = |ids: Vec<u32>| {
        let before = scheduler.metrics();
        let seen = add(&mut scheduler, &generator, Request { max_new_tokens: 2, ..Request::new(ids) });
        while !scheduler.is_idle() {
            step(&mut scheduler, &generator);
        }
        let (metrics, n_cached) = (scheduler.metrics(), seen.finished().unwrap().n_cached);
        assert_eq!(metrics.n_cached_tokens - before.n_cached_tokens, n_cached as u64);
        (n_cached, (metrics.n_prompt_tokens - before.n_prompt_tokens) as usize, metrics.prefix_bytes / page)
    };
    let other = |n: usize| [prompt(64, 1), prompt(n, 2)].concat();
    assert_eq!(read(prompt(150, 1)), (0, 150, 2));
    assert_eq!(read(prompt(150, 1)), (128, 22, 2));
    // The last token is read in any case, and never in a part of few rows.
    assert_eq!(read(prompt(128, 1)), (64, 64, 2));
    assert_eq!(read(prompt(136, 1)), (64, 72, 2));
    assert_eq!(read(prompt(137, 1)), (128, 9, 2));
    assert_eq!(read(other(100)), (64, 100, 3));
    assert_eq!(read(other(100)), (128, 36, 3));
    // Two new pages: one takes the last room, the other that of the page whose use is the longest ago.
    assert_eq!(read(prompt(140, 3)), (0, 140, 4));
    assert_eq!(read(prompt(150, 1)), (64, 86, 4));
    assert_eq!(read(other(100)), (64, 100, 4));
    let mut scheduler = self::scheduler(&generator, Limits { prefix_bytes: page - 1, ..Limits::default() });
    let seen: Vec<_> = (0..2).map(|_| add(&mut scheduler, &generator, request(150, 2))).collect();
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
    }
    assert!(seen.iter().all(|seen| seen.finished().unwrap().n_cached == 0));
}

/// Choices of one prompt that come together are read once as well.
#[test]
fn choices_of_one_prompt_share_its_pages() {
    let generator = generator("llama", DType::F32, 512);
    let mut scheduler = scheduler(&generator, Limits::default());
    let sampling = |seed| Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
    let choice = |seed| Request { sampling: sampling(seed), ..request(200, 4) };
    let seen: Vec<_> = (0..4).map(|seed| add(&mut scheduler, &generator, choice(seed))).collect();
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
    }
    let n_cached: Vec<usize> = seen.iter().map(|seen| seen.finished().unwrap().n_cached).collect();
    assert_eq!(n_cached, [0, 128, 128, 128]);
    assert_eq!(scheduler.metrics().n_prompt_tokens, 200 + 3 * 72);
}

/// Answers to prompts that begin alike hold what they share once, also when it is kept for others no longer.
#[test]
fn shared_pages_take_memory_once() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let generator = generator_on(&device, "llama", DType::F32, 512);
    let page = generator.as_model().decoder.cache_bytes(LayerCache::PAGE, DType::F32);
    // The bytes in use with eight answers to one prompt of three whole pages and a part.
    let used = |prefix_bytes: usize| {
        let limits = Limits { at_once: 8, prefix_bytes, speculative_tokens: 0, ..Limits::default() };
        let mut scheduler = scheduler(&generator, limits);
        let before = device.arena().occupied();
        let seen: Vec<_> = (0..8).map(|_| add(&mut scheduler, &generator, request(220, 36))).collect();
        while seen.iter().any(|seen| seen.tokens().is_empty()) {
            step(&mut scheduler, &generator);
        }
        let metrics = scheduler.metrics();
        assert_eq!(metrics.n_running, 8);
        (device.arena().occupied() - before, metrics.cache_bytes / page, metrics.prefix_bytes / page)
    };
    let (apart, n_apart, _) = used(0);
    let (shared, n_shared, n_kept) = used(100 * page);
    assert_eq!((n_apart, n_shared, n_kept), (32, 8, 3));
    assert!(apart.abs_diff(32 * page) < page && shared.abs_diff(11 * page) < page, "{apart} {shared} {page}");
    // There is room for two of the three pages: they are shared, and the third is not.
    let (some, n_some, n_kept) = used(2 * page);
    assert_eq!((n_some, n_kept), (16, 2));
    assert!(some.abs_diff(18 * page) < page, "{some} {page}");
}

#[test]
fn what_nobody_wants_any_more_is_dropped_at_the_next_step() {
    let generator = generator("llama", DType::F32, 64);
    let mut scheduler = scheduler(&generator, Limits { at_once: 1, ..Limits::default() });
    let seen: Vec<_> = (0..3).map(|_| add(&mut scheduler, &generator, request(3, 9))).collect();
    step(&mut scheduler, &generator);
    seen[0].cancel();
    seen[1].cancel();
    step(&mut scheduler, &generator);
    let metrics = scheduler.metrics();
    assert_eq!((metrics.n_cancelled, metrics.n_running, metrics.n_waiting), (2, 1, 0));
    assert_eq!((seen[0].tokens().len(), seen[1].tokens().len(), seen[2].tokens().len()), (1, 0, 1));
    assert_eq!(seen[0].finished().unwrap().stop, Stop::Caller);
}

/// Even tokens, in turn with odd ones.
struct Parity;

impl Constraint for Parity {
    fn allow(&mut self, answer: &[u32], allowed: &mut TokenSet) -> Result<()> {
        assert!(allowed.is_empty() && allowed.vocab_size() == 61);
        if answer.len() == 6 {
            return Err(Error::Usage("six are enough".to_owned()));
        }
        (0..61).filter(|id| *id as usize % 2 == answer.len() % 2).for_each(|id| allowed.insert(id));
        Ok(())
    }
}

#[test]
fn a_constraint_says_what_may_come_and_an_error_of_one_answer_is_its_own() {
    let generator = generator("llama", DType::F32, 64);
    let mut scheduler = scheduler(&generator, Limits::default());
    let constrained = Request {
        constraint: Some(Box::new(Parity)),
        n_top_logprobs: Some(3),
        logit_bias: vec![(7, 3.0)],
        ..request(3, 9)
    };
    assert!(format!("{constrained:?}").contains("is_constrained: true"));
    let constrained = add(&mut scheduler, &generator, constrained);
    let free = add(&mut scheduler, &generator, request(3, 9));
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
    }
    assert_eq!(free.tokens().len(), 9);
    assert!(free.tokens().iter().all(|token| token.logprob.is_none() && token.top.is_empty()));
    let tokens = constrained.tokens();
    assert!(
        tokens.len() == 6 && tokens.iter().enumerate().all(|(at, token)| token.id as usize % 2 == at % 2)
    );
    for token in &tokens {
        // The likeliest token at all, and the chosen one: both of the model's own distribution.
        let logprob = token.logprob.unwrap();
        assert!(token.top.len() == 3 && logprob <= token.top[0].1 && token.top[0].1 <= 0.0, "{token:?}");
        assert!(token.top.iter().all(|(id, other)| *id != token.id || *other == logprob), "{token:?}");
    }
    let Some(Event::Failed(failure)) = constrained.events().pop() else { panic!("{constrained:?}") };
    assert_eq!(failure.to_string(), "six are enough");
    assert_eq!(scheduler.metrics().n_failed, 1);
}

#[test]
fn a_failed_pass_ends_its_answers_and_no_others() {
    let generator = generator("llama", DType::F32, 64);
    let mut scheduler = scheduler(&generator, Limits::default());
    let first = add(&mut scheduler, &generator, request(3, 9));
    step(&mut scheduler, &generator);
    let second = add(&mut scheduler, &generator, request(3, 2));
    let broken = |_| Err(Error::Usage("no pass today".to_owned()));
    assert!(scheduler.step(generator.as_model(), &broken).is_err());
    assert!(matches!(&first.events()[..], [Event::Token(_), Event::Failed(_)]), "{first:?}");
    while !scheduler.is_idle() {
        step(&mut scheduler, &generator);
    }
    assert_eq!(second.tokens().len(), 2);
}

#[test]
fn an_engine_answers_as_the_generator() {
    let requests: Vec<(Request, Vec<u32>)> = {
        let generator = generator("llama", DType::F32, 64);
        let sampling = |seed| Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
        let one = |seed: u64| {
            let ids = prompt(3 + seed as usize * 3, 2);
            let options = crate::generate::GenerateOptions {
                sampling: sampling(seed),
                max_new_tokens: 12,
                stop_ids: vec![9],
                ..Default::default()
            };
            let expected = generator.generate(&ids, &options, |_| Ok(ControlFlow::Continue(()))).unwrap();
            (Request::with_options(ids, &options), expected.output)
        };
        (0..12).map(one).collect()
    };
    let engine =
        Engine::start(generator("llama", DType::F32, 64), Limits { at_once: 5, ..Limits::default() });
    let engine = engine.unwrap();
    let answers: Vec<_> =
        requests.into_iter().map(|(request, expected)| (engine.submit(request).unwrap(), expected)).collect();
    for (answer, expected) in answers {
        let mut events: Vec<Event> = answer.collect();
        let Some(Event::Finished(finished)) = events.pop() else { panic!("{events:?}") };
        assert_eq!(finished.n_tokens, expected.len());
        let ids = events.into_iter().map(|event| match event {
            Event::Token(token) => token.id,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.collect::<Vec<_>>(), expected);
    }
    assert!(engine.drain_within(Duration::from_secs(60)));
    let metrics = engine.metrics();
    assert_eq!((metrics.n_finished, metrics.n_running, metrics.n_waiting), (12, 0, 0));
    assert_eq!(engine.submit(request(3, 2)).err(), Some(Refusal::Stopping));
    engine.stop();
}

#[test]
fn what_cannot_be_answered_is_refused_with_the_reason() {
    let limits = Limits { at_once: 1, queue: 1, ..Limits::default() };
    let engine = Engine::start(generator("llama", DType::F32, 16), limits).unwrap();
    let refused = |request| engine.submit(request).err().unwrap();
    assert_eq!(refused(request(0, 1)), Refusal::PromptEmpty);
    assert_eq!(refused(request(16, 1)), Refusal::PromptTooLong { n_tokens: 16, n_positions: 16 });
    assert_eq!(refused(Request::new(vec![3, 61])), Refusal::UnknownToken { id: 61, vocab_size: 61 });
    let hot = Sampling { temperature: -1.0, ..Sampling::GREEDY };
    assert!(matches!(refused(Request { sampling: hot, ..request(3, 1) }), Refusal::Sampling(_)));
    let biased = Request { logit_bias: vec![(61, 1.0)], ..request(3, 1) };
    assert!(refused(biased).to_string().contains("names token 61"));
    let curious = Request { n_top_logprobs: Some(65), ..request(3, 1) };
    assert!(refused(curious).to_string().contains("n_top_logprobs is 65; expected at most 64"));
    // What is refused takes no place.
    assert!(engine.submit(request(3, 1)).is_ok());
}

/// Waits until a test lets it go on, and says that it waits.
struct Gate(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

impl Constraint for Gate {
    fn allow(&mut self, _: &[u32], allowed: &mut TokenSet) -> Result<()> {
        let _ = self.0.send(());
        let _ = self.1.recv();
        allowed.insert(5);
        Ok(())
    }
}

/// A request whose tokens a test lets out one by one: its first channel hears of each, its second lets it go.
fn gated(max_new_tokens: usize) -> (Request, std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>) {
    let ((asks, asked), (go, goes)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    (Request { constraint: Some(Box::new(Gate(asks, goes))), ..request(3, max_new_tokens) }, asked, go)
}

#[test]
fn a_full_queue_refuses_and_a_dropped_answer_makes_room() {
    let limits = Limits { at_once: 1, queue: 1, ..Limits::default() };
    let engine = Engine::start(generator("llama", DType::F32, 64), limits).unwrap();
    let (request_1, asked, go) = gated(40);
    let first = engine.submit(request_1).unwrap();
    let second = engine.submit(request(3, 2)).unwrap();
    asked.recv().unwrap();
    assert_eq!(engine.submit(request(3, 2)).err(), Some(Refusal::QueueFull { n_open: 2 }));
    drop(first);
    drop(go);
    let events: Vec<Event> = second.collect();
    assert!(matches!(events[..], [Event::Token(_), Event::Token(_), Event::Finished(_)]), "{events:?}");
    assert_eq!(engine.metrics().n_cancelled, 1);
}

#[test]
fn whoever_has_read_the_end_finds_a_place() {
    let limits = Limits { at_once: 1, queue: 0, ..Limits::default() };
    let engine = Engine::start(generator("llama", DType::F32, 64), limits).unwrap();
    for _ in 0..200 {
        assert_eq!(engine.submit(request(3, 1)).unwrap().count(), 2);
    }
}

#[test]
fn the_smaller_rooms_of_a_long_answer_are_given_back() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let generator = generator_on(&device, "llama", DType::F32, 1024);
    let engine = Engine::start(generator, Limits { prefix_bytes: 0, ..Limits::default() }).unwrap();
    assert_eq!(engine.submit(request(3, 1000)).unwrap().count(), 1001);
    assert!(engine.drain_within(Duration::from_secs(60)));
    let n_free = device.arena().bytes() - device.arena().occupied();
    assert!(n_free <= MOST_FREE_BYTES, "{n_free} bytes");
}

#[test]
fn a_stop_ends_answers_unfinished_and_waits_for_the_thread() {
    let engine = Engine::start(generator("llama", DType::F32, 64), Limits::default()).unwrap();
    let (request_1, asked, go) = gated(40);
    let mut answer = engine.submit(request_1).unwrap();
    asked.recv().unwrap();
    assert_eq!(answer.next_within(Duration::from_millis(1)), None);
    go.send(()).unwrap();
    assert!(matches!(answer.next(), Some(Event::Token(Token { id: 5, .. }))));
    // The deadline is over while the next token is awaited; then the step is let go and ends.
    asked.recv().unwrap();
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| engine.drain_within(Duration::ZERO));
        while engine.submit(request(3, 2)).err() != Some(Refusal::Stopping) {
            std::thread::yield_now();
        }
        drop(go);
        assert!(!drained.join().unwrap());
    });
    let events: Vec<Event> = answer.by_ref().collect();
    assert_eq!(events.last(), Some(&Event::Failed(Failure::Stopped)));
    assert!(answer.is_over() && answer.next().is_none() && answer.next_within(Duration::ZERO).is_none());
}
