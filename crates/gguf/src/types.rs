//! The element types of tensors and the types of metadata values, with their numbers and sizes in a file.

use std::fmt;

/// One row for each type: its number in files, the elements of a block, and the bytes of a block.
macro_rules! tensor_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $elems:literal, $bytes:literal;)*) => {
        /// How the elements of a tensor are stored, under the names of the format.
        ///
        /// A type stores blocks of a fixed number of elements in a fixed number of bytes. A block never crosses a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(non_camel_case_types, reason = "the names of the format")]
        #[repr(u32)]
        pub enum TensorType {
            $($(#[$doc])* $name = $id,)*
        }

        impl TensorType {
            /// All types that a file of today can have, in the order of their numbers.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$name),*];

            /// The type that a file calls by this number, unless there is none.
            pub fn from_id(id: u32) -> Option<TensorType> {
                match id {
                    $($id => Some(TensorType::$name),)*
                    _ => None,
                }
            }

            /// The name in upper case, such as `Q4_K`.
            pub fn name(self) -> &'static str {
                match self {
                    $(TensorType::$name => stringify!($name),)*
                }
            }

            /// The number of elements in a block, which is 1 for plain numbers.
            pub fn block_elems(self) -> usize {
                match self {
                    $(TensorType::$name => $elems,)*
                }
            }

            /// The bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self {
                    $(TensorType::$name => $bytes,)*
                }
            }
        }
    };
}

tensor_types! {
    /// IEEE single precision.
    F32 = 0: 1, 4;
    /// IEEE half precision.
    F16 = 1: 1, 2;
    /// 4 bits around zero, with a scale for 32 elements.
    Q4_0 = 2: 32, 18;
    /// 4 bits above a minimum, with a scale for 32 elements.
    Q4_1 = 3: 32, 20;
    /// 5 bits around zero, with a scale for 32 elements.
    Q5_0 = 6: 32, 22;
    /// 5 bits above a minimum, with a scale for 32 elements.
    Q5_1 = 7: 32, 24;
    /// 8 bits around zero, with a scale for 32 elements.
    Q8_0 = 8: 32, 34;
    /// As `Q8_0`, with the sum of a block. llama.cpp uses it for activations alone.
    Q8_1 = 9: 32, 36;
    /// 2 bits above a minimum, with a scale for 16 elements.
    Q2_K = 10: 256, 84;
    /// 3 bits around zero, with a scale for 16 elements.
    Q3_K = 11: 256, 110;
    /// 4 bits above a minimum, with a scale for 32 elements of 256.
    Q4_K = 12: 256, 144;
    /// 5 bits above a minimum, with a scale for 32 elements of 256.
    Q5_K = 13: 256, 176;
    /// 6 bits around zero, with a scale for 16 elements of 256.
    Q6_K = 14: 256, 210;
    /// 8 bits with the sums of 16 elements. llama.cpp uses it for activations alone.
    Q8_K = 15: 256, 292;
    /// 2.06 bits from a codebook.
    IQ2_XXS = 16: 256, 66;
    /// 2.31 bits from a codebook.
    IQ2_XS = 17: 256, 74;
    /// 3.06 bits from a codebook.
    IQ3_XXS = 18: 256, 98;
    /// 1.56 bits from a codebook.
    IQ1_S = 19: 256, 50;
    /// 4 bits that name one of 16 uneven steps, with a scale for 32 elements.
    IQ4_NL = 20: 32, 18;
    /// 3.44 bits from a codebook.
    IQ3_S = 21: 256, 110;
    /// 2.56 bits from a codebook.
    IQ2_S = 22: 256, 82;
    /// The steps of `IQ4_NL`, with a scale for 32 elements of 256.
    IQ4_XS = 23: 256, 136;
    /// A signed byte.
    I8 = 24: 1, 1;
    /// A signed number of 16 bits.
    I16 = 25: 1, 2;
    /// A signed number of 32 bits.
    I32 = 26: 1, 4;
    /// A signed number of 64 bits.
    I64 = 27: 1, 8;
    /// IEEE double precision.
    F64 = 28: 1, 8;
    /// 1.75 bits from a codebook.
    IQ1_M = 29: 256, 56;
    /// The upper half of a single.
    BF16 = 30: 1, 2;
    /// Three values, five of them in a byte.
    TQ1_0 = 34: 256, 54;
    /// Three values in 2 bits.
    TQ2_0 = 35: 256, 66;
    /// 4 bits of OCP's microscaling, with a power of two for 32 elements.
    MXFP4 = 39: 32, 17;
    /// 4 bits with a scale of 8 bits for 16 elements.
    NVFP4 = 40: 64, 36;
    /// A sign, with a scale for 128 elements.
    Q1_0 = 41: 128, 18;
    /// 2 bits from -1 to 2, with a scale for 64 elements.
    Q2_0 = 42: 64, 18;
}

impl TensorType {
    /// The number that files call the type by.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Whether elements share a block: the plain numbers do not.
    pub fn is_quantized(self) -> bool {
        self.block_elems() > 1
    }

    /// The bytes of a row, or `None` if a row of so many elements is not whole blocks, or has too many bytes to count.
    pub fn row_bytes(self, row_elems: u64) -> Option<u64> {
        let block_elems = self.block_elems() as u64;
        match row_elems % block_elems {
            0 => (row_elems / block_elems).checked_mul(self.block_bytes() as u64),
            _ => None,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One row for each type of metadata: its number in files, its name, and the bytes of a value of fixed size.
macro_rules! value_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $shown:literal, $bytes:expr;)*) => {
        /// The type of a metadata value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType {
            $($(#[$doc])* $name = $id,)*
        }

        impl ValueType {
            /// The type that a file calls by this number, unless there is none.
            pub fn from_id(id: u32) -> Option<ValueType> {
                match id {
                    $($id => Some(ValueType::$name),)*
                    _ => None,
                }
            }

            /// The name that llama.cpp prints, such as `u32`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ValueType::$name => $shown,)*
                }
            }

            /// The bytes of a value; `None` for strings and arrays, which say their length.
            pub fn fixed_bytes(self) -> Option<usize> {
                match self {
                    $(ValueType::$name => $bytes,)*
                }
            }
        }
    };
}

value_types! {
    /// An unsigned byte.
    U8 = 0: "u8", Some(1);
    /// A signed byte.
    I8 = 1: "i8", Some(1);
    /// An unsigned number of 16 bits.
    U16 = 2: "u16", Some(2);
    /// A signed number of 16 bits.
    I16 = 3: "i16", Some(2);
    /// An unsigned number of 32 bits.
    U32 = 4: "u32", Some(4);
    /// A signed number of 32 bits.
    I32 = 5: "i32", Some(4);
    /// IEEE single precision.
    F32 = 6: "f32", Some(4);
    /// A byte that is 0 or 1.
    Bool = 7: "bool", Some(1);
    /// A text with its length.
    String = 8: "str", None;
    /// Values of one type with their number.
    Array = 9: "arr", None;
    /// An unsigned number of 64 bits.
    U64 = 10: "u64", Some(8);
    /// A signed number of 64 bits.
    I64 = 11: "i64", Some(8);
    /// IEEE double precision.
    F64 = 12: "f64", Some(8);
}

impl ValueType {
    /// The number that files call the type by.
    pub fn id(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
