//! PiSSA (Meng et al. 2024): adapters that begin as the largest singular values of a weight with their vectors, which the
//! base then lacks, and what such an adapter is to the base as it was.

use std::path::Path;

use oarlock_config::config::{AdapterConfig, AdapterKind, LoraInit};
use oarlock_engine::checkpoint::weights::{ModelFiles, Weight};
use oarlock_engine::disk::Writer;
use oarlock_engine::nn::parameters;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::ops::singular::{Search, largest_singular};
use oarlock_tensor::{DType, Device, Init, Shape};

use super::adaptation::{Adaptation, LowRank};
use super::folder::{Adapter, PARTS, adapter_text, as_adapter, is_of_adapter, stored_name};
use super::origin;
use super::update::add_update;
use crate::model::hf::take_over_side_files;
use crate::model::{Decoder, HfConfig};

/// What PiSSA takes out of a weight: its best approximation of a rank.
#[derive(Clone, Debug)]
pub(super) struct Principal {
    /// `lora_A`, `[rank, inputs]`.
    pub a: Vec<f32>,
    /// `lora_B`, `[outputs, rank]`.
    pub b: Vec<f32>,
    module: LowRank,
}

impl Principal {
    /// Of the weight of a layer, all of it.
    ///
    /// # Errors
    /// A rank that the weight does not have.
    pub(super) fn of(
        device: &Device,
        path: &str,
        weight: &[f32],
        [n_out, n_in]: [usize; 2],
        module: LowRank,
        iterations: Option<usize>,
    ) -> Result<Principal> {
        let rank = module.rank;
        if rank > n_out.min(n_in) {
            return Err(Error::Model(format!(
                "pissa_init: {path} has a weight of {n_out} x {n_in}, and an adapter of rank {rank} more singular values; \
                 write a lora_rank of at most {}",
                n_out.min(n_in)
            )));
        }
        let search = iterations.map_or(Search::Exact, Search::Iterations);
        let found = largest_singular(device, weight, [n_out, n_in], rank, search)?;
        let scale = f64::from(module.scale);
        let share = |index: usize| (found.values[index] / scale).sqrt();
        let a = found.right.iter().enumerate().map(|(at, x)| (share(at / n_in) * x) as f32).collect();
        let b = (0..n_out * rank)
            .map(|at| (share(at % rank) * found.left[at % rank * n_out + at / rank]) as f32)
            .collect();
        Ok(Principal { a, b, module })
    }

    /// Takes it out of rows of the weight, from `first` on.
    pub(super) fn subtract(&self, first: usize, rows: &mut [f32]) {
        let module = LowRank { scale: -self.module.scale, ..self.module };
        add_update(&self.a, &self.b, module, first, rows);
    }
}

/// Writes what an adapter of PiSSA is to the base as it was: an ordinary one of twice the rank, whose update is the
/// difference of what was trained and what it began as. `first` has the values that the adapter began with.
///
/// # Errors
/// Settings that no ordinary adapter has, and what goes wrong while reading and writing.
pub fn convert_pissa(
    hf: &HfConfig,
    model: &Decoder,
    adapter: &Adapter,
    first: &mut dyn WeightSource,
    beside: (&str, Option<&Path>),
    writer: Writer,
    out: &Path,
) -> Result<()> {
    let converted = doubled(&Adaptation::of(adapter))?;
    let is = |name: &str, part: &str| name.strip_suffix(part).is_some_and(|path| path.ends_with('.'));
    let mut tensors = Vec::new();
    for (name, (shape, values)) in adapter.tensors() {
        let (shape, values) = match (is(name, PARTS[0]), is(name, PARTS[1])) {
            (false, false) => (shape.clone(), values.clone()),
            (is_a, _) => {
                let mut began = vec![0.0; values.len()];
                let slice = ParamSlice {
                    name,
                    shape: Shape::new(shape)?,
                    init: Init::Zeros,
                    elements: 0..values.len(),
                };
                first.read(&slice, &mut began)?;
                match is_a {
                    true => (vec![2 * shape[0], shape[1]], [values.as_slice(), &began].concat()),
                    false => (vec![shape[0], 2 * shape[1]], side_by_side(values, &began, shape[1])),
                }
            }
        };
        tensors.push((name.clone(), shape, values));
    }
    let shapes = tensors.iter().map(|(name, shape, _)| (name.clone(), shape.clone()));
    let files = laid_out(hf, model, &converted, shapes, beside)?;
    files.written_by(writer.by, writer.overwrites).save(out, &mut |name, elements, values| {
        if let Some((_, _, found)) = tensors.iter().find(|(own, _, _)| own == name) {
            values.copy_from_slice(&found[elements]);
        }
        Ok(())
    })
}

/// The files that [`convert_pissa`] writes of an adapted model, for their names.
///
/// # Errors
/// As there.
pub fn converted_files(
    hf: &HfConfig,
    model: &Decoder,
    adaptation: &Adaptation,
    beside: (&str, Option<&Path>),
) -> Result<ModelFiles> {
    let trained = parameters(model).into_iter().filter(is_of_adapter);
    let shapes = trained.map(|named| (named.name, named.param.shape().sizes().to_vec()));
    laid_out(hf, model, &doubled(adaptation)?, shapes, beside)
}

/// What an adapter of PiSSA is converted to.
fn doubled(adaptation: &Adaptation) -> Result<Adaptation> {
    let Some(lora) = adaptation.config.lora() else {
        return Err(Error::Model("only an adapter of PiSSA can be converted to an ordinary one".to_owned()));
    };
    if lora.use_dora {
        return Err(Error::Model(
            "an adapter of PiSSA with use_dora cannot be converted: its lengths are of another base"
                .to_owned(),
        ));
    }
    let mut config = lora.clone();
    // So that an update still counts as much.
    let more = if config.use_rslora { 2f64.sqrt() } else { 2.0 };
    config.alpha = Some(more * config.alpha.unwrap_or(2.0 * config.rank as f64));
    config.alpha_pattern.iter_mut().for_each(|(_, alpha)| *alpha *= more);
    config.rank *= 2;
    config.rank_pattern.iter_mut().for_each(|(_, rank)| *rank *= 2);
    config.init = LoraInit::Kaiming;
    let config = AdapterConfig { kind: AdapterKind::Lora(config), ..adaptation.config.clone() };
    Ok(Adaptation { config, ..adaptation.clone() })
}

/// The files of an adapter with tensors of these names and shapes.
fn laid_out(
    hf: &HfConfig,
    model: &Decoder,
    adaptation: &Adaptation,
    shapes: impl Iterator<Item = (String, Vec<usize>)>,
    (base, tokenizer): (&str, Option<&Path>),
) -> Result<ModelFiles> {
    let weight = |(name, shape): (String, Vec<usize>)| Weight {
        stored: stored_name(hf, &name),
        shape,
        dtype: DType::F32.into(),
        name,
    };
    let weights: Vec<Weight> = shapes.map(weight).collect();
    let metadata = origin::metadata(adaptation.base.as_ref());
    let mut files = ModelFiles::with_metadata(&weights, u64::MAX, metadata)?;
    adapter_text(&mut files, hf, model, adaptation, base);
    if let Some(tokenizer) = tokenizer {
        take_over_side_files(&mut files, tokenizer, &[])?;
    }
    Ok(as_adapter(files))
}

/// Rows of `[values, -began]`.
fn side_by_side(values: &[f32], began: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.chunks_exact(cols).zip(began.chunks_exact(cols));
    rows.flat_map(|(row, began)| row.iter().copied().chain(began.iter().map(|x| -x))).collect()
}
