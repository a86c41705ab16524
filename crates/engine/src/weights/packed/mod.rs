//! Quantized weights in files: tensors of several parts that together stand for one matrix.

mod eight_bit;
mod four_bit;
mod grouped;
mod stored;

use std::collections::BTreeMap;
use std::ops::Range;

use oarlock_comm::MappedFile;
use oarlock_tensor::cpu::quantized::Layout;
use safetensors::Dtype;

use self::eight_bit::EightBit;
use self::four_bit::FourBit;
use self::grouped::{Grouped, Order};
pub use self::stored::StoredQuantization;
use super::source::Located;

/// A quantized matrix `[outputs, inputs]` in files.
#[derive(Clone, Debug)]
pub(super) enum Packed {
    FourBit(FourBit),
    EightBit(EightBit),
    Grouped(Grouped),
}

/// What is wrong with a tensor.
type Problem = String;

/// Puts the matrices that parts stand for in the place of these parts.
pub(super) fn gather(
    quantization: StoredQuantization,
    found: &mut BTreeMap<String, Located>,
    files: &[MappedFile],
) -> Result<(), Problem> {
    let marks: &[&str] = match quantization {
        StoredQuantization::FourBit => &[".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"],
        StoredQuantization::EightBit => &[".SCB"],
        StoredQuantization::Gptq { .. } | StoredQuantization::Awq { .. } => &[".qweight"],
    };
    let marked: Vec<(String, &str)> = found
        .keys()
        .filter_map(|name| marks.iter().find_map(|mark| Some((name.strip_suffix(mark)?.to_owned(), *mark))))
        .collect();
    for (path, mark) in marked {
        let mut parts = Parts { found, files, path: &path };
        let (name, packed) = match quantization {
            StoredQuantization::FourBit => (path.clone(), Packed::FourBit(FourBit::take(&mut parts, mark)?)),
            StoredQuantization::EightBit => {
                (format!("{path}.weight"), Packed::EightBit(EightBit::take(&mut parts)?))
            }
            StoredQuantization::Gptq { bits, group_size, zeros_less_one } => {
                let order = Order::Gptq { bits, zeros_less_one };
                (format!("{path}.weight"), Packed::Grouped(Grouped::take(&mut parts, order, group_size)?))
            }
            StoredQuantization::Awq { group_size } => (
                format!("{path}.weight"),
                Packed::Grouped(Grouped::take(&mut parts, Order::Awq, group_size)?),
            ),
        };
        let shape = packed.shape().to_vec();
        found.insert(
            name,
            Located { file: 0, bytes: 0..0, shape, dtype: Dtype::F32, packed: Some(packed.into()) },
        );
    }
    Ok(())
}

impl Packed {
    fn shape(&self) -> [usize; 2] {
        match self {
            Packed::FourBit(packed) => [packed.layout.rows, packed.layout.cols],
            Packed::EightBit(packed) => [packed.layout.rows, packed.layout.cols],
            Packed::Grouped(packed) => packed.shape,
        }
    }

    /// The layout of a matrix that layers compute with as it is.
    pub fn layout(&self) -> Option<Layout> {
        match self {
            Packed::FourBit(packed) => Some(packed.layout),
            Packed::EightBit(packed) => Some(packed.layout),
            Packed::Grouped(_) => None,
        }
    }

    /// The words of such a matrix.
    pub fn words(&self, files: &[MappedFile]) -> Option<Vec<i32>> {
        match self {
            Packed::FourBit(packed) => Some(packed.words(files)),
            Packed::EightBit(packed) => Some(packed.words(files)),
            Packed::Grouped(_) => None,
        }
    }

    /// Elements of any other, in row-major order.
    pub fn read(&self, files: &[MappedFile], elements: Range<usize>, out: &mut [f32]) {
        if let Packed::Grouped(packed) = self {
            packed.read(files, elements, out);
        }
    }
}

/// The parts of a matrix among the tensors of files.
struct Parts<'a> {
    found: &'a mut BTreeMap<String, Located>,
    files: &'a [MappedFile],
    path: &'a str,
}

impl Parts<'_> {
    /// Takes the tensor with this ending out.
    fn take(&mut self, ending: &str) -> Result<Located, Problem> {
        self.take_if_there(ending)
            .ok_or_else(|| format!("lacks {}{ending}, a part of a quantized weight", self.path))
    }

    fn take_if_there(&mut self, ending: &str) -> Option<Located> {
        self.found.remove(&format!("{}{ending}", self.path))
    }

    /// As [`Parts::take`], of a dtype and a number of elements.
    fn take_as(&mut self, ending: &str, dtypes: &[Dtype], n_elems: usize) -> Result<Located, Problem> {
        let part = self.take(ending)?;
        let found: usize = part.shape.iter().product();
        match dtypes.contains(&part.dtype) && found == n_elems {
            true => Ok(part),
            false => Err(format!(
                "holds {}{ending} {:?} of {:?}; expected {n_elems} elements of {:?}",
                self.path, part.shape, part.dtype, dtypes[0]
            )),
        }
    }

    fn bytes(&self, part: &Located) -> &[u8] {
        &self.files[part.file][part.bytes.clone()]
    }

    fn wrong(&self, message: &str) -> Problem {
        format!("holds a quantized weight {} {message}", self.path)
    }
}

/// The words of parts, each of which begins a word.
fn words_of(parts: &[&[u8]]) -> Vec<i32> {
    let words = parts.iter().flat_map(|part| part.chunks(4)).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        i32::from_le_bytes(word)
    });
    words.collect()
}

fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk))
}
