//! Ops that move, compare, count, draw and order on a GPU: in forms of its own, with the bits of the CPU.

use std::sync::Arc;

use oarlock_tensor::cpu::random::Stream;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::cpu::{Isa, Par};
use oarlock_tensor::ops::{self, NoisePart, Rope};
use oarlock_tensor::{DType, Device, Error, Result, RopeScaling, Tape, Tensor};

use crate::common::{array, assert_close, f64s, own_gpu, settle, tensor};
use crate::gpu::{assert_forms, loss_of, ops_of};

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Runs an op on a leaf of this shape, backward from the sum of its outputs with weights, on both devices, and compares the
/// bits of outputs and gradients.
fn same_bits(
    gpu: &Device,
    (what, dtype): (&str, DType),
    shape: &[usize],
    op: impl Fn(&Device, &Tensor) -> Result<Vec<Tensor>>,
) {
    let run = |device: &Device| {
        let tape = Tape::new();
        let x = tape.leaf(&tensor(&array(3, shape), dtype, device));
        let outputs = op(device, &x).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut all: Vec<Vec<f64>> = outputs.iter().map(f64s).collect();
        let mut loss = Tensor::zeros([], DType::F32, device).unwrap();
        for y in outputs.iter().filter(|y| y.dtype().is_float() && y.tape().is_some()) {
            let weights = tensor(&array(4, y.sizes()), DType::F32, device);
            let terms = y.cast(DType::F32).unwrap().mul(&weights).unwrap();
            loss = loss.add(&terms.sum_all().unwrap()).unwrap();
        }
        if loss.tape().is_some() {
            all.push(f64s(tape.backward(&loss, 1.0).unwrap().of(&x).expect("a gradient")));
        }
        all
    };
    let mut here = None;
    assert_forms(gpu, what, &[], || here = Some(run(gpu)));
    let here = here.unwrap_or_default();
    let bits = |all: &[Vec<f64>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    let there = run(&Device::cpu(Isa::detect(), Par::solo()));
    assert!(bits(&here) == bits(&there), "{what} in {dtype}: {here:?}, on the CPU {there:?}");
    assert!(!here.is_empty());
}

fn ints(device: &Device, data: &[i32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape, device).unwrap()
}

#[test]
fn random_numbers_are_those_of_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    for dtype in DTYPES {
        same_bits(&gpu, ("dropout", dtype), &[7, 13], |_, x| Ok(vec![ops::dropout(x, 0.3, 5, 2)?]));
        same_bits(&gpu, ("no dropout", dtype), &[7, 13], |_, x| Ok(vec![ops::dropout(x, 0.0, 5, 2)?]));
        same_bits(&gpu, ("random", dtype), &[1], |device, _| {
            let noise = |first: u64, elems, magnitude| NoisePart {
                stream: Stream { seed: 3, stream: 9 },
                first,
                elems,
                magnitude,
            };
            Ok(vec![
                Tensor::rand([5, 31], 7, dtype, device)?,
                Tensor::randn([5, 31], 7, dtype, device)?,
                ops::uniform_noise([200], vec![noise(0, 3..80, 0.5), noise(77, 100..199, 2.0)], device)?,
            ])
        });
    }
}

#[test]
fn comparisons_and_integers_are_those_of_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    for dtype in DTYPES {
        same_bits(&gpu, ("comparisons", dtype), &[3, 4, 5], |device, x| {
            let row = tensor(&array(9, &[4, 1]), dtype, device);
            Ok(vec![
                x.eq(x)?,
                x.ne(&row)?,
                x.lt(&row)?,
                x.le(0.5)?,
                x.gt(&row)?,
                x.ge(&row)?,
                x.isnan()?,
                x.isfinite()?,
                x.gt(0)?.logical_and(&x.lt(1)?)?,
                x.gt(0)?.logical_or(&x.lt(-1)?)?,
                x.gt(0)?.logical_xor(&x.lt(1)?)?.logical_not()?,
                x.gt(0)?.any(1)?,
                x.gt(0)?.all([0, 2])?,
            ])
        });
    }
    same_bits(&gpu, ("integers", DType::F32), &[3, 40], |device, x| {
        let n = x.scale(1000.0)?.cast(DType::I32)?;
        let other = ints(device, &[7, -3, i32::MAX], &[3, 1]);
        let sums = [n.sum(0)?, n.sum(1)?, n.sum(..)?, n.cumsum(1)?, n.cumsum(0)?];
        let pairs = [n.add(&other)?, n.sub(&other)?, n.mul(&other)?, n.maximum(&other)?, n.minimum(&other)?];
        Ok([&sums[..], &pairs[..], &[n.max(1)?, n.min(0)?, n.argmax(1)?]].concat())
    });
}

