//! Which ops a GPU runs in forms of its own, and what keeps its memory in order.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use oarlock_tensor::cpu::difference::largest_difference_by;
use oarlock_tensor::cpu::quantized::{Code, Format, Layout};
use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::cpu::{Cpu, Isa, Par};
use oarlock_tensor::ops::optimizer::{Part, Role, Rule, StepArgs, UpdateParts, Workspace, update};
use oarlock_tensor::ops::{
    self, Activation, HeadOptions, Labels, Mask, Reduction, Rope, RowLossOptions, Step, WeightLayout,
    transfer,
};
use oarlock_tensor::{
    DType, Device, Error, FlatBuffer, Param, Result, RopeScaling, Shape, Store, Tape, Tensor,
};

use crate::common::{array, assert_close, f64s, own_gpu, positive, settle, tensor};
use crate::quantized::settle_words;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// The names of the ops that `f` runs.
pub fn ops_of(gpu: &Device, f: impl FnOnce()) -> BTreeSet<String> {
    gpu.profile().enable();
    f();
    gpu.profile().take().into_iter().map(|(name, _)| name.into_owned()).collect()
}

/// Asserts that `f` runs these ops, and everything in forms of the GPU.
#[track_caller]
pub fn assert_forms(gpu: &Device, what: &str, expected: &[&str], f: impl FnOnce()) {
    let ran = ops_of(gpu, f);
    let staged: Vec<_> = ran.iter().filter(|name| name.ends_with("(staged)")).collect();
    assert!(staged.is_empty(), "{what}: {staged:?}");
    let missing: Vec<_> = expected.iter().filter(|name| !ran.contains(**name)).collect();
    assert!(missing.is_empty(), "{what}: {missing:?} did not run, but {ran:?}");
}

/// One number of all elements of these tensors.
pub fn loss_of(tensors: &[Tensor]) -> Result<Tensor> {
    let mut loss = Tensor::zeros([], DType::F32, tensors[0].device())?;
    for tensor in tensors {
        loss = loss.add(&tensor.cast(DType::F32)?.square()?.sum_all()?)?;
    }
    Ok(loss)
}

/// Runs an op on leaves, and backward.
fn there_and_back(gpu: &Device, dtype: DType, op: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) {
    let tape = Tape::new();
    let leaf = |seed, shape: &[usize]| tape.leaf(&tensor(&positive(seed, shape), dtype, gpu));
    let inputs = [leaf(1, &[2, 3, 8]), leaf(2, &[2, 3, 8]), leaf(3, &[3, 1])];
    let loss = loss_of(&op(&inputs).unwrap()).unwrap();
    tape.backward(&loss, 1.0).unwrap();
}

