//! A trainer for one rank that became one for many: a process group, a model in DDP, a sampler that divides the data.
//!
//! `cargo run --example ddp_trainer -- TOTAL_EPOCHS SAVE_EVERY` trains in one rank for each core of the machine, and keeps
//! the model in the folder `out/ddp_trainer` after every SAVE_EVERY epochs.

use std::path::{Path, PathBuf};

use oarlock::dataloader::DataLoader;
use oarlock::dataloader::DistributedSampler;
use oarlock::distributed::{self, Backend, DistributedDataParallel as DDP, InitOptions, ReduceOp};
use oarlock::nn::Linear;
use oarlock::optim::{self, Optim};
use oarlock::{Error, Result, SaveModel, Tensor, nn};

/// A sample: 20 features and a target.
type Sample = ([f32; 20], [f32; 1]);

struct Trainer {
    model: DDP<Linear>,
    train_data: DataLoader<Sample>,
    rank: usize,
    save_every: u64,
    checkpoint: PathBuf,
    /// Of each step, the mean over all ranks.
    losses: Vec<f32>,
}

impl Trainer {
    fn run_batch(&self, source: &Tensor, targets: &Tensor) -> Result<f32> {
        let loss = nn::mse_loss(&self.model.forward(source)?, targets)?;
        self.model.backward(&loss)?;
        self.model.step()?;
        let mut loss = loss.detach();
        distributed::all_reduce(&mut loss, ReduceOp::Avg)?;
        Ok(loss.item::<f32>()?)
    }

    fn run_epoch(&mut self, epoch: u64) -> Result<()> {
        self.train_data.set_epoch(epoch);
        let first = self.losses.len();
        for batch in self.train_data.iter()? {
            let (source, targets) = batch?;
            let loss = self.run_batch(&source, &targets)?;
            self.losses.push(loss);
        }
        let steps = self.losses.len() - first;
        if self.rank == 0 {
            println!("Epoch {epoch} | Steps: {steps} | Loss: {:.6}", self.losses[first + steps - 1]);
        }
        Ok(())
    }

    /// All ranks come here: each writes the part of the model that is its own to update. It is in one file all the same.
    fn save_checkpoint(&self, epoch: u64) -> Result<()> {
        self.model.accelerator().save_model(&self.model, &self.checkpoint, &SaveModel::default())?;
        if self.rank == 0 {
            println!("Epoch {epoch} | Training checkpoint saved at {}", self.checkpoint.display());
        }
        Ok(())
    }

    fn train(&mut self, max_epochs: u64) -> Result<()> {
        for epoch in 0..max_epochs {
            self.run_epoch(epoch)?;
            if epoch % self.save_every == 0 {
                self.save_checkpoint(epoch)?;
            }
        }
        Ok(())
    }
}

/// What a training run is given.
pub struct Settings<'a> {
    /// How often the data is gone through.
    pub total_epochs: u64,
    /// Epochs from one save to the next.
    pub save_every: u64,
    /// Of each rank.
    pub batch_size: usize,
    /// The folder for the model.
    pub checkpoint: &'a Path,
    /// A file with the weights to begin with.
    pub weights: Option<&'a Path>,
}

fn load_train_objs() -> Result<(Vec<Sample>, Linear, Optim)> {
    let number = |i: usize| ((i * 37) % 101) as f32 / 50.0 - 1.0;
    let sample = |row: usize| {
        let features: [f32; 20] = std::array::from_fn(|i| number(row * 20 + i));
        let target = 0.5 * features[0] - 0.25 * features[5] + 0.1;
        (features, [target])
    };
    let train_set = (0..2048).map(sample).collect();
    let model = Linear::new(20, 1)?;
    let optimizer = optim::sgd(&model).lr(0.01);
    Ok((train_set, model, optimizer))
}

/// What each rank does; the loss of every step, the mean over all ranks.
pub fn train(rank: usize, world_size: usize, settings: &Settings) -> Result<Vec<f32>> {
    let options = InitOptions { rank: Some(rank), world_size: Some(world_size), ..InitOptions::default() };
    let group = distributed::init_process_group(Backend::Gloo, &options)?;
    let (train_set, model, optimizer) = load_train_objs()?;
    let model = DDP::new(model, optimizer, &group)?;
    if let Some(weights) = settings.weights {
        model.accelerator().load_model(&model, weights)?;
    }
    let sampler = DistributedSampler::new(train_set.len(), (rank, world_size));
    let train_data = DataLoader::new(train_set, settings.batch_size).sampler(sampler).device(model.device());
    let mut trainer = Trainer {
        model,
        train_data,
        rank,
        save_every: settings.save_every.max(1),
        checkpoint: settings.checkpoint.to_path_buf(),
        losses: Vec::new(),
    };
    trainer.train(settings.total_epochs)?;
    distributed::destroy_process_group()?;
    Ok(trainer.losses)
}

fn main() -> Result<()> {
    let usage = || Error::Usage("usage: ddp_trainer TOTAL_EPOCHS SAVE_EVERY".to_owned());
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>().map_err(|_| usage()));
    let total_epochs = arguments.next().ok_or_else(usage)??;
    let save_every = arguments.next().ok_or_else(usage)??;
    let checkpoint = Path::new("out/ddp_trainer");
    let settings = Settings { total_epochs, save_every, batch_size: 32, checkpoint, weights: None };
    let world_size = std::thread::available_parallelism().map_or(1, usize::from);
    distributed::spawn(world_size, |rank| train(rank, world_size, &settings))?;
    Ok(())
}
