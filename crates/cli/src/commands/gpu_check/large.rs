//! Ops on operands of more than 2^31 elements and 2^32 bytes: rows at the begin, around element 2^31, and at the end.

use std::ops::Range;

use oarlock_reference::function::Activation as Reference;
use oarlock_tensor::cpu::difference::{largest_difference, largest_magnitude};
use oarlock_tensor::ops::{self, Activation, Transposed};
use oarlock_tensor::{DType, Device, Error, Result, Tensor};

use super::finding::{Finding, number};
use super::part::Part;
use crate::console::Outcome;

const DTYPE: DType = DType::BF16;
/// The largest error relative to the largest value: a few roundings to bf16.
const ALLOWED: f64 = 1.6e-2;
/// Rows of the right operand of a product.
const OUT: usize = 16;

/// The sizes of the operand.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    cols: usize,
    /// The first row behind element 2^31.
    seam: usize,
}

const FULL: Sizes = Sizes { rows: (1 << 15) + 9, cols: 1 << 16, seam: 1 << 15 };
const QUICK: Sizes = Sizes { rows: 9, cols: 40, seam: 5 };

impl Sizes {
    /// The rows that are compared.
    fn looked_at(&self) -> [Range<usize>; 3] {
        [0..1, self.seam - 1..self.seam + 1, self.rows - 2..self.rows]
    }

    /// Some rows of a tensor `[rows, ..]`.
    fn of(&self, x: &Tensor) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::new();
        for range in self.looked_at() {
            let width = x.n_elems() / self.rows;
            let values = ops::narrow(x, 0, range)?.to_f32_vec()?;
            rows.extend(values.chunks(width).map(<[f32]>::to_vec));
        }
        Ok(rows)
    }
}

/// An op on the operand, and what it makes of a row. `right` is the other operand of a product.
struct Case {
    name: &'static str,
    op: fn(&Tensor, &Tensor) -> Result<Tensor>,
    of_row: fn(&[f64], &[f32]) -> Vec<f64>,
}

const CASES: [Case; 6] = [
    Case { name: "add", op: |x, _| ops::add(x, x), of_row: |x, _| x.iter().map(|x| 2.0 * x).collect() },
    Case { name: "cast to f32", op: |x, _| ops::cast(x, DType::F32), of_row: |x, _| x.to_vec() },
    Case {
        name: "gated silu",
        op: |x, _| ops::gated(x, x, Activation::Silu),
        of_row: |x, _| x.iter().map(|x| Reference::Silu.value(*x) * x).collect(),
    },
    Case { name: "sum of rows", op: |x, _| ops::sum(x, -1), of_row: |x, _| vec![x.iter().sum()] },
    Case {
        name: "softmax",
        op: |x, _| ops::softmax(x, -1),
        of_row: |x, _| {
            let sum: f64 = x.iter().map(|x| libm::exp(*x)).sum();
            x.iter().map(|x| libm::exp(*x) / sum).collect()
        },
    },
    Case {
        name: "product",
        op: |x, right| ops::matmul_transposed(x, right, Transposed::Right),
        of_row: |x, right| {
            let dot = |right: &[f32]| x.iter().zip(right).map(|(x, y)| x * f64::from(*y)).sum();
            right.chunks(x.len()).map(dot).collect()
        },
    },
];

pub(super) fn check(part: &mut Part<'_>, device: &Device, quick: bool) -> Outcome {
    let sizes = if quick { QUICK } else { FULL };
    // The operand and a result in f32, and as much for the pool.
    let needed = 12 * sizes.rows * sizes.cols;
    let (free, _) = device.gpu_memory().ok().flatten().unwrap_or_default();
    let mut operands = None;
    let mut run = |part: &mut Part<'_>, name: &str, check: &dyn Fn(&Tensor, &Tensor) -> Result<Finding>| {
        part.check(name, || {
            if free < needed {
                let gigabytes = |bytes: usize| bytes as f64 / 1e9;
                let why =
                    format!("it needs {:.1} GB, and {:.1} GB are free", gigabytes(needed), gigabytes(free));
                return Ok(Finding::skipped(why));
            }
            let (x, right) = match &operands {
                Some(operands) => operands,
                None => operands.insert((
                    Tensor::rand([sizes.rows, sizes.cols], 7, DTYPE, device)?,
                    Tensor::rand([OUT, sizes.cols], 8, DTYPE, device)?,
                )),
            };
            check(x, right)
        })
    };
    run(part, "random numbers", &|x, _| {
        let rows = sizes.of(x)?;
        let is_random = rows.iter().enumerate().all(|(i, row)| {
            row.iter().all(|x| (0.0..=1.0).contains(x)) && rows[..i].iter().all(|other| other != row)
        });
        Ok(Finding::of(is_random, format!("{} x {}, rows differ", sizes.rows, sizes.cols)))
    })?;
    for case in &CASES {
        run(part, case.name, &|x, right| {
            let got = sizes.of(&(case.op)(x, right)?)?;
            let right = right.to_f32_vec()?;
            let row =
                |row: Vec<f32>| (case.of_row)(&row.into_iter().map(f64::from).collect::<Vec<_>>(), &right);
            compared(&got.concat(), &sizes.of(x)?.into_iter().flat_map(row).collect::<Vec<_>>())
        })?;
    }
    run(part, "rows by their index", &|x, _| {
        let rows: Vec<usize> = sizes.looked_at().into_iter().flatten().rev().collect();
        let ids: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
        let got = ops::index_select(x, 0, &Tensor::from_slice(&ids, [ids.len()], device)?)?.to_f32_vec()?;
        let wanted: Vec<f32> = sizes.of(x)?.into_iter().rev().flatten().collect();
        Ok(Finding::of(got == wanted, "every number is exact"))
    })
}

fn compared(got: &[f32], wanted: &[f64]) -> Result<Finding> {
    let error = largest_difference(got, wanted)
        .and_then(|error| Ok(error / largest_magnitude(wanted.iter().copied())?.max(1e-12)))
        .unwrap_or(f64::INFINITY);
    let detail = format!("error {error:.1e} of {ALLOWED:.1e}");
    Ok::<_, Error>(
        Finding::of(error <= ALLOWED, detail).with("error", number(error)).with("allowed", ALLOWED),
    )
}