#[test]
fn a_decoder_is_not_staged() {
    let Some(gpu) = own_gpu() else { return };
    for dtype in DTYPES {
        let shapes: [&[usize]; 6] = [&[11, 64], &[64], &[64, 64], &[64], &[128, 64], &[64, 64]];
        let arrays: Vec<_> = shapes.iter().enumerate().map(|(i, shape)| array(i as u64, shape)).collect();
        let (p, home) = settle(&arrays, dtype, &gpu, true);
        // Weights of norms are f32 in every model.
        let (norm, norm_home) = settle(&[array(9, &[64])], DType::F32, &gpu, true);
        let rope = Arc::new(Rope::new(1e4, 32, RopeStyle::Half, RopeScaling::None, 8).unwrap());
        let labels = Labels::new(vec![1, 2, -100, 10, 4, 5]);
        let ids = Tensor::from_slice(&[1, 5, 3, 3, 10, 0], [2, 3], &gpu).unwrap();
        let step = || -> Result<()> {
            let tape = Tape::new();
            let linear = |x: &Tensor, weight: &Param, bias| ops::linear(x, weight, bias, WeightLayout::OutIn);
            let x = ops::embedding_to(&tape.input(&ids), &p[0], DType::F32)?;
            let h = ops::rms_norm_to(&x, &norm[0], 1e-5, 0.0, dtype)?;
            let q = ops::split_heads(&linear(&h, &p[2], Some(&p[3]))?, 32)?;
            let q = ops::rope(&q, &rope, 0)?;
            let o = ops::attention(&q, &q, &q, &Mask::Causal, &ops::AttentionOptions::new(0.2))?;
            let x = ops::add_residual(&x, &ops::merge_heads(&o)?)?;
            let h = ops::layer_norm(&x.cast(dtype)?, &p[1], Some(&p[3]), 1e-5)?;
            let parts = ops::split(&linear(&h, &p[4], None)?, 64, 2)?;
            let h = ops::gated(&parts[0], &parts[1], Activation::Silu)?;
            let h = ops::linear(&h, &p[5], None, WeightLayout::InOut)?;
            let x = ops::add_residual(&x, &h.add(&ops::parameter(&p[3], &h)?)?)?.cast(dtype)?;
            let loss = ops::head_loss(&x, &p[0], &labels, HeadOptions { logit_cap: Some(5.0) })?.loss;
            tape.backward(&loss, 1.0).map(drop)
        };
        home.clear_grads();
        norm_home.clear_grads();
        let mut names = vec![
            "embedding forward",
            "embedding backward",
            "rms_norm forward",
            "rms_norm backward",
            "layer_norm forward",
            "layer_norm backward",
            "linear forward",
            "linear weight grad",
            "linear bias grad",
            "rope forward",
            "rope backward",
            "attention forward",
            "attention backward",
            "gated forward",
            "gated backward",
            "add_residual",
            "gradient sum",
            "parameter",
            "cross entropy",
            "head forward",
            "head input grad",
            "head weight grad",
            "linear input grad",
            "copy",
            "sum",
            "add",
        ];
        if dtype != DType::F32 {
            names.extend(["cast", "round gradient"]);
        }
        assert_forms(&gpu, &format!("a decoder in {dtype}"), &names, || step().unwrap());
        // Onto the gradients that are there.
        assert_forms(&gpu, &format!("a decoder in {dtype}, again"), &names, || step().unwrap());
    }
}

