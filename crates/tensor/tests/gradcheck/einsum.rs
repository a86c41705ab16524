//! Sums of products by the names of dims.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Tensor, ops};

use crate::common::{array, case};
use crate::shapes::{coordinates, element};

fn size(letter: char) -> usize {
    [2, 3, 4, 5, 2][letter as usize - 'a' as usize]
}

/// The sum over all letters, as the definition says; a dim of size 1 is spread.
fn definition(inputs: &[String], shapes: &[Vec<usize>], output: &str, x: &[&[f64]]) -> Vec<f64> {
    let mut letters: Vec<char> = inputs.concat().chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let size = |letter: char| {
        let of = |(names, shape): (&String, &Vec<usize>)| {
            names.chars().zip(shape).filter(|(name, _)| *name == letter).map(|(_, size)| *size).max()
        };
        inputs.iter().zip(shapes).filter_map(of).max().unwrap()
    };
    let all: Vec<usize> = letters.iter().map(|&letter| size(letter)).collect();
    let to: Vec<usize> = output.chars().map(size).collect();
    let mut y = vec![0.0; to.iter().product()];
    for i in 0..all.iter().product() {
        let at = coordinates(&all, i);
        let place = |names: &str, shape: &[usize]| {
            let at: Vec<usize> = names
                .chars()
                .zip(shape)
                .map(|(name, size)| {
                    at[letters.iter().position(|&letter| letter == name).unwrap()].min(size - 1)
                })
                .collect();
            element(shape, &at)
        };
        let factors = inputs.iter().zip(shapes).zip(x);
        y[place(output, &to)] += factors.map(|((names, shape), x)| x[place(names, shape)]).product::<f64>();
    }
    y
}

/// One equation: its inputs' dims by letters, also those that `...` stands for, and their sizes.
fn check(equation: &'static str, inputs: Vec<String>, shapes: Vec<Vec<usize>>, output: &'static str) {
    let arrays: Vec<_> = shapes.iter().enumerate().map(|(i, shape)| array(i as u64 + 1, shape)).collect();
    let reference = move |x: &[&[f64]]| definition(&inputs, &shapes, output, x);
    let n_dims = output.len();
    let op = move |x: &[Tensor]| {
        let y = ops::einsum(equation, x)?;
        assert_eq!(y.sizes().len(), n_dims, "{equation}");
        Ok(y)
    };
    case("einsum", arrays, op, reference).check_sums();
}

#[test]
fn equations_match_their_definition() {
    let equations = [
        ("abc->cab", "cab"),
        ("abc->b", "b"),
        ("abc->", ""),
        ("aba->ab", "ab"),
        ("aa", ""),
        ("aab->ba", "ba"),
        ("ba", "ab"),
        ("ab,bc->ac", "ac"),
        ("ab,bc", "ac"),
        ("ba,cb->ca", "ca"),
        ("ab,cb->ac", "ac"),
        ("ba,bc->ac", "ac"),
        ("a,b->ab", "ab"),
        ("a,a->", ""),
        ("a,a->a", "a"),
        ("ab,ab->a", "a"),
        ("abd,acd->abc", "abc"),
        ("abc,acd->abd", "abd"),
        ("abc,bcd->bad", "bad"),
        ("abcd,dcb->a", "a"),
        ("ab,cd->dbca", "dbca"),
        ("ab,ac->abc", "abc"),
        ("abc,ad->bd", "bd"),
        (" a b , b -> a ", "a"),
        ("aab,bc->ac", "ac"),
        ("ab,->ba", "ba"),
    ];
    for (equation, output) in equations {
        let inputs: Vec<String> =
            equation.split("->").next().unwrap().split(',').map(|part| part.replace(' ', "")).collect();
        let shapes = inputs.iter().map(|names| names.chars().map(size).collect()).collect();
        check(equation, inputs, shapes, output);
    }
}

#[test]
fn dots_stand_for_dims_and_sizes_of_1_are_spread() {
    type Shapes = &'static [&'static [usize]];
    let equations: [(&str, &[&str], Shapes, &str); 11] = [
        ("...", &["ab"], &[&[2, 3]], "ab"),
        ("...a->a...", &["bca"], &[&[2, 3, 4]], "abc"),
        ("...a->a", &["bca"], &[&[2, 3, 4]], "a"),
        ("b...a", &["bca"], &[&[2, 3, 4]], "cab"),
        ("a...a->...", &["aba"], &[&[3, 4, 3]], "b"),
        ("...ab,...bc->...ac", &["deab", "ebc"], &[&[5, 1, 2, 3], &[4, 3, 2]], "deac"),
        ("...ab,...bc", &["deab", "debc"], &[&[2, 3, 2, 3], &[1, 1, 3, 2]], "deac"),
        ("a...,a...->...", &["abc", "ac"], &[&[2, 3, 4], &[2, 4]], "bc"),
        ("a...,b->...b", &["ac", "b"], &[&[2, 3], &[4]], "cb"),
        ("ab,bc->ac", &["ab", "bc"], &[&[2, 1], &[3, 4]], "ac"),
        ("a,a->a", &["a", "a"], &[&[1], &[5]], "a"),
    ];
    for (equation, inputs, shapes, output) in equations {
        let inputs = inputs.iter().map(|names| names.to_string()).collect();
        check(equation, inputs, shapes.iter().map(|shape| shape.to_vec()).collect(), output);
    }
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = &Tensor::from_slice(&[1f32; 6], [2, 3], &device).unwrap();
    let texts = [
        (
            ops::einsum("ab,bc->ac", &[x]),
            "einsum: \"ab,bc->ac\" names 2 tensors and got 1; one or two are supported",
        ),
        (
            ops::einsum("ab,ab,ab->a", &[x, x, x]),
            "einsum: \"ab,ab,ab->a\" names 3 tensors and got 3; one or two are supported",
        ),
        (ops::einsum("a->a", &[x]), "einsum: expected 1 dims, as \"a->a\" names them, got [2, 3]"),
        (ops::einsum("ab,bc->ac", &[x, x]), "einsum: expected size 3 for 'b' of \"ab,bc->ac\", got [2, 3]"),
        (ops::einsum("aa->a", &[x]), "einsum: expected size 2 for 'a' of \"aa->a\", got [2, 3]"),
        (
            ops::einsum("ab->c", &[x]),
            "einsum: \"ab->c\" has 'c' in the result, which is named by no tensor or twice",
        ),
        (
            ops::einsum("ab->aa", &[x]),
            "einsum: \"ab->aa\" has 'a' in the result, which is named by no tensor or twice",
        ),
        (ops::einsum(".a->a", &[x]), "einsum: \".a->a\" has '.', where letters name the dims"),
        (ops::einsum("...a...", &[x]), "einsum: \"...a...\" has '.', where letters name the dims"),
        (
            ops::einsum("abc...", &[x]),
            "einsum: expected at least 3 dims, as \"abc...\" names them, got [2, 3]",
        ),
        (
            ops::einsum("...a,...a->...", &[x, &x.t().unwrap()]),
            "einsum: expected size 2 for '...' of \"...a,...a->...\", got [3, 2]",
        ),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
}
