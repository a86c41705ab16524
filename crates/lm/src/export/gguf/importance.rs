//! Importance matrices of a model's own forward pass: how large the inputs of each weight are on texts of a user's choice.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_config::config::ChatArgs;
use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::nn::{self, Forward, Layer, Linear, Module};
use oarlock_engine::{Error, Result};
use oarlock_gguf::{Importance, ImportanceMatrix};
use oarlock_tensor::ops::Mask;
use oarlock_tensor::{DType, Device, Tensor};

use super::architecture;
use super::settings::Settings;
use crate::data::{Chat, Encoder, Source, Tokenizer};
use crate::model::hf::load_from;
use crate::model::{Decoder, HfConfig};

/// The texts that a model reads for an importance matrix.
#[derive(Clone, Copy, Debug)]
pub struct Calibration<'a> {
    /// The data sets, as [`Source::resolve`] finds them. Records with a text are texts, and others conversations.
    pub dataset: &'a str,
    /// The folder of `dataset_info.json`.
    pub dataset_dir: &'a Path,
    /// The most rows that are read.
    pub n_rows: usize,
    /// The most tokens of a row. Texts fill rows; a conversation has one of its own.
    pub row_tokens: usize,
    /// The template of conversations, where it is not the one of the folder.
    pub chat: Option<&'a ChatArgs>,
}

/// Lets the model in the folder `dir` read texts, and adds up the squares of what meets each weight of its layers. Sums have one
/// order, so that the matrix is the same on every run.
///
/// # Errors
/// What is wrong with the folder or the data sets; a model that llama.cpp has no name for; data without a token.
pub fn collect_importance(
    dir: &Path,
    calibration: &Calibration<'_>,
    device: &Device,
) -> Result<ImportanceMatrix> {
    let (settings, config) = (Settings::read(dir)?, HfConfig::read(dir)?);
    let architecture = architecture::of(&settings)?;
    let n_positions = config.decoder().positions(calibration.row_tokens);
    let rows = rows(dir, calibration, n_positions)?;
    let mut decoder = Decoder::new(config.decoder().clone(), n_positions)?;
    let mut all = Vec::new();
    decoder.map_linears(|path, linear| {
        let seen = Arc::new(Mutex::new(Seen::default()));
        all.push((config.stored(&format!("{path}.weight")), seen.clone()));
        Ok(Some(Box::new(Watched { base: linear.clone(), seen }) as Box<dyn Layer>))
    })?;
    let mut source = SafetensorsSource::open(dir, &config, &decoder)?;
    let model = load_from(config, decoder, &mut source, device, DType::F32, n_positions)?;
    // Without the output, of which nothing is collected, as in llama-imatrix.
    let units = 0..model.decoder.n_units() - 1;
    for row in &rows {
        let ids = Tensor::from_slice(row, [1, row.len()], device)?;
        model.decoder.stream_through(units.clone(), &ids, &Mask::Causal, None)?;
    }
    let mut matrix = ImportanceMatrix {
        datasets: calibration.dataset.split(',').map(|name| name.trim().to_owned()).collect(),
        n_chunks: u32::try_from(rows.len()).unwrap_or(u32::MAX),
        chunk_tokens: u32::try_from(n_positions).unwrap_or(u32::MAX),
        ..ImportanceMatrix::default()
    };
    for (stored, seen) in all {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((name, _)) = architecture::tensor(&architecture, &stored, &settings)? else { continue };
        let sums = seen.sums.iter().map(|sum| *sum as f32).collect();
        let entry = Importance::new(sums, vec![seen.n_rows as f32]);
        matrix.insert(
            name,
            entry.map_err(|e| Error::bad_file(dir, format!("its activations of {stored}: {e}")))?,
        );
    }
    Ok(matrix)
}

