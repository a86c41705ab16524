//! The languages of help texts. `chinese.txt` has the meaning of every key in Chinese, and why some keys change nothing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use oarlock_config::settings::keys::{Group, Range, Row, ValueType};

/// The language of a help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// English, in which everything is said.
    English,
    /// Chinese, in which keys are explained.
    Chinese,
}

/// The Chinese of keys by their names, and of reasons by their English.
static CHINESE: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| {
    let is_name =
        |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let pair = |line: &'static str| match line.split_once(": ") {
        Some((name, meaning)) if is_name(name) => Some((name, meaning)),
        _ => line.split_once(" = "),
    };
    let lines = include_str!("chinese.txt").lines();
    lines.filter(|line| !line.starts_with('#')).filter_map(pair).collect()
});

impl Language {
    /// By its name, such as zh, `zh_CN.UTF-8` or en.
    pub fn named(name: &str) -> Option<Language> {
        match name.to_lowercase().split(['_', '-', '.', '@']).next() {
            Some("zh") => Some(Language::Chinese),
            Some("en" | "c" | "posix") => Some(Language::English),
            _ => None,
        }
    }

    /// That of the reader, as the environment says it; `read` looks up a variable.
    pub fn of(read: &dyn Fn(&str) -> Option<String>) -> Language {
        let set =
            ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().filter_map(read).find(|value| !value.is_empty());
        set.and_then(|value| Language::named(&value)).unwrap_or(Language::English)
    }

    /// One text or the other.
    pub fn choose<T>(self, english: T, chinese: T) -> T {
        match self {
            Language::English => english,
            Language::Chinese => chinese,
        }
    }

    /// What a key means.
    pub fn meaning(self, key: &Row) -> &'static str {
        self.choose(key.doc, CHINESE.get(key.name).copied().unwrap_or(key.doc))
    }

    /// Why a key changes nothing, or what of it is there.
    pub fn reason(self, english: &'static str) -> &'static str {
        self.choose(english, CHINESE.get(english).copied().unwrap_or(english))
    }

    /// The heading of a group.
    pub fn title(self, group: Group) -> &'static str {
        let chinese = match group {
            Group::Model => "模型",
            Group::Data => "数据",
            Group::Method => "方法",
            Group::Train => "训练",
            Group::Optimizer => "优化器和学习率",
            Group::Eval => "验证",
            Group::Save => "检查点",
            Group::Log => "日志",
            Group::Ranks => "进程",
        };
        self.choose(group.title(), chinese)
    }

    /// The values that a key takes.
    pub fn values(self, value_type: ValueType) -> String {
        match value_type {
            _ if self == Language::English => value_type.describe(),
            ValueType::Bool => "true 或 false".to_owned(),
            ValueType::Int(i64::MIN) => "整数".to_owned(),
            ValueType::Int(min) => format!("整数，至少 {min}"),
            ValueType::Float(Range::Any) => "数".to_owned(),
            ValueType::Float(Range::Positive) => "大于 0 的数".to_owned(),
            ValueType::Float(Range::NotNegative) => "数，至少 0".to_owned(),
            ValueType::Float(Range::BelowOne) => "从 0 到 1 的数，不含 1".to_owned(),
            ValueType::Float(Range::Share) => "从 0 到 1 的数".to_owned(),
            ValueType::Steps => "步数，或 0 到 1 之间的总步数比例".to_owned(),
            ValueType::Text | ValueType::Secret => "文字".to_owned(),
            ValueType::Path => "路径".to_owned(),
            ValueType::BoolOrPath => "true、false 或路径".to_owned(),
            ValueType::Choice(names) => format!("其中之一：{}", names.join(", ")),
            ValueType::List => "用逗号分开的名字".to_owned(),
            ValueType::Map => "映射，如 {min_lr: 1e-5}".to_owned(),
            ValueType::MapOrPath => "路径或映射".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use oarlock_config::settings::keys::Status;

    use super::super::table::KEYS;
    use super::*;

    #[test]
    fn every_key_and_every_reason_has_its_chinese_and_nothing_else_has() {
        let reasons = KEYS.iter().filter_map(|key| match key.status {
            Status::NoEffect(reason)
            | Status::Later(reason)
            | Status::Only(reason)
            | Status::Among(_, reason) => Some(reason),
            Status::Used => None,
        });
        let wanted: BTreeSet<&str> = KEYS.iter().map(|key| key.name).chain(reasons).collect();
        let there: BTreeSet<&str> = CHINESE.keys().copied().collect();
        let missing: Vec<_> = wanted.difference(&there).collect();
        let idle: Vec<_> = there.difference(&wanted).collect();
        assert!(
            missing.is_empty() && idle.is_empty(),
            "chinese.txt lacks {missing:?} and has beside {idle:?}"
        );
        let n_lines = include_str!("chinese.txt").lines().filter(|line| !line.is_empty()).count();
        assert_eq!(n_lines, wanted.len() + 1, "a key stands there twice");
        let is_han = |c: char| ('\u{3400}'..='\u{9fff}').contains(&c);
        for (name, chinese) in CHINESE.iter() {
            assert!(chinese.chars().any(is_han) && !chinese.ends_with('。'), "{name}: {chinese}");
        }
    }

    #[test]
    fn the_environment_says_the_language() {
        let of = |variables: &'static [(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            Language::of(&|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), Language::English);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8")]), Language::Chinese);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "C.UTF-8")]), Language::English);
        assert_eq!(of(&[("LANG", "zh_TW"), ("LC_ALL", "")]), Language::Chinese);
        assert_eq!(of(&[("LANG", "de_DE.UTF-8")]), Language::English);
    }
}
