//! Every form of text, and every wrong record with its file and line.

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use serde_json::Value;

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    dir
}

fn read(dir: &TempDir, dataset: &str) -> Result<Vec<String>> {
    Source::resolve(dataset, dir.path(), None)?.texts().collect()
}

/// The texts of one file.
fn texts(name: &str, content: &[u8]) -> Vec<String> {
    read(&folder(&[(name, content)]), name).unwrap()
}

/// The error of one file, without the folder.
fn error(name: &str, content: &[u8]) -> String {
    let dir = folder(&[(name, content)]);
    let error = read(&dir, name).unwrap_err().to_string();
    error.replace(&format!("{}/", dir.path().display()), "")
}

fn parquet_file(column: &str, texts: &[Option<&str>], compression: ::parquet::basic::Compression) -> Vec<u8> {
    use ::parquet::data_type::{ByteArray, ByteArrayType};
    use ::parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let schema = format!("message m {{ REQUIRED INT64 id; OPTIONAL BYTE_ARRAY {column} (UTF8); }}");
    let schema = ::parquet::schema::parser::parse_message_type(&schema).unwrap();
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema.into(), properties.into()).unwrap();
    // Two row groups, so that reading crosses from one to the next.
    for part in texts.chunks(texts.len().div_ceil(2).max(1)) {
        let mut group = writer.next_row_group().unwrap();
        let mut ids = group.next_column().unwrap().unwrap();
        let numbers: Vec<i64> = (0..part.len() as i64).collect();
        ids.typed::<::parquet::data_type::Int64Type>().write_batch(&numbers, None, None).unwrap();
        ids.close().unwrap();
        let mut strings = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = part.iter().flatten().map(|&t| ByteArray::from(t)).collect();
        let levels: Vec<i16> = part.iter().map(|t| i16::from(t.is_some())).collect();
        strings.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        strings.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    file
}

#[test]
fn json_lines() {
    let lines = b"\xef\xbb\xbf{\"text\": \"a\\u00e9\\n\", \"n\": [1, {\"text\": 2}]}\r\n\n  \n{\"content\":\"b\"}\n{\"content\": 5, \"text\": \"c\"}";
    assert_eq!(texts("a.jsonl", lines), ["aé\n", "b", "c"]);
    assert_eq!(texts("a.json", b"{\"text\": \"\"}\n{\"text\": \"x\", \"text\": \"y\"}"), ["", "y"]);
}

#[test]
fn records_know_their_place() {
    let lines = |name: &str, content: &[u8], what: Content| -> Vec<(u64, String)> {
        let dir = folder(&[(name, content)]);
        let records = Source::resolve(name, dir.path(), None).unwrap().records(what);
        records
            .map(Result::unwrap)
            .map(|r| {
                assert!(r.file.ends_with(name));
                (r.line, r.content)
            })
            .collect()
    };
    let places = |name, content: &str| -> Vec<u64> {
        lines(name, content.as_bytes(), Content::Text).into_iter().map(|(line, _)| line).collect()
    };
    assert_eq!(places("a.txt", "one\n\n two"), [1, 3]);
    assert_eq!(places("a.csv", "text\n\"a\nb\"\nc\n"), [2, 4]);
    assert_eq!(places("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}"), [1, 3]);
    let objects = lines("a.json", b"[\n{\"x\": 1},\n\n{\"y\":\n 2}]", Content::Object);
    assert_eq!(objects, [(2, "{\"x\": 1}".to_owned()), (4, "{\"y\":\n 2}".to_owned())]);
}

#[test]
fn json_arrays() {
    let array = "\n[ {\"text\": \"a]\\\"},\"},\n {\"text\": \"b\", \"x\": [[1], {}]}\n]\n";
    assert_eq!(texts("a.json", array.as_bytes()), ["a]\"},", "b"]);
    assert_eq!(texts("a.jsonl", b"[{\"text\": \"only\"}]"), ["only"]);
}