/// The rows of tokens, each of at most so many.
fn rows(dir: &Path, calibration: &Calibration<'_>, most: usize) -> Result<Vec<Vec<i32>>> {
    let Calibration { dataset, dataset_dir, n_rows, chat, .. } = *calibration;
    let source = Source::resolve(dataset, dataset_dir, None)?;
    let tokenizer = Tokenizer::open(dir)?;
    let is_text = source.texts().next().is_some_and(|text| text.is_ok());
    let mut rows: Vec<Vec<i32>> = Vec::new();
    let mut add = |ids: Vec<u32>, joins: bool| {
        let mut ids = ids.into_iter().map(|id| id as i32);
        if let Some(last) = rows.last_mut().filter(|_| joins) {
            let room = most - last.len();
            last.extend(ids.by_ref().take(room));
        }
        // Of a conversation only the first row: what follows would lack its beginning.
        let n_more = if joins { n_rows.saturating_sub(rows.len()) } else { 1 };
        for _ in 0..n_more {
            let row: Vec<i32> = ids.by_ref().take(most).collect();
            if row.is_empty() {
                break;
            }
            rows.push(row);
        }
        rows.len() >= n_rows && (!joins || rows.last().is_some_and(|last| last.len() == most))
    };
    if is_text {
        for encoded in Encoder::from(&tokenizer).examples(&source) {
            if add(encoded?.ids, true) {
                break;
            }
        }
    } else {
        let chat = Chat::new(&tokenizer, dir, chat.unwrap_or(&ChatArgs::default()), most)?;
        for encoded in Encoder::sft(&tokenizer, &chat).examples(&source) {
            if add(encoded?.ids, false) {
                break;
            }
        }
    }
    match rows.is_empty() {
        true => Err(Error::Usage(format!("the data set {dataset} holds no token that the model could read"))),
        false => Ok(rows),
    }
}

/// The squares of the inputs of a layer.
#[derive(Debug, Default)]
struct Seen {
    /// The sum of each column.
    sums: Vec<f64>,
    n_rows: u64,
}

/// A linear layer whose inputs are looked at.
#[derive(Debug, Module)]
struct Watched {
    #[module(name = "")]
    base: Linear,
    #[module(skip)]
    seen: Arc<Mutex<Seen>>,
}

impl Forward<Tensor> for Watched {
    type Output = Tensor;

    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let (values, n_in) = (x.to_vec::<f32>()?, x.shape().last());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.sums.resize(n_in, 0.0);
        for row in values.chunks_exact(n_in.max(1)) {
            seen.sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            seen.n_rows += 1;
        }
        self.base.forward(x)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use oarlock_gguf::{Gguf, Mix, TensorType};
    use oarlock_tensor::Par;
    use oarlock_tensor::cpu::Isa;

    use super::super::write_gguf;
    use super::*;

    /// A model, a folder with a text and a conversation, and a device.
    fn site() -> (std::path::PathBuf, tempfile::TempDir, Device) {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden/train-llama");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("text.txt"), "the king and the queen\n".repeat(40)).unwrap();
        fs::write(folder.path().join("rows.json"), "[{\"instruction\": \"a\", \"output\": \"b\"}]").unwrap();
        (golden, folder, Device::cpu(Isa::detect(), Par::threads(2).unwrap()))
    }

