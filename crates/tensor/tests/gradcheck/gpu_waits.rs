//! How often the host waits for a GPU, and what it knows without asking it.

use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::{self, HeadOptions, Labels, transfer, update};
use oarlock_tensor::{DType, Device, Error, FlatBuffer, Tape, Tensor};

use crate::common::{array, gpu_in_segments, own_gpu, settle};

/// How often the host waits while something runs.
fn waits<R>(device: &Device, run: impl FnOnce() -> R) -> (u64, R) {
    let before = device.gpu_counts().unwrap().waits;
    let result = run();
    (device.gpu_counts().unwrap().waits - before, result)
}

#[test]
fn a_step_waits_for_its_loss_and_its_norm_alone() {
    let Some(gpu) = gpu_in_segments() else { return };
    let (vocab, dim, rows) = (40, 16, 24);
    let (params, home) = settle(&[array(1, &[vocab, dim]), array(2, &[vocab, dim])], DType::F32, &gpu, true);
    let step = |labels: &[i32]| {
        let ids: Vec<i32> = (0..rows as i32).map(|i| i * 7 % vocab as i32).collect();
        let tape = Tape::with_seed(0.25);
        let ids = Tensor::from_slice(&ids, [1, rows], &gpu).unwrap();
        let x = ops::embedding(&tape.input(&ids), &params[0]).unwrap();
        let loss =
            ops::head_loss(&x, &params[1], &Labels::new(labels.to_vec()), HeadOptions::default()).unwrap();
        tape.backward(&loss.loss, 0.25).unwrap();
        let grads = home.grads().unwrap();
        // Of the table: what lies between parameters has no numbers.
        let n = vocab * dim;
        let sums = FlatBuffer::borrowed(&gpu, 8 * n.div_ceil(update::NORM_BLOCK), "test").unwrap();
        transfer::zero(&gpu, &sums).unwrap();
        let n_sums = n.div_ceil(update::NORM_BLOCK);
        update::squared_norms(
            &gpu,
            &Part { flat: &grads, range: 0..n },
            &Part { flat: &sums, range: 0..n_sums },
        )
        .unwrap();
        let (waits, norm) = waits(&gpu, || update::sum_f64(&gpu, &sums, n_sums).unwrap());
        let expected = transfer::read_with(&sums, 0..n_sums, update::tree_sum).unwrap();
        assert!(
            waits == 1 && (norm - expected).abs() <= 1e-12 * expected,
            "{waits} waits, {norm}, {expected}"
        );
        loss
    };
    let labels: Vec<i32> = (0..rows as i32).map(|i| if i % 5 == 0 { -100 } else { i }).collect();
    // The first one compiles.
    step(&labels).sum().unwrap();
    let (all, loss) = waits(&gpu, || step(&labels));
    // One for the norm, and one for what it is compared with.
    assert_eq!(all, 2, "ids, labels and seed are known");
    assert_eq!(waits(&gpu, || loss.sum().unwrap()).0, 1);
    assert_eq!(gpu.staged_ops(), Vec::<&str>::new());
}

#[test]
fn indices_that_the_host_has_not_written_are_looked_at() {
    let Some(gpu) = own_gpu() else { return };
    let (params, _home) = settle(&[array(1, &[7, 5])], DType::F32, &gpu, false);
    let table = &params[0];
    let known = Tensor::from_slice(&[3, 6], [2], &gpu).unwrap();
    assert_eq!(waits(&gpu, || ops::embedding(&known, table).unwrap()).0, 0);
    let here = Tensor::from_slice(&[3, 6], [2], &Device::default()).unwrap().to_device(&gpu).unwrap();
    assert_eq!(waits(&gpu, || ops::embedding(&here, table).unwrap()).0, 0);
    // What a launch has made of them, nobody knows.
    let made = known.add(&known).unwrap();
    let (asked, error) = waits(&gpu, || ops::embedding(&made, table).unwrap_err());
    assert!(asked > 0 && matches!(error, Error::Index { index: 12, position: 1, bound: 7, .. }), "{error}");
    for ids in [[3, 7], [3, -1], [3, -100], [3, i32::MIN]] {
        let ids = Tensor::from_slice(&ids, [2], &gpu).unwrap();
        let error = ops::embedding(&ids, table).unwrap_err();
        assert!(matches!(error, Error::Index { position: 1, bound: 7, .. }), "{error}");
    }
}

