//! Matrix products: linear in both layouts, batched products.

use oarlock_reference::attention::Shape;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{self, Transposed, WeightLayout};
use oarlock_tensor::{Device, Par, Param, Tensor};

use crate::common::{Case, Env, Node, array, formula_case};

/// Rows times a weight.
pub fn linear_of(x: &Node, weight: &Node, layout: WeightLayout) -> Node {
    let weight = if layout == WeightLayout::OutIn { &weight.permute([1, 0]) } else { weight };
    let [lead @ .., n_in] = &x.sizes[..] else { panic!("no dims") };
    let rows: usize = lead.iter().product();
    x.reshape(&[rows, *n_in]).product(weight).reshape(&[lead, &weight.sizes[1..]].concat())
}

#[test]
fn linear() {
    for (rows, n_in, n_out) in [(vec![3, 5], 7, 11), (vec![], 5, 3), (vec![2], 1, 1), (vec![0], 3, 2)] {
        for (layout, with_bias) in
            [WeightLayout::OutIn, WeightLayout::InOut].into_iter().flat_map(|l| [(l, false), (l, true)])
        {
            let stored = if layout == WeightLayout::OutIn { [n_out, n_in] } else { [n_in, n_out] };
            let mut params = vec![array(2, &stored)];
            params.extend(with_bias.then(|| array(3, &[n_out])));
            let shape: Vec<usize> = rows.iter().copied().chain([n_in]).collect();
            let op = move |_: &Env, x: &[Tensor], p: &[Param]| ops::linear(&x[0], &p[0], p.get(1), layout);
            let formula = move |x: &[Node], p: &[Node]| {
                let y = linear_of(&x[0], &p[0], layout);
                p.get(1).map_or(y.clone(), |bias| y.plus(bias))
            };
            formula_case("linear", [array(1, &shape)], params, op, formula).check();
        }
    }
}

#[test]
fn linear_add() {
    let (n_in, n_out) = (7, 11);
    for in_place in [false, true] {
        let op = move |_: &Env, x: &[Tensor], p: &[Param]| {
            // The inputs belong to the test as well, what an op makes of one does not.
            let y = if in_place { x[1].scale(2.0)? } else { x[1].clone() };
            ops::linear_add(y, &x[0], &p[0])
        };
        let formula = move |x: &[Node], p: &[Node]| {
            let added = x[1].times(if in_place { 2.0 } else { 1.0 });
            linear_of(&x[0], &p[0], WeightLayout::OutIn).plus(&added)
        };
        let inputs = [array(1, &[3, 5, n_in]), array(2, &[3, 5, n_out])];
        formula_case("linear_add", inputs, [array(3, &[n_out, n_in])], op, formula).check();
    }
}

#[test]
fn batched_products() {
    let (m, n, k) = (3, 5, 7);
    for transposed in [Transposed::Neither, Transposed::Left, Transposed::Right, Transposed::Both] {
        let ta = matches!(transposed, Transposed::Left | Transposed::Both);
        let tb = matches!(transposed, Transposed::Right | Transposed::Both);
        for (lead, shared) in [(vec![], false), (vec![2, 2], false), (vec![2, 2], true)] {
            let batch: usize = lead.iter().product();
            let matrix = |rows, cols, lead: &[usize]| [lead, &[rows, cols]].concat();
            let (a_rows, a_cols) = if ta { (k, m) } else { (m, k) };
            let (b_rows, b_cols) = if tb { (n, k) } else { (k, n) };
            let b_lead = if shared { &[][..] } else { &lead[..] };
            let inputs =
                [array(1, &matrix(a_rows, a_cols, &lead)), array(2, &matrix(b_rows, b_cols, b_lead))];
            // `[batch, rows, columns]`, where one matrix may serve all.
            let of = move |x: &Node, sizes: [usize; 2], transposed: bool| {
                let n = x.values.len() / (sizes[0] * sizes[1]);
                let x = x.reshape(&[n, sizes[0], sizes[1]]).to(&[batch, sizes[0], sizes[1]]);
                if transposed { x.permute([0, 2, 1]) } else { x }
            };
            let formula = move |x: &[Node], _: &[Node]| {
                of(&x[0], [a_rows, a_cols], ta).product(&of(&x[1], [b_rows, b_cols], tb))
            };
            let op =
                move |_: &Env, x: &[Tensor], _: &[Param]| ops::matmul_transposed(&x[0], &x[1], transposed);
            formula_case("matmul", inputs, [], op, formula).check();
        }
    }
    let square = |_: &Env, x: &[Tensor], _: &[Param]| ops::matmul_transposed(&x[0], &x[0], Transposed::Right);
    let formula = |x: &[Node], _: &[Node]| x[0].product(&x[0].permute([1, 0]));
    formula_case("x · xᵀ", [array(1, &[4, 6])], [], square, formula).check();
}