#[test]
fn indexed_elements_are_those_of_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    let places = [2, 0, 4, 4, 1, 2, 3, 0, 4, 2, 2, 2, 0, 4, 1];
    for dtype in DTYPES {
        same_bits(&gpu, ("gather and scatter", dtype), &[3, 5, 4], |device, x| {
            // Two dims are smaller than those of the data.
            let index = ints(device, &places[..12], &[2, 3, 2]);
            let whole = ints(device, &[&places[..], &places[..], &places, &places].concat(), &[3, 5, 4]);
            let source = ops::narrow(&x.scale(2.0)?, 0, 1..3)?;
            Ok(vec![
                ops::gather(x, 1, &index)?,
                ops::gather(x, 1, &whole)?,
                ops::scatter(x, 1, &index, &source)?,
                ops::scatter(&x.scale(3.0)?, 1, &whole, x)?,
                ops::scatter_add(x, 1, &index, &source)?,
                ops::scatter_add(&x.scale(3.0)?, 1, &whole, x)?,
                ops::take_along_dim(x, &ints(device, &places[..3], &[1, 3, 1]), 1)?,
            ])
        });
        same_bits(&gpu, ("rows", dtype), &[3, 5, 4], |device, x| {
            let index = ints(device, &places[..6], &[6]);
            let source = ops::index_select(&x.scale(2.0)?, 1, &index)?;
            Ok(vec![
                ops::index_select(x, 1, &index)?,
                ops::index_select(x, -1, &ints(device, &[3, 1, 3, 0], &[2, 2]))?,
                ops::index_add(x, 1, &index, &source)?,
            ])
        });
        same_bits(&gpu, ("extremes", dtype), &[3, 5, 4], |_, x| {
            Ok(vec![x.max(1)?, x.min(0)?, x.max(-1)?, x.argmin(1)?])
        });
        same_bits(&gpu, ("moved", dtype), &[3, 5, 4], |_, x| {
            Ok(vec![
                ops::flip(x, [1])?,
                ops::flip(x, [0, -1])?,
                ops::tril(x, 0)?,
                ops::tril(x, -2)?,
                ops::triu(x, 1)?,
                ops::triu(x, isize::MIN)?,
                x.cumsum(1)?,
                x.cumsum(-1)?,
            ])
        });
    }
    same_bits(&gpu, ("indexed integers", DType::F32), &[3, 5], |device, x| {
        let (n, index) = (x.scale(1e6)?.cast(DType::I32)?, ints(device, &places, &[3, 5]));
        let rows = ints(device, &[2, 0, 2], &[3]);
        Ok(vec![
            ops::gather(&n, 1, &index)?,
            ops::scatter(&n, 1, &index, &n)?,
            ops::scatter_add(&n, 1, &index, &n.mul(1000)?)?,
            ops::index_add(&n, 0, &rows, &n)?,
            ops::one_hot(&index, 5)?,
        ])
    });
}

#[test]
fn orders_are_those_of_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    for dtype in DTYPES {
        // The short dtypes have equal elements here.
        same_bits(&gpu, ("sorted", dtype), &[3, 23, 4], |_, x| {
            let by_key = [x.sort(1, false)?, x.sort(0, true)?, x.topk(20, 1, true)?, x.topk(2, 1, false)?];
            let mut all: Vec<Tensor> =
                by_key.into_iter().flat_map(|(values, places)| [values, places]).collect();
            all.extend([x.argsort(-1, true)?, x.argsort(1, false)?]);
            Ok(all)
        });
        same_bits(&gpu, ("rows", dtype), &[5, 70], |_, x| {
            let by_pass =
                [x.topk(1, 1, true)?, x.topk(16, 1, false)?, x.topk(17, 1, true)?, x.topk(0, 1, true)?];
            Ok(by_pass.into_iter().flat_map(|(values, places)| [values, places]).collect())
        });
    }
    same_bits(&gpu, ("sorted integers", DType::F32), &[2, 40], |_, x| {
        let n = x.scale(1e9)?.cast(DType::I32)?;
        Ok(vec![n.sort(1, true)?.0, n.argsort(0, false)?, n.topk(3, 1, true)?.1])
    });
}

