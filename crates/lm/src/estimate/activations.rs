//! What a model's own code takes of memory and does of work in a step, found by running it on a dry device.

use std::borrow::Cow;
use std::sync::Arc;

use oarlock_engine::nn::{Module, parameters, set_training, units_of};
use oarlock_engine::shard::{Grain, Layout, in_order_on};
use oarlock_engine::{Error, Result};
use oarlock_tensor::{DType, Device, FlatBuffer, FlatParams, OpTime, ParamLocation};

use crate::model::Decoder;

/// The accounts of a dry run.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// What the device's pool takes from the system; a pool never gives back, so this is its peak.
    pub pool_bytes: u64,
    /// The pieces of it that are free between a forward and backward pass and the next, the smallest first: what is
    /// borrowed during an update comes from them.
    pub free: Vec<u64>,
    /// The device that was run on.
    pub device: Device,
    /// The peak of each kind of buffer; they need not fall together, so their sum may be more than the pool.
    pub by_name: Vec<(&'static str, u64)>,
    /// The work by op.
    pub ops: Vec<(Cow<'static, str>, OpTime)>,
}

impl DryRun {
    /// Floating-point operations of all ops.
    pub fn flops(&self) -> u64 {
        self.ops.iter().map(|(_, op)| op.flops).sum()
    }
}

/// The shape of a rank's micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences of a pass that is trained on; 0 where nothing is trained.
    pub batch: usize,
    /// Tokens of a sequence.
    pub len: usize,
    /// Whether attention keeps documents apart.
    pub documents: bool,
    /// Sequences of an evaluation pass, where there are evaluations.
    pub eval_batch: Option<usize>,
    /// Where sequences have lengths of their own, and those of a batch follow one another as one row.
    pub longest: Option<Longest>,
    /// The ranks that a row is divided over; 1: it is whole on a rank.
    pub parts: usize,
}

/// The largest micro-batches of so many sequences, in training and in evaluation.
pub type LongestOf<'a> = dyn Fn(usize, Option<usize>) -> Longest + 'a;

/// The tokens of the largest batches whose sequences follow one another as one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Of a batch that is trained on.
    pub train: usize,
    /// Of a batch of an evaluation; 0 where there is none.
    pub eval: usize,
}

impl StepShape {
    /// The shape where each of these sequences stands for so many.
    pub(super) fn of_segments(self, n: usize) -> StepShape {
        let times = |batch: usize| batch.saturating_mul(n);
        StepShape { batch: times(self.batch), eval_batch: self.eval_batch.map(times), ..self }
    }

    /// The shape with the largest batches of its numbers of sequences.
    pub(super) fn with_longest(self, of: Option<&LongestOf<'_>>) -> StepShape {
        let longest = of.map(|of| {
            let longest = of(self.batch.max(1), self.eval_batch);
            Longest { train: if self.batch == 0 { 0 } else { longest.train }, ..longest }
        });
        StepShape { longest, ..self }
    }

    /// The tokens of a batch that is trained on.
    pub(super) fn tokens(&self) -> usize {
        self.longest.map_or(self.batch.saturating_mul(self.len), |longest| longest.train)
    }

    /// The passes over a batch: one that trains and one that evaluates.
    fn passes(&self) -> (Option<Pass>, Option<Pass>) {
        let &StepShape { documents, parts, .. } = self;
        let pass = |sequences, tokens: Option<usize>, trains| match tokens {
            Some(len) => Pass { rows: 1, len, segments: sequences, documents, trains, parts },
            None => Pass { rows: sequences, len: self.len, segments: 1, documents, trains, parts },
        };
        let train = |batch| pass(batch, self.longest.map(|longest| longest.train.max(1)), true);
        let eval = |batch| pass(batch, self.longest.map(|longest| longest.eval.max(1)), false);
        (Some(self.batch).filter(|batch| *batch > 0).map(train), self.eval_batch.map(eval))
    }
}

