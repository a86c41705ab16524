//! Weights of 4 and 8 bits: the bytes are those of bitsandbytes, and products are bitwise identical to those with the
//! dequantized weight.

use std::path::Path;

use oarlock_gguf::TensorType;
use oarlock_kernels::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes};
use oarlock_kernels::quantized::{
    Code, Format, Layout, Parts, Scales, Side, Weight, dequantize, dynamic_map, product,
    product_scratch_bytes,
};
use oarlock_kernels::{Cpu, Store, bf16, f16};
use serde_json::Value;

use crate::everywhere::{Element, cpus, values};

/// What `bench/golden/make_quantized.py` wrote.
fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quantized.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    let hex = value.as_str().unwrap().as_bytes();
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The weight that the golden values are of.
fn weight(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + i / 64 * 31) % 4001) as f32).map(|x| (x - 2000.0) / 512.0).collect()
}

/// The words of a weight, which are the same on every CPU path and with any threads.
fn quantized_everywhere(layout: Layout, x: &[f32]) -> Vec<i32> {
    let on = |cpu: &Cpu| {
        let mut words = vec![0; layout.n_words()];
        layout.quantize(cpu, x, &mut words);
        words
    };
    let words = on(&cpus()[0]);
    cpus().iter().for_each(|cpu| assert!(on(cpu) == words, "{layout:?}, {cpu:?}"));
    words
}

/// Codes and scales of a weight of 4 bits.
fn four_bit<'a>(weight: &Weight<'a>) -> (&'a [u8], Scales<'a>) {
    let Parts::FourBit { codes, scales, .. } = weight.parts else { panic!("{:?}", weight.layout) };
    (codes, scales)
}

/// torch rounds the values in ways that depend on the CPU: the last bit may differ.
#[test]
fn the_map_of_nested_scales_is_that_of_bitsandbytes() {
    let map = floats(&golden()["map"]);
    assert_eq!(map.len(), 256);
    for (ours, theirs) in dynamic_map().iter().zip(map) {
        assert!((ours - theirs).abs() <= 1.2e-7 * theirs.abs(), "{ours}, {theirs}");
    }
}

#[test]
fn codes_and_scales_are_those_of_bitsandbytes() {
    for case in golden()["cases"].as_array().unwrap() {
        let size = |key: &str| case[key].as_u64().unwrap() as usize;
        let code = if case["kind"] == "nf4" { Code::Nf4 } else { Code::Fp4 };
        let (rows, cols) = (size("rows"), size("cols"));
        let x = weight(rows * cols);
        for nested in [false, true] {
            let layout = Layout { rows, cols, format: Format::FourBit { code, nested } };
            let words = quantized_everywhere(layout, &x);
            let quantized = layout.weight(&words);
            let (codes, scales) = four_bit(&quantized);
            assert_eq!(codes, bytes(&case["codes"]), "{layout:?}");
            let dequantized = match scales {
                Scales::Plain(absmax) => {
                    assert_eq!(absmax, floats(&case["absmax"]), "{layout:?}");
                    "dequantized"
                }
                Scales::Nested { codes, absmax, offset } => {
                    assert_eq!(offset, case["nested_offset"].as_f64().unwrap() as f32, "{layout:?}");
                    assert_eq!(absmax, floats(&case["nested_absmax"]), "{layout:?}");
                    assert_eq!(codes, bytes(&case["nested_codes"]), "{layout:?}");
                    "nested_dequantized"
                }
            };
            for cpu in cpus() {
                let mut whole = vec![0f32; x.len()];
                dequantize(&cpu, quantized, 0..rows, 0..cols, &mut whole);
                let some: Vec<f32> = whole.iter().copied().step_by(37).collect();
                assert_eq!(some, floats(&case[dequantized]), "{layout:?}, {cpu:?}");
            }
        }
    }
}

/// bitsandbytes looks codes of scales up by steps of 1/32767.5, so near the middle of two codes they are not the nearest.
#[test]
fn codes_of_many_scales_are_those_of_bitsandbytes() {
    let case = &golden()["spread"];
    let size = |key: &str| case[key].as_u64().unwrap() as usize;
    let (rows, cols) = (size("rows"), size("cols"));
    let scale = |i: usize| (i / 64 * 2477 % 8191 + 1) as f32 / 8192.0;
    let x: Vec<f32> = weight(rows * cols).into_iter().enumerate().map(|(i, x)| x * scale(i)).collect();
    let layout = Layout { rows, cols, format: Format::FourBit { code: Code::Nf4, nested: true } };
    let words = quantized_everywhere(layout, &x);
    let Scales::Nested { codes, absmax, offset } = four_bit(&layout.weight(&words)).1 else {
        panic!("not nested")
    };
    // The order in which torch sums the mean depends on the CPU.
    let near = |ours: f32, theirs: f64| assert!((f64::from(ours) - theirs).abs() <= 1.2e-7 * theirs.abs());
    near(offset, case["nested_offset"].as_f64().unwrap());
    let theirs = floats(&case["nested_absmax"]);
    assert_eq!(absmax.len(), theirs.len());
    absmax.iter().zip(theirs).for_each(|(&ours, theirs)| near(ours, f64::from(theirs)));
    assert_eq!(codes, bytes(&case["nested_codes"]));
}

