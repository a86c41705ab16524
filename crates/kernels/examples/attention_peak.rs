//! Attention on one core: GFLOP/s of forward and backward, and their share of what the core can multiply.
//!
//! `cargo run --release -p oarlock-kernels --example attention_peak [path]`

use std::hint::black_box;
use std::time::Instant;

use oarlock_kernels::attention::*;
use oarlock_kernels::{Cpu, Float, Isa, Par, Path, bf16};

/// Seconds of the fastest of some runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::MAX;
    while start.elapsed().as_secs_f64() < 0.5 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// GFLOP/s of the core in products of f32 and of bf16 pairs, in registers alone; known for AVX-512 with bf16.
fn ceilings(isa: Isa) -> (f64, f64) {
    #[cfg(target_arch = "x86_64")]
    if isa.path() == Path::Avx512Bf16 {
        use std::arch::x86_64::*;
        const STEPS: usize = 100_000;
        #[target_feature(enable = "avx512f")]
        fn f32s(x: __m512) -> f32 {
            let mut sums = [x; 16];
            for _ in 0..STEPS {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, x, x);
                }
            }
            let mut total = x;
            for sum in sums {
                total = _mm512_add_ps(total, sum);
            }
            _mm512_reduce_add_ps(total)
        }
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn bf16s(x: __m512) -> f32 {
            let (mut sums, pairs) = ([x; 16], _mm512_cvtne2ps_pbh(x, x));
            for _ in 0..STEPS {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
                }
            }
            let mut total = x;
            for sum in sums {
                total = _mm512_add_ps(total, sum);
            }
            _mm512_reduce_add_ps(total)
        }
        let gflop = (STEPS * 16 * 16 * 2) as f64 / 1e9;
        let half = [0.5f32; 16];
        // SAFETY: an `Isa` with this path proves the features.
        let f32_seconds = fastest(|| unsafe {
            black_box(f32s(_mm512_loadu_ps(black_box(&half).as_ptr())));
        });
        // SAFETY: as above.
        let bf16_seconds = fastest(|| unsafe {
            black_box(bf16s(_mm512_loadu_ps(black_box(&half).as_ptr())));
        });
        return (gflop / f32_seconds, 2.0 * gflop / bf16_seconds);
    }
    let _ = isa;
    (f64::NAN, f64::NAN)
}

fn measure<T: Float>(cpu: &Cpu, ceiling: f64, batch: usize, len: usize, head_dim: usize) {
    let scale = 1.0 / (head_dim as f32).sqrt();
    let (n_heads, n_kv_heads) = (8, 2);
    let shape = AttentionShape {
        batch,
        q_len: len,
        kv_len: len,
        n_heads,
        n_kv_heads,
        head_dim,
        kv_capacity: len,
        scale,
        causal: true,
        window: None,
        logit_cap: None,
    };
    let noise = |n: usize, seed: usize| -> Vec<T> {
        (0..n).map(|i| T::from_f32(((i + seed) * 7919 % 1013) as f32 / 506.5 - 1.0)).collect()
    };
    let (n_q, n_kv) = (batch * len * n_heads * head_dim, batch * len * n_kv_heads * head_dim);
    let (q, k, v, d_o) = (noise(n_q, 1), noise(n_kv, 2), noise(n_kv, 3), noise(n_q, 4));
    let (mut o, mut dq, mut dk, mut dv) = (q.clone(), q.clone(), k.clone(), v.clone());
    let mut lse = vec![0.0; batch * n_heads * len];
    let bytes = attention_forward_scratch_bytes(cpu, &shape, T::DTYPE).max(attention_backward_scratch_bytes(
        cpu,
        &shape,
        T::DTYPE,
    ));
    let mut scratch = vec![0; bytes];
    let forward = fastest(|| {
        attention_forward(cpu, &shape, &q, &k, &v, None, None, &mut o, &mut lse, &mut scratch)
            .expect("sizes fit");
    });
    let backward = fastest(|| {
        attention_backward(
            cpu,
            &shape,
            &q,
            &k,
            &v,
            None,
            None,
            &o,
            &lse,
            &d_o,
            &mut dq,
            &mut dk,
            &mut dv,
            &mut scratch,
        )
        .expect("sizes fit");
    });
    // One product of a head, half of it behind the causal mask.
    let product = (batch * n_heads * len * len * head_dim) as f64 / 1e9;
    print!("{:>5} batch {batch} length {len:>5} head_dim {head_dim:>3}:", T::DTYPE);
    for (what, products, seconds) in
        [("forward", 2.0, forward), ("backward", 5.0, backward), ("both", 7.0, forward + backward)]
    {
        let rate = products * product / seconds;
        print!("  {what} {rate:5.0} GFLOP/s {:4.0} %", 100.0 * rate / ceiling);
    }
    println!();
}

/// One token against a long cache: seconds and the bytes of keys and values read in that time.
fn generation<T: Float>(cpu: &Cpu) {
    let (kv_len, head_dim, n_heads, n_kv_heads) = (8192, 64, 8, 2);
    let shape = AttentionShape {
        batch: 4,
        q_len: 1,
        kv_len,
        n_heads,
        n_kv_heads,
        head_dim,
        kv_capacity: kv_len,
        scale: 0.125,
        causal: true,
        window: None,
        logit_cap: None,
    };
    let (q, k) = (
        vec![T::from_f32(0.5); 4 * n_heads * head_dim],
        vec![T::from_f32(0.5); 4 * kv_len * n_kv_heads * head_dim],
    );
    let (mut o, mut lse) = (q.clone(), vec![0.0; 4 * n_heads]);
    let mut scratch = vec![0; attention_forward_scratch_bytes(cpu, &shape, T::DTYPE)];
    let seconds = fastest(|| {
        attention_forward(cpu, &shape, &q, &k, &k, None, None, &mut o, &mut lse, &mut scratch)
            .expect("sizes fit");
    });
    let gigabytes = (2 * k.len() * T::DTYPE.size()) as f64 / 1e9;
    println!(
        "{:>5} generation, 8192 keys: {:.0} us, {:.1} GB/s",
        T::DTYPE,
        seconds * 1e6,
        gigabytes / seconds
    );
}

fn main() {
    let isa =
        std::env::args().nth(1).and_then(|path| Isa::force(path.parse().ok()?)).unwrap_or(Isa::detect());
    let cpu = Cpu { isa, par: Par::solo() };
    let (f32_ceiling, bf16_ceiling) = ceilings(isa);
    println!("{}; registers alone: f32 {f32_ceiling:.0}, bf16 {bf16_ceiling:.0} GFLOP/s", isa.path());
    for (batch, len, head_dim) in [(4, 512, 64), (4, 1024, 64), (1, 4096, 64), (4, 512, 96), (2, 512, 128)] {
        measure::<f32>(&cpu, f32_ceiling, batch, len, head_dim);
        measure::<bf16>(&cpu, bf16_ceiling, batch, len, head_dim);
    }
    generation::<f32>(&cpu);
    generation::<bf16>(&cpu);
}
