//! Models with more tokens than their files: the vocabulary grows, and the rows of new tokens begin near the mean of the
//! others, as LLaMA-Factory begins them.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock_engine::Result;
use oarlock_engine::checkpoint::weights::SafetensorsSource;
use oarlock_engine::shard::{ParamSlice, SeededInit, WeightSource};
use oarlock_tensor::{Device, Init, Shape};

use super::config::HfConfig;
use crate::model::decoder::Decoder;

/// The embedding, and the output weights.
const EMBEDDING: &str = "model.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";

/// Elements that are read at a time.
const CHUNK_ELEMS: usize = 1 << 18;

/// How the rows of new tokens begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewRows {
    /// Of some tokens: the tokens whose mean they begin as. Others begin as the mean of all.
    pub described: BTreeMap<u32, Vec<u32>>,
    /// Whether described ones get noise as well; others always do.
    pub with_noise: bool,
    /// The seed of the noise.
    pub seed: u64,
}

/// The weights of the folder `dir` for the decoder that `hf` describes, whose vocabulary may have grown.
///
/// # Errors
/// As [`SafetensorsSource::open`].
pub fn open_weights(
    dir: &Path,
    hf: &HfConfig,
    rows: &NewRows,
    device: &Device,
) -> Result<Box<dyn WeightSource>> {
    let stored = hf.as_stored();
    let plain = Decoder::new(stored.decoder().clone(), 1)?;
    let full = SafetensorsSource::open(dir, &stored, &plain)?;
    let n_stored = stored.decoder().vocab_size;
    if n_stored == hf.decoder().vocab_size {
        return Ok(Box::new(full));
    }
    let noise = SeededInit::new(rows.seed, device);
    Ok(Box::new(GrownSource { full, n_stored, rows: rows.clone(), noise, means: BTreeMap::new() }))
}

/// The weights of a model whose embedding and output weights have more rows than its files.
struct GrownSource {
    full: SafetensorsSource,
    n_stored: usize,
    rows: NewRows,
    noise: SeededInit,
    /// Means of the rows of the files, by the names of the weights.
    means: BTreeMap<String, Vec<f32>>,
}

impl GrownSource {
    /// Some rows of the files.
    fn stored(&mut self, name: &str, n_cols: usize, first: usize, out: &mut [f32]) -> Result<()> {
        let shape = Shape::new(&[self.n_stored, n_cols])?;
        let elements = first * n_cols..first * n_cols + out.len();
        self.full.read(&ParamSlice { name, shape, init: Init::Zeros, elements }, out)
    }

    /// The mean of all rows of the files.
    fn mean(&mut self, name: &str, n_cols: usize) -> Result<Vec<f32>> {
        if let Some(mean) = self.means.get(name) {
            return Ok(mean.clone());
        }
        let mut sums = vec![0.0f64; n_cols];
        let n_at_once = (CHUNK_ELEMS / n_cols).max(1);
        let mut values = Vec::new();
        for first in (0..self.n_stored).step_by(n_at_once) {
            values.resize(n_at_once.min(self.n_stored - first) * n_cols, 0.0);
            self.stored(name, n_cols, first, &mut values)?;
            for row in values.chunks_exact(n_cols) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
        }
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / self.n_stored as f64) as f32).collect();
        self.means.insert(name.to_owned(), mean.clone());
        Ok(mean)
    }

    /// A new row without noise, and whether it gets some. Output weights begin from the embedding of a description as well,
    /// as in LLaMA-Factory.
    fn begin(&mut self, name: &str, row: usize, n_cols: usize) -> Result<(Vec<f32>, bool)> {
        let described = u32::try_from(row).ok().and_then(|row| self.rows.described.get(&row)).cloned();
        let known: Vec<u32> =
            described.iter().flatten().copied().filter(|id| (*id as usize) < self.n_stored).collect();
        if known.is_empty() {
            return Ok((self.mean(name, n_cols)?, true));
        }
        let mut sums = vec![0.0f64; n_cols];
        let mut values = vec![0.0; n_cols];
        for id in &known {
            self.stored(EMBEDDING, n_cols, *id as usize, &mut values)?;
            sums.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let mean = sums.iter().map(|sum| (sum / known.len() as f64) as f32);
        Ok((mean.collect(), self.rows.with_noise))
    }
}

impl WeightSource for GrownSource {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let &[n_rows, n_cols] = slice.shape.sizes() else { return self.full.read(slice, out) };
        if ![EMBEDDING, OUTPUT].contains(&slice.name) || n_rows <= self.n_stored {
            return self.full.read(slice, out);
        }
        let (start, end) = (slice.elements.start, slice.elements.end);
        let n_old = end.min(self.n_stored * n_cols).saturating_sub(start);
        if n_old > 0 {
            let shape = Shape::new(&[self.n_stored, n_cols])?;
            let elements = start..start + n_old;
            self.full.read(
                &ParamSlice { name: slice.name, shape, init: slice.init, elements },
                &mut out[..n_old],
            )?;
        }
        let new = &mut out[n_old..];
        if new.is_empty() {
            return Ok(());
        }
        let init = Init::Normal { std: 1.0 / (n_cols as f32).sqrt() };
        let drawn = ParamSlice { init, elements: start + n_old..end, ..slice.clone() };
        self.noise.read(&drawn, new)?;
        let mut at = start + n_old;
        while at < end {
            let row = at / n_cols;
            let row_end = ((row + 1) * n_cols).min(end);
            let (begins, is_noisy) = self.begin(slice.name, row, n_cols)?;
            let own = &mut new[at - start - n_old..row_end - start - n_old];
            for (value, mean) in own.iter_mut().zip(&begins[at - row * n_cols..]) {
                *value = mean + if is_noisy { *value } else { 0.0 };
            }
            at = row_end;
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.full.has(name)
    }

    fn notes(&self) -> Vec<String> {
        self.full.notes()
    }
}
