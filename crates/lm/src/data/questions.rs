//! Questions with a choice of answers, in folders as MMLU, C-Eval and CMMLU have them, and how a model is asked them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oarlock_config::json;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::example::{Conversation, Message};
use super::source::csv_rows;

/// The letters of answers.
pub const CHOICES: [&str; 4] = ["A", "B", "C", "D"];

/// The questions of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// What its files are called.
    pub id: String,
    /// Its name in prompts.
    pub name: String,
    /// The group that it counts in.
    pub category: String,
    /// Questions that are shown with their answers.
    pub shots: Vec<Question>,
    /// Those that are asked.
    pub questions: Vec<Question>,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked.
    pub text: String,
    /// The answers to choose from, in the order of their letters.
    pub choices: [String; 4],
    /// The letter of the right one; empty where the files keep it to themselves.
    pub answer: String,
}

/// The language of a task, which decides the words around its questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// English.
    #[default]
    English,
    /// Chinese.
    Chinese,
}

/// What `mapping.json` says of a subject.
#[derive(Deserialize)]
struct Named {
    name: String,
    category: String,
}

/// The subjects of a task such as `mmlu_test`: those that `mapping.json` lists in the folder `mmlu` of `dir`, with the
/// files `NAME_test.csv` or `NAME.csv` in `data/test` or `test`, and shots in `dev`.
///
/// # Errors
/// A task of another form, a file that is missing or broken, with its line.
pub fn subjects(dir: &Path, task: &str) -> Result<Vec<Subject>> {
    let Some((name, split)) = task.rsplit_once('_') else {
        return Err(Error::Setting {
            key: "task",
            cause: format!(
                "`{task}` is not a task; expected the name of a folder and a part of it, such as mmlu_test"
            ),
        });
    };
    let folder = dir.join(name);
    let path = folder.join("mapping.json");
    let text =
        oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES).map_err(|e| Error::read(&path, e))?;
    let broken = |cause: String| Error::File {
        path: path.clone(),
        cause,
        remedy: "expected for each subject a name and a category".into(),
    };
    let listed: Map<String, Value> = json::from_str(&text).map_err(|e| broken(e.to_string()))?;
    let split = match split {
        "validation" => "val",
        "train" => "dev",
        split => split,
    };
    listed
        .into_iter()
        .map(|(id, named)| {
            let Named { name, category } =
                serde_json::from_value(named).map_err(|e| broken(format!("{id}: {e}")))?;
            let questions = questions(&found(&folder, split, &id)?)?;
            let shots = questions_if_there(&folder, &id)?;
            Ok(Subject { id, name, category, shots, questions })
        })
        .collect()
}

/// The file of a subject.
fn found(folder: &Path, split: &str, id: &str) -> Result<PathBuf> {
    let places = ["data", ""].map(|data| folder.join(data).join(split));
    let names = [format!("{id}_{split}.csv"), format!("{id}.csv")];
    let mut paths = places.iter().flat_map(|place| names.iter().map(|name| place.join(name)));
    paths.clone().find(|path| path.is_file()).ok_or_else(|| {
        let path = paths.next().unwrap_or_default();
        let has_archive = fs::read_dir(folder).is_ok_and(|files| {
            files.flatten().any(|file| file.path().extension().is_some_and(|e| e == "zip"))
        });
        let remedy = match has_archive {
            true => "unpack the archive of the task there".to_owned(),
            false => format!("also looked for {}", names[1]),
        };
        Error::File { path, cause: "there is no such file".into(), remedy }
    })
}

fn questions_if_there(folder: &Path, id: &str) -> Result<Vec<Question>> {
    found(folder, "dev", id).map_or(Ok(Vec::new()), |path| questions(&path))
}

/// The questions of a file: with a header, or six columns without one.
fn questions(path: &Path) -> Result<Vec<Question>> {
    let mut rows = csv_rows(path)?.into_iter().peekable();
    let header: Option<BTreeMap<String, usize>> = rows.peek().and_then(|(_, fields)| {
        let names = fields.iter().map(|name| name.trim().to_lowercase());
        let columns: BTreeMap<String, usize> = names.enumerate().map(|(at, name)| (name, at)).collect();
        columns.contains_key("question").then_some(columns)
    });
    if header.is_some() {
        rows.next();
    }
    let column = |name: &str, at: usize| match &header {
        Some(columns) => columns.get(&name.to_lowercase()).copied(),
        None => Some(at),
    };
    rows.map(|(line, fields)| {
        let field = |name: &str, at: usize| -> Result<String> {
            let found = column(name, at).and_then(|at| fields.get(at));
            found.cloned().ok_or_else(|| {
                let cause = format!("no field {name} among {}", fields.len());
                Error::record(path, line, cause, "expected a question, the choices A to D and the answer")
            })
        };
        let mut choices = <[String; 4]>::default();
        for (at, choice) in choices.iter_mut().enumerate() {
            *choice = field(CHOICES[at], at + 1)?;
        }
        // Tests whose answers are kept back have no column of them.
        let is_kept_back = header.is_some() && column("answer", 5).is_none();
        let answer = if is_kept_back { String::new() } else { field("answer", 5)?.trim().to_owned() };
        if !answer.is_empty() && !CHOICES.contains(&answer.as_str()) {
            let cause = format!("the answer is `{answer}`");
            return Err(Error::record(path, line, cause, "expected A, B, C or D"));
        }
        Ok(Question { text: field("question", 0)?, choices, answer })
    })
    .collect()
}

