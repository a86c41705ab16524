//! Products of which several layers have a part: parameters side by side as one, and what takes their outputs as they lie.

use std::sync::Arc;

use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::cpu::{Isa, Par};
use oarlock_tensor::ops::{self, Activation, AttentionOptions, Mask, QkvHeads, Rope, WeightLayout, transfer};
use oarlock_tensor::{
    DType, Device, FlatBuffer, FlatParams, Init, Param, ParamLocation, Result, RopeScaling, Shape, Tape,
    Tensor,
};

use crate::common::{array, assert_close, case, f64s, own_gpu, tensor};
use crate::gpu::{assert_forms, loss_of, ops_of};

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

fn cpu() -> Device {
    Device::cpu(Isa::detect(), Par::solo())
}

/// Parameters of these sizes that begin at these elements, with the same numbers wherever they lie.
fn settle_at(
    params: &[(usize, &[usize])],
    dtype: DType,
    device: &Device,
    trained: bool,
) -> (Vec<Param>, Arc<FlatParams>) {
    let place =
        |&(first, sizes): &(usize, &[usize])| ParamLocation { first, shape: Shape::new(sizes).unwrap() };
    let places: Vec<_> = params.iter().map(place).collect();
    let end = places.iter().map(|place| place.first + place.shape.n_elems()).max().unwrap();
    let weights = FlatBuffer::pooled(device, end * dtype.size(), "weights").unwrap();
    for (seed, place) in places.iter().enumerate() {
        let values: Vec<f32> =
            array(seed as u64, place.shape.sizes()).data.iter().map(|x| *x as f32).collect();
        transfer::store(device, &values, &weights, place.first, dtype).unwrap();
    }
    let grads = trained.then(|| FlatBuffer::pooled(device, end * 4, "gradients").unwrap());
    let home = Arc::new(FlatParams::new(places.clone(), dtype, weights, grads, device).unwrap());
    let params: Vec<_> = places.iter().map(|place| Param::new(place.shape, Init::Zeros)).collect();
    params.iter().enumerate().for_each(|(index, param)| param.settle(home.clone(), index));
    (params, home)
}

/// Two weights and their biases, side by side.
const SIDE_BY_SIDE: [(usize, &[usize]); 4] = [(0, &[6, 8]), (48, &[4, 8]), (80, &[6]), (86, &[4])];
/// The same with a gap behind each.
const APART: [(usize, &[usize]); 4] = [(0, &[6, 8]), (64, &[4, 8]), (112, &[6]), (128, &[4])];

fn all_of(params: &[Param]) -> Option<[Param; 2]> {
    let all = [0, 2].map(|at| Param::side_by_side(&[&params[at], &params[at + 1]]).unwrap());
    let [weight, bias] = all;
    Some([weight?, bias?])
}

#[test]
fn parameters_side_by_side_are_one() {
    let gpu = own_gpu();
    for (device, dtype) in [cpu()].iter().chain(&gpu).flat_map(|device| DTYPES.map(|dtype| (device, dtype))) {
        let run = |layout: &[(usize, &[usize])], passes: &[bool]| {
            let (p, _home) = settle_at(layout, dtype, device, true);
            let all = all_of(&p);
            let mut seen = Vec::new();
            for joined in passes {
                let tape = Tape::new();
                let x = tape.leaf(&tensor(&array(9, &[5, 8]), dtype, device));
                let linear = |weight, bias| ops::linear(&x, weight, Some(bias), WeightLayout::OutIn).unwrap();
                let y = match (&all, joined) {
                    (Some([weight, bias]), true) => linear(weight, bias),
                    _ => ops::concat(&[linear(&p[0], &p[2]), linear(&p[1], &p[3])], 1).unwrap(),
                };
                seen.push(f64s(&y));
                let grads = tape.backward(&loss_of(&[y]).unwrap(), 1.0).unwrap();
                seen.push(f64s(grads.of(&x).unwrap()));
            }
            seen.extend(p.iter().map(|param| f64s(&param.gradient().unwrap().unwrap())));
            seen
        };
        // Together first and apart then, and the other way; a gap between them leaves each by itself.
        for passes in [&[true, true][..], &[true, false], &[false, true]] {
            let (got, want) = (run(&SIDE_BY_SIDE, passes), run(&APART, passes));
            for (part, (got, want)) in got.iter().zip(&want).enumerate() {
                let what = format!("{}, {dtype}, {passes:?}, part {part}", device.describe());
                assert_close(got, want, dtype, 2.0, &what);
            }
        }
    }
}

