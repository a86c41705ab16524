//! Values as the originals' reader of YAML (version 1.1) takes plain words, and as Python shows them.

use std::sync::LazyLock;

use fancy_regex::Regex;
use serde_json::Value;

use oarlock_engine::report::python::repr;

/// Whole numbers, in base 2, 8, 10, 16 and 60.
static INT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let forms =
        ["0b[0-1_]+", "0[0-7_]+", "0|[1-9][0-9_]*", "0x[0-9a-fA-F_]+", "[1-9][0-9_]*(?::[0-5]?[0-9])+"];
    Regex::new(&format!("^[-+]?(?:{})$", forms.join("|"))).ok()
});

/// Numbers with a point. Without one, `1e5` is a word.
static FLOAT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let forms = [
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?",
        r"\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?",
        r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*",
        r"[-+]?\.(?:inf|Inf|INF)",
        r"\.(?:nan|NaN|NAN)",
    ];
    Regex::new(&format!("^(?:{})$", forms.join("|"))).ok()
});

/// Days, and moments of a day.
static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let moment = r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?";
    let zone = r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?";
    Regex::new(&format!(r"^(?:[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}|{moment}{zone})$")).ok()
});

fn matches(form: &LazyLock<Option<Regex>>, text: &str) -> bool {
    form.as_ref().is_some_and(|form| form.is_match(text).unwrap_or(false))
}

/// Whether a plain word is text and nothing else.
pub fn is_text(text: &str) -> bool {
    let word = boolean(text).is_some() || matches!(text, "" | "~" | "null" | "Null" | "NULL" | "=" | "<<");
    !(word || matches(&INT, text) || matches(&FLOAT, text) || matches(&TIME, text))
}

/// What a plain word means. Days stay text, and so do numbers that have no place in 64 bits.
pub fn resolve(text: &str) -> Value {
    if let Some(truth) = boolean(text) {
        return Value::Bool(truth);
    }
    let number = || match () {
        () if matches(&INT, text) => int(text).map(Value::from),
        () if matches(&FLOAT, text) => float(text).map(Value::from),
        () => None,
    };
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        _ => number().unwrap_or_else(|| Value::from(text)),
    }
}

fn boolean(text: &str) -> Option<bool> {
    let cased = |word: &str| {
        let mut letters = word.chars();
        let capital = letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str());
        text == word || text == word.to_ascii_uppercase() || capital.as_deref() == Some(text)
    };
    let any = |words: [&str; 3]| words.into_iter().any(cased);
    match (any(["yes", "true", "on"]), any(["no", "false", "off"])) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

fn sign(text: &str) -> (i64, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn int(text: &str) -> Option<i64> {
    let text = text.replace('_', "");
    let (sign, digits) = sign(&text);
    let based = |digits, base| i64::from_str_radix(digits, base).ok();
    let value = match digits {
        _ if digits.starts_with("0b") => based(&digits[2..], 2),
        _ if digits.starts_with("0x") => based(&digits[2..], 16),
        _ if digits.contains(':') => {
            digits.split(':').try_fold(0i64, |sum, part| sum.checked_mul(60)?.checked_add(part.parse().ok()?))
        }
        _ if digits.starts_with('0') => based(digits, 8),
        _ => based(digits, 10),
    };
    value.map(|value| sign * value)
}

fn float(text: &str) -> Option<f64> {
    let text = text.replace('_', "");
    let (sign, digits) = sign(&text);
    let value = digits.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))?;
    value.is_finite().then_some(sign as f64 * value)
}

/// A value as Python shows it to the reader of a program's data.
pub fn python(value: &Value) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(truth) => if *truth { "True" } else { "False" }.to_owned(),
        Value::Number(number) => number_text(number),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(python).collect())),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| format!("{}: {}", quoted(key), python(value)));
            format!("{{{}}}", joined(pairs.collect()))
        }
    }
}

/// A number as Python shows it.
pub fn number_text(number: &serde_json::Number) -> String {
    match (number.is_f64(), number.as_f64()) {
        (true, Some(x)) => repr(x),
        _ => number.to_string(),
    }
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', quote]),
            _ if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_words_mean_what_yaml_1_1_says() {
        let cases = [
            ("no", json!(false)),
            ("On", json!(true)),
            ("oN", json!("oN")),
            ("~", json!(null)),
            ("010", json!(8)),
            ("08", json!("08")),
            ("-0x1F", json!(-31)),
            ("29_500", json!(29500)),
            ("1:30", json!(90)),
            ("1:30.5", json!(90.5)),
            ("1e5", json!("1e5")),
            ("1.e+2", json!(100.0)),
            ("192.168.0.1", json!("192.168.0.1")),
            (".inf", json!(".inf")),
            ("99999999999999999999", json!("99999999999999999999")),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve(text), expected, "{text}");
        }
    }
}
