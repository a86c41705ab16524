//! Products with weights in blocks: near the exact product of what is quantized, the same bits on every path and for a row
//! alone, and rows as ggml dequantizes them.

use oarlock_kernels::block_quantized::{
    BlockLayout, BlockType, ROWS, UNIT, Unit, embed, product, product_scratch_bytes,
};
use oarlock_kernels::{Cpu, bf16, f16};

use crate::everywhere::{cpus, same_everywhere, values};

/// What a type is, as its documentation says: bits of a code, the code of zero, whether there are minima, and the elements of
/// a block and of a group.
fn described(block_type: BlockType) -> (u32, i32, bool, usize, usize) {
    match block_type {
        BlockType::Q4_0 => (4, 8, false, 32, 32),
        BlockType::Q4_1 => (4, 0, true, 32, 32),
        BlockType::Q5_0 => (5, 16, false, 32, 32),
        BlockType::Q5_1 => (5, 0, true, 32, 32),
        BlockType::Q8_0 => (8, 128, false, 32, 32),
        BlockType::Q4_K => (4, 0, true, 256, 32),
        BlockType::Q5_K => (5, 0, true, 256, 32),
        BlockType::Q6_K => (6, 32, false, 256, 16),
    }
}

/// A weight, and its elements in f64.
struct Weight {
    layout: BlockLayout,
    words: Vec<i32>,
    elements: Vec<f64>,
}

impl Weight {
    fn new(block_type: BlockType, rows: usize, cols: usize, seed: u64) -> Weight {
        let (bits, zero, has_min, unit, group) = described(block_type);
        let layout = BlockLayout::new(rows, cols, block_type).unwrap();
        let (mut words, mut elements) = (vec![0; layout.n_words()], vec![0.0; rows * cols]);
        let mut state = seed;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for row in 0..rows {
            for block in 0..cols / unit {
                let mut half = || f16::from_f32((random(2001) as f32 - 1000.0) / 16384.0);
                let (scale, minimum) = (half(), half());
                let mut codes = [0; UNIT];
                // The first block of a row has the largest codes, with which sums of 16 bits would overflow.
                let largest = (1u64 << bits) - 1;
                let mut code = || if block == 0 { largest as u8 } else { random(largest + 1) as u8 };
                codes[..unit].iter_mut().for_each(|x| *x = code());
                let is_signed = !has_min;
                let mut integer = |_| if is_signed { random(256) as u8 as i8 } else { random(64) as i8 };
                let scales: [i8; 16] = std::array::from_fn(&mut integer);
                let minima: [i8; 16] = std::array::from_fn(|_| random(64) as i8);
                let parts = Unit { codes, scale, minimum, scales, minima };
                let panel = words.chunks_mut(layout.panel_words()).nth(row / ROWS).unwrap();
                layout.put(row % ROWS, block, &parts, panel);
                for k in 0..unit {
                    let (scale, minimum) = (f64::from(scale.to_f32()), f64::from(minimum.to_f32()));
                    let level = f64::from(i32::from(codes[k]) - zero);
                    elements[row * cols + block * unit + k] = match (unit, has_min) {
                        (32, true) => level * scale + minimum,
                        (32, false) => level * scale,
                        _ => {
                            let by = level * scale * f64::from(scales[k / group]);
                            by - if has_min { minimum * f64::from(minima[k / group]) } else { 0.0 }
                        }
                    };
                }
            }
        }
        Weight { layout, words, elements }
    }

    fn product(&self, cpu: &Cpu, x: &[f32]) -> Vec<f32> {
        let m = x.len() / self.layout.cols();
        let mut y = vec![f32::NAN; m * self.layout.rows()];
        let mut scratch = vec![0; product_scratch_bytes(m, self.layout)];
        product(cpu, x, self.layout, &self.words, &mut y, &mut scratch);
        y
    }
}

/// x in 8 bits, as ggml's `Q8_0` and `Q8_K` hold it.
fn quantized(x: &[f32], unit: usize) -> Vec<f64> {
    let of_unit = |x: &[f32]| {
        let largest = x.iter().map(|x| x.abs()).reduce(f32::max).unwrap();
        let by = if largest == 0.0 { 0.0 } else { 127.0 / largest };
        let scale = match (unit, largest == 0.0) {
            (_, true) => 0.0,
            (32, _) => f16::from_f32(largest / 127.0).to_f32(),
            _ => 1.0 / by,
        };
        let code = move |x: &f32| f64::from((x * by).round_ties_even()) * f64::from(scale);
        x.iter().map(code).collect::<Vec<f64>>()
    };
    x.chunks(unit).flat_map(of_unit).collect()
}

