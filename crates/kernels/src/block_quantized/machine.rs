//! What products of blocks need of a CPU, and the same in plain Rust.

use super::form::{LANES, VECTOR};
use crate::dtype::f16;
use crate::isa::vector_methods;

/// The vectors of a CPU: 64 bytes of codes, and a number for each of the 16 rows of a panel. Functions may be called only on a
/// CPU that has their instructions, and with pointers to as many elements as they read or write.
pub(super) trait Machine {
    type Bytes: Copy;
    type Ints: Copy;
    type Floats: Copy;
    /// The most rows of x that are multiplied together.
    const ROWS: usize;
    /// The code of 8 bits that stands for zero, after [`Machine::eight`].
    const ZERO_OF_EIGHT: i32;

    unsafe fn bytes(p: *const u8) -> Self::Bytes;
    unsafe fn and(x: Self::Bytes, mask: u8) -> Self::Bytes;
    unsafe fn or(x: Self::Bytes, y: Self::Bytes) -> Self::Bytes;
    /// All bits to the left or right within words of 16 bits.
    unsafe fn left(x: Self::Bytes, n: u32) -> Self::Bytes;
    unsafe fn right(x: Self::Bytes, n: u32) -> Self::Bytes;
    /// Codes of 8 bits as [`Machine::dot_eight`] takes them.
    unsafe fn eight(x: Self::Bytes) -> Self::Bytes;

    unsafe fn ints(x: i32) -> Self::Ints;
    /// Signed bytes.
    unsafe fn small_ints(p: *const u8) -> Self::Ints;
    unsafe fn multiply_add(x: Self::Ints, y: Self::Ints, sum: Self::Ints) -> Self::Ints;
    /// Adds the products of four codes of up to 6 bits with the four signed bytes of `x`, which are not -128.
    unsafe fn dot(sum: Self::Ints, codes: Self::Bytes, x: i32) -> Self::Ints;
    /// The same with codes of 8 bits.
    unsafe fn dot_eight(sum: Self::Ints, codes: Self::Bytes, x: i32) -> Self::Ints;

    unsafe fn floats(x: f32) -> Self::Floats;
    unsafe fn halves(p: *const u8) -> Self::Floats;
    unsafe fn to_floats(x: Self::Ints) -> Self::Floats;
    unsafe fn multiply(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    unsafe fn add(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    unsafe fn subtract(x: Self::Floats, y: Self::Floats) -> Self::Floats;
    unsafe fn array(x: Self::Floats) -> [f32; LANES];
}

/// Plain Rust.
pub(super) struct Portable;

impl Machine for Portable {
    type Bytes = [u8; VECTOR];
    type Ints = [i32; LANES];
    type Floats = [f32; LANES];
    const ROWS: usize = 1;
    const ZERO_OF_EIGHT: i32 = 128;

    vector_methods! {
        fn bytes(p: *const u8) -> [u8; VECTOR] { p.cast::<[u8; VECTOR]>().read_unaligned() }
        fn and(x: [u8; VECTOR], mask: u8) -> [u8; VECTOR] { x.map(|x| x & mask) }
        fn or(x: [u8; VECTOR], y: [u8; VECTOR]) -> [u8; VECTOR] { std::array::from_fn(|i| x[i] | y[i]) }
        // Bits of another byte do not matter: callers mask them.
        fn left(x: [u8; VECTOR], n: u32) -> [u8; VECTOR] { x.map(|x| x << n) }
        fn right(x: [u8; VECTOR], n: u32) -> [u8; VECTOR] { x.map(|x| x >> n) }
        fn eight(x: [u8; VECTOR]) -> [u8; VECTOR] { x }

        fn ints(x: i32) -> [i32; LANES] { [x; LANES] }
        fn small_ints(p: *const u8) -> [i32; LANES] { p.cast::<[i8; LANES]>().read_unaligned().map(i32::from) }
        fn multiply_add(x: [i32; LANES], y: [i32; LANES], sum: [i32; LANES]) -> [i32; LANES] {
            std::array::from_fn(|i| x[i].wrapping_mul(y[i]).wrapping_add(sum[i]))
        }
        fn dot(sum: [i32; LANES], codes: [u8; VECTOR], x: i32) -> [i32; LANES] {
            let x = x.to_le_bytes().map(|x| i32::from(x.cast_signed()));
            let mut sum = sum;
            for (sum, codes) in sum.iter_mut().zip(codes.chunks_exact(4)) {
                for (code, x) in codes.iter().zip(x) {
                    *sum += i32::from(*code) * x;
                }
            }
            sum
        }
        fn dot_eight(sum: [i32; LANES], codes: [u8; VECTOR], x: i32) -> [i32; LANES] { Portable::dot(sum, codes, x) }

        fn floats(x: f32) -> [f32; LANES] { [x; LANES] }
        fn halves(p: *const u8) -> [f32; LANES] {
            let bytes = p.cast::<[[u8; 2]; LANES]>().read_unaligned();
            bytes.map(|bytes| f16::from_le_bytes(bytes).to_f32())
        }
        fn to_floats(x: [i32; LANES]) -> [f32; LANES] { x.map(|x| x as f32) }
        fn multiply(x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] { std::array::from_fn(|i| x[i] * y[i]) }
        fn add(x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] { std::array::from_fn(|i| x[i] + y[i]) }
        fn subtract(x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] { std::array::from_fn(|i| x[i] - y[i]) }
        fn array(x: [f32; LANES]) -> [f32; LANES] { x }
    }
}
