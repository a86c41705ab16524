//! Sums of products by the names of dims: `einsum("...qd,...kd->...qk", &[q, k])`.
//!
//! It is made of other ops: diagonals, sums, permutations, and one product of matrices.

use std::borrow::Borrow;

use oarlock_kernels::{Error, Result};

use crate::ops::{Transposed, diagonal, matmul_transposed, mul, permute, reshape, squeeze, sum, wrong_shape};
use crate::tensor::Tensor;

/// The sum of products that the equation describes, of one or two tensors. A letter names a dim; dims with the same
/// letter run together, and one of size 1 is spread over the other tensor's. Letters that the result does not name are
/// summed over. `...` stands for any number of dims, which are aligned at their last one. Without `->` the result has the
/// dims of `...` and then the letters that occur once, in alphabetical order.
///
/// # Errors
/// Other than one or two tensors, an equation that does not describe them, sizes that differ for one letter, and what
/// the product reports.
pub fn einsum<T: Borrow<Tensor>>(equation: &str, tensors: &[T]) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
    let Equation { inputs, output, sizes } = Equation::parse(equation, &tensors)?;
    let spread = |letter: char| sizes.iter().any(|&(other, size)| other == letter && size != 1);
    let operands = tensors.iter().zip(&inputs).map(|(tensor, letters)| Operand::new(tensor, letters, spread));
    let operands = operands.collect::<Result<Vec<_>>>()?;
    let of: Vec<Vec<char>> = operands.iter().map(|operand| operand.letters.clone()).collect();
    let mut summed = Vec::new();
    for (k, operand) in operands.into_iter().enumerate() {
        let needed = |letter: char| {
            output.contains(&letter)
                || of.iter().enumerate().any(|(other, letters)| other != k && letters.contains(&letter))
        };
        summed.push(operand.summed(needed)?);
    }
    let mut operands = summed.into_iter();
    match (operands.next(), operands.next()) {
        (Some(a), Some(b)) => product(&a, &b, &output)?.ordered(&output),
        (Some(a), None) => a.ordered(&output),
        (None, _) => Err(Error::Usage("einsum: no tensor was given".to_string())),
    }
}

/// An equation with the dims of these tensors; those that `...` stands for are named by digits, from the last one on.
struct Equation {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
    /// The size of each letter; 1 where all tensors have that.
    sizes: Vec<(char, usize)>,
}

/// What stands for `...` while an equation is read.
const ELLIPSIS: char = '.';