/// Generation: few queries at the end of a cache with room for more, whose keys are divided over blocks.
#[test]
fn cached_attention_is_that_of_the_cpu() {
    let Some(gpu) = own_gpu() else { return };
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    let plain = ops::AttentionOptions::new(0.2);
    let windowed = ops::AttentionOptions { window: Some(210), logit_cap: Some(2.0), ..plain.clone() };
    for (dtype, (kv_len, n_queries)) in DTYPES.into_iter().zip([(333, 1), (260, 3), (40, 8)]) {
        for options in [plain.clone(), windowed.clone()] {
            let run = |device: &Device| {
                let of = |seed, sizes: &[usize]| tensor(&array(seed, sizes), dtype, device);
                let (q, capacity) = (of(1, &[2, n_queries, 4, 32]), kv_len + 9);
                let (k, v) = (of(2, &[2, capacity, 2, 32]), of(3, &[2, capacity, 2, 32]));
                f64s(&ops::attention_cached(&q, &k, &v, kv_len, &options).unwrap())
            };
            let mut here = vec![];
            assert_forms(&gpu, "attention", &["attention forward"], || here = run(&gpu));
            let there = run(&cpu);
            assert_close(&here, &there, dtype, 1.0, &format!("{n_queries} queries, {kv_len} keys"));
            if n_queries == 1 {
                let of = |seed, sizes: &[usize]| tensor(&array(seed, sizes), dtype, &gpu);
                let (q, [k, v]) =
                    (of(1, &[2, 1, 4, 32]), [2, 3].map(|seed| of(seed, &[2, kv_len + 9, 2, 32])));
                let own = |x: &Tensor, index: usize| ops::narrow(x, 0, index..index + 1).unwrap();
                let caches = [0, 1].map(|index| (own(&k, index), own(&v, index)));
                let held = |k, v| ops::CachedKv { keys: vec![k], values: vec![v], len: kv_len };
                let caches = caches.each_ref().map(|(k, v)| (held(k, v), 1));
                let each = f64s(&ops::attention_cached_each(&q, &caches, &options).unwrap());
                assert_close(&each, &there, dtype, 1.0, "a query of each sequence");
            }
        }
    }
}

#[test]
fn one_rope_serves_several_gpus() {
    let (Some(first), Some(second)) = (own_gpu(), own_gpu()) else { return };
    let rope = Arc::new(Rope::new(1e4, 8, RopeStyle::Half, RopeScaling::None, 6).unwrap());
    let mut turned = vec![];
    for gpu in [&first, &second, &first] {
        let x = tensor(&array(1, &[2, 5, 3, 8]), DType::F32, gpu);
        assert_forms(gpu, "rope", &["rope forward"], || {
            turned.push(f64s(&ops::rope(&x, &rope, 1).unwrap()));
        });
    }
    assert!(turned[0] == turned[1] && turned[0] == turned[2]);
}

#[test]
fn what_lies_outside_is_refused_with_its_place() {
    let Some(gpu) = own_gpu() else { return };
    let x = tensor(&array(1, &[4, 5]), DType::F32, &gpu);
    let index = ints(&gpu, &[0, 3, 4, 1], &[4, 1]);
    let rows = ints(&gpu, &[0, 4, -1], &[3]);
    let place = |result: Result<Tensor>| match result.unwrap_err() {
        Error::Index { index, position, bound, .. } => (index, position, bound),
        other => panic!("{other}"),
    };
    assert_eq!(place(ops::gather(&x, 0, &index)), (4, 2, 4));
    assert_eq!(place(ops::scatter(&x, 0, &index, &x)), (4, 2, 4));
    assert_eq!(place(ops::scatter_add(&x, 0, &index, &x)), (4, 2, 4));
    assert_eq!(place(ops::index_select(&x, 0, &rows)), (4, 1, 4));
    assert_eq!(place(ops::index_add(&x, 1, &rows, &ops::narrow(&x, 1, 0..3).unwrap())), (-1, 2, 5));
    assert_eq!(place(ops::one_hot(&rows, 4)), (4, 1, 4));
    let labels = ints(&gpu, &[2, -5, 7, 9], &[4]);
    let loss = |ignored| ops::cross_entropy(&x, &labels, ignored, ops::Reduction::Mean);
    assert_eq!(place(loss(-5)), (7, 2, 5));
    assert_eq!(place(loss(7)), (-5, 1, 5));
    let ints = ints(&gpu, &[i32::MAX, 1, 3, 4], &[2, 2]);
    let said = ints.sum(1).unwrap_err().to_string();
    assert_eq!(said, "sum 0 of integers is outside of the range of i32; cast to f32 first");
    // The GPU is as good as before.
    assert_eq!(f64s(&x.flip([0]).unwrap().flip([0]).unwrap()), f64s(&x));
}

