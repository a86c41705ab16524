//! A small transformer, large enough that kernels cut it into tasks: the same bits on any number of threads, and no
//! memory from the system after the first step.

use std::sync::Arc;

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::{self, HeadOptions, Labels, Mask, Reduction, Rope, WeightLayout};
use oarlock_tensor::{DType, Device, FlatParams, Par, Param, Result, RopeScaling, Tape, Tensor};

use crate::common::{array, assert_close, grad_of, settle};

const VOCAB: usize = 517;
const DIM: usize = 96;
const SEQ: usize = 131;

struct Model {
    params: Vec<Param>,
    home: Arc<FlatParams>,
    rope: Arc<Rope>,
}

impl Model {
    fn new(dtype: DType, device: &Device) -> Model {
        let square: &[usize] = &[DIM, DIM];
        let shapes: [&[usize]; 9] =
            [&[VOCAB, DIM], &[DIM], square, square, square, square, &[SEQ, DIM], &[DIM], &[3 * DIM, DIM]];
        let mut arrays: Vec<_> = shapes.iter().enumerate().map(|(i, shape)| array(i as u64, shape)).collect();
        arrays.iter_mut().for_each(|a| a.data.iter_mut().for_each(|x| *x /= 8.0));
        let (params, home) = settle(&arrays, dtype, device, true);
        let rope = Arc::new(Rope::new(1e4, 16, RopeStyle::Half, RopeScaling::None, SEQ).unwrap());
        Model { params, home, rope }
    }

    /// The loss of a block of fused ops and one of small ones.
    fn forward(&self, ids: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let p = &self.params;
        let linear = |x: &Tensor, w: usize| ops::linear(x, &p[w], None, WeightLayout::OutIn);
        let x = ops::embedding(ids, &p[0])?;
        let x = x.add(&ops::parameter(&p[6], &x)?)?.dropout(0.1, 1, 2)?;
        let h = ops::rms_norm(&x, &p[1], 1e-5)?;
        let [q, k] = [2, 3].map(|w| ops::rope(&ops::split_heads(&linear(&h, w)?, 16)?, &self.rope, 0));
        let v = ops::split_heads(&linear(&h, 4)?, 16)?;
        let o = ops::attention(&q?, &k?, &v, &Mask::Causal, &ops::AttentionOptions::new(0.25))?;
        let x = x.add(&linear(&ops::merge_heads(&o)?, 5)?)?;
        let h = ops::layer_norm(&x, &p[7], Some(&p[1]), 1e-5)?;
        let parts = ops::split(&linear(&h, 8)?, DIM, 2)?;
        let gated = ops::gated(&parts[0], &parts[1], ops::Activation::Silu)?
            .add(&parts[2].gelu()?.mul(&h.mean_keepdim(1)?)?)?;
        let x = x.add(&gated)?;
        let small = ops::matmul_transposed(&x.log_softmax(-1)?, &x.softmax(-1)?, ops::Transposed::Right)?;
        let largest = small.transpose(1, 2)?.max(2)?.sum_all()?.cast(DType::F32)?.scale(1e-3)?;
        let logits = ops::logits(&x, &p[0])?;
        let loss = ops::cross_entropy(&logits, labels, -1, Reduction::Mean)?;
        let head = ops::head_loss(&x, &p[0], &Labels::from_tensor(labels)?, HeadOptions::default())?;
        loss.add(&head.loss.scale(1e-3)?)?.add(&largest)
    }

    fn step(&self, device: &Device) -> (f32, Vec<Vec<f64>>) {
        self.home.clear_grads();
        self.micro_step(device)
    }

    /// Adds to the gradients.
    fn micro_step(&self, device: &Device) -> (f32, Vec<Vec<f64>>) {
        let ids: Vec<i32> = (0..2 * SEQ).map(|i| (i * i % VOCAB) as i32).collect();
        let (ids, labels) = (&ids[..], ids.iter().map(|i| (i + 1) % VOCAB as i32).collect::<Vec<_>>());
        let tape = Tape::new();
        let ids = tape.input(&Tensor::from_slice(ids, [2, SEQ], device).unwrap());
        let labels = Tensor::from_slice(&labels, [2, SEQ], device).unwrap();
        let loss = self.forward(&ids, &labels).unwrap();
        tape.backward(&loss, 1.0).unwrap();
        (loss.item::<f32>().unwrap(), (0..self.params.len()).map(|i| grad_of(&self.home, i)).collect())
    }
}

#[test]
#[ignore = "heavy"]
fn threads_and_devices_do_not_change_a_bit_and_memory_is_reused() {
    for dtype in [DType::F32, DType::BF16] {
        for isa in Isa::available() {
            let mut first = None;
            let cpus = [1, 2, 7].map(|n_threads| Device::cpu(isa, Par::threads(n_threads).unwrap()));
            let late = [Device::strict(isa, Par::solo()), Device::staging(isa, Par::solo())];
            for device in cpus.into_iter().chain(late) {
                let model = Model::new(dtype, &device);
                let step = model.step(&device);
                assert!(step.0.is_finite() && step.1.iter().flatten().all(|g| g.is_finite()));
                let fresh = device.arena().n_fresh();
                assert!(model.step(&device) == step, "{}: a second step differs", device.describe());
                assert_eq!(
                    device.arena().n_fresh(),
                    fresh,
                    "{}: new memory in the second step",
                    device.describe()
                );
                let first = first.get_or_insert_with(|| step.clone());
                assert!(*first == step, "{}: not the bits of the CPU with one thread", device.describe());
            }
        }
    }
}

#[test]
fn micro_steps_add_up_and_untouched_parameters_become_zero() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let model = Model::new(DType::F32, &device);
    let (_, once) = model.step(&device);
    let (_, twice) = model.micro_step(&device);
    for (once, twice) in once.iter().zip(&twice) {
        let want: Vec<f64> = once.iter().map(|g| 2.0 * g).collect();
        assert_close(twice, &want, DType::F32, 1.0, "two micro-steps");
    }
    model.home.clear_grads();
    model.home.zero_untouched().unwrap();
    assert!((0..model.params.len()).all(|i| grad_of(&model.home, i).iter().all(|g| *g == 0.0)));
}
