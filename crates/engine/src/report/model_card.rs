//! The model card of a run, `README.md`: what was trained on what, in the form that transformers writes.

use serde_json::{Map, Value};

/// The name of the file.
pub const FILE: &str = "README.md";

/// What a card says beside the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelCard {
    /// What the model is called.
    pub name: String,
    /// The library that loads it: `transformers`, or `peft` for an adapter.
    pub library: &'static str,
    /// The model that was trained further.
    pub base: Option<String>,
    /// The data sets.
    pub datasets: Vec<String>,
    /// Words by which it is found.
    pub tags: Vec<String>,
    /// The settings of the run by their names in transformers.
    pub hyperparameters: Vec<(&'static str, String)>,
    /// What the program is called, with its version.
    pub program: String,
}

/// Numbers of an evaluation that say nothing of the model.
const OF_THE_RUN: [&str; 5] = ["runtime", "samples_per_second", "steps_per_second", "epoch", "step"];

impl ModelCard {
    /// The card, with the evaluations of the log.
    pub fn markdown(&self, history: &[Map<String, Value>]) -> String {
        let base = self.base.as_deref().filter(|base| !base.is_empty());
        let mut card = self.front_matter(base);
        card.push_str(
            "\n<!-- This model card was generated automatically from the settings and the log of the run. Proofread and \
             complete it, then remove this comment. -->\n",
        );
        card.push_str(&format!("\n# {}\n\n", self.name));
        card.push_str(&match base {
            Some(base) => format!("This model is a fine-tuned version of {base} on "),
            None => "This model was trained from scratch on ".to_owned(),
        });
        card.push_str(&match self.datasets.as_slice() {
            [] => "an unknown dataset.".to_owned(),
            [one] => format!("the {one} dataset."),
            [first @ .., last] => {
                let first: Vec<String> = first.iter().map(|name| format!("the {name}")).collect();
                format!("{} and the {last} datasets.", first.join(", "))
            }
        });
        let evaluations: Vec<&Map<String, Value>> =
            history.iter().filter(|log| log.contains_key("eval_loss")).collect();
        if let Some(last) = evaluations.last() {
            card.push_str("\nIt achieves the following results on the evaluation set:\n");
            for (name, value) in metrics(last) {
                card.push_str(&format!("- {}: {}\n", words(name), shown(value)));
            }
        } else {
            card.push('\n');
        }
        for part in ["Model description", "Intended uses & limitations", "Training and evaluation data"] {
            card.push_str(&format!("\n## {part}\n\nMore information needed\n"));
        }
        card.push_str(
            "\n## Training procedure\n\n### Training hyperparameters\n\n\
             The following hyperparameters were used during training:\n",
        );
        for (name, value) in &self.hyperparameters {
            card.push_str(&format!("- {name}: {value}\n"));
        }
        card.push_str(&format!("\n### Training results\n\n{}", table(history)));
        card.push_str(&format!("\n### Framework versions\n\n- {}\n", self.program));
        card
    }

    fn front_matter(&self, base: Option<&str>) -> String {
        let mut text = format!("---\nlibrary_name: {}\nlicense: other\n", self.library);
        if let Some(base) = base {
            text.push_str(&format!("base_model: {}\n", quoted(base)));
        }
        text.push_str("tags:\n");
        self.tags.iter().for_each(|tag| text.push_str(&format!("- {}\n", quoted(tag))));
        if self.library == "peft" {
            text.push_str("pipeline_tag: text-generation\n");
        }
        text.push_str(&format!("model-index:\n- name: {}\n  results: []\n---\n", quoted(&self.name)));
        text
    }
}

/// A text in YAML: as it is where it cannot be taken for anything else.
fn quoted(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off"].contains(&text.to_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

/// The numbers of an evaluation, without the beginning of their names.
fn metrics(log: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    let named = log.iter().filter_map(|(name, value)| Some((name.strip_prefix("eval_")?, value)));
    named.filter(|(name, _)| !OF_THE_RUN.contains(name))
}

/// `rewards/accuracies` and `hist_loss` as words.
fn words(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
    };
    name.split('_').map(capital).collect::<Vec<_>>().join(" ")
}

