//! Blocks of any numbers: how near they come, what they refuse, and that threads change nothing.

use oarlock_gguf::{Error, Parts, TensorType, dequantize, quantize};
use proptest::prelude::*;

use crate::common::noise;

const MADE: [(TensorType, f32); 14] = [
    (TensorType::F32, 0.0),
    (TensorType::F16, 0.001),
    (TensorType::BF16, 0.005),
    (TensorType::Q8_0, 0.005),
    (TensorType::Q4_0, 0.13),
    (TensorType::Q4_1, 0.08),
    (TensorType::Q5_0, 0.07),
    (TensorType::Q5_1, 0.04),
    (TensorType::Q2_K, 0.5),
    (TensorType::Q3_K, 0.26),
    (TensorType::Q4_K, 0.1),
    (TensorType::Q5_K, 0.05),
    (TensorType::Q6_K, 0.04),
    (TensorType::MXFP4, 0.26),
];

fn there_and_back(tensor_type: TensorType, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let blocks = quantize(tensor_type, values, 256, importance).unwrap();
    let mut again = vec![0.0; values.len()];
    dequantize(tensor_type, &blocks, &mut again).unwrap();
    again
}

#[test]
fn what_is_read_is_near_what_was_made() {
    let values = noise(256 * 40, 1);
    let importance = noise(256, 2).into_iter().map(|x| x.abs() + 0.5).collect::<Vec<_>>();
    for (tensor_type, tolerance) in MADE {
        // Weighted codes may be further away where it matters less.
        for (importance, tolerance) in [(None, tolerance), (Some(importance.as_slice()), tolerance * 2.5)] {
            let again = there_and_back(tensor_type, &values, importance);
            // Relative to 2, the largest magnitude.
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() / 2.0 <= tolerance;
            assert!(values.iter().zip(&again).all(is_near), "{tensor_type}");
            assert_eq!(values == again, tensor_type == TensorType::F32);
        }
    }
}

#[test]
fn an_importance_brings_the_columns_that_matter_nearer() {
    let values = noise(256 * 40, 3);
    let importance: Vec<f32> = (0..256).map(|column| if column % 4 == 0 { 100.0 } else { 1.0 }).collect();
    let error = |again: &[f32]| -> f64 {
        let squares = values.iter().zip(again).map(|(a, b)| f64::from(a - b) * f64::from(a - b));
        squares.step_by(4).sum()
    };
    for tensor_type in
        [TensorType::Q4_0, TensorType::Q2_K, TensorType::Q3_K, TensorType::Q4_K, TensorType::Q6_K]
    {
        let plain = error(&there_and_back(tensor_type, &values, None));
        let weighted = error(&there_and_back(tensor_type, &values, Some(&importance)));
        assert!(weighted < 0.95 * plain, "{tensor_type}: {weighted} of {plain}");
    }
}

/// Codes, scales and minima are those that the numbers of a block are made of.
#[test]
fn parts_make_the_numbers_that_are_dequantized() {
    let types = [
        (TensorType::Q4_0, 8, 32),
        (TensorType::Q4_1, 0, 32),
        (TensorType::Q5_0, 16, 32),
        (TensorType::Q5_1, 0, 32),
        (TensorType::Q8_0, 128, 32),
        (TensorType::Q4_K, 0, 32),
        (TensorType::Q5_K, 0, 32),
        (TensorType::Q6_K, 32, 16),
    ];
    for (tensor_type, zero, group) in types {
        let values = noise(256 * 4, 9);
        let blocks = quantize(tensor_type, &values, 256, None).unwrap();
        let mut numbers = vec![0.0; values.len()];
        dequantize(tensor_type, &blocks, &mut numbers).unwrap();
        let elems = tensor_type.block_elems();
        for (block, numbers) in blocks.chunks(tensor_type.block_bytes()).zip(numbers.chunks(elems)) {
            let parts = Parts::of(tensor_type, block).unwrap();
            for (k, number) in numbers.iter().enumerate() {
                let level = (i32::from(parts.codes[k]) - zero) as f32;
                let (scale, minimum) = (parts.scale.to_f32(), parts.minimum.to_f32());
                let made = match elems {
                    32 => level * scale + minimum,
                    _ => {
                        let integers = [parts.scales, parts.minima].map(|of| f32::from(of[k / group]));
                        level * (scale * integers[0]) - minimum * integers[1]
                    }
                };
                assert_eq!(made, *number, "{tensor_type} {k}");
            }
        }
        assert_eq!(Parts::of(tensor_type, &blocks[1..]), None);
    }
    assert_eq!(Parts::of(TensorType::Q2_K, &[0; 84]), None);
}