#[test]
fn json_objects_over_several_lines() {
    let pretty = "\u{feff}\n{\n  \"text\": \"a}\"\n}\n{\"text\": \"b\"}{\n\"text\": \"c\", \"x\": [{}]}\n\n";
    assert_eq!(texts("a.jsonl", pretty.as_bytes()), ["a}", "b", "c"]);
    let dir = folder(&[("a.json", pretty.as_bytes())]);
    let records = Source::resolve("a.json", dir.path(), None).unwrap().records(Content::Object);
    assert_eq!(records.map(|record| record.unwrap().line).collect::<Vec<_>>(), [2, 5, 5]);
    for (name, content, reported) in [
        (
            "a.jsonl",
            "{\n\"text\": \"a\"\n},\n{\"text\": \"b\"}",
            "a.jsonl:3: something else than an object follows",
        ),
        (
            "a.jsonl",
            "{\n\"text\": \"a\"}\n{\"text\": \"b\"",
            "a.jsonl:3: an object begins in this line, and the file ends",
        ),
        ("a.jsonl", "{\n\"text\" \"a\"}", "a.jsonl:2: broken JSON at column 8"),
        (
            "a.jsonl",
            "{\"text\": \"a\"}{\"text\": \"b\"}",
            "column 14: another object follows in the same line; write each",
        ),
        ("a.jsonl", "{\"text\": \"a\"}\n{\n\"text\": \"b\"}", "a.jsonl:2: broken JSON at column 1: EOF"),
        (
            "a.json",
            "{\n\"data\": [{\"text\": \"a\"}]}",
            "where \"data\" is the list of the records, write that list alone",
        ),
    ] {
        let error = error(name, content.as_bytes());
        assert!(error.contains(reported), "{error}");
    }
}

#[test]
fn a_text_that_is_null_is_left_out() {
    assert_eq!(texts("a.jsonl", b"{\"text\": null}\n{\"text\": \"a\"}"), ["a"]);
    let parquet =
        parquet_file("text", &[Some("a"), None, Some("b")], ::parquet::basic::Compression::UNCOMPRESSED);
    assert_eq!(texts("a.parquet", &parquet), ["a", "b"]);
    let dir = folder(&[("a.jsonl", b"{\"text\": null}\n{\"text\": \"a\"}")]);
    let rows = Source::resolve("a.jsonl", dir.path(), None).unwrap().rows(Content::Text);
    let lacking: Vec<(u64, bool)> =
        rows.map(|row| row.unwrap().record).map(|record| (record.line, record.lacks_text())).collect();
    assert_eq!(lacking, [(1, true), (2, false)]);
}

/// A file of one conversation, as pyarrow writes a list of structs.
fn nested_parquet(turns: &[(&str, &str)]) -> Vec<u8> {
    use ::parquet::data_type::{ByteArray, ByteArrayType};
    use ::parquet::file::writer::SerializedFileWriter;
    let schema = "message m { OPTIONAL group conversations (LIST) { REPEATED group list { OPTIONAL group element { \
                  OPTIONAL BYTE_ARRAY from (UTF8); OPTIONAL BYTE_ARRAY value (UTF8); OPTIONAL BYTE_ARRAY weight (UTF8); } } } \
                  OPTIONAL BYTE_ARRAY system (UTF8); }";
    let schema = ::parquet::schema::parser::parse_message_type(schema).unwrap();
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let repeated: Vec<i16> = (0..turns.len()).map(|at| i16::from(at > 0)).collect();
    let there = vec![4; turns.len()];
    /// Values, definition levels and repetition levels.
    type Column<'a> = (Vec<&'a str>, Vec<i16>, Option<&'a [i16]>);
    let columns: [Column; 4] = [
        (turns.iter().map(|turn| turn.0).collect(), there.clone(), Some(&repeated)),
        (turns.iter().map(|turn| turn.1).collect(), there, Some(&repeated)),
        (Vec::new(), vec![3; turns.len()], Some(&repeated)),
        (vec!["Be brief."], vec![1], None),
    ];
    for (values, levels, repeated) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = values.into_iter().map(ByteArray::from).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), repeated).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    file
}

