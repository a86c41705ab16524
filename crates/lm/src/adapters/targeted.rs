//! Which layers an `adapter_config.json` names, by PEFT's rules: the weights beside it hold an adapter of each, and no others.

use fancy_regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::adaptation::ends_with;

/// Steps that an expression of the file may take over the name of a layer.
const MAX_STEPS: usize = 100_000;

/// What the file says of layers.
#[derive(Debug)]
pub(super) struct Targeted {
    targets: Names,
    /// `exclude_modules`.
    excluded: Names,
    /// `layers_to_transform`: the numbers of the blocks; none: all.
    blocks: Option<Vec<u64>>,
    /// `layers_pattern`: what stands before the number of a block; none: anything.
    patterns: Vec<Regex>,
    /// `modules_to_save`, which get no adapter.
    whole: Vec<String>,
}

/// Names of layers.
#[derive(Debug)]
enum Names {
    Listed(Vec<String>),
    /// A text is an expression for the whole name.
    Matching(Regex),
    /// `all-linear`: all but the output layer.
    AllLinear,
}

impl Names {
    /// # Errors
    /// What is wrong with the field.
    fn read(fields: &Map<String, Value>, name: &str) -> Result<Names, String> {
        let wrong =
            |found: &Value| format!("\"{name}\" is {found}; expected a list of names, or an expression");
        match fields.get(name).unwrap_or(&Value::Null) {
            Value::Null => Ok(Names::Listed(Vec::new())),
            Value::String(word) if word.eq_ignore_ascii_case("all-linear") => Ok(Names::AllLinear),
            Value::String(text) if text.is_empty() => Ok(Names::Listed(Vec::new())),
            Value::String(text) => Ok(Names::Matching(expression(name, text, &format!(r"\A(?:{text})\z"))?)),
            list @ Value::Array(names) => {
                let name = |one: &Value| one.as_str().map(str::to_owned).ok_or_else(|| wrong(list));
                Ok(Names::Listed(names.iter().map(name).collect::<Result<_, _>>()?))
            }
            other => Err(wrong(other)),
        }
    }

    fn hold(&self, path: &str) -> Result<bool, String> {
        match self {
            Names::Listed(names) => Ok(names.iter().any(|name| ends_with(path, name))),
            Names::Matching(expression) => matches(expression, path),
            Names::AllLinear => Ok(path != "lm_head" && path != "output"),
        }
    }
}

impl Targeted {
    /// Reads what the file says; `None` where it leaves the layers to a default of PEFT.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(super) fn read(fields: &Map<String, Value>, whole: &[String]) -> Result<Option<Targeted>, String> {
        if fields.get("target_modules").is_none_or(Value::is_null) {
            return Ok(None);
        }
        let targets = Names::read(fields, "target_modules")?;
        let name = "layers_to_transform";
        let blocks = match fields.get(name).unwrap_or(&Value::Null) {
            Value::Null => None,
            Value::Array(list) if list.is_empty() => None,
            found => {
                let one = |value: &Value| {
                    value.as_u64().ok_or_else(|| {
                        format!("\"{name}\" is {found}; expected the numbers of blocks, such as [0, 1]")
                    })
                };
                let list = found.as_array().map_or(std::slice::from_ref(found), Vec::as_slice);
                Some(list.iter().map(one).collect::<Result<Vec<_>, _>>()?)
            }
        };
        let name = "layers_pattern";
        let patterns: Vec<Regex> = match Names::read(fields, name)? {
            Names::Listed(patterns) => {
                let numbered =
                    |one: &String| expression(name, one, &format!(r"\A(?:.*?\.)?(?:{one})\.(\d+)\."));
                patterns.iter().map(numbered).collect::<Result<_, _>>()?
            }
            _ => {
                let one = fields.get(name).and_then(Value::as_str).unwrap_or_default();
                vec![expression(name, one, &format!(r"\A(?:.*?\.)?(?:{one})\.(\d+)\."))?]
            }
        };
        if blocks.is_some() && !matches!(targets, Names::Listed(_)) {
            return Err(
                "has \"layers_to_transform\", which counts for a list of names in \"target_modules\" alone; \
                        PEFT refuses it beside an expression as well"
                    .to_owned(),
            );
        }
        let excluded = Names::read(fields, "exclude_modules")?;
        Ok(Some(Targeted { targets, excluded, blocks, patterns, whole: whole.to_vec() }))
    }

    /// Whether the file asks for an adapter of a layer. `path` is its name in the files of its family.
    ///
    /// # Errors
    /// An expression of the file that takes too long over it.
    pub(super) fn names(&self, path: &str) -> Result<bool, String> {
        let is_whole = |name: &String| {
            path.match_indices(name.as_str()).any(|(at, _)| {
                let (before, after) = (&path[..at], &path[at + name.len()..]);
                (before.is_empty() || before.ends_with('.')) && (after.is_empty() || after.starts_with('.'))
            })
        };
        if self.excluded.hold(path)? || self.whole.iter().any(is_whole) || !self.targets.hold(path)? {
            return Ok(false);
        }
        let is_itself =
            matches!(&self.targets, Names::Listed(names) if names.iter().any(|name| name == path));
        match &self.blocks {
            Some(blocks) if !is_itself => {
                Ok(self.block(path)?.is_some_and(|number| blocks.contains(&number)))
            }
            _ => Ok(true),
        }
    }

    /// The names in a list that no layer of a model has.
    pub(super) fn strange<'a>(&'a self, paths: &[&str]) -> Vec<&'a str> {
        let Names::Listed(names) = &self.targets else { return Vec::new() };
        let is_there = |name: &&String| paths.iter().any(|path| ends_with(path, name));
        names.iter().filter(|name| !is_there(name)).map(String::as_str).collect()
    }

    /// What it says, for messages.
    pub(super) fn said(&self) -> String {
        let mut said = match &self.targets {
            Names::Listed(names) if names.is_empty() => "names nothing in target_modules".to_owned(),
            Names::Listed(names) => format!("names {} in target_modules", names.join(", ")),
            Names::Matching(expression) => format!("has target_modules {}", expression.as_str()),
            Names::AllLinear => "has target_modules all-linear".to_owned(),
        };
        if let Some(blocks) = &self.blocks {
            let blocks: Vec<String> = blocks.iter().map(u64::to_string).collect();
            said.push_str(&format!(" of the blocks {} (layers_to_transform)", blocks.join(", ")));
        }
        match &self.excluded {
            Names::Listed(names) if names.is_empty() => {}
            Names::Listed(names) => {
                said.push_str(&format!(" without {} (exclude_modules)", names.join(", ")))
            }
            _ => said.push_str(" without those of exclude_modules"),
        }
        said
    }

    /// The number of the block in which a layer is.
    fn block(&self, path: &str) -> Result<Option<u64>, String> {
        if self.patterns.is_empty() {
            // The first number between dots behind a name that is not the first.
            let words: Vec<&str> = path.split('.').collect();
            let inner = words.get(2..words.len().saturating_sub(1)).unwrap_or_default();
            let is_number = |word: &&&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            return Ok(inner.iter().find(is_number).and_then(|word| word.parse().ok()));
        }
        for pattern in &self.patterns {
            if let Some(found) = pattern.captures(path).map_err(|error| too_long(pattern, &error))? {
                // Groups of the file's own may stand before ours.
                let number = found.iter().flatten().last().map(|group| group.as_str());
                return Ok(number.and_then(|number| number.parse().ok()));
            }
        }
        Ok(None)
    }
}

