//! The part of Go's templates that a `Modelfile` of an export uses, rendered as Ollama renders it: what checks the file.
//!
//! Actions are `if`, `else if`, `else`, `range $i, $x := …`, `end`, `$x := …` and `$x = …`; values are fields, variables, texts and numbers; functions
//! are `and`, `eq`, `len`, `ne`, `not` and `slice`. Nothing trims spaces.

use serde_json::{Map, Value};

/// A variable and its value.
type Scope = Vec<(String, Value)>;

/// Renders a template for what Ollama gives it, an object of `System`, `Tools`, `Messages` and so on. `tool` writes a function or
/// the arguments of a call.
///
/// # Errors
/// A text that is none of these templates.
pub(super) fn render(
    template: &str,
    data: &Value,
    tool: &dyn Fn(&Value) -> String,
) -> Result<String, String> {
    let nodes = parse(template)?;
    let mut scope = vec![("$".to_owned(), data.clone())];
    let mut out = String::new();
    write(&nodes, data, &mut scope, tool, &mut out)?;
    Ok(out)
}

/// A part of a template.
enum Node {
    Text(String),
    Value(String),
    If(Vec<(String, Vec<Node>)>, Vec<Node>),
    Range([String; 2], String, Vec<Node>),
    /// A new variable, and another value of one.
    Declare(String, String),
    Assign(String, String),
}

/// What a block ends with.
enum End {
    File,
    Close,
    Else,
    ElseIf(String),
}

fn parse(template: &str) -> Result<Vec<Node>, String> {
    let mut rest = template;
    let (nodes, end) = block(&mut rest)?;
    match end {
        End::File => Ok(nodes),
        _ => Err("an end or else without its beginning".to_owned()),
    }
}

fn block(rest: &mut &str) -> Result<(Vec<Node>, End), String> {
    let mut nodes = Vec::new();
    loop {
        let Some(at) = rest.find("{{") else {
            nodes.push(Node::Text((*rest).to_owned()));
            *rest = "";
            return Ok((nodes, End::File));
        };
        nodes.push(Node::Text(rest[..at].to_owned()));
        let behind = &rest[at + 2..];
        let close = end_of_action(behind).ok_or("an action without its end")?;
        let action = behind[..close].trim();
        *rest = &behind[close + 2..];
        if action == "end" {
            return Ok((nodes, End::Close));
        } else if action == "else" {
            return Ok((nodes, End::Else));
        } else if let Some(condition) = action.strip_prefix("else if ") {
            return Ok((nodes, End::ElseIf(condition.to_owned())));
        } else if let Some(condition) = action.strip_prefix("if ") {
            nodes.push(conditional(condition.to_owned(), rest)?);
        } else if let Some(range) = action.strip_prefix("range ") {
            let (names, list) = range.split_once(":=").ok_or("a range without variables")?;
            let (index, item) = names.split_once(',').ok_or("a range with one variable")?;
            let names = [index, item].map(|name| name.trim().to_owned());
            let (inside, end) = block(rest)?;
            if !matches!(end, End::Close) {
                return Err("a range without its end".to_owned());
            }
            nodes.push(Node::Range(names, list.trim().to_owned(), inside));
        } else if let Some((name, value)) = action.split_once(" := ") {
            nodes.push(Node::Declare(name.to_owned(), value.to_owned()));
        } else if let Some((name, value)) = action.split_once(" = ") {
            nodes.push(Node::Assign(name.to_owned(), value.to_owned()));
        } else {
            nodes.push(Node::Value(action.to_owned()));
        }
    }
}

/// Where an action ends, past the texts in it.
fn end_of_action(behind: &str) -> Option<usize> {
    let (mut is_text, mut is_escaped) = (false, false);
    for (at, c) in behind.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_text => is_escaped = true,
            '"' => is_text = !is_text,
            '}' if !is_text && behind[at..].starts_with("}}") => return Some(at),
            _ => {}
        }
    }
    None
}

fn conditional(condition: String, rest: &mut &str) -> Result<Node, String> {
    let mut branches = Vec::new();
    let mut condition = condition;
    loop {
        let (inside, end) = block(rest)?;
        branches.push((condition, inside));
        match end {
            End::Close => return Ok(Node::If(branches, Vec::new())),
            End::ElseIf(next) => condition = next,
            End::Else => {
                let (otherwise, end) = block(rest)?;
                return match end {
                    End::Close => Ok(Node::If(branches, otherwise)),
                    _ => Err("an else without its end".to_owned()),
                };
            }
            End::File => return Err("an if without its end".to_owned()),
        }
    }
}

fn write(
    nodes: &[Node],
    dot: &Value,
    scope: &mut Scope,
    tool: &dyn Fn(&Value) -> String,
    out: &mut String,
) -> Result<(), String> {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Value(expression) => match evaluate(expression, dot, scope)? {
                Value::Null => {}
                Value::String(text) => out.push_str(&text),
                value @ (Value::Object(_) | Value::Array(_)) => out.push_str(&tool(&value)),
                other => out.push_str(&other.to_string()),
            },
            Node::If(branches, otherwise) => {
                let mut taken = otherwise;
                for (condition, inside) in branches {
                    if is_true(&evaluate(condition, dot, scope)?) {
                        taken = inside;
                        break;
                    }
                }
                write(taken, dot, scope, tool, out)?;
            }
            Node::Declare(name, expression) => {
                let value = evaluate(expression, dot, scope)?;
                scope.push((name.clone(), value));
            }
            Node::Assign(name, expression) => {
                let value = evaluate(expression, dot, scope)?;
                let known = scope.iter_mut().rev().find(|(known, _)| known == name);
                known.ok_or(format!("{name} is not known"))?.1 = value;
            }
            Node::Range([index, item], list, inside) => {
                let Value::Array(items) = evaluate(list, dot, scope)? else { continue };
                for (number, value) in items.into_iter().enumerate() {
                    let depth = scope.len();
                    scope.push((index.clone(), number.into()));
                    scope.push((item.clone(), value.clone()));
                    write(inside, &value, scope, tool, out)?;
                    scope.truncate(depth);
                }
            }
        }
    }
    Ok(())
}

