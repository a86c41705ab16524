//! Weights of 4 bits in blocks with a scale each (Dettmers et al. 2023), with the numbers of bitsandbytes.
//!
//! A weight `[rows, cols]` is quantized along its elements in row-major order. Each block of 64 is divided by its largest
//! magnitude, and every element becomes the index of the nearest of 16 values. The scales may be quantized once more, to 8
//! bits in blocks of 256. All parts of a weight lie behind each other in 32-bit words, which move and are sharded like the
//! elements of any other parameter.

mod nested;
mod product;

pub use nested::dynamic_map;
pub use product::{Side, dequantize, product, product_scratch_bytes};

/// Elements that share a scale.
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

    /// The indices in the order of their values, and the midpoints between neighbours.
    fn sorted(self) -> ([u8; 16], [f32; 15]) {
        let values = self.values();
        let mut order: [u8; 16] = std::array::from_fn(|i| i as u8);
        order.sort_by(|&a, &b| values[usize::from(a)].total_cmp(&values[usize::from(b)]));
        let value = |i: usize| values[usize::from(order[i])];
        (order, std::array::from_fn(|i| (value(i) + value(i + 1)) / 2.0))
    }
}

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// The values.
    pub code: Code,
    /// Whether the scales are quantized as well (double quantization).
    pub nested: bool,
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

/// The scales of the blocks.
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
    /// Two elements in a byte, the first in the upper half.
    pub codes: &'a [u8],
    /// The scales.
    pub scales: Scales<'a>,
}

impl Layout {
    /// Elements of the weight.
    pub fn n_elems(&self) -> usize {
        self.rows * self.cols
    }

    /// Blocks of the weight.
    pub fn n_blocks(&self) -> usize {
        self.n_elems().div_ceil(BLOCK)
    }

    /// Words of the codes, of the scales or their codes, of the scales' scales, and of the offset.
    fn parts(&self) -> [usize; 4] {
        let (codes, blocks) = (self.n_elems().div_ceil(8), self.n_blocks());
        match self.format.nested {
            false => [codes, blocks, 0, 0],
            true => [codes, blocks.div_ceil(4), blocks.div_ceil(nested::BLOCK), 1],
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
        let scales = match self.format.nested {
            false => Scales::Plain(bytemuck::cast_slice(scales)),
            true => Scales::Nested {
                codes: &bytemuck::cast_slice(scales)[..self.n_blocks()],
                absmax: bytemuck::cast_slice(absmax),
                offset: f32::from_bits(offset[0] as u32),
            },
        };
        Weight { layout: *self, codes: &bytemuck::cast_slice(codes)[..self.n_elems().div_ceil(2)], scales }
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

    /// Quantizes a weight of [`Layout::n_elems`] elements into [`Layout::n_words`] words. An element that is not finite
    /// makes its block so.
    ///
    /// # Panics
    /// On slices of other lengths.
    pub fn quantize(&self, x: &[f32], words: &mut [i32]) {
        assert_eq!(x.len(), self.n_elems(), "a weight of {} x {}", self.rows, self.cols);
        assert_eq!(words.len(), self.n_words(), "a quantized weight of {} x {}", self.rows, self.cols);
        words.fill(0);
        let (codes, rest) = words.split_at_mut(self.parts()[0]);
        let mut absmax = vec![0.0; self.n_blocks()];
        self.quantize_blocks(x, bytemuck::cast_slice_mut(codes), &mut absmax);
        match self.format.nested {
            false => rest.copy_from_slice(bytemuck::cast_slice(&absmax)),
            true => {
                let (scales, rest) = rest.split_at_mut(self.parts()[1]);
                let (nested, offset) = rest.split_at_mut(self.parts()[2]);
                let codes = &mut bytemuck::cast_slice_mut(scales)[..absmax.len()];
                let mean = nested::quantize(&absmax, codes, bytemuck::cast_slice_mut(nested));
                offset[0] = mean.to_bits() as i32;
            }
        }
    }

    fn quantize_blocks(&self, x: &[f32], codes: &mut [u8], absmax: &mut [f32]) {
        let (order, midpoints) = self.format.code.sorted();
        for ((x, codes), absmax) in x.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 2)).zip(absmax) {
            *absmax = largest(x);
            let at_least = absmax.max(1e-38);
            let inverse = 1.0 / at_least;
            // As bitsandbytes, which divides only the elements of a block that is cut off.
            let is_whole = x.len() == BLOCK;
            let index = |x: f32| {
                let scaled = if is_whole { x * inverse } else { x / at_least };
                order[midpoints.iter().filter(|&&midpoint| scaled > midpoint).count()]
            };
            for (pair, byte) in x.chunks(2).zip(codes) {
                *byte = index(pair[0]) << 4 | pair.get(1).map_or(0, |&x| index(x));
            }
        }
    }
}

/// The largest magnitude, or NaN where there is one.
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, x| if x.is_nan() || most.is_nan() { f32::NAN } else { most.max(x.abs()) })
}
