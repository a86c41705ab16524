//! Damaged data sets, templates and tokenizers: each is reported with its file, its line or record and the cause. Nothing
//! panics, nothing is written, and a row that cannot be used is dropped and counted while the others are trained on.

use std::path::Path;

use oarlock::config::{ChatArgs, ExampleKind};
use oarlock::data::{Chat, Encoder, RowReport, Source, TokenCache, Tokenizer};

use crate::common::golden;
use serde_json::{Value, json};
use tempfile::TempDir;

const GOOD: &str = r#"{"instruction": "Who was at the weir?", "output": "Ida."}"#;

/// What `stage: sft` makes of a data set, and of which tokenizer.
struct Try {
    folder: TempDir,
    args: ChatArgs,
    cutoff_len: usize,
}

impl Try {
    /// A folder with the tokenizer of the golden model and a data set with one good row.
    fn new() -> Try {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(golden().join(name), folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("rows.jsonl"), GOOD).unwrap();
        let args =
            ChatArgs { template: Some("default".into()), split_special_tokens: true, ..ChatArgs::default() };
        Try { folder, args, cutoff_len: 100 }
    }

    fn with(name: &str, content: impl AsRef<[u8]>) -> Try {
        let attempt = Try::new();
        std::fs::write(attempt.folder.path().join(name), content).unwrap();
        attempt
    }

    /// As the tokenizer's own chat template writes it.
    fn rendered(template: &str) -> Try {
        let attempt = Try::with("chat_template.jinja", template);
        Try { args: ChatArgs { template: None, ..attempt.args.clone() }, ..attempt }
    }

    fn examples(self, examples: ExampleKind) -> Try {
        Try { args: ChatArgs { examples, ..self.args.clone() }, ..self }
    }

    /// Reads, encodes and counts; texts instead of conversations with `plain`.
    fn run(&self, dataset: &str, plain: bool) -> Result<Option<RowReport>, String> {
        let (folder, caches) = (self.folder.path(), tempfile::tempdir().unwrap());
        let build = || {
            let tokenizer = Tokenizer::open(folder)?;
            let chat = Chat::new(&tokenizer, folder, &self.args, self.cutoff_len)?;
            let encoder = if plain { Encoder::from(&tokenizer) } else { Encoder::sft(&tokenizer, &chat) };
            let source = Source::resolve(dataset, folder, None)?;
            let built = TokenCache::build(caches.path(), &source, encoder, &mut |_| ())?;
            TokenCache::open(&built.path)?.report()
        };
        let result = build().map_err(|error: oarlock::data::Error| error.to_string());
        let left = || std::fs::read_dir(caches.path()).unwrap().count();
        assert!(result.is_ok() || left() == 0, "{dataset}: something half-written is left");
        result
    }

    /// The run is refused with a message that has all of `reported`.
    fn refused(&self, dataset: &str, plain: bool, reported: &[&str]) {
        let error = self.run(dataset, plain).expect_err(&format!("{reported:?} was not refused"));
        reported
            .iter()
            .for_each(|reported| assert!(error.contains(reported), "{reported:?} is not in: {error}"));
        assert!(!error.contains("panick") && error.len() < 1000, "{error}");
    }
}

