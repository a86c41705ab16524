//! Guesses change nothing but the speed: with and without them, answers have the same tokens, log-probabilities and ends, bit by
//! bit, whatever is guessed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par};

use super::tests::{Seen, add, generator, prompt, scheduler};
use super::*;
use crate::adapters::{load_with_adapters_as, settings_beside};
use crate::generate::{Constraint, Generator, Sampling, Stop, TokenSet};
use crate::gguf::block_tests;
use crate::model::LayerCache;

/// Lets these tokens come one after another and then from the first one again, each or its neighbour.
struct Cycle {
    ids: Vec<u32>,
    has_neighbours: bool,
    /// The answer so far, as a grammar knows it.
    known: Vec<u32>,
    n_asked: usize,
}

impl Cycle {
    fn of(ids: Vec<u32>, has_neighbours: bool) -> Option<Box<dyn Constraint>> {
        Some(Box::new(Cycle { ids, has_neighbours, known: Vec::new(), n_asked: 0 }))
    }
}

impl Constraint for Cycle {
    fn allow(&mut self, answer: &[u32], allowed: &mut TokenSet) -> Result<()> {
        // It is asked once for each token, and what it has seen is never taken back.
        if answer.len() != self.n_asked || !answer.starts_with(&self.known) {
            return Err(Error::Usage(format!("{answer:?} after {:?}", self.known)));
        }
        self.n_asked += 1;
        self.known = answer.to_vec();
        let id = self.ids[answer.len() % self.ids.len()];
        allowed.insert(id);
        if self.has_neighbours {
            allowed.insert(id + 1);
        }
        Ok(())
    }
}

/// A prompt that repeats itself.
fn repeating(n: usize, period: usize, salt: u32) -> Vec<u32> {
    (0..n).map(|at| 3 + ((at % period) as u32 * 11 + salt * 5) % 50).collect()
}

/// A request of its number: of all kinds, most of them with texts that repeat themselves.
fn request(number: usize) -> Request {
    let salt = number as u32;
    let sampling = match number % 4 {
        0 | 1 => Sampling::GREEDY,
        2 => Sampling { temperature: 0.4, seed: number as u64, ..Sampling::GREEDY },
        _ => Sampling {
            temperature: 0.7,
            top_k: 5,
            top_p: 0.9,
            min_p: 0.01,
            repetition_penalty: 0.8,
            presence_penalty: -0.3,
            frequency_penalty: -0.2,
            seed: number as u64,
        },
    };
    let constraint = match number % 5 {
        1 => Cycle::of((0..1 + number as u32 % 7).map(|at| 5 + at * 3).collect(), false),
        3 => Cycle::of((0..2 + number as u32 % 5).map(|at| 5 + at * 3).collect(), true),
        _ => None,
    };
    let ids = match number % 3 {
        0 => repeating(9 + number * 7 % 90, 2 + number % 9, salt),
        1 => prompt(1 + number * 13 % 120, salt),
        _ => repeating(4 + number % 20, 3, salt),
    };
    Request {
        sampling,
        constraint,
        logit_bias: if number % 7 == 2 { vec![(20, 4.0), (21, 4.0)] } else { Vec::new() },
        max_new_tokens: 1 + number * 5 % 60,
        stop_ids: if number % 6 == 5 { vec![11, 14, 30] } else { Vec::new() },
        n_top_logprobs: Some(2),
        n_prompt_logprobs: (number % 11 == 4).then_some(1),
        ..Request::new(ids)
    }
}

/// What is seen of an answer, but for the time that it took.
type Exact = (Vec<(u32, u32, Vec<(u32, u32)>)>, Option<Stop>);

fn exact(seen: &Seen) -> Exact {
    let bits = |token: Token| {
        let top = token.top.into_iter().map(|(id, logprob)| (id, logprob.to_bits())).collect();
        (token.id, token.logprob.unwrap_or_default().to_bits(), top)
    };
    let stop = seen.events().into_iter().find_map(|event| match event {
        Event::Finished(finished) => Some(finished.stop),
        Event::Failed(failure) => panic!("{failure}"),
        _ => None,
    });
    (seen.tokens().into_iter().map(bits).collect(), stop)
}

/// Answers requests, of which a new one comes with each step.
fn answers(generator: &Generator, requests: Vec<Request>, limits: Limits) -> (Vec<Exact>, Metrics) {
    let mut scheduler = scheduler(generator, limits);
    let mut seen: Vec<Arc<Seen>> = Vec::new();
    for request in requests {
        seen.push(add(&mut scheduler, generator, request));
        scheduler.step(generator.as_model(), &Ok).unwrap();
    }
    while !scheduler.is_idle() {
        scheduler.step(generator.as_model(), &Ok).unwrap();
    }
    (seen.iter().map(|seen| exact(seen)).collect(), scheduler.metrics())
}

