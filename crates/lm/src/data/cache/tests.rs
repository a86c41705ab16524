//! Token caches: what is built, found again, rebuilt and refused.

use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::super::template::ChatTemplate;
use super::super::tokenizer::Tokenizer;
use super::super::tokenizer::tests::small;
use super::*;

struct Fixture {
    dir: TempDir,
    tokenizer: Tokenizer,
    source: Source,
}

fn fixture() -> Fixture {
    let (dir, tokenizer) = small();
    std::fs::write(dir.path().join("data.txt"), "the end\nof\nthe day 日本語\n").unwrap();
    let source = Source::resolve("data.txt", dir.path(), None).unwrap();
    Fixture { dir, tokenizer, source }
}

impl Fixture {
    fn build(&self) -> Build {
        TokenCache::build(&self.dir.path().join("cache"), &self.source, &self.tokenizer, &mut |_| {}).unwrap()
    }

    fn text(&self) -> PathBuf {
        self.dir.path().join("data.txt")
    }
}

fn records(cache: &TokenCache) -> Vec<Vec<i32>> {
    let record = |w: &[u64]| {
        let mut ids = vec![0; (w[1] - w[0]) as usize];
        cache.copy(w[0], &mut ids);
        ids
    };
    cache.offsets().windows(2).map(record).collect()
}

#[test]
fn holds_the_ids_of_every_record() {
    let f = fixture();
    let build = f.build();
    assert!(!build.reused && build.reason.is_none());
    let cache = TokenCache::open(&build.path).unwrap();
    let expected: Vec<Vec<i32>> = ["the end", "of", "the day 日本語"]
        .map(|t| f.tokenizer.encode(t).unwrap().into_iter().map(|id| id as i32).collect())
        .into();
    assert_eq!(records(&cache), expected);
    assert_eq!((cache.n_records(), cache.vocab_size()), (3, f.tokenizer.vocab_size().unwrap() as u64));
    assert_eq!(cache.n_tokens(), expected.iter().map(|r| r.len() as u64).sum::<u64>());
}

#[test]
fn texts_that_are_null_are_dropped_and_counted() {
    let (dir, tokenizer) = small();
    let build = |lines: &str| {
        std::fs::write(dir.path().join("data.jsonl"), lines).unwrap();
        let source = Source::resolve("data.jsonl", dir.path(), None).unwrap();
        TokenCache::build(&dir.path().join("cache"), &source, &tokenizer, &mut |_| {})
    };
    let built = build("{\"text\": \"the end\"}\n{\"text\": null}\n{\"text\": null}").unwrap();
    let cache = TokenCache::open(&built.path).unwrap();
    let report = cache.report().unwrap().unwrap();
    assert_eq!((cache.n_records(), report.rows, report.n_dropped()), (1, 3, 2));
    assert!(report.dropped[0].reason.contains("null") && report.dropped[0].first.ends_with("data.jsonl:2"));
    assert_eq!(report.empty, 0);
    // An empty text is one, of which the end is learned.
    let said = |lines: &str| {
        TokenCache::open(&build(lines).unwrap().path)
            .unwrap()
            .report()
            .unwrap()
            .map(|report| report.lines(64).join("\n"))
    };
    assert_eq!(said("{\"text\": \"of\"}"), None);
    let some = said("{\"text\": \"\"}\n{\"text\": \"of\"}").unwrap();
    assert!(some.contains("note: 1 texts are empty, so nothing but their ends is trained on"), "{some}");
    let all = said("{\"text\": \"\"}\n{\"text\": \"\"}").unwrap();
    assert!(all.contains("warning: all 2 texts are empty"), "{all}");
    let none = build("{\"text\": null}").unwrap_err().to_string();
    assert!(none.contains("none of 1 rows can be trained on; 1 dropped: its text is null"), "{none}");
}

