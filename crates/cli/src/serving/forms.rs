//! Forms of answers as grammars: thoughts first, then a text, or calls as the template writes them.

use fancy_regex::escape;
use oarlock::generate::Rule;
use oarlock_serve::{AnswerFormat, CallForm, CallMarks, Form, Schema, TextForm};
use serde_json::Value;

/// The rules of a form, of which the first is the whole; the marks around thoughts and calls are those of the format.
pub fn rules(form: &Form, format: &AnswerFormat) -> Vec<(String, Rule)> {
    let text = form.text.as_ref().and_then(rule);
    if let (Some(text), None, true) = (&text, &format.thoughts, form.calls.is_empty()) {
        return vec![("text".to_owned(), text.clone())];
    }
    let whole = CallMarks { open: String::new(), close: None, is_only_first: false };
    let marks = format.calls.as_ref().unwrap_or(&whole);
    let is_any = form.text == Some(TextForm::Any);
    let mut lark = String::new();
    let mut line = |text: String| lark += &(text + "\n");
    line("TEXT: /(?s:.*)/".to_owned());
    let thoughts = match &format.thoughts {
        Some(marks) => {
            line(format!("thought[lazy]: TEXT {}", literal(&marks.close)));
            line("GAP: /[ \\n]{1,4}/".to_owned());
            match marks.is_open {
                true => "thought GAP? ".to_owned(),
                // Any text may begin with thoughts as it is.
                false if is_any => String::new(),
                false => format!("({} thought GAP?)? ", literal(&marks.open)),
            }
        }
        None => String::new(),
    };
    line(format!("start: {thoughts}body"));
    let several = if form.has_one_call { "" } else { "*" };
    let body = match is_any && !marks.open.is_empty() {
        true => {
            line(format!("said[lazy]: TEXT {}", literal(&marks.open)));
            let times = if form.has_one_call { "?" } else { "*" };
            format!("(said inner){times} TEXT")
        }
        false => {
            let mut ways = Vec::new();
            if is_any {
                // Without marks the first character tells calls from text.
                line("PLAIN: /[^\\s{\\[](?s:.*)/".to_owned());
                ways.push("PLAIN?".to_owned());
            } else if text.is_some() {
                ways.push("@text".to_owned());
            }
            if !form.calls.is_empty() {
                ways.push(match (marks.open.is_empty(), form.has_one_call) {
                    (false, _) => format!("{0} inner (\"\\n\" {0} inner){several}", literal(&marks.open)),
                    (true, true) => "call".to_owned(),
                    (true, false) => "call | \"[\" call (\", \" call)* \"]\"".to_owned(),
                });
            }
            ways.join(" | ")
        }
    };
    line(format!("body: {body}"));
    if !form.calls.is_empty() {
        let close = marks.close.as_deref().filter(|close| !close.is_empty());
        let close = close.map_or_else(String::new, |close| format!(" {}", literal(&format!("\n{close}"))));
        let call = |at: usize| format!("call_{at}");
        if !marks.open.is_empty() {
            line(format!("inner: \"\\n\" call{close}"));
        }
        let calls: Vec<String> = (0..form.calls.len()).map(call).collect();
        line(format!("call: {}", calls.join(" | ")));
        for (at, CallForm { name, .. }) in form.calls.iter().enumerate() {
            let head = format!("{{\"name\": {}, \"arguments\": ", literal(name));
            line(format!("call_{at}: {} @arguments_{at} \"}}\"", literal(&head)));
        }
    }
    let mut rules = vec![("answer".to_owned(), Rule::Lark(lark))];
    rules.extend(text.map(|text| ("text".to_owned(), text)));
    let arguments = form.calls.iter().map(|call| json(&call.arguments)).enumerate();
    rules.extend(arguments.map(|(at, rule)| (format!("arguments_{at}"), rule)));
    rules
}

