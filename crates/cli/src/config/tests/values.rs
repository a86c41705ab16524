//! Values as people write them in YAML.

use std::sync::Arc;

use oarlock_config::settings::keys::{Range, ValueType};
use oarlock_config::settings::location::{Location, SourceText, ValueSource};
use oarlock_config::settings::value::read;

use super::*;

use crate::config::yaml::parse_inside;

fn shown(value_type: ValueType, text: &str) -> Option<String> {
    let source = Arc::new(SourceText {
        read_from: ValueSource::File,
        name: "t.yaml".to_owned(),
        text: text.to_owned(),
        words: Vec::new(),
    });
    let location = Location { source, bytes: 0..text.len() };
    read(value_type, &parse_inside(text, &location).unwrap()).map(|value| value.to_string())
}

#[test]
fn values_are_read_as_people_write_them() {
    let any = ValueType::Float(Range::Any);
    for (value_type, text, expected) in [
        (any, "5e-4", Some("5e-4")),
        (any, "1.0e-4", Some("1e-4")),
        (any, "'1e-4'", Some("1e-4")),
        (any, "1_000.5", Some("1000.5")),
        (any, ".5", Some("0.5")),
        (any, "inf", None),
        (any, "nan", None),
        (any, "fast", None),
        (any, "[1]", None),
        (ValueType::Float(Range::Positive), "0", None),
        (ValueType::Float(Range::BelowOne), "1", None),
        (ValueType::Float(Range::Share), "1", Some("1")),
        (ValueType::Int(1), "8.0", Some("8")),
        (ValueType::Int(1), "1e3", Some("1000")),
        (ValueType::Int(1), "\"8\"", Some("8")),
        (ValueType::Int(1), "0", None),
        (ValueType::Int(1), "1.5", None),
        (ValueType::Int(0), "9007199254740993", Some("9007199254740993")),
        (ValueType::Bool, "yes", Some("true")),
        (ValueType::Bool, "Off", Some("false")),
        (ValueType::Bool, "2", None),
        (ValueType::Steps, "0.1", Some("0.1")),
        (ValueType::Steps, "10", Some("10")),
        (ValueType::Steps, "1.5", None),
        (ValueType::Steps, "-1", None),
        (ValueType::Text, "3", Some("3")),
        (ValueType::Text, "~", Some("-")),
        (ValueType::Text, "''", Some("-")),
        (ValueType::Path, "~/model", Some("~/model")),
        (ValueType::BoolOrPath, "true", Some("true")),
        (ValueType::BoolOrPath, "out/checkpoint-5", Some("out/checkpoint-5")),
        (ValueType::Choice(&["a", "b"]), "b", Some("b")),
        (ValueType::Choice(&["a", "b"]), "c", None),
        (ValueType::List, "a, b,", Some("a, b")),
        (ValueType::List, "[a, b]", Some("a, b")),
        (ValueType::List, "{a: b}", None),
        (ValueType::Map, "{a: 1, b: x}", Some("{a: 1, b: x}")),
        (ValueType::Map, "'{\"a\": 1}'", Some("{a: 1}")),
        (ValueType::Map, "a", None),
        (ValueType::Map, "'{a: 1'", None),
    ] {
        assert_eq!(shown(value_type, text).as_deref(), expected, "{text} as {value_type:?}");
    }
}

#[test]
fn tf32_is_for_gpus_and_the_cpu_is_told_so() {
    let of = |words: &str| {
        let arguments = written::text_of_file("t.yaml", format!("{MINIMUM}{words}")).unwrap();
        let config = train_config_of(vec![arguments], &|_| None).unwrap();
        let reported: Vec<_> =
            config.without_effect().map(|(setting, why)| (setting.key.name, why)).collect();
        (config.values.train.tf32, reported)
    };
    assert_eq!(of("device: cuda\ntf32: true\n"), (true, vec![]));
    assert_eq!(
        of("device: cpu\ntf32: true\n"),
        (true, vec![("tf32", "products of f32 are in f32 on the CPU")])
    );
    assert_eq!(of("device: cpu\ntf32: false\n"), (false, vec![]));
    assert!(!of("device: cpu\n").0, "as torch, where nobody says so");
}