#[test]
fn one_of_them_may_have_a_gradient_already() {
    let (p, _home) = settle_at(&SIDE_BY_SIDE, DType::F32, &cpu(), true);
    let ones = |n: usize| Tensor::from_slice(&vec![1f32; n], [n], &cpu()).unwrap();
    // Two passes have used the first by itself.
    p[0].grad().unwrap().unwrap().put(&ones(48)).unwrap();
    p[0].grad().unwrap().unwrap().put(&ones(48)).unwrap();
    let all = Param::side_by_side(&[&p[0], &p[1]]).unwrap().unwrap();
    all.grad().unwrap().unwrap().put(&ones(80)).unwrap();
    assert_eq!(f64s(&p[0].gradient().unwrap().unwrap()), [3.0; 48]);
    assert_eq!(f64s(&p[1].gradient().unwrap().unwrap()), [1.0; 32]);
    all.grad().unwrap().unwrap().put(&ones(80)).unwrap();
    assert_eq!(f64s(&p[1].gradient().unwrap().unwrap()), [2.0; 32]);
}

#[test]
fn what_does_not_follow_each_other_is_not_one() {
    let (p, _home) = settle_at(&SIDE_BY_SIDE, DType::F32, &cpu(), true);
    let (other, _other_home) = settle_at(&SIDE_BY_SIDE, DType::F32, &cpu(), true);
    let is_one = |params: &[&Param]| Param::side_by_side(params).unwrap().is_some();
    assert!(is_one(&[&p[0], &p[1]]) && is_one(&[&p[2], &p[3]]) && is_one(&[&p[1]]));
    // The other way around, of other rows, of another home, none.
    for params in [&[&p[1], &p[0]][..], &[&p[1], &p[2]], &[&p[0], &other[1]], &[&p[0], &p[0]], &[]] {
        assert!(!is_one(params), "{params:?}");
    }
    let (frozen, _frozen_home) = settle_at(&SIDE_BY_SIDE, DType::F32, &cpu(), false);
    let all = Param::side_by_side(&[&frozen[0], &frozen[1]]).unwrap().unwrap();
    assert!(!all.trainable().unwrap() && all.grad().unwrap().is_none());
    let apart = settle_at(&APART, DType::F32, &cpu(), true).0;
    assert!(all_of(&apart).is_none());
    let homeless = Param::new(Shape::new(&[6, 8]).unwrap(), Init::Zeros);
    assert!(Param::side_by_side(&[&homeless]).is_err());
}

#[test]
fn gates_and_ups_of_one_product() {
    for (rows, width) in [(5, 8), (3, 24), (2, 6)] {
        let reference = move |x: &[&[f64]]| {
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let at = |i: usize| i / width * 2 * width + i % width;
            (0..rows * width).map(|i| silu(x[0][at(i)]) * x[0][at(i) + width]).collect()
        };
        let op = |x: &[Tensor]| ops::gated_fused(&x[0], Activation::Silu);
        case("gated_fused", [array(1, &[1, rows, 2 * width])], op, reference).check();
    }
    let text = ops::gated_fused(&Tensor::zeros([2, 3], DType::F32, &cpu()).unwrap(), Activation::Silu);
    assert_eq!(text.unwrap_err().to_string(), "gated_fused: expected a last dim of an even size, got [2, 3]");
}

/// The ops that `attention_fused` stands for.
fn by_parts(qkv: &Tensor, heads: QkvHeads, rope: &Arc<Rope>, first: usize) -> Result<Tensor> {
    let QkvHeads { heads, kv_heads, head_dim } = heads;
    let parts = ops::split(qkv, [heads, kv_heads, kv_heads].map(|heads| heads * head_dim), -1)?;
    let parts = parts.iter().map(|part| ops::split_heads(part, head_dim)).collect::<Result<Vec<_>>>()?;
    let (q, k) = (ops::rope(&parts[0], rope, first)?, ops::rope(&parts[1], rope, first)?);
    ops::attention(&q, &k, &parts[2], &Mask::Causal, &AttentionOptions::new(0.3))
}

#[test]
fn attention_of_one_product_is_that_of_three() {
    let gpu = own_gpu();
    let heads = QkvHeads { heads: 4, kv_heads: 2, head_dim: 16 };
    for (style, rot) in [(RopeStyle::Half, 16), (RopeStyle::Interleaved, 8)] {
        let rope = Arc::new(Rope::new(100.0, rot, style, RopeScaling::None, 9).unwrap());
        let fused = |qkv: &Tensor| {
            ops::attention_fused(qkv, heads, &rope, 2, &Mask::Causal, &AttentionOptions::new(0.3))
        };
        for (device, dtype) in
            [cpu(), Device::strict(Isa::detect(), Par::solo()), Device::staging(Isa::detect(), Par::solo())]
                .iter()
                .chain(&gpu)
                .flat_map(|device| DTYPES.map(|dtype| (device, dtype)))
        {
            let run = |op: &dyn Fn(&Tensor) -> Result<Tensor>| {
                let tape = Tape::new();
                let qkv = tape.leaf(&tensor(&array(1, &[2, 5, 8 * 16]), dtype, device));
                let o = op(&qkv).unwrap();
                let seen = f64s(&o);
                let grads = tape.backward(&loss_of(&[o]).unwrap(), 1.0).unwrap();
                [seen, f64s(grads.of(&qkv).unwrap())]
            };
            let want = run(&|qkv| by_parts(qkv, heads, &rope, 2));
            // The same kernels on the same numbers.
            assert_eq!(run(&|qkv| fused(qkv)), want, "{}, {dtype}", device.describe());
        }
    }
}

