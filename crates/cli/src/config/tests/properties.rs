//! No text and no value makes reading a configuration panic.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn no_text_panics(text in "(\\PC|[\\n\\t:\\[\\]{}#'\"&*?|>-]){0,200}", words in proptest::collection::vec("\\PC{0,20}", 0..4)) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Err(problems) = train(&text, &words, &[]) {
            prop_assert!(!render::render(&problems, true, 80).is_empty());
        }
    }

    #[test]
    fn no_value_of_a_key_panics(
        i in 0..table::KEYS.len(),
        value in "([0-9eE.+_-]{1,12}|\\PC{0,20}|\\{[a-z_]{0,9}: [0-9.e-]{0,9}\\})",
        schedule in proptest::sample::select(oarlock_config::config::table::SCHEDULES),
    ) {
        let text = format!("{MINIMUM}lr_scheduler_type: {schedule}\nlearning_rate: 0\n{}: {value}\n", table::KEYS[i].name);
        match train(&text, &[], &[]) {
            Ok(config) => prop_assert!(train(&config.as_yaml(), &[], &[]).is_ok(), "{}", config.as_yaml()),
            Err(problems) => prop_assert!(!problems.to_string().is_empty()),
        }
    }
}