#[test]
fn small_ops_are_not_staged() {
    let Some(gpu) = own_gpu() else { return };
    let activations = |x: &[Tensor]| {
        let x = &x[0];
        let all = [
            x.neg(),
            x.scale(2.0),
            x.add_scalar(1.0),
            x.exp(),
            x.log(),
            x.sqrt(),
            x.square(),
            x.powf(1.5),
            x.abs(),
            x.clamp(-1.0, 1.0),
            x.silu(),
            x.gelu(),
            x.gelu_tanh(),
            x.relu(),
            x.tanh(),
            x.sigmoid(),
            x.reciprocal(),
            x.rsqrt(),
            x.exp2(),
            x.expm1(),
            x.log2(),
            x.log1p(),
            x.sin(),
            x.cos(),
            x.erf(),
            x.floor(),
            x.ceil(),
            x.round(),
            x.trunc(),
            x.sign(),
            x.leaky_relu(0.1),
            x.elu(1.0),
            x.softplus(1.0, 20.0),
            x.hardtanh(-1.0, 1.0),
            x.relu6(),
            x.selu(),
            x.mish(),
            x.hardsigmoid(),
            x.hardswish(),
            x.logsigmoid(),
            x.softsign(),
            x.div(3.0),
        ];
        all.into_iter().collect()
    };
    let pairs = |x: &[Tensor]| {
        let (a, b, spread) = (&x[0], &x[1], &x[2]);
        let all = [
            a.add(b),
            a.sub(spread),
            a.mul(b),
            a.mul(a),
            spread.div(b),
            a.floor_divide(b),
            a.remainder(spread),
            a.maximum(b),
            a.minimum(b),
            a.pow(spread),
        ];
        all.into_iter().collect()
    };
    let moved = |x: &[Tensor]| {
        let mask = Tensor::from_slice(&[1, 0, 1, 1, 0, 0, 2, 0], [8], x[0].device())?;
        Ok(vec![
            ops::permute(&x[0], [2, 0, 1])?,
            ops::expand(&x[2], [2, 3, 5])?,
            ops::repeat(&x[2], [1, 3])?,
            // Two parts of one tensor, along the first dim and inside.
            ops::narrow(&x[0], 1, 1..3)?,
            ops::narrow(&x[0], 1, 0..2)?,
            ops::narrow(&x[0], 0, 1..2)?,
            ops::concat(&[&x[0], &x[1]], 1)?,
            ops::concat(&[&x[0], &x[1]], 0)?,
            ops::stack(&[&x[0], &x[1]], -1)?,
            x[1].i((.., Step(.., 2), Step(1.., 3)))?,
            x[1].i((.., .., Step(.., 4)))?,
            ops::pad(&x[0], [1, 2, 0, 1], 0.0)?,
            ops::pad(&x[0], [1, 2], 3.0)?,
            ops::where_cond(&mask, &x[0], &x[1])?,
            ops::where_cond(&mask, &x[0], 2.5)?,
            ops::masked_fill(&x[0], &mask, f32::NEG_INFINITY)?.i((.., .., 1..2))?,
        ])
    };
    let reduced = |x: &[Tensor]| {
        let x = &x[0];
        Ok(vec![
            x.sum(2)?,
            x.sum(0)?,
            x.sum([0, 2])?,
            x.mean(1)?,
            x.mean_all()?,
            x.var(2, 1)?,
            x.std(0, 1)?,
            x.norm(2.0, 2)?,
            x.norm(1.0, 0)?,
            x.softmax(-1)?,
            x.softmax(0)?,
            x.log_softmax(-1)?,
            x.log_softmax(1)?,
        ])
    };
    let losses = |x: &[Tensor]| {
        let labels = Tensor::from_slice(&[1, 7, -1, 0, 2, 5], [2, 3], x[0].device())?;
        let each = RowLossOptions { ignore_index: -1, weight: None, label_smoothing: 0.1, log_probs: false };
        Ok(vec![
            ops::cross_entropy(&x[0], &labels, -1, Reduction::Mean)?,
            ops::cross_entropy(&x[0], &labels, -1, Reduction::Sum)?,
            ops::cross_entropy(&x[1], &labels, -1, Reduction::None)?,
            ops::row_losses(&x[1], &labels, &each)?.losses,
        ])
    };
    for dtype in DTYPES {
        let of = |part: &str| format!("{part} in {dtype}");
        let names = ["neg", "exp", "silu", "div", "softplus", "sum", "fill"];
        assert_forms(&gpu, &of("functions"), &names, || there_and_back(&gpu, dtype, activations));
        let names =
            ["add", "sub", "mul", "div", "floor_divide", "remainder", "maximum", "minimum", "pow", "sum"];
        assert_forms(&gpu, &of("pairs"), &names, || there_and_back(&gpu, dtype, pairs));
        assert_forms(&gpu, &of("moved"), &["copy", "select"], || there_and_back(&gpu, dtype, moved));
        let names = ["sum", "square", "std", "softmax", "log_softmax"];
        assert_forms(&gpu, &of("reduced"), &names, || there_and_back(&gpu, dtype, reduced));
        let names = ["cross entropy", "cross entropy backward", "cross_entropy"];
        assert_forms(&gpu, &of("losses"), &names, || there_and_back(&gpu, dtype, losses));
        let products = |x: &[Tensor]| {
            let right = ops::matmul_transposed(&x[0], &x[1], ops::Transposed::Right)?;
            Ok(vec![ops::matmul(&x[0], &ops::transpose(&x[1], 1, 2)?)?, right])
        };
        assert_forms(&gpu, &of("products"), &[], || there_and_back(&gpu, dtype, products));
        assert_forms(&gpu, &of("others"), &["max", "argmin", "cast", "full"], || {
            let x = tensor(&array(1, &[2, 3, 8]), dtype, &gpu);
            x.max(1).unwrap();
            x.argmin(2).unwrap();
            x.cast(DType::I32).unwrap().cast(dtype).unwrap();
            Tensor::full([3, 5], 2.5, dtype, &gpu).unwrap();
        });
    }
    // What shows that a staged op would be seen.
    let staged = ops_of(&gpu, || {
        tensor(&array(1, &[4]), DType::F32, &gpu).prod(0).unwrap();
    });
    assert_eq!(staged.into_iter().collect::<Vec<_>>(), ["prod (staged)"]);
}