#[test]
fn conversations_stand_in_tables_as_in_json() {
    use super::super::example::{Conversation, Example};
    use super::super::format::Reading;
    let conversation = |name: &str, content: &[u8]| -> Conversation {
        let dir = folder(&[(name, content)]);
        let row =
            Source::resolve(name, dir.path(), None).unwrap().rows(Content::Object).next().unwrap().unwrap();
        assert!(row.record.file.ends_with(name));
        match row.read().unwrap().reading {
            Reading::Example(Example::Conversation(read)) => read,
            other => panic!("{other:?}"),
        }
    };
    let turns = [("human", "Tide, \"now\"?"), ("gpt", "Low.\tYes")];
    let json = "{\"conversations\": [{\"from\": \"human\", \"value\": \"Tide, \\\"now\\\"?\"}, \
                {\"from\": \"gpt\", \"value\": \"Low.\\tYes\"}], \"system\": \"Be brief.\"}";
    let expected = conversation("a.jsonl", json.as_bytes());
    assert_eq!(conversation("a.parquet", &nested_parquet(&turns)), expected);
    let alpaca = "instruction,input,output,system\n\"Tide, \"\"now\"\"?\",,Low.\tYes,Be brief.\n";
    assert_eq!(conversation("a.csv", alpaca.as_bytes()), expected);
    let tabs = "instruction\tinput\toutput\tsystem\n\"Tide, \"\"now\"\"?\"\t\t\"Low.\tYes\"\tBe brief.\n";
    assert_eq!(conversation("a.tsv", tabs.as_bytes()), expected);
    let cells = "conversations,system\n\"[{\"\"from\"\": \"\"human\"\", \"\"value\"\": \"\"Tide, \\\"\"now\\\"\"?\"\"}, \
                 {\"\"from\"\": \"\"gpt\"\", \"\"value\"\": \"\"Low.\\tYes\"\"}]\",Be brief.\n";
    assert_eq!(conversation("b.csv", cells.as_bytes()), expected);
    let dir = folder(&[("a.csv", b"instruction,output,kto_tag\nTrue,a,True\nb,,false\n"), ("b.txt", b"a")]);
    let rows = Source::resolve("a.csv", dir.path(), None).unwrap().rows(Content::Object);
    let rows: Vec<String> = rows.map(|row| row.unwrap().record.content).collect();
    assert_eq!(
        rows,
        [
            "{\"instruction\":\"True\",\"output\":\"a\",\"kto_tag\":true}",
            "{\"instruction\":\"b\",\"output\":null,\"kto_tag\":false}"
        ]
    );
    let error = Source::resolve("b.txt", dir.path(), None).unwrap().records(Content::Object).next().unwrap();
    assert!(error.unwrap_err().to_string().contains("plain text holds no conversations"));
}

#[test]
fn plain_text_and_csv() {
    assert_eq!(texts("a.txt", "one\r\n\n two \nthree".as_bytes()), ["one", " two ", "three"]);
    assert_eq!(texts("a.csv", "id,text\n1,\"a,\nb\"\n2,日本\n".as_bytes()), ["a,\nb", "日本"]);
    assert_eq!(texts("a.csv", b"\xef\xbb\xbftext\nx\n"), ["x"]);
    // A quote means something only at the beginning of a field, and inside of a quoted one.
    let quotes = "\u{feff}\"text\",x\r\n5\",\"a\"b\"\r\n\"\",\"\"\"\"\n\"\"\"c\"\"\n\",\"";
    assert_eq!(texts("a.csv", format!("{quotes}\"").as_bytes()), ["5\"", "", "\"c\"\n"]);
}

#[test]
fn parquet_in_every_compression() {
    use ::parquet::basic::Compression;
    let long: Vec<String> = (0..700).map(|i| format!("record {i} 日本")).collect();
    let values: Vec<Option<&str>> = long.iter().map(|t| Some(t.as_str())).collect();
    let compressions =
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(Default::default())];
    for compression in compressions {
        assert_eq!(texts("a.parquet", &parquet_file("text", &values, compression)), long);
    }
}

