//! How fast single ops are, beside the products and the memory of this GPU.

use std::sync::Arc;

use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::optimizer::{Part as Stretch, Role, Rule, StepArgs, UpdateParts, Workspace, update};
use oarlock_tensor::ops::{
    self, Activation, AttentionOptions, HeadOptions, Labels, Mask, Rope, WeightLayout,
};
use oarlock_tensor::{DType, Device, FlatBuffer, OpTime, Result, RopeScaling, Shape, Tape, Tensor, bf16};

use super::finding::Finding;
use super::part::Part;
use super::place::{Place, normal};
use super::roofline::{Ceilings, Work, time};
use crate::console::Outcome;

const DTYPE: DType = DType::BF16;

/// Sizes as in a step of Qwen2.5 0.5B, or tiny ones.
#[derive(Clone, Copy)]
struct Sizes {
    products: &'static [usize],
    tokens: usize,
    hidden: usize,
    ffn: usize,
    heads: usize,
    head_dim: usize,
    seq: usize,
    vocab: usize,
    /// Rows of the head, and weights of the optimizer.
    head_rows: usize,
    weights: usize,
    /// Of attention: sequences, heads and elements of a head.
    attention: [usize; 3],
    lens: &'static [usize],
}

const FULL: Sizes = Sizes {
    products: &[1024, 2048, 4096, 8192],
    tokens: 8192,
    hidden: 896,
    ffn: 4864,
    heads: 14,
    head_dim: 64,
    seq: 1024,
    vocab: 151_936,
    head_rows: 4096,
    weights: 1 << 26,
    attention: [2, 16, 128],
    lens: &[1024, 4096],
};
const QUICK: Sizes = Sizes {
    products: &[64],
    tokens: 32,
    hidden: 64,
    ffn: 96,
    heads: 2,
    head_dim: 32,
    seq: 16,
    vocab: 256,
    head_rows: 16,
    weights: 1 << 10,
    attention: [1, 2, 32],
    lens: &[16],
};

impl Sizes {
    fn new(quick: bool) -> Sizes {
        if quick { QUICK } else { FULL }
    }
}

/// What is timed: it makes its operands once.
type Make = Box<dyn Fn(&Device) -> Result<Run>>;
type Run = Box<dyn FnMut() -> Result<()>>;

pub(super) fn check(part: &mut Part<'_>, device: &Device, quick: bool) -> Outcome {
    let sizes = Sizes::new(quick);
    check_all(part, device, quick, ops(sizes)?.into_iter().chain(attention(sizes)).collect())
}

/// Attention alone, by whoever computes it in this process.
pub(super) fn check_attention(part: &mut Part<'_>, device: &Device, quick: bool) -> Outcome {
    check_all(part, device, quick, attention(Sizes::new(quick)))
}

fn check_all(part: &mut Part<'_>, device: &Device, quick: bool, ops: Vec<(String, Make)>) -> Outcome {
    let mut ceilings = None;
    for (name, make) in ops {
        part.check(&name, || {
            let ceilings = match ceilings {
                Some(ceilings) => ceilings,
                None => *ceilings.insert(Ceilings::measure(device, quick)?),
            };
            measure(device, ceilings, quick, make(device)?)
        })?;
    }
    Ok(())
}

fn measure(device: &Device, ceilings: Ceilings, quick: bool, mut run: Run) -> Result<Finding> {
    // The first one compiles.
    run()?;
    device.profile().enable();
    let ran = run();
    let ops = device.profile().take();
    ran?;
    let sum = |of: fn(&OpTime) -> u64| ops.iter().map(|(_, op)| of(op)).sum();
    let work =
        Work { seconds: time(device, quick, run)?, flops: sum(|op| op.flops), bytes: sum(|op| op.bytes) };
    let finding = Finding::ok(format!("{:.3} ms, {}", 1e3 * work.seconds, ceilings.line(&work)));
    let numbers = ceilings.json(&work);
    let numbers = numbers.as_object().into_iter().flatten();
    Ok(numbers.fold(finding, |finding, (key, value)| finding.with(key, value.clone())))
}

