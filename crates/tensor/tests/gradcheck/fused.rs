//! The ops with parameters: embedding, norms, the head with its loss, parameters as tensors; and gated units.

use oarlock_reference::formula::with_gradients;
use oarlock_reference::function::Activation as Reference;
use oarlock_reference::loss::{Weighting, soft_cap, token_losses};
use oarlock_reference::norm::{layer_norm, rms_norm};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, Activation, HeadOptions, IGNORE_INDEX, Labels, TokenLoss};
use oarlock_tensor::{DType, Device, Par, Param, Tape, Tensor};

use crate::common::{Case, Env, Node, array, assert_close, f64s, formula_case, grad_of, settle, tensor};
use crate::products::linear_of;

const IDS: [i32; 6] = [3, 0, 3, 6, 1, 3];

#[test]
fn embedding() {
    let op = |env: &Env, _: &[Tensor], p: &[Param]| ops::embedding(&env.ints(&IDS, &[2, 3]), &p[0]);
    let formula = |_: &[Node], p: &[Node]| p[0].select(0, &IDS.map(|id| id as usize)).reshape(&[2, 3, 5]);
    formula_case("embedding", [], [array(1, &[7, 5])], op, formula).check();
}

#[test]
fn norms() {
    let eps = 1e-3f32;
    for (rows, dim) in [(1, 3), (3, 7), (35, 5)] {
        let x = || [array(1, &[rows, dim])];
        for offset in [0.0f32, 1.0] {
            let op = move |_: &Env, x: &[Tensor], p: &[Param]| match offset {
                0.0 => ops::rms_norm(&x[0], &p[0], eps),
                _ => ops::rms_norm_to(&x[0], &p[0], eps, offset, x[0].dtype()),
            };
            let formula =
                move |x: &[Node], p: &[Node]| rms_norm(&x[0], &p[0], f64::from(offset), f64::from(eps));
            formula_case("rms_norm", x(), [array(2, &[dim])], op, formula).check();
        }
        for n_params in [1, 2] {
            let params = [array(2, &[dim]), array(3, &[dim])].into_iter().take(n_params);
            let op = move |_: &Env, x: &[Tensor], p: &[Param]| ops::layer_norm(&x[0], &p[0], p.get(1), eps);
            let formula = move |x: &[Node], p: &[Node]| layer_norm(&x[0], &p[0], p.get(1), f64::from(eps));
            formula_case("layer_norm", x(), params, op, formula).check();
        }
    }
}

#[test]
fn gated_units() {
    for (activation, reference) in [
        (Activation::Silu, Reference::Silu),
        (Activation::Relu, Reference::Relu),
        (Activation::GeluTanh, Reference::GeluTanh),
    ] {
        let op = move |_: &Env, x: &[Tensor], _: &[Param]| ops::gated(&x[0], &x[1], activation);
        let formula = move |x: &[Node], _: &[Node]| reference.gated(&x[0], &x[1]);
        formula_case("gated", [array(1, &[3, 11]), array(2, &[3, 11])], [], op, formula).check();
    }
}

/// A norm whose output three products take: it is made again once, and its gradient is the sum of theirs.
#[test]
fn a_norm_for_three_products() {
    let (rows, dim) = (4, 6);
    let op = |_: &Env, x: &[Tensor], p: &[Param]| {
        let y = ops::rms_norm(&x[0], &p[0], 1e-3)?;
        let [q, k, v] = [1, 2, 3].map(|i| ops::linear(&y, &p[i], None, ops::WeightLayout::OutIn));
        ops::gated(&q?, &k?, Activation::Silu)?.add(&v?)
    };
    let formula = |x: &[Node], p: &[Node]| {
        let y = rms_norm(&x[0], &p[0], 0.0, 1e-3);
        let [q, k, v] = [1, 2, 3].map(|i| linear_of(&y, &p[i], ops::WeightLayout::OutIn));
        Reference::Silu.gated(&q, &k).plus(&v)
    };
    let weights = [array(2, &[dim]), array(3, &[5, dim]), array(4, &[5, dim]), array(5, &[5, dim])];
    let x = [array(1, &[rows, dim])];
    let case = formula_case("a norm for three products", x, weights, op, formula);
    Case { slack: 4.0, ..case }.check();
}