/// How a frame of Zstandard begins.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Files of pyarrow (bench/golden/make_parquet.py), in both versions of pages.
#[test]
fn parquet_in_zstandard() {
    let path =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden/parquet").join(name);
    let text = |i: usize| format!("line {}: {}", i % 11, "the heron waits by the lock; ".repeat(i % 5));
    let present: Vec<String> = (0..40).filter(|i| i % 7 != 3).map(text).collect();
    for name in ["zstd-1.parquet", "zstd-2.parquet", "zstd-mixed.parquet"] {
        let file = std::fs::read(path(name)).unwrap();
        assert_eq!(texts("a.parquet", &file), present, "{name}");
        let dir = folder(&[("a.parquet", &file)]);
        let rows = Source::resolve("a.parquet", dir.path(), None).unwrap().records(Content::Object);
        let rows: Vec<Value> = rows.map(|row| serde_json::from_str(&row.unwrap().content).unwrap()).collect();
        for (i, row) in rows.iter().enumerate() {
            let mut expected =
                json!({"id": i, "text": if i % 7 == 3 { Value::Null } else { json!(text(i)) }});
            if name != "zstd-mixed.parquet" {
                let turns = [("human", format!("question {i}")), ("gpt", format!("answer {i}"))];
                let turns =
                    turns.iter().take(i % 3).map(|(from, value)| json!({"from": from, "value": value}));
                expected["nothing"] = Value::Null;
                expected["turns"] = turns.collect();
            }
            assert_eq!(*row, expected, "{name}");
        }
        assert_eq!(rows.len(), 40, "{name}");
        // Frames that do not begin as such, and half of a file.
        let mut without_magic = file.clone();
        for at in 0..file.len() - MAGIC.len() {
            if file[at..].starts_with(&MAGIC) {
                without_magic[at] ^= 0x55;
            }
        }
        let said = error("a.parquet", &without_magic);
        assert!(said.starts_with("a.parquet: broken Parquet: ") && said.contains("Zstandard: "), "{said}");
        let said = error("a.parquet", &file[..file.len() / 2]);
        assert!(said.starts_with("a.parquet: broken Parquet: "), "{said}");
        // Whatever byte is another one: other texts, or an error that names the file.
        let mut n_errors = 0;
        for at in (4..file.len()).step_by(23) {
            let mut changed = file.clone();
            changed[at] ^= 0x55;
            if let Err(error) = read(&folder(&[("a.parquet", &changed)]), "a.parquet") {
                assert!(error.to_string().contains("a.parquet: "), "byte {at} of {name}: {error}");
                n_errors += 1;
            }
        }
        assert!(n_errors > 5, "{n_errors} of {} damaged files are errors", file.len() / 23);
    }
}

#[test]
fn bad_records_name_file_line_cause_and_remedy() {
    let good = "{\"text\": \"fine\"}\n";
    let json = |bad: &str| error("a.jsonl", format!("{good}\n{bad}\n{good}").as_bytes());
    let check = |error: String, parts: &[&str]| {
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
        assert!(error.starts_with(parts[0]) && error.contains("; "), "{error}");
    };
    check(json("{\"text\": "), &["a.jsonl:3: broken JSON at column 9: EOF", "repair or remove the record"]);
    check(json("{\"text\": \"a\"} x"), &["a.jsonl:3: broken JSON at column 15: trailing characters"]);
    check(json("{\"text\": \"\\ud800\"}"), &["a.jsonl:3: broken JSON at column"]);
    check(
        json("{\"body\": 1, \"id\": 2}"),
        &[
            "a.jsonl:3: no column \"text\" or \"content\"; the columns are \"body\", \"id\"",
            "dataset_info.json",
        ],
    );
    check(json("{}"), &["a.jsonl:3: no column", "there are no columns"]);
    for (value, kind) in [
        ("5", "a number"),
        ("-5", "a number"),
        ("0.5", "a number"),
        ("true", "a boolean"),
        ("[1]", "an array"),
        ("{\"a\": 1}", "an object"),
    ] {
        check(
            json(&format!("{{\"text\": {value}}}")),
            &[
                &format!("a.jsonl:3: column \"text\" holds {kind} where a string is expected"),
                "write the text as a string, each in a record of its own",
            ],
        );
        if kind != "an object" {
            check(json(value), &[&format!("a.jsonl:3: the record is {kind} where an object is expected")]);
        }
    }
    check(json("\"words\""), &["a.jsonl:3: the record is a string where"]);
    check(
        error("a.jsonl", b"{\"text\": \"a\xffb\"}"),
        &["a.jsonl:1: invalid UTF-8 at byte 12 of the record", "save the file as UTF-8"],
    );
    check(error("a.txt", b"ok\n\xc3("), &["a.txt:2: invalid UTF-8 at byte 1"]);
    check(
        error("a.json", b"[\n{\"text\": \"a\"},\n\n{\"text\": 1}]"),
        &["a.json:4: column \"text\" holds a number"],
    );
    check(error("a.json", b"[\n{\"text\": \"a\"},\n{\n\"text\" 1}]"), &["a.json:4: broken JSON at column"]);
    check(
        error("a.json", b"[{\"text\": \"a\"}"),
        &["a.json:1: the file ends inside the array", "close the array"],
    );
    check(error("a.json", b"[{\"text\": \"a\"}]\nx"), &["a.json:2: something follows the array"]);
    check(error("a.csv", b"id,text\n1,a\n2\n"), &["a.csv:3: 1 fields where the header has 2"]);
    check(error("a.csv", b"id,text\n1,\xff\n"), &["a.csv:2: invalid UTF-8 in field 2"]);
    for unclosed in [
        "text\na\n\"b\nc\nd\n",
        "\u{feff}\"text\"\r\n\"\"\"a\nb\"\"\"\r\"b\"\"",
        "text\n\"a\"\n\"",
        "\u{feff}text\n\n\"",
    ] {
        let expected =
            "a.csv:3: a quote opens a field in this line and is not closed; close the field with a quote";
        check(error("a.csv", unclosed.as_bytes()), &[expected]);
    }
    check(
        error("a.csv", b"id,body\n1,a\n"),
        &["a.csv:1: no column \"text\" or \"content\"; the columns are \"id\", \"body\""],
    );
}

