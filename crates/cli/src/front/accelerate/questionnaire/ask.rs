//! Goes through the questions: asks each one that the answers so far call for, and reads its answer.

use std::path::Path;

use serde_json::Value;

use super::answers::Answers;
use super::item::{AnswerType, Item};
use super::prompter::{PromptError, Prompter};
use crate::front::accelerate::cluster::expand_home;
use crate::front::variable::env_var;

/// Asks all questions that the answers call for.
pub fn ask_all(
    items: &'static [Item],
    prompter: &mut dyn Prompter,
    answers: &mut Answers,
) -> Result<(), PromptError> {
    for item in items {
        match *item {
            Item::Ask { key, text, answer_type } => {
                let value = answer(answer_type, text, prompter, answers)?;
                answers.insert(key, value);
            }
            Item::When(condition, items) => {
                if condition(answers) {
                    ask_all(items, prompter, answers)?;
                }
            }
            Item::Set(key, value) => answers.insert(key, value.value()),
            Item::Join(key, of) => {
                let truths = of.iter().map(|key| Value::Bool(answers.yes(key))).collect();
                answers.insert(key, truths);
            }
            Item::Repeat { key, text, again } => {
                let mut values = Vec::new();
                loop {
                    values.push(answer(AnswerType::Words(None), text, prompter, answers)?);
                    if answer(AnswerType::YesNo(false), again, prompter, answers)? == Value::Bool(false) {
                        break;
                    }
                }
                answers.insert(key, Value::Array(values));
            }
            Item::Stop(why) => return Err(PromptError::Refused(why)),
        }
    }
    Ok(())
}

/// Asks until the answer is of the expected type.
fn answer(
    answer_type: AnswerType,
    text: &str,
    prompter: &mut dyn Prompter,
    answers: &Answers,
) -> Result<Value, PromptError> {
    let text = text.replace("{devices}", &answers.devices());
    match answer_type {
        AnswerType::Menu(choices, default) => {
            let shown: Vec<&str> = choices.iter().map(|choice| choice.shown).collect();
            let chosen = prompter.select(&text, &shown, default)?;
            return Ok(choices.get(chosen).map_or(Value::Null, |choice| choice.value.value()));
        }
        AnswerType::Below(of) => {
            /// More lines than a screen has are no menu.
            const LINES: i64 = 20;
            let n = answers.int(of);
            if n > LINES {
                return answer(
                    AnswerType::Whole { default: Some(0), least: 0, most: n - 1 },
                    &text,
                    prompter,
                    answers,
                );
            }
            let numbers: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            let shown: Vec<&str> = numbers.iter().map(String::as_str).collect();
            return Ok(Value::from(prompter.select(&text, &shown, 0)?));
        }
        _ => {}
    }
    loop {
        let answer_text = prompter.input(&format!("{text}{} ", hint(answer_type)))?;
        match read(answer_type, &answer_text) {
            Ok(value) => return Ok(value),
            Err(expected) => prompter.message(&format!("please answer with {expected}"))?,
        }
    }
}

/// What nothing stands for.
fn hint(answer_type: AnswerType) -> String {
    match answer_type {
        AnswerType::YesNo(true) => " [YES/no]".to_owned(),
        AnswerType::YesNo(false) => " [yes/NO]".to_owned(),
        AnswerType::Words(Some(default)) | AnswerType::FromHome(default) => format!(" [{default}]"),
        AnswerType::Whole { default: Some(default), .. } => format!(" [{default}]"),
        AnswerType::Real(default) => format!(" [{default:?}]"),
        _ => String::new(),
    }
}

/// The value of an answer, or what is expected instead.
fn read(answer_type: AnswerType, answer_text: &str) -> Result<Value, String> {
    match answer_type {
        AnswerType::YesNo(default) => match answer_text.to_lowercase().as_str() {
            "" => Ok(Value::Bool(default)),
            "yes" | "y" => Ok(Value::Bool(true)),
            "no" | "n" => Ok(Value::Bool(false)),
            _ => Err("yes or no".to_owned()),
        },
        AnswerType::Words(default) => {
            Ok(Value::from(if answer_text.is_empty() { default.unwrap_or_default() } else { answer_text }))
        }
        AnswerType::Pieces => Ok(answer_text.split(',').map(Value::from).collect()),
        AnswerType::FromHome(default) => {
            let path = if answer_text.is_empty() { default } else { answer_text.trim() };
            Ok(Value::from(expand_home(Path::new(path), &env_var).display().to_string()))
        }
        AnswerType::Absolute => {
            let path = std::path::absolute(answer_text).map_err(|_| "the path of a file".to_owned())?;
            Ok(Value::from(path.display().to_string()))
        }
        AnswerType::Whole { default: Some(default), .. } if answer_text.is_empty() => {
            Ok(Value::from(default))
        }
        AnswerType::Whole { least, most, .. } => {
            match plain_number(answer_text).and_then(|digits| digits.parse::<i64>().ok()) {
                Some(number) if (least..=most).contains(&number) => Ok(Value::from(number)),
                _ if most == i64::MAX => Err(format!("a whole number, at least {least}")),
                _ => Err(format!("a whole number from {least} to {most}")),
            }
        }
        AnswerType::Real(default) if answer_text.is_empty() => Ok(Value::from(default)),
        AnswerType::Real(_) => {
            match plain_number(answer_text).and_then(|digits| digits.parse::<f64>().ok()) {
                Some(number) if number.is_finite() => Ok(Value::from(number)),
                _ => Err("a number".to_owned()),
            }
        }
        // Chosen by number, above.
        AnswerType::Menu(..) | AnswerType::Below(_) => Err("the number of a choice".to_owned()),
    }
}

/// A number without the blanks around it and the `_` between its digits.
fn plain_number(answer_text: &str) -> Option<String> {
    let answer_text = answer_text.trim();
    let loose = answer_text.starts_with('_') || answer_text.ends_with('_') || answer_text.contains("__");
    (!loose && !answer_text.is_empty()).then(|| answer_text.replace('_', ""))
}