/// The outputs of the norm and of the gated unit are made again for the products that took them, each cheap op of the chain too.
#[test]
fn an_mlp_of_recipes() {
    let (rows, dim, hidden) = (4, 6, 5);
    let op = |_: &Env, x: &[Tensor], p: &[Param]| {
        let y = ops::layer_norm(&x[0], &p[0], Some(&p[1]), 1e-3)?;
        let [gate, up] = [2, 3].map(|i| ops::linear(&y, &p[i], None, ops::WeightLayout::OutIn));
        let y =
            ops::gated(&gate?, &up?, Activation::Silu)?.scale(0.5)?.add_scalar(0.25)?.reshape([2, 2, 5])?;
        ops::linear(&y.cast(y.dtype())?, &p[4], None, ops::WeightLayout::InOut)
    };
    let formula = |x: &[Node], p: &[Node]| {
        let y = layer_norm(&x[0], &p[0], Some(&p[1]), 1e-3);
        let [gate, up] = [2, 3].map(|i| linear_of(&y, &p[i], ops::WeightLayout::OutIn));
        let y = Reference::Silu.gated(&gate, &up).map(|y| 0.5 * y + 0.25, |_| 0.5).reshape(&[2, 2, 5]);
        linear_of(&y, &p[4], ops::WeightLayout::InOut)
    };
    let weights = [
        array(2, &[dim]),
        array(3, &[dim]),
        array(4, &[5, dim]),
        array(5, &[5, dim]),
        array(6, &[hidden, 3]),
    ];
    let case = formula_case("an mlp of recipes", [array(1, &[rows, dim])], weights, op, formula);
    Case { slack: 4.0, ..case }.check();
}

/// A residual stream in f32 around products in the short dtypes.
#[test]
fn a_stream_in_f32() {
    let op = |env: &Env, x: &[Tensor], p: &[Param]| {
        let stream = ops::embedding_to(&env.ints(&IDS, &[6]), &p[0], DType::F32)?;
        let stream = ops::add_residual(&stream, &x[0])?;
        assert_eq!(stream.dtype(), DType::F32);
        ops::rms_norm_to(&stream, &p[1], 1e-3, 0.0, x[0].dtype())
    };
    let formula = |x: &[Node], p: &[Node]| {
        let stream = p[0].select(0, &IDS.map(|id| id as usize)).plus(&x[0]);
        rms_norm(&stream, &p[1], 0.0, 1e-3)
    };
    let params = [array(1, &[7, 5]), array(2, &[5])];
    formula_case("a stream in f32", [array(3, &[6, 5])], params, op, formula).check();
}

#[test]
fn parameters_as_tensors() {
    let op = |_: &Env, x: &[Tensor], p: &[Param]| {
        let scale = ops::parameter(&p[0], &x[0])?;
        let y = x[0].mul(&scale)?.add(&ops::parameter(&p[1], &x[0])?)?;
        // Twice, and in a way that asks for its value again.
        y.mul(&scale.reshape([1, 5])?)
    };
    let formula = |x: &[Node], p: &[Node]| x[0].mul(&p[0]).plus(&p[1]).mul(&p[0]);
    let params = [array(2, &[5]), array(3, &[3, 5])];
    formula_case("parameters as tensors", [array(1, &[2, 3, 5])], params, op, formula).check();
}

const LABELS: [i32; 6] = [3, IGNORE_INDEX, 0, 6, 6, IGNORE_INDEX];

/// The logits of a head, capped.
fn logits_of(x: &[Node], p: &[Node], cap: Option<f32>) -> Node {
    let logits = linear_of(&x[0].reshape(&[6, 5]), &p[0], ops::WeightLayout::OutIn);
    soft_cap(&logits, cap.map(f64::from))
}

#[test]
fn head_without_a_promise() {
    let (inputs, params) = (|| [array(1, &[2, 3, 5])], || [array(2, &[7, 5])]);
    for logit_cap in [None, Some(1.5)] {
        let options = HeadOptions { logit_cap };
        let losses = move |x: &[Node], p: &[Node]| {
            token_losses(&logits_of(x, p, logit_cap), &LABELS, 0.0, Weighting::None)
        };
        let op = move |_: &Env, x: &[Tensor], p: &[Param]| {
            Ok(ops::head_loss(&x[0], &p[0], &Labels::new(LABELS), options)?.loss)
        };
        let formula = move |x: &[Node], p: &[Node]| losses(x, p).sum_all();
        formula_case("head_loss", inputs(), params(), op, formula).check();
        let op = move |_: &Env, x: &[Tensor], p: &[Param]| {
            ops::head_log_probs(&x[0], &p[0], &Labels::new(LABELS), options)
        };
        let formula = move |x: &[Node], p: &[Node]| losses(x, p).times(-1.0);
        formula_case("head_log_probs", inputs(), params(), op, formula).check();
    }
    let op = |_: &Env, x: &[Tensor], p: &[Param]| ops::logits(&x[0], &p[0]);
    let formula = |x: &[Node], p: &[Node]| logits_of(x, p, None);
    formula_case("logits", inputs(), params(), op, formula).check();
}

