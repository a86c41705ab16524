//! `accelerate estimate-memory`: what a model takes of memory in several dtypes, as the original counts it.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock::model::hf::HfConfig;
use oarlock::model::{Decoder, DecoderConfig};
use oarlock::nn::units_of;
use oarlock_engine::report::python;

use super::command::{COMMAND, parse, refuse};
use crate::config::Words;
use crate::config::flags::Flags;
use crate::config::keys::{Row, Status, ValueType};
use crate::console::{Outcome, print};
use crate::error::Result;

oarlock_config::key_table! {
    /// The flags.
    pub(super) const KEYS = [
        LIBRARY_NAME: String = Row::flag(ValueType::Choice(&["transformers", "timm"]), "library_name", "transformers", Status::Only("models of timm are for pictures; only language models of transformers are known here"), "The library of the model"),
        DTYPES: Vec<String> = Row::flag(ValueType::List, "dtypes", "float32,float16,int8,int4", Status::Used, "Of float32, float16, int8, int4"),
        TRUST_REMOTE_CODE: bool = Row::flag(ValueType::Bool, "trust_remote_code", "false", Status::NoEffect("no code that comes with a model is run"), "Run code that comes with the model"),
    ];
}

pub(super) const FLAGS: Flags = Flags {
    command: "accelerate estimate-memory",
    operands: "MODEL",
    example: "accelerate estimate-memory recipes/minimind-small",
    about: "Shows what a model takes of memory in several dtypes: a folder with its config.json is enough.",
    keys: KEYS,
    ..COMMAND
};

/// A dtype, how many times smaller than f32 it is, and how many times the model in f32 its training takes.
const KNOWN: [(&str, u64, Option<u64>); 4] =
    [("float32", 1, Some(4)), ("float16", 2, Some(2)), ("int8", 4, None), ("int4", 8, None)];

/// Runs the command.
pub fn run(words: &Words) -> Outcome {
    let Some(parsed) = parse(&FLAGS, words, 1)? else { return Ok(()) };
    let Some(name) = parsed.rest.get(0) else {
        let help = "write `accelerate estimate-memory FOLDER`, where FOLDER holds the model's config.json";
        return refuse("missing argument: model", help);
    };
    let dir = Path::new(name);
    if !dir.is_dir() {
        let help = "nothing is fetched from the Hugging Face Hub: fetch the model's config.json into a folder, and name it";
        return refuse(format!("there is no folder `{name}`"), help);
    }
    let dtypes = parsed.settings.get(DTYPES);
    if let Some(wrong) = dtypes.iter().find(|name| !KNOWN.iter().any(|(known, ..)| known == name)) {
        return refuse(format!("`{wrong}` is not a dtype"), "take float32, float16, int8 and int4");
    }
    let sizes = Sizes::of(HfConfig::read(dir)?.decoder())?;
    let rows: Vec<[String; 4]> = dtypes
        .iter()
        .filter_map(|name| KNOWN.iter().find(|(known, ..)| known == name))
        .map(|dtype| sizes.row(*dtype))
        .collect();
    print(&format!(
        "{}\nWithout activations, and for one process; `oarlock estimate-memory {name}` says what a training run takes\n",
        table(&format!("Memory Usage for loading `{name}`"), &rows)
    ))
}

/// Bytes in f32.
struct Sizes {
    /// Of the largest layer or embedding.
    largest: u64,
    /// Of all, without the output weights: the original counts the model that has none.
    total: u64,
}

impl Sizes {
    fn of(config: &DecoderConfig) -> Result<Sizes> {
        let model = Decoder::new(config.clone(), 1)?;
        let mut layers = BTreeMap::<String, u64>::new();
        for unit in units_of(&model) {
            for named in unit.params.iter().filter(|named| !named.name.contains("lm_head")) {
                let layer = if unit.name.contains("layers") { unit.name.clone() } else { named.name.clone() };
                *layers.entry(layer).or_default() += 4 * named.param.shape().n_elems() as u64;
            }
        }
        // The wave lengths of the rotary embedding, which transformers keeps twice.
        let rotary = config.rotary_kinds().iter().map(|(_, dim)| 2 * 4 * (*dim as u64 / 2)).sum();
        layers.insert("rotary".to_owned(), rotary);
        Ok(Sizes { largest: layers.values().copied().max().unwrap_or(0), total: layers.values().sum() })
    }

