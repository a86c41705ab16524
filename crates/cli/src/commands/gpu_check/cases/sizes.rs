//! Sizes at which kernels change their path: norms as wide as the shared memory of a block, and a vocabulary of 151,936 tokens
//! with ids that come again and again, as those of padding do.

use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{self, HeadOptions, Labels};

use super::decoders::{EPS, normed};
use super::losses::{labels, total_loss};
use super::{Case, Sizes};

/// The widths of norms: of BERT and GPT-2, which asks for all of the 48 KiB that a block has without asking, and others around
/// the limits of a GPU.
const LAYER_NORMS: [usize; 3] = [767, 768, 6144];
const RMS_NORMS: [usize; 2] = [896, 12_288];

/// An id that is a fourth of all.
const PADDING: usize = 0;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { wide_rows: rows, large: [vocab, tokens, width], .. } = n;
    let layer_norm = |dim: usize| {
        Case::new(
            format!("layer_norm, {dim} wide"),
            [&[rows, dim]],
            [&[dim], &[dim]],
            |call| ops::layer_norm(&call.inputs[0], &call.params[0], Some(&call.params[1]), EPS),
            |x| {
                let centred = x.inputs[0].minus(&x.inputs[0].mean_of_rows());
                normed(&centred).mul(&x.params[0]).plus(&x.params[1])
            },
        )
    };
    let rms_norm = |dim: usize| {
        Case::new(
            format!("rms_norm, {dim} wide"),
            [&[rows, dim]],
            [&[dim]],
            |call| ops::rms_norm(&call.inputs[0], &call.params[0], EPS),
            |x| normed(&x.inputs[0]).mul(&x.params[0]),
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
            total_loss(&rows.product(&x.params[0].permute([1, 0])))
        },
    ));
    cases
}

/// The token at a place: padding, one of seven that are frequent, or any one, the last of the vocabulary among them.
fn id(at: usize, vocab: usize) -> usize {
    match at % 4 {
        0 => PADDING,
        1 | 2 => vocab - 1 - at / 4 % 7,
        _ => at * 7919 % vocab,
    }
}
