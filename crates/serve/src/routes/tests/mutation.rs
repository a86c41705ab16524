//! Damage to requests: fields that are gone, doubled, of another type or of another request, and texts that are cut.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use super::ROUTES;

/// One change of a request. An index is a value in it, or a byte of its text.
#[derive(Clone, Debug)]
pub enum Damage {
    Remove(Index),
    Replace(Index, String),
    /// A field is there twice, the second time with this value.
    Double(Index, String),
    /// A value of another request comes in its place.
    Exchange(Index, Index, Index),
    Byte(Index, u8),
    Cut(Index),
}

/// Values that stand where others are expected, as they are written. Some are no JSON.
const ODD: [&str; 44] = [
    "null",
    "true",
    "false",
    "-1",
    "0",
    "1",
    "2",
    "-0",
    "-0.0",
    "0.1",
    "3.0",
    "1e-46",
    "5e-324",
    "1e308",
    "-1e400",
    "1e400",
    "9007199254740993",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999",
    "NaN",
    "Infinity",
    "-inf",
    "0x10",
    "01",
    "+1",
    "\"\"",
    "\"NaN\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\\u0000\"",
    "\"\u{feff}\u{202e}\"",
    "\"<t>\"",
    "\"<c>\"",
    "'a'",
    "[]",
    "{}",
    "[[]]",
    "{\"a\":1}",
    "{\"a\":1,\"a\":2}",
    "[null]",
];

fn odd() -> impl Strategy<Value = String> {
    let known = (0..ODD.len()).prop_map(|at| ODD[at].to_owned());
    let word = "\\PC{0,8}".prop_map(|text| Value::from(text).to_string());
    let digits = "-?[1-9][0-9]{0,400}(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,5})?";
    let deep = (1_usize..200, any::<bool>()).prop_map(|(n, is_list)| {
        let (open, close) = if is_list { ("[", "]") } else { ("{\"a\":", "}") };
        format!("{}0{}", open.repeat(n), close.repeat(n))
    });
    let wide = (1_usize..3000).prop_map(|n| format!("[{}0]", "0,".repeat(n)));
    let long = (1_usize..20_000).prop_map(|n| format!("\"{}\"", "é".repeat(n)));
    prop_oneof![60 => known, 10 => word, 10 => digits, 4 => deep, 1 => wide, 1 => long]
}

/// A few changes, in this order.
pub fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let index = any::<Index>;
    let damage = prop_oneof![
        2 => index().prop_map(Damage::Remove),
        6 => (index(), odd()).prop_map(|(at, odd)| Damage::Replace(at, odd)),
        2 => (index(), odd()).prop_map(|(at, odd)| Damage::Double(at, odd)),
        3 => (index(), index(), index()).prop_map(|(at, route, from)| Damage::Exchange(at, route, from)),
        1 => (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        1 => index().prop_map(Damage::Cut),
    ];
    proptest::collection::vec(damage, 1..4)
}

/// Stands in a name that is there twice, and is taken out at the end: an object of `serde_json` has each name once.
const TWICE: &str = "\u{2}";

/// The text of a request after its damage.
pub fn damaged(route: usize, damages: &[Damage]) -> Vec<u8> {
    let mut value = request(route);
    // What may be no JSON is put in at the end, where a string holds its place.
    let mut odds: Vec<&str> = Vec::new();
    for damage in damages {
        let places = places(&value);
        let place = |at: &Index| places[at.index(places.len())].as_str();
        let mut held = |odd| {
            odds.push(odd);
            Value::from(format!("\u{1}{}\u{1}", odds.len() - 1))
        };
        match damage {
            Damage::Remove(at) => remove(&mut value, place(at)),
            Damage::Replace(at, odd) => put(&mut value, place(at), held(odd)),
            Damage::Double(at, odd) => double(&mut value, place(at), held(odd)),
            Damage::Exchange(at, route, from) => {
                let other = request(route.index(ROUTES.len()));
                let pointers = self::places(&other);
                let part = other.pointer(&pointers[from.index(pointers.len())]).cloned().unwrap_or_default();
                put(&mut value, place(at), part);
            }
            Damage::Byte(..) | Damage::Cut(_) => {}
        }
    }
    let mut text = value.to_string().replace("\\u0002", "");
    for (number, odd) in odds.iter().enumerate() {
        text = text.replace(&format!("\"\\u0001{number}\\u0001\""), odd);
    }
    let mut bytes = text.into_bytes();
    for damage in damages {
        match damage {
            Damage::Byte(at, byte) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Cut(at) if !bytes.is_empty() => bytes.truncate(at.index(bytes.len())),
            _ => {}
        }
    }
    bytes
}

fn request(route: usize) -> Value {
    serde_json::from_str(ROUTES[route].1).unwrap()
}

/// The JSON pointers of all values in a value, the value itself first.
fn places(value: &Value) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut inside = |name: &str, value: &Value| {
        let name = name.replace('~', "~0").replace('/', "~1");
        found.extend(places(value).iter().map(|place| format!("/{name}{place}")));
    };
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(at, value)| inside(&at.to_string(), value)),
        Value::Object(object) => object.iter().for_each(|(name, value)| inside(name, value)),
        _ => {}
    }
    found
}

fn put(value: &mut Value, place: &str, new: Value) {
    if let Some(old) = value.pointer_mut(place) {
        *old = new;
    }
}

/// The value around a place, and the name of the place in it; none around the whole.
fn around<'a>(value: &'a mut Value, place: &str) -> Option<(&'a mut Value, String)> {
    let (outer, name) = place.rsplit_once('/')?;
    Some((value.pointer_mut(outer)?, name.replace("~1", "/").replace("~0", "~")))
}

fn remove(value: &mut Value, place: &str) {
    match around(value, place) {
        Some((Value::Object(object), name)) => drop(object.remove(&name)),
        Some((Value::Array(list), name)) => drop(list.remove(name.parse().unwrap())),
        _ => {}
    }
}

fn double(value: &mut Value, place: &str, again: Value) {
    match around(value, place) {
        Some((Value::Object(object), name)) => drop(object.insert(name + TWICE, again)),
        Some((Value::Array(list), _)) => list.push(again),
        _ => {}
    }
}
