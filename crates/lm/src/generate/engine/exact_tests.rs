//! What an answer promises: its tokens and their log-probabilities are, bit by bit, a function of the model and the request
//! alone, whatever is answered beside it, in whatever order, and however its prompt is cut.

use std::sync::Arc;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::Mask;
use oarlock_tensor::{DType, Device, Par, Tensor};

use super::tests::{Seen, add, generator, generator_on, prompt, scheduler};
use super::*;
use crate::generate::own_probs::OwnProbs;
use crate::generate::{Generator, Sampling};
use crate::model::LayerCache;

/// Tiny models of all families.
const MODELS: [&str; 12] = [
    "families/gemma2",
    "families/gemma3_text",
    "families/glm4",
    "families/mistral",
    "families/olmo2",
    "families/phi3",
    "dynamic_rope",
    "llama",
    "llama-biased",
    "minimind",
    "qwen2",
    "qwen3",
];

/// Lengths of prompts around all limits: products of few rows, parts, windows, pages.
const LENGTHS: [usize; 17] = [1, 5, 8, 9, 31, 32, 40, 41, 63, 64, 65, 72, 100, 128, 130, 136, 140];

/// A request of its number; every fourth prompt begins alike.
fn request(number: usize) -> Request {
    let n = LENGTHS[number % LENGTHS.len()];
    let sampling = match number % 3 {
        0 => Sampling::GREEDY,
        1 => Sampling { temperature: 1.0, seed: number as u64, ..Sampling::GREEDY },
        _ => Sampling {
            temperature: 1.5,
            top_k: 20,
            top_p: 0.9,
            min_p: 0.01,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: 0.2,
            seed: number as u64,
        },
    };
    Request {
        sampling,
        max_new_tokens: 3 + number * 5 % 14,
        n_top_logprobs: Some(2),
        ..Request::new(prompt(n, number as u32 % 4))
    }
}

/// Tokens with their log-probabilities as bits, and those of the likeliest.
type Exact = Vec<(u32, u32, Vec<(u32, u32)>)>;

fn exact(seen: &Seen) -> Exact {
    assert!(matches!(seen.events().last(), Some(Event::Finished(_))), "{seen:?}");
    let bits = |token: Token| {
        let top = token.top.into_iter().map(|(id, logprob)| (id, logprob.to_bits())).collect();
        (token.id, token.logprob.unwrap().to_bits(), top)
    };
    seen.tokens().into_iter().map(bits).collect()
}

/// The only answer of an engine with so many places.
fn alone(generator: &Generator, request: Request, at_once: usize) -> Exact {
    let limits = Limits { at_once, prompt_tokens: usize::MAX, prefix_bytes: 0, ..Limits::default() };
    let mut scheduler = scheduler(generator, limits);
    let seen = add(&mut scheduler, generator, request);
    while !scheduler.is_idle() {
        scheduler.step(generator.as_model(), &Ok).unwrap();
    }
    exact(&seen)
}

/// Numbers without a pattern.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// All requests, coming at random with others that are given up at random.
fn together(generator: &Generator, numbers: &[usize], limits: Limits, seed: u64) -> Vec<Exact> {
    let mut dice = Dice(seed);
    let mut scheduler = scheduler(generator, limits);
    let mut order: Vec<usize> = numbers.to_vec();
    for at in (1..order.len()).rev() {
        order.swap(at, dice.below(at + 1));
    }
    let mut seen: Vec<Option<Arc<Seen>>> = vec![None; order.len()];
    let mut given_up: Vec<Arc<Seen>> = Vec::new();
    let mut most_at_once = 0;
    while !order.is_empty() || !scheduler.is_idle() {
        for _ in 0..dice.below(12) {
            if let Some(number) = order.pop() {
                let at = numbers.iter().position(|other| *other == number).unwrap();
                seen[at] = Some(add(&mut scheduler, generator, request(number)));
            }
        }
        if dice.below(3) == 0 && !order.is_empty() {
            let long = Request { max_new_tokens: 90, ..request(100 + dice.below(50)) };
            given_up.push(add(&mut scheduler, generator, long));
        }
        if !given_up.is_empty() && (order.is_empty() || dice.below(3) == 0) {
            given_up.swap_remove(dice.below(given_up.len())).cancel();
        }
        scheduler.step(generator.as_model(), &Ok).unwrap();
        most_at_once = most_at_once.max(scheduler.metrics().n_running);
    }
    // More than the rows that a product takes one by one.
    assert!(limits.prompt_tokens < 512 || most_at_once > 12, "{most_at_once}");
    let metrics = scheduler.metrics();
    assert!(metrics.prefix_bytes <= limits.prefix_bytes, "{metrics:?}");
    // With dynamic scaling, prompts of different lengths share nothing.
    let decoder = generator.as_model().decoder;
    assert!(metrics.n_cached_tokens > 0 || decoder.turning(100) != decoder.turning(130), "{metrics:?}");
    seen.iter().map(|seen| exact(seen.as_ref().unwrap())).collect()
}

