//! What another program is asked about a GGUF file, and whether its answers are those of this one.

use std::path::Path;

use fancy_regex::Regex;
use oarlock_engine::{Error, Result};
use oarlock_gguf::{Gguf, Mix};
use oarlock_tensor::{DType, Device};
use serde_json::{Value, json};

use super::logits::{PROMPTS, logits, prompts};
use super::written::texts;
use crate::adapters::load_for_inference;
use crate::data::Tokenizer;
use crate::gguf::rules::Rule;

/// Texts that are tokenized.
const N_TEXTS: usize = 200;
/// Logits of a position that are compared, from all over the vocabulary.
const N_COLUMNS: usize = 256;
/// How far those of another program may be, as a share of their size: it rounds keys and values to 16 bits, and what it multiplies
/// with blocks to 8.
const BOUNDS: [f64; 2] = [0.02, 0.15];
/// A token is the likeliest in every arithmetic where its logit is above the others by this share of their spread.
const CLEAR: f32 = 0.25;
/// What stands in [`texts`] and is an end token for llama.cpp wherever a vocabulary has a token of this name, even one that
/// letters are merged to.
const END: &str = "</s>";

/// Questions about a file, with our answers.
#[derive(Clone, Debug)]
pub struct Questions {
    texts: Vec<(String, Vec<u32>)>,
    /// The tokens that are put around each text.
    around: Vec<u32>,
    prompts: Vec<Vec<i32>>,
    columns: Vec<usize>,
    /// Of each prompt and each position, those columns.
    logits: Vec<Vec<Vec<f32>>>,
    /// The word that goes on with each of [`PROMPTS`], where it is clear.
    words: Vec<Option<String>>,
    bound: f64,
}

/// How far the answers of another program are from ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Texts with the same tokens, which are all.
    pub n_texts: usize,
    /// The root mean square of all differences of logits over that of the logits.
    pub relative: f64,
    /// The positions of all prompts.
    pub n_positions: usize,
}

impl Questions {
    /// Reads the file as a model, and answers.
    ///
    /// # Errors
    /// A file that is no model, and no memory for it.
    pub fn of(file: &Path, device: &Device) -> Result<Questions> {
        let map = oarlock_comm::MappedFile::open(file).map_err(Error::io("read", file))?;
        let gguf = Gguf::new(&map[..]).map_err(|e| Error::bad_file(file, e.to_string()))?;
        let of_file = |e: oarlock_gguf::Error| Error::bad_file(file, e.to_string());
        let pre = gguf.get::<&str>("tokenizer.ggml.pre").map_err(of_file)?.and_then(Rule::named);
        let kind = gguf.get::<u32>("general.file_type").map_err(of_file)?;
        let is_plain = [Mix::F32, Mix::F16, Mix::BF16].iter().any(|mix| Some(mix.file_type()) == kind);
        let tokenizer = Tokenizer::open(file)?;
        // llama.cpp composes no characters, and some of its rules know no combining marks.
        let marks = Regex::new(r"\p{M}").map_err(|e| Error::Usage(e.to_string()))?;
        let parts = pre.is_some_and(|rule| rule.knows_no_marks() || !rule.normalizer().is_null());
        let merges_end = match tokenizer.id_of(END)? {
            Some(id) => !tokenizer.is_special(id)?,
            None => false,
        };
        let mut asked = Vec::new();
        for text in texts(&tokenizer, N_TEXTS)?.into_iter().filter(|text| !text.is_empty()) {
            if merges_end && text.contains(END) {
                continue;
            }
            let ids = tokenizer.encode(&text)?;
            let is_fair = || {
                !marks.is_match(&text).unwrap_or(true)
                    && tokenizer.decode(&ids, false).is_ok_and(|own| own == text)
            };
            if !parts || is_fair() {
                asked.push((text, ids));
            }
        }
        let model = load_for_inference(file, &[], device, DType::F32, 256)?;
        let vocab_size = model.config.decoder().vocab_size;
        let prompts = prompts(&tokenizer, vocab_size, model.n_positions.min(64))?;
        let n_columns = N_COLUMNS.min(vocab_size);
        let columns: Vec<usize> = (0..n_columns).map(|i| i * vocab_size / n_columns).collect();
        let all = logits(&model, file, &prompts)?;
        let some = |row: &[f32]| columns.iter().map(|column| row[*column]).collect::<Vec<f32>>();
        let word = |(prompt, logits): (&Vec<i32>, &Vec<f32>)| {
            let id = clear(&logits[logits.len() - vocab_size..])?;
            let mut ids: Vec<u32> = prompt.iter().map(|id| *id as u32).collect();
            let before = tokenizer.decode(&ids, true).ok()?;
            ids.push(id);
            let after = tokenizer.decode(&ids, true).ok()?;
            Some(after.strip_prefix(&before)?.trim().to_owned()).filter(|word| !word.is_empty())
        };
        Ok(Questions {
            texts: asked,
            around: tokenizer.around()?,
            words: prompts.iter().zip(&all).map(word).collect(),
            logits: all.iter().map(|all| all.chunks(vocab_size).map(some).collect()).collect(),
            prompts,
            columns,
            bound: if is_plain { BOUNDS[0] } else { BOUNDS[1] },
        })
    }