    #[test]
    fn squares_of_what_meets_each_weight_are_added() {
        let (model, folder, device) = site();
        let on = |dataset, chat| Calibration {
            dataset,
            dataset_dir: folder.path(),
            n_rows: 3,
            row_tokens: 16,
            chat,
        };
        let matrix = collect_importance(&model, &on("text.txt", None), &device).unwrap();
        assert_eq!(matrix, collect_importance(&model, &on("text.txt", None), &device).unwrap());
        assert_eq!((matrix.n_chunks, matrix.chunk_tokens, matrix.entries.len()), (3, 16, 14));
        let of = |name: &str| matrix.weights(&format!("blk.0.{name}.weight")).unwrap();
        assert_eq!((of("attn_q"), of("ffn_gate").len()), (of("attn_v"), 32));
        assert_eq!(of("ffn_down").len(), 80);
        // The first layer meets the embedding behind a norm, which is known without the model.
        let config = HfConfig::read(&model).unwrap();
        let decoder = Decoder::new(config.decoder().clone(), 16).unwrap();
        let mut source = SafetensorsSource::open(&model, &config, &decoder).unwrap();
        let loaded = load_from(config, decoder, &mut source, &device, DType::F32, 16).unwrap();
        let mut sums = vec![0.0f64; 32];
        let mut n = 0.0;
        let weight = |name: &str| {
            let all = nn::names_of(&loaded.decoder);
            let named = all.iter().find(|named| named.name == name).unwrap();
            named.param.weight().unwrap().to_vec::<f32>().unwrap()
        };
        let (embedding, norm) =
            (weight("model.embed_tokens.weight"), weight("model.layers.0.input_layernorm.weight"));
        for id in rows(&model, &on("text.txt", None), 16).unwrap().concat() {
            let x = &embedding[id as usize * 32..][..32];
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 32.0 + 1e-5;
            let normed = x.iter().zip(&norm).map(|(x, w)| (f64::from(*x) * f64::from(*w)).powi(2) / mean);
            sums.iter_mut().zip(normed).for_each(|(sum, square)| *sum += square);
            n += 1.0;
        }
        assert_eq!(n, 48.0);
        for (found, sum) in of("attn_q").iter().zip(sums) {
            assert!((f64::from(*found) / (sum / n) - 1.0).abs() < 1e-4, "{found} {}", sum / n);
        }
        // A conversation has one row of its own.
        let chat = ChatArgs { template: Some("alpaca".to_owned()), ..ChatArgs::default() };
        let matrix = collect_importance(&model, &on("rows.json", Some(&chat)), &device).unwrap();
        assert_eq!(matrix.n_chunks, 1);
    }

    /// Blocks keep more of the columns that matter, and are those of the quantizers with this importance.
    #[test]
    fn blocks_of_a_file_follow_its_matrix() {
        let (model, folder, _) = site();
        let mut matrix = ImportanceMatrix::default();
        let columns: Vec<f32> = (0..32).map(|i| if i % 4 == 0 { 100.0 } else { 0.01 }).collect();
        matrix.insert("blk.0.attn_v.weight", Importance::new(columns.clone(), vec![1.0]).unwrap());
        let out = folder.path().join("model.gguf");
        let far = |matrix: Option<&ImportanceMatrix>| {
            let values = |mix, matrix| {
                write_gguf(&model, &out, mix, matrix, true).unwrap();
                let bytes = fs::read(&out).unwrap();
                let gguf = Gguf::new(&bytes[..]).unwrap();
                let tensor = gguf.tensor("blk.0.attn_v.weight").unwrap();
                (tensor.tensor_type(), tensor.to_f32().unwrap())
            };
            let ((_, exact), (kind, found)) = (values(Mix::F32, None), values(Mix::Q4_0, matrix));
            assert_eq!(kind, TensorType::Q4_0);
            let errors = exact.iter().zip(&found).map(|(a, b)| (a - b).powi(2));
            errors.zip(columns.iter().cycle()).map(|(error, weight)| error * weight).sum::<f32>()
        };
        let (without, with) = (far(None), far(Some(&matrix)));
        assert!(with < 0.8 * without, "{with} {without}");
        // One of another model.
        let refused = |matrix: &ImportanceMatrix, mix| {
            write_gguf(&model, &out, mix, Some(matrix), true).unwrap_err().to_string()
        };
        let mut other = ImportanceMatrix::default();
        other.insert("blk.0.attn_v.weight", Importance::new(vec![1.0; 48], vec![1.0]).unwrap());
        assert!(
            refused(&other, Mix::Q4_0).contains("it has 48 columns of blk.0.attn_v.weight, and the model 32")
        );
        other.entries.clear();
        other.insert("blk.9.x", Importance::new(vec![1.0; 48], vec![1.0]).unwrap());
        assert!(refused(&other, Mix::Q4_0).contains("it knows blk.9.x, and none of the tensors of this one"));
    }
}