#[test]
fn quantized_products_are_not_staged() {
    let Some(gpu) = own_gpu() else { return };
    let (cpu, (rows, cols)) = (Cpu { isa: Isa::detect(), par: Par::solo() }, (24, 40));
    let four_bit = |code, nested| Format::FourBit { code, nested };
    let host = Device::cpu(Isa::detect(), Par::solo());
    let formats =
        [four_bit(Code::Nf4, true), four_bit(Code::Nf4, false), four_bit(Code::Fp4, true), Format::Int8];
    for format in formats {
        let layout = Layout { rows, cols, format };
        let full: Vec<f32> = array(3, &[rows * cols]).data.iter().map(|x| *x as f32).collect();
        let mut words = vec![0; layout.n_words()];
        layout.quantize(&cpu, &full, &mut words);
        let (words, host_words) = (settle_words(&words, &gpu), settle_words(&words, &host));
        for dtype in DTYPES {
            let names = ["quantized linear forward", "quantized linear input grad", "dequantize"];
            // Few rows are multiplied by the codes, many by the dequantized weight.
            for rows_of_x in [5, 300] {
                let run = |device: &Device, words: &Param| {
                    let tape = Tape::new();
                    let x = tape.leaf(&tensor(&array(4, &[rows_of_x, cols]), dtype, device));
                    let y = ops::linear_quantized(&x, words, layout).unwrap();
                    // Twice, so that the second gradient is added.
                    let again = ops::linear_quantized(&x, words, layout).unwrap();
                    let gradients = tape.backward(&loss_of(&[y.clone(), again]).unwrap(), 1.0).unwrap();
                    let whole = ops::dequantize(words, layout, dtype).unwrap();
                    [f64s(&whole), f64s(&y), f64s(gradients.of(&x).unwrap())]
                };
                let mut here = None;
                assert_forms(&gpu, &format!("{format} in {dtype}"), &names, || {
                    here = Some(run(&gpu, &words));
                });
                let (here, there) = (here.unwrap(), run(&host, &host_words));
                assert_eq!(here[0], there[0], "{format} in {dtype}");
                for (what, (got, want)) in ["y", "dx"].iter().zip(here[1..].iter().zip(&there[1..])) {
                    assert_close(got, want, dtype, 2.0, &format!("{format} in {dtype}, {rows_of_x}: {what}"));
                }
            }
        }
    }
}

#[test]
fn steps_and_sums_of_gradients_are_not_staged() {
    let Some(gpu) = own_gpu() else { return };
    let n = 5000;
    let buffers: Vec<_> = (0..5).map(|_| FlatBuffer::pooled(&gpu, 4 * n, "test").unwrap()).collect();
    let values: Vec<f32> = array(1, &[n]).data.iter().map(|x| *x as f32).collect();
    for buffer in &buffers {
        transfer::store(&gpu, &values, buffer, 0, DType::F32).unwrap();
    }
    let norms = FlatBuffer::pooled(&gpu, 8 * 2, "norms").unwrap();
    let [weights, grads, first, second, master] = &buffers[..] else { unreachable!("five were made") };
    let part = |flat| Part { flat, range: 0..n };
    let rules = [
        Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 },
        Rule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 },
        Rule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false },
        Rule::Lion { beta1: 0.9, beta2: 0.95 },
    ];
    for rule in rules {
        let states = [part(first), part(second)];
        for dtype in DTYPES {
            let parts = UpdateParts {
                weights: part(weights),
                dtype,
                master: (dtype != DType::F32).then(|| part(master)),
                grads: part(grads),
                state: &states[..rule.state_names().len()],
            };
            let args = StepArgs { step: 1, lr: 1e-3, weight_decay: 0.1, grad_scale: 1.0 };
            assert_forms(&gpu, "a step", &[rule.name()], || {
                let mut workspace = Workspace::new(&gpu, 0).unwrap();
                let shape = Shape::new(&[n]).unwrap();
                update(&gpu, &rule, &args, &shape, Role::Matrix, &parts, &mut workspace).unwrap();
            });
        }
    }
    assert_forms(&gpu, "gradients", &["gradient norm", "clip gradients", "transfer"], || {
        ops::update::squared_norms(&gpu, &part(grads), &Part { flat: &norms, range: 0..2 }).unwrap();
        ops::update::scale_clamp(&gpu, grads, 0..n, 0.5, 1.0).unwrap();
        transfer::accumulate(&gpu, &part(grads), &part(first), Store::Add).unwrap();
        transfer::convert(&gpu, (&part(grads), DType::F32), (&part(second), DType::BF16)).unwrap();
    });
}