#[test]
fn a_key_that_stands_twice_in_records_is_told_and_the_last_counts() {
    let (dir, tokenizer) = small();
    let template = ChatTemplate::read(dir.path()).unwrap();
    let rows = |rows: &str, encoder: Encoder<'_>| {
        std::fs::write(dir.path().join("data.jsonl"), rows).unwrap();
        let source = Source::resolve("data.jsonl", dir.path(), None).unwrap();
        let built = TokenCache::build(&dir.path().join("cache"), &source, encoder, &mut |_| {}).unwrap();
        let cache = TokenCache::open(&built.path).unwrap();
        (records(&cache), cache.report().unwrap().unwrap().lines(64).join("\n"))
    };
    let message =
        |key: &str| format!("the first value of \"{key}\", which stands twice in a record, is not read");
    let texts =
        "{\"text\": \"of\"}\n{\"text\": \"the end\", \"text\": \"of\"}\n{\"text\": \"of\", \"text\": \"of\"}";
    let (found, said) = rows(texts, Encoder::from(&tokenizer));
    assert!(found[1] == found[0] && found[2] == found[0]);
    assert!(said.contains(&message("text")) && said.contains("(1 rows, the first is "), "{said}");
    let conversation = "{\"id\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"the\"}, {\"role\": \"assistant\", \"content\": \"end\"}], \"id\": 2}";
    let (_, said) = rows(conversation, Encoder::chat(&tokenizer, &template));
    assert!(said.contains(&message("id")) && said.contains("data.jsonl:1)"), "{said}");
}

#[test]
fn what_files_become_is_known_by_their_tokens() {
    let (dir, tokenizer) = small();
    let made_of = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        let source = Source::resolve(name, dir.path(), None).unwrap();
        let built = TokenCache::build(&dir.path().join("cache"), &source, &tokenizer, &mut |_| {}).unwrap();
        let cache = TokenCache::open(&built.path).unwrap();
        // What is kept is what caches without it are asked for.
        let sum = hash_bytes(&cache.map[HEADER_BYTES..cache.layout.end_of_tokens()]);
        assert_eq!(cache.origin().unwrap().tokens, Some(sum));
        cache.made_of().unwrap()
    };
    let first = made_of("first.txt", "the end\nof");
    let same = made_of("same.txt", "the end\nof\n");
    assert_ne!(first.0[0].1, same.0[0].1);
    assert_eq!(first.1, same.1);
    // As many records of as many tokens.
    assert_ne!(first.1, made_of("turned.txt", "of\nthe end").1);
}

#[test]
fn the_same_bytes_on_any_number_of_threads() {
    let f = fixture();
    let bytes = [1, 2, 7].map(|n| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        let dir = f.dir.path().join(n.to_string());
        let build = pool.install(|| TokenCache::build(&dir, &f.source, &f.tokenizer, &mut |_| {})).unwrap();
        std::fs::read(build.path).unwrap()
    });
    assert_eq!(bytes[0], bytes[1]);
    assert_eq!(bytes[0], bytes[2]);
}

#[test]
fn a_cache_is_reused_until_the_text_changes() {
    let f = fixture();
    f.build();
    assert!(f.build().reused);
    // Another time but the same content: still right.
    let file = std::fs::File::options().append(true).open(f.text()).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
    assert!(f.build().reused);
    // The same length, other content.
    let text = std::fs::read_to_string(f.text()).unwrap().replace("end", "dog");
    std::fs::write(f.text(), text).unwrap();
    let build = f.build();
    assert_eq!((build.reused, build.reason.as_deref()), (false, Some("the text has changed")));
    let first = f.tokenizer.encode("the dog").unwrap();
    assert_eq!(records(&TokenCache::open(&build.path).unwrap())[0].len(), first.len());
    assert!(f.build().reused);
}

#[test]
fn other_settings_have_other_files() {
    let f = fixture();
    let dir = f.dir.path();
    let path = |source: &Source, tokenizer: &Tokenizer| TokenCache::path(dir, source, tokenizer);
    let fewer = Source::resolve("data.txt", dir, Some(2)).unwrap();
    let both = Source::resolve("data.txt,text.txt", dir, None).unwrap();
    let (_other_dir, other) = {
        let other_dir = tempfile::tempdir().unwrap();
        let settings = super::super::train_bpe::TrainSettings::minimind(300);
        super::super::train_bpe::train_bpe(&f.source, other_dir.path(), &settings).unwrap();
        let tokenizer = Tokenizer::open(other_dir.path()).unwrap();
        (other_dir, tokenizer)
    };
    let paths = [
        path(&f.source, &f.tokenizer),
        path(&fewer, &f.tokenizer),
        path(&both, &f.tokenizer),
        path(&f.source, &other),
    ];
    for (i, a) in paths.iter().enumerate() {
        assert!(paths[..i].iter().all(|b| a != b));
    }
    assert_eq!(paths[0], path(&f.source.clone(), &Tokenizer::open(dir).unwrap()));
}

