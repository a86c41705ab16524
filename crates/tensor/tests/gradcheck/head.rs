//! The head leaves out rows without a label, and no bit of the others changes.

use oarlock_tensor::cpu::cross_entropy::{RowScale, cross_entropy_grad, cross_entropy_grad_in_place};
use oarlock_tensor::cpu::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes};
use oarlock_tensor::cpu::{Cpu, Isa, Store};
use oarlock_tensor::ops::{self, HeadOptions, IGNORE_INDEX, Labels};
use oarlock_tensor::{DType, Device, Float, Par, Tape, bf16, f16};

use crate::common::{array, assert_close, f64s, grad_of, own_gpu, settle, tensor};

const SEED: f32 = 0.25;

/// Sum, gradient of x and gradient of the weight with all rows in every product: chunks of `chunk` rows.
fn all_rows<T: Float>(
    cpu: &Cpu,
    x: &[T],
    w: &[T],
    labels: &[i32],
    dim: usize,
    chunk: usize,
) -> (f64, Vec<f64>, Vec<f64>) {
    let vocab = w.len() / dim;
    let mut dx = vec![T::from_f32(1.0); x.len()];
    let mut dw = vec![0f32; w.len()];
    let mut sum = 0.0;
    let scratch = |m, n, k| vec![0u8; gemm_scratch_bytes(cpu, m, n, k, T::DTYPE)];
    for (i, labels) in labels.chunks(chunk).enumerate() {
        let (rows, from) = (labels.len(), i * chunk * dim);
        let x = MatRef::new(&x[from..from + rows * dim], rows, dim);
        let (mut logits, mut losses) = (vec![0f32; rows * vocab], vec![0.0; rows]);
        let (w, out) = (MatRef::new(w, vocab, dim), MatMut::new(&mut logits, rows, vocab));
        gemm(cpu, x, w.t(), out, Store::Overwrite, &mut scratch(rows, vocab, dim));
        let mut d = bytemuck::zeroed_vec::<T>(rows * vocab);
        let scale = RowScale::Uniform(SEED);
        let part = if T::DTYPE == DType::F32 {
            let part = cross_entropy_grad_in_place(cpu, &mut logits, labels, vocab, scale, None, &mut losses);
            d.copy_from_slice(bytemuck::cast_slice(&logits));
            part
        } else {
            cross_entropy_grad(cpu, &logits, labels, vocab, scale, None, &mut losses, &mut d)
        };
        sum += part.unwrap().sum;
        let d = MatRef::new(&d, rows, vocab);
        // Summed in f32 and rounded once.
        let mut sums = vec![0f32; rows * dim];
        let out = MatMut::new(&mut sums, rows, dim);
        gemm(cpu, d, w, out, Store::Overwrite, &mut scratch(rows, dim, vocab));
        dx[from..from + rows * dim].iter_mut().zip(sums).for_each(|(dx, sum)| *dx = T::from_f32(sum));
        let store = if i == 0 { Store::Overwrite } else { Store::Add };
        gemm(cpu, d.t(), x, MatMut::new(&mut dw, vocab, dim), store, &mut scratch(vocab, dim, rows));
    }
    let dx = dx.iter().map(|x| f64::from(x.to_f32())).collect();
    (sum, dx, dw.into_iter().map(f64::from).collect())
}

fn check<T: Float>(isa: Isa, n_rows: usize, vocab: usize, chunk: usize, labels: &[i32]) {
    let dim = 4;
    let (x, w) = (array(1, &[n_rows, dim]), array(2, &[vocab, dim]));
    let device = Device::cpu(isa, Par::threads(2).unwrap());
    let [x_tensor, w_tensor] = [&x, &w].map(|a| tensor(a, T::DTYPE, &device));
    let cpu = Cpu { isa, par: Par::solo() };
    let [x, w_elems] = [&x_tensor, &w_tensor].map(|t| t.to_vec::<T>().unwrap());
    let want = all_rows::<T>(&cpu, &x, &w_elems, labels, dim, chunk);
    // The second mode makes the same passes later.
    for promised in [true, false].into_iter().take(if n_rows < 100 { 2 } else { 1 }) {
        let (params, home) = settle(std::slice::from_ref(&w), T::DTYPE, &device, true);
        let tape = if promised { Tape::with_seed(SEED) } else { Tape::new() };
        let x = tape.leaf(&x_tensor);
        let head = ops::head_loss(&x, &params[0], &Labels::new(labels), HeadOptions::default()).unwrap();
        assert_eq!(head.n_targets, labels.iter().filter(|&&l| l != IGNORE_INDEX).count());
        let gradients = tape.backward(&head.loss, SEED).unwrap();
        let what = format!("{}, {}, {n_rows} rows, {promised}", isa.path(), T::DTYPE);
        assert!(head.sum().unwrap() == want.0, "{what}: sum");
        assert!(f64s(gradients.of(&x).unwrap()) == want.1, "{what}: gradient of x");
        assert!(grad_of(&home, 0) == want.2, "{what}: gradient of the weight");
    }
}

