//! What block types have in common, and in what they differ.

/// The most elements of a block.
pub const UNIT: usize = 256;
/// The elements whose codes lie together.
pub(super) const RUN: usize = 32;
/// The rows of a panel.
pub(super) const LANES: usize = 16;
/// The bytes of a vector of codes: four elements of each row.
pub(super) const VECTOR: usize = 4 * LANES;
/// The bytes of the scales of a panel in half precision.
pub(super) const HALVES: usize = 2 * LANES;

/// The types of blocks, under the names of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names of the format")]
pub enum BlockType {
    /// 4 bits around zero, with a scale for 32 elements.
    Q4_0,
    /// 4 bits above a minimum, with a scale for 32 elements.
    Q4_1,
    /// 5 bits around zero, with a scale for 32 elements.
    Q5_0,
    /// 5 bits above a minimum, with a scale for 32 elements.
    Q5_1,
    /// 8 bits around zero, with a scale for 32 elements.
    Q8_0,
    /// 4 bits above a minimum, with a scale for 32 elements of 256.
    Q4_K,
    /// 5 bits above a minimum, with a scale for 32 elements of 256.
    Q5_K,
    /// 6 bits around zero, with a scale for 16 elements of 256.
    Q6_K,
}

/// How the elements of a type follow from their codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// The bits of a code.
    pub bits: u32,
    /// The code that stands for zero.
    pub zero: i32,
    /// Whether there are minima.
    pub has_min: bool,
    /// The elements with a scale in half precision, and of x with a scale.
    pub unit: usize,
    /// Where scales are integers times that scale: the elements with one of these.
    pub group: Option<usize>,
}

/// A type of blocks that the compiler knows.
pub(super) trait Kind {
    const FORM: Form;
}

const fn small(bits: u32, zero: i32, has_min: bool) -> Form {
    Form { bits, zero, has_min, unit: RUN, group: None }
}

const fn large(bits: u32, zero: i32, has_min: bool, group: usize) -> Form {
    Form { bits, zero, has_min, unit: UNIT, group: Some(group) }
}

macro_rules! kinds {
    ($($name:ident: $form:expr;)*) => {
        $(#[allow(non_camel_case_types, reason = "the names of the format")]
        pub(super) struct $name;
        impl Kind for $name {
            const FORM: Form = $form;
        })*

        impl BlockType {
            /// All of them.
            pub const ALL: &[BlockType] = &[$(BlockType::$name),*];

            pub(super) fn form(self) -> Form {
                match self {
                    $(BlockType::$name => $name::FORM,)*
                }
            }
        }

        /// A function that is generic over a machine and a kind, for the kind of a type.
        macro_rules! of_kind {
            ($type:expr, $f:ident, $machine:ty) => {
                match $type {
                    $($crate::block_quantized::form::BlockType::$name => $f::<$machine, $crate::block_quantized::form::$name>,)*
                }
            };
        }
        pub(super) use of_kind;
    };
}

kinds! {
    Q4_0: small(4, 8, false);
    Q4_1: small(4, 0, true);
    Q5_0: small(5, 16, false);
    Q5_1: small(5, 0, true);
    Q8_0: small(8, 128, false);
    Q4_K: large(4, 0, true, 32);
    Q5_K: large(5, 0, true, 32);
    Q6_K: large(6, 32, false, 16);
}

impl Form {
    /// The bytes of the scales of a unit of a panel: scales, minima, integer scales, integer minima, each of the 16 rows side
    /// by side.
    pub(super) const fn head_bytes(self) -> usize {
        let halves = if self.has_min { 2 * HALVES } else { HALVES };
        match self.group {
            None => halves,
            Some(group) => {
                let minima = if self.has_min { UNIT / group * LANES } else { 0 };
                halves + UNIT / group * LANES + minima
            }
        }
    }

    /// The bytes of 32 codes of each row: of the low four bits, with two codes in a byte, and of the bits above those; or of
    /// all eight.
    pub(super) const fn run_bytes(self) -> usize {
        self.bits as usize * VECTOR
    }

    /// The elements of x whose sum is taken.
    pub(super) const fn sum(self) -> usize {
        match self.group {
            Some(group) => group,
            None => RUN,
        }
    }
}