#[test]
fn integers_of_rows_and_what_they_stand_for_are_those_of_bitsandbytes() {
    fn check<T: Element>(weight: Weight, expected: &Value) {
        for cpu in cpus() {
            let mut whole = vec![T::from_f32(9.0); weight.layout.n_elems()];
            dequantize(&cpu, weight, 0..weight.layout.rows, 0..weight.layout.cols, &mut whole);
            let some: Vec<f32> = whole.iter().step_by(37).map(|x| x.to_f32()).collect();
            assert_eq!(some, floats(expected), "{cpu:?}");
        }
    }
    for case in golden()["int8"].as_array().unwrap() {
        let size = |key: &str| case[key].as_u64().unwrap() as usize;
        let (rows, cols) = (size("rows"), size("cols"));
        let scale = |i: usize| (i / cols % 5) as f32;
        let x: Vec<f32> =
            weight(rows * cols).into_iter().enumerate().map(|(i, x)| x * scale(i) / 4.0).collect();
        let layout = Layout { rows, cols, format: Format::Int8 };
        let words = quantized_everywhere(layout, &x);
        let quantized = layout.weight(&words);
        let Parts::Int8 { codes, absmax } = quantized.parts else { panic!("{layout:?}") };
        assert_eq!(absmax, floats(&case["absmax"]));
        let theirs: Vec<i8> = bytes(&case["codes"]).into_iter().map(|code| code as i8).collect();
        assert_eq!(codes, theirs, "{rows} x {cols}");
        check::<f32>(quantized, &case["f32"]);
        check::<bf16>(quantized, &case["bf16"]);
    }
}

#[test]
fn a_weight_is_a_code_times_a_scale() {
    let layout = Layout { rows: 1, cols: 4, format: Format::FourBit { code: Code::Nf4, nested: false } };
    let words = quantized_everywhere(layout, &[2.0, 0.5, -2.0, 0.0]);
    let mut back = [0f32; 4];
    dequantize(&cpus()[0], layout.weight(&words), 0..1, 0..4, &mut back);
    assert_eq!(back, [2.0, 0.492_224_6, -2.0, 0.0]);
}

#[test]
fn zeros_stay_zeros_and_what_is_not_finite_is_seen() {
    for format in [Format::FourBit { code: Code::Nf4, nested: false }, Format::Int8] {
        for odd in [f32::NAN, f32::INFINITY, 1e6] {
            let layout = Layout { rows: 2, cols: 64, format };
            let mut x = vec![0f32; 128];
            x[70] = odd;
            let words = quantized_everywhere(layout, &x);
            let mut back = vec![1f32; 128];
            dequantize(&cpus()[0], layout.weight(&words), 0..2, 0..64, &mut back);
            assert!(back[..64].iter().all(|&x| x == 0.0), "{layout:?}");
            // What f16 cannot hold is none of the weights that LLM.int8 takes.
            let is_kept = odd == 1e6 && format != Format::Int8;
            assert_eq!(back[64..].iter().all(|x| x.is_finite()), is_kept, "{layout:?}, {odd}");
        }
    }
}

/// A product, and the same with the dequantized weight.
fn products<T: Element>(cpu: &Cpu, side: Side, layout: Layout, words: &[i32], m: usize) -> [Vec<T>; 2] {
    let weight = layout.weight(words);
    let (rows, cols) = (layout.rows, layout.cols);
    let (k, n) = if side == Side::Forward { (cols, rows) } else { (rows, cols) };
    let (a, c) = (values::<T>(3, m * k), values::<T>(4, m * n));
    let a = MatRef::new(&a, m, k);

    let mut ours = c.clone();
    let mut scratch = vec![0; product_scratch_bytes(cpu, side, m, layout, T::DTYPE)];
    product(cpu, side, a, weight, MatMut::new(&mut ours, m, n), Store::Add, &mut scratch);

    let (mut whole, mut theirs) = (vec![T::from_f32(0.0); rows * cols], c);
    dequantize(cpu, weight, 0..rows, 0..cols, &mut whole);
    let whole = MatRef::new(&whole, rows, cols);
    let right = if side == Side::Forward { whole.t() } else { whole };
    let mut scratch = vec![0; gemm_scratch_bytes(cpu, m, n, k, T::DTYPE)];
    gemm(cpu, a, right, MatMut::new(&mut theirs, m, n), Store::Add, &mut scratch);
    [ours, theirs]
}

fn products_agree<T: Element>() {
    // The last has several parts in both directions; columns of the second split blocks and bytes.
    for (rows, cols, m) in [(64, 64, 3), (33, 37, 20), (1100, 1000, 9)] {
        for format in [Format::FourBit { code: Code::Nf4, nested: true }, Format::Int8] {
            let layout = Layout { rows, cols, format };
            let words = quantized_everywhere(layout, &values(5, rows * cols));
            for cpu in cpus() {
                for side in [Side::Forward, Side::Backward] {
                    let [ours, theirs] = products::<T>(&cpu, side, layout, &words, m);
                    let same =
                        ours.iter().zip(&theirs).all(|(x, y)| x.to_f32().to_bits() == y.to_f32().to_bits());
                    assert!(same, "{layout:?}, {m} rows, {side:?}, {cpu:?}");
                }
            }
        }
    }
}

