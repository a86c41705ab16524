//! Values as people write them in YAML.

use std::sync::Arc;

use oarlock::settings::keys::{Kind, Range};
use oarlock::settings::source::{Place, Source, SourceKind};
use oarlock::settings::value::read;

use crate::config::yaml::parse_inside;

fn shown(kind: Kind, text: &str) -> Option<String> {
    let source =
        Arc::new(Source { kind: SourceKind::File, name: "t.yaml".to_owned(), text: text.to_owned() });
    let place = Place { source, bytes: 0..text.len() };
    read(kind, &parse_inside(text, &place).unwrap()).map(|value| value.to_string())
}

#[test]
fn values_are_read_as_people_write_them() {
    let any = Kind::Float(Range::Any);
    for (kind, text, expected) in [
        (any, "5e-4", Some("5e-4")),
        (any, "1.0e-4", Some("1e-4")),
        (any, "'1e-4'", Some("1e-4")),
        (any, "1_000.5", Some("1000.5")),
        (any, ".5", Some("0.5")),
        (any, "inf", None),
        (any, "nan", None),
        (any, "fast", None),
        (any, "[1]", None),
        (Kind::Float(Range::Positive), "0", None),
        (Kind::Float(Range::BelowOne), "1", None),
        (Kind::Float(Range::Share), "1", Some("1")),
        (Kind::Int(1), "8.0", Some("8")),
        (Kind::Int(1), "1e3", Some("1000")),
        (Kind::Int(1), "\"8\"", Some("8")),
        (Kind::Int(1), "0", None),
        (Kind::Int(1), "1.5", None),
        (Kind::Int(0), "9007199254740993", Some("9007199254740993")),
        (Kind::Bool, "yes", Some("true")),
        (Kind::Bool, "Off", Some("false")),
        (Kind::Bool, "2", None),
        (Kind::Steps, "0.1", Some("0.1")),
        (Kind::Steps, "10", Some("10")),
        (Kind::Steps, "1.5", None),
        (Kind::Steps, "-1", None),
        (Kind::Text, "3", Some("3")),
        (Kind::Text, "~", Some("-")),
        (Kind::Text, "''", Some("-")),
        (Kind::Path, "~/model", Some("~/model")),
        (Kind::BoolOrPath, "true", Some("true")),
        (Kind::BoolOrPath, "out/checkpoint-5", Some("out/checkpoint-5")),
        (Kind::Choice(&["a", "b"]), "b", Some("b")),
        (Kind::Choice(&["a", "b"]), "c", None),
        (Kind::List, "a, b,", Some("a, b")),
        (Kind::List, "[a, b]", Some("a, b")),
        (Kind::List, "{a: b}", None),
        (Kind::Map, "{a: 1, b: x}", Some("{a: 1, b: x}")),
        (Kind::Map, "'{\"a\": 1}'", Some("{a: 1}")),
        (Kind::Map, "a", None),
        (Kind::Map, "'{a: 1'", None),
    ] {
        assert_eq!(shown(kind, text).as_deref(), expected, "{text} as {kind:?}");
    }
}
