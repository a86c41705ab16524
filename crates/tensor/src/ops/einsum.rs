//! Sums of products by the names of dims: `einsum("bqd,bkd->bqk", &[q, k])`.
//!
//! It is made of other ops: diagonals, sums, permutations, and one product of matrices.

use std::borrow::Borrow;

use crate::error::{Error, Result};
use crate::ops::{Transposed, diagonal, matmul_transposed, mul, permute, reshape, sum, wrong_shape};
use crate::tensor::Tensor;

/// The sum of products that the equation describes, of one or two tensors. A letter names a dim; dims with the same
/// letter have equal sizes and run together; letters that the result does not name are summed over. Without `->` the
/// result has the letters that occur once, in alphabetical order.
///
/// # Errors
/// Other than one or two tensors, an equation that does not describe them, sizes that differ for one letter, and what
/// the product reports.
pub fn einsum<T: Borrow<Tensor>>(equation: &str, tensors: &[T]) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
    let Equation { inputs, output } = Equation::parse(equation, &tensors)?;
    let mut operands = Vec::new();
    for (k, (tensor, letters)) in tensors.iter().zip(&inputs).enumerate() {
        let needed = |letter: char| {
            output.contains(&letter)
                || inputs.iter().enumerate().any(|(other, letters)| other != k && letters.contains(&letter))
        };
        operands.push(Operand::new(tensor, letters)?.summed(needed)?);
    }
    let mut operands = operands.into_iter();
    match (operands.next(), operands.next()) {
        (Some(a), Some(b)) => product(&a, &b, &output)?.ordered(&output),
        (Some(a), None) => a.ordered(&output),
        (None, _) => Err(Error::Usage("einsum: no tensor was given".to_string())),
    }
}

struct Equation {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

impl Equation {
    fn parse(equation: &str, tensors: &[&Tensor]) -> Result<Equation> {
        let wrong = |why: String| Error::Usage(format!("einsum: \"{equation}\" {why}"));
        let letters = |part: &str| -> Result<Vec<char>> {
            let letters: Vec<char> = part.chars().filter(|c| !c.is_whitespace()).collect();
            match letters.iter().find(|c| !c.is_ascii_alphabetic()) {
                Some(other) => Err(wrong(format!("has '{other}', where letters name the dims"))),
                None => Ok(letters),
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
        let all: Vec<char> = inputs.concat();
        let count = |letter: char| all.iter().filter(|&&other| other == letter).count();
        let output = match right {
            Some(right) => letters(right)?,
            None => {
                let mut once: Vec<char> = all.iter().copied().filter(|&letter| count(letter) == 1).collect();
                once.sort_unstable();
                once
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
            if letters.len() != tensor.sizes().len() {
                let expected = format!("{} dims, as \"{equation}\" names them", letters.len());
                return Err(wrong_shape("einsum", expected, tensor));
            }
            for (&letter, &size) in letters.iter().zip(tensor.sizes()) {
                match sizes.iter().find(|(other, _)| *other == letter) {
                    Some(&(_, other)) if other != size => {
                        let expected = format!("size {other} for '{letter}' of \"{equation}\"");
                        return Err(wrong_shape("einsum", expected, tensor));
                    }
                    Some(_) => {}
                    None => sizes.push((letter, size)),
                }
            }
        }
        Ok(Equation { inputs, output })
    }
}

/// A tensor and the letters of its dims, each of which it has once.
struct Operand {
    tensor: Tensor,
    letters: Vec<char>,
}

impl Operand {
    /// Of dims with the same letter only the diagonal counts.
    fn new(tensor: &Tensor, letters: &[char]) -> Result<Operand> {
        let (mut tensor, mut letters) = (tensor.clone(), letters.to_vec());
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
