//! Weights of 4 bits in blocks with a scale each (Dettmers et al. 2023), and of 8 bits in rows with a scale each (Dettmers et
//! al. 2022), with the numbers of bitsandbytes.
//!
//! In 4 bits a weight `[rows, cols]` is quantized along its elements in row-major order. Each block of 64 is divided by its
//! largest magnitude, and every element becomes the index of the nearest of 16 values. The scales may be quantized once
//! more, to 8 bits in blocks of 256. In 8 bits each row is multiplied so that its largest magnitude becomes 127, and
//! rounded. Weights in the blocks of a GGUF file are kept as well; these come from files alone. All parts of a weight lie behind each other in 32-bit words, which move and are sharded like the elements of
//! any other parameter.

mod blocks;
mod expand;
mod nested;
mod product;
mod quantize;

pub use oarlock_gguf::TensorType;

pub use nested::{BLOCK as NESTED_BLOCK, dynamic_map, unsigned_dynamic_map};
pub use product::{Side, dequantize, product, product_scratch_bytes};

/// Elements of 4 bits that share a scale.
pub const BLOCK: usize = 64;

/// The 16 values of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Quantiles of a normal distribution.
    Nf4,
    /// A sign, two bits of exponent, one of mantissa.
    Fp4,
}

impl Code {
    /// What each index means, of a block whose scale is 1.
    pub fn values(self) -> &'static [f32; 16] {
        match self {
            Code::Nf4 => &[
                -1.0,
                -0.696_192_8,
                -0.525_073_05,
                -0.394_917_5,
                -0.284_441_38,
                -0.184_773_43,
                -0.091_050_036,
                0.0,
                0.079_580_3,
                0.160_930_2,
                0.246_112_3,
                0.337_915_24,
                0.440_709_83,
                0.562_617,
                0.722_956_84,
                1.0,
            ],
            Code::Fp4 => &[
                0.0,
                0.005_208_333_5,
                0.666_666_7,
                1.0,
                0.333_333_34,
                0.5,
                0.166_666_67,
                0.25,
                0.0,
                -0.005_208_333_5,
                -0.666_666_7,
                -1.0,
                -0.333_333_34,
                -0.5,
                -0.166_666_67,
                -0.25,
            ],
        }
    }
}

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// To 4 bits, in blocks.
    FourBit {
        /// The values.
        code: Code,
        /// Whether the scales are quantized as well (double quantization).
        nested: bool,
    },
    /// To integers of 8 bits, in rows (LLM.int8).
    Int8,
    /// In the blocks of a type of GGUF, which rows consist of.
    Blocks(TensorType),
}

impl Format {
    /// Bits of an element, without its share of the scales.
    pub fn bits(self) -> usize {
        match self {
            Format::FourBit { .. } => 4,
            Format::Int8 => 8,
            Format::Blocks(kind) => 8 * kind.block_bytes() / kind.block_elems(),
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Format::FourBit { code: Code::Nf4, nested: false } => "nf4",
            Format::FourBit { code: Code::Nf4, nested: true } => "nf4 with double quantization",
            Format::FourBit { code: Code::Fp4, nested: false } => "fp4",
            Format::FourBit { code: Code::Fp4, nested: true } => "fp4 with double quantization",
            Format::Int8 => "int8",
            Format::Blocks(kind) => kind.name(),
        })
    }
}

/// The size and format of a quantized weight, and with them where its parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Rows of the weight.
    pub rows: usize,
    /// Columns of the weight.
    pub cols: usize,
    /// How it is quantized.
    pub format: Format,
}

/// The codes of a weight, and the largest magnitudes that they are relative to.
#[derive(Clone, Copy, Debug)]
pub enum Parts<'a> {
    /// Two elements in a byte, the first in the upper half: indices into the values of a code.
    FourBit {
        /// The code.
        code: Code,
        /// Those of the elements.
        codes: &'a [u8],
        /// Those of the blocks.
        scales: Scales<'a>,
    },
    /// An integer for each element.
    Int8 {
        /// Those of the elements.
        codes: &'a [i8],
        /// The largest magnitude of each row, which is 127.
        absmax: &'a [f32],
    },
    /// Blocks of a GGUF file.
    Blocks {
        /// Their type.
        kind: TensorType,
        /// Those of all rows, one behind the other.
        bytes: &'a [u8],
    },
}