fn shown(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if !value.is_u64() && !value.is_i64() => {
            let whole = format!("{number:?}");
            let decimals = whole.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            if decimals > 4 { format!("{number:.4}") } else { whole }
        }
        _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// The evaluations in a table, each with the training loss that was logged before it.
fn table(history: &[Map<String, Value>]) -> String {
    let mut loss = Value::from("No log");
    let mut names: Vec<String> = ["Training Loss", "Epoch", "Step"].map(str::to_owned).into();
    let mut rows: Vec<Map<String, Value>> = Vec::new();
    for log in history {
        if let Some(found) = log.get("loss") {
            loss = found.clone();
        }
        if !log.contains_key("eval_loss") {
            continue;
        }
        let mut row = Map::new();
        row.insert(names[0].clone(), loss.clone());
        for (name, key) in [("Epoch", "epoch"), ("Step", "step")] {
            row.insert(name.to_owned(), log.get(key).cloned().unwrap_or(Value::Null));
        }
        for (name, value) in metrics(log) {
            let name = if name == "loss" { "Validation Loss".to_owned() } else { words(name) };
            if !names.contains(&name) {
                names.push(name.clone());
            }
            row.insert(name, value.clone());
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return String::new();
    }
    let cell = |row: &Map<String, Value>, name: &String| row.get(name).map_or(String::new(), shown);
    let width = |name: &String| rows.iter().map(|row| cell(row, name).len()).fold(name.len(), usize::max);
    let widths: Vec<usize> = names.iter().map(width).collect();
    let line = |cells: Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("| {cell:<width$} "));
        padded.collect::<String>() + "|\n"
    };
    let mut table = line(names.clone());
    table.push_str(
        &(widths.iter().map(|width| format!("|:{}:", "-".repeat(*width))).collect::<String>() + "|\n"),
    );
    for row in &rows {
        table.push_str(&line(names.iter().map(|name| cell(row, name)).collect()));
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_card_has_the_form_of_transformers() {
        let card = ModelCard {
            name: "sft 1".to_owned(),
            library: "peft",
            base: Some("models/Qwen3-0.6B".to_owned()),
            datasets: vec!["identity".to_owned(), "alpaca".to_owned()],
            tags: ["oarlock", "lora"].map(str::to_owned).into(),
            hyperparameters: vec![("learning_rate", "1e-4".to_owned())],
            program: "Oarlock 0.1".to_owned(),
        };
        let log = |value: Value| value.as_object().unwrap().clone();
        let history = [
            log(json!({"loss": 2.5, "step": 2})),
            log(
                json!({"eval_loss": 2.123456, "eval_rewards/accuracies": 0.5, "eval_runtime": 1.5, "epoch": 1.0, "step": 2}),
            ),
            log(json!({"train_loss": 2.5, "step": 2})),
        ];
        let expected = "---\nlibrary_name: peft\nlicense: other\nbase_model: models/Qwen3-0.6B\ntags:\n- oarlock\n- lora\n\
             pipeline_tag: text-generation\nmodel-index:\n- name: \"sft 1\"\n  results: []\n---\n";
        let text = card.markdown(&history);
        assert!(text.starts_with(expected), "{text}");
        for part in [
            "# sft 1\n\nThis model is a fine-tuned version of models/Qwen3-0.6B on the identity and the alpaca datasets.\n\
             It achieves the following results on the evaluation set:\n- Loss: 2.1235\n- Rewards/accuracies: 0.5\n",
            "### Training hyperparameters\n\nThe following hyperparameters were used during training:\n- learning_rate: 1e-4\n",
            "### Training results\n\n\
             | Training Loss | Epoch | Step | Validation Loss | Rewards/accuracies |\n\
             |:-------------:|:-----:|:----:|:---------------:|:------------------:|\n\
             | 2.5           | 1.0   | 2    | 2.1235          | 0.5                |\n",
            "### Framework versions\n\n- Oarlock 0.1\n",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        let new = ModelCard { base: None, datasets: Vec::new(), ..card }.markdown(&[]);
        assert!(
            new.contains("This model was trained from scratch on an unknown dataset.\n\n## Model"),
            "{new}"
        );
        assert!(!new.contains("base_model"));
    }

    #[test]
    fn texts_that_yaml_takes_for_something_else_are_quoted() {
        for (text, written) in [
            ("a/b-1.5", "a/b-1.5"),
            ("/abs: x", "\"/abs: x\""),
            ("1.5", "\"1.5\""),
            ("yes", "\"yes\""),
            ("two\nlines", "\"two\\nlines\""),
        ] {
            assert_eq!(quoted(text), written);
        }
    }
}