#[test]
fn long_rows_are_summed_in_parts() {
    let Some(gpu) = own_gpu() else { return };
    let cpu = Device::cpu(Isa::detect(), Par::solo());
    for (rows, n) in [(1, 4 * 4096), (1, 5 * 4096 + 77), (3, 4 * 4096), (3, 5 * 4096 + 1), (1, 400_000)] {
        for dtype in DTYPES {
            let values = array(rows as u64, &[rows, n]);
            let [here, there] = [&gpu, &cpu].map(|device| tensor(&values, dtype, device).mean(1).unwrap());
            let [here, there] = [here, there].map(|sums| f64s(&sums));
            let of_bound = |a: f64, b: f64| (a - b).abs() / (1e-5 + 8e-3 * b.abs());
            let far = largest_difference_by(&here, &there, of_bound).unwrap();
            assert!(far <= 1.0, "[{rows}, {n}] in {dtype}: {here:?}, {there:?}");
        }
    }
}

#[test]
fn what_kernels_do_not_take_is_staged() {
    let Some(gpu) = own_gpu() else { return };
    // A norm in f32 whose weight is not, which has no kernel; and quotients of integers.
    let x = array(1, &[6, 64]);
    let run = |device: &Device| {
        let (params, _home) = settle(&[array(2, &[64])], DType::BF16, device, false);
        let x = tensor(&x, DType::F32, device);
        let y = ops::rms_norm_to(&x, &params[0], 1e-5, 0.0, DType::BF16).unwrap();
        let integers = x.cast(DType::I32).unwrap();
        let threes = Tensor::full([6, 64], 3, DType::I32, device).unwrap();
        [y, integers.floor_divide(&threes).unwrap(), integers.remainder(&threes).unwrap(), x.prod(1).unwrap()]
            .map(|y| f64s(&y))
    };
    let mut here = None;
    let names = ops_of(&gpu, || here = Some(run(&gpu)));
    let staged =
        ["rms_norm forward (staged)", "floor_divide (staged)", "remainder (staged)", "prod (staged)"];
    assert!(staged.iter().all(|name| names.contains(*name)), "{names:?}");
    assert_eq!(here, Some(run(&Device::default())));
}

