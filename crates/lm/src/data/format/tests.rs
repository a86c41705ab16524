//! Rows of the three formats, those that are dropped, and entries of `dataset_info.json`.

use std::path::Path;

use serde_json::json;

use super::super::example::{Conversation, Pair, UnpairedPreference};
use super::*;
use serde_json::Map;

fn record(row: &Value) -> Record {
    Record::new(&Path::new("rows.jsonl").into(), 7, row.to_string())
}

fn read(entry: &Value, row: &Value) -> Reading {
    let format = Format::of_entry(entry.as_object().unwrap()).unwrap();
    Format::read(Some(&format), &record(row)).unwrap().reading
}

fn conversation(entry: &Value, row: &Value) -> Conversation {
    match read(entry, row) {
        Reading::Example(Example::Conversation(conversation)) => conversation,
        other => panic!("{other:?}"),
    }
}

fn said(conversation: &Conversation) -> Vec<(&str, &str)> {
    conversation.messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect()
}

fn reason(entry: &Value, row: &Value) -> String {
    match read(entry, row) {
        Reading::Dropped(reason) => reason.into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn alpaca_joins_question_and_input_after_the_history() {
    let entry = json!({"columns": {"prompt": "instruction", "query": "input", "response": "output", "history": "history",
        "system": "system"}});
    let row = json!({"instruction": "Count", "input": "the swans", "output": "Seven", "system": "Be brief.",
        "history": [["Hi", "Hello"]]});
    let read = conversation(&entry, &row);
    assert_eq!(
        said(&read),
        [("user", "Hi"), ("assistant", "Hello"), ("user", "Count\nthe swans"), ("assistant", "Seven")]
    );
    assert_eq!(read.system.as_deref(), Some("Be brief."));
    // An empty or missing part is left out, and an empty answer is an answer.
    let read = conversation(&json!({}), &json!({"instruction": "Count", "input": "", "output": ""}));
    assert_eq!(said(&read), [("user", "Count"), ("assistant", "")]);
    assert_eq!(reason(&json!({}), &json!({"instruction": "Count", "output": null})), "it has no answer");
    // Columns that are not named are none: here the answer.
    let entry = json!({"columns": {"prompt": "instruction"}});
    assert_eq!(reason(&entry, &json!({"instruction": "a", "output": "b"})), "it has no answer");
    let reported = |entry: &Map<String, Value>| {
        let format = Format::of_entry(entry).unwrap();
        Format::read(Some(&format), &record(&json!({"text": "a"}))).err().unwrap().to_string()
    };
    let error = reported(&Map::new());
    assert!(
        error.contains("rows.jsonl:7: no column \"instruction\" or \"input\"; the columns are text"),
        "{error}"
    );
    let error = reported(json!({"columns": {"response": "text"}}).as_object().unwrap());
    assert!(
        error.contains("\"columns\" of its entry names neither prompt nor query; the columns are text"),
        "{error}"
    );
}

#[test]
fn alpaca_with_two_answers_and_with_a_label() {
    let entry = json!({"ranking": true, "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"}});
    let row = json!({"q": "Hi", "good": "Hello", "bad": "Go"});
    let Reading::Example(Example::Pair(pair)) = read(&entry, &row) else { panic!("no pair") };
    let Pair { prompt, chosen, rejected } = *pair;
    assert_eq!(
        (said(&prompt), chosen.content, rejected.content),
        (vec![("user", "Hi")], "Hello".into(), "Go".into())
    );
    assert!(reason(&entry, &json!({"q": "Hi", "good": "Hello"})).contains("lacks one of its two answers"));
    let entry = json!({"columns": {"prompt": "q", "response": "a", "kto_tag": "ok"}});
    let Reading::Example(Example::UnpairedPreference(judged)) =
        read(&entry, &json!({"q": "Hi", "a": "Hello", "ok": false}))
    else {
        panic!("no unpaired preference")
    };
    let UnpairedPreference { conversation, desired } = *judged;
    assert_eq!((said(&conversation).len(), desired), (2, false));
}

#[test]
fn sharegpt_alternates_and_calls_are_checked() {
    let turns = |turns: &[(&str, &str)]| -> Value {
        turns.iter().map(|(from, value)| json!({"from": from, "value": value})).collect()
    };
    let entry = json!({"formatting": "sharegpt", "columns": {"messages": "conversations", "tools": "tools"}});
    let call = r#"{"name": "tide", "arguments": {"place": "weir"}}"#;
    let row = json!({"tools": "[{\"name\": \"tide\"}]", "conversations": turns(&[("system", "Be brief."), ("human", "Tide?"),
        ("function_call", call), ("observation", "low"), ("gpt", "It is low.")])});
    let conversation = conversation(&entry, &row);
    assert_eq!(conversation.system.as_deref(), Some("Be brief."));
    assert_eq!(
        said(&conversation),
        [("user", "Tide?"), ("assistant", ""), ("tool", "low"), ("assistant", "It is low.")]
    );
    assert_eq!(conversation.messages[1].extra["tool_calls"][0]["function"]["arguments"]["place"], "weir");
    assert_eq!(conversation.tools, Some(json!([{"name": "tide"}])));
    // An empty list is a list: it is something else than none where a template asks for tools.
    for (tools, expected) in
        [(json!("[]"), Some(json!([]))), (json!([]), Some(json!([]))), (json!(""), None), (json!(null), None)]
    {
        let row = json!({"tools": tools, "conversations": turns(&[("human", "a"), ("gpt", "b")])});
        assert_eq!(self::conversation(&entry, &row).tools, expected, "{tools}");
    }
    let of = |list: &[(&str, &str)]| reason(&entry, &json!({"conversations": turns(list)}));
    assert!(of(&[("human", "a"), ("human", "b")]).contains("Invalid role tag"));
    let unknown =
        "a message has the role \"cat\", and known are human, gpt, observation, function_call, system";
    assert!(of(&[("human", "a"), ("cat", "b")]).starts_with(unknown));
    assert!(of(&[("human", "a")]).contains("Invalid message count"));
    assert!(of(&[]).contains("no message"));
    assert!(
        of(&[("human", "a"), ("function_call", "{broken")])
            .contains("Invalid JSON format in function message")
    );
    let thought = format!("<think>\nhm\n</think>\n\n[{call}, {call}]");
    let both = super::calls::called(&thought).ok().unwrap();
    assert_eq!(
        (both.content.as_str(), both.extra["tool_calls"].as_array().unwrap().len()),
        ("<think>\nhm\n</think>\n\n", 2)
    );
    let marked = super::calls::called(&format!("Wait. <tool_call>\n{call}\n</tool_call>")).ok().unwrap();
    assert_eq!(marked.content, "Wait. ");
}

#[test]
fn openai_keeps_what_stands_beside_the_text() {
    let row = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "tide", "arguments": "{\"place\": \"weir\"}"}}]},
        {"role": "tool", "content": "low"},
        {"role": "tool", "content": "calm"},
        {"role": "assistant", "content": "Low.", "reasoning_content": "It is low"}]});
    let Read { reading, guessed, .. } = Format::read(None, &record(&row)).unwrap();
    let Reading::Example(Example::Conversation(conversation)) = reading else { panic!("{reading:?}") };
    assert_eq!(guessed, Some(Kind::OpenAi));
    // No "detailed thinking off" is added, as the original does.
    assert_eq!(conversation.system.as_deref(), Some("Be brief."));
    assert_eq!(conversation.messages.len(), 5);
    assert_eq!(
        conversation.messages[1].extra["tool_calls"][0]["function"]["arguments"],
        json!({"place": "weir"})
    );
    assert_eq!(conversation.messages[4].extra["reasoning_content"], "It is low");
    // A result at the end, which the original loses, has no answer.
    let row = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "c"}]});
    let Read { reading, .. } = Format::read(None, &record(&row)).unwrap();
    assert_eq!(reading, Reading::Dropped("it does not end with an answer (Invalid message count)".into()));
}