#[test]
fn a_label_that_is_none_is_found() {
    let Some(gpu) = own_gpu() else { return };
    let logits = Tensor::zeros([3, 5], DType::F32, &gpu).unwrap();
    let loss = |labels: [i32; 3]| {
        let labels = Tensor::from_slice(&labels, [3], &gpu).unwrap();
        ops::cross_entropy(&logits, &labels, -100, ops::Reduction::Sum)
    };
    let (asked, sum) = waits(&gpu, || loss([4, -100, 0]).unwrap());
    assert_eq!(asked, 0);
    assert!((sum.item::<f32>().unwrap() - 2.0 * 5f32.ln()).abs() < 1e-5);
    for labels in [[-100, -7, 0], [-7, -7, 0], [5, -100, 0]] {
        assert!(matches!(loss(labels).unwrap_err(), Error::Index { bound: 5, .. }), "{labels:?}");
    }
}

#[test]
fn uploads_wait_for_nobody_and_arrive_as_they_were() {
    let Some(gpu) = own_gpu() else { return };
    // More than the ring has slots, and what is changed later.
    let mut numbers = vec![0f32; 100_000];
    let (first, tensors) = waits(&gpu, || {
        let upload = |i: usize| {
            numbers.fill(i as f32);
            Tensor::from_slice(&numbers, [numbers.len()], &gpu).unwrap()
        };
        (0..5).map(upload).collect::<Vec<_>>()
    });
    assert_eq!(first, 0, "ten slots of sixteen");
    let again: Vec<Tensor> =
        (5..20).map(|i| Tensor::from_slice(&vec![i as f32; 70_000], [70_000], &gpu).unwrap()).collect();
    for (i, tensor) in tensors.iter().chain(&again).enumerate() {
        let values = tensor.to_vec::<f32>().unwrap();
        assert!(values.iter().all(|value| *value == i as f32), "tensor {i}");
    }
    let large = vec![1.5f32; 1 << 19];
    let (asked, tensor) = waits(&gpu, || Tensor::from_slice(&large, [1 << 19], &gpu).unwrap());
    assert_eq!((asked, tensor.to_vec::<f32>().unwrap() == large), (1, true));
}

#[test]
fn a_loss_that_is_scaled_on_its_way_is_told_so() {
    let Some(gpu) = own_gpu() else { return };
    let (params, _home) = settle(&[array(2, &[9, 4])], DType::F32, &gpu, true);
    let x = Tensor::from_slice(&[0.5f32; 8], [2, 4], &gpu).unwrap();
    let tape = Tape::with_seed(0.25);
    let leaf = tape.leaf(&x);
    let loss = ops::head_loss(&leaf, &params[0], &Labels::new(vec![1, 2]), HeadOptions::default()).unwrap();
    let scaled = loss.loss.scale(2.0).unwrap();
    let error = tape.backward(&scaled, 0.25).err().unwrap().to_string();
    assert!(error.contains("the promised seed Some(0.25)") && error.contains("(0.5)"), "{error}");
}

#[test]
fn products_of_f32_are_in_tf32_where_that_is_asked_for() {
    let Some(gpu) = own_gpu() else { return };
    let (params, _home) = settle(&[array(2, &[64, 64])], DType::F32, &gpu, false);
    let x = Tensor::from_slice(&[0.5f32; 64 * 64], [64, 64], &gpu).unwrap();
    for (tf32, precision) in [(true, "tf32"), (false, "f32")] {
        gpu.set_tf32(tf32);
        ops::linear(&x, &params[0], None, ops::WeightLayout::OutIn).unwrap();
        let shapes: Vec<String> = gpu.gpu_products().iter().map(ToString::to_string).collect();
        let has = |precision: &str| shapes.iter().any(|shape| shape.split(' ').next() == Some(precision));
        assert!(has(precision) && has("f32") != tf32, "{shapes:?}");
    }
}