/// The rule of a text; `None` where it may be anything.
fn rule(text: &TextForm) -> Option<Rule> {
    match text {
        TextForm::Any => None,
        TextForm::Json(schema) => Some(json(schema)),
        TextForm::Regex(regex) => Some(Rule::Regex(regex.clone())),
        TextForm::OneOf(texts) => {
            let texts: Vec<_> = texts.iter().map(|text| escape(text)).collect();
            Some(Rule::Regex(texts.join("|")))
        }
        TextForm::Lark(grammar) => Some(Rule::Lark(grammar.clone())),
        TextForm::Gbnf(grammar) => Some(Rule::Gbnf(grammar.clone())),
    }
}

fn json(schema: &Schema) -> Rule {
    Rule::Json { schema: schema.value.clone(), is_strict: schema.is_strict }
}

/// A text between quotes, for Lark as for JSON.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use oarlock_serve::ThoughtMarks;
    use serde_json::json;

    use super::*;

    fn lark(form: &Form, format: &AnswerFormat) -> (String, usize) {
        let rules = rules(form, format);
        let Rule::Lark(lark) = rules[0].1.clone() else { panic!("{rules:?}") };
        (lark, rules.len())
    }

    #[test]
    fn a_text_alone_is_its_own_rule() {
        let form = |text| Form { text: Some(text), calls: Vec::new(), has_one_call: false };
        let plain = AnswerFormat::default();
        let said = rules(&form(TextForm::OneOf(vec!["a|b".to_owned(), "c".to_owned()])), &plain);
        assert_eq!(said, [("text".to_owned(), Rule::Regex("a\\|b|c".to_owned()))]);
        let said = rules(&form(TextForm::Gbnf("root ::= \"a\"".to_owned())), &plain);
        assert_eq!(said, [("text".to_owned(), Rule::Gbnf("root ::= \"a\"".to_owned()))]);
        let marks = ThoughtMarks { open: "<think>".into(), close: "</think>".into(), is_open: true };
        let thinks = AnswerFormat { thoughts: Some(marks), calls: None };
        let (lark, n_rules) = lark(&form(TextForm::Regex("a".to_owned())), &thinks);
        assert!(lark.contains("thought[lazy]: TEXT \"</think>\"\n") && n_rules == 2, "{lark}");
        assert!(lark.contains("start: thought GAP? body\n") && lark.contains("body: @text\n"), "{lark}");
    }

    #[test]
    fn calls_have_the_marks_of_the_template() {
        let arguments = Schema { value: json!({ "type": "object" }), is_strict: true };
        let call = CallForm { name: "say \"é\"".to_owned(), arguments };
        let marks =
            |open: &str| CallMarks { open: open.into(), close: Some("</c>".into()), is_only_first: false };
        let format = |open| AnswerFormat { thoughts: None, calls: Some(marks(open)) };
        let form = |text, has_one_call| Form { text, calls: vec![call.clone()], has_one_call };
        let (said, n_rules) = lark(&form(None, false), &format("<c>"));
        let of_call = "call_0: \"{\\\"name\\\": \\\"say \\\\\\\"é\\\\\\\"\\\", \\\"arguments\\\": \" @arguments_0 \"}\"\n";
        assert!(said.contains("body: \"<c>\" inner (\"\\n\" \"<c>\" inner)*\n") && n_rules == 2, "{said}");
        assert!(said.contains("inner: \"\\n\" call \"\\n</c>\"\n") && said.contains(of_call), "{said}");
        let (said, _) = lark(&form(Some(TextForm::Any), true), &format("<c>"));
        assert!(
            said.contains("body: (said inner)? TEXT\n") && said.contains("said[lazy]: TEXT \"<c>\"\n"),
            "{said}"
        );
        let (said, _) = lark(&form(Some(TextForm::Any), false), &AnswerFormat::default());
        assert!(said.contains("body: PLAIN? | call | \"[\" call (\", \" call)* \"]\"\n"), "{said}");
    }
}