/// An expression of the file, in the form in which it is used.
fn expression(name: &str, written: &str, used: &str) -> Result<Regex, String> {
    RegexBuilder::new(used)
        .backtrack_limit(MAX_STEPS)
        .build()
        .map_err(|error| format!("\"{name}\" has the expression {written:?}, which cannot be read: {error}"))
}

fn matches(expression: &Regex, path: &str) -> Result<bool, String> {
    expression.is_match(path).map_err(|error| too_long(expression, &error))
}

fn too_long(expression: &Regex, error: &fancy_regex::Error) -> String {
    format!(
        "has the expression {}, which takes too long over the name of a layer: {error}",
        expression.as_str()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Which of some layers a file names.
    fn named(fields: Value) -> Result<Vec<&'static str>, String> {
        let Value::Object(fields) = fields else { return Err("no object".to_owned()) };
        let targeted = Targeted::read(&fields, &["lm_head".to_owned()])?.ok_or("none")?;
        let mut named = Vec::new();
        for path in
            ["model.layers.0.a.q_proj", "model.layers.1.a.q_proj", "model.layers.10.a.k_proj", "lm_head"]
        {
            if targeted.names(path)? {
                named.push(path);
            }
        }
        Ok(named)
    }

    /// Each as `check_target_module_exists` of PEFT 0.21 answers.
    #[test]
    fn layers_are_named_as_in_peft() {
        let [q0, q1, k10] =
            ["model.layers.0.a.q_proj", "model.layers.1.a.q_proj", "model.layers.10.a.k_proj"];
        let both = json!(["q_proj", "k_proj", "lm_head"]);
        for (fields, expected) in [
            (json!({"target_modules": both}), vec![q0, q1, k10]),
            (json!({"target_modules": both, "exclude_modules": ["k_proj"]}), vec![q0, q1]),
            (json!({"target_modules": both, "exclude_modules": ".*\\.1\\..*"}), vec![q0, k10]),
            (json!({"target_modules": both, "layers_to_transform": 1}), vec![q1]),
            (json!({"target_modules": both, "layers_to_transform": []}), vec![q0, q1, k10]),
            (json!({"target_modules": both, "layers_to_transform": [0, 10]}), vec![q0, k10]),
            (
                json!({"target_modules": both, "layers_to_transform": [0], "layers_pattern": "layers"}),
                vec![q0],
            ),
            (
                json!({"target_modules": both, "layers_to_transform": [10], "layers_pattern": ["h", "(x|layers)"]}),
                vec![k10],
            ),
            (json!({"target_modules": both, "layers_to_transform": [0], "layers_pattern": "h"}), vec![]),
            (json!({"target_modules": [q1], "layers_to_transform": [0]}), vec![q1]),
            (json!({"target_modules": ".*[qk]_proj"}), vec![q0, q1, k10]),
            (json!({"target_modules": "q_proj"}), vec![]),
            (json!({"target_modules": "all-linear"}), vec![q0, q1, k10]),
        ] {
            assert_eq!(named(fields.clone()).unwrap(), expected, "{fields}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for (fields, expected) in [
            (json!({"target_modules": 3}), "expected a list of names"),
            (json!({"target_modules": ["q_proj", 3]}), "expected a list of names"),
            (json!({"target_modules": "(q_proj"}), "cannot be read"),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": "0"}),
                "expected the numbers of blocks",
            ),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": [-1]}),
                "expected the numbers of blocks",
            ),
            (
                json!({"target_modules": ".*", "layers_to_transform": [0]}),
                "a list of names in \"target_modules\"",
            ),
            (json!({"target_modules": "(([a-z.0-9]+(?=.))+)+Q"}), "takes too long"),
        ] {
            let said = named(fields.clone()).unwrap_err();
            assert!(said.contains(expected), "{fields}: {said}");
        }
    }
}