    fn row(&self, (name, smaller, training): (&str, u64, Option<u64>)) -> [String; 4] {
        let in_dtype = |bytes: u64| {
            // Whole bytes stay whole in f32 alone.
            if smaller == 1 && bytes < 1024 {
                format!("{bytes} bytes")
            } else {
                shown(bytes as f64 / smaller as f64)
            }
        };
        let training = training.map_or("N/A".to_owned(), |times| match self.total * times {
            bytes if bytes < 1024 => format!("{bytes} bytes"),
            bytes => shown(bytes as f64),
        });
        [name.to_owned(), in_dtype(self.largest), in_dtype(self.total), training]
    }
}

/// Bytes in the largest unit in which they are at least one.
fn shown(mut size: f64) -> String {
    for unit in ["bytes", "KB", "MB", "GB", "TB"] {
        if size < 1024.0 {
            return format!("{} {unit}", rounded(size));
        }
        size /= 1024.0;
    }
    format!("{} PB", rounded(size))
}

/// Two places, without zeros at the end.
fn rounded(x: f64) -> String {
    python::repr(format!("{x:.2}").parse().unwrap_or(x))
}

/// A table with lines around it.
fn table(title: &str, rows: &[[String; 4]]) -> String {
    const HEADS: [&str; 4] = ["dtype", "Largest Layer", "Total Size", "Training using Adam"];
    let width = |text: &str| text.chars().count();
    let mut widths = HEADS.map(width);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    // A long title makes the last column wide, as far as the original makes it.
    let cells: usize = widths.iter().sum();
    if width(title) > cells {
        widths[3] += 2 * width(title).abs_diff(cells + 5);
    }
    let line = |left: &str, middle: &str, right: &str| {
        format!("{left}{}{right}\n", widths.map(|width| "─".repeat(width)).join(middle))
    };
    let centred = |text: &str, to: usize| {
        let pad = to.saturating_sub(width(text));
        let left = pad / 2 + (pad & to & 1);
        format!("{}{text}{}", " ".repeat(left), " ".repeat(pad - left))
    };
    let row = |cells: [&str; 4]| {
        let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, to)| centred(cell, to)).collect();
        format!("│{}│\n", cells.join("│"))
    };
    let mut out = line("┌", "─", "┐");
    out.push_str(&format!("│{}│\n", centred(title, widths.iter().sum::<usize>() + 3)));
    out.push_str(&line("├", "┬", "┤"));
    out.push_str(&row(HEADS));
    out.push_str(&line("├", "┼", "┤"));
    for cells in rows {
        out.push_str(&row(cells.each_ref().map(String::as_str)));
    }
    out.push_str(&line("└", "┴", "┘"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::accelerate::golden;

    fn table_of(name: &str, dtypes: &[&str]) -> String {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden").join(name);
        let sizes = Sizes::of(HfConfig::read(&dir).unwrap().decoder()).unwrap();
        let chosen = KNOWN.into_iter().filter(|(dtype, ..)| dtypes.contains(dtype));
        let rows: Vec<_> = chosen.map(|dtype| sizes.row(dtype)).collect();
        table(&format!("Memory Usage for loading `{name}`"), &rows)
    }

    #[test]
    fn tables_are_those_of_the_original() {
        let golden = golden();
        for (name, expected) in golden["memory"].as_object().unwrap() {
            assert_eq!(table_of(name, &["float32", "float16", "int8", "int4"]), *expected, "{name}");
        }
        assert_eq!(table_of("llama", &["float16"]), golden["memory_of_one"]);
    }
}
