//! Sizes at which kernels change their path: norms as wide as the shared memory of a block, a vocabulary of 151,936 tokens with
//! ids that come again and again, as those of padding do, more rows than one launch sums, and a head most of whose rows have no
//! label.

use oarlock_reference::loss::IGNORED;
use oarlock_reference::norm::{layer_norm, rms_norm};
use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{self, HeadOptions, Labels};

use super::decoders::EPS;
use super::losses::{label_ids, labels, total_loss};
use super::shapes::Sizes;
use crate::commands::gpu_check::case::Case;

/// The widths of norms: of BERT and GPT-2, which asks for all of the 48 KiB that a block has without asking, and others around
/// the limits of a GPU.
const LAYER_NORMS: [usize; 3] = [767, 768, 6144];
const RMS_NORMS: [usize; 2] = [896, 12_288];

/// Rows and columns whose sums take a second launch.
const LONG: [usize; 2] = [1100, 40];

/// Rows of a head of which one in [`ONE_IN`] has a label: the others fill up two units of 128 rows, not all of them.
const SPARSE: usize = 600;
const ONE_IN: usize = 3;

/// An id that is a fourth of all.
const PADDING: usize = 0;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { wide_rows: rows, large: [vocab, tokens, width], i, v, .. } = n;
    let layer_norm = |dim: usize| {
        Case::new(
            format!("layer_norm, {dim} wide"),
            [&[rows, dim]],
            [&[dim], &[dim]],
            |call| ops::layer_norm(&call.inputs[0], &call.params[0], Some(&call.params[1]), EPS),
            |x| layer_norm(&x.inputs[0], &x.params[0], Some(&x.params[1]), f64::from(EPS)),
        )
    };
    let rms_norm = |dim: usize| {
        Case::new(
            format!("rms_norm, {dim} wide"),
            [&[rows, dim]],
            [&[dim]],
            |call| ops::rms_norm(&call.inputs[0], &call.params[0], EPS),
            |x| rms_norm(&x.inputs[0], &x.params[0], 0.0, f64::from(EPS)),
        )
    };
    let ids: Vec<usize> = (0..16 * tokens).map(|at| id(at, vocab)).collect();
    let given = ids.clone();
    let mut cases: Vec<Case> = LAYER_NORMS.into_iter().map(layer_norm).collect();
    cases.extend(RMS_NORMS.map(rms_norm));
    cases.push(Case::new(
        format!("embedding of {vocab}, frequent ids"),
        [],
        [&[vocab, width]],
        move |call| {
            let ids: Vec<i32> = given.iter().map(|id| *id as i32).collect();
            let ids = Tensor::from_slice(&ids, [ids.len()], call.place.device)?;
            ops::embedding(&call.tape.input(&ids), &call.params[0])
        },
        move |x| x.params[0].select(0, &ids),
    ));
    cases.push(Case::new(
        format!("head loss of {vocab}"),
        [&[1, tokens, width]],
        [&[vocab, width]],
        move |call| {
            let labels = Labels::from_tensor(&labels(call, [1, tokens], vocab)?)?;
            Ok(ops::head_loss(&call.inputs[0], &call.params[0], &labels, HeadOptions::default())?.loss)
        },
        move |x| {
            let rows = x.inputs[0].reshape(&[tokens, width]);
            total_loss(&rows.product(&x.params[0].permute([1, 0])), &label_ids(tokens, vocab))
        },
    ));
    cases.push(Case::new(
        format!("sum of {} rows", LONG[0]),
        [&LONG],
        [],
        |call| ops::sum(&call.inputs[0], 0),
        |x| x.inputs[0].sum(0).reshape(&LONG[1..]),
    ));
    cases.push(Case::new(
        format!("head loss, a label for one row in {ONE_IN}"),
        [&[1, SPARSE, i]],
        [&[v, i]],
        move |call| {
            let ids = Tensor::from_slice(&sparse(v), [1, SPARSE], call.place.device)?;
            let labels = Labels::from_tensor(&ids)?;
            Ok(ops::head_loss(&call.inputs[0], &call.params[0], &labels, HeadOptions::default())?.loss)
        },
        move |x| {
            let rows = x.inputs[0].reshape(&[SPARSE, i]);
            total_loss(&rows.product(&x.params[0].permute([1, 0])), &sparse(v))
        },
    ));
    cases
}

/// The labels of few rows.
fn sparse(vocab: usize) -> Vec<i32> {
    (0..SPARSE).map(|row| if row % ONE_IN == 0 { (row * 31 % vocab) as i32 } else { IGNORED }).collect()
}

/// The token at a place: padding, one of seven that are frequent, or any one, the last of the vocabulary among them.
fn id(at: usize, vocab: usize) -> usize {
    match at % 4 {
        0 => PADDING,
        1 | 2 => vocab - 1 - at / 4 % 7,
        _ => at * 7919 % vocab,
    }
}