    /// The questions: texts to tokenize, prompts of ids, and the columns of their logits.
    pub fn to_json(&self) -> Value {
        let texts: Vec<&String> = self.texts.iter().map(|(text, _)| text).collect();
        json!({"texts": texts, "prompts": self.prompts, "columns": self.columns})
    }

    /// Our words after each of [`PROMPTS`], where they are clear.
    pub fn words(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let words = PROMPTS.iter().zip(&self.words);
        words.filter_map(|(prompt, word)| Some((*prompt, word.as_deref()?)))
    }

    /// Compares answers: the ids `around` a text, the `ids` of each one, and `logits` of each prompt, position and column.
    ///
    /// # Errors
    /// What differs, or is no answer.
    pub fn compare(&self, answers: &Value) -> std::result::Result<Agreement, String> {
        let read = |ids: &Value| serde_json::from_value::<Vec<u32>>(ids.clone()).ok();
        if read(&answers["around"]).as_ref() != Some(&self.around) {
            return Err(format!(
                "it puts other tokens around a text: {}, and not {:?}",
                answers["around"], self.around
            ));
        }
        for ((text, ids), i) in self.texts.iter().zip(0..) {
            if read(&answers["ids"][i]).as_ref() != Some(ids) {
                return Err(format!(
                    "it makes other tokens of {text:?}: {}, and not {ids:?}",
                    answers["ids"][i]
                ));
            }
        }
        let (mut far, mut size, mut n_positions) = (0.0, 0.0, 0);
        for (rows, i) in self.logits.iter().zip(0..) {
            for (row, j) in rows.iter().zip(0..) {
                let found: Option<Vec<f64>> = serde_json::from_value(answers["logits"][i][j].clone()).ok();
                let found =
                    found.filter(|found| found.len() == row.len() && found.iter().all(|x| x.is_finite()));
                let found =
                    found.ok_or_else(|| format!("it gives no logits of position {j} of prompt {i}"))?;
                for (a, b) in row.iter().zip(found) {
                    far += (f64::from(*a) - b).powi(2);
                    size += f64::from(*a).powi(2);
                }
                n_positions += 1;
            }
        }
        let relative = if far == 0.0 { 0.0 } else { (far / size).sqrt() };
        match relative <= self.bound {
            true => Ok(Agreement { n_texts: self.texts.len(), relative, n_positions }),
            false => Err(format!(
                "its logits differ by {relative:.2e} of their size, and {:.0e} is what its arithmetic explains",
                self.bound
            )),
        }
    }
}

/// The likeliest token, where it is the likeliest by far.
fn clear(logits: &[f32]) -> Option<u32> {
    let best = (0..logits.len()).max_by(|&i, &j| logits[i].total_cmp(&logits[j]))?;
    let second =
        (0..logits.len()).filter(|i| *i != best).map(|i| logits[i]).fold(f32::NEG_INFINITY, f32::max);
    let mean = logits.iter().sum::<f32>() / logits.len() as f32;
    (logits[best] - second > CLEAR * (logits[best] - mean)).then_some(best as u32)
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::Par;
    use oarlock_tensor::cpu::Isa;

    use super::super::write_gguf;
    use super::*;

    #[test]
    fn answers_are_compared_with_ours() {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden/train-llama");
        let file = folder.path().join("model.gguf");
        write_gguf(&golden, &file, Mix::F32, None, false).unwrap();
        let device = Device::cpu(Isa::detect(), Par::threads(1).unwrap());
        let questions = Questions::of(&file, &device).unwrap();
        assert_eq!(questions.to_json()["texts"].as_array().unwrap().len(), N_TEXTS);
        let ids: Vec<&Vec<u32>> = questions.texts.iter().map(|(_, ids)| ids).collect();
        let right = json!({"around": questions.around, "ids": ids, "logits": questions.logits});
        let found = questions.compare(&right).unwrap();
        assert!(found.relative < 1e-6 && found.n_texts == N_TEXTS, "{found:?}");
        let mut other = right.clone();
        other["ids"][7][0] = json!(299);
        assert!(questions.compare(&other).unwrap_err().contains("it makes other tokens of"));
        other = right.clone();
        other["around"] = json!([299]);
        assert!(questions.compare(&other).unwrap_err().contains("it puts other tokens around a text: [299]"));
        other = right.clone();
        let first = other["logits"][0][0][3].as_f64().unwrap();
        other["logits"][0][0][3] = json!(first + 10.0);
        assert!(questions.compare(&other).unwrap_err().contains("its logits differ by"));
        for wrong in [json!(null), json!("\u{1b}"), json!([1.0])] {
            other = right.clone();
            other["logits"][1][0] = wrong;
            assert!(questions.compare(&other).unwrap_err().contains("no logits of position 0 of prompt 1"));
        }
    }

    #[test]
    fn a_word_is_clear_where_no_other_is_near() {
        assert_eq!(clear(&[0.0, 5.0, 0.5, -0.5]), Some(1));
        assert_eq!(clear(&[0.0, 5.0, 4.9, -0.5]), None);
        assert_eq!(clear(&[]), None);
    }
}
