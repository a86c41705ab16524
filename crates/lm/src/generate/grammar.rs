//! Grammars: JSON of a schema, regular expressions, and the notations of Lark and llama.cpp, which say what may come next in an answer.
//!
//! What strangers wrote is read on a thread of its own with bounds to its time and memory, and a grammar that takes too
//! much for a single token ends its answer with an error.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use oarlock_engine::{Error, Result};
use serde_json::Value;

use super::constraint::{Constraint, TokenSet};
use super::gbnf;
use crate::data::Tokenizer;
use crate::data::confined::{self, Bounds};

/// What reading a grammar may take. Its own limits end it long before.
const BOUNDS: Bounds = Bounds {
    bytes: 512 << 20,
    n_pieces: 1 << 23,
    total_bytes: 16 << 30,
    stack_bytes: 64 << 20,
    time: Duration::from_secs(5),
};

/// How many grammars may be beyond [`BOUNDS`] at a time. Each has a thread that cannot be ended: one that is slow ends by itself,
/// one that wants too much memory sleeps.
const MOST_GIVEN_UP: usize = 8;

/// The states of the lexer of one answer: each takes about two kilobytes.
const MOST_LEXER_STATES: usize = 20_000;

/// The longest token that grammars can spell.
const LONGEST_TOKEN: usize = 1000;

/// The most brackets around each other in Lark's notation, where each takes stack.
const DEEPEST: usize = 64;

/// The longest text of an error of the parser.
const LONGEST_MESSAGE: usize = 300;

/// The white space that JSON may have between its values. A model that is at a loss would write it without an end.
const SPACE: &str = "[ \\t\\n\\r]{1,24}";

/// A rule for a text, in one of the notations.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// JSON of a schema. What cannot be promised of a schema is refused if it is strict, else passed over.
    Json {
        /// The schema, an object.
        schema: Value,
        /// Whether all of it has to be promised.
        is_strict: bool,
    },
    /// What this expression, in the syntax of the crate `regex`, matches as a whole.
    Regex(String),
    /// A grammar in the notation of Lark as llguidance reads it. `@name` stands for another rule of the same grammar.
    Lark(String),
    /// A grammar in the notation of llama.cpp (GBNF), which begins with the rule `root`.
    Gbnf(String),
}

/// The tokens of a model as grammars see them.
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    n_given_up: Arc<AtomicUsize>,
}

/// A grammar that is being read. Whoever waits may give it up; it counts as given up until its thread is done.
struct Reading {
    /// Whether nobody waits any more, or its thread is done, whichever is first.
    is_left: AtomicBool,
    n_given_up: Arc<AtomicUsize>,
}

