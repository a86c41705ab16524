//! Blocks against those of ggml: hashes of what its `ggml-quants.c` gave, compiled without contraction.

use oarlock_gguf::{TensorType, dequantize, quantize};
use sha2::{Digest, Sha256};

use TensorType::{MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};

/// What a type makes of a block: the first 8 bytes of the SHA-256, and the elements 0, 1 and 255 that are read back.
type Golden = (TensorType, &'static str, [f32; 3]);

const PLAIN: [Golden; 11] = [
    (Q8_0, "c384ea60d26a579a", [-1.953_369_1, 1.630_371_1, -0.606_689_45]),
    (Q4_0, "b006e27db2f00b3f", [-1.953_125, 1.708_984_4, -0.722_167_97]),
    (Q4_1, "c9335f75a7576e31", [-1.953_125, 1.601_562_5, -0.540_527_34]),
    (Q5_0, "1a1f8bed7c3f1e3c", [-1.953_125, 1.586_914_1, -0.601_806_64]),
    (Q5_1, "fed14a93562f90f1", [-1.953_125, 1.609_924_3, -0.580_200_2]),
    (MXFP4, "7a20ced53f1f7ead", [-1.5, 1.5, -0.5]),
    (Q2_K, "fa644366cc107cb3", [-1.801_269_5, 1.497_375_5, -0.573_059_1]),
    (Q3_K, "475c99d714c54423", [-1.985_778_8, 1.489_334_1, -0.496_444_7]),
    (Q4_K, "7f93cbdf31d7e165", [-1.934_143_1, 1.575_096_1, -0.556_320_2]),
    (Q5_K, "ad434245448d7e80", [-1.946_64, 1.653_081_9, -0.609_970_1]),
    (Q6_K, "92d7e4ac396d8c4a", [-1.952_636_7, 1.637_695_3, -0.615_119_93]),
];

const WEIGHTED: [Golden; 9] = [
    (Q4_0, "cac14714ff78e3d9", [-2.029_296_9, 1.521_972_7, -0.491_455_08]),
    (Q4_1, "6908014b9bc9f66f", [-1.921_875, 1.531_982_4, -0.529_052_73]),
    (Q5_0, "30717cb554614dfd", [-1.987_304_7, 1.614_685, -0.591_430_66]),
    (Q5_1, "03567f4d81d42580", [-1.956_054_7, 1.595_214_8, -0.594_848_63]),
    (Q2_K, "a2f0b1d775fad60e", [-1.647_216_8, 1.385_376, -0.328_430_18]),
    (Q3_K, "7c98a5b0db9d56cc", [-1.738_357_5, 1.738_357_5, -0.504_684_45]),
    (Q4_K, "30797d9144c9e2c9", [-1.932_312, 1.522_773_7, -0.519_908_9]),
    (Q5_K, "48ed4dce61faea30", [-1.951_446_5, 1.594_802_9, -0.579_490_66]),
    (Q6_K, "bed6aa24b983c587", [-1.954_528_8, 1.639_282_2, -0.596_013_07]),
];

const EDGES: [(TensorType, &str); 11] = [
    (Q8_0, "67a5539e245e106f"),
    (Q4_0, "df227728ff78bb83"),
    (Q4_1, "10f7e599b1ec7750"),
    (Q5_0, "6200567c9544b091"),
    (Q5_1, "34bfc852db15852d"),
    (MXFP4, "3b459e8ca58dea19"),
    (Q2_K, "8b1ac57a5783353b"),
    (Q3_K, "b604037b9ae832d6"),
    (Q4_K, "b32e305fa535c07b"),
    (Q5_K, "ea7beb5662d11e04"),
    (Q6_K, "d5d1cb24c49dca83"),
];

/// 256 elements that go up and down.
fn zigzag() -> Vec<f32> {
    (0..256_i16).map(|i| f32::from((i32::from(i) * 7919 % 1000) as i16 - 500) / 256.0).collect()
}

/// Zeros, a constant, tiny numbers, single elements and growing ones.
fn edges() -> Vec<f32> {
    let at = |i: i16| match i {
        32..64 => 0.25,
        64..96 => -f32::from(i - 63) * 1e-9,
        96 => 1.0,
        97 => -1.0,
        128.. => f32::from(if i % 2 == 1 { i - 127 } else { 127 - i }) / 64.0,
        _ => 0.0,
    };
    (0..256).map(at).collect()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check((tensor_type, golden, elements): Golden, importance: Option<&[f32]>) {
    let blocks = quantize(tensor_type, &zigzag(), 256, importance).unwrap();
    assert_eq!(hash(&blocks), golden, "{tensor_type}");
    let mut again = [0.0; 256];
    dequantize(tensor_type, &blocks, &mut again).unwrap();
    for (found, expected) in [again[0], again[1], again[255]].into_iter().zip(elements) {
        assert!((found - expected).abs() < 2e-7, "{tensor_type}: {found}, {expected}");
    }
}

#[test]
fn blocks_are_those_of_ggml() {
    PLAIN.into_iter().for_each(|golden| check(golden, None));
}

#[test]
fn blocks_with_an_importance_are_those_of_ggml() {
    let importance: Vec<f32> = (0..256_u16).map(|i| f32::from(1 + i % 7)).collect();
    WEIGHTED.into_iter().for_each(|golden| check(golden, Some(&importance)));
    // It does not change these.
    for (tensor_type, golden, _) in [PLAIN[0], PLAIN[5]] {
        let blocks = quantize(tensor_type, &zigzag(), 256, Some(&importance)).unwrap();
        assert_eq!(hash(&blocks), golden, "{tensor_type}");
    }
}

#[test]
fn blocks_of_extreme_elements_are_those_of_ggml() {
    for (tensor_type, golden) in EDGES {
        let blocks = quantize(tensor_type, &edges(), 256, None).unwrap();
        assert_eq!(hash(&blocks), golden, "{tensor_type}");
    }
}

#[test]
fn zeros_are_blocks_of_zero() {
    let zeros = |tensor_type| quantize(tensor_type, &[0.0; 32], 32, None).unwrap();
    // The scale is -0, and code 8 or 16 is zero.
    assert_eq!(zeros(Q4_0), [[0x00, 0x80].as_slice(), &[0x88; 16]].concat());
    assert_eq!(zeros(Q5_0), [[0x00, 0x80].as_slice(), &[0xff; 4], &[0; 16]].concat());
    assert_eq!(zeros(Q5_1), [0; 24]);
    assert_eq!(zeros(Q8_0), [0; 34]);
}