/// Random numbers, as a power limit knows zeros from them; a pattern is enough.
fn random(device: &Device, sizes: &[usize]) -> Result<Tensor> {
    let pattern: Vec<bf16> = normal(1, 1 << 20).into_iter().map(bf16::from_f32).collect();
    let n: usize = sizes.iter().product();
    Tensor::from_slice(&pattern.into_iter().cycle().take(n).collect::<Vec<_>>(), sizes, device)
}

/// Forward and backward, with the output as its own gradient.
fn back_and_forth(op: impl Fn(&Tape) -> Result<Tensor> + 'static) -> Run {
    Box::new(move || {
        let tape = Tape::new();
        let y = op(&tape)?;
        let gradient = y.detach();
        tape.backward_from(y, gradient).map(drop)
    })
}

/// An op of one tensor, with parameters.
fn of_one(
    name: &str,
    sizes: &[usize],
    params: &[&[usize]],
    op: impl Fn(&Tensor, &[oarlock_tensor::Param]) -> Result<Tensor> + Clone + 'static,
) -> (String, Make) {
    let (sizes, params) = (sizes.to_vec(), params.iter().map(|sizes| sizes.to_vec()).collect::<Vec<_>>());
    let dims: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let name = format!("{name} {}", dims.join("x"));
    let make = move |device: &Device| -> Result<Run> {
        let (x, op) = (random(device, &sizes)?, op.clone());
        let params = Place { device, dtype: DTYPE }.params(&params)?;
        Ok(back_and_forth(move |tape| op(&tape.leaf(&x), &params.params)))
    };
    (name, Box::new(make))
}

fn ops(n: Sizes) -> Result<Vec<(String, Make)>> {
    let Sizes { tokens, hidden, ffn, heads, head_dim, seq, vocab, head_rows, weights, .. } = n;
    let mut ops: Vec<(String, Make)> = Vec::new();
    let table = Arc::new(Rope::new(1e6, head_dim, RopeStyle::Half, RopeScaling::None, seq)?);
    for &size in n.products {
        let make = move |device: &Device| -> Result<Run> {
            let (a, b) = (random(device, &[size, size])?, random(device, &[size, size])?);
            Ok(Box::new(move || ops::matmul_transposed(&a, &b, ops::Transposed::Right).map(drop)))
        };
        ops.push((format!("product {size}^3"), Box::new(make)));
    }
    ops.push(of_one("linear with a bias", &[tokens, hidden], &[&[ffn, hidden], &[ffn]], |x, params| {
        ops::linear(x, &params[0], Some(&params[1]), WeightLayout::OutIn)
    }));
    ops.push(of_one("rms_norm", &[tokens, hidden], &[&[hidden]], |x, params| {
        ops::rms_norm(x, &params[0], 1e-6)
    }));
    ops.push(of_one("layer_norm", &[tokens, 768], &[&[768], &[768]], |x, params| {
        ops::layer_norm(x, &params[0], Some(&params[1]), 1e-5)
    }));
    ops.push(of_one("add_residual", &[tokens, hidden], &[], |x, _| {
        ops::add_residual(&ops::cast(x, DType::F32)?, x)
    }));
    ops.push(of_one("rope", &[tokens / seq, seq, heads, head_dim], &[], move |x, _| ops::rope(x, &table, 0)));
    ops.push(of_one("gated silu", &[tokens, ffn], &[], |x, _| ops::gated(x, x, Activation::Silu)));
    ops.push(of_one("dropout", &[tokens, ffn], &[], |x, _| ops::dropout(x, 0.1, 5, 3)));
    ops.push(of_one("softmax", &[tokens, ffn], &[], |x, _| ops::softmax(x, -1)));
    ops.push(of_one("cast to f32", &[tokens, ffn], &[], |x, _| ops::cast(x, DType::F32)));
    let embedding = move |device: &Device| -> Result<Run> {
        // Half of the tokens are padding or one of a few frequent ones.
        let id = |at: usize| if at.is_multiple_of(2) { at / 2 % 8 / 4 * (at % 5) } else { at * 7919 % vocab };
        let ids: Vec<i32> = (0..tokens).map(|at| id(at) as i32).collect();
        let ids = Tensor::from_slice(&ids, [tokens], device)?;
        let params = Place { device, dtype: DTYPE }.params(&[vec![vocab, hidden]])?;
        Ok(back_and_forth(move |tape| ops::embedding(&tape.input(&ids), &params.params[0])))
    };
    ops.push((format!("embedding {tokens} of {vocab}x{hidden}"), Box::new(embedding)));
    let head = move |device: &Device| -> Result<Run> {
        let x = random(device, &[head_rows, hidden])?;
        let labels = Labels::new((0..head_rows).map(|row| (row * 31 % vocab) as i32).collect::<Vec<_>>());
        let params = Place { device, dtype: DTYPE }.params(&[vec![vocab, hidden]])?;
        Ok(Box::new(move || {
            let tape = Tape::with_seed(1.0);
            let loss = ops::head_loss(&tape.leaf(&x), &params.params[0], &labels, HeadOptions::default())?;
            tape.backward(&loss.loss, 1.0).map(drop)
        }))
    };
    ops.push((format!("head loss {head_rows} of {vocab}x{hidden}"), Box::new(head)));
    ops.push((
        format!("adamw of {weights} weights"),
        Box::new(move |device: &Device| adamw(device, weights)),
    ));
    Ok(ops)
}

