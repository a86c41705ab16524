//! A text classifier, trained and evaluated on any number of ranks: is a review glad or sorry?
//!
//! `cargo run --example text_classifier -- [model folder]`, or on several ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/text_classifier`

use std::path::{Path, PathBuf};

use oarlock::dataloader::{DataLoader, json_lines};
use oarlock::model::{ClassifierInput, HfConfig, SequenceClassifier};
use oarlock::{Accelerator, AcceleratorConfig, Device, Error, ReduceOp, Result, Tensor, lr_scheduler, optim};
use oarlock_engine::distributed::rank;

const NUM_EPOCHS: usize = 5;
const BATCH_SIZE: usize = 8;
/// Much for a model of its size; a large one that is finetuned takes about 3e-5.
const LR: f64 = 5e-3;
/// The longest review, in bytes. Bytes are tokens from 1 on; 0 fills short rows up.
const LEN: usize = 64;

/// A line of the data set.
#[derive(Clone, serde::Deserialize)]
struct Review {
    text: String,
    /// 1 is glad, 0 is sorry.
    label: i32,
}

/// What came out of a training run.
#[derive(Default)]
pub struct Outcome {
    /// The loss of every step, the mean over all ranks.
    pub losses: Vec<f32>,
    /// For every epoch, what the model said of each review that it was not trained on.
    pub predictions: Vec<Vec<i32>>,
    /// For every epoch, the share of those that is right.
    pub accuracy: Vec<f64>,
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn main() -> Result<()> {
    let checkpoint = rank::without_local_rank(std::env::args_os().skip(1))
        .pop()
        .map_or_else(|| here("tests/golden/text_classifier/model"), PathBuf::from);
    let accelerator = Accelerator::new(&config())?;
    let outcome = train(&accelerator, &checkpoint)?;
    let percent = 100.0 * outcome.accuracy[NUM_EPOCHS - 1];
    accelerator.print(format_args!("{percent:.0} % of the reviews are judged right"));
    Ok(())
}

/// How the ranks run: each batch is divided among them, whatever their number.
pub fn config() -> AcceleratorConfig {
    AcceleratorConfig::default().split_batches(true)
}

/// Trains the classifier of a folder as transformers writes it.
pub fn train(accelerator: &Accelerator, checkpoint: &Path) -> Result<Outcome> {
    let reviews = |name| json_lines(here("examples/reviews").join(name));
    let inputs = |rows, device: &Device| Ok(ClassifierInput::from(collate(rows, device)?));
    let train_dataloader = DataLoader::new(reviews("train.jsonl")?, BATCH_SIZE).collate(inputs);
    let eval_dataloader = DataLoader::new(reviews("eval.jsonl")?, BATCH_SIZE).collate(collate);
    let model = SequenceClassifier::new(&HfConfig::read(checkpoint)?, LEN)?;
    let optimizer = optim::adamw(&model).lr(LR);
    let num_training_steps = NUM_EPOCHS * train_dataloader.len()?;
    let lr_scheduler = lr_scheduler::linear(&optimizer, 0, num_training_steps as u64);

    let (train_dataloader, eval_dataloader, model, optimizer, lr_scheduler) =
        accelerator.prepare((train_dataloader, eval_dataloader, model, optimizer, lr_scheduler))?;
    accelerator.load_pretrained(&model, checkpoint)?;

    let mut outcome = Outcome::default();
    for epoch in 1..=NUM_EPOCHS {
        model.train();
        for batch in train_dataloader.iter()? {
            let batch = batch?;
            let outputs = model.forward(&batch)?;
            let loss = outputs.loss.ok_or_else(|| Error::Usage("a batch without labels".to_owned()))?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
            lr_scheduler.step();
            optimizer.zero_grad()?;
            outcome.losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
        }

        model.eval();
        let (mut said, mut right) = (Vec::new(), Vec::new());
        for batch in eval_dataloader.iter()? {
            let (inputs, targets) = batch?;
            let predictions = model.forward(&inputs)?.argmax(1)?;
            let (all_predictions, all_targets) = accelerator.gather_for_metrics(&(predictions, targets))?;
            said.extend(all_predictions.to_vec::<i32>()?);
            right.extend(all_targets.to_vec::<i32>()?);
        }
        let n_right = said.iter().zip(&right).filter(|(said, right)| said == right).count();
        let accuracy = n_right as f64 / right.len() as f64;
        accelerator.print(format_args!("epoch {epoch} of {NUM_EPOCHS}: accuracy {accuracy:.3}"));
        outcome.predictions.push(said);
        outcome.accuracy.push(accuracy);
    }
    Ok(outcome)
}

/// Reviews as ids `[B, S]` and labels `[B]`: bytes are tokens, short rows are filled up at their end.
fn collate(reviews: Vec<Review>, device: &Device) -> Result<(Tensor, Tensor)> {
    let len = reviews.iter().map(|review| review.text.len()).max().unwrap_or(0);
    let mut ids = Vec::new();
    for review in &reviews {
        ids.extend(review.text.bytes().map(|byte| i32::from(byte) + 1));
        ids.extend(std::iter::repeat_n(0, len - review.text.len()));
    }
    let labels: Vec<i32> = reviews.iter().map(|review| review.label).collect();
    let ids = Tensor::from_slice(&ids, [reviews.len(), len], device)?;
    Ok((ids, Tensor::from_slice(&labels, [reviews.len()], device)?))
}