#[test]
fn bad_parquet_is_explained() {
    use ::parquet::basic::Compression::UNCOMPRESSED;
    let other = error("a.parquet", &parquet_file("body", &[Some("a")], UNCOMPRESSED));
    assert!(other.contains("no column \"text\" or \"content\"; the columns are \"id\", \"body\""), "{other}");
    let dir = folder(&[
        ("a.parquet", &parquet_file("body", &[Some("a")], UNCOMPRESSED)),
        ("dataset_info.json", br#"{"n": {"file_name": "a.parquet", "columns": {"prompt": "id"}}}"#),
    ]);
    let number = read(&dir, "n").unwrap_err().to_string();
    assert!(number.contains("column \"id\" holds INT64"), "{number}");
    assert!(error("a.parquet", b"PAR1 or not").contains("broken Parquet"));
}

#[test]
fn nothing_to_read_is_an_error() {
    for name in ["a.jsonl", "a.json", "a.txt", "a.csv", "a.parquet"] {
        assert!(error(name, b"").contains("holds no record; give a file with text in it"), "{name}");
    }
    assert!(error("a.json", b"[]").contains("holds no record"));
    assert!(error("a.csv", b"text\n").contains("holds no record"));
    assert!(error("a.xml", b"<a/>").contains("unknown data format; give a .jsonl"));
    assert!(
        Source::resolve(" , ", Path::new("."), None)
            .unwrap_err()
            .to_string()
            .contains("Please specify dataset")
    );
    let dir = folder(&[("empty/readme", b"")]);
    assert!(read(&dir, "empty").unwrap_err().to_string().contains("no data file in this folder"));
}

const INFO: &[u8] = br#"{
    "demo": {"file_name": "c4.jsonl", "columns": {"prompt": "body"}, "num_samples": 2},
    "folder": {"file_name": "parts"},
    "inside": {"folder": "parts", "file_name": "b.txt", "split": "train"},
    "tests": {"folder": "splits", "split": "test"},
    "remote": {"hf_hub_url": "org/name"},
    "both": {"hf_hub_url": "org/name", "file_name": "parts/b.txt"},
    "no_file": {"columns": {"prompt": "text"}},
    "one_split": {"file_name": "parts/b.txt", "split": "test"},
    "number": {"file_name": 5},
    "columns": {"file_name": "c4.jsonl", "columns": ["text"]},
    "prompt": {"file_name": "c4.jsonl", "columns": {"prompt": 1}},
    "samples": {"file_name": "c4.jsonl", "num_samples": 0},
    "list": [],
    "gone": {"file_name": "gone.txt"},
    "misspelled": {"file_name": "c4.jsonl", "formating": "sharegpt"},
    "more": {"file_name": "parts", "comment": "mine", "subset": null}
}"#;