#[test]
fn head_with_smoothed_labels() {
    let op = |_: &Env, x: &[Tensor], p: &[Param]| {
        let (labels, kind) = (Labels::new(LABELS), TokenLoss::Smoothed(0.2));
        Ok(ops::head_token_loss(&x[0], &p[0], &labels, HeadOptions::default(), kind)?.loss)
    };
    let formula = |x: &[Node], p: &[Node]| {
        token_losses(&logits_of(x, p, None), &LABELS, 0.2, Weighting::None).sum_all()
    };
    formula_case("head_token_loss", [array(1, &[2, 3, 5])], [array(2, &[7, 5])], op, formula).check();
}

/// The gradients that the forward pass makes are those of the backward pass.
#[test]
fn every_loss_of_tokens_is_the_same_with_a_promised_seed() {
    for kind in [TokenLoss::Smoothed(0.1), TokenLoss::ByProbability, TokenLoss::ByEntropy { alpha: 1.0 }] {
        for dtype in [DType::F32, DType::BF16] {
            let device = Device::cpu(Isa::detect(), Par::solo());
            let run = |tape: Tape| {
                let (params, home) = settle(&[array(2, &[7, 5])], dtype, &device, true);
                let x = tape.leaf(&tensor(&array(1, &[6, 5]), dtype, &device));
                let options = HeadOptions::default();
                let head = ops::head_token_loss(&x, &params[0], &Labels::new(LABELS), options, kind).unwrap();
                let gradients = tape.backward(&head.loss, 0.25).unwrap();
                (head.sum().unwrap(), f64s(gradients.of(&x).unwrap()), grad_of(&home, 0))
            };
            let promised = run(Tape::with_seed(0.25));
            assert!(promised.2.iter().any(|g| *g != 0.0));
            assert_eq!(run(Tape::new()), promised, "{kind:?} {dtype}");
        }
    }
}

/// Embedding and head share their weight; with a promised seed the head's part comes in the forward pass.
#[test]
fn a_promise_changes_nothing() {
    let (table, more) = (array(1, &[7, 5]), array(2, &[5]));
    for isa in Isa::available() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let device = Device::cpu(isa, Par::solo());
            let run = |tape: Tape, seed: f32| {
                let (params, home) = settle(&[table.clone(), more.clone()], dtype, &device, true);
                let ids = tape.input(&Tensor::from_slice(&IDS, [6], &device).unwrap());
                let labels = Labels::new(LABELS);
                let x = ops::embedding(&ids, &params[0]).unwrap();
                let x = ops::rms_norm(&x, &params[1], 1e-3).unwrap();
                let head = ops::head_loss(&x, &params[0], &labels, HeadOptions::default()).unwrap();
                assert_eq!(head.n_targets, 4);
                tape.backward(&head.loss, seed).unwrap();
                let sum = head.sum().unwrap();
                assert!((f64::from(head.loss.item::<f32>().unwrap()) - sum).abs() < 1e-6 * sum);
                (sum, grad_of(&home, 0), grad_of(&home, 1))
            };
            let (promised, plain) = (run(Tape::with_seed(0.25), 0.25), run(Tape::new(), 0.25));
            assert_eq!(promised.0, plain.0);
            let what = |part| format!("{}, {dtype}: {part}", device.describe());
            assert_close(&promised.1, &plain.1, dtype, 1.0, &what("tied weight"));
            assert_close(&promised.2, &plain.2, dtype, 1.0, &what("norm"));
            // Against the reference.
            let given = [(&[7, 5][..], table.data.clone()), (&[5], more.data.clone())];
            let loss = |[table, more]: &[Node; 2]| {
                let x = rms_norm(&table.select(0, &IDS.map(|id| id as usize)), more, 0.0, 1e-3);
                let logits = linear_of(&x, table, ops::WeightLayout::OutIn);
                token_losses(&logits, &LABELS, 0.0, Weighting::None).sum_all()
            };
            let (_, [want, _]) = with_gradients(given, &[0.25], loss);
            assert_close(&promised.1, &want, dtype, 4.0, &what("tied weight against the reference"));
        }
    }
}

#[test]
fn a_scaled_loss_breaks_the_promise() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let (params, _home) = settle(&[array(1, &[7, 5])], DType::F32, &device, true);
    let labels = Labels::new(LABELS);
    let tape = Tape::with_seed(1.0);
    let x = tape.leaf(&tensor(&array(2, &[6, 5]), DType::F32, &device));
    let loss =
        ops::head_loss(&x, &params[0], &labels, HeadOptions::default()).unwrap().loss.scale(0.5).unwrap();
    let text = tape.backward(&loss, 1.0).err().unwrap().to_string();
    assert!(text.contains("promised seed") && text.contains("(0.5)"), "{text}");
}