/// The same answers with any number of guesses, in engines of few places and of many.
fn check(generator: &Generator, requests: impl Fn() -> Vec<Request>, what: &str) {
    let mut n_wrong = 0;
    for at_once in [1, 3, 8, 64] {
        let limits = |speculative_tokens| Limits { at_once, speculative_tokens, ..Limits::default() };
        let (expected, plain) = answers(generator, requests(), limits(0));
        assert_eq!((plain.n_draft_tokens, plain.n_accepted_tokens), (0, 0));
        for n in [1, 7, 20] {
            let (found, metrics) = answers(generator, requests(), limits(n));
            for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "{what}, {at_once} at once, {n} guesses: request {number}");
            }
            let Metrics { n_draft_tokens: drafted, n_accepted_tokens: accepted, .. } = metrics;
            assert_eq!(metrics.n_generated_tokens, plain.n_generated_tokens);
            assert!(accepted > 10, "{what}, {at_once} at once: {metrics:?}");
            n_wrong += drafted - accepted;
        }
    }
    assert!(n_wrong > 0, "{what}");
}

#[test]
fn guesses_change_no_answer_of_any_model() {
    // With sliding windows, with LongRoPE across its turn (llama, phi3), with dynamic scaling, and with none of these.
    for name in ["families/gemma2", "families/mistral", "families/phi3", "dynamic_rope", "llama", "qwen3"] {
        for dtype in [DType::F32, DType::BF16] {
            let generator = generator(name, dtype, 192);
            check(&generator, || (0..18).map(request).collect(), &format!("{name} {dtype}"));
        }
    }
}

/// The memory of few pages is lent for guesses as for tokens.
#[test]
fn guesses_wait_for_memory_as_tokens_do() {
    let generator = generator("llama", DType::F32, 512);
    let page = generator.as_model().decoder.cache_bytes(LayerCache::PAGE, DType::F32);
    let long = |number| Request { max_new_tokens: 200, ..request(number) };
    let of = |speculative_tokens| {
        let limits = Limits { cache_bytes: Some(6 * page), speculative_tokens, ..Limits::default() };
        answers(&generator, [0, 8, 12, 20, 24].map(long).into(), limits)
    };
    let ((expected, _), (found, metrics)) = (of(0), of(7));
    assert_eq!(found, expected);
    assert!(metrics.n_accepted_tokens > 100 && metrics.cache_bytes == 0, "{metrics:?}");
}

#[test]
fn guesses_change_no_answer_of_a_model_in_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = block_tests::write(folder.path(), false);
    for dtype in [DType::F32, DType::BF16] {
        let generator = Generator::new(block_tests::in_blocks(&path, dtype));
        let fitting = |number| {
            let whole = request(number);
            let ids = whole.ids.iter().take(30).map(|id| id % 50).collect();
            Request { ids, max_new_tokens: whole.max_new_tokens.min(30), ..whole }
        };
        check(&generator, || (0..18).map(fitting).collect(), &format!("blocks, {dtype}"));
    }
}

#[test]
fn guesses_change_no_answer_of_an_adapter() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden");
    let dir = golden.join("train-llama");
    let beside: Vec<PathBuf> = ["lora", "rslora"].map(|name| golden.join("adapters").join(name)).into();
    let device = Device::cpu(Isa::detect(), Par::solo());
    let settings = settings_beside(&dir, &[] as &[PathBuf]).unwrap();
    let (model, numbers) =
        load_with_adapters_as(settings, &dir, &[], &beside, &device, DType::F32, 192).unwrap();
    assert_eq!(numbers, [Some(0), Some(1)]);
    let n_positions = model.n_positions;
    let generator = Generator::new(model);
    let adapted = |number: usize| {
        let whole = request(number);
        let ids = whole.ids.iter().take(n_positions / 2).copied().collect();
        Request { ids, adapter: [None, Some(0), Some(1)][number % 3], ..whole }
    };
    check(&generator, || (0..18).map(adapted).collect(), "adapters");
}