#[test]
fn an_entry_of_dataset_info_that_cannot_be_used_is_named_with_its_file_and_its_key() {
    let deep = format!("{{\"d\": {}1{}}}", "[".repeat(300), "]".repeat(300));
    let of = |entry: &str| format!("{{\"d\": {entry}}}");
    let tags = r#"{"role_tag": "role"}"#;
    for (info, reported) in [
        ("[]".to_owned(), &["dataset_info.json:1: ", "must be one JSON object of data sets"][..]),
        ("{\n\"d\": ".into(), &["dataset_info.json:2: EOF while parsing"]),
        (deep, &["dataset_info.json:1: recursion limit exceeded"]),
        ("{\"d\": \"\u{0}\"}".into(), &["dataset_info.json:1: control character"]),
        ("{}".into(), &["Undefined dataset d in dataset_info.json. Defined in ", ": nothing."]),
        ("{\"dd\": {}}".into(), &["Undefined dataset d", "Did you mean dd?"]),
        (of("3"), &["dataset d in ", "not a JSON object; write {\"file_name\": \"...\"}"]),
        (of("null"), &["not a JSON object"]),
        (of("{}"), &["no file_name; name the file or folder"]),
        (of(r#"{"file_name": 7}"#), &["file_name is 7; write it as a string"]),
        (
            of(r#"{"file_name": "gone.json"}"#),
            &["dataset d in ", "gone.json: No such file", "relative to dataset_dir"],
        ),
        (
            of(r#"{"file_name": "loop.jsonl"}"#),
            &["dataset d in ", "loop.jsonl: Too many levels of symbolic links"],
        ),
        (of(r#"{"file_name": "words.docx"}"#), &["words.docx: unknown data format; give a .jsonl"]),
        (of(r#"{"file_name": "empty"}"#), &["no data file in this folder; put .jsonl"]),
        (of(r#"{"file_name": "dataset_info.json"}"#), &["dataset_info.json:1: no column \"instruction\""]),
        (
            of(r#"{"hf_hub_url": "org/name"}"#),
            &["dataset d lies on a hub (hf_hub_url: org/name)", "a training run fetches them"],
        ),
        (of(r#"{"cloud_file_name": "s3://x"}"#), &["dataset d is remote (cloud_file_name: s3://x)"]),
        (
            of(r#"{"file_name": "rows.jsonl", "formatting": "alpca"}"#),
            &["Dataset converter alpca not found; write alpaca,"],
        ),
        (of(r#"{"file_name": "rows.jsonl", "formatting": 1}"#), &["formatting is 1; write alpaca,"]),
        (
            of(r#"{"file_name": "rows.jsonl", "ranking": "yes"}"#),
            &["ranking is \"yes\"; write true or false"],
        ),
        (of(r#"{"file_name": "rows.jsonl", "ranking": true}"#), &["columns names no chosen or no rejected"]),
        (of(r#"{"file_name": "rows.jsonl", "columns": ["a"]}"#), &["columns is [\"a\"]; write"]),
        (
            of(r#"{"file_name": "rows.jsonl", "columns": {"promt": "a"}}"#),
            &["columns names promt, which is unknown"],
        ),
        (
            of(r#"{"file_name": "rows.jsonl", "columns": {"query": 2}}"#),
            &["columns.query is 2; write it as a string"],
        ),
        (
            of(r#"{"file_name": "rows.jsonl", "columns": {"prompt": "question"}}"#),
            &[
                "rows.jsonl:1: no column \"question\"; the columns are instruction, output",
                "\"columns\": {\"prompt\"",
            ],
        ),
        (
            of(r#"{"file_name": "rows.jsonl", "tags": {"roles": "a"}}"#),
            &["tags names roles, which is unknown"],
        ),
        (
            of(&format!(r#"{{"file_name": "rows.jsonl", "formatting": "sharegpt", "tags": {tags}}}"#)),
            &["tags names no content_tag, and tags that it does not name are none"],
        ),
        (
            of(r#"{"file_name": "rows.jsonl", "formatting": "openai", "columns": {"system": "s"}}"#),
            &["columns names no messages; name the list of messages"],
        ),
        (
            of(r#"{"file_name": "rows.jsonl", "num_samples": -1}"#),
            &["num_samples is -1; give a whole number"],
        ),
        (of(r#"{"file_name": "rows.jsonl", "num_samples": "9"}"#), &["num_samples is \"9\""]),
        (of(r#"{"file_name": "rows.jsonl", "split": "test"}"#), &["split test of a single file"]),
        (of(r#"{"file_name": "rows.jsonl", "split": ["a"]}"#), &["split is [\"a\"]; write it as a string"]),
    ] {
        let attempt = Try::with("dataset_info.json", &info);
        let path = attempt.folder.path();
        std::fs::create_dir(path.join("empty")).unwrap();
        std::fs::write(path.join("words.docx"), "x").unwrap();
        std::os::unix::fs::symlink("loop.jsonl", path.join("loop.jsonl")).unwrap();
        attempt.refused("d", false, reported);
    }
    Try::new().refused(" , ", false, &["dataset: Please specify dataset for training."]);
    Try::with("dataset_info.json", b"{\"d\": {\"file_name\": \"\xff\"}}").refused(
        "d",
        false,
        &["dataset_info.json:1: "],
    );
    // What only looks damaged: a byte order mark, and a key that says the same twice.
    let info = "\u{feff}{\"d\": {\"file_name\": \"rows.jsonl\", \"file_name\": \"rows.jsonl\"}}";
    assert_eq!(Try::with("dataset_info.json", info).run("d", false).unwrap().unwrap().examples, 1);
    let info = info.replacen("rows", "gone", 1);
    let reported = Try::with("dataset_info.json", &info).run("d", false).unwrap_err();
    assert!(
        reported.contains("dataset_info.json:1: \"file_name\" stands twice with two values"),
        "{reported}"
    );
}

#[test]
fn a_broken_file_is_named_with_the_line_and_what_to_do() {
    let word = format!(r#"{{"instruction": "a", "output": "{}"}}"#, "x".repeat((1 << 24) + 1));
    let deep = format!("{GOOD}\n{{\"instruction\": {}1{}}}", "[".repeat(300), "]".repeat(300));
    let lines = |second: &str| format!("{GOOD}\n{second}\n").into_bytes();
    let cases: Vec<(&str, Vec<u8>, bool, &[&str])> = vec![
        (
            "t.jsonl",
            lines(r#"{"instruction": "a", "#),
            false,
            &["t.jsonl:2: broken JSON at column", "repair or remove"],
        ),
        (
            "t.jsonl",
            lines(r#"{"instruction": "a" "output": "b"}"#),
            false,
            &["t.jsonl:2: broken JSON at column 21"],
        ),
        (
            "t.json",
            format!("[{GOOD},\n{{\"instruction\": \"a\"").into(),
            false,
            &["t.json:2: the file ends inside the array"],
        ),
        ("t.json", format!("[{GOOD}]\n]").into(), false, &["t.json:2: something follows the array"]),
        (
            "t.json",
            format!("[{GOOD},\n3]").into(),
            false,
            &["t.json:2: the record is a number where an object is expected"],
        ),
        ("t.jsonl", lines("[[]]"), false, &["t.jsonl:2: the record is an array where an object is expected"]),
        ("t.jsonl", lines("null"), false, &["t.jsonl:2: the record is null where an object is expected"]),
        (
            "t.jsonl",
            lines(r#"{"instruction": "a", "score": NaN}"#),
            false,
            &["t.jsonl:2: ", "NaN is not a value of JSON, write null"],
        ),
        (
            "t.jsonl",
            lines(r#"{"instruction": "a", "score": 1e999}"#),
            false,
            &["t.jsonl:2: broken JSON", "number out of range"],
        ),
        ("t.jsonl", deep.into(), false, &["t.jsonl:2: broken JSON at column", "recursion limit"]),
        (
            "t.jsonl",
            lines(r#"{"text": "a", "id": 1}"#),
            false,
            &["t.jsonl:2: the columns (text, id) are neither those of alpaca"],
        ),
        (
            "t.jsonl",
            lines(r#"{"instruction": 3, "output": "b"}"#),
            false,
            &["t.jsonl:2: column \"instruction\" holds a number"],
        ),
        (
            "t.jsonl",
            lines(r#"{"instruction": ["a"], "output": "b"}"#),
            false,
            &["column \"instruction\" holds an array"],
        ),
        (
            "t.jsonl",
            lines(r#"{"instruction": "a", "output": "b", "system": {}}"#),
            false,
            &["column \"system\" holds an object"],
        ),
        (
            "t.jsonl",
            lines(r#"{"conversations": "a"}"#),
            false,
            &["t.jsonl:2: column \"conversations\" holds a string where a list"],
        ),
        (
            "t.jsonl",
            lines(r#"{"messages": 5}"#),
            false,
            &["column \"messages\" holds a number where a list is expected"],
        ),
        (
            "t.jsonl",
            [GOOD.as_bytes(), b"\n{\"instruction\": \"\xff\xfe\"}"].concat(),
            false,
            &["t.jsonl:2: invalid UTF-8 at byte 18", "save the file as UTF-8"],
        ),
        (
            "t.jsonl",
            GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            false,
            &["t.jsonl:1: broken JSON"],
        ),
        (
            "t.jsonl",
            word.into(),
            false,
            &["the word \"xxxxxxxxxxxxxxxxxxxx\"… has 17 MiB", "put spaces into it", "t.jsonl:1"],
        ),
        ("t.jsonl", Vec::new(), false, &["t.jsonl: data set t.jsonl holds no record"]),
        ("t.jsonl", b"[]".to_vec(), false, &["t.jsonl: data set t.jsonl holds no record"]),
        (
            "t.txt",
            b"instruction,output\na,b\n".to_vec(),
            false,
            &["t.txt: plain text holds no conversations"],
        ),
        (
            "t.csv",
            b"text,n\na,1\n\"b,2\nc,3\n".to_vec(),
            true,
            &["t.csv:3: a quote opens a field in this line and is not closed"],
        ),
        ("t.csv", b"text,n\na,1,2\n".to_vec(), true, &["t.csv:2: 3 fields where the header has 2"]),
        (
            "t.parquet",
            b"PAR1\x15\x00".to_vec(),
            true,
            &["t.parquet: broken Parquet: ", "write the file again"],
        ),
        ("t.txt", b"a\n\xff\n".to_vec(), true, &["t.txt:2: invalid UTF-8"]),
        ("t.jsonl", lines("x"), true, &["t.jsonl:1: no column \"text\" or \"content\""]),
    ];
    for (name, content, plain, reported) in cases {
        Try::with(name, content).refused(name, plain, reported);
    }
    // With a byte order mark, Windows' line ends, blank lines and a key twice it can be read.
    let odd = "\u{feff}{\"instruction\": \"x\", \"instruction\": \"a\", \"output\": \"b\"}\r\n\r\n";
    assert_eq!(Try::with("t.jsonl", odd).run("t.jsonl", false).unwrap().unwrap().examples, 1);
}

/// Rows that are dropped, of conversations.
fn rows() -> Vec<(Value, &'static str)> {
    let said = |messages: &[(&str, Value)]| -> Value {
        let one = |(from, value): &(&str, Value)| json!({"from": from, "value": value});
        json!({"conversations": messages.iter().map(one).collect::<Vec<_>>()})
    };
    let asked = ("human", json!("a"));
    let answered = ("gpt", json!("b"));
    let role = |role: &str, content: Value| json!({"role": role, "content": content});
    let call = |function: Value| json!({"messages": [role("user", json!("a")), {"role": "assistant", "tool_calls": [function]}]});
    vec![
        (json!({"instruction": "a"}), "it has no answer"),
        (json!({"instruction": "a", "output": null}), "it has no answer"),
        (json!({"instruction": "a", "output": 3}), "it has no answer"),
        (json!({"instruction": "a", "output": ["b"]}), "it has no answer"),
        (json!({"instruction": "a", "output": "b", "history": "x"}), "its history is not a list of pairs"),
        (
            json!({"instruction": "a", "output": "b", "history": [["x"]]}),
            "its history is not a list of pairs",
        ),
        (
            json!({"instruction": "a", "output": "b", "history": [["x", 1]]}),
            "its history is not a list of pairs",
        ),
        (json!({"instruction": "a", "output": "b", "tools": "{"}), "its tools are not JSON"),
        (json!({"instruction": "a", "output": "b", "tools": 3}), "its tools are not a list of functions"),
        (
            json!({"instruction": "a", "output": "b", "tools": "{\"x\": 1}"}),
            "its tools are not a list of functions",
        ),
        (json!({"instruction": "a", "output": "b", "tools": [1]}), "its tools are not a list of functions"),
        (json!({"instruction": "a", "output": "b", "images": ["x.png"]}), "it has images"),
        (json!({"instruction": "a", "chosen": "b", "rejected": "c"}), "it has two answers"),
        (json!({"instruction": "a", "output": "b", "kto_tag": true}), "its answer has a kto_tag"),
        (json!({"conversations": []}), "it has no message"),
        (json!({"conversations": ["a", "b"]}), "to say who speaks"),
        (json!({"conversations": [{"value": "a"}, {"from": "gpt", "value": "b"}]}), "to say who speaks"),
        (said(&[("customer", json!("a")), answered.clone()]), "(Invalid role tag)"),
        (said(std::slice::from_ref(&asked)), "it does not end with an answer"),
        (said(&[answered.clone(), asked.clone()]), "its roles do not alternate"),
        (said(&[asked.clone(), asked.clone()]), "its roles do not alternate"),
        (said(&[asked.clone(), ("system", json!("s"))]), "its roles do not alternate"),
        (said(&[("human", json!(7)), answered.clone()]), "a message holds no text"),
        (said(&[("human", json!({"a": {"b": []}})), answered]), "a message holds no text"),
        (said(&[asked.clone(), ("gpt", json!([{"text": "b"}]))]), "and models are of text only"),
        (said(&[asked.clone(), ("function_call", json!("now()"))]), "a call of a function is not JSON"),
        (said(&[asked, ("function_call", json!("{\"name\": 1}"))]), "a call of a function is not JSON"),
        (call(json!({"function": {"name": "now", "arguments": "{"}})), "a call of a function is not JSON"),
        (call(json!("now")), "a call of a function is not JSON"),
        (
            json!({"messages": [role("user", json!("a")), role("tool", json!("b"))]}),
            "its roles do not alternate",
        ),
        (json!({"messages": [role("system", json!("a"))]}), "it has no message"),
        (
            json!({"messages": [role("user", json!("a")), role("critic", json!("b"))]}),
            "a message has the role \"critic\", and known are user, assistant, tool, function, system",
        ),
    ]
}

/// The bad row is dropped with its place, and the good one before it is trained on.
fn dropped(attempt: &Try, good: &str, row: &Value, reason: &str) {
    std::fs::write(attempt.folder.path().join("rows.jsonl"), format!("{good}\n{row}\n")).unwrap();
    let report = attempt.run("rows.jsonl", false).unwrap_or_else(|error| panic!("{row}: {error}")).unwrap();
    let [dropped] = &report.dropped[..] else { panic!("{row}: {:?}", report.dropped) };
    assert_eq!((report.examples, dropped.rows), (1, 1), "{row}");
    assert!(dropped.reason.contains(reason), "{row}: {reason:?} is not in {:?}", dropped.reason);
    assert!(dropped.first.ends_with("rows.jsonl:2"), "{row}: {}", dropped.first);
}

#[test]
fn a_row_that_cannot_be_used_is_dropped_with_its_reason_and_place() {
    let attempt = Try::new();
    rows().iter().for_each(|(row, reason)| dropped(&attempt, GOOD, row, reason));
    let short = Try { cutoff_len: 1, ..Try::new() };
    let reported = "1 dropped: nothing of its answers is left within cutoff_len";
    short.refused("rows.jsonl", false, &["Cannot find valid samples", reported, "rows.jsonl:1"]);
}

#[test]
fn a_pair_or_an_unpaired_preference_without_one_of_its_parts_is_dropped() {
    let pairs = Try::new().examples(ExampleKind::Pairs);
    let good = r#"{"instruction": "a", "chosen": "b", "rejected": "c"}"#;
    let said = |chosen: Value| json!({"conversations": [{"from": "human", "value": "a"}], "chosen": chosen, "rejected": {"from": "gpt", "value": "c"}});
    for (row, reason) in [
        (json!({"instruction": "a", "output": "b"}), "it has one answer"),
        (json!({"instruction": "a", "chosen": "b", "rejected": null}), "it lacks one of its two answers"),
        (json!({"instruction": "a", "chosen": 1, "rejected": "c"}), "it lacks one of its two answers"),
        (said(json!(null)), "it lacks one of its two answers"),
        (said(json!("b")), "to say who speaks"),
        (said(json!({"from": "human", "value": "b"})), "one of its two answers is not the assistant's"),
        (said(json!({"from": "robot", "value": "b"})), "(Invalid role tag)"),
    ] {
        dropped(&pairs, good, &row, reason);
    }
    let judged = Try::new().examples(ExampleKind::UnpairedPreferences);
    let good = r#"{"instruction": "a", "output": "b", "kto_tag": false}"#;
    for (row, reason) in [
        (json!({"instruction": "a", "output": "b"}), "its answer has no label"),
        (json!({"instruction": "a", "output": "b", "kto_tag": "true"}), "its answer has no label"),
        (json!({"instruction": "a", "output": "b", "kto_tag": 1}), "its answer has no label"),
        (json!({"instruction": "a", "kto_tag": true}), "it has no answer"),
    ] {
        dropped(&judged, good, &row, reason);
    }
}

const CHATML: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

#[test]
fn a_broken_template_is_named_with_its_cause() {
    let doubling = "{% set ns = namespace(t='ab') %}{% for i in range(90) %}\n{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}";
    let huge = format!("{{# {} #}}x", "a".repeat(200_000));
    for (template, reported) in [
        (
            "{% for m in messages %}{{ m.content }}",
            &["chat_template.jinja: the chat template is broken: ", "(in chat_template:1)"][..],
        ),
        ("{{ messages[0 }}", &["chat_template.jinja: the chat template is broken: ", "syntax error"]),
        (
            "{{ messages | shuffled }}",
            &["Cannot find valid samples", "filter shuffled is unknown (in chat_template:1)", "rows.jsonl:1"],
        ),
        (&huge, &["the chat template has 200007 bytes; supported are at most 131072"]),
        // Those that fail for every row leave nothing to train on.
        ("{{ raise_exception('only cats') }}", &["Cannot find valid samples", "only cats", "rows.jsonl:1"]),
        ("{{ message.content }}", &["Cannot find valid samples", "undefined value", "rows.jsonl:1"]),
        (
            "{{ messages[7].content.strip() }}",
            &["Cannot find valid samples", "1 dropped: the chat template fails"],
        ),
        ("{{ messages + 1 }}", &["Cannot find valid samples", "the chat template fails: invalid operation"]),
        ("hello", &["Cannot find valid samples", "the chat template writes nothing of its answers"]),
        (
            "{% for m in messages if m.role != 'user' %}{{ m.content }}{{ m.content }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
            &[
                "Cannot find valid samples",
                "renders message 2 so that what the assistant says cannot be distinguished",
            ],
        ),
        (
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            &["the chat template fails: invalid operation: recursion limit"],
        ),
        // Those without end are not tried again for the next row.
        (
            "{% set x = 'x' * 99999999 %}{{ x }}",
            &[
                "chat_template.jinja: the chat template takes too much memory or time before it renders anything",
            ],
        ),
        (
            doubling,
            &[
                "rows.jsonl:1: the chat template takes more than 64 MiB to render a conversation",
                "chat_template.jinja",
            ],
        ),
    ] {
        Try::rendered(template).refused("rows.jsonl", false, reported);
    }
    let bytes = Try::with("chat_template.jinja", b"\xff\xfe");
    let bytes = Try { args: ChatArgs { template: None, ..bytes.args.clone() }, ..bytes };
    bytes.refused(
        "rows.jsonl",
        false,
        &["cannot read ", "chat_template.jinja: stream did not contain valid UTF-8"],
    );
    let named = |name: &str| {
        let attempt = Try::new();
        Try { args: ChatArgs { template: Some(name.into()), ..attempt.args.clone() }, ..attempt }
    };
    named("chatmll").refused(
        "rows.jsonl",
        false,
        &["template: Template chatmll does not exist; did you mean chatml?"],
    );
    named("").refused("rows.jsonl", false, &["template: Template  does not exist"]);
    named("llama3").refused(
        "rows.jsonl",
        false,
        &["template: its end token <|eot_id|> is not a token of this tokenizer"],
    );
    let late = named("glm4");
    let late = Try { args: ChatArgs { train_on_prompt: true, ..late.args.clone() }, ..late };
    late.refused(
        "rows.jsonl",
        false,
        &["train_on_prompt: Current template does not support `train_on_prompt`"],
    );
    let tools =
        Try { args: ChatArgs { tool_format: Some("qwenn".into()), ..named("default").args }, ..Try::new() };
    tools.refused("rows.jsonl", false, &["tool_format", "qwenn"]);
    // A message with a character that no text has.
    let rendered = Try::rendered(CHATML);
    let row = json!({"instruction": "a\u{fdd0}", "output": "b"});
    dropped(&rendered, GOOD, &row, "a message holds the character U+FDD0");
}

#[test]
fn reasons_that_differ_for_every_row_are_not_all_told() {
    let template = "{{ raise_exception('no ' + messages[0].content) }}";
    let attempt = Try::rendered(template);
    let rows: Vec<String> =
        (0..100).map(|i| json!({"instruction": format!("{i}"), "output": "b"}).to_string()).collect();
    std::fs::write(attempt.folder.path().join("rows.jsonl"), rows.join("\n")).unwrap();
    let error = attempt.run("rows.jsonl", false).unwrap_err();
    assert!(error.contains("none of 100 rows") && error.contains("80 dropped: for other reasons"), "{error}");
}

#[test]
fn a_broken_tokenizer_is_named_and_one_without_special_tokens_works() {
    for (name, content, reported) in [
        ("tokenizer.json", "{\"model\": ", &["tokenizer.json: ", "is it a whole tokenizer.json?"][..]),
        ("tokenizer.json", "{}", &["tokenizer.json: ", "is it a whole tokenizer.json?"]),
        ("tokenizer_config.json", "{", &["tokenizer_config.json"]),
        ("tokenizer_config.json", r#"{"eos_token": 5}"#, &["tokenizer_config.json", "eos_token"]),
    ] {
        Try::with(name, content).refused("rows.jsonl", false, reported);
    }
    let missing = Try::new();
    std::fs::remove_file(missing.folder.path().join("tokenizer.json")).unwrap();
    missing.refused(
        "rows.jsonl",
        false,
        &["tokenizer.json: No such file", "give a folder that holds a tokenizer.json"],
    );
    // Without end and padding tokens the layouts leave them out.
    let bare = Try::with("tokenizer_config.json", "{}");
    let with_end = Try::new().run("rows.jsonl", false).unwrap().unwrap();
    let without = bare.run("rows.jsonl", false).unwrap().unwrap();
    assert_eq!((without.examples, with_end.tokens - without.tokens), (1, 2));
}

/// A special token that a user writes is text: it is more than one token, and none of the special ones.
#[test]
fn special_tokens_in_a_message_are_text() {
    let path: &Path = &golden();
    let tokenizer = Tokenizer::open(path).unwrap();
    let attempt = Try::new();
    let tokens = |attempt: &Try, text: &str| {
        let row = json!({"instruction": text, "output": "b"}).to_string();
        std::fs::write(attempt.folder.path().join("rows.jsonl"), row).unwrap();
        attempt.run("rows.jsonl", false).unwrap().unwrap().tokens
    };
    assert_eq!(tokenizer.encode("<|end|>").unwrap().len(), 1);
    assert!(tokens(&attempt, "a<|end|>b") > tokens(&attempt, "ab") + 1);
    let parsed = Try { args: ChatArgs { split_special_tokens: false, ..attempt.args.clone() }, ..Try::new() };
    assert!(tokens(&parsed, "a<|end|>b") < tokens(&attempt, "a<|end|>b"));
}
