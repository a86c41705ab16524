//! Layouts against what LLaMA-Factory itself makes of the same conversations (bench/golden/make_chat_layouts.py).

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::cut::{Joining, join};
use super::super::encoded::Labels;
use super::super::example::{Conversation, Message};
use super::super::tokenizer::Tokenizer;
use super::parts::{Class, Slot};
use super::*;

/// A tokenizer in which every character of `texts` is a token, and each of `special` is one.
struct Characters {
    _dir: TempDir,
    tokenizer: Tokenizer,
    tokens: Vec<String>,
}

fn characters(texts: &str, special: &[&str]) -> Characters {
    let dir = tempfile::tempdir().unwrap();
    let mut tokens: Vec<String> = special.iter().map(|token| (*token).to_owned()).collect();
    let letters: BTreeSet<char> = texts.chars().collect();
    tokens.extend(letters.into_iter().map(String::from));
    let id = |token: &str| tokens.iter().position(|known| known == token).unwrap();
    let vocab: Map<String, Value> = tokens.iter().map(|token| (token.clone(), json!(id(token)))).collect();
    let added: Vec<Value> = special
        .iter()
        .map(|token| {
            json!({"id": id(token), "content": token, "special": true, "normalized": false, "lstrip": false,
                "rstrip": false, "single_word": false})
        })
        .collect();
    let file = json!({"version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let names = r#"{"bos_token": "<s>", "eos_token": "</s>"}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), names).unwrap();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    Characters { _dir: dir, tokenizer, tokens }
}

/// A conversation of roles and texts.
fn talk(messages: &[(&str, &str)]) -> Conversation {
    let messages = messages.iter().map(|(role, text)| Message::new(role, *text)).collect();
    Conversation { messages, ..Conversation::default() }
}

const TALK: [(&str, &str); 4] =
    [("user", "Hi"), ("assistant", "Hello"), ("user", "1+1?"), ("assistant", "2")];
const THOUGHTS: [(&str, &str); 4] = [
    ("user", "Hi"),
    ("assistant", "<think>\na\n</think>\n\nHello"),
    ("user", "1+1?"),
    ("assistant", "<think>\nb\n</think>\n\n2"),
];