fn defined() -> TempDir {
    folder(&[
        ("dataset_info.json", INFO),
        ("c4.jsonl", b"{\"body\": \"1\"}\n{\"body\": \"2\"}\n{\"body\": \"3\"}"),
        ("parts/b.txt", b"b1\nb2"),
        ("parts/a.txt", b"a1\na2"),
        ("parts/notes.md", b"no"),
        ("splits/test-0.txt", b"t0"),
        ("splits/test-1.txt", b"t1"),
        ("splits/train.txt", b"no"),
    ])
}

#[test]
fn names_files_folders_and_lists() {
    let dir = defined();
    assert_eq!(read(&dir, "demo").unwrap(), ["1", "2"]);
    assert_eq!(read(&dir, "folder").unwrap(), ["a1", "a2", "b1", "b2"]);
    assert_eq!(read(&dir, "inside").unwrap(), ["b1", "b2"]);
    assert_eq!(read(&dir, "tests").unwrap(), ["t0", "t1"]);
    assert_eq!(read(&dir, "both").unwrap(), ["b1", "b2"]);
    assert_eq!(
        read(&dir, "parts, demo,parts/b.txt").unwrap(),
        ["a1", "a2", "b1", "b2", "1", "2", "b1", "b2"]
    );
    let absolute = dir.path().join("parts/b.txt");
    assert_eq!(read(&dir, absolute.to_str().unwrap()).unwrap(), ["b1", "b2"]);
    let one_each: Result<Vec<String>> =
        Source::resolve("demo,folder", dir.path(), Some(1)).unwrap().texts().collect();
    assert_eq!(one_each.unwrap(), ["1", "a1"]);
}

#[test]
fn what_is_not_read_is_told() {
    let dir = defined();
    std::fs::write(dir.path().join("parts/c.jsonl.gz"), b"x").unwrap();
    std::fs::create_dir(dir.path().join("parts/more")).unwrap();
    let reported: Vec<String> =
        Source::resolve("more", dir.path(), None).unwrap().unread().cloned().collect();
    assert_eq!(reported.len(), 3, "{reported:?}");
    for (reported, expected) in
        reported.iter().zip(["comment: \"mine\" of more in ", "c.jsonl.gz is not read", "more is not read"])
    {
        assert!(reported.starts_with("note: ") && reported.contains(expected), "{reported}");
    }
    assert_eq!(Source::resolve("demo,tests", dir.path(), None).unwrap().unread().count(), 0);
    let both: Vec<String> = Source::resolve("both", dir.path(), None).unwrap().unread().cloned().collect();
    assert!(both.iter().any(|reported| reported.contains("since file_name names a file here")), "{both:?}");
}

#[test]
fn a_column_that_stands_twice_in_a_table_has_a_number() {
    // However many there are; an error lists the first.
    let many = folder(&[("a.csv", &[&b",".repeat(200_000)[..], b"\n"].concat())]);
    let said = read(&many, "a.csv").unwrap_err().to_string();
    assert!(said.contains("the first of 200001 columns are") && said.len() < 2000, "{said}");
    let dir = folder(&[("a.csv", b"text,id,text,text\nfirst,1,second,third\n")]);
    assert_eq!(read(&dir, "a.csv").unwrap(), ["first"]);
    let rows = Source::resolve("a.csv", dir.path(), None).unwrap().records(Content::Object);
    let rows: Vec<Value> = rows.map(|row| serde_json::from_str(&row.unwrap().content).unwrap()).collect();
    assert_eq!(rows, [json!({"text": "first", "id": "1", "text.1": "second", "text.2": "third"})]);
}

#[test]
fn a_name_that_is_defined_twice_is_an_error() {
    let dir = folder(&[("a.txt", b"a"), ("b.txt", b"b")]);
    let info = |text: &str| std::fs::write(dir.path().join("dataset_info.json"), text).unwrap();
    info("{\"demo\": {\"file_name\": \"a.txt\"},\n\"demo\": {\"file_name\": \"b.txt\"}}");
    let error = read(&dir, "demo").unwrap_err().to_string();
    assert!(error.contains("dataset_info.json:2: \"demo\" stands twice with two values"), "{error}");
    info("{\"demo\": {\"file_name\": \"a.txt\"}, \"demo\": {\"file_name\": \"a.txt\"}}");
    assert_eq!(read(&dir, "demo").unwrap(), ["a"]);
}