/// What Go calls true: neither zero nor empty.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// A function with its arguments, or a value.
fn evaluate(expression: &str, dot: &Value, scope: &Scope) -> Result<Value, String> {
    let words = words(expression)?;
    let [function, arguments @ ..] = &words[..] else { return Err("an empty action".to_owned()) };
    if arguments.is_empty() {
        return value(function, dot, scope);
    }
    let values = arguments.iter().map(|word| value(word, dot, scope)).collect::<Result<Vec<_>, _>>()?;
    match (function.as_str(), &values[..]) {
        ("eq", [a, b]) => Ok((a == b).into()),
        ("ne", [a, b]) => Ok((a != b).into()),
        ("not", [a]) => Ok((!is_true(a)).into()),
        ("and", [first, rest @ ..]) => {
            Ok(rest.iter().fold(first, |last, value| if is_true(last) { value } else { last }).clone())
        }
        ("len", [Value::Array(items)]) => Ok(items.len().into()),
        ("slice", [Value::Array(items), Value::Number(from)]) => {
            let from = from.as_u64().and_then(|from| usize::try_from(from).ok());
            let rest = from.and_then(|from| items.get(from..)).ok_or("a slice beyond its list")?;
            Ok(rest.to_vec().into())
        }
        _ => Err(format!("{expression} is not known")),
    }
}

/// The words of an expression; one in brackets is a word.
fn words(expression: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut depth, mut is_text) = (Vec::new(), String::new(), 0_usize, false);
    for c in expression.chars() {
        match c {
            '"' => {
                is_text = !is_text;
                word.push(c);
            }
            '(' | ')' if !is_text => {
                depth =
                    if c == '(' { depth + 1 } else { depth.checked_sub(1).ok_or("a bracket too many")? };
                word.push(c);
            }
            ' ' if !is_text && depth == 0 => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

fn value(word: &str, dot: &Value, scope: &Scope) -> Result<Value, String> {
    if let Some(inside) = word.strip_prefix('(').and_then(|word| word.strip_suffix(')')) {
        return evaluate(inside, dot, scope);
    }
    if word.starts_with('"') {
        return serde_json::from_str(word).map_err(|error| error.to_string());
    }
    if let Ok(truth) = word.parse::<bool>() {
        return Ok(truth.into());
    }
    if let Ok(number) = word.parse::<u64>() {
        return Ok(number.into());
    }
    let mut path = word.split('.');
    let root = path.next().unwrap_or_default();
    let mut found = match root {
        "" => dot,
        name => &scope.iter().rev().find(|(known, _)| known == name).ok_or(format!("{name} is not known"))?.1,
    };
    let empty = Value::Null;
    for field in path {
        found = found.as_object().and_then(|fields: &Map<String, Value>| fields.get(field)).unwrap_or(&empty);
    }
    Ok(found.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_actions_of_a_modelfile_are_those_of_go() {
        let data = json!({"System": "s", "Messages": [
            {"Role": "user", "Content": "a"},
            {"Role": "assistant", "Content": "", "ToolCalls": [{"Function": {"Name": "f", "Arguments": {"x": 1}}}]},
        ]});
        let render = |text: &str| render(text, &data, &|value| value.to_string());
        for (text, expected) in [
            ("a{{ .System }}b{{ .Missing }}", "asb"),
            ("{{ if .Tools }}t{{ else if .System }}s{{ else }}n{{ end }}", "s"),
            (
                "{{ range $i, $m := .Messages }}{{ $i }}{{ .Role }}{{ if eq .Role \"user\" }}!{{ end }}{{ $m.Content }}{{ end }}",
                "0user!a1assistant",
            ),
            (
                "{{ range $i, $_ := .Messages }}{{ if eq (len (slice $.Messages $i)) 1 }}last{{ end }}{{ end }}",
                "last",
            ),
            (
                "{{ range $i, $m := .Messages }}{{ range $n, $c := .ToolCalls }}{{ $c.Function.Arguments }}{{ end }}{{ end }}",
                "{\"x\":1}",
            ),
            (
                "{{ $f := true }}{{ range $i, $_ := .Messages }}{{ if $f }}f{{ $f = false }}{{ else }}n{{ end }}{{ end }}",
                "fn",
            ),
            ("{{ if and .System (not .Tools) (ne .System \"}}\") }}y{{ end }}", "y"),
        ] {
            assert_eq!(render(text).as_deref(), Ok(expected), "{text}");
        }
        for broken in [
            "{{ if .System }}",
            "{{ end }}",
            "{{ .System",
            "{{ printf .System }}",
            "{{ $x }}",
            "{{ $x = 1 }}",
        ] {
            assert!(render(broken).is_err(), "{broken}");
        }
    }
}