#[test]
fn losses_of_pairs_and_of_classes_are_not_staged() {
    let Some(gpu) = own_gpu() else { return };
    for dtype in DTYPES {
        assert_forms(&gpu, &format!("losses in {dtype}"), &["mse_loss", "kl_div", "nll_loss"], || {
            let tape = Tape::new();
            let leaf = |seed| tape.leaf(&tensor(&array(seed, &[4, 9]), dtype, &gpu));
            let (x, t) = (leaf(1), leaf(2));
            let labels = ints(&gpu, &[1, 8, -1, 0], &[4]);
            let classes = ops::RowLossOptions {
                ignore_index: -1,
                weight: Some(tensor(&array(5, &[9]), DType::F32, &gpu)),
                label_smoothing: 0.1,
                log_probs: true,
            };
            let losses = [
                ops::mse_loss(&x, &t, ops::Reduction::Mean).unwrap(),
                ops::smooth_l1_loss(&x, &t, 0.5, ops::Reduction::Sum).unwrap(),
                ops::l1_loss(&x, &t, ops::Reduction::None)
                    .unwrap()
                    .sum_all()
                    .unwrap()
                    .cast(DType::F32)
                    .unwrap(),
                ops::kl_div(&x, &t, ops::KlTarget::LogProbs, ops::KlReduction::BatchMean).unwrap(),
                ops::row_losses(&x, &labels, &classes).unwrap().losses.sum_all().unwrap(),
            ];
            let loss = losses.iter().skip(1).fold(losses[0].clone(), |sum, loss| sum.add(loss).unwrap());
            tape.backward(&loss, 1.0).unwrap();
        });
    }
}

/// One kernel adds a part to the stream and norms it, and one makes the gradient in both dtypes: with the bits of two each.
#[test]
fn a_norm_takes_its_neighbors_along() {
    let Some(gpu) = own_gpu() else { return };
    for (dtype, dim) in [(DType::BF16, 64), (DType::F16, 24), (DType::F32, 64)] {
        let run = |is_one: bool| {
            let (norm, home) = settle(&[array(9, &[dim])], DType::F32, &gpu, true);
            let tape = Tape::new();
            let stream = tape.leaf(&tensor(&array(1, &[2, 5, dim]), DType::F32, &gpu));
            let part = tape.leaf(&tensor(&array(2, &[2, 5, dim]), dtype, &gpu));
            let (sum, y) = match is_one {
                true => ops::add_rms_norm(&stream, &part, &norm[0], 1e-5, 0.5, dtype).unwrap(),
                false => {
                    let sum = ops::add_residual(&stream, &part).unwrap();
                    let y = ops::rms_norm_to(&sum, &norm[0], 1e-5, 0.5, dtype).unwrap();
                    (sum, y)
                }
            };
            // As in a block, what comes later adds to the same stream; in f32, whose gradient nothing rounds.
            let later = y.scale(0.5).unwrap().cast(DType::F32).unwrap();
            let last = ops::add_residual(&sum, &later).unwrap();
            let gradients = tape.backward(&loss_of(&[last]).unwrap(), 1.0).unwrap();
            let of = |leaf: &Tensor| f64s(gradients.of(leaf).expect("a gradient"));
            drop(home);
            [f64s(&sum), f64s(&y), of(&stream), of(&part)]
        };
        let ran = ops_of(&gpu, || drop(run(true)));
        let has = |name: &str| ran.contains(name);
        assert!(has("add and rms_norm forward") && !has("rms_norm forward"), "{dtype}: {ran:?}");
        assert!(!has("round gradient") || dtype == DType::F32, "{dtype}: {ran:?}");
        let (one, two) = (run(true), run(false));
        assert!(one == two, "{dtype}: {one:?}, by two kernels {two:?}");
    }
}