/// A step with master weights and states in f32, and working weights in 16 bits.
fn adamw(device: &Device, n: usize) -> Result<Run> {
    let device = device.clone();
    let flat = |dtype: DType| -> Result<FlatBuffer> {
        let flat = FlatBuffer::pooled(&device, n * dtype.size(), "weights")?;
        ops::transfer::store(&device, &normal(1, n), &flat, 0, dtype)?;
        Ok(flat)
    };
    let (weights, master, grads) = (flat(DTYPE)?, flat(DType::F32)?, flat(DType::F32)?);
    let zeros = || -> Result<FlatBuffer> {
        let flat = FlatBuffer::pooled(&device, 4 * n, "states")?;
        ops::transfer::store(&device, &vec![0.0; n], &flat, 0, DType::F32)?;
        Ok(flat)
    };
    let states = [zeros()?, zeros()?];
    let (rule, shape) = (Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, Shape::new(&[n])?);
    fn whole(flat: &FlatBuffer, n: usize) -> Stretch<'_> {
        Stretch { flat, range: 0..n }
    }
    Ok(Box::new(move || {
        let parts = UpdateParts {
            weights: whole(&weights, n),
            dtype: DTYPE,
            master: Some(whole(&master, n)),
            grads: whole(&grads, n),
            state: &[whole(&states[0], n), whole(&states[1], n)],
        };
        let args = StepArgs { step: 10, lr: 1e-6, weight_decay: 0.1, grad_scale: 1.0 };
        update(&device, &rule, &args, &shape, Role::Matrix, &parts, &mut Workspace::new(&device, 0)?)
    }))
}

/// Causal attention, forward and backward.
fn attention(n: Sizes) -> Vec<(String, Make)> {
    let [batch, heads, head_dim] = n.attention;
    let of_len = |&seq: &usize| {
        of_one("attention", &[batch, seq, heads, head_dim], &[], move |x, _| {
            let options = AttentionOptions::new((1.0 / head_dim as f32).sqrt());
            ops::attention(x, x, x, &Mask::Causal, &options)
        })
    };
    n.lens.iter().map(of_len).collect()
}