#[test]
fn calls_and_functions_may_be_texts() {
    // The rows of MiniMind: functions in the system's message, calls as a text, their arguments in any form.
    let row = |calls: Value, tools: Value| {
        json!({"conversations": [
            {"role": "system", "content": "Be brief.", "tools": tools},
            {"role": "user", "content": "Tide?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "low"},
            {"role": "assistant", "content": "Low."}]})
    };
    let listed = json!([{"name": "tide", "arguments": {"place": "weir"}}]);
    let functions = json!([{"type": "function", "function": {"name": "tide"}}]);
    for calls in [listed.clone(), json!(listed.to_string()), listed[0].clone()] {
        for tools in [functions.clone(), json!(functions.to_string())] {
            let Read { reading, unread, .. } =
                Format::read(None, &record(&row(calls.clone(), tools))).unwrap();
            let Reading::Example(Example::Conversation(conversation)) = reading else {
                panic!("{reading:?}")
            };
            assert_eq!(conversation.messages[1].extra["tool_calls"], listed);
            assert_eq!(conversation.tools, Some(functions.clone()));
            assert_eq!(unread, [""; 0]);
        }
    }
    let old = json!({"messages": [{"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": null, "function_call": {"name": "tide", "arguments": "{}"}}]});
    let Reading::Example(Example::Conversation(conversation)) =
        Format::read(None, &record(&old)).unwrap().reading
    else {
        panic!("no conversation")
    };
    assert_eq!(conversation.messages[1].extra["tool_calls"], json!([{"name": "tide", "arguments": {}}]));
    for (row, reason) in [
        (row(json!("[{broken"), json!("[]")), "Invalid JSON format in function message"),
        (row(json!(5), Value::Null), "Invalid JSON format in function message"),
        (row(json!("[1]"), Value::Null), "Invalid JSON format in function message"),
        (row(Value::Null, json!("{broken")), "Invalid JSON format in tool description"),
        (row(Value::Null, json!(7)), "not a list of functions with names"),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": [{"name": "b", "arguments": {}}]},
                {"role": "assistant", "content": "b"}]}),
            "is not the assistant's",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}),
            "a message holds no text",
        ),
        (
            json!({"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]}),
            "a message holds no text",
        ),
    ] {
        match Format::read(None, &record(&row)).unwrap().reading {
            Reading::Dropped(reported) => assert!(reported.contains(reason), "{reported}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn texts_may_come_in_parts() {
    let of = |parts: Value| {
        let row =
            json!({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "b"}]});
        Format::read(None, &record(&row)).unwrap().reading
    };
    let Reading::Example(Example::Conversation(read)) =
        of(json!([{"type": "text", "text": "Count "}, {"type": "text", "text": "them"}]))
    else {
        panic!("no conversation")
    };
    assert_eq!(said(&read)[0], ("user", "Count them"));
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]);
    let reason = "a message has a part of type \"image_url\", and models are of text only";
    assert_eq!(of(image), Reading::Dropped(reason.into()));
}