fn with_tools() -> Conversation {
    let mut conversation =
        talk(&[("user", "Tide?"), ("assistant", ""), ("tool", r#"{"level": 2.5}"#), ("assistant", "低潮。")]);
    conversation.messages[1].extra.insert(
        "tool_calls".into(),
        json!([{"type": "function", "function": {"name": "tide", "arguments": {"place": "weir", "hours": [1, 2]}}}]),
    );
    conversation.tools =
        Some(json!([{"name": "tide", "description": "Tells the tide.", "parameters": {"type": "object",
        "properties": {"place": {"type": "string", "description": "Where", "enum": ["weir", "lock"]},
            "hours": {"type": "array", "items": {"type": "integer"}}}, "required": ["place"]}}]));
    conversation
}

/// The conversation and the settings of a case of the golden file.
fn case(name: &str) -> (Conversation, ChatArgs, usize) {
    let thinking = match name {
        name if name.ends_with("False") => Some(false),
        name if name.ends_with("None") => None,
        _ => Some(true),
    };
    let args = ChatArgs {
        enable_thinking: thinking,
        mask_history: name.ends_with("last"),
        train_on_prompt: name == "prompt",
        split_special_tokens: true,
        ..ChatArgs::default()
    };
    let mut conversation = match name {
        "tools" => with_tools(),
        name if name.starts_with("thoughts") => talk(&THOUGHTS),
        _ => talk(&TALK),
    };
    if matches!(name, "system" | "cut") {
        conversation.system = Some("Be brief.".into());
    }
    (conversation, args, if name == "cut" { 40 } else { 100_000 })
}

/// The tokens as the golden file shows them.
fn shown(ids: &[u32], labels: &Labels, tokens: &[String]) -> String {
    let Labels::Spans(spans) = labels else { panic!("turns have spans") };
    let (mut out, mut learns) = (String::new(), false);
    for (at, &id) in ids.iter().enumerate() {
        let inside = |span: &&std::ops::Range<u32>| span.contains(&(at as u32));
        let (token, is_learned) = (&tokens[id as usize], spans.iter().find(inside).is_some());
        if is_learned != learns {
            out.push(if is_learned { '«' } else { '»' });
            learns = is_learned;
        }
        match spans.iter().any(|span| span.is_empty() && span.start as usize == at) {
            true => out.push_str(&format!("«{token}→end»")),
            false => out.push_str(token),
        }
    }
    out + if learns { "»" } else { "" }
}

const GOLDEN: &str = include_str!("../../../../oarlock/tests/golden/chat_layouts.json");

#[test]
fn every_layout_writes_what_the_original_writes() {
    let golden: Map<String, Value> = serde_json::from_str(GOLDEN).unwrap();
    let letters = format!("{LAYOUTS}{GOLDEN}");
    let mut n_cases = 0;
    for (name, cases) in &golden {
        let mut fixtures: HashMap<Vec<String>, Characters> = HashMap::new();
        for (case_name, expected) in cases.as_object().unwrap() {
            let (conversation, args, cutoff_len) = case(case_name);
            let layout = Layout::named(name).unwrap().with(&args).unwrap();
            let mut special: Vec<&str> = vec!["<s>", "</s>"];
            let end = layout.stop_words.first().filter(|_| layout.replace_eos);
            special.extend(end.map(String::as_str));
            for slot in layout
                .user
                .iter()
                .chain(&layout.prefix)
                .chain(&layout.system)
                .chain(layout.observation.iter().flatten())
            {
                if let Slot::Token { token } = slot {
                    special.push(token);
                }
            }
            let fixture = fixtures
                .entry(special.iter().map(ToString::to_string).collect())
                .or_insert_with(|| characters(&letters, &special));
            let turns = layout.turns(&fixture.tokenizer, &conversation, &args).unwrap().unwrap();
            let end = layout.end_token(&fixture.tokenizer).unwrap();
            let joining = Joining {
                cutoff_len,
                train_on_prompt: args.train_on_prompt,
                mask_history: args.mask_history,
                late_end: end.filter(|_| layout.ends_late()),
            };
            let (encoded, _) = join(&turns, &joining);
            let mut written = shown(&encoded.ids, &encoded.labels, &fixture.tokens);
            // Nothing predicts the first token; the original counts it where prompts are supervised.
            if args.train_on_prompt {
                let first = &fixture.tokens[encoded.ids[0] as usize];
                written = written.replacen(&format!("{first}«"), &format!("«{first}"), 1);
            }
            assert_eq!(&written, expected.as_str().unwrap(), "{name}, {case_name}");
            n_cases += 1;
        }
    }
    assert_eq!(golden.len(), layout_names().len());
    assert!(n_cases > 400, "{n_cases}");
}

/// `Template._encode` of LLaMA-Factory asks whether there is a text of tools, and `"[]"` is one: of no function.
#[test]
fn an_empty_list_of_functions_is_a_system_message_without_a_text() {
    let end = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"];
    let fixture = characters(&format!("{LAYOUTS}{GOLDEN}"), &end);
    let text = |ids: &[u32]| ids.iter().map(|&id| fixture.tokens[id as usize].as_str()).collect::<String>();
    for (name, empty, system) in [
        ("qwen3", "<|im_start|>system\n<|im_end|>\n", None),
        ("llama3", "<|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>", None),
        ("default", "System: </s>\n", None),
        ("llama2", "", None),
        // Nothing around a system message, and templates with one of their own.
        ("alpaca", "", Some("Below is an instruction that describes a task.")),
        ("qwen", "", Some("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud.")),
    ] {
        let source = |tools: Option<Value>| {
            let conversation = Conversation { tools, ..talk(&[("user", "Hi"), ("assistant", "Hello")]) };
            let layout = Layout::named(name).unwrap();
            text(
                &layout.turns(&fixture.tokenizer, &conversation, &ChatArgs::default()).unwrap().unwrap()[0]
                    .source,
            )
        };
        let (without, with) = (source(None), source(Some(json!([]))));
        match (name, system) {
            ("llama2", _) => assert!(with.contains("[INST] <<SYS>>\n\n<</SYS>>\n\nHi"), "{with}"),
            (_, Some(system)) => assert!(with == without && with.contains(system), "{name}: {with}"),
            _ => assert!(with.contains(empty) && with.replacen(empty, "", 1) == without, "{name}: {with}"),
        }
    }
}

#[test]
fn llama3_tells_a_fixed_day() {
    let (conversation, args, _) = case("tools");
    let layout = Layout::named("llama3").unwrap();
    let fixture = characters(
        &format!("{LAYOUTS}{GOLDEN}ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
        &["<s>", "</s>", "<|eot_id|>"],
    );
    let turns = layout.turns(&fixture.tokenizer, &conversation, &args).unwrap().unwrap();
    let text = |ids: &[u32]| ids.iter().map(|&id| fixture.tokens[id as usize].as_str()).collect::<String>();
    let source = text(&turns[0].source);
    assert!(
        source.contains("Today Date: 26 Jul 2024\n\nYou have access to the following functions."),
        "{source}"
    );
    assert!(
        source.contains("\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"tide\""),
        "{source}"
    );
    assert_eq!(
        text(&turns[0].target),
        r#"{"name": "tide", "parameters": {"place": "weir", "hours": [1, 2]}}<|eot_id|>"#
    );
    assert!(
        text(&turns[1].source)
            .starts_with("<|start_header_id|>ipython<|end_header_id|>\n\n{\"level\": 2.5}<|eot_id|>")
    );
}

#[test]
fn special_tokens_in_messages_stay_text() {
    let fixture = characters(&format!("{LAYOUTS}{GOLDEN}"), &["<s>", "</s>", "<|im_end|>"]);
    let layout = Layout::named("qwen").unwrap();
    let conversation = talk(&[("user", "a<|im_end|>b"), ("assistant", "</s>")]);
    let end = fixture.tokenizer.id_of("<|im_end|>").unwrap().unwrap();
    let ends = |as_text: bool| {
        let args = ChatArgs { split_special_tokens: as_text, ..ChatArgs::default() };
        let turns = layout.turns(&fixture.tokenizer, &conversation, &args).unwrap().unwrap();
        let text: String = turns[0].source.iter().map(|&id| fixture.tokens[id as usize].as_str()).collect();
        assert!(text.contains("user\na<|im_end|>b<|im_end|>\n"), "{text}");
        (turns[0].source.iter().filter(|&&id| id == end).count(), turns[0].target.len())
    };
    // Of the system message and of the question; the answer ends with `<|im_end|>` and a line end.
    assert_eq!(ends(true), (2, 6));
    assert_eq!(ends(false), (3, 3));
}

#[test]
fn wrong_settings_are_explained() {
    let error = Layout::named("qwen33").unwrap_err().to_string();
    assert!(error.contains("Template qwen33 does not exist; did you mean qwen3?"), "{error}");
    let args = ChatArgs { train_on_prompt: true, ..ChatArgs::default() };
    let error = Layout::named("glm4").unwrap().with(&args).unwrap_err().to_string();
    assert!(error.contains("Current template does not support `train_on_prompt`"), "{error}");
    let args = ChatArgs { tool_format: Some("lfm2".into()), ..ChatArgs::default() };
    let error = Layout::named("qwen").unwrap().with(&args).unwrap_err().to_string();
    assert!(error.contains("the tool format lfm2 is not there"), "{error}");
    let fixture = characters(GOLDEN, &["<s>", "</s>"]);
    let error = Layout::named("llama3").unwrap().end_token(&fixture.tokenizer).unwrap_err().to_string();
    assert!(error.contains("its end token <|eot_id|> is not a token of this tokenizer"), "{error}");
}

/// A tokenizer for a layout, with the folder that it lies in.
fn fixture(layout: &Layout) -> Characters {
    let mut special: Vec<&str> = vec!["<s>", "</s>"];
    special.extend(layout.stop_words.first().filter(|_| layout.replace_eos).map(String::as_str));
    let slots = [Some(&layout.user), Some(&layout.prefix), Some(&layout.system), layout.observation.as_ref()];
    for slot in slots.into_iter().flatten().flatten() {
        if let Slot::Token { token } = slot {
            special.push(token);
        }
    }
    characters(&format!("{LAYOUTS}{GOLDEN}"), &special)
}

/// A saved model is asked as it was trained.
#[test]
fn the_template_of_every_layout_writes_its_prompts() {
    let (mut n_long, mut n_tools) = (0, 0);
    for name in layout_names() {
        let Characters { _dir: dir, tokenizer, .. } = fixture(&Layout::named(&name).unwrap());
        for thinks in [Some(true), Some(false)] {
            let args = ChatArgs { enable_thinking: thinks, ..ChatArgs::default() };
            let layout = Layout::named(&name).unwrap().with(&args).unwrap();
            let template = layout.jinja(&tokenizer, &args).unwrap();
            std::fs::write(dir.path().join("chat_template.jinja"), &template).unwrap();
            let template = super::super::template::ChatTemplate::read(dir.path()).unwrap();
            let check = |mut conversation: Conversation, n_asked: usize, what: &str| {
                let turns = layout.turns(&tokenizer, &conversation, &args).unwrap().unwrap();
                let (last, before) = turns[..n_asked].split_last().unwrap();
                let mut expected: Vec<u32> =
                    before.iter().flat_map(|turn| [&turn.source[..], &turn.target].concat()).collect();
                expected.extend(&last.source);
                conversation.messages.truncate(2 * n_asked - 1);
                let text = template.render_prompt(&conversation).unwrap();
                let expected = tokenizer.decode(&expected, false).unwrap();
                assert_eq!(text, expected, "{name}, {what}, {thinks:?}");
            };
            for system in [None, Some("Be 'brief'.\n")] {
                let message = || Conversation { system: system.map(str::to_owned), ..talk(&TALK) };
                check(message(), 1, "one question");
                // The turns of a training run that thinks hold thoughts that the history of a talk does not.
                if layout.class != Class::Reasoning {
                    check(message(), 2, "two questions");
                    n_long += 1;
                }
            }
            if layout.tools == "qwen" && layout.calls == "qwen" && layout.class != Class::Reasoning {
                check(with_tools(), 2, "functions");
                n_tools += 1;
            }
        }
    }
    assert!(n_long > 200 && n_tools > 2, "{n_long} {n_tools}");
}
