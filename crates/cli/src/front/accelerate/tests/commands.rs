//! Every flag of the small commands, against those that the original lists.

use super::super::command::parse;
use super::super::*;
use crate::config::flags::{Flags, assert_abbreviations};
use crate::config::keys::ValueType;

/// A value that a flag of this kind takes.
fn value(kind: ValueType) -> Option<&'static str> {
    match kind {
        ValueType::Bool => None,
        ValueType::Choice(names) => Some(names[0]),
        ValueType::List => Some("float32"),
        _ => Some("x"),
    }
}

const COMMANDS: [(&str, &Flags); 8] = [
    ("config", &questionnaire::CONFIG),
    ("config default", &questionnaire::DEFAULT),
    ("config update", &questionnaire::UPDATE),
    ("env", &env::ENV),
    ("test", &test::FLAGS),
    ("estimate-memory", &estimate_memory::FLAGS),
    ("merge-weights", &merge_weights::FLAGS),
    ("to-fsdp2", &to_fsdp2::FLAGS),
];

#[test]
fn flags_are_cut_short_as_in_the_original() {
    for (name, flags) in COMMANDS.into_iter().chain([("launch", &launch::LAUNCH)]) {
        assert_abbreviations(flags, &format!("accelerate {name}"));
    }
}

#[test]
fn every_flag_of_the_original_is_known() {
    let golden = golden();
    assert_eq!(golden["flags"].as_object().unwrap().len(), COMMANDS.len());
    for (name, flags) in COMMANDS {
        for flag in golden["flags"][name].as_array().unwrap() {
            let flag = flag.as_str().unwrap();
            let key = flags.keys.iter().find(|key| format!("--{}", key.name) == flag);
            if matches!(flag, "--help" | "-h") {
                let parsed = flags.parse(&Words::new(&[flag.to_owned()]), &mut Problems::default());
                assert!(parsed.help, "{name} {flag}");
                continue;
            }
            let key = key.unwrap_or_else(|| panic!("`accelerate {name}` has no {flag}"));
            for spelling in [flag.to_owned(), format!("--{}", key.name.replace('_', "-"))] {
                let mut problems = Problems::default();
                let words: Vec<String> = [Some(spelling), value(key.value_type).map(str::to_owned)]
                    .into_iter()
                    .flatten()
                    .collect();
                let parsed = flags.parse(&Words::new(&words), &mut problems);
                assert!(problems.is_empty(), "{name} {flag}: {problems}");
                assert!(parsed.settings.setting(key).is_written(), "{name} {flag}");
            }
        }
    }
}

#[test]
fn flags_and_operands_stand_in_any_order() {
    for line in [
        "model --dtypes float16 int8 --trust_remote_code",
        "--dtypes float16,int8 --trust-remote-code model",
        "--trust_remote_code --dtypes=float16,int8 -- model",
    ] {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let Ok(Some(parsed)) = parse(&estimate_memory::FLAGS, &Words::new(&words), 1) else {
            panic!("{line}");
        };
        assert_eq!(parsed.rest.to_vec(), ["model"], "{line}");
        assert_eq!(parsed.settings.get(estimate_memory::DTYPES).join(", "), "float16, int8", "{line}");
        assert!(parsed.settings.get(estimate_memory::TRUST_REMOTE_CODE), "{line}");
    }
}
