//! Writing a decoder with weights of 4 or 8 bits as transformers and bitsandbytes store it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use oarlock_engine::checkpoint::weights::{FileDType, ModelFiles, Weight, check_weights_dtype};
use oarlock_engine::nn::names_of;
use oarlock_engine::shard::{ParamSlice, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::cpu::quantized::{BLOCK, Format, Layout, NESTED_BLOCK, Parts, Scales, dynamic_map};
use oarlock_tensor::{DType, Init, Shape};
use serde_json::json;

use super::config::{HfConfig, dtype_name};
use super::quantization::{self, is_nested, name_of};
use super::save::SaveOptions;
use crate::model::decoder::Decoder;

/// The files of a decoder whose linear layers, but the output weights, are written in 4 or 8 bits.
pub struct QuantizedFiles {
    files: ModelFiles,
    /// By the name of each tensor what it holds.
    tensors: HashMap<String, Tensor>,
}

/// What a tensor of the files holds.
struct Tensor {
    /// The parameter.
    name: String,
    shape: Shape,
    init: Init,
    /// Where it is quantized, its layout, and the part of it that this is.
    part: Option<(Layout, Part)>,
}

/// The tensors of a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Of 4 or of 8 bits.
    Codes,
    // Of 4 bits.
    Absmax,
    Map,
    NestedAbsmax,
    NestedMap,
    State,
    // Of 8 bits.
    RowAbsmax,
    RowOrder,
}

impl QuantizedFiles {
    /// The files of the model that a configuration describes; what is not quantized is in the dtype of the options.
    ///
    /// # Errors
    /// A dtype in which weights cannot be written.
    pub fn new(config: &HfConfig, format: Format, options: &SaveOptions<'_>) -> Result<QuantizedFiles> {
        check_weights_dtype(options.dtype)?;
        if let Format::Blocks(kind) = format {
            return Err(Error::Usage(format!("bitsandbytes has no blocks of {kind}; write a GGUF file")));
        }
        let mut model = Decoder::new(config.decoder().clone(), 1)?;
        let (all, quantized) = (names_of(&model), model.quantize(format, DType::F32)?);
        let (mut weights, mut tensors, mut seen) = (Vec::new(), HashMap::new(), HashSet::new());
        for named in all.into_iter().filter(|named| seen.insert(named.param.id())) {
            let stored = config.stored(&named.name);
            let (shape, init) = (*named.param.shape(), named.param.init());
            let Some(layout) = quantized.layout(&named.name) else {
                let (name, sizes, dtype) = (named.name, shape.sizes().to_vec(), options.dtype.into());
                tensors.insert(name.clone(), Tensor { name: name.clone(), shape, init, part: None });
                weights.push(Weight { name, stored, shape: sizes, dtype });
                continue;
            };
            for part in Part::of(format) {
                let name = part.name(&stored, format);
                let (sizes, dtype) = part.described(layout, options.dtype);
                weights.push(Weight { name: name.clone(), stored: name.clone(), shape: sizes, dtype });
                let part = Some((layout, part));
                tensors.insert(name, Tensor { name: named.name.clone(), shape, init, part });
            }
        }
        // Numbers behind bytes would not be aligned; the parts of 4 bits are padded.
        if format == Format::Int8 {
            weights.sort_by_key(|weight| Reverse(weight.dtype.size()));
        }
        let mut files = ModelFiles::new(&weights, options.max_shard_bytes)?;
        config.add_settings(&mut files, options.dtype, options.side_files_from)?;
        files.add_text(
            "config.json",
            config.to_quantized_json(options.dtype, quantization::quantized_json(format)),
        );
        Ok(QuantizedFiles { files, tensors })
    }

    /// Leaves a file beside the weights out that was added.
    pub fn leave_out(&mut self, name: &str) {
        self.files.leave_out(name);
    }

    /// Adds a text beside the weights.
    pub fn add_text(&mut self, name: &str, text: String) {
        self.files.add_text(name, text);
    }

    /// The same as the result of a command or a function, as [`ModelFiles::written_by`].
    #[must_use]
    pub fn written_by(self, by: &'static str, overwrites: bool) -> QuantizedFiles {
        QuantizedFiles { files: self.files.written_by(by, overwrites), ..self }
    }

    /// The names of all files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.names()
    }

    /// Writes all files into the folder `dir`, as [`ModelFiles::save`], with the weights of a source that gives quantized
    /// ones as words ([`QuantizedSource`](oarlock_engine::checkpoint::weights::QuantizedSource)); `dtype` is that of the options.
    ///
    /// # Errors
    /// When a file cannot be written, or a weight cannot be read.
    pub fn save(self, dir: &Path, weights: &mut dyn WeightSource, dtype: DType) -> Result<()> {
        let QuantizedFiles { files, tensors } = self;
        // Of 4 bits, the tensors of a weight follow each other.
        let mut last: (String, Vec<i32>) = Default::default();
        let mut values: (String, Vec<f32>) = Default::default();
        files.save(dir, &mut |name, elements, out| {
            let Some(tensor) = tensors.get(name) else { return Ok(()) };
            let Some((layout, part)) = tensor.part else {
                let (shape, init) = (tensor.shape, tensor.init);
                return weights.read(&ParamSlice { name: &tensor.name, shape, init, elements }, out);
            };
            if part == Part::RowOrder {
                // One row behind the other.
                out.fill(0.0);
                return Ok(());
            }
            if last.0 != tensor.name {
                let mut bits = vec![0.0; layout.n_words()];
                let shape = Shape::new(&[bits.len()])?;
                let (init, elements) = (Init::Zeros, 0..bits.len());
                weights.read(&ParamSlice { name: &tensor.name, shape, init, elements }, &mut bits)?;
                last = (tensor.name.clone(), bits.iter().map(|bits| bits.to_bits() as i32).collect());
            }
            if values.0 != name {
                values = (name.to_owned(), part.values(layout, &last.1, dtype));
            }
            out.copy_from_slice(&values.1[elements]);
            Ok(())
        })
    }
}

