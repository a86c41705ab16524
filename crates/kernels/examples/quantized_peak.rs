//! Prints how fast products with weights of 4 bits are on this machine, beside those with the same weights in bf16 and f32.
//!
//! `cargo run --release -p oarlock-kernels --example quantized_peak [threads]`

use std::time::{Duration, Instant};

use oarlock_kernels::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes};
use oarlock_kernels::quantized::{Code, Format, Layout, Side, dequantize, product, product_scratch_bytes};
use oarlock_kernels::{Cpu, Float, Isa, Par, Store, bf16};

/// The shortest of as many runs as fit into a quarter of a second.
fn shortest(mut run: impl FnMut()) -> f64 {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < Duration::from_millis(250) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn values<T: Float>(len: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f32((i * 7 % 31) as f32 / 16.0 - 1.0)).collect()
}

/// GFLOP/s of the product of m rows with the quantized weight, and with the dequantized one.
fn products<T: Float>(cpu: &Cpu, side: Side, layout: Layout, words: &[i32], m: usize) -> [f64; 2] {
    let (rows, cols) = (layout.rows, layout.cols);
    let (k, n) = if side == Side::Forward { (cols, rows) } else { (rows, cols) };
    let (x, mut c) = (values::<T>(m * k), values::<T>(m * n));
    let a = MatRef::new(&x, m, k);
    let weight = layout.weight(words);
    let mut scratch = vec![1u8; product_scratch_bytes(cpu, side, m, layout, T::DTYPE)];
    let ours = shortest(|| {
        product(cpu, side, a, weight, MatMut::new(&mut c, m, n), Store::Overwrite, &mut scratch);
    });
    let mut whole = values::<T>(rows * cols);
    dequantize(cpu, weight, 0..rows, 0..cols, &mut whole);
    let whole = MatRef::new(&whole, rows, cols);
    let right = if side == Side::Forward { whole.t() } else { whole };
    let mut scratch = vec![1u8; gemm_scratch_bytes(cpu, m, n, k, T::DTYPE)];
    let full = shortest(|| gemm(cpu, a, right, MatMut::new(&mut c, m, n), Store::Overwrite, &mut scratch));
    let flops = 2.0 * (m * n * k) as f64 / 1e9;
    [flops / ours, flops / full]
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    let par = Par::threads(threads).unwrap_or_else(|e| panic!("{e}"));
    let cpu = Cpu { isa: Isa::detect(), par };
    let (rows, cols) = (4096, 4096);
    let layout = Layout { rows, cols, format: Format::FourBit { code: Code::Nf4, nested: true } };
    let full = values::<f32>(rows * cols);
    let mut words = vec![0; layout.n_words()];
    let quantizing = shortest(|| layout.quantize(&cpu, &full, &mut words));
    let mut halves = values::<bf16>(rows * cols);
    let dequantizing = shortest(|| dequantize(&cpu, layout.weight(&words), 0..rows, 0..cols, &mut halves));
    let each = 1e9 / (rows * cols) as f64;
    println!(
        "{} x {threads}: quantizing {:.2} ns an element, dequantizing to bf16 {:.3} ns",
        cpu.isa.path(),
        quantizing * each,
        dequantizing * each
    );
    println!(
        "{:22} {:>8} {:>8} {:>6}   {:>8} {:>8} {:>6}",
        "GFLOP/s", "bf16", "4 bits", "", "f32", "4 bits", ""
    );
    for m in [1, 8, 64, 512, 2048] {
        for side in [Side::Forward, Side::Backward] {
            let [half, full_half] = products::<bf16>(&cpu, side, layout, &words, m);
            let [word, full_word] = products::<f32>(&cpu, side, layout, &words, m);
            println!(
                "{:22} {full_half:8.1} {half:8.1} {:5.0}%   {full_word:8.1} {word:8.1} {:5.0}%",
                format!("{m} rows, {side:?}"),
                100.0 * half / full_half,
                100.0 * word / full_word
            );
        }
    }
}
