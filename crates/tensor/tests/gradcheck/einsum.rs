//! Sums of products by the names of dims.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Tensor, ops};

use crate::common::{Case, array, case};
use crate::shapes::{coordinates, element};

fn size(letter: char) -> usize {
    [2, 3, 4, 5, 2][letter as usize - 'a' as usize]
}

/// The sum over all letters, as the definition says.
fn definition(inputs: &[&str], output: &str, x: &[&[f64]]) -> Vec<f64> {
    let mut letters: Vec<char> = inputs.concat().chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let sizes = |names: &str| names.chars().map(size).collect::<Vec<_>>();
    let all: Vec<usize> = letters.iter().map(|&letter| size(letter)).collect();
    let mut y = vec![0.0; sizes(output).iter().product()];
    for i in 0..all.iter().product() {
        let at = coordinates(&all, i);
        let place = |names: &str| {
            let at: Vec<usize> = names
                .chars()
                .map(|name| at[letters.iter().position(|&letter| letter == name).unwrap()])
                .collect();
            element(&sizes(names), &at)
        };
        y[place(output)] += inputs.iter().zip(x).map(|(names, x)| x[place(names)]).product::<f64>();
    }
    y
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
        let sizes = |names: &String| names.chars().map(size).collect::<Vec<_>>();
        let arrays: Vec<_> =
            inputs.iter().enumerate().map(|(i, names)| array(i as u64 + 1, &sizes(names))).collect();
        let reference = move |x: &[&[f64]]| {
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            definition(&inputs, output, x)
        };
        let op = move |x: &[Tensor]| {
            let y = ops::einsum(equation, x)?;
            assert_eq!(y.sizes(), output.chars().map(size).collect::<Vec<_>>(), "{equation}");
            Ok(y)
        };
        // Some are made of several ops, each of which rounds.
        Case { slack: 2.0, ..case("einsum", arrays, op, reference) }.check();
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
        (ops::einsum("...a->a", &[x]), "einsum: \"...a->a\" has '.', where letters name the dims"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
}
