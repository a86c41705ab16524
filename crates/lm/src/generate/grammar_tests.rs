//! Grammars over a vocabulary of bytes: which texts they take, and what they refuse to take.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::constraint::TokenSet;
use super::grammar::{Grammar, Rule, Vocabulary};
use crate::data::Tokenizer;

/// The end of a text, and behind it the tokens of all bytes.
const END: u32 = 1;
const FIRST_BYTE: u32 = 2;
const N_TOKENS: usize = 258;

fn vocabulary() -> Vocabulary {
    vocabulary_of(0, N_TOKENS)
}

/// So many tokens in all, those of bytes from this one on.
pub(super) fn vocabulary_of(first: u8, n_tokens: usize) -> Vocabulary {
    let dir = tempfile::tempdir().unwrap();
    let mut vocab = serde_json::Map::new();
    ["<s>", "</s>"].iter().enumerate().for_each(|(id, token)| drop(vocab.insert((*token).into(), json!(id))));
    for (byte, id) in (u32::from(first)..256).zip(FIRST_BYTE..n_tokens as u32) {
        vocab.insert(format!("<0x{byte:02X}>"), json!(id));
    }
    let added = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false });
    let space = json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(0, "<s>"), added(1, "</s>")], "pre_tokenizer": null, "decoder": { "type": "Sequence", "decoders": [space, { "type": "ByteFallback" }] },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<s>" },
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    Vocabulary::new(&tokenizer, n_tokens, &[END, 9999]).unwrap()
}

fn one(vocabulary: &Vocabulary, rule: Rule) -> Result<Grammar, String> {
    vocabulary.grammar(vec![("text".to_owned(), rule)]).map_err(|error| error.to_string())
}

fn json_of(schema: Value) -> Rule {
    Rule::Json { schema, is_strict: true }
}

/// How many bytes of a text a grammar lets pass, and whether the text may end there.
fn passed(grammar: &Grammar, text: &str) -> (usize, bool) {
    let mut constraint = grammar.constraint();
    let mut answer = Vec::new();
    let mut allowed = || {
        let mut allowed = TokenSet::empty(N_TOKENS);
        constraint.allow(&answer, &mut allowed).unwrap();
        let next = text.as_bytes().get(answer.len()).map(|byte| u32::from(*byte) + FIRST_BYTE);
        let goes_on = next.filter(|next| allowed.contains(*next));
        answer.extend(goes_on);
        goes_on.is_none().then(|| (answer.len(), allowed.contains(END)))
    };
    loop {
        if let Some(end) = allowed() {
            return end;
        }
    }
}

/// Whether these texts pass as a whole, and those do not.
fn check(grammar: &Grammar, good: &[&str], bad: &[&str]) {
    for text in good {
        assert_eq!(passed(grammar, text), (text.len(), true), "{text}");
    }
    for text in bad {
        assert_ne!(passed(grammar, text), (text.len(), true), "{text}");
    }
}

#[test]
fn each_notation_says_which_texts_there_are() {
    let vocabulary = vocabulary();
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "integer", "minimum": 1 }, "b": { "$ref": "#/$defs/word" } },
        "required": ["a"], "additionalProperties": false, "$defs": { "word": { "enum": ["é", "z"] } },
    });
    check(
        &one(&vocabulary, json_of(schema)).unwrap(),
        &["{\"a\":1}", "{\"a\": 12,\n  \"b\": \"é\"}"],
        &["{}", "{\"a\":0}", "{\"b\":\"z\"}", "{\"a\":1,\"c\":1}", " {\"a\":1}", "[1]"],
    );
    // A model that is at a loss writes no white space without an end.
    let any = one(&vocabulary, json_of(json!({ "type": "object" }))).unwrap();
    check(&any, &["{}", "{ \"x\": [1, {\"y\": null}] }"], &["{", "[]"]);
    let (n_passed, _) = passed(&any, &format!("{{{}", " ".repeat(200)));
    assert!((10..60).contains(&n_passed), "{n_passed}");
    let regex = Rule::Regex("a/[0-9]{2}|é+".to_owned());
    check(&one(&vocabulary, regex).unwrap(), &["a/12", "éé"], &["a/1", "a/123", ""]);
    let lark = Rule::Lark("start: \"x\" number+\nnumber: /[0-9]/ \",\"".to_owned());
    check(&one(&vocabulary, lark).unwrap(), &["x1,2,"], &["x", "x1"]);
    let whole = Rule::Lark("start: \"<\" @inner \">\"".to_owned());
    let rules =
        vec![("whole".to_owned(), whole), ("inner".to_owned(), json_of(json!({ "type": "boolean" })))];
    check(&vocabulary.grammar(rules).unwrap(), &["<true>"], &["true", "<1>"]);
}

