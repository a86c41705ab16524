//! Conversations and pairs as tokens, through the cache, to batches.

use std::sync::Arc;

use tempfile::TempDir;

use super::super::cache::TokenCache;
use super::super::loader::eval_batches;
use super::super::pack::{Packing, RowSettings};
use super::super::rows::Rows;
use super::super::source::Source;
use super::super::tokenizer::tests::small;
use super::*;

const CONVERSATIONS: &str = r#"{"messages": [{"role": "user", "content": "the end"}, {"role": "assistant", "content": "of the day"}]}
{"system": "be lazy", "conversations": [{"role": "user", "content": "the"}, {"role": "assistant", "content": "fox"},
 {"role": "user", "content": "jumps over"}, {"role": "assistant", "content": "the lazy dog"}]}
{"messages": [{"role": "user", "content": "日本"}, {"role": "assistant", "content": null, "tool_calls": []}], "tools": "[]"}
"#;

const PAIRS: &str = r#"{"messages": [{"role": "user", "content": "the end"}],
 "chosen": {"role": "assistant", "content": "of the day"}, "rejected": {"role": "assistant", "content": "fox"}}
{"messages": [{"role": "user", "content": "the"}],
 "chosen": {"role": "assistant", "content": "brown fox"}, "rejected": {"role": "assistant", "content": "dog"}}
"#;

struct Fixture {
    dir: TempDir,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

/// A tokenizer with ChatML.
fn fixture() -> Fixture {
    let (dir, tokenizer) = small();
    let template = ChatTemplate::read(dir.path()).unwrap();
    Fixture { dir, tokenizer, template }
}

impl Fixture {
    fn source(&self, records: &str) -> Source {
        // One record on each line.
        std::fs::write(self.dir.path().join("chat.jsonl"), records.replace(",\n", ",")).unwrap();
        Source::resolve("chat.jsonl", self.dir.path(), None).unwrap()
    }

    fn cache(&self, records: &str) -> Result<TokenCache> {
        let encoder = Encoder::chat(&self.tokenizer, &self.template);
        let build = TokenCache::build(self.dir.path(), &self.source(records), encoder, &mut |_| {})?;
        let cache = TokenCache::open(&build.path)?;
        cache.verify().map(|()| cache)
    }

    fn encoded(&self, records: &str) -> Vec<Encoded> {
        let encoder = Encoder::chat(&self.tokenizer, &self.template);
        let encode = |record: Result<super::super::record::Record>| {
            encoder.encode(&Example::read(&mut record.unwrap(), Content::Object).unwrap()).unwrap()
        };
        self.source(records).records(Content::Object).map(encode).collect()
    }