#[test]
fn threads_change_nothing() {
    let values = noise(256 * 300, 4);
    for (tensor_type, _) in MADE {
        let of_threads = |n: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
            pool.install(|| quantize(tensor_type, &values, 256, None).unwrap())
        };
        let one = of_threads(1);
        assert_eq!([of_threads(2), of_threads(7)], [one.clone(), one.clone()], "{tensor_type}");
        let rows: Vec<u8> =
            values.chunks(256).flat_map(|row| quantize(tensor_type, row, 256, None).unwrap()).collect();
        assert_eq!(rows, one, "{tensor_type}");
    }
}

#[test]
fn what_is_no_number_or_too_large_is_refused_with_its_place() {
    for (tensor_type, _) in MADE {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = noise(256 * 200, 5);
            values[256 * 150 + 7] = wrong;
            values[256 * 180] = wrong;
            match quantize(tensor_type, &values, 256, None) {
                Err(Error::Element { row: 150, index: 7, .. }) => {}
                other => panic!("{tensor_type}: {other:?}"),
            }
        }
        // Their scales are halves, but for these.
        let has_no_half = matches!(tensor_type, TensorType::F32 | TensorType::BF16 | TensorType::MXFP4);
        let mut values = vec![1.0; 512];
        values[300] = 3e38;
        assert_eq!(quantize(tensor_type, &values, 256, None).is_ok(), has_no_half, "{tensor_type}");
    }
    let error = quantize(TensorType::F16, &[0.0, 1e6], 1, None).unwrap_err().to_string();
    let expected =
        "element 0 of row 1 is 1000000, which F16 cannot hold; the weights are damaged or diverged";
    assert_eq!(error, expected);
}

#[test]
fn lengths_and_types_that_do_not_fit_are_refused() {
    let refused = |tensor_type, n: usize, row: usize, importance: Option<&[f32]>| {
        quantize(tensor_type, &vec![1.0; n], row, importance).unwrap_err().to_string()
    };
    assert_eq!(
        refused(TensorType::Q4_K, 320, 160, None),
        "a row of 160 elements is not whole blocks of Q4_K, which have 256 elements"
    );
    assert!(refused(TensorType::Q4_0, 96, 64, None).contains("96 elements, and 64 were expected"));
    assert!(refused(TensorType::F32, 4, 0, None).contains("a row of 0 elements"));
    assert!(
        refused(TensorType::Q4_0, 64, 64, Some(&[1.0; 32])).contains("32 elements, and 64 were expected")
    );
    assert!(refused(TensorType::Q4_0, 32, 32, Some(&[-1.0; 32])).contains("column 0 has the importance -1"));
    assert!(refused(TensorType::IQ2_S, 256, 256, None).contains("blocks of type IQ2_S cannot be made here"));
    assert!(dequantize(TensorType::Q4_0, &[0; 18], &mut [0.0; 31]).is_err());
    assert!(dequantize(TensorType::Q4_0, &[0; 17], &mut []).is_err());
    assert!(dequantize(TensorType::I32, &[0; 4], &mut [0.0]).is_err());
    dequantize(TensorType::Q4_0, &[], &mut []).unwrap();
}

/// Any patterns of bits: subnormal, huge and equal ones among them.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        -1.0_f32..1.0,
        Just(0.0),
        Just(-0.0),
        Just(1e-40),
        -1e-38_f32..1e-38,
    ];
    proptest::collection::vec(number, 256)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_numbers_are_made_or_refused(values in numbers(), importance in numbers()) {
        for (tensor_type, _) in MADE {
            for importance in [None, Some(importance.as_slice())] {
                if let Ok(blocks) = quantize(tensor_type, &values, 256, importance) {
                    prop_assert!(values.iter().all(|value| value.is_finite()));
                    let mut again = [0.0; 256];
                    dequantize(tensor_type, &blocks, &mut again).unwrap();
                    prop_assert!(again.iter().all(|value| value.is_finite()), "{}", tensor_type);
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 292 * 4)) {
        for tensor_type in TensorType::ALL {
            let n_blocks = bytes.len() / tensor_type.block_bytes();
            let mut out = vec![0.0; n_blocks * tensor_type.block_elems()];
            let _ = dequantize(*tensor_type, &bytes[..n_blocks * tensor_type.block_bytes()], &mut out);
        }
    }
}