#[test]
fn grammars_of_llama_cpp_say_the_same_here() {
    let vocabulary = vocabulary();
    let gbnf = |text: &str| one(&vocabulary, Rule::Gbnf(text.to_owned()));
    // Values with nesting, escapes and optional spaces.
    let values = r##"
# A value, and nothing behind it.
root ::= value
value ::= map | row | word | number | ("yes" | "no")
map ::= "{" gap ( pair ("," gap pair)* )? "}" gap
pair ::= word ":" gap value
row ::= "[" gap ( value
    ("," gap value)* )? "]" gap
word ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" gap
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? gap
gap ::= | " " | "\n" [ \t]{0,20}
"##;
    check(
        &gbnf(values).unwrap(),
        &["{}", r#"{"é\u00e9":[1,-2.5,yes], "b":{}}"#, "[]", "no", r#""""#, "[\n  1]"],
        &["{", r#"{"a"}"#, "01", "[1,]", r#""\q""#, "yesno", ""],
    );
    let list = r#"root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n""#;
    check(&gbnf(list).unwrap(), &["- a\n", "- é\n- b c\n"], &["", "- \n", "- a", "a\n", "- a\n\n"]);
    // A literal that another begins with, and texts of which both would do.
    let moves = r#"root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= (pawn | piece | castle) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQ])?
piece ::= [NBRQK] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?"#;
    check(
        &gbnf(moves).unwrap(),
        &["1. e4 e5\n", "1. e4 Nf6\n2. exd5+ O-O-O\n", "1. Nbd7 O-O\n10. a8=Q# Kxa1\n"],
        &["1. e4\n", "1. e9 e5\n", "2. e4 e5\n", "1. O-O-O-O e5\n"],
    );
    let cut = r#"root ::= "a" "b" "x" | "ab" "y" | . . "z""#;
    check(&gbnf(cut).unwrap(), &["abx", "aby", "abz", "éaz"], &["ab", "xy", "abq"]);
    let error = gbnf("root ::= \"a\"\nb ::= (").unwrap_err();
    assert!(error.contains("line 2: a bracket is not closed"), "{error}");
    // Beside other rules, as behind thoughts.
    let whole = Rule::Lark("start: \"<\" @text \">\"".to_owned());
    let inner = Rule::Gbnf("root ::= \"a\"+".to_owned());
    let rules = vec![("whole".to_owned(), whole), ("text".to_owned(), inner)];
    check(&vocabulary.grammar(rules).unwrap(), &["<aa>"], &["<>", "aa"]);
}

/// An answer whose form takes too much for a token ends with an error of its request, and says so.
#[test]
fn a_grammar_that_grows_too_heavy_is_an_error_of_its_request() {
    let vocabulary = vocabulary();
    // A text of n letters has more and more ways to be read.
    let ways: Vec<String> = (2..12).map(|n| vec!["x"; n].join(" ")).collect();
    let rule = Rule::Lark(format!("start: x\nx: \"a\" | {}", ways.join(" | ")));
    let (mut constraint, mut answer) = (one(&vocabulary, rule).unwrap().constraint(), Vec::new());
    let error = (0..200).find_map(|_| {
        let mut allowed = TokenSet::empty(N_TOKENS);
        let error = constraint.allow(&answer, &mut allowed).err();
        answer.push(u32::from(b'a') + FIRST_BYTE);
        error
    });
    assert!(answer.len() > 2, "{error:?}");
    assert!(matches!(error, Some(oarlock_engine::Error::Usage(_))), "{error:?}");
}

/// As servers write them around a text: what the words between the marks are comes first, and calls may stand anywhere.
#[test]
fn thoughts_and_calls_stand_around_a_text() {
    let vocabulary = vocabulary();
    let number = || {
        (
            "text".to_owned(),
            json_of(
                json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"], "additionalProperties": false }),
            ),
        )
    };
    let thought = "TEXT: /(?s:.*)/\nthought[lazy]: TEXT \"</think>\"\nGAP: /[ \\n]{1,4}/\n";
    let open = format!("{thought}start: thought GAP? body\nbody: @text\n");
    let grammar = vocabulary.grammar(vec![("answer".to_owned(), Rule::Lark(open)), number()]).unwrap();
    check(&grammar, &["{é</thin</think>\n\n{\"n\": 1}", "</think>{\"n\":1}"], &["{\"n\": 1}", "a</think>b"]);
    let closed = format!(
        "{thought}start: (\"<think>\" thought GAP?)? body\nbody: @text | \"<call>\" @text \"</call>\"\n"
    );
    let grammar = vocabulary.grammar(vec![("answer".to_owned(), Rule::Lark(closed)), number()]).unwrap();
    let good = [
        "{\"n\": 1}",
        "<think>a</think> {\"n\":1}",
        "<call>{\"n\":1}</call>",
        "<think></think><call>{\"n\":1}</call>",
    ];
    check(&grammar, &good, &["a</think>{\"n\":1}", "<think>a", "<call>{\"n\":1}"]);
    let free = "TEXT: /(?s:.*)/\nstart: body\nsaid[lazy]: TEXT \"<call>\"\nbody: (said inner)* TEXT\ninner: @text \"</call>\"\n";
    let grammar =
        vocabulary.grammar(vec![("answer".to_owned(), Rule::Lark(free.to_owned())), number()]).unwrap();
    let good = ["", "a <cal {\"x\"}", "so <call>{\"n\": 2}</call> and <call>{\"n\":3}</call>"];
    check(&grammar, &good, &["<call>x</call>", "<call>{\"n\":1}", "a <call>{}</call>"]);
}

#[test]
fn answers_of_one_grammar_know_nothing_of_each_other() {
    let grammar = one(&vocabulary(), Rule::Regex("a+b".to_owned())).unwrap();
    assert_eq!(passed(&grammar, "aaa"), (3, false));
    assert_eq!(passed(&grammar, "ba"), (0, false));
    assert_eq!(passed(&grammar, "ab"), (2, true));
}

#[test]
fn what_nothing_follows_is_refused() {
    let vocabulary = vocabulary();
    let rows = [
        (json_of(json!(true)), "no object"),
        (json_of(json!({ "type": "integer", "minimum": 3, "maximum": 2 })), "nsatisfiable"),
        (json_of(json!({ "type": "strange" })), "strange"),
        (json_of(json!({ "$ref": "https://example.com/x" })), ""),
        (Rule::Regex("(".to_owned()), ""),
        (Rule::Lark("start: missing".to_owned()), "missing"),
        (Rule::Lark(format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000))), "brackets"),
    ];
    for (rule, part) in rows {
        let problem = one(&vocabulary, rule.clone()).map(drop).unwrap_err();
        assert!(
            problem.contains("no answer can be held to this form") && problem.contains(part),
            "{problem}"
        );
        assert!(problem.len() < 500, "{problem}");
    }
    // What is not strict is passed over where it cannot be promised.
    let odd = json!({ "type": "object", "not": { "required": ["a"] } });
    assert!(one(&vocabulary, json_of(odd.clone())).is_err());
    assert!(one(&vocabulary, Rule::Json { schema: odd, is_strict: false }).is_ok());
}