#[test]
fn an_answer_is_the_same_alone_and_among_others_however_its_prompt_is_cut() {
    let numbers: Vec<usize> = (0..20).collect();
    for name in MODELS {
        for dtype in [DType::F32, DType::BF16] {
            let generator = generator(name, dtype, 192);
            let of =
                |at_once| numbers.iter().map(|&number| alone(&generator, request(number), at_once)).collect();
            let expected: [Vec<Exact>; 2] = [1, 64].map(of);
            // The answers differ, so that no mistake passes for another's answer.
            let differ = |expected: &[Exact]| (0..20).all(|a| (0..a).all(|b| expected[a] != expected[b]));
            assert!(expected.iter().all(|expected| differ(expected)), "{name} {dtype}");
            let page = generator.as_model().decoder.cache_bytes(LayerCache::PAGE, dtype);
            for (prompt_tokens, at_once, pages) in
                [(1, 20, None), (7, 3, None), (64, 64, Some(7)), (512, 64, None)]
            {
                let cache_bytes = pages.map(|pages: usize| pages * page);
                let prefix_bytes = 6 * page;
                let limits = Limits {
                    at_once,
                    prompt_tokens,
                    cache_bytes,
                    queue: 0,
                    prefix_bytes,
                    speculative_tokens: prompt_tokens % 9,
                };
                let found = together(&generator, &numbers, limits, prompt_tokens as u64);
                let expected = &expected[usize::from(at_once > 8)];
                for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert_eq!(found, expected, "{name} {dtype} {limits:?}: request {number}");
                }
            }
        }
    }
}

/// Also with the kernels of other CPUs, and whatever the number of threads.
#[test]
fn an_answer_is_the_same_on_every_path_of_a_cpu_with_any_threads() {
    let numbers: Vec<usize> = (0..20).collect();
    for isa in Isa::available() {
        for dtype in [DType::F32, DType::BF16] {
            let on = |threads: usize| {
                let device = Device::cpu(isa, Par::threads(threads).unwrap());
                generator_on(&device, "families/gemma2", dtype, 192)
            };
            let (one, three) = (on(1), on(3));
            let expected: Vec<Exact> =
                numbers.iter().map(|&number| alone(&one, request(number), 64)).collect();
            for (generator, prompt_tokens) in [(&one, 512), (&three, 32)] {
                let limits = Limits { at_once: 20, prompt_tokens, ..Limits::default() };
                assert_eq!(together(generator, &numbers, limits, 5), expected, "{} {dtype}", isa.path());
            }
        }
    }
}

/// The engine adds nothing to the passes of a model: a prompt in blocks of 512 positions, and then token by token.
#[test]
fn an_answer_is_that_of_the_plain_loop() {
    for name in MODELS {
        let generator = generator(name, DType::F32, 600);
        for n in [1, 8, 9, 40, 100, 515] {
            let (model, mut text) = (generator.as_model(), prompt(n, 2));
            let mut cache = model.empty_cache(600).unwrap();
            cache.iter_mut().for_each(|layer| layer.expect_prompt(n));
            let mut logits = Vec::new();
            for part in text.chunks(512) {
                logits = model.next_logits(part, &mut cache).unwrap().to_f32_vec().unwrap();
            }
            let mut expected = Vec::new();
            for _ in 0..5 {
                let best =
                    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap();
                expected.push((best as u32, OwnProbs::new(&logits, 0).of(logits[best]).to_bits()));
                text.push(best as u32);
                logits = model.next_logits(&[best as u32], &mut cache).unwrap().to_f32_vec().unwrap();
            }
            // Where an answer passes the length from which LongRoPE turns all positions anew, the loop does not follow.
            if model.decoder.turns_anew(n, n + 5) {
                continue;
            }
            let request =
                Request { max_new_tokens: 5, n_top_logprobs: Some(0), ..Request::new(prompt(n, 2)) };
            let found = alone(&generator, request, 1);
            let found: Vec<_> = found.into_iter().map(|(id, logprob, _)| (id, logprob)).collect();
            assert_eq!(found, expected, "{name}, {n} tokens");
        }
    }
}

/// Long prompts are read in blocks of 512 positions, of which the last may be of few rows.
#[test]
fn a_prompt_of_several_blocks_is_the_same_however_it_is_cut() {
    for dtype in [DType::F32, DType::BF16] {
        let generator = generator("families/gemma2", dtype, 1100);
        for n in [512, 515, 520, 521, 1030] {
            let request =
                || Request { max_new_tokens: 4, n_top_logprobs: Some(2), ..Request::new(prompt(n, 3)) };
            let expected = alone(&generator, request(), 1);
            for prompt_tokens in [1, 64, 300] {
                let mut scheduler = scheduler(&generator, Limits { prompt_tokens, ..Limits::default() });
                let beside =
                    add(&mut scheduler, &generator, Request { max_new_tokens: 60, ..self::request(1) });
                scheduler.step(generator.as_model(), &Ok).unwrap();
                let seen = add(&mut scheduler, &generator, request());
                while !scheduler.is_idle() {
                    scheduler.step(generator.as_model(), &Ok).unwrap();
                }
                assert_eq!(exact(&seen), expected, "{dtype}, {n} tokens in parts of {prompt_tokens}");
                assert_eq!(exact(&beside).len(), 60);
            }
        }
    }
}