#[cfg(feature = "tokenizers")]
#[test]
fn guesses_change_no_answer_of_a_grammar() {
    use crate::generate::grammar_tests::vocabulary_of;
    use crate::generate::{Grammar, Rule};
    let generator = generator("llama", DType::F32, 192);
    let vocabulary = vocabulary_of(b'A', 61);
    let rule = Rule::Regex("((FOO|BAR|BAZ)(x|y)){9}".to_owned());
    let grammar = vocabulary.grammar(vec![("text".to_owned(), rule)]).unwrap();
    let held = |number: usize| Request {
        constraint: Some(Grammar::constraint(&grammar)),
        stop_ids: vec![1],
        max_new_tokens: 60,
        ..request(number)
    };
    let (found, _) = answers(&generator, vec![held(0)], Limits::default());
    assert_eq!((found[0].0.len(), found[0].1), (36, Some(Stop::EndOfText)));
    check(&generator, || (0..18).map(held).collect(), "grammar");
}

/// The tokens of the only answer, its end, and what was counted.
fn only(request: Request, speculative_tokens: usize) -> (Vec<u32>, Option<Stop>, Metrics, usize) {
    let generator = generator("llama", DType::F32, 192);
    let mut scheduler = scheduler(&generator, Limits { at_once: 1, speculative_tokens, ..Limits::default() });
    let seen = add(&mut scheduler, &generator, request);
    let mut n_steps = 0;
    while !scheduler.is_idle() {
        scheduler.step(generator.as_model(), &Ok).unwrap();
        n_steps += 1;
    }
    let (tokens, stop) = exact(&seen);
    (tokens.into_iter().map(|(id, ..)| id).collect(), stop, scheduler.metrics(), n_steps)
}

#[test]
fn a_text_that_repeats_itself_takes_few_passes_and_one_that_never_does_guesses_nothing() {
    let cycle = |ids: Vec<u32>| Request {
        constraint: Cycle::of(ids, false),
        max_new_tokens: 56,
        ..Request::new(vec![1, 2])
    };
    let (tokens, stop, metrics, n_steps) = only(cycle(vec![5, 8, 11, 14]), 7);
    let again: Vec<u32> = [5, 8, 11, 14].into_iter().cycle().take(56).collect();
    assert_eq!((tokens, stop, metrics.n_generated_tokens), (again, Some(Stop::MaxNewTokens), 56));
    // Every pass but those before the first repetition gives several tokens.
    assert!(n_steps < 20 && metrics.n_accepted_tokens as usize == 56 - n_steps, "{n_steps}: {metrics:?}");
    let (tokens, _, metrics, n_steps) = only(cycle((3..61).collect()), 7);
    assert_eq!(tokens, (3..59).collect::<Vec<u32>>());
    assert_eq!((metrics.n_draft_tokens, n_steps), (0, 56));
}

#[test]
fn an_answer_ends_in_the_middle_of_right_guesses() {
    let cycle = |stop_ids: Vec<u32>, max_new_tokens| Request {
        constraint: Cycle::of(vec![5, 8, 11, 14, 5, 8, 11, 14, 5, 8, 11, 14, 5, 8, 11, 17], false),
        stop_ids,
        max_new_tokens,
        ..Request::new(vec![5, 8, 11, 14, 5, 8, 11])
    };
    // Token 17 stands where 14 is guessed, behind other guesses and before more of them.
    let (tokens, stop, metrics, n_steps) = only(cycle(vec![17], 40), 7);
    assert_eq!((tokens.len(), stop), (15, Some(Stop::EndOfText)));
    assert!(n_steps < 10 && metrics.n_draft_tokens > metrics.n_accepted_tokens, "{metrics:?}");
    // A stop token that is itself guessed.
    let (tokens, stop, ..) = only(cycle(vec![14], 40), 7);
    assert_eq!((tokens, stop), (vec![5, 8, 11], Some(Stop::EndOfText)));
    for n in 1..20 {
        let (tokens, stop, metrics, _) = only(cycle(Vec::new(), n), 7);
        assert_eq!((tokens.len(), stop), (n, Some(Stop::MaxNewTokens)));
        assert!(metrics.n_draft_tokens < n as u64);
    }
}

#[test]
fn a_dropped_answer_ends_in_the_middle_of_guesses() {
    let request = || Request {
        constraint: Cycle::of(vec![5, 8, 11, 14], false),
        max_new_tokens: 150,
        ..Request::new(repeating(20, 4, 0))
    };
    let engine = Engine::start(generator("llama", DType::F32, 192), Limits::default()).unwrap();
    for n_read in 0..12 {
        let mut answer = engine.submit(request()).unwrap();
        let read = answer.by_ref().take(n_read).filter(|event| matches!(event, Event::Token(_))).count();
        assert_eq!(read, n_read);
        drop(answer);
    }
    // Whoever comes next has the answer that it would have had.
    let tokens: Vec<Event> = engine.submit(request()).unwrap().collect();
    assert_eq!(tokens.len(), 151);
    let metrics = engine.metrics();
    assert!(metrics.n_accepted_tokens > 50, "{metrics:?}");
}