/// Whatever a client writes, it is read in little time, and an answer to it takes little time for a token.
#[test]
fn nothing_takes_long() {
    let vocabulary = vocabulary();
    let wide: serde_json::Map<String, Value> = (0..1000)
        .map(|i| (format!("p{i}"), json!({ "type": "string", "pattern": "^[a-z]{1,50}$" })))
        .collect();
    let rules = [
        json_of(json!({ "type": "object", "properties": wide })),
        json_of(json!({ "type": "array", "minItems": 1_000_000_000, "items": { "type": "string" } })),
        json_of(json!({ "type": "string", "minLength": 100_000_000 })),
        json_of(json!({ "type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$" })),
        Rule::Regex("(a|b)*a(a|b){1000}".to_owned()),
        Rule::Regex("(?i)(.{0,500}x){0,500}".to_owned()),
        Rule::Lark("start: a\na: a a | \"x\" |".to_owned()),
    ];
    for rule in rules {
        let begin = Instant::now();
        if let Ok(grammar) = one(&vocabulary, rule.clone()) {
            let mut constraint = grammar.constraint();
            let (mut answer, mut allowed) = (Vec::new(), TokenSet::empty(N_TOKENS));
            for _ in 0..40 {
                allowed.clear();
                if constraint.allow(&answer, &mut allowed).is_err() {
                    break;
                }
                answer.extend((FIRST_BYTE..N_TOKENS as u32).find(|id| allowed.contains(*id)));
            }
        }
        let took = begin.elapsed();
        // Machines may be busy.
        let shown: String = format!("{rule:?}").chars().take(100).collect();
        assert!(took < Duration::from_secs(30), "{took:?}: {shown}");
    }
}