#[test]
fn damage_anywhere_is_found_and_repaired() {
    let f = fixture();
    let build = f.build();
    let whole = std::fs::read(&build.path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&build.path, &bytes).unwrap();
        let found = TokenCache::open(&build.path).and_then(|cache| cache.verify());
        assert!(matches!(found, Err(Error::Cache { .. })), "byte {at}");
    }
    for len in (0..whole.len()).step_by(7) {
        std::fs::write(&build.path, &whole[..len]).unwrap();
        assert!(matches!(TokenCache::open(&build.path), Err(Error::Cache { .. })), "{len} bytes");
    }
    let again = f.build();
    assert!(!again.reused && again.reason.is_some());
    assert_eq!(std::fs::read(&build.path).unwrap(), whole);
}

#[test]
fn builds_at_the_same_time_all_succeed() {
    let f = fixture();
    let paths: Vec<PathBuf> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| f.build().path)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(paths.windows(2).all(|p| p[0] == p[1]));
    TokenCache::open(&paths[0]).unwrap().verify().unwrap();
    assert_eq!(std::fs::read_dir(f.dir.path().join("cache")).unwrap().count(), 1);
}

#[test]
fn progress_counts_up() {
    let f = fixture();
    let mut last = None;
    TokenCache::build(&f.dir.path().join("p"), &f.source, &f.tokenizer, &mut |p| last = Some(p)).unwrap();
    let last = last.unwrap();
    assert_eq!((last.records, last.text_bytes), (3, 26));
}

#[test]
fn a_place_that_cannot_be_written_is_explained() {
    let f = fixture();
    let error = TokenCache::build(&f.text(), &f.source, &f.tokenizer, &mut |_| {}).unwrap_err().to_string();
    assert!(error.starts_with("cannot write") && error.contains("data.txt"), "{error}");
}

#[test]
fn another_version_of_the_format_is_built_again() {
    let f = fixture();
    let build = f.build();
    let whole = std::fs::read(&build.path).unwrap();
    // Version 1 had a header of 64 bytes; of one from another kind of machine the bytes stand the other way round.
    let mut old = whole[..64].to_vec();
    old[12] = 1;
    let mut foreign = whole.clone();
    foreign[..8].reverse();
    for (bytes, reason) in [
        (old, "it is of version 1, and this program reads 2"),
        (foreign, "it is not a token cache of this kind of machine"),
    ] {
        std::fs::write(&build.path, bytes).unwrap();
        let error = TokenCache::open(&build.path).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("delete it, and it will be built again"), "{error}");
        let again = f.build();
        assert_eq!((again.reused, again.reason.as_deref()), (false, Some(reason)));
        assert_eq!(std::fs::read(&build.path).unwrap(), whole);
    }
}

#[test]
fn texts_take_no_byte_for_their_targets() {
    let f = fixture();
    let cache = TokenCache::open(&f.build().path).unwrap();
    let origin = cache.layout.origin.len();
    let ids = (2 * cache.n_tokens() as usize).next_multiple_of(8);
    assert_eq!(cache.map.len(), HEADER_BYTES + ids + 8 * 4 + origin);
    assert!(!cache.holds_conversations() && !cache.has_segments() && cache.targets(0).is_none());
}

#[test]
fn wide_ids_take_four_bytes() {
    let header = Header {
        id_bytes: 4,
        conversations: false,
        n_tokens: 3,
        n_records: 2,
        n_labels: 0,
        n_segments: 0,
        origin_bytes: 5,
        vocab_size: 70_000,
        body_hash: 9,
    };
    let layout = Header::parse(&header.to_bytes()).unwrap().layout().unwrap();
    assert_eq!([layout.ids, layout.offsets, layout.origin], [80..92, 96..120, 120..125]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.tokens");
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(bytemuck::cast_slice(&[69_999u32, 1, 2, 0]));
    bytes.extend_from_slice(bytemuck::cast_slice(&[0u64, 1, 3]));
    bytes.extend_from_slice(b"12345");
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(records(&TokenCache::open(&path).unwrap()), [vec![69_999], vec![1, 2]]);
    for overflow in [
        Header { n_tokens: u64::MAX, ..header },
        Header { conversations: true, n_labels: u64::MAX / 4, ..header },
        Header { n_records: u64::MAX, ..header },
    ] {
        assert!(overflow.layout().is_none());
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_no_data_set() {
    let f = fixture();
    let cache = f.dir.path().join("cache");
    let mut grow = |_| std::fs::write(f.text(), "the end\nof\nthe day\nand another\n").unwrap();
    let error = TokenCache::build(&cache, &f.source, &f.tokenizer, &mut grow).unwrap_err().to_string();
    assert!(error.contains("data.txt: the file changed while it was read; start again"), "{error}");
    assert_eq!(std::fs::read_dir(cache).unwrap().count(), 0);
}