    fn rows(&self, records: &str, packing: Packing, len: usize) -> Result<Rows> {
        let settings = RowSettings { packing, len, special: self.tokenizer.special() };
        Rows::new(Arc::new(self.cache(records)?), &settings)
    }
}

/// A token, whether it is a target, and its segment.
type Token = (i32, bool, usize);

fn tokens(encoded: &Encoded) -> Vec<Token> {
    let Labels::Spans(spans) = &encoded.labels else { panic!("a conversation has spans") };
    let token = |(at, id): (usize, &u32)| {
        let is_target = spans.iter().any(|span| span.contains(&(at as u32)));
        (*id as i32, is_target, encoded.segments.iter().filter(|&&begin| begin as usize <= at).count())
    };
    encoded.ids.iter().enumerate().map(token).collect()
}

#[test]
fn the_assistant_is_supervised_and_nothing_else() {
    let f = fixture();
    let encoded = f.encoded(CONVERSATIONS);
    let supervised = |encoded: &Encoded| -> Vec<String> {
        let Labels::Spans(spans) = &encoded.labels else { panic!("a conversation has spans") };
        let text = |s: &Range<u32>| f.tokenizer.decode(&encoded.ids[s.start as usize..s.end as usize], false);
        spans.iter().map(|span| text(span).unwrap()).collect()
    };
    assert_eq!(supervised(&encoded[0]), ["of the day<|im_end|>\n"]);
    assert_eq!(supervised(&encoded[1]), ["fox<|im_end|>\n", "the lazy dog<|im_end|>\n"]);
    assert_eq!(supervised(&encoded[2]), ["<|im_end|>\n"]);
    let text = f.tokenizer.decode(&encoded[1].ids, false).unwrap();
    assert!(
        text.starts_with("<|im_start|>system\nbe lazy<|im_end|>\n<|im_start|>user\nthe<|im_end|>"),
        "{text}"
    );
    // What stands before an answer is the prompt to the token.
    let prompt = "<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n";
    let prompt = f.tokenizer.encode(prompt).unwrap();
    assert_eq!(encoded[0].ids[..prompt.len()], prompt);

    let pairs = f.encoded(PAIRS);
    assert_eq!(supervised(&pairs[0]), ["of the day<|im_end|>\n", "fox<|im_end|>\n"]);
    let second = pairs[0].segments[0] as usize;
    assert_eq!(pairs[0].segments.len(), 1);
    assert_eq!(pairs[0].ids[..prompt.len()], prompt);
    assert_eq!(pairs[0].ids[second..second + prompt.len()], prompt);
}

#[test]
fn cuts_are_boundaries_of_tokens_for_every_tokenizer() {
    let f = fixture();
    let text = "the end\n\nof the day 日本";
    let cuts = [0, 7, 8, 9, text.len()];
    let (ids, n_before) = f.tokenizer.encode_with_cuts(text, &cuts).unwrap();
    let mut begin = 0;
    for (i, &n) in n_before.iter().enumerate() {
        let part = &text[if i == 0 { 0 } else { cuts[i - 1] }..cuts[i]];
        assert_eq!(f.tokenizer.decode(&ids[begin..n], false).unwrap(), part);
        begin = n;
    }
    assert_eq!(begin, ids.len());
    // A tokenizer that sees more than its piece keeps the tokens of the whole text.
    let path = f.dir.path().join("tokenizer.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["pre_tokenizer"]["add_prefix_space"] = true.into();
    std::fs::write(&path, json.to_string()).unwrap();
    let other = Tokenizer::open(f.dir.path()).unwrap();
    let (ids, n_before) = other.encode_with_cuts(text, &cuts).unwrap();
    assert_eq!(ids, other.encode(text).unwrap());
    assert_eq!((n_before[0], n_before[4]), (0, ids.len()));
    assert!(n_before.is_sorted());
    assert_eq!(other.decode(&ids[..n_before[1]], false).unwrap().trim(), "the end");
}

#[test]
fn rows_of_conversations_learn_the_same_tokens_in_every_packing() {
    let f = fixture();
    let records: Vec<Vec<Token>> = f.encoded(CONVERSATIONS).iter().map(tokens).collect();
    let stream: Vec<(usize, Token)> =
        records.iter().enumerate().flat_map(|(k, r)| r.iter().map(move |&t| (k, t))).collect();
    for packing in [Packing::Concat, Packing::ConcatDocuments, Packing::Truncate] {
        for len in [2, 3, 7, 20, 64] {
            let Ok(rows) = f.rows(CONVERSATIONS, packing, len) else {
                assert!(len > stream.len());
                continue;
            };
            let wanted: Vec<Vec<(usize, Token)>> = match packing {
                Packing::Truncate => {
                    (0..3).map(|k| records[k].iter().take(len).map(|&t| (k, t)).collect()).collect()
                }
                _ => stream.chunks_exact(len).map(<[_]>::to_vec).collect(),
            };
            assert_eq!(rows.n_rows(), wanted.len() as u64);
            let batches: Vec<_> = eval_batches(Arc::new(rows.clone()), 1, 0, 1).unwrap().collect();
            for (i, (batch, wanted)) in batches.iter().zip(&wanted).enumerate() {
                let n = wanted.len();
                assert!(batch.input_ids[..n].iter().eq(wanted.iter().map(|(_, (id, ..))| id)));
                assert!(batch.input_ids[n..].iter().all(|&id| id == 0));
                for at in 0..len {
                    let next = wanted.get(at + 1).filter(|(_, (_, is_target, _))| *is_target);
                    assert_eq!(
                        batch.labels[at],
                        next.map_or(-100, |(_, (id, ..))| *id),
                        "{packing:?} {len} {at}"
                    );
                }
                let n_targets = batch.labels.iter().filter(|&&label| label != -100).count();
                assert_eq!((batch.n_targets, rows.n_targets(i as u64)), (n_targets, n_targets));
                if let Some(starts) = &batch.doc_start {
                    let start = |at: usize| wanted.iter().position(|(k, _)| *k == wanted[at].0).unwrap();
                    assert!((0..len).all(|at| starts[at] == start(at) as i32));
                }
            }
        }
    }
}

#[test]
fn the_answers_of_a_pair_are_documents_of_their_own() {
    let f = fixture();
    let records: Vec<Vec<Token>> = f.encoded(PAIRS).iter().map(tokens).collect();
    let rows = f.rows(PAIRS, Packing::Truncate, 64).unwrap();
    let batch = eval_batches(Arc::new(rows), 1, 0, 2).unwrap().next().unwrap();
    let starts = batch.doc_start.unwrap();
    for (i, record) in records.iter().enumerate() {
        let second = record.iter().position(|token| token.2 == 1).unwrap();
        let row = &starts[64 * i..64 * (i + 1)];
        assert!(row[..second].iter().all(|&start| start == 0));
        assert!(row[second..record.len()].iter().all(|&start| start == second as i32));
        assert_eq!(batch.labels[64 * i + second - 1], -100);
    }
    let neat = f.rows(PAIRS, Packing::ConcatDocuments, 32).unwrap();
    let batch = eval_batches(Arc::new(neat), 1, 0, 1).unwrap().next().unwrap();
    let second = records[0].iter().position(|token| token.2 == 1).unwrap();
    assert!(batch.doc_start.unwrap().contains(&(second as i32)));
    let error = f.rows(PAIRS, Packing::Concat, 32).unwrap_err().to_string();
    assert!(error.starts_with("packing: pairs must not see each other"), "{error}");
    let error = f.rows(CONVERSATIONS, Packing::MiniMind, 32).unwrap_err().to_string();
    assert!(error.contains("use neat_packing"), "{error}");
}

#[test]
fn held_out_conversations_keep_their_targets() {
    let f = fixture();
    let settings = RowSettings { packing: Packing::Truncate, len: 64, special: f.tokenizer.special() };
    let cache = Arc::new(f.cache(CONVERSATIONS).unwrap());
    let all = Rows::new(cache.clone(), &settings).unwrap();
    let (train, held_out) =
        Rows::split(cache, &settings, &super::super::Split::holding_out(super::super::ValSize::Count(1), 3))
            .unwrap();
    let targets = |rows: &Rows| -> Vec<usize> { (0..rows.n_rows()).map(|row| rows.n_targets(row)).collect() };
    let mut split = [targets(&train), targets(&held_out.unwrap())].concat();
    split.sort_unstable();
    let mut all = targets(&all);
    all.sort_unstable();
    assert_eq!(split, all);
}

#[test]
fn damage_in_a_cache_of_conversations_is_found() {
    let f = fixture();
    let encoder = Encoder::chat(&f.tokenizer, &f.template);
    let source = f.source(PAIRS);
    let path = TokenCache::path(f.dir.path(), &source, encoder);
    f.cache(PAIRS).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        assert!(TokenCache::open(&path).and_then(|cache| cache.verify()).is_err(), "byte {at}");
    }
}

#[test]
fn another_template_has_another_cache_and_text_keeps_its_own() {
    let f = fixture();
    let source = f.source(CONVERSATIONS);
    let path = |encoder: Encoder| TokenCache::path(f.dir.path(), &source, encoder);
    let chat = path(Encoder::chat(&f.tokenizer, &f.template));
    assert_ne!(chat, path((&f.tokenizer).into()));
    std::fs::write(f.dir.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let other = ChatTemplate::read(f.dir.path()).unwrap();
    assert_ne!(chat, path(Encoder::chat(&f.tokenizer, &other)));
}

#[test]
fn bad_records_are_named() {
    let f = fixture();
    let error = |record: &str| {
        f.cache(&format!("{}\n{record}\n", PAIRS.lines().take(2).collect::<Vec<_>>().join("")))
    };
    let check = |record: &str, expected: &str| {
        let error = error(record).unwrap_err().to_string();
        assert!(error.contains("chat.jsonl:2: ") && error.contains(expected), "{error}");
    };
    check(r#"{"text": "a"}"#, "missing field `messages`; repair or remove the record");
    check(r#"{"messages": [{"role": "user"}"#, "broken JSON at column 30: EOF");
    check(r#"{"messages": [{"role": "user", "content": "a"}]}"#, "holds nothing that the assistant says");
    check(r#"{"messages": [], "chosen": {"role": "assistant"}}"#, "only one of chosen and rejected");
    check(r#"{"messages": [], "tools": "["}"#, "tools is not JSON: EOF");
    check(
        r#"{"messages": [], "chosen": {"role": "user"}, "rejected": {"role": "assistant"}}"#,
        "the conversation holds nothing that the assistant says",
    );
    let text = Example::Text("a".into());
    let error = Encoder::chat(&f.tokenizer, &f.template).encode(&text).unwrap_err().to_string();
    assert!(error.contains("texts are encoded without a chat template"), "{error}");
    std::fs::write(f.dir.path().join("a.txt"), "text").unwrap();
    let source = Source::resolve("a.txt", f.dir.path(), None).unwrap();
    let error = source.records(Content::Object).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("plain text holds no conversations"), "{error}");
}
