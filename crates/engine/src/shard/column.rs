//! Columns: one kind of state (weights, a moment) of the elements that a rank updates, in memory or in a file.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use oarlock_tensor::ops::optimizer::EightBit;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer, Float, bf16, f16};

use crate::{Error, Result};

/// Elements that are moved at once between a file and memory.
const CHUNK: usize = 1 << 18;

/// The file in messages; it has no name of its own.
const OFFLOADED: &str = "the file of offloaded state";

/// Where a column lies.
#[derive(Clone, Debug)]
pub enum Store {
    /// In memory.
    Memory(FlatBuffer),
    /// In a file without a name, from a byte on.
    File {
        /// The file.
        file: Arc<File>,
        /// Where the column begins.
        first_byte: u64,
    },
}

impl Store {
    /// Fills `out` with bytes of a file, from byte `first` of the column on.
    ///
    /// # Errors
    /// When it is not a file, or cannot be read.
    pub fn read_bytes(&self, out: &mut [u8], first: u64) -> Result<()> {
        let (file, first_byte) = self.file()?;
        file.read_exact_at(out, first_byte + first).map_err(Error::io("read", OFFLOADED))
    }

    /// Writes bytes into a file, from byte `first` of the column on.
    ///
    /// # Errors
    /// When it is not a file, or cannot be written.
    pub fn write_bytes(&self, bytes: &[u8], first: u64) -> Result<()> {
        let (file, first_byte) = self.file()?;
        file.write_all_at(bytes, first_byte + first).map_err(Error::io("write", OFFLOADED))
    }

    fn file(&self) -> Result<(&File, u64)> {
        match self {
            Store::File { file, first_byte } => Ok((file, *first_byte)),
            Store::Memory(_) => Err(Error::Usage("state in memory is not in a file".to_string())),
        }
    }
}

/// One kind of state of one group.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name in checkpoints.
    pub kind: &'static str,
    /// What its elements are.
    pub dtype: DType,
    /// Where it lies.
    pub store: Store,
    places: Places,
}

/// How elements of a group are found in a column.
#[derive(Clone, Debug)]
enum Places {
    /// It holds the group's elements from this one on.
    From(usize),
    /// It holds something for each parameter, at these elements; empty where it holds nothing.
    Each(Vec<Range<usize>>),
    /// It holds what belongs to blocks of the parameters.
    Blocks(Vec<Blocks>),
}

/// What a column holds for the blocks of a parameter that a rank has.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// Where the column holds it.
    pub at: usize,
    /// The first element of the parameter in the group.
    pub first: usize,
    /// Which elements of the parameter's state it is.
    pub elements: Range<usize>,
    /// Whether the state is packed, so that its elements are not those of the parameter.
    pub is_packed: bool,
}

impl Blocks {
    /// Which elements of the state belong to the elements `flat` of the group.
    pub fn of(&self, flat: &Range<usize>) -> Range<usize> {
        let elements = flat.start - self.first..flat.end - self.first;
        if self.is_packed { EightBit::words(&elements) } else { elements }
    }
}

impl Column {
    /// A column that holds the group's elements from `first` on.
    pub fn of_elements(kind: &'static str, dtype: DType, store: Store, first: usize) -> Column {
        Column { kind, dtype, store, places: Places::From(first) }
    }

    /// A column that holds `places[i]` for parameter `i`.
    pub fn of_parameters(kind: &'static str, store: Store, places: Vec<Range<usize>>) -> Column {
        Column { kind, dtype: DType::F32, store, places: Places::Each(places) }
    }

    /// A column that holds `blocks[i]` for parameter `i`.
    pub fn of_blocks(kind: &'static str, store: Store, blocks: Vec<Blocks>) -> Column {
        Column { kind, dtype: DType::F32, store, places: Places::Blocks(blocks) }
    }

    /// Of the state of parameter `param`, the elements that belong to the elements `flat` of the group, and nothing where the
    /// column holds something else than blocks.
    pub fn elements(&self, param: usize, flat: &Range<usize>) -> Option<Range<usize>> {
        match &self.places {
            Places::Blocks(blocks) => Some(blocks.get(param)?.of(flat)),
            _ => None,
        }
    }

    /// Where the column has these elements of the state of parameter `param`: the inverse of [`Column::elements`].
    pub fn find(&self, param: usize, elements: &Range<usize>) -> Option<Range<usize>> {
        let Places::Blocks(blocks) = &self.places else { return None };
        let Blocks { at, elements: held, .. } = blocks.get(param)?;
        let is_here = held.start <= elements.start && elements.end <= held.end;
        is_here.then(|| at + elements.start - held.start..at + elements.end - held.start)
    }

    /// Whether it holds blocks.
    pub fn is_of_blocks(&self) -> bool {
        matches!(self.places, Places::Blocks(_))
    }

    /// What the column holds for the elements `flat` of the group, which belong to parameter `param` (where it holds
    /// something for each: for all of the parameter).
    pub fn at(&self, param: usize, flat: &Range<usize>) -> Range<usize> {
        match &self.places {
            Places::From(first) => flat.start - first..flat.end - first,
            Places::Each(places) => places.get(param).cloned().unwrap_or_default(),
            Places::Blocks(blocks) => {
                let found = blocks.get(param).and_then(|blocks| self.find(param, &blocks.of(flat)));
                found.unwrap_or_default()
            }
        }
    }

    /// The bytes that it takes in memory; the buffer may hold more than this column.
    pub fn memory_bytes(&self) -> usize {
        match &self.store {
            Store::Memory(flat) => flat.len_bytes(),
            Store::File { .. } => 0,
        }
    }

    /// Copies elements out, as f32.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, first: usize, out: &mut [f32]) -> Result<()> {
        match &self.store {
            Store::Memory(flat) => transfer::load(flat, first, self.dtype, out)?,
            file @ Store::File { .. } => {
                let size = self.dtype.size();
                let mut bytes = vec![0; size * out.len().min(CHUNK)];
                for (index, part) in out.chunks_mut(CHUNK).enumerate() {
                    let bytes = &mut bytes[..size * part.len()];
                    file.read_bytes(bytes, (size * (first + index * CHUNK)) as u64)?;
                    match self.dtype {
                        DType::BF16 => widen(&bytemuck::pod_collect_to_vec::<u8, bf16>(bytes), part),
                        DType::F16 => widen(&bytemuck::pod_collect_to_vec::<u8, f16>(bytes), part),
                        _ => bytemuck::cast_slice_mut(part).copy_from_slice(bytes),
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies f32 elements in, rounded to the column's dtype.
    ///
    /// # Errors
    /// When the file cannot be written, or somebody uses the memory.
    pub fn write(&self, device: &Device, first: usize, values: &[f32]) -> Result<()> {
        match &self.store {
            Store::Memory(flat) => transfer::store(device, values, flat, first, self.dtype)?,
            file @ Store::File { .. } => {
                for (index, part) in values.chunks(CHUNK).enumerate() {
                    let bytes = match self.dtype {
                        DType::BF16 => narrow::<bf16>(part),
                        DType::F16 => narrow::<f16>(part),
                        _ => bytemuck::cast_slice(part).to_vec(),
                    };
                    file.write_bytes(&bytes, (self.dtype.size() * (first + index * CHUNK)) as u64)?;
                }
            }
        }
        Ok(())
    }
}

fn widen<T: Float>(from: &[T], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
}

fn narrow<T: Float + bytemuck::Pod>(from: &[f32]) -> Vec<u8> {
    let rounded: Vec<T> = from.iter().map(|&x| T::from_f32(x)).collect();
    bytemuck::cast_slice(&rounded).to_vec()
}