/// The fake driver reads the models of its GPUs when it is loaded, so this runs in a process of its own.
#[test]
fn what_is_too_large_for_a_gpu_is_staged_and_says_why() {
    const VARIABLE: &str = "OARLOCK_FAKE_GPUS";
    let Some(gpu) = own_gpu() else { return };
    if std::env::var_os(VARIABLE).is_none() {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again
            .args(["--exact", "gpu::what_is_too_large_for_a_gpu_is_staged_and_says_why"])
            .env(VARIABLE, "L4");
        let output = again.output().expect("a process");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    // Two sums of this many columns are more than the 99 KiB that a block has there.
    let dim = 16_384;
    let run = |device: &Device| {
        let tape = Tape::new();
        let (params, _home) = settle(&[array(2, &[dim]), array(3, &[dim])], DType::F32, device, true);
        let x = tape.leaf(&tensor(&array(1, &[2, dim]), DType::F32, device));
        let y = ops::layer_norm(&x, &params[0], Some(&params[1]), 1e-5).unwrap();
        let gradients = tape.backward(&loss_of(&[y]).unwrap(), 1.0).unwrap();
        f64s(gradients.of(&x).unwrap())
    };
    let mut there = vec![];
    let names = ops_of(&gpu, || there = run(&gpu));
    assert!(
        names.contains("layer_norm forward") && names.contains("layer_norm backward (staged)"),
        "{names:?}"
    );
    let far = largest_difference_by(&run(&Device::default()), &there, |a, b| (a - b).abs() / (1.0 + b.abs()));
    assert!(far.unwrap() < 1e-4, "{far:?}");
    let why = "layer_norm backward (layer_norm_backward_f32: 131200 bytes of shared memory, of which this GPU has 101376 \
               for a block)";
    assert_eq!(gpu.staged_ops(), [why]);
}

#[test]
fn tensors_without_elements_pass() {
    let Some(gpu) = own_gpu() else { return };
    for dtype in DTYPES {
        let empty = |shape: &[usize]| Tensor::zeros(shape, dtype, &gpu).unwrap();
        let (rows, cols) = (empty(&[0, 4]), empty(&[4, 0]));
        assert_eq!(f64s(&cols.sum(1).unwrap()), [0.0; 4]);
        assert_eq!(f64s(&rows.sum(0).unwrap()), [0.0; 4]);
        let passed = [
            rows.exp().unwrap(),
            rows.add(&rows).unwrap(),
            rows.softmax(-1).unwrap(),
            ops::transpose(&cols, 0, 1).unwrap(),
            ops::concat(&[&rows, &rows], 0).unwrap(),
            ops::masked_fill(&rows, &Tensor::zeros([4], DType::I32, &gpu).unwrap(), 1.0).unwrap(),
            Tensor::full([0, 4], 1.0, dtype, &gpu).unwrap(),
        ];
        assert!(passed.iter().all(|t| t.n_elems() == 0 && f64s(t).is_empty()));
    }
}

#[test]
fn memory_that_is_given_back_is_used_behind_what_still_reads_it() {
    let Some(gpu) = own_gpu() else { return };
    let n = 10_000;
    let make = |value: f32| Tensor::full([n], value, DType::F32, &gpu).unwrap();
    // The first round fills the pool.
    let mut fresh = None;
    for round in 0..4 {
        let x = make(round as f32);
        let doubled = x.scale(2.0).unwrap();
        drop(x);
        // In the block of x, before anybody has waited for the launch that reads it.
        let other = make(-7.0).add_scalar(1.0).unwrap();
        // The staged op reads what launches before it write, and launches behind it read what it writes.
        let dropped = ops::reshape(&other, [n, 1]).unwrap().prod(1).unwrap().scale(3.0).unwrap();
        drop(other);
        let again = make(5.0);
        for (tensor, value) in [(&doubled, 2.0 * round as f64), (&dropped, -18.0), (&again, 5.0)] {
            assert_eq!(f64s(tensor), vec![value; n], "round {round}");
        }
        let so_far = gpu.arena().n_fresh();
        assert_eq!(*fresh.get_or_insert(so_far), so_far, "round {round} took memory from the system");
    }
}

#[test]
fn memory_of_another_device_is_refused() {
    let Some(gpu) = own_gpu() else { return };
    let Some(other_gpu) = own_gpu() else { return };
    let cpu = Device::default();
    let strict = Device::strict(Isa::detect(), Par::solo());
    let weights = [array(1, &[4, 4])];
    for (here, there) in [(&gpu, &cpu), (&cpu, &gpu), (&gpu, &strict), (&strict, &gpu), (&gpu, &other_gpu)] {
        let (x, y) = (tensor(&weights[0], DType::F32, here), tensor(&weights[0], DType::F32, there));
        let (params, _home) = settle(&weights, DType::F32, there, false);
        let refused: [Result<Tensor>; 5] = [
            x.add(&y),
            ops::concat(&[&x, &y], 0),
            ops::matmul(&x, &y),
            // Found by the launch itself.
            ops::linear(&x, &params[0], None, WeightLayout::OutIn),
            ops::rms_norm(
                &ops::narrow(&x, 0, 0..1).unwrap(),
                &settle(&[array(1, &[4])], DType::F32, there, false).0[0],
                1e-5,
            ),
        ];
        for (k, result) in refused.into_iter().enumerate() {
            let how = format!("op {k} with memory of {}, on {}", there.describe(), here.describe());
            assert!(matches!(result, Err(Error::Usage(_))), "{how}: {result:?}");
        }
        // Both are as good as before.
        assert_eq!(f64s(&x.scale(2.0).unwrap())[0], 2.0 * weights[0].data[0]);
        assert_eq!(f64s(&y.scale(2.0).unwrap())[0], 2.0 * weights[0].data[0]);
        here.synchronize().unwrap();
        there.synchronize().unwrap();
    }
}

#[test]
fn ids_outside_of_a_table_are_refused() {
    let Some(gpu) = own_gpu() else { return };
    let (params, _home) = settle(&[array(1, &[7, 5])], DType::F32, &gpu, false);
    for id in [7, -1, i32::MAX] {
        let ids = Tensor::from_slice(&[3, id], [2], &gpu).unwrap();
        let error = ops::embedding(&ids, &params[0]).unwrap_err();
        assert!(matches!(error, Error::Index { position: 1, bound: 7, .. }), "{error}");
    }
}