impl Part {
    fn of(format: Format) -> Vec<Part> {
        match format {
            Format::FourBit { nested: false, .. } => vec![Part::Codes, Part::Absmax, Part::Map, Part::State],
            Format::FourBit { nested: true, .. } => {
                let scales = [Part::Absmax, Part::Map, Part::NestedAbsmax, Part::NestedMap];
                [&[Part::Codes], &scales[..], &[Part::State]].concat()
            }
            Format::Int8 => vec![Part::Codes, Part::RowAbsmax, Part::RowOrder],
            Format::Blocks(_) => Vec::new(),
        }
    }

    /// What it is called beside a weight.
    fn name(self, weight: &str, format: Format) -> String {
        let layer = weight.strip_suffix(".weight").unwrap_or(weight);
        match self {
            Part::Codes => weight.to_owned(),
            Part::Absmax => format!("{weight}.absmax"),
            Part::Map => format!("{weight}.quant_map"),
            Part::NestedAbsmax => format!("{weight}.nested_absmax"),
            Part::NestedMap => format!("{weight}.nested_quant_map"),
            Part::State => format!("{weight}.quant_state.bitsandbytes__{}", name_of(format)),
            Part::RowAbsmax => format!("{layer}.SCB"),
            Part::RowOrder => format!("{layer}.weight_format"),
        }
    }

    /// Its sizes and its dtype, in a model of this dtype.
    fn described(self, layout: Layout, dtype: DType) -> (Vec<usize>, FileDType) {
        let (floats, blocks) = (FileDType::Number(DType::F32), layout.n_blocks());
        match self {
            Part::Codes if layout.format == Format::Int8 => {
                (vec![layout.rows, layout.cols], FileDType::SignedByte)
            }
            Part::Codes => (vec![layout.n_elems().div_ceil(2), 1], FileDType::Byte),
            Part::Absmax if is_nested(layout.format) => (vec![blocks], FileDType::Byte),
            Part::Absmax | Part::RowAbsmax => (vec![blocks], floats),
            Part::RowOrder => (Vec::new(), FileDType::Byte),
            Part::Map => (vec![16], floats),
            Part::NestedAbsmax => (vec![blocks.div_ceil(NESTED_BLOCK)], floats),
            Part::NestedMap => (vec![256], floats),
            Part::State => (vec![state(layout, 0.0, dtype).len()], FileDType::Byte),
        }
    }

    /// Its elements: numbers, or bytes by their values.
    fn values(self, layout: Layout, words: &[i32], dtype: DType) -> Vec<f32> {
        let bytes = |bytes: &[u8]| bytes.iter().map(|&byte| f32::from(byte)).collect();
        let (code, codes, scales) = match layout.weight(words).parts {
            Parts::FourBit { code, codes, scales } => (code, codes, scales),
            Parts::Int8 { codes, absmax } => {
                return match self {
                    Part::Codes => codes.iter().map(|&code| f32::from(code)).collect(),
                    _ => absmax.to_vec(),
                };
            }
            Parts::Blocks { .. } => return Vec::new(),
        };
        match (self, scales) {
            (Part::Codes, _) => bytes(codes),
            (Part::Absmax | Part::RowAbsmax, Scales::Nested { codes, .. }) => bytes(codes),
            (Part::Absmax | Part::RowAbsmax, Scales::Plain(absmax)) => absmax.to_vec(),
            (Part::Map, _) => code.values().to_vec(),
            (Part::NestedAbsmax, Scales::Nested { absmax, .. }) => absmax.to_vec(),
            (Part::NestedAbsmax, Scales::Plain(_)) | (Part::RowOrder, _) => Vec::new(),
            (Part::NestedMap, _) => dynamic_map().to_vec(),
            (Part::State, Scales::Nested { offset, .. }) => bytes(&state(layout, offset, dtype)),
            (Part::State, Scales::Plain(_)) => bytes(&state(layout, 0.0, dtype)),
        }
    }
}

/// The state of a weight as JSON, of a length that does not depend on the offset of its scales, and after which numbers are
/// aligned.
fn state(layout: Layout, offset: f32, dtype: DType) -> Vec<u8> {
    /// Digits of an f32 that has become an f64, with sign and exponent.
    const LONGEST: usize = 32;
    let (mut state, mut padding) = (
        json!({
            "quant_type": name_of(layout.format),
            "blocksize": BLOCK,
            "dtype": dtype_name(dtype),
            "shape": [layout.rows, layout.cols],
        }),
        0,
    );
    if is_nested(layout.format) {
        state["nested_blocksize"] = json!(NESTED_BLOCK);
        state["nested_dtype"] = json!("float32");
        state["nested_offset"] = json!(f64::from(offset));
        padding = LONGEST.saturating_sub(state["nested_offset"].to_string().len());
    }
    let mut text = state.to_string().into_bytes();
    text.resize((text.len() + padding).next_multiple_of(64), b' ');
    text
}