impl Equation {
    fn parse(equation: &str, tensors: &[&Tensor]) -> Result<Equation> {
        let wrong = |why: String| Error::Usage(format!("einsum: \"{equation}\" {why}"));
        let letters = |part: &str| -> Result<Vec<char>> {
            let part: String = part.chars().filter(|c| !c.is_whitespace()).collect();
            let (before, rest) = part.split_once("...").map_or((&part[..], None), |(a, b)| (a, Some(b)));
            let named = before.chars().chain(rest.unwrap_or_default().chars());
            match named.clone().find(|c| !c.is_ascii_alphabetic()) {
                Some(other) => Err(wrong(format!("has '{other}', where letters name the dims"))),
                None => Ok(before
                    .chars()
                    .chain(rest.map(|_| ELLIPSIS))
                    .chain(rest.unwrap_or_default().chars())
                    .collect()),
            }
        };
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let inputs = left.split(',').map(letters).collect::<Result<Vec<_>>>()?;
        if inputs.len() != tensors.len() || tensors.len() > 2 {
            let n = tensors.len();
            return Err(wrong(format!(
                "names {} tensors and got {n}; one or two are supported",
                inputs.len()
            )));
        }
        let n_dims =
            inputs.iter().zip(tensors).map(|(letters, tensor)| dims_of_ellipsis(equation, letters, tensor));
        let n_dims = n_dims.collect::<Result<Vec<_>>>()?;
        let inputs: Vec<Vec<char>> =
            inputs.iter().zip(&n_dims).map(|(letters, &n)| spelled(letters, n)).collect();
        let most = n_dims.iter().copied().max().unwrap_or(0);
        let all: Vec<char> = inputs.concat();
        let count = |letter: char| all.iter().filter(|&&other| other == letter).count();
        let output = match right {
            Some(right) => spelled(&letters(right)?, most),
            None => {
                let once = |letter: &char| letter.is_alphabetic() && count(*letter) == 1;
                let mut once: Vec<char> = all.iter().copied().filter(once).collect();
                once.sort_unstable();
                [spelled(&[ELLIPSIS], most), once].concat()
            }
        };
        for (at, &letter) in output.iter().enumerate() {
            if count(letter) == 0 || output[..at].contains(&letter) {
                return Err(wrong(format!(
                    "has '{letter}' in the result, which is named by no tensor or twice"
                )));
            }
        }
        let mut sizes: Vec<(char, usize)> = Vec::new();
        for (letters, tensor) in inputs.iter().zip(tensors) {
            // Inside of one tensor nothing is spread.
            let mut own: Vec<(char, usize)> = Vec::new();
            for (&letter, &size) in letters.iter().zip(tensor.sizes()) {
                let name = if letter.is_alphabetic() { letter.to_string() } else { "...".to_string() };
                let differs = |other: usize| {
                    let expected = format!("size {other} for '{name}' of \"{equation}\"");
                    wrong_shape("einsum", expected, tensor)
                };
                match own.iter().find(|(other, _)| *other == letter) {
                    Some(&(_, other)) if other != size => return Err(differs(other)),
                    _ => own.push((letter, size)),
                }
                match sizes.iter_mut().find(|(other, _)| *other == letter) {
                    Some((_, other)) if *other == 1 => *other = size,
                    Some(&mut (_, other)) if other != size && size != 1 => return Err(differs(other)),
                    Some(_) => {}
                    None => sizes.push((letter, size)),
                }
            }
        }
        Ok(Equation { inputs, output, sizes })
    }
}

/// The number of dims that `...` stands for in a tensor with these letters.
fn dims_of_ellipsis(equation: &str, letters: &[char], tensor: &Tensor) -> Result<usize> {
    let named = letters.iter().filter(|letter| **letter != ELLIPSIS).count();
    let has_more = letters.len() > named;
    match tensor.sizes().len().checked_sub(named) {
        Some(more) if has_more || more == 0 => Ok(more),
        _ => {
            let least = if has_more { "at least " } else { "" };
            let expected = format!("{least}{named} dims, as \"{equation}\" names them");
            Err(wrong_shape("einsum", expected, tensor))
        }
    }
}

/// The letters with `n` digits for `...`.
fn spelled(letters: &[char], n: usize) -> Vec<char> {
    let digits = || (0..n as u8).rev().map(|digit| char::from(b'0' + digit));
    let place = letters.iter().position(|letter| *letter == ELLIPSIS);
    let (before, after) = place.map_or((letters, &[][..]), |at| (&letters[..at], &letters[at + 1..]));
    let digits = digits().filter(|_| place.is_some());
    before.iter().copied().chain(digits).chain(after.iter().copied()).collect()
}

/// A tensor and the letters of its dims, each of which it has once.
struct Operand {
    tensor: Tensor,
    letters: Vec<char>,
}

impl Operand {
    /// Of dims with the same letter only the diagonal counts; a dim of size 1 that is spread counts for nothing.
    fn new(tensor: &Tensor, letters: &[char], spread: impl Fn(char) -> bool) -> Result<Operand> {
        let (mut tensor, mut letters) = (tensor.clone(), letters.to_vec());
        while let Some(dim) = (0..letters.len()).find(|&dim| tensor.sizes()[dim] == 1 && spread(letters[dim]))
        {
            tensor = squeeze(&tensor, dim)?;
            letters.remove(dim);
        }
        while let Some((a, b)) = twice(&letters) {
            tensor = diagonal(&tensor, 0, a, b)?;
            let letter = letters.remove(b);
            letters.remove(a);
            letters.push(letter);
        }
        Ok(Operand { tensor, letters })
    }