#[test]
fn a_layer_of_fused_products_is_not_staged() {
    let Some(gpu) = own_gpu() else { return };
    let rope = Arc::new(Rope::new(1e4, 32, RopeStyle::Half, RopeScaling::None, 8).unwrap());
    let heads = QkvHeads { heads: 2, kv_heads: 1, head_dim: 32 };
    for dtype in DTYPES {
        let layer = |x: &[Tensor]| -> Result<Tensor> {
            let o = ops::attention_fused(&x[0], heads, &rope, 0, &Mask::Causal, &AttentionOptions::new(0.2))?;
            ops::gated_fused(&ops::merge_heads(&o)?, Activation::Silu)
        };
        let names = [
            "rope forward",
            "rope backward",
            "attention forward",
            "attention backward",
            "gated forward",
            "gated backward",
        ];
        assert_forms(&gpu, &format!("fused products in {dtype}"), &names, || {
            let tape = Tape::new();
            let qkv = tape.leaf(&tensor(&array(1, &[2, 3, 128]), dtype, &gpu));
            let y = layer(&[qkv]).unwrap();
            tape.backward(&loss_of(&[y]).unwrap(), 1.0).unwrap();
        });
    }
}

#[test]
fn an_output_is_computed_again_by_the_backward_pass() {
    let gpu = own_gpu();
    for (device, dtype) in [cpu()].iter().chain(&gpu).flat_map(|device| DTYPES.map(|dtype| (device, dtype))) {
        let (p, home) = settle_at(&APART, dtype, device, true);
        // Once, and twice, where the gradient is not there before the second backward pass.
        let run = |fused: bool, uses: usize| {
            home.clear_grads();
            let tape = Tape::new();
            let gate_up = tape.leaf(&tensor(&array(9, &[5, 16]), dtype, device));
            let y = match fused {
                true => ops::gated_fused(&gate_up, Activation::Silu),
                false => ops::split(&gate_up, 8, -1).and_then(|x| ops::gated(&x[0], &x[1], Activation::Silu)),
            };
            let linear =
                |index: usize| ops::linear(y.as_ref().unwrap(), &p[index], None, WeightLayout::OutIn);
            let outputs: Vec<_> = (0..uses).map(|index| linear(index).unwrap()).collect();
            let loss = loss_of(&outputs).unwrap();
            let mut seen = Vec::new();
            let ran = ops_of(device, || {
                seen.push(f64s(tape.backward(&loss, 1.0).unwrap().of(&gate_up).unwrap()));
            });
            seen.extend((0..uses).map(|index| f64s(&p[index].gradient().unwrap().unwrap())));
            (seen, ran.contains("gated replay"))
        };
        for uses in [1, 2] {
            let ((got, replays), (want, _)) = (run(true, uses), run(false, uses));
            let what = format!("{}, {dtype}, {uses} uses", device.describe());
            assert_eq!(replays, uses == 2, "{what}");
            got.iter().zip(&want).for_each(|(got, want)| assert_close(got, want, dtype, 2.0, &what));
        }
    }
}

#[test]
fn misuse_is_named() {
    let rope = Arc::new(Rope::new(1e4, 8, RopeStyle::Half, RopeScaling::None, 8).unwrap());
    let heads = QkvHeads { heads: 2, kv_heads: 1, head_dim: 8 };
    let said = |sizes: &[usize], heads| {
        let qkv = Tensor::zeros(sizes, DType::F32, &cpu()).unwrap();
        let result = ops::attention_fused(&qkv, heads, &rope, 0, &Mask::Causal, &AttentionOptions::new(1.0));
        result.unwrap_err().to_string()
    };
    let wanted = "attention_fused: expected [B, S, 32] with heads of at least 8";
    assert_eq!(said(&[1, 3, 24], heads), format!("{wanted}, got [1, 3, 24]"));
    assert!(said(&[3, 32], heads).starts_with(wanted));
    assert!(said(&[1, 3, 16], QkvHeads { head_dim: 4, ..heads }).contains("with heads of at least 8"));
    assert!(said(&[1, 9, 32], heads).contains("outside 0..8"));
}
