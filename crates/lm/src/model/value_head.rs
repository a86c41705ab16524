//! The value head of a reward model: its layer, its file `value_head.safetensors`, and its first values.

use std::path::Path;

use oarlock_tensor::{DType, Device, Init, Param, Result, Shape, Tensor, ops};

use oarlock_engine::checkpoint::weights::{Content, ModelFiles, SafetensorsSource, Strict, Weight};
use oarlock_engine::nn::{Dropout, Module, parameters};
use oarlock_engine::shard::{ParamSlice, SeededInit, WeightSource};

/// The file beside those of a model, as LLaMA-Factory names it.
pub(crate) const FILE: &str = "value_head.safetensors";
/// What LLaMA-Factory writes in its place with `save_safetensors: false`.
const PICKLED: &str = "value_head.bin";
/// What its parameters begin with.
const PREFIX: &str = "v_head.";

/// A linear layer from the residual stream to one number, the reward: TRL's value head, whose parameters are
/// `v_head.summary.weight` `[1, E]` and `v_head.summary.bias` `[1]`, in f32.
#[derive(Debug, Module)]
pub struct ValueHead {
    #[module(name = "")]
    dropout: Dropout,
    #[module(name = "summary.weight")]
    weight: Param,
    #[module(name = "summary.bias")]
    bias: Param,
}

impl ValueHead {
    /// For a residual stream of this width, behind dropout; it starts as `torch.nn.Linear`.
    pub(super) fn new(hidden_size: usize, dropout: f32) -> Result<ValueHead> {
        let init = Init::Uniform { bound: 1.0 / (hidden_size.max(1) as f32).sqrt() };
        Ok(ValueHead {
            dropout: Dropout::new(dropout),
            weight: Param::in_f32(Shape::new(&[1, hidden_size])?, init),
            bias: Param::in_f32(Shape::new(&[1])?, init),
        })
    }

    /// x `[N, E]` in f32 → `[N]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.dropout.forward(x)?;
        let values = ops::linear(&x, &self.weight, Some(&self.bias), ops::WeightLayout::OutIn)?;
        ops::reshape(&values, [x.shape().n_rows()])
    }
}

/// Whether a parameter of a model is one of its value head, which no family stores.
pub(crate) fn is_of_value_head(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The files of `model` with that of its value head, where it has one.
///
/// # Errors
/// Weights that cannot be laid out.
pub(crate) fn with_value_head(files: ModelFiles, model: &dyn Module) -> oarlock_engine::Result<ModelFiles> {
    let shapes = parameters(model).into_iter();
    with_value_head_of(files, shapes.map(|named| (named.name, named.param.shape().sizes().to_vec())))
}

/// The same of a model with parameters of these names and shapes.
///
/// # Errors
/// Weights that cannot be laid out.
pub(crate) fn with_value_head_of(
    files: ModelFiles,
    shapes: impl Iterator<Item = (String, Vec<usize>)>,
) -> oarlock_engine::Result<ModelFiles> {
    let weights: Vec<Weight> = shapes
        .filter(|(name, _)| is_of_value_head(name))
        .map(|(name, shape)| Weight { stored: name.clone(), shape, dtype: DType::F32.into(), name })
        .collect();
    match weights.is_empty() {
        true => Ok(files),
        false => Ok(files.and(ModelFiles::new(&weights, u64::MAX)?.renamed(FILE))),
    }
}

/// Adds the value head of the first of these folders that has one to the files of a model with a residual stream of this
/// width, as it is.
///
/// # Errors
/// A file that is broken or that of another model, and weights that are not finite.
pub(crate) fn take_over_value_head<'d>(
    files: &mut ModelFiles,
    mut dirs: impl Iterator<Item = &'d Path>,
    hidden_size: usize,
) -> oarlock_engine::Result<()> {
    let Some(file) = dirs.find_map(|dir| Some(dir.join(FILE)).filter(|file| file.is_file())) else {
        return Ok(());
    };
    let (alone, mut source) = open(&file, hidden_size)?;
    for named in parameters(&alone) {
        let n_elems = named.param.shape().n_elems();
        // A source refuses what is no number.
        source.read(&ParamSlice::of(&named, 0..n_elems), &mut vec![0.0; n_elems])?;
    }
    files.add(FILE, Content::CopyOf(file));
    Ok(())
}

/// What the file of a value head holds.
#[derive(Module)]
struct Alone {
    v_head: ValueHead,
}

/// Such a file, for a residual stream of this width.
fn open(file: &Path, hidden_size: usize) -> oarlock_engine::Result<(Alone, SafetensorsSource)> {
    let alone = Alone { v_head: ValueHead::new(hidden_size, 0.0)? };
    let source = SafetensorsSource::of_module(file, &alone, Strict::Yes)?.0;
    Ok((alone, source))
}

/// The first of these folders that has a value head.
///
/// # Errors
/// A folder that has it as a pickle alone.
pub fn value_head_folder<'d>(
    dirs: impl Iterator<Item = &'d Path>,
) -> oarlock_engine::Result<Option<&'d Path>> {
    for dir in dirs {
        if dir.join(FILE).is_file() {
            return Ok(Some(dir));
        }
        if dir.join(PICKLED).is_file() {
            return Err(oarlock_engine::Error::bad_file(
                dir,
                format!(
                    "holds its value head as {PICKLED}, a pickle, and only {FILE} is read; write it again there: python -c \
                     \"import torch; from safetensors.torch import save_file; \
                     save_file(torch.load('{PICKLED}', weights_only=True), '{FILE}')\""
                ),
            ));
        }
    }
    Ok(None)
}

/// The first values of a model with a value head.
pub struct ValueHeadSource {
    base: Box<dyn WeightSource>,
    head: Box<dyn WeightSource>,
}

impl ValueHeadSource {
    /// Those of `base`, and for the head those in the folder `dir`, or new ones of a seed where there is none.
    ///
    /// # Errors
    /// A file that is broken, or is that of another model.
    pub fn new(
        base: Box<dyn WeightSource>,
        dir: Option<&Path>,
        (hidden_size, seed): (usize, u64),
        device: &Device,
    ) -> oarlock_engine::Result<ValueHeadSource> {
        let head: Box<dyn WeightSource> = match dir.map(|dir| dir.join(FILE)) {
            Some(file) => Box::new(open(&file, hidden_size)?.1),
            None => Box::new(SeededInit::new(seed, device)),
        };
        Ok(ValueHeadSource { base, head })
    }
}

impl WeightSource for ValueHeadSource {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> oarlock_engine::Result<()> {
        let source = if is_of_value_head(slice.name) { &mut self.head } else { &mut self.base };
        source.read(slice, out)
    }

    fn has(&self, name: &str) -> bool {
        if is_of_value_head(name) { self.head.has(name) } else { self.base.has(name) }
    }

    fn notes(&self) -> Vec<String> {
        [self.base.notes(), self.head.notes()].concat()
    }
}
