//! Changes keys of a JSON object in place: every byte of the others stays, with the order and the spaces of whoever wrote it.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;
use serde_json::{Result, Value};

/// The text of an object with these keys set, or removed where the value is `None`. A key that has the value already stays as
/// it is written; a new one comes last.
///
/// ```
/// use oarlock_config::json_edit::edited;
///
/// let text = "{\n  \"b\": 1.50,\n  \"a\": \"right\"\n}\n";
/// let left = edited(text, &[("a", Some("left".into()))])?;
/// assert_eq!(left, "{\n  \"b\": 1.50,\n  \"a\": \"left\"\n}\n");
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
/// What is not a JSON object.
pub fn edited(text: &str, edits: &[(&str, Option<Value>)]) -> Result<String> {
    let mut text = text.to_owned();
    for (key, value) in edits {
        text = with(&text, key, value.as_ref())?;
    }
    Ok(text)
}

/// The text with one edit.
fn with(text: &str, key: &str, value: Option<&Value>) -> Result<String> {
    let values = values(text)?;
    let mut places: Vec<&Range<usize>> = values.values().collect();
    places.sort_by_key(|place| place.start);
    let replaced = |place: Range<usize>, by: &str| [&text[..place.start], by, &text[place.end..]].concat();
    // serde_json has read an object, so there is a brace.
    let open = text.find('{').map_or(0, |brace| brace + 1);
    match (values.get(key), value) {
        (None, None) => Ok(text.to_owned()),
        (Some(place), Some(value)) => {
            let is_same = serde_json::from_str::<Value>(&text[place.clone()])? == *value;
            Ok(if is_same { text.to_owned() } else { replaced(place.clone(), &value.to_string()) })
        }
        (None, Some(value)) => {
            let entry = format!("{}: {value}", Value::from(key));
            let Some(last) = places.last() else { return Ok(replaced(open..open, &entry)) };
            // As far from the brace as the first key.
            let indent = &text[open..open + text[open..].find('"').unwrap_or_default()];
            Ok(replaced(
                last.end..last.end,
                &format!(",{}{entry}", if indent.is_empty() { " " } else { indent }),
            ))
        }
        (Some(place), None) => {
            let at = places.iter().position(|other| *other == place).unwrap_or_default();
            Ok(match (at.checked_sub(1).map(|at| places[at]), places.get(at + 1)) {
                (Some(before), _) => replaced(before.end..place.end, ""),
                (None, None) => replaced(open..place.end, ""),
                // The first key goes with the comma behind it.
                (None, Some(_)) => {
                    let comma = text[place.end..].find(',').map_or(place.end, |comma| place.end + comma + 1);
                    replaced(open..comma, "")
                }
            })
        }
    }
}

/// Where the values of an object stand in its text.
fn values(text: &str) -> Result<BTreeMap<String, Range<usize>>> {
    let raw: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    // The values are slices of the text.
    let start = |value: &RawValue| value.get().as_ptr() as usize - text.as_ptr() as usize;
    Ok(raw.into_iter().map(|(key, value)| (key, start(value)..start(value) + value.get().len())).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_changes_changes() {
        let text = "{\n    \"x\":1.50 ,\"padding_side\" : \"right\",\n\t\"nested\": {\"padding_side\": \"right\", \"a\": [1,\n2]}\n}";
        let left = edited(text, &[("padding_side", Some(json!("left")))]).unwrap();
        assert_eq!(left, text.replacen("\"right\"", "\"left\"", 1));
        assert_eq!(edited(&left, &[("padding_side", Some(json!("left"))), ("y", None)]).unwrap(), left);
        assert_eq!(
            edited("{\n  \"a\": 1\n}\n", &[("b\"", Some(json!(["x"])))]).unwrap(),
            "{\n  \"a\": 1,\n  \"b\\\"\": [\"x\"]\n}\n"
        );
        assert_eq!(edited("{\"a\":1}", &[("b", Some(json!(2)))]).unwrap(), "{\"a\":1, \"b\": 2}");
        assert_eq!(edited("{ }", &[("b", Some(json!(2)))]).unwrap(), "{\"b\": 2 }");
        for text in ["[]", "1", "", "{\"a\": }"] {
            assert!(edited(text, &[("a", None)]).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_are_removed_with_their_comma() {
        let text = "{\n  \"a\": \"},{\",\n  \"b\": 2,\n  \"c\": 3\n}";
        for (key, expected) in [
            ("a", "{\n  \"b\": 2,\n  \"c\": 3\n}"),
            ("b", "{\n  \"a\": \"},{\",\n  \"c\": 3\n}"),
            ("c", "{\n  \"a\": \"},{\",\n  \"b\": 2\n}"),
        ] {
            assert_eq!(edited(text, &[(key, None)]).unwrap(), expected);
        }
        assert_eq!(edited("{\"a\": 1}", &[("a", None)]).unwrap(), "{}");
    }

    proptest::proptest! {
        /// What is set is there, what is removed is gone, and the others are as they were.
        #[test]
        fn an_edited_object_has_the_edits(
            keys in proptest::collection::vec("[a-c\\\\\"é]{0,2}", 0..5),
            spaces in "[ \n\t]{0,3}",
            key in "[a-c\\\\\"é]{0,2}",
            removes in proptest::bool::ANY,
        ) {
            let mut expected = serde_json::Map::new();
            keys.iter().enumerate().for_each(|(i, key)| drop(expected.insert(key.clone(), json!([i, {"a": "}"}]))));
            let entries: Vec<String> =
                expected.iter().map(|(k, v)| format!("{spaces}{}{spaces}:{v}{spaces}", json!(k))).collect();
            let text = format!("{spaces}{{{}}}{spaces}", entries.join(","));
            let value = (!removes).then(|| json!("new"));
            match value.clone() {
                Some(value) => drop(expected.insert(key.clone(), value)),
                None => drop(expected.shift_remove(&key)),
            }
            let found: Value = serde_json::from_str(&edited(&text, &[(&key, value)]).unwrap()).unwrap();
            proptest::prop_assert_eq!(found.as_object().unwrap(), &expected);
        }
    }
}
