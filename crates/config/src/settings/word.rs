//! Words without quotes: which of them are numbers or truths, and how values are written as words.

/// The booleans of YAML 1.1 and of Hugging Face's argument parser.
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "t" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "f" | "0" => Some(false),
        _ => None,
    }
}

/// A finite number; YAML allows `_` between digits.
pub fn float(text: &str) -> Option<f64> {
    let text = text.replace('_', "");
    if !text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E')) {
        return None;
    }
    text.parse().ok().filter(|x: &f64| x.is_finite())
}

/// A whole number, also one such as `1e8`.
pub fn whole(text: &str) -> Option<i64> {
    // Above 2^53 a float is no longer exact, so whole numbers are tried first.
    text.replace('_', "")
        .parse()
        .ok()
        .or_else(|| float(text).filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64))
}

/// A number as people write it: `0.0005`, `5e-5`, `3`.
pub fn number(x: f64) -> String {
    if x != 0.0 && (x.abs() < 1e-3 || x.abs() >= 1e7) { format!("{x:e}") } else { format!("{x}") }
}

/// Words in double quotes where YAML could take them for something else. JSON's escapes are YAML's.
pub fn quoted(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.' | '_'))
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+'))
        && boolean(text).is_none()
        && float(text).is_none()
        && !matches!(text.to_ascii_lowercase().as_str(), "null" | "nan" | "inf");
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
