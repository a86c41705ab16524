//! Block types: the table of where their codes and scales lie and what they mean.

mod large;
mod parts;
mod planes;
mod scales;
mod scheme;
mod search;
mod small;

use crate::types::TensorType;
pub use parts::Parts;
use planes::plane;
use scheme::{Encode, Levels};
pub(crate) use scheme::{Scheme, Weights};

/// The steps of `IQ4_NL` and `IQ4_XS`.
const STEPS_OF_IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A type that is read alone.
const READ_ALONE: Option<Encode> = None;

/// How the blocks of a type are read and made, unless they are plain numbers or come from a codebook.
pub(crate) fn scheme(tensor_type: TensorType) -> Option<Scheme> {
    use Levels::{Above, Signed, Steps};
    let row = |group, planes, levels, read, encode| Some(Scheme { group, planes, levels, read, encode });
    macro_rules! planes {
        ($($plane:expr),*) => { const { &[$($plane),*] } };
    }
    match tensor_type {
        TensorType::Q4_0 => {
            row(32, planes![plane(2, 4, 16)], Above(8), scales::one_scale, Some(small::encode_q4_0))
        }
        TensorType::Q4_1 => {
            row(32, planes![plane(4, 4, 16)], Above(0), scales::scale_and_minimum, Some(small::encode_q4_1))
        }
        TensorType::Q5_0 => row(
            32,
            planes![plane(6, 4, 16), plane(2, 1, 1)],
            Above(16),
            scales::one_scale,
            Some(small::encode_q5_0),
        ),
        TensorType::Q5_1 => row(
            32,
            planes![plane(8, 4, 16), plane(4, 1, 1)],
            Above(0),
            scales::scale_and_minimum,
            Some(small::encode_q5_1),
        ),
        TensorType::Q8_0 => {
            row(32, planes![plane(2, 8, 32)], Signed, scales::one_scale, Some(small::encode_q8_0))
        }
        TensorType::Q8_1 => row(32, planes![plane(4, 8, 32)], Signed, scales::one_scale, READ_ALONE),
        TensorType::MXFP4 => row(
            32,
            planes![plane(1, 4, 16)],
            Steps(&small::STEPS_OF_E2M1),
            scales::scale_of_mxfp4,
            Some(small::encode_mxfp4),
        ),
        TensorType::NVFP4 => row(
            16,
            planes![plane(4, 4, 8)],
            Steps(&small::STEPS_OF_E2M1),
            scales::scales_of_nvfp4,
            READ_ALONE,
        ),
        TensorType::IQ4_NL => {
            row(32, planes![plane(2, 4, 16)], Steps(&STEPS_OF_IQ4), scales::one_scale, READ_ALONE)
        }
        TensorType::IQ4_XS => {
            row(32, planes![plane(8, 4, 16)], Steps(&STEPS_OF_IQ4), scales::scales_of_iq4_xs, READ_ALONE)
        }
        TensorType::Q1_0 => {
            const SIGNS: [i8; 16] = [-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            row(128, planes![plane(2, 1, 1)], Steps(&SIGNS), scales::one_scale, READ_ALONE)
        }
        TensorType::Q2_0 => row(64, planes![plane(2, 2, 1)], Above(1), scales::one_scale, READ_ALONE),
        TensorType::Q2_K => {
            row(16, planes![plane(16, 2, 32)], Above(0), scales::scales_of_q2_k, Some(large::encode_q2_k))
        }
        TensorType::Q3_K => row(
            16,
            planes![plane(32, 2, 32), plane(0, 1, 32)],
            Above(4),
            scales::scales_of_q3_k,
            Some(large::encode_q3_k),
        ),
        TensorType::Q4_K => {
            row(32, planes![plane(16, 4, 32)], Above(0), scales::scales_of_q4_k, Some(large::encode_q4_k))
        }
        TensorType::Q5_K => row(
            32,
            planes![plane(48, 4, 32), plane(16, 1, 32)],
            Above(0),
            scales::scales_of_q4_k,
            Some(large::encode_q5_k),
        ),
        TensorType::Q6_K => row(
            16,
            planes![plane(0, 4, 64), plane(128, 2, 32)],
            Above(32),
            scales::scales_of_q6_k,
            Some(large::encode_q6_k),
        ),
        TensorType::Q8_K => row(256, planes![plane(4, 8, 256)], Signed, scales::scale_of_q8_k, READ_ALONE),
        _ => None,
    }
}