#[test]
fn bad_definitions_are_explained() {
    let dir = defined();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("endless.txt")).unwrap();
    for (name, wanted) in [
        ("endless.txt", "endless.txt: it is a pipe or a device; give a file that can be read again"),
        ("dmeo", "Undefined dataset dmeo in dataset_info.json. Did you mean demo?"),
        ("zzzzzzzzzzzz", "Undefined dataset zzzzzzzzzzzz in dataset_info.json. Defined in"),
        (
            "remote",
            "dataset remote lies on a hub (hf_hub_url: org/name), and the cache does not have its files",
        ),
        ("remote", "a training run fetches them"),
        ("no_file", "no file_name; name the file"),
        ("one_split", "split test of a single file"),
        ("number", "file_name is 5; write it as a string"),
        ("columns", "columns is [\"text\"]"),
        ("prompt", "columns.prompt is 1"),
        ("samples", "num_samples is 0; give a whole number"),
        ("list", "not a JSON object"),
        ("gone", "gone.txt: No such file"),
        ("misspelled", "formating is not a key of an entry; did you mean formatting?"),
    ] {
        let error = read(&dir, name).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let dir = folder(&[("a.txt", b"a")]);
    let error = read(&dir, "b.txt").unwrap_err().to_string();
    assert!(error.contains("There is no such file, and no dataset_info.json in"), "{error}");
    let dir = folder(&[("dataset_info.json", b"{\n\"a\": }")]);
    let error = read(&dir, "a").unwrap_err().to_string();
    assert!(error.contains("dataset_info.json:2: expected value"), "{error}");
}

#[test]
fn an_error_ends_the_stream() {
    let dir = folder(&[("a.jsonl", b"{\"text\": \"a\"}\n{\n{\n"), ("b.txt", b"b")]);
    let source = Source::resolve("a.jsonl,b.txt", dir.path(), None).unwrap();
    assert_eq!(source.texts().map(|t| t.is_ok()).collect::<Vec<_>>(), [true, false]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in "[\\[\\]{}\",:a\\\\ \\n0-9]{0,80}") {
        for name in ["a.jsonl", "a.json", "a.txt", "a.csv", "a.tsv", "a.parquet", "dataset_info.json"] {
            for bytes in [&bytes[..], json.as_bytes()] {
                let dir = folder(&[(name, bytes)]);
                let mut stream = match Source::resolve(name, dir.path(), None) {
                    Ok(source) => source.texts(),
                    Err(_) => continue,
                };
                prop_assert!(stream.by_ref().take(1000).count() < 1000);
                prop_assert!(stream.next().is_none());
            }
        }
    }

    #[test]
    fn damaged_parquet_never_panics(at in 0usize..2000, byte in any::<u8>(), cut in 0usize..2000) {
        let values: Vec<Option<&str>> = vec![Some("some text"); 60];
        let mut file = parquet_file("text", &values, ::parquet::basic::Compression::SNAPPY);
        let n = file.len();
        file[at % n] = byte;
        for bytes in [&file[..], &file[..cut % n]] {
            let dir = folder(&[("a.parquet", bytes)]);
            let n_texts = Source::resolve("a.parquet", dir.path(), None).unwrap().texts().take(1_000_000).count();
            prop_assert!(n_texts < 1_000_000);
            let rows = Source::resolve("a.parquet", dir.path(), None).unwrap().records(Content::Object);
            prop_assert!(rows.take(1_000_000).count() < 1_000_000);
        }
    }

    #[test]
    fn any_text_is_read_back(texts in proptest::collection::vec(any::<String>(), 1..8)) {
        let lines: Vec<String> = texts.iter().map(|t| serde_json::json!({"id": 1, "text": t}).to_string()).collect();
        let dir = folder(&[
            ("a.jsonl", lines.join("\n").as_bytes()),
            ("b.json", format!("[{}]", lines.join(" ,\n")).as_bytes()),
        ]);
        prop_assert_eq!(&read(&dir, "a.jsonl").unwrap(), &texts);
        prop_assert_eq!(&read(&dir, "b.json").unwrap(), &texts);
    }
}