/// The scales of the blocks of 4 bits.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// As they are.
    Plain(&'a [f32]),
    /// Quantized: `map[code] * absmax of its block + offset`.
    Nested {
        /// Indices into [`dynamic_map`].
        codes: &'a [u8],
        /// The scale of each 256 of them.
        absmax: &'a [f32],
        /// The mean of the scales.
        offset: f32,
    },
}

/// A quantized weight.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// Its size and format.
    pub layout: Layout,
    /// What its words hold.
    pub parts: Parts<'a>,
}

impl Layout {
    /// Elements of the weight.
    pub fn n_elems(&self) -> usize {
        self.rows * self.cols
    }

    /// Blocks of the weight, or where it has 8 bits, rows.
    pub fn n_blocks(&self) -> usize {
        match self.format {
            Format::FourBit { .. } => self.n_elems().div_ceil(BLOCK),
            Format::Int8 => self.rows,
            Format::Blocks(kind) => self.n_elems() / kind.block_elems(),
        }
    }

    /// Bytes of a row in the blocks of a GGUF file; 0 of any other format.
    pub fn row_bytes(&self) -> usize {
        match self.format {
            Format::Blocks(kind) => self.cols / kind.block_elems() * kind.block_bytes(),
            Format::FourBit { .. } | Format::Int8 => 0,
        }
    }

    /// Words of the codes, of the scales or their codes, of the scales' scales, and of the offset.
    pub fn parts(&self) -> [usize; 4] {
        let (codes, blocks) = ((self.n_elems() * self.format.bits()).div_ceil(32), self.n_blocks());
        match self.format {
            Format::FourBit { nested: true, .. } => {
                [codes, blocks.div_ceil(4), blocks.div_ceil(nested::BLOCK), 1]
            }
            Format::FourBit { nested: false, .. } | Format::Int8 => [codes, blocks, 0, 0],
            Format::Blocks(_) => [(self.rows * self.row_bytes()).div_ceil(4), 0, 0, 0],
        }
    }

    /// 32-bit words of the whole.
    pub fn n_words(&self) -> usize {
        self.parts().iter().sum()
    }

    /// The weight in these words.
    ///
    /// # Panics
    /// If there are not [`Layout::n_words`] of them.
    pub fn weight<'a>(&self, words: &'a [i32]) -> Weight<'a> {
        let [codes, scales, absmax, offset] = self.split(words);
        let parts = match self.format {
            Format::FourBit { code, nested } => Parts::FourBit {
                code,
                codes: &bytemuck::cast_slice(codes)[..self.n_elems().div_ceil(2)],
                scales: match nested {
                    false => Scales::Plain(bytemuck::cast_slice(scales)),
                    true => Scales::Nested {
                        codes: &bytemuck::cast_slice(scales)[..self.n_blocks()],
                        absmax: bytemuck::cast_slice(absmax),
                        offset: f32::from_bits(offset[0] as u32),
                    },
                },
            },
            Format::Int8 => Parts::Int8 {
                codes: &bytemuck::cast_slice(codes)[..self.n_elems()],
                absmax: bytemuck::cast_slice(scales),
            },
            Format::Blocks(kind) => {
                Parts::Blocks { kind, bytes: &bytemuck::cast_slice(codes)[..self.rows * self.row_bytes()] }
            }
        };
        Weight { layout: *self, parts }
    }

    fn split<'a>(&self, words: &'a [i32]) -> [&'a [i32]; 4] {
        assert_eq!(words.len(), self.n_words(), "a quantized weight of {} x {}", self.rows, self.cols);
        let mut rest = words;
        self.parts().map(|len| {
            let (part, behind) = rest.split_at(len);
            rest = behind;
            part
        })
    }
}