#[test]
fn products_of_vectors_and_spread_batches() {
    // Shapes of a and b, and of the result; a vector is a row on the left and a column on the right.
    type Entry = (&'static [usize], &'static [usize], &'static [usize]);
    let shapes: [Entry; 9] = [
        (&[7], &[7], &[]),
        (&[7], &[7, 5], &[5]),
        (&[3, 7], &[7], &[3]),
        (&[7], &[2, 7, 5], &[2, 5]),
        (&[2, 3, 7], &[7], &[2, 3]),
        (&[2, 1, 3, 7], &[4, 7, 5], &[2, 4, 3, 5]),
        (&[3, 7], &[2, 7, 5], &[2, 3, 5]),
        (&[2, 2, 3, 7], &[1, 7, 5], &[2, 2, 3, 5]),
        (&[2, 0, 7], &[7], &[2, 0]),
    ];
    for (a, b, y) in shapes {
        let formula = move |x: &[Node], _: &[Node]| {
            let a_full = if a.len() == 1 { &[&[1], a].concat() } else { a };
            let b_full = if b.len() == 1 { &[b, &[1]].concat() } else { b };
            let (&[ref a_lead @ .., m, k], &[ref b_lead @ .., _, n]) = (a_full, b_full) else { panic!() };
            let n_lead = a_lead.len().max(b_lead.len());
            let size = |lead: &[usize], d: usize| (d + lead.len()).checked_sub(n_lead).map_or(1, |d| lead[d]);
            let lead: Vec<usize> = (0..n_lead).map(|d| size(a_lead, d).max(size(b_lead, d))).collect();
            let spread = |x: &Node, full: &[usize], matrix: [usize; 2]| {
                x.reshape(full).to(&[&lead[..], &matrix].concat())
            };
            spread(&x[0], a_full, [m, k]).product(&spread(&x[1], b_full, [k, n]))
        };
        let op = move |_: &Env, x: &[Tensor], _: &[Param]| {
            let product = x[0].matmul(&x[1])?;
            assert_eq!(product.sizes(), y);
            Ok(product)
        };
        formula_case("matmul", [array(1, a), array(2, b)], [], op, formula).check();
    }
    let inputs = [array(1, &[3, 2, 3]), array(2, &[3, 3, 4])];
    let bmm = |_: &Env, x: &[Tensor], _: &[Param]| x[0].bmm(&x[1]);
    formula_case("bmm", inputs, [], bmm, |x, _| x[0].product(&x[1])).check();
}

#[test]
fn attention_from_small_ops_is_attention() {
    let (seq, dim) = (5, 4);
    let op = move |_: &Env, x: &[Tensor], _: &[Param]| {
        let scores = ops::matmul_transposed(&x[0], &x[1], Transposed::Right)?.scale(0.5)?;
        let later: Vec<i32> = (0..seq * seq).map(|i| i32::from(i % seq > i / seq)).collect();
        let later = Tensor::from_slice(&later, [seq, seq], x[0].device())?;
        scores.masked_fill(&later, f32::NEG_INFINITY)?.softmax(-1)?.matmul(&x[2])
    };
    let shape = Shape { scale: 0.5, ..Shape::causal(2, seq, 1, 1, dim) };
    let formula = move |x: &[Node], _: &[Node]| shape.of_arrays([&x[0], &x[1], &x[2]], None, None);
    let inputs = [1, 2, 3].map(|seed| array(seed, &[2, seq, dim]));
    Case { slack: 2.0, ..formula_case("attention from small ops", inputs, [], op, formula) }.check();
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let t =
        |shape: &[usize]| Tensor::from_slice(&vec![1f32; shape.iter().product()], shape, &device).unwrap();
    let texts = [
        (t(&[]).matmul(&t(&[3, 2])), "matmul: expected a left operand of at least one dim, got []"),
        (t(&[3, 2]).matmul(&t(&[])), "matmul: expected a right operand of at least one dim, got []"),
        (t(&[3, 2]).matmul(&t(&[3])), "matmul: expected a right operand of 2 elements, got [3]"),
        (
            ops::matmul_transposed(&t(&[3]), &t(&[3, 2]), Transposed::Left),
            "matmul: expected a left operand of at least two dims, got [3]",
        ),
        (
            ops::matmul_transposed(&t(&[3, 2]), &t(&[2]), Transposed::Right),
            "matmul: expected a right operand of at least two dims, got [2]",
        ),
        (
            t(&[4, 3, 2]).matmul(&t(&[5, 2, 3])),
            "matmul: expected a right operand [2, N], with leading dims that broadcast with [4], got [5, 2, 3]",
        ),
        (t(&[4, 3, 2]).bmm(&t(&[1, 2, 3])), "bmm: expected a right operand [4, 2, N], got [1, 2, 3]"),
        (t(&[3, 2]).bmm(&t(&[2, 3])), "bmm: expected a left operand of three dims, got [3, 2]"),
        (
            ops::matmul_transposed(&t(&[3, 2]), &t(&[2, 3]), Transposed::Right),
            "matmul: expected a right operand [N, 2], with leading dims that broadcast with [], got [2, 3]",
        ),
        (t(&[2, 3]).add(&t(&[2])), "add: expected a shape that broadcasts with [2, 3], got [2]"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    let other = Device::cpu(Isa::detect(), Par::solo());
    let there = Tensor::zeros([2, 2], oarlock_tensor::DType::F32, &other).unwrap();
    let text = t(&[2, 2]).matmul(&there).unwrap_err().to_string();
    assert_eq!(text, "matmul: its inputs live on different devices");
}
