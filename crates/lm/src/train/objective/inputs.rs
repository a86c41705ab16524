//! The tensors of a micro-batch, and the examples that it holds.

use std::ops::Range;

use oarlock_engine::Result;
use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{Device, Tensor};

use crate::data::{Batch, Fields, Sample};

/// The tensors of a micro-batch on the device of a rank.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Token ids `[rows, len]`.
    pub ids: Tensor,
    /// The target of each token `[rows, len]`, shifted already; -100 for none.
    pub labels: Labels,
    /// Which positions see which.
    pub mask: Mask,
    /// The examples of the run that it holds.
    pub documents: Vec<Document>,
    /// What the objective needs to know of them besides.
    pub fields: Fields,
    /// What is added to the embeddings of the tokens ([`Objective::noise`](super::Objective::noise)).
    pub noise: Option<Tensor>,
    /// The log-probabilities of the labels by another model ([`Objective::prepare`](super::Objective::prepare)).
    pub reference: Option<Tensor>,
    /// The residual stream before the head, in the last stage of a pipeline.
    pub stream: Option<Tensor>,
    /// Whether they are evaluated: with the metrics of an evaluation, and without gradients.
    pub evaluates: bool,
}

/// An example in a micro-batch: a sample, or one of several that share its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The samples of the run before its own.
    pub position: u64,
    /// The tokens of the sample before it.
    pub first: usize,
    /// Its tokens in the micro-batch, row after row.
    pub tokens: Range<usize>,
}

impl Inputs {
    /// Brings a micro-batch to a device.
    ///
    /// # Errors
    /// No memory, or a batch whose parts do not fit.
    pub fn new(batch: &Batch, device: &Device) -> Result<Inputs> {
        let shape = [batch.rows, batch.len];
        let mask = match &batch.doc_start {
            // Of whole rows, where this rank has a part of them.
            Some(starts) => {
                let whole = [batch.rows, starts.len() / batch.rows.max(1)];
                Mask::Documents(Tensor::from_slice(starts, whole, device)?)
            }
            None => Mask::Causal,
        };
        let ids = Tensor::from_slice(&batch.input_ids, shape, device)?;
        let labels = Labels::new(batch.labels.as_slice());
        Ok(Inputs {
            documents: documents(batch),
            fields: batch.fields.clone(),
            ..Inputs::of_tensors(ids, labels, mask)
        })
    }

    /// Tokens with a label for each, of which nothing else is known.
    pub fn of_tensors(ids: Tensor, labels: Labels, mask: Mask) -> Inputs {
        Inputs {
            ids,
            labels,
            mask,
            documents: Vec::new(),
            fields: Fields::default(),
            noise: None,
            reference: None,
            stream: None,
            evaluates: false,
        }
    }
}

/// The samples of a batch, each divided where another document begins.
fn documents(batch: &Batch) -> Vec<Document> {
    let mut documents = Vec::with_capacity(batch.samples.len());
    for Sample { position, tokens } in &batch.samples {
        let starts = batch.doc_start.as_ref().map_or(&[][..], |starts| &starts[tokens.clone()]);
        let mut first = 0;
        for part in starts.chunk_by(|a, b| a == b) {
            let begin = tokens.start + first;
            documents.push(Document { position: *position, first, tokens: begin..begin + part.len() });
            first += part.len();
        }
        if starts.is_empty() {
            documents.push(Document { position: *position, first: 0, tokens: tokens.clone() });
        }
    }
    documents
}
