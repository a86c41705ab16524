//! Steps of Adafactor against f64.

use half::{bf16, f16};
use oarlock_cuda::adafactor::Matrices;
use oarlock_cuda::{Pieces, geometry};
use oarlock_reference::optimizer::{Adafactor, Args, Case, Rule};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::Float;

const SCALE: f64 = 0.5;
const EPS: [f64; 2] = [1e-3, 0.02];
const RATE: f64 = 0.05;
const KEEP: f64 = 0.999;

/// A parameter of matrices, or a vector.
#[derive(Clone, Copy)]
struct Of {
    sizes: [usize; 3],
    factored: bool,
}

const fn matrices(sizes: [usize; 3]) -> Of {
    Of { sizes, factored: true }
}

const fn vector(n: usize) -> Of {
    Of { sizes: [1, 1, n], factored: false }
}

/// The memory of a parameter.
struct Memory<T> {
    matrices: Matrices,
    weights: Buffer<f32>,
    grad: Buffer<f32>,
    row_var: Buffer<f32>,
    col_var: Buffer<f32>,
    working: Buffer<T>,
    scratch: Buffer<f64>,
    factored: bool,
}

/// A step with the weight of the new second moment, and the length from which on a direction is shortened.
fn step<T: Float>(library: &Library, of: &[Of], relative: bool, weight: f64, d: f64) {
    let cases: Vec<Case> = of
        .iter()
        .map(|Of { sizes: [batch, rows, cols], factored }| match factored {
            true => Case::new(&[*batch, *rows, *cols], [batch * rows, batch * cols, 0], false),
            false => Case::new(&[*cols], [0, 0, *cols], false),
        })
        .collect();
    let results = in_every_order(library, |gpu| {
        let memory = |(c, of): (&Case, &Of)| {
            let matrices = Matrices::new(of.sizes).expect("sides");
            Memory::<T> {
                matrices,
                weights: gpu.buffer(&c.weights),
                grad: gpu.buffer(&c.grad),
                row_var: gpu.buffer(&c.states[0]),
                col_var: gpu.buffer(&c.states[if of.factored { 1 } else { 2 }]),
                working: gpu.fresh(matrices.n_elems()),
                scratch: gpu.fresh(matrices.scratch_bytes() / 8),
                factored: of.factored,
            }
        };
        let all: Vec<Memory<T>> = cases.iter().zip(of).map(memory).collect();
        let [s, beta, eps1, eps2, rate, keep, d] =
            [SCALE, weight, EPS[0], EPS[1], RATE, KEEP, d].map(|x| x as f32);
        let table = |tasks: &dyn Fn(&Matrices) -> usize,
                     operands: &dyn Fn(&Memory<T>) -> Option<[u64; 4]>| {
            let mut table = Pieces::new();
            for memory in &all {
                let (of, sides) = (memory.matrices, Pieces::sides(memory.matrices.sides()));
                if let Some([a, b, c, d]) = operands(memory) {
                    assert!(table.push_words(tasks(&of), of.n_elems(), [a, b, c, d, sides]));
                }
            }
            table
        };
        let tiles = |of: &Matrices| of.n_elems().div_ceil(Pieces::TILE);
        let rows_of = |of: &Memory<T>| of.factored.then(|| of.row_var.address());
        let rows =
            table(&Matrices::row_tasks, &|of| rows_of(of).map(|row_var| [of.grad.address(), row_var, 0, 0]));
        if !rows.is_empty() {
            gpu.run("adafactor_rows", &[], geometry::pieces(&rows), args![rows, s, beta]);
        }
        let columns =
            table(&Matrices::column_tasks, &|of| Some([of.grad.address(), of.scratch.address(), 0, 0]));
        gpu.run("adafactor_columns", &[], geometry::pieces(&columns), args![columns]);
        let moments =
            table(&Matrices::moment_tasks, &|of| Some([of.scratch.address(), of.col_var.address(), 0, 0]));
        gpu.run("adafactor_moments", &[], geometry::pieces(&moments), args![moments, s, beta]);
        let factors = table(&Matrices::factor_tasks, &|of| {
            Some([rows_of(of).unwrap_or(0), of.scratch.address(), 0, 0])
        });
        gpu.run("adafactor_factors", &[], geometry::pieces(&factors), args![factors, eps1]);
        let squares = table(&tiles, &|of| {
            let weights = if relative { of.weights.address() } else { 0 };
            Some([of.grad.address(), of.col_var.address(), of.scratch.address(), weights])
        });
        let floor = eps1 * eps1;
        gpu.run("adafactor_squares", &[], geometry::pieces(&squares), args![squares, s, floor]);
        let alpha = table(&|_: &Matrices| 1, &|of| Some([of.scratch.address(), 0, 0, 0]));
        let is_relative = u32::from(relative);
        gpu.run("adafactor_alpha", &[], geometry::pieces(&alpha), args![alpha, rate, eps2, d, is_relative]);
        let mut apply = Pieces::new();
        for of in &all {
            let [w, g, scratch] = [of.weights.address(), of.grad.address(), of.scratch.address()];
            let words = [w, g, of.col_var.address(), scratch, of.working.address()];
            assert!(apply.push_addresses(of.matrices.n_elems(), words));
        }
        gpu.run("adafactor_apply", &[T::ELEMENT], geometry::pieces(&apply), args![apply, s, floor, keep]);
        let read = |of: Memory<T>| {
            (of.weights.read(), of.row_var.read(), of.col_var.read(), of.working.read(), of.factored)
        };
        all.into_iter().map(read).collect::<Vec<_>>()
    });
    let rule = Adafactor { share: weight, eps: EPS, floor: EPS[0] * EPS[0], d, relative, rate: RATE };
    let args = Args { step: 2, lr: 1.0 - KEEP, weight_decay: 1.0, grad_scale: SCALE };
    for (c, (w, row_var, col_var, working, factored)) in cases.iter().zip(&results) {
        let states: [&[f32]; 3] = if *factored { [row_var, col_var, &[]] } else { [&[], &[], col_var] };
        c.check((&Rule::Adafactor(rule), &args), w, states, working, 3e-6);
    }
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    step::<f32>(library, &[matrices([2, 23, 37]), vector(77), matrices([1, 9, 40])], true, 0.3, 0.5);
    step::<f32>(library, &[vector(77)], true, 0.7, 100.0);
    step::<f32>(library, &[vector(5000), vector(3)], false, 0.7, 0.5);
    // Three runs of rows.
    step::<f32>(library, &[matrices([2, 1030, 3]), matrices([1, 1, 8])], true, 0.2, 1.0);
    step::<bf16>(library, &[matrices([1, 3, 1500])], false, 0.8, 100.0);
    step::<f16>(library, &[matrices([2, 9, 3]), vector(8)], true, 0.2, 1.0);
}

#[test]
fn steps_match_the_reference() {
    on_emulator(check);
}
