//! In which form the files of a folder hold quantized weights.

/// How the weights of a folder are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredQuantization {
    /// bitsandbytes, 4 bits.
    FourBit,
    /// bitsandbytes, 8 bits and a scale for each row.
    EightBit,
    /// GPTQ: groups along the inputs, zero points.
    Gptq {
        /// Bits of a weight: 2, 4 or 8.
        bits: u32,
        /// Inputs of a group.
        group_size: usize,
        /// Whether zero points are stored less 1, as in all but format 2.
        zeros_less_one: bool,
    },
    /// AWQ, 4 bits in the order of its GEMM kernels.
    Awq {
        /// Inputs of a group.
        group_size: usize,
    },
}

impl StoredQuantization {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            StoredQuantization::FourBit => "bitsandbytes (4 bits)",
            StoredQuantization::EightBit => "bitsandbytes (8 bits)",
            StoredQuantization::Gptq { .. } => "GPTQ",
            StoredQuantization::Awq { .. } => "AWQ",
        }
    }

    /// Whether layers compute with such weights as they are; others are dequantized when they are read.
    pub fn is_kept(self) -> bool {
        matches!(self, StoredQuantization::FourBit | StoredQuantization::EightBit)
    }
}
