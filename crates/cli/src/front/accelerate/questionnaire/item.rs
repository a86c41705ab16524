//! The steps of the questionnaire, and short constructors for its table.

use super::answers::Answers;
use crate::front::accelerate::cluster::Literal;

/// A step of the questionnaire.
pub enum Item {
    /// A question; its answer is the value of the key.
    Ask {
        /// The key.
        key: &'static str,
        /// The question.
        text: &'static str,
        /// What an answer may be.
        answer_type: AnswerType,
    },
    /// Further steps, where the answers so far call for them.
    When(fn(&Answers) -> bool, &'static [Item]),
    /// A value without a question.
    Set(&'static str, Literal),
    /// The truths of several keys as one list.
    Join(&'static str, &'static [&'static str]),
    /// A question that is repeated until the list is complete.
    Repeat {
        /// The key of the list.
        key: &'static str,
        /// The question.
        text: &'static str,
        /// Whether there is another one.
        again: &'static str,
    },
    /// The answers contradict each other, or ask for what is not supported.
    Stop(&'static str),
}

/// What an answer may be.
#[derive(Clone, Copy)]
pub enum AnswerType {
    /// Yes or no.
    YesNo(bool),
    /// Any words; nothing stands for the default.
    Words(Option<&'static str>),
    /// Words at commas.
    Pieces,
    /// A path, where `~` is the home folder; nothing stands for the default.
    FromHome(&'static str),
    /// A path, which is kept from the root on.
    Absolute,
    /// A whole number, at least and at most; nothing stands for the default.
    Whole {
        /// The default.
        default: Option<i64>,
        /// At least.
        least: i64,
        /// At most.
        most: i64,
    },
    /// A number; nothing stands for the default.
    Real(f64),
    /// One of these, and the number of the default.
    Menu(&'static [Choice], usize),
    /// A number below the value of a key.
    Below(&'static str),
}

/// A line of a menu.
pub struct Choice {
    /// What is shown.
    pub shown: &'static str,
    /// What it means.
    pub value: Literal,
}

/// A choice that is called by its value.
pub const fn named(word: &'static str) -> Choice {
    Choice { shown: word, value: Literal::Text(word) }
}

/// A choice with a name of its own.
pub const fn call(shown: &'static str, word: &'static str) -> Choice {
    Choice { shown, value: Literal::Text(word) }
}

/// A choice that means a number.
pub const fn number(shown: &'static str, value: i64) -> Choice {
    Choice { shown, value: Literal::Int(value) }
}

/// One of several.
pub const fn menu(key: &'static str, text: &'static str, choices: &'static [Choice], default: usize) -> Item {
    ask(key, text, AnswerType::Menu(choices, default))
}

/// Yes unless denied.
pub const fn yes(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::YesNo(true))
}

/// No unless affirmed.
pub const fn no(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::YesNo(false))
}

/// Words with a default.
pub const fn word(key: &'static str, text: &'static str, default: &'static str) -> Item {
    ask(key, text, AnswerType::Words(Some(default)))
}

/// Words without a default.
pub const fn words(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::Words(None))
}

/// Words at commas.
pub const fn pieces(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::Pieces)
}

/// A path that may begin at the home folder.
pub const fn from_home(key: &'static str, text: &'static str, default: &'static str) -> Item {
    ask(key, text, AnswerType::FromHome(default))
}

/// A path that is kept from the root on.
pub const fn absolute(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::Absolute)
}

/// A number of things of which there is at least one.
pub const fn count(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::Whole { default: Some(1), least: 1, most: i64::MAX })
}

/// A whole number.
pub const fn whole(key: &'static str, text: &'static str, default: i64) -> Item {
    ask(key, text, AnswerType::Whole { default: Some(default), least: 0, most: i64::MAX })
}

/// A port; there is none by default.
pub const fn port(key: &'static str, text: &'static str) -> Item {
    ask(key, text, AnswerType::Whole { default: None, least: 0, most: u16::MAX as i64 })
}

/// Which of as many as a key says.
pub const fn rank(key: &'static str, text: &'static str, of: &'static str) -> Item {
    ask(key, text, AnswerType::Below(of))
}

/// A number.
pub const fn real(key: &'static str, text: &'static str, default: f64) -> Item {
    ask(key, text, AnswerType::Real(default))
}

/// A question.
pub const fn ask(key: &'static str, text: &'static str, answer_type: AnswerType) -> Item {
    Item::Ask { key, text, answer_type }
}