impl Reading {
    /// To be called by who waits.
    fn give_up(&self) {
        // Counted first, so that a thread that is done in this moment takes away what is there.
        self.n_given_up.fetch_add(1, Ordering::Relaxed);
        if self.is_left.swap(true, Ordering::AcqRel) {
            self.n_given_up.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What the thread holds until it is done.
struct Thread(Arc<Reading>);

impl Drop for Thread {
    fn drop(&mut self) {
        if self.0.is_left.swap(true, Ordering::AcqRel) {
            self.0.n_given_up.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Vocabulary {
    /// The tokens of a model that knows so many; `stop_ids` end its answers.
    ///
    /// # Errors
    /// A tokenizer that cannot be used, and a model without a token that ends an answer.
    pub fn new(tokenizer: &Tokenizer, n_tokens: usize, stop_ids: &[u32]) -> Result<Vocabulary> {
        let ends: Vec<u32> = stop_ids.iter().copied().filter(|&id| (id as usize) < n_tokens).collect();
        let Some(&end) = ends.first() else {
            return Err(Error::Usage(
                "the model has no token that ends an answer, so no grammar can end".to_owned(),
            ));
        };
        let spelled = |id: u32| -> Result<Vec<u8>> {
            // Special tokens are no text, and what ends an answer is not a part of it.
            if ends.contains(&id) || tokenizer.is_special(id)? {
                return Ok(Vec::new());
            }
            let bytes = tokenizer.token_bytes(id, false)?.unwrap_or_default();
            Ok(if bytes.len() > LONGEST_TOKEN { Vec::new() } else { bytes })
        };
        let words = (0..n_tokens as u32).map(spelled).collect::<Result<Vec<_>>>()?;
        let trie = TokTrie::from(&TokRxInfo::new(n_tokens as u32, end), &words).with_eos_tokens(&ends);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
            .map_err(|error| Error::Usage(format!("no grammar works with this tokenizer: {error}")))?;
        factory.quiet();
        let limits = factory.limits_mut();
        (limits.max_lexer_states, limits.verbose_errors) = (MOST_LEXER_STATES, false);
        Ok(Vocabulary { factory: Arc::new(factory), n_given_up: Arc::default() })
    }

    /// Reads a grammar. It begins with the first rule, and Lark's notation names the others.
    ///
    /// # Errors
    /// Rules that are wrong, that no text can follow, or that take too much.
    pub fn grammar(&self, rules: Vec<(String, Rule)>) -> Result<Grammar> {
        let wrong = |problem: &str| Error::Usage(format!("no answer can be held to this form: {problem}"));
        if let Some(problem) = rules.iter().find_map(|(_, rule)| rule.problem()) {
            return Err(wrong(&problem));
        }
        if self.n_given_up.load(Ordering::Relaxed) >= MOST_GIVEN_UP {
            return Err(wrong("too many forms take too long, and no more are read"));
        }
        let factory = self.factory.clone();
        let named = rules.into_iter().map(|(name, rule)| rule.named(name));
        let grammars = named.collect::<std::result::Result<_, _>>().map_err(|problem| wrong(&problem))?;
        let top = TopLevelGrammar { grammars, max_tokens: None };
        let n_given_up = self.n_given_up.clone();
        let reading = Arc::new(Reading { is_left: AtomicBool::new(false), n_given_up });
        let thread = Thread(reading.clone());
        let read = confined::run(BOUNDS, move || {
            let _until_done = thread;
            let mut matcher = Matcher::new(factory.create_parser(top));
            // What cannot begin is found here, and not by the first answer.
            matcher.compute_mask().map(|mask| (matcher, mask.is_zero())).map_err(|error| format!("{error:#}"))
        });
        match read {
            Ok(Ok((matcher, false))) => Ok(Grammar(Arc::new(Mutex::new(matcher)))),
            Ok(Ok((_, true))) => Err(wrong("no text follows it")),
            Ok(Err(problem)) => Err(wrong(&shown(&problem))),
            Err(confined::Abandoned::Panicked) => Err(wrong("it is not understood")),
            Err(_) => {
                reading.give_up();
                Err(wrong("it takes too long to read"))
            }
        }
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("n_given_up", &self.n_given_up).finish_non_exhaustive()
    }
}

impl Rule {
    /// What is wrong with it at first sight.
    fn problem(&self) -> Option<String> {
        match self {
            Rule::Json { schema, .. } if !schema.is_object() => Some("its schema is no object".to_owned()),
            Rule::Lark(text) if depth(text) > DEEPEST => {
                Some(format!("more than {DEEPEST} brackets stand around each other"))
            }
            _ => None,
        }
    }

    fn named(self, name: String) -> std::result::Result<GrammarWithLexer, String> {
        let grammar = match self {
            Rule::Json { mut schema, is_strict } => {
                // The parser's own options are not the client's to choose.
                schema["x-guidance"] = serde_json::json!({
                    "whitespace_pattern": SPACE, "lenient": !is_strict, "coerce_one_of": true,
                });
                GrammarWithLexer::from_json_schema(schema)
            }
            Rule::Regex(regex) => GrammarWithLexer::from_regex(&regex),
            Rule::Lark(text) => GrammarWithLexer::from_lark(text),
            Rule::Gbnf(text) => GrammarWithLexer::from_lark(gbnf::to_lark(&text)?),
        };
        Ok(GrammarWithLexer { name: Some(name), ..grammar })
    }
}

/// How many brackets stand around each other at most, those in texts counted as well.
fn depth(text: &str) -> usize {
    let (mut deepest, mut depth) = (0, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = depth.max(deepest);
    }
    deepest
}

/// The beginning of a message of the parser, on one line.
fn shown(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A grammar that has been read. Any number of answers can be held to it.
#[derive(Clone)]
pub struct Grammar(Arc<Mutex<Matcher>>);

impl Grammar {
    /// What holds one answer to it.
    pub fn constraint(&self) -> Box<dyn Constraint> {
        Box::new(Held { grammar: self.clone(), matcher: None, n_taken: 0 })
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammar(…)")
    }
}

/// An answer that is held to a grammar.
struct Held {
    grammar: Grammar,
    /// Made with the first token, so that answers that wait take no memory.
    matcher: Option<Matcher>,
    /// Tokens of the answer that the matcher has seen.
    n_taken: usize,
}

impl Constraint for Held {
    fn allow(&mut self, answer: &[u32], allowed: &mut TokenSet) -> Result<()> {
        // It shares nothing with the other answers, whose states would count against its limits.
        let own = || self.grammar.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let matcher = self.matcher.get_or_insert_with(own);
        let failed = |problem: &str| Error::Usage(format!("the form of the answer: {}", shown(problem)));
        matcher
            .consume_tokens(answer.get(self.n_taken..).unwrap_or_default())
            .map_err(|error| failed(&error.to_string()))?;
        self.n_taken = answer.len();
        if !matcher.stop_reason().is_ok() {
            return Err(failed("it takes too much for a token"));
        }
        let mask = matcher.compute_mask_or_eos().map_err(|error| failed(&error.to_string()))?;
        mask.iter_set_entries(|id| allowed.insert(id as u32));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_that_was_given_up_counts_until_its_thread_is_done() {
        let n_given_up: Arc<AtomicUsize> = Arc::default();
        let begin = || {
            let reading = Reading { is_left: AtomicBool::new(false), n_given_up: n_given_up.clone() };
            let reading = Arc::new(reading);
            (Thread(reading.clone()), reading)
        };
        let count = || n_given_up.load(Ordering::Relaxed);
        let (thread, reading) = begin();
        reading.give_up();
        assert_eq!(count(), 1);
        drop(thread);
        assert_eq!(count(), 0);
        // One that is done in the moment in which it is given up.
        let (thread, reading) = begin();
        drop(thread);
        reading.give_up();
        assert_eq!(count(), 0);
    }
}