/// A rank whose share is empty still owes a gradient: zeros, not what the buffer held before.
#[test]
fn no_rows_give_zero_gradients() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    for tape in [Tape::with_seed(1.0), Tape::new()] {
        let params = [array(1, &[7, 5]), array(2, &[5]), array(3, &[5, 5]), array(4, &[5])];
        let (params, home) = settle(&params, DType::F32, &device, true);
        let ids = tape.input(&Tensor::from_slice::<i32>(&[], [1, 0], &device).unwrap());
        let x = ops::embedding(&ids, &params[0]).unwrap();
        let x = ops::rms_norm(&x, &params[1], 1e-3).unwrap();
        let x = ops::linear(&x, &params[2], Some(&params[3]), ops::WeightLayout::OutIn).unwrap();
        let head = ops::head_loss(&x, &params[0], &Labels::new([]), HeadOptions::default()).unwrap();
        assert_eq!((head.sum().unwrap(), head.n_targets), (0.0, 0));
        tape.backward(&head.loss, 1.0).unwrap();
        for i in 0..4 {
            assert!(grad_of(&home, i).iter().all(|g| *g == 0.0), "parameter {i}");
        }
    }
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let arrays = [array(1, &[7, 5]), array(2, &[5]), array(3, &[0]), array(4, &[3, 0]), array(5, &[0, 5])];
    let (p, _home) = settle(&arrays, DType::F32, &device, true);
    let t = |shape: &[usize]| tensor(&array(1, shape), DType::F32, &device);
    let ints = |data: &[i32]| Tensor::from_slice(data, [data.len()], &device).unwrap();
    let head = |x: &Tensor, w: &Param, labels: &[i32]| {
        ops::head_loss(x, w, &Labels::new(labels), HeadOptions::default()).map(|head| head.loss)
    };
    use ops::WeightLayout::{InOut, OutIn};
    let texts = [
        (ops::embedding(&ints(&[0, 7]), &p[0]), "embed_forward: index 7 at position 1 is outside 0..7"),
        (ops::embedding(&t(&[2]), &p[0]), "embedding: expected i32 ids, got f32"),
        (
            ops::embedding(&ints(&[0]), &p[1]),
            "embedding: expected a table of shape [V, I] with I > 0, got [5]",
        ),
        (
            ops::embedding(&ints(&[0]), &p[3]),
            "embedding: expected a table of shape [V, I] with I > 0, got [3, 0]",
        ),
        (
            ops::rms_norm(&t(&[2, 0]), &p[2], 1e-6),
            "rms_norm: expected x of shape [.., I] with I > 0 for a weight of shape [0], got [2, 0]",
        ),
        (
            ops::layer_norm(&t(&[2, 4]), &p[1], Some(&p[1]), 1e-6),
            "layer_norm: expected x of shape [.., I] with I > 0, weight and bias of shape [I]; weight [5] and bias [5], \
             got [2, 4]",
        ),
        (ops::linear(&t(&[2, 4]), &p[0], None, OutIn), "linear: expected x of shape [.., 5], got [2, 4]"),
        (
            ops::linear_add(t(&[2, 4]), &t(&[2, 5]), &p[0]),
            "linear_add: expected y of shape [2, 7], got [2, 4]",
        ),
        (
            ops::linear(&t(&[2, 7]), &p[0], Some(&p[2]), InOut),
            "linear: expected a bias of shape [5], got [0]",
        ),
        (
            ops::linear(&t(&[2, 5]), &p[4], None, OutIn),
            "linear: expected a weight of two dims, with at least one output, got [0, 5]",
        ),
        (
            head(&t(&[2, 5]), &p[4], &[-100; 2]),
            "head_loss: expected a weight of shape [V, I] with V > 0, got [0, 5]",
        ),
        (head(&t(&[2, 5]), &p[0], &[1]), "head_loss: expected 2 labels, got 1"),
        (head(&t(&[2, 5]), &p[0], &[1, 7]), "head_loss: index 7 at position 1 is outside 0..7"),
        (ops::gated(&t(&[2, 5]), &t(&[2, 4]), Activation::Silu), "gated: expected [2, 5], got [2, 4]"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    let short = tensor(&array(1, &[2, 5]), DType::BF16, &device);
    let text = ops::linear(&short, &p[0], None, OutIn).unwrap_err().to_string();
    assert_eq!(text, "linear: expected bf16, as the other input, got f32");
    let homeless = Param::new(*p[0].shape(), p[0].init());
    let text = ops::linear(&t(&[2, 5]), &homeless, None, OutIn).unwrap_err().to_string();
    assert_eq!(text, "a parameter is used before its model was prepared: it has no memory yet");
    assert_eq!(f64s(&ops::last_position(&t(&[1, 2, 3])).unwrap()), array(1, &[1, 2, 3]).data[3..]);
}