/// Runs a model on a dry device: its parameters get a home without memory in `dtype`, then `run` does what a step does.
/// `like` says on which kernels and threads. The model may be prepared for a real device afterward.
///
/// # Errors
/// Whatever `run` reports; [`oarlock_tensor::Error::Dry`] where it looks at values.
pub fn dry_run(
    model: &dyn Module,
    dtype: DType,
    like: &Device,
    mut run: impl FnMut(&Device) -> Result<()>,
) -> Result<DryRun> {
    let device = like.as_dry();
    for unit in units_of(model) {
        for (dtype, params) in unit.by_dtype(dtype) {
            let params = in_order_on(&device, params);
            let layout =
                Layout::new(params.iter().map(|p| (p.name.clone(), *p.param.shape(), 0)), Grain::Blocks);
            let places: Vec<ParamLocation> = layout.params().iter().map(|p| p.place).collect();
            let flat = |size: usize| FlatBuffer::dry(layout.n_elems() * size);
            let is_trained = params.iter().all(|named| !named.param.is_frozen());
            let grads = is_trained.then(|| flat(4));
            let home = FlatParams::new(places, dtype, flat(dtype.size()), grads, &device)?;
            let home = Arc::new(home);
            for (index, named) in params.iter().enumerate() {
                named.param.settle(home.clone(), index);
            }
        }
    }
    device.profile().enable();
    let done = run(&device);
    parameters(model).iter().for_each(|named| named.param.unsettle());
    done?;
    let by_name = device.arena().usage().into_iter().map(|(name, usage)| (name, usage.peak_bytes as u64));
    Ok(DryRun {
        pool_bytes: device.arena().bytes() as u64,
        free: free_of(&device),
        by_name: by_name.collect(),
        ops: device.profile().take(),
        device,
    })
}

fn free_of(device: &Device) -> Vec<u64> {
    device.arena().free().into_iter().map(|bytes| bytes as u64).collect()
}

/// Bytes of one activation that no machine has. A dry step takes time in proportion to its rows, so that it would not end
/// far above.
const MOST_BYTES: usize = 1 << 46;

/// What a training run does with a micro-batch on a dry device.
pub type MicroBatch<'a> = dyn Fn(&Decoder, &Device, Pass) -> Result<()> + 'a;

/// A pass over a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Rows.
    pub rows: usize,
    /// Tokens of a row.
    pub len: usize,
    /// The ranks that a row is divided over: the pass has the tokens of one of them.
    pub parts: usize,
    /// Sequences that follow one another in a row.
    pub segments: usize,
    /// Whether attention keeps documents apart.
    pub documents: bool,
    /// Whether a backward pass follows.
    pub trains: bool,
}

/// A step of a decoder on a dry device: forward and backward of two micro-batches, since the second may find the pool
/// in pieces that do not fit, and an evaluation pass. The accounts of work are those of one micro-batch.
///
/// Batches of many lengths leave free blocks of many sizes; a block serves what is up to an eighth smaller, so an eighth is
/// added. A pool that is limited to that ([`oarlock_tensor::Arena::set_limit`]) holds no more.
///
/// # Errors
/// A sequence longer than the model's, or impossible sizes.
pub fn decoder_step(
    decoder: &Decoder,
    dtype: DType,
    like: &Device,
    shape: StepShape,
    micro_batch: &MicroBatch<'_>,
) -> Result<DryRun> {
    let widest = decoder.config().widest();
    let (training, evaluation) = shape.passes();
    for Pass { rows, len, .. } in [training, evaluation].into_iter().flatten() {
        if rows.checked_mul(len).and_then(|n| n.checked_mul(widest * 8)).is_none_or(|n| n > MOST_BYTES) {
            return Err(Error::Usage(format!(
                "a batch of {rows} sequences of {len} tokens is beyond all memory"
            )));
        }
    }
    let (mut ops, mut free) = (Vec::new(), None);
    let run = dry_run(decoder, dtype, like, |device| {
        // Dropout copies what it changes, and an evaluation has none.
        set_training(decoder, true);
        for pass in [training, training].into_iter().flatten() {
            device.profile().enable();
            micro_batch(decoder, device, pass)?;
            // The first update may come before a second micro-batch.
            free.get_or_insert_with(|| free_of(device));
        }
        ops = device.profile().take();
        set_training(decoder, false);
        evaluation.map_or(Ok(()), |pass| micro_batch(decoder, device, pass))
    });
    set_training(decoder, false);
    let mut run = run?;
    (run.ops, run.free) = (ops, free.unwrap_or_default());
    if shape.longest.is_some() {
        run.pool_bytes += run.pool_bytes / 8;
    }
    Ok(run)
}