fn pair(entry: Option<&Value>, row: &Value) -> Pair {
    let format = entry.map(|entry| Format::of_entry(entry.as_object().unwrap()).unwrap());
    match Format::read(format.as_ref(), &record(row)).unwrap().reading {
        Reading::Example(Example::Pair(pair)) => *pair,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pairs_may_be_whole_conversations() {
    let chat = |answer: &str| {
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tide?"},
            {"role": "assistant", "content": answer}])
    };
    let answer = |text: &str| json!([{"role": "assistant", "content": text}]);
    // MiniMind's rows, the same as texts in a table, TRL's with a prompt beside, and TRL's with the prompt apart.
    let rows = [
        json!({"chosen": chat("low"), "rejected": chat("no")}),
        json!({"chosen": chat("low").to_string(), "rejected": chat("no").to_string()}),
        json!({"prompt": "Tide?", "chosen": chat("low"), "rejected": chat("no"), "messages": chat("low")}),
        json!({"prompt": [chat("")[0], chat("")[1]], "chosen": answer("low"), "rejected": answer("no")}),
    ];
    let entries = [
        json!({"ranking": true, "formatting": "sharegpt", "columns": {"chosen": "chosen", "rejected": "rejected"}}),
        json!({"ranking": true, "formatting": "openai",
            "columns": {"messages": "chosen", "chosen": "chosen", "rejected": "rejected"}}),
        json!({"ranking": true, "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}}),
    ];
    for row in &rows {
        for entry in entries.iter().map(Some).chain([None]) {
            if row["prompt"].is_array() && entry.is_some_and(|entry| entry["columns"]["prompt"].is_null()) {
                continue;
            }
            let Pair { prompt, chosen, rejected } = pair(entry, row);
            assert_eq!(prompt.system.as_deref(), Some("Be brief."), "{row} {entry:?}");
            assert_eq!(said(&prompt), [("user", "Tide?")]);
            assert_eq!((chosen.content.as_str(), rejected.content.as_str()), ("low", "no"));
        }
    }
    let texts = pair(None, &json!({"prompt": "Tide?", "chosen": "low", "rejected": "no"}));
    assert_eq!((said(&texts.prompt), texts.chosen.content), (vec![("user", "Tide?")], "low".into()));
    let apart = pair(None, &json!({"prompt": "Tide?", "chosen": answer("low"), "rejected": answer("no")}));
    assert_eq!(said(&apart.prompt), [("user", "Tide?")]);
    for (row, reason) in [
        (json!({"chosen": chat("a"), "rejected": answer("b")}), "differ in more than their last messages"),
        (json!({"chosen": [], "rejected": []}), "lacks one of its two answers"),
        (json!({"chosen": answer("a"), "rejected": answer("b")}), "Invalid message count"),
        (
            json!({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]}),
            "Invalid message count",
        ),
    ] {
        match Format::read(None, &record(&row)).unwrap().reading {
            Reading::Dropped(reported) => assert!(reported.contains(reason), "{reported}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_object_around_the_records_is_told_from_a_record() {
    let reported = |entry: Option<&Value>, row: Value| {
        let format = entry.map(|entry| Format::of_entry(entry.as_object().unwrap()).unwrap());
        Format::read(format.as_ref(), &record(&row)).err().unwrap().to_string()
    };
    let around = json!({"data": [{"instruction": "a", "output": "b"}]});
    let sharegpt = json!({"formatting": "sharegpt"});
    for entry in [None, Some(&json!({})), Some(&sharegpt)] {
        let reported = reported(entry, around.clone());
        assert!(
            reported.contains("where \"data\" is the list of the records, write that list alone"),
            "{reported}"
        );
    }
    let reported = reported(None, json!({"instruction": ["a", "b"], "output": ["c", "d"]}));
    assert!(
        reported.contains("holds a list of 2 for each column")
            && reported.contains("write one object for each")
    );
}

#[test]
fn what_a_table_fills_up_with_null_is_not_there() {
    let row = json!({"conversations": [
        {"role": "user", "content": "a", "tool_calls": null, "reasoning_content": null},
        {"role": "assistant", "content": "b", "tool_calls": null, "reasoning_content": null}], "tools": null});
    let Read { reading, unread, .. } = Format::read(None, &record(&row)).unwrap();
    let Reading::Example(Example::Conversation(read)) = reading else { panic!("{reading:?}") };
    assert!(read.messages.iter().all(|message| message.extra.is_empty()) && unread.is_empty());
    let reading = Format::read(None, &record(&json!({"messages": null}))).unwrap().reading;
    assert_eq!(reading, Reading::Dropped("it has no message".into()));
}

#[test]
fn columns_that_nothing_reads_are_told() {
    let entry = json!({"columns": {"prompt": "q", "response": "a", "kto_tag": "ok"}});
    let format = Format::of_entry(entry.as_object().unwrap()).unwrap();
    let row = json!({"q": "Hi", "a": "Hello", "system": "Be brief.", "id": 5, "note": "", "ok": 1});
    let unread = Format::read(Some(&format), &record(&row)).unwrap().unread;
    let expected =
        ["column \"id\"", "column \"system\"", "column \"ok\", which is a number, not true or false,"];
    assert_eq!(unread.len(), 3);
    assert!(expected.iter().all(|reported| unread.iter().any(|found| found == reported)), "{unread:?}");
}

/// A column that the entry names tells nothing where rows of its kind are not read by it.
#[test]
fn columns_that_the_kind_of_row_is_not_read_by_are_told() {
    let turns = json!([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]);
    let beside = json!([{"from": "system", "value": "One"}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]);
    let pair =
        |asked: &str| json!([{"role": "user", "content": asked}, {"role": "assistant", "content": "a"}]);
    let rejected = json!([{"role": "user", "content": "who?"}, {"role": "assistant", "content": "b"}]);
    for (row, expected) in [
        (
            json!({"conversations": turns, "instruction": "Q", "input": "", "output": "A"}),
            &["column \"instruction\"", "column \"output\""][..],
        ),
        (json!({"conversations": turns, "history": [["a", "b"]], "system": "S"}), &["column \"history\""]),
        (
            json!({"conversations": beside, "system": "Two"}),
            &["column \"system\" beside a message of the system"],
        ),
        (json!({"conversations": beside, "system": "One"}), &[]),
        (json!({"instruction": "Q", "output": "A", "chosen": "B", "rejected": "C"}), &["column \"output\""]),
        (json!({"prompt": "who?", "chosen": pair("who?"), "rejected": rejected}), &[]),
        (
            json!({"prompt": "what?", "chosen": pair("who?"), "rejected": rejected}),
            &["column \"prompt\" beside two whole conversations that begin otherwise"],
        ),
    ] {
        let Read { reading, unread, .. } = Format::read(None, &record(&row)).unwrap();
        assert!(matches!(reading, Reading::Example(_)), "{row}: {reading:?}");
        assert_eq!(unread, expected, "{row}");
    }
    // A part of a value is not left out either.
    let read = |row: Value| Format::read(None, &record(&row)).unwrap().reading;
    let history = json!({"instruction": "Q", "output": "A", "history": [["a", "b", "c"]]});
    assert_eq!(read(history), Reading::Dropped("its history is not a list of pairs of texts".into()));
    let call = |name: &str| json!({"name": name, "arguments": {}});
    let called = |other: &str| {
        let answer = json!({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call("f")}], "function_call": call(other)});
        json!({"messages": [{"role": "user", "content": "q"}, answer]})
    };
    assert!(matches!(read(called("f")), Reading::Example(_)));
    assert_eq!(
        read(called("g")),
        Reading::Dropped("a message has tool_calls and function_call, and they differ".into())
    );
}

#[test]
fn the_keys_of_a_row_say_what_it_is() {
    for (row, kind) in [
        (json!({"instruction": "a", "output": "b"}), Kind::Alpaca),
        (
            json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}),
            Kind::ShareGpt,
        ),
        (
            json!({"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
            Kind::OpenAi,
        ),
    ] {
        let Read { reading, guessed, .. } = Format::read(None, &record(&row)).unwrap();
        assert!(matches!(reading, Reading::Example(Example::Conversation(_))), "{reading:?}");
        assert_eq!(guessed, Some(kind));
    }
    let error = Format::read(None, &record(&json!({"text": "a"}))).err().unwrap().to_string();
    assert!(error.contains("neither those of alpaca"), "{error}");
    let row = json!({"instruction": "a", "output": "b", "images": ["a.png"]});
    let Read { reading, .. } = Format::read(None, &record(&row)).unwrap();
    assert_eq!(reading, Reading::Dropped("it has images, and models are of text only".into()));
}

#[test]
fn wrong_entries_are_explained() {
    for (entry, message) in [
        (json!({"formatting": "other"}), "Dataset converter other not found"),
        (json!({"columns": {"promt": "a"}}), "columns names promt, which is unknown"),
        (json!({"formatting": "sharegpt", "tags": {"role_tag": "role"}}), "tags names no content_tag"),
        (json!({"formatting": "openai", "columns": {"system": "s"}}), "columns names no messages"),
        (json!({"ranking": true}), "names no chosen"),
        (json!({"ranking": "yes"}), "ranking is \"yes\""),
    ] {
        let (cause, _) = Format::of_entry(entry.as_object().unwrap()).unwrap_err();
        assert!(cause.contains(message), "{cause}");
    }
}