    /// Without the dims that nobody needs.
    fn summed(mut self, needed: impl Fn(char) -> bool) -> Result<Operand> {
        while let Some(dim) = self.letters.iter().position(|&letter| !needed(letter)) {
            self.tensor = sum(&self.tensor, dim)?;
            self.letters.remove(dim);
        }
        Ok(self)
    }

    fn ordered(&self, letters: &[char]) -> Result<Tensor> {
        permute(&self.tensor, self.order(letters))
    }

    fn order(&self, letters: &[char]) -> Vec<usize> {
        letters.iter().filter_map(|letter| self.letters.iter().position(|own| own == letter)).collect()
    }

    fn sizes(&self, letters: &[char]) -> Vec<usize> {
        self.order(letters).into_iter().map(|dim| self.tensor.sizes()[dim]).collect()
    }

    fn has(&self, letter: char) -> bool {
        self.letters.contains(&letter)
    }

    /// The tensor as `[batch, rows, inner]`, or as `[batch, inner, rows]` where its dims lie like that, and whether
    /// they do.
    fn matrices(&self, batch: &[char], rows: &[char], inner: &[char]) -> Result<(Tensor, bool)> {
        let size = |letters: &[char]| self.sizes(letters).iter().product::<usize>();
        let turned = self.letters == [batch, inner, rows].concat();
        let (first, second) = if turned { (inner, rows) } else { (rows, inner) };
        let tensor = self.ordered(&[batch, first, second].concat())?;
        let lead = if batch.is_empty() { vec![] } else { vec![size(batch)] };
        Ok((reshape(&tensor, [lead, vec![size(first), size(second)]].concat())?, turned))
    }
}

/// The first letter that occurs twice: its places.
fn twice(letters: &[char]) -> Option<(usize, usize)> {
    let later = |a: usize| letters[a + 1..].iter().position(|&other| other == letters[a]);
    (0..letters.len()).find_map(|a| Some((a, a + 1 + later(a)?)))
}

/// The product of two operands that have no dims to be summed over alone.
fn product(a: &Operand, b: &Operand, output: &[char]) -> Result<Operand> {
    let only = |wanted: &dyn Fn(char) -> bool, of: &Operand| -> Vec<char> {
        of.letters.iter().copied().filter(|&letter| wanted(letter)).collect()
    };
    let batch = only(&|letter| b.has(letter) && output.contains(&letter), a);
    let inner = only(&|letter| b.has(letter) && !output.contains(&letter), a);
    let rows = only(&|letter| !b.has(letter), a);
    let columns = only(&|letter| !a.has(letter), b);
    let sizes = [a.sizes(&batch), a.sizes(&rows), b.sizes(&columns)].concat();
    let y = if inner.is_empty() {
        // Nothing is summed over: the dims of each spread over those of the other.
        let ones = |letters: &[char]| vec![1; letters.len()];
        let left = reshape(
            &a.ordered(&[&batch[..], &rows].concat())?,
            [a.sizes(&batch), a.sizes(&rows), ones(&columns)].concat(),
        )?;
        let right = reshape(
            &b.ordered(&[&batch[..], &columns].concat())?,
            [b.sizes(&batch), ones(&rows), b.sizes(&columns)].concat(),
        )?;
        mul(&left, &right)?
    } else {
        let (left, left_turned) = a.matrices(&batch, &rows, &inner)?;
        // The right operand is `[batch, inner, columns]` where it is not transposed.
        let (right, right_turned) = b.matrices(&batch, &columns, &inner)?;
        let transposed = match (left_turned, right_turned) {
            (false, false) => Transposed::Right,
            (false, true) => Transposed::Neither,
            (true, false) => Transposed::Both,
            (true, true) => Transposed::Left,
        };
        reshape(&matmul_transposed(&left, &right, transposed)?, sizes)?
    };
    Ok(Operand { tensor: y, letters: [batch, rows, columns].concat() })
}