/// Every number of rows up to one more than a kernel takes at a time, and rows of the weight that fill no panel.
#[test]
fn products_are_near_the_exact_ones_and_have_the_same_bits_everywhere() {
    for &block_type in BlockType::ALL {
        let unit = described(block_type).3;
        for (rows, cols, m) in [(1, unit, 1), (37, 3 * unit, 9), (80, 5 * unit, 3), (16, 2 * unit, 21)] {
            let weight = Weight::new(block_type, rows, cols, (rows * m) as u64);
            let mut x: Vec<f32> = values(7, m * cols);
            x[..unit].fill(0.0);
            let y = same_everywhere(|cpu| weight.product(cpu, &x));
            let quantized = quantized(&x, unit);
            for row in 0..m {
                let x = &quantized[row * cols..][..cols];
                for col in 0..rows {
                    let w = &weight.elements[col * cols..][..cols];
                    let exact: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
                    let size: f64 = w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
                    let found = f64::from(y[row * rows + col]);
                    // Of types with minima, parts that are larger than what is left of them.
                    let allowed = 1e-5 * (size + 1e-6) * if described(block_type).2 { 40.0 } else { 1.0 };
                    assert!((found - exact).abs() <= allowed, "{block_type:?} {row} {col}: {found}, {exact}");
                }
            }
        }
    }
}

#[test]
fn a_row_alone_has_the_bits_that_it_has_among_others() {
    for &block_type in BlockType::ALL {
        let cols = 2 * described(block_type).3;
        let weight = Weight::new(block_type, 50, cols, 3);
        let x: Vec<f32> = values(11, 19 * cols);
        for cpu in cpus() {
            let together = weight.product(&cpu, &x);
            for (row, x) in x.chunks(cols).enumerate() {
                assert_eq!(weight.product(&cpu, x), &together[row * 50..][..50], "{block_type:?} {cpu:?}");
            }
        }
    }
}

#[test]
fn sixteen_bits_are_rounded_once() {
    let weight = Weight::new(BlockType::Q8_0, 20, 64, 5);
    let x: Vec<bf16> = values::<f32>(2, 3 * 64).into_iter().map(bf16::from_f32).collect();
    let full = weight.product(&cpus()[0], &x.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
    let (mut y, mut scratch) = (vec![bf16::ZERO; 60], vec![0; product_scratch_bytes(3, weight.layout)]);
    product(&cpus()[0], &x, weight.layout, &weight.words, &mut y, &mut scratch);
    assert_eq!(y, full.into_iter().map(bf16::from_f32).collect::<Vec<_>>());
}

/// What is not a number stays none, instead of becoming a zero.
#[test]
fn what_is_not_a_number_reaches_the_result() {
    for block_type in [BlockType::Q8_0, BlockType::Q4_K] {
        let weight = Weight::new(block_type, 16, 256, 9);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x: Vec<f32> = values(1, 256);
            x[100] = bad;
            let y = same_everywhere(|cpu| {
                weight.product(cpu, &x).into_iter().map(f32::is_nan).collect::<Vec<_>>()
            });
            assert!(y.into_iter().all(|is_nan| is_nan), "{block_type:?} {bad}");
        }
    }
}

#[test]
fn rows_are_dequantized_by_their_ids() {
    for &block_type in BlockType::ALL {
        let cols = 2 * described(block_type).3;
        let weight = Weight::new(block_type, 21, cols, 13);
        let ids = [20, 0, 7, 7];
        let rows = same_everywhere(|cpu| {
            let mut y = vec![0f32; ids.len() * cols];
            embed(cpu, weight.layout, &weight.words, &ids, &mut y).unwrap();
            y
        });
        for (row, &id) in rows.chunks(cols).zip(&ids) {
            for (found, exact) in row.iter().zip(&weight.elements[id as usize * cols..]) {
                assert!((f64::from(*found) - exact).abs() <= 1e-6 * exact.abs().max(0.1), "{block_type:?}");
            }
        }
        let mut y = vec![0f32; cols];
        for id in [-1, 21] {
            let error = embed(&cpus()[0], weight.layout, &weight.words, &[id], &mut y).unwrap_err();
            assert!(error.to_string().contains(&format!("index {id}")), "{error}");
        }
    }
}

#[test]
fn sizes_that_are_no_whole_blocks_or_too_large_are_none() {
    let is_some = |rows, cols| BlockLayout::new(rows, cols, BlockType::Q4_K).is_some();
    assert!(is_some(1, 256) && !is_some(1, 255) && !is_some(0, 256) && !is_some(1, 0));
    assert!(!is_some(usize::MAX, 256) && !is_some(1 << 40, 1 << 24));
}
