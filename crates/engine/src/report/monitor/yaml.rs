//! Values as YAML 1.1, for readers that go by it, such as PyYAML.

use serde_json::{Value, json};

/// A value as YAML in one line.
pub(super) fn in_yaml(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(values) => format!("[{}]", joined(values.iter().map(in_yaml).collect())),
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}: {}", scalar_in_yaml(&json!(key)), in_yaml(value))
            };
            format!("{{{}}}", joined(map.iter().map(entry).collect()))
        }
        value => scalar_in_yaml(value),
    }
}

/// JSON is YAML, except that in YAML 1.1 a number with an exponent needs a point and a sign, and some characters are not to
/// stand as they are.
pub(super) fn scalar_in_yaml(value: &Value) -> String {
    let text = value.to_string();
    if value.is_number() {
        let Some((digits, exponent)) = text.split_once('e') else { return text };
        let point = if digits.contains('.') { "" } else { ".0" };
        let sign = if exponent.starts_with('-') { "" } else { "+" };
        return format!("{digits}{point}e{sign}{}", exponent.trim_start_matches('+'));
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let code = u32::from(c);
        match c.is_control() || matches!(code, 0x2028 | 0x2029 | 0xfeff) || code & 0xfffe == 0xfffe {
            true => out.push_str(&format!("\\U{code:08x}")),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_yaml_as_pythons_reader_takes_it() {
        let shown = |value: Value| in_yaml(&value);
        assert_eq!(
            shown(json!([1e-7, 1e16, 1.5e-7, 0.1, 3, true, null])),
            "[1.0e-7, 1.0e+16, 1.5e-7, 0.1, 3, true, null]"
        );
        assert_eq!(shown(json!({"a b": "x: 'y'", "c": []})), "{\"a b\": \"x: 'y'\", \"c\": []}");
        assert_eq!(
            shown(json!("é中\u{7f}\u{85}\u{2028}\n\"")),
            "\"é中\\U0000007f\\U00000085\\U00002028\\n\\\"\""
        );
    }
}