#[test]
#[ignore = "heavy"]
fn rows_without_a_label_cost_nothing_and_change_no_bit() {
    let patterns: [fn(usize, usize) -> bool; 7] = [
        |_, row| row % 3 != 1,
        |_, row| row % 87 > 36,
        |_, row| row.wrapping_mul(0x9e37_79b9) >> 16 & 15 == 0,
        |n, row| row > n / 2 && row != n - 2,
        |n, row| row == n - 1,
        |_, _| true,
        |_, _| false,
    ];
    // Several chunks, and in each several blocks of the weight gradient; chunks of which the last has few rows; few rows.
    for (n_rows, vocab, chunk, n_patterns) in
        [(5000, 1001, 2528, 3), (70, 80_000, 64, 4), (7, 33, 7, 7), (23, 33, 23, 7)]
    {
        let label = |row: usize| (row * 31 % vocab) as i32;
        for pattern in &patterns[..n_patterns] {
            let labels: Vec<i32> =
                (0..n_rows).map(|row| if pattern(n_rows, row) { label(row) } else { IGNORE_INDEX }).collect();
            for isa in Isa::available() {
                check::<f32>(isa, n_rows, vocab, chunk, &labels);
                check::<bf16>(isa, n_rows, vocab, chunk, &labels);
            }
            check::<f16>(Isa::detect(), n_rows, vocab, chunk, &labels);
        }
    }
}

/// A GPU takes chunks by its memory. Those that have most of their rows get their gradients where these belong, the others
/// are gathered.
#[test]
fn a_gpu_in_several_chunks_is_near_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    // The emulated GPU has 256 MB, so its chunks have two million elements.
    let (n_rows, vocab, dim) = (600, 4000, 8);
    let (x, w) = (array(1, &[n_rows, dim]), array(2, &[vocab, dim]));
    let label = |row: usize| (row * 31 % vocab) as i32;
    for (dtype, every, n_chunks, expected, absent) in
        [(DType::BF16, 100, 2, vec![], "head input"), (DType::F32, 2, 1, vec!["head input"], "")]
    {
        let labels: Vec<i32> =
            (0..n_rows).map(|row| if row % every == 1 { IGNORE_INDEX } else { label(row) }).collect();
        let [want, got] = [&cpu, &gpu].map(|device| {
            let (params, home) = settle(std::slice::from_ref(&w), dtype, device, true);
            let tape = Tape::with_seed(SEED);
            let x = tape.leaf(&tensor(&x, dtype, device));
            device.profile().enable();
            let head =
                ops::head_loss(&x, &params[0], &Labels::new(&labels[..]), HeadOptions::default()).unwrap();
            let gradients = tape.backward(&head.loss, SEED).unwrap();
            let ran = device.profile().take();
            if device.is_cuda() {
                let calls = |op| ran.iter().find(|(name, _)| *name == op).map_or(0, |(_, op)| op.calls);
                for op in ["head forward", "cross entropy", "head input grad", "head weight grad"] {
                    assert_eq!(calls(op), n_chunks, "{dtype}: {op} of {ran:?}");
                }
                assert!(expected.iter().all(|op| calls(op) == n_chunks), "{dtype}: {ran:?}");
                assert_eq!(calls(absent), 0, "{dtype}: {ran:?}");
            }
            let dx = f64s(gradients.of(&x).unwrap());
            (head.sum().unwrap(), dx, grad_of(&home, 0))
        });
        assert!((got.0 - want.0).abs() <= 1e-5 * want.0, "{dtype}: {} is not {}", got.0, want.0);
        assert_close(&got.1, &want.1, dtype, 1.0, "gradient of x");
        assert_close(&got.2, &want.2, dtype, 1.0, "gradient of the weight");
    }
    assert_eq!(gpu.staged_ops(), Vec::<&str>::new());
}
