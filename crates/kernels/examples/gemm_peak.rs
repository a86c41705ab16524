//! Prints what the matrix products reach on this machine, in GFLOP/s and against the bare micro-kernel.
//!
//! `cargo run --release -p oarlock-kernels --example gemm_peak [path|all] [threads] [filter]`

use std::time::{Duration, Instant};

use oarlock_kernels::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes, peak_flops};
use oarlock_kernels::{Cpu, DType, Float, Isa, Par, Path, Store, bf16, f16};

/// A product: its name, M, N, K, whether A and B are stored transposed, and whether C is f32 and added to.
struct Shape(String, [usize; 3], bool, bool, bool);

/// The three products of a linear layer over `tokens` with a weight of [n_out, n_in].
fn layer(name: &str, tokens: usize, n_out: usize, n_in: usize) -> [Shape; 3] {
    [
        Shape(format!("{name} y"), [tokens, n_out, n_in], false, true, false),
        Shape(format!("{name} dx"), [tokens, n_in, n_out], false, false, false),
        Shape(format!("{name} dw"), [n_out, n_in, tokens], true, false, true),
    ]
}

fn measure<T: Float, C: Float>(cpu: &Cpu, shape: &Shape) -> f64 {
    let &Shape(_, [m, n, k], a_t, b_t, add) = shape;
    let fill = |len| (0..len).map(|i| T::from_f32((i * 7 % 31) as f32 / 16.0 - 1.0)).collect::<Vec<T>>();
    let (a, b) = (fill(m * k), fill(k * n));
    let mut c = vec![C::from_f32(0.0); m * n];
    let mut scratch = vec![1u8; gemm_scratch_bytes(cpu, m, n, k, T::DTYPE)];
    let a = if a_t { MatRef::new(&a, k, m).t() } else { MatRef::new(&a, m, k) };
    let b = if b_t { MatRef::new(&b, n, k).t() } else { MatRef::new(&b, k, n) };
    let store = if add { Store::Add } else { Store::Overwrite };
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < Duration::from_millis(250) {
        let start = Instant::now();
        gemm(cpu, a, b, MatMut::new(&mut c, m, n), store, &mut scratch);
        best = best.min(start.elapsed().as_secs_f64());
    }
    (2 * m * n * k) as f64 / best
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    let par = Par::threads(threads).unwrap_or_else(|e| panic!("{e}"));
    let isas = match args.first().map(String::as_str) {
        None => vec![Isa::detect()],
        Some("all") => Isa::available(),
        Some(path) => path.parse::<Path>().ok().and_then(Isa::force).into_iter().collect(),
    };
    let mut shapes = Vec::new();
    for (name, tokens, n_out, n_in) in [
        ("q,o 512x512", 2048, 512, 512),
        ("kv 128x512", 2048, 128, 512),
        ("up 1408x512", 2048, 1408, 512),
        ("down 512x1408", 2048, 512, 1408),
        ("head 6400x512 (256)", 256, 6400, 512),
        ("head 6400x512 (512)", 512, 6400, 512),
        ("tiny 128x128", 512, 128, 128),
        ("tiny 384x128", 512, 384, 128),
        ("tiny 128x384", 512, 128, 384),
        ("large 4096x4096", 512, 4096, 4096),
    ] {
        shapes.extend(layer(name, tokens, n_out, n_in));
    }
    for m in [1, 4, 8, 16] {
        shapes.push(Shape(format!("row {m} x 1408x512 y"), [m, 1408, 512], false, true, false));
        shapes.push(Shape(format!("row {m} x 6400x512 y"), [m, 6400, 512], false, true, false));
    }
    if let Some(filter) = args.get(2) {
        shapes.retain(|s| s.0.contains(filter.as_str()));
    }
    for isa in isas {
        let cpu = Cpu { isa, par: par.clone() };
        let (f32_peak, bf16_peak) = (peak_flops(&cpu, DType::F32), peak_flops(&cpu, DType::BF16));
        println!(
            "{} x {threads}: micro-kernel f32 {:.0}, bf16 {:.0} GFLOP/s a thread",
            isa.path(),
            f32_peak / 1e9,
            bf16_peak / 1e9
        );
        println!("{:26} {:>6} {:>5}  {:>6} {:>5}  {:>6}", "", "f32", "%", "bf16", "%", "f16");
        for shape in &shapes {
            let f32_speed = measure::<f32, f32>(&cpu, shape);
            let (bf16_speed, f16_speed) = if shape.4 {
                (measure::<bf16, f32>(&cpu, shape), measure::<f16, f32>(&cpu, shape))
            } else {
                (measure::<bf16, bf16>(&cpu, shape), measure::<f16, f16>(&cpu, shape))
            };
            let share = |speed: f64, peak: f64| 100.0 * speed / peak / threads as f64;
            println!(
                "{:26} {:6.1} {:5.1}  {:6.1} {:5.1}  {:6.1}",
                shape.0,
                f32_speed / 1e9,
                share(f32_speed, f32_peak),
                bf16_speed / 1e9,
                share(bf16_speed, bf16_peak),
                f16_speed / 1e9
            );
        }
    }
}