/// The words of a weight in blocks, and what ggml makes of them.
fn in_blocks(kind: TensorType, rows: usize, cols: usize) -> (Layout, Vec<i32>, Vec<f32>) {
    let layout = Layout { rows, cols, format: Format::Blocks(kind) };
    let mut bytes = oarlock_gguf::quantize(kind, &values::<f32>(7, rows * cols), cols, None).unwrap();
    let mut whole = vec![0.0; rows * cols];
    oarlock_gguf::dequantize(kind, &bytes, &mut whole).unwrap();
    assert_eq!(bytes.len(), rows * layout.row_bytes());
    bytes.resize(4 * layout.n_words(), 0);
    let words = bytes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
    (layout, words, whole)
}

fn blocks_agree<T: Element>() {
    let kinds = [TensorType::Q4_0, TensorType::Q8_0, TensorType::MXFP4, TensorType::Q3_K, TensorType::Q6_K];
    for kind in kinds {
        // Rows that are no whole words, and a weight with several parts in both directions.
        let sizes = if kind.block_elems() == 32 {
            [(33, 96, 5), (1100, 1056, 3)]
        } else {
            [(33, 256, 5), (1100, 1280, 3)]
        };
        for (rows, cols, m) in sizes {
            let (layout, words, whole) = in_blocks(kind, rows, cols);
            for cpu in cpus() {
                for (first, last) in [(0, cols), (1, 2), (5, cols - 3), (64, 96), (31, 33)] {
                    let mut part = vec![T::from_f32(9.0); 9 * (last - first)];
                    dequantize(&cpu, layout.weight(&words), 3..12, first..last, &mut part);
                    for (i, x) in part.iter().enumerate() {
                        let (row, col) = (3 + i / (last - first), first + i % (last - first));
                        let expected = T::from_f32(whole[row * cols + col]);
                        assert!(
                            x.to_f32().to_bits() == expected.to_f32().to_bits(),
                            "{kind} {row} {col} {cpu:?}"
                        );
                    }
                }
                for side in [Side::Forward, Side::Backward] {
                    let [ours, theirs] = products::<T>(&cpu, side, layout, &words, m);
                    let same =
                        ours.iter().zip(&theirs).all(|(x, y)| x.to_f32().to_bits() == y.to_f32().to_bits());
                    assert!(same, "{layout:?}, {m} rows, {side:?}, {cpu:?}");
                }
            }
        }
    }
}

#[test]
fn products_with_blocks_of_gguf_have_the_bits_of_those_with_what_ggml_makes_of_them() {
    blocks_agree::<f32>();
    blocks_agree::<bf16>();
    blocks_agree::<f16>();
}

#[test]
fn products_have_the_bits_of_those_with_the_dequantized_weight() {
    products_agree::<f32>();
    products_agree::<bf16>();
    products_agree::<f16>();
}

#[test]
fn parts_that_begin_anywhere_are_those_of_the_whole() {
    fn check<T: Element>(format: Format) {
        let (rows, cols) = (9, 331);
        let layout = Layout { rows, cols, format };
        let words = quantized_everywhere(layout, &values(6, rows * cols));
        let weight = layout.weight(&words);
        let expected = |i: usize| {
            let value = match weight.parts {
                Parts::FourBit { code, codes, scales: Scales::Plain(absmax) } => {
                    let byte = codes[i / 2];
                    let index = if i.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                    code.values()[usize::from(index)] * absmax[i / 64]
                }
                Parts::Int8 { codes, absmax } => f32::from(codes[i]) * (absmax[i / cols] * (1.0 / 127.0)),
                Parts::FourBit { .. } | Parts::Blocks { .. } => unreachable!("neither nested nor of GGUF"),
            };
            T::from_f32(value).to_f32().to_bits()
        };
        for cpu in cpus() {
            for (first, last) in [(0, cols), (1, 2), (5, 329), (64, 128), (63, 130), (66, 299), (330, 331)] {
                let mut out = vec![T::from_f32(9.0); rows * (last - first)];
                dequantize(&cpu, weight, 0..rows, first..last, &mut out);
                for (i, x) in out.iter().enumerate() {
                    let (row, col) = (i / (last - first), first + i % (last - first));
                    assert_eq!(
                        x.to_f32().to_bits(),
                        expected(row * cols + col),
                        "{first}..{last}, {i}, {cpu:?}"
                    );
                }
            }
        }
    }
    let four_bit = [Code::Nf4, Code::Fp4].map(|code| Format::FourBit { code, nested: false });
    for format in four_bit.into_iter().chain([Format::Int8]) {
        check::<f32>(format);
        check::<bf16>(format);
        check::<f16>(format);
    }
}
