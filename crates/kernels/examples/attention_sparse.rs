//! Attention under block masks and sliding windows on one core, against attention to all keys before in the same run:
//! the share of pairs that is kept, and how many times faster forward, backward and both are.
//!
//! `cargo run --release -p oarlock-kernels --example attention_sparse [tokens]`

use std::time::Instant;

use oarlock_kernels::attention::*;
use oarlock_kernels::{Cpu, Float, Isa, Par, bf16};

const HEAD_DIM: usize = 64;
const HEADS: (usize, usize) = (2, 1);

/// Seconds of the fastest of three runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let seconds = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..3).map(seconds).fold(f64::MAX, f64::min)
}

/// Seconds of forward and of backward.
fn seconds<T: Float>(cpu: &Cpu, len: usize, window: Option<usize>, blocks: Option<&BlockMask>) -> [f64; 2] {
    let shape = shape(len, window);
    let noise = |n: usize, seed: usize| -> Vec<T> {
        (0..n).map(|i| T::from_f32(((i + seed) * 7919 % 1013) as f32 / 506.5 - 1.0)).collect()
    };
    let (n_q, n_kv) = (len * HEADS.0 * HEAD_DIM, len * HEADS.1 * HEAD_DIM);
    let (q, k, v, d_o) = (noise(n_q, 1), noise(n_kv, 2), noise(n_kv, 3), noise(n_q, 4));
    let (mut o, mut dq, mut dk, mut dv) = (q.clone(), q.clone(), k.clone(), v.clone());
    let mut lse = vec![0.0; HEADS.0 * len];
    let bytes = attention_forward_scratch_bytes(cpu, &shape, T::DTYPE);
    let mut scratch = vec![0; bytes.max(attention_backward_scratch_bytes(cpu, &shape, T::DTYPE))];
    let forward = fastest(|| {
        attention_forward(cpu, &shape, &q, &k, &v, None, blocks, &mut o, &mut lse, &mut scratch)
            .expect("sizes fit");
    });
    let backward = fastest(|| {
        let (dq, dk, dv) = (&mut dq, &mut dk, &mut dv);
        attention_backward(cpu, &shape, &q, &k, &v, None, blocks, &o, &lse, &d_o, dq, dk, dv, &mut scratch)
            .expect("sizes fit");
    });
    [forward, backward]
}

fn shape(len: usize, window: Option<usize>) -> AttentionShape {
    AttentionShape {
        batch: 1,
        q_len: len,
        kv_len: len,
        n_heads: HEADS.0,
        n_kv_heads: HEADS.1,
        head_dim: HEAD_DIM,
        kv_capacity: len,
        scale: 0.125,
        causal: true,
        window,
        logit_cap: None,
    }
}

/// Local windows of `local` blocks, the last block of each seen by all behind it: DeepSpeed's `fixed`.
fn fixed(block: usize, len: usize, local: usize) -> BlockMask {
    let keeps = |_, row: usize, column: usize| row / local == column / local || column % local == local - 1;
    BlockMask::new(block, len.div_ceil(block), 1, keeps).expect("a block size that fits")
}

/// The diagonal and a share of the other blocks, without any order.
fn scattered(block: usize, len: usize, share: f64) -> BlockMask {
    let keeps = |_, row: usize, column: usize| {
        let hash = ((row * 65_537 + column) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        row == column
            || ((hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as f64 / (1u64 << 53) as f64
                <= share
    };
    BlockMask::new(block, len.div_ceil(block), 1, keeps).expect("a block size that fits")
}

fn measure<T: Float>(cpu: &Cpu, len: usize) {
    let dense = seconds::<T>(cpu, len, None, None);
    let pairs = (HEADS.0 * len * (len + 1) / 2) as f64;
    println!(
        "{:>5} {len} tokens, all before: forward {:.1} ms, backward {:.1} ms",
        T::DTYPE,
        dense[0] * 1e3,
        dense[1] * 1e3
    );
    let report = |what: String, share: f64, sparse: [f64; 2]| {
        let (both, of_dense) = (sparse[0] + sparse[1], dense[0] + dense[1]);
        println!(
            "      {what:<22} keeps {share:.3}: forward {:4.2}x faster, backward {:4.2}x, both {:4.2}x of {:4.2}x",
            dense[0] / sparse[0],
            dense[1] / sparse[1],
            of_dense / both,
            1.0 / share,
        );
    };
    let blocks = |what: String, mask: BlockMask| {
        let share = mask.pairs(&shape(len, None)) as f64 / pairs;
        report(what, share, seconds::<T>(cpu, len, None, Some(&mask)));
    };
    for local in [2, 5, 10, 40] {
        blocks(format!("fixed 16, {local} local"), fixed(16, len, local));
    }
    for block in [16, 32, 64, 128] {
        blocks(format!("scattered {block}"), scattered(block, len, 0.2));
    }
    for window in [len / 2, len / 10, len / 40] {
        let seen = window * (window + 1) / 2 + (len - window) * window;
        let share = (HEADS.0 * seen) as f64 / pairs;
        report(format!("window {window}"), share, seconds::<T>(cpu, len, Some(window), None));
    }
}

fn main() {
    let len = std::env::args().nth(1).and_then(|len| len.parse().ok()).unwrap_or(8192);
    let cpu = Cpu { isa: Isa::detect(), par: Par::solo() };
    println!("{}", cpu.isa.path());
    measure::<f32>(&cpu, len);
    measure::<bf16>(&cpu, len);
}