/// LongRoPE turns positions of long texts in another way: which way depends on how long a text is, not on how long it may
/// become. When an answer passes that length, the text is read anew, as in transformers.
#[test]
fn with_longrope_the_most_tokens_of_an_answer_change_nothing() {
    let generator = generator("families/phi3", DType::F32, 64);
    let decoder = generator.as_model().decoder;
    assert!(decoder.turns_anew(10, 17) && !decoder.turns_anew(10, 16) && !decoder.turns_anew(17, 30));
    let with = |max_new_tokens: usize| Request {
        max_new_tokens,
        n_top_logprobs: Some(2),
        ..Request::new(prompt(10, 5))
    };
    let long = alone(&generator, with(40), 1);
    assert_eq!(alone(&generator, with(3), 1), long[..3]);
    // 16 positions are short. The text of 17 is read anew, so its next token is that of a prompt of 17.
    for n in [6, 7, 8, 20] {
        let text = [prompt(10, 5), long[..n].iter().map(|(id, ..)| *id).collect()].concat();
        let anew = alone(
            &generator,
            Request { max_new_tokens: 4, n_top_logprobs: Some(2), ..Request::new(text) },
            1,
        );
        let far = (f32::from_bits(anew[0].1) - f32::from_bits(long[n].1)).abs();
        assert!(anew[0].0 == long[n].0 && far < 1e-5, "{n}: {far}");
        if n == 7 {
            assert_eq!(anew, long[n..n + 4]);
        }
    }
}

/// The tokens of a prompt with their log-probabilities, with and without an answer, behind a request that read it before.
fn told(generator: &Generator, ids: &[u32], limits: Limits, max_new_tokens: usize) -> Vec<Token> {
    let mut scheduler = scheduler(generator, limits);
    let plain = Request { max_new_tokens: 4, ..Request::new(ids.to_vec()) };
    let request = |n_prompt_logprobs| Request {
        max_new_tokens,
        n_top_logprobs: Some(0),
        n_prompt_logprobs,
        ..Request::new(ids.to_vec())
    };
    let (before, asked) = (request(None), request(Some(2)));
    let seen: Vec<Arc<Seen>> = [plain, before, asked]
        .into_iter()
        .map(|request| {
            let seen = add(&mut scheduler, generator, request);
            (0..3).for_each(|_| scheduler.step(generator.as_model(), &Ok).unwrap());
            seen
        })
        .collect();
    while !scheduler.is_idle() {
        scheduler.step(generator.as_model(), &Ok).unwrap();
    }
    // The answer behind it is the same.
    assert_eq!(seen[2].tokens(), seen[1].tokens());
    let Some(Event::Prompt(tokens)) = seen[2].events().into_iter().next() else { panic!("{:?}", seen[2]) };
    tokens
}

#[test]
fn a_prompt_has_the_log_probabilities_of_a_full_pass_however_it_is_read() {
    for name in ["llama", "qwen3", "dynamic_rope"] {
        let generator = generator(name, DType::F32, 256);
        for n in [1, 2, 8, 9, 33, 64, 65, 130, 140] {
            let ids = prompt(n, 1);
            let whole = told(&generator, &ids, Limits { prompt_tokens: usize::MAX, ..Limits::default() }, 3);
            let parts = told(&generator, &ids, Limits { prompt_tokens: 1, ..Limits::default() }, 0);
            assert_eq!(whole, parts, "{name} {n}");
            assert_eq!(whole.iter().map(|token| token.id).collect::<Vec<_>>(), ids);
            let device = &generator.model.device;
            let tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
            let tokens = Tensor::from_slice(&tokens, [1, n], device).unwrap();
            let logits =
                generator.model.decoder.logits(&tokens, &Mask::Causal).unwrap().to_f32_vec().unwrap();
            assert!(whole[0].logprob.is_none() && whole[0].top.is_empty());
            for (logits, token) in logits.chunks_exact(logits.len() / n).zip(&whole[1..]) {
                let expected = OwnProbs::new(logits, 2);
                let (found, likely) = (token.logprob.unwrap(), expected.of(logits[token.id as usize]));
                assert!((found - likely).abs() < 1e-4, "{name} {n}: {found} {likely}");
                assert!((token.top[0].1 - expected.top()[0].1).abs() < 1e-4);
            }
        }
    }
}
