//! Knowledge distillation: a small student learns from a text and from a larger teacher. The student is trained in ZeRO-2
//! with its optimizer in main memory; the teacher is sharded by ZeRO-3 and inference-only.
//!
//! `cargo run --example distillation -- [folder with student/ and teacher/]`, or on several ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/distillation`

use std::path::{Path, PathBuf};

use oarlock::dataloader::{DataLoader, json_lines};
use oarlock::model::{Decoder, HfConfig};
use oarlock::nn::{IGNORE_INDEX, KlReduction, KlTarget, Mask, cross_entropy, kl_div};
use oarlock::{
    Accelerator, AcceleratorConfig, DeepSpeedPlugin, Device, DummyOptim, DummyScheduler, ReduceOp, Result,
    Tensor,
};
use oarlock_engine::distributed::rank;

const LEN: usize = 32;
const BATCH_SIZE: usize = 8;
const NUM_EPOCHS: usize = 3;
const LR: f64 = 1e-2;
const WEIGHT_DECAY: f64 = 0.01;
const WARMUP_STEPS: u64 = 5;
/// The loss is (1 - ALPHA)·cross-entropy + ALPHA·TEMPERATURE²·KL(teacher ‖ student), the latter of the distributions that
/// logits divided by TEMPERATURE give. The square keeps the gradients of both parts alike in size.
const ALPHA: f32 = 0.5;
const TEMPERATURE: f32 = 2.0;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn main() -> Result<()> {
    let models = rank::without_local_rank(std::env::args_os().skip(1))
        .pop()
        .map_or_else(|| here("tests/golden/distillation"), PathBuf::from);
    let accelerator = Accelerator::new(&config()?)?;
    let losses = train(&accelerator, &models)?;
    let (n, first, last) = (losses.len(), losses[0], losses[losses.len() - 1]);
    accelerator.print(format_args!("{n} steps, loss {first:.4} at first, {last:.4} in the end"));
    Ok(())
}

/// How the ranks run: each batch is divided among them, whatever their number; the student's configuration is the first,
/// and so the active one.
pub fn config() -> Result<AcceleratorConfig> {
    let zero2_plugin = DeepSpeedPlugin::from_file(here("examples/distillation/student.json"))?;
    let zero3_plugin = DeepSpeedPlugin::from_file(here("examples/distillation/teacher.json"))?;
    let deepspeed_plugins = vec![("student".to_owned(), zero2_plugin), ("teacher".to_owned(), zero3_plugin)];
    let config = AcceleratorConfig { deepspeed_plugins, ..AcceleratorConfig::default() };
    Ok(config.split_batches(true))
}

/// Distils the teacher of a folder into its student; the loss of every step, the mean over all ranks.
pub fn train(accelerator: &Accelerator, models: &Path) -> Result<Vec<f32>> {
    let train_dataloader = DataLoader::new(rows()?, BATCH_SIZE).collate(collate);
    let num_training_steps = (NUM_EPOCHS * train_dataloader.len()?) as u64;

    let (active_plugin, _) = accelerator.get_active_deepspeed_plugin()?;
    accelerator.print(format_args!("{num_training_steps} steps, first the {active_plugin}"));
    // Decoders of folders as transformers writes them; their weights come when they are prepared.
    let model = |name| Decoder::new(HfConfig::read(&models.join(name))?.decoder().clone(), LEN);
    let student_model = model("student")?;
    let optimizer = DummyOptim::new(&student_model).lr(LR).weight_decay(WEIGHT_DECAY);
    let scheduler = DummyScheduler::new(&optimizer, num_training_steps, WARMUP_STEPS);
    let (student_model, optimizer, scheduler, train_dataloader) =
        accelerator.prepare((student_model, optimizer, scheduler, train_dataloader))?;
    accelerator.load_pretrained(&student_model, models.join("student"))?;

    accelerator.select_deepspeed_plugin("teacher")?;
    let teacher_model = accelerator.prepare(model("teacher")?)?;
    accelerator.load_pretrained(&teacher_model, models.join("teacher"))?;

    teacher_model.eval();
    student_model.train();
    let mut losses = Vec::new();
    for _epoch in 0..NUM_EPOCHS {
        for batch in train_dataloader.iter()? {
            let (ids, labels) = batch?;
            let taught = teacher_model.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
            let logits = student_model.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
            let loss = loss(&logits, &taught, &labels)?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
            scheduler.step();
            optimizer.zero_grad()?;
            losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item::<f32>()?);
        }
    }
    Ok(losses)
}

/// logits and taught `[B, S, V]`, labels `[B, S]` → what the student is to make small.
pub fn loss(logits: &Tensor, taught: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let hard = cross_entropy(logits, labels)?;
    let said = logits.flatten(0, 1)?.scale(1.0 / TEMPERATURE)?.log_softmax(-1)?;
    let taught = taught.flatten(0, 1)?.scale(1.0 / TEMPERATURE)?.softmax(-1)?;
    let soft = kl_div(&said, &taught, KlTarget::Probs, KlReduction::BatchMean)?;
    Ok(hard.scale(1.0 - ALPHA)?.add(&soft.scale(ALPHA * TEMPERATURE * TEMPERATURE)?)?)
}

/// The texts one after the other, 0 after each, bytes from 1 on, in rows of `LEN`; as many as fill batches.
fn rows() -> Result<Vec<Vec<i32>>> {
    let mut ids = Vec::new();
    for review in json_lines::<serde_json::Value>(here("examples/reviews/train.jsonl"))? {
        ids.extend(review["text"].as_str().unwrap_or_default().bytes().map(|byte| i32::from(byte) + 1));
        ids.push(0);
    }
    let n_rows = ids.len() / LEN / BATCH_SIZE * BATCH_SIZE;
    Ok(ids.chunks(LEN).take(n_rows).map(<[i32]>::to_vec).collect())
}

/// Rows as ids `[B, S]` and labels `[B, S]`: at each position the token that follows.
fn collate(rows: Vec<Vec<i32>>, device: &Device) -> Result<(Tensor, Tensor)> {
    let shape = [rows.len(), LEN];
    let labels: Vec<i32> =
        rows.iter().flat_map(|row| row[1..].iter().copied().chain([IGNORE_INDEX])).collect();
    Ok((Tensor::from_slice(&rows.concat(), shape, device)?, Tensor::from_slice(&labels, shape, device)?))
}