impl Subject {
    /// A question behind the first so many shots, with the answer that is expected, in the words of LLaMA-Factory.
    pub fn conversation(&self, question: &Question, n_shots: usize, language: Language) -> Conversation {
        let mut messages = Vec::new();
        let mut before = match language {
            Language::English => {
                format!("The following are multiple choice questions (with answers) about {}.\n\n", self.name)
            }
            Language::Chinese => {
                format!("以下是中国关于{}考试的单项选择题，请选出其中的正确答案。\n\n", self.name)
            }
        };
        for shown in self.shots.iter().take(n_shots).chain([question]) {
            let mut text = std::mem::take(&mut before);
            text.push_str(&shown.text);
            for (letter, choice) in CHOICES.iter().zip(&shown.choices) {
                text.push_str(&format!("\n{letter}. {choice}"));
            }
            text.push_str(match language {
                Language::English => "\nAnswer:",
                Language::Chinese => "\n答案：",
            });
            // What is expected last is cut off again.
            let answer = if shown.answer.is_empty() { CHOICES[0] } else { &shown.answer };
            messages.extend([Message::new("user", text), Message::new("assistant", answer)]);
        }
        Conversation { messages, ..Conversation::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_three_forms_of_folders_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let mapping = r#"{"rivers": {"name": "the river", "category": "Other"}}"#;
        write(
            dir.path(),
            &[
                ("mmlu/mapping.json", mapping),
                ("mmlu/data/test/rivers_test.csv", "\"Which way, then?\",up,down,\"left, or so\",right,B\n"),
                ("mmlu/data/dev/rivers_dev.csv", "Q,1,2,3,4,D\n"),
                ("ceval/mapping.json", mapping),
                (
                    "ceval/val/rivers_val.csv",
                    "id,question,A,B,C,D,answer\n0,\"Which way, then?\",up,down,\"left, or so\",right,B\n",
                ),
                (
                    "ceval/test/rivers_test.csv",
                    "id,question,A,B,C,D\n0,\"Which way, then?\",up,down,\"left, or so\",right\n",
                ),
                (
                    "ceval/dev/rivers_dev.csv",
                    "id,question,A,B,C,D,answer,explanation\n0,Q,1,2,3,4,D,\"because\nso\"\n",
                ),
                ("cmmlu/mapping.json", mapping),
                (
                    "cmmlu/test/rivers.csv",
                    "\u{feff},Question,A,B,C,D,Answer\n0,\"Which way, then?\",up,down,\"left, or so\",right,B\n",
                ),
                ("cmmlu/dev/rivers.csv", ",Question,A,B,C,D,Answer\n0,Q,1,2,3,4,D\n"),
            ],
        );
        let mmlu = subjects(dir.path(), "mmlu_test").unwrap();
        for task in ["ceval_validation", "cmmlu_test"] {
            assert_eq!(subjects(dir.path(), task).unwrap(), mmlu, "{task}");
        }
        assert_eq!(subjects(dir.path(), "ceval_test").unwrap()[0].questions[0].answer, "");
        let conversation = mmlu[0].conversation(&mmlu[0].questions[0], 5, Language::English);
        let said: Vec<_> =
            conversation.messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        assert_eq!(
            said,
            [
                (
                    "user",
                    "The following are multiple choice questions (with answers) about the river.\n\nQ\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
                ),
                ("assistant", "D"),
                ("user", "Which way, then?\nA. up\nB. down\nC. left, or so\nD. right\nAnswer:"),
                ("assistant", "B"),
            ]
        );
        let alone = mmlu[0].conversation(&mmlu[0].questions[0], 0, Language::Chinese);
        assert!(
            alone.messages[0].content.starts_with("以下是中国关于the river考试") && alone.messages.len() == 2
        );
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = |task: &str| subjects(dir.path(), task).unwrap_err().to_string();
        assert!(said("mmlu").contains("`mmlu` is not a task"));
        assert!(said("mmlu_test").contains("mapping.json"));
        write(dir.path(), &[("mmlu/mapping.json", r#"{"a": {"name": "a"}}"#)]);
        assert!(said("mmlu_test").contains("a: missing field `category`"));
        write(
            dir.path(),
            &[("mmlu/mapping.json", r#"{"a": {"name": "a", "category": "Other"}}"#), ("mmlu/a.zip", "")],
        );
        assert!(said("mmlu_test").contains("unpack the archive"), "{}", said("mmlu_test"));
        for (text, message) in [
            ("q,1,2,3,4,E\n", "a_test.csv:1: the answer is `E`; expected A, B, C or D"),
            ("q,1,2,3,4,A\nq,1,2\n", "a_test.csv:2: no field C among 3"),
            ("q,\"1,2,3,4,A\n", "a_test.csv:1: "),
        ] {
            write(dir.path(), &[("mmlu/data/test/a_test.csv", text)]);
            assert!(said("mmlu_test").contains(message), "{}", said("mmlu_test"));
        }
    }
}
