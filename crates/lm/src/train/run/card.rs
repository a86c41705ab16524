//! The model card of a run in its folder.

use oarlock_config::config::{Finetuning, Length, ModelSource, TrainConfig};
use oarlock_engine::disk::{Outputs, Writer};
use oarlock_engine::report::model_card::{FILE, ModelCard};
use oarlock_engine::{Error, Result};
use serde_json::Value;

use super::state::Run;
use crate::train::written::TRAINING;

impl Run<'_> {
    /// Writes the card beside the final model. A file of the name that no training run wrote stays, whatever else may be
    /// replaced.
    pub(super) fn write_card(&mut self) -> Result<()> {
        let n_ranks = self.accelerator.data_ranks().world_size();
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let text = card(self.config, n_ranks).markdown(&journal.state().log_history);
        let writer = Writer { by: TRAINING, overwrites: false };
        let written = Outputs::write(&self.config.save.output_dir, writer, &[(FILE, text.as_bytes())]);
        match written {
            Err(Error::Occupied(_)) => {
                journal.message(&format!("note: {FILE} stays as it is: it is not what a training run wrote"))
            }
            written => written,
        }
    }
}

/// What the settings say of the model.
fn card(config: &TrainConfig, n_ranks: usize) -> ModelCard {
    let (train, save) = (&config.train, &config.save);
    let method = match &train.finetuning {
        Finetuning::Full => "full",
        Finetuning::Freeze(_) => "freeze",
        Finetuning::Adapter(args) if args.config.lora().is_none() => "oft",
        Finetuning::Adapter(_) => "lora",
    };
    let is_adapter = matches!(train.finetuning, Finetuning::Adapter(_));
    let base = match &config.model.source {
        ModelSource::Folder(dir) if !config.model.from_scratch => Some(dir.display().to_string()),
        ModelSource::Folder(_) | ModelSource::Fields(_) => None,
    };
    // Those of transformers and of PEFT, under our own name.
    let mut tags: Vec<String> = ["oarlock", method].map(str::to_owned).into();
    if is_adapter {
        tags.splice(0..0, base.iter().map(|base| format!("base_model:adapter:{base}")));
    }
    tags.push(if is_adapter { "transformers" } else { "generated_from_trainer" }.to_owned());
    let name = save.output_dir.file_name().map(|name| name.to_string_lossy().into_owned());
    ModelCard {
        name: name.unwrap_or_else(|| "model".to_owned()),
        library: if is_adapter { "peft" } else { "transformers" },
        base,
        datasets: config.data.datasets.clone(),
        tags,
        hyperparameters: hyperparameters(config, n_ranks),
        program: format!("Oarlock {}", env!("CARGO_PKG_VERSION")),
    }
}

/// The settings that transformers lists, under its names.
fn hyperparameters(config: &TrainConfig, n_ranks: usize) -> Vec<(&'static str, String)> {
    let (train, eval) = (&config.train, &config.eval);
    let mut found = vec![
        ("learning_rate", train.schedule.learning_rate.to_string()),
        ("train_batch_size", train.batch_size.to_string()),
        ("eval_batch_size", eval.batch_size.to_string()),
        ("seed", train.seed.to_string()),
    ];
    if n_ranks > 1 {
        found.push(("distributed_type", "multi-rank".to_owned()));
        found.push(("num_devices", n_ranks.to_string()));
    }
    if train.accumulation > 1 {
        found.push(("gradient_accumulation_steps", train.accumulation.to_string()));
    }
    let total = train.batch_size.saturating_mul(n_ranks).saturating_mul(train.accumulation);
    if total != train.batch_size {
        found.push(("total_train_batch_size", total.to_string()));
    }
    if n_ranks > 1 {
        found.push(("total_eval_batch_size", eval.batch_size.saturating_mul(n_ranks).to_string()));
    }
    // As they were written; a program that fills in no words names the rule.
    let said = |key: &str| match config.description.values.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
        Some(value) => Some(match value.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}"),
            _ => value.to_string(),
        }),
    };
    let optimizer = said("optim").unwrap_or_else(|| train.optimizer.rule.name().to_owned());
    let arguments = said("optim_args").unwrap_or_else(|| "No additional optimizer arguments".to_owned());
    let betas = ["adam_beta1", "adam_beta2", "adam_epsilon"].map(said);
    found.push(("optimizer", match betas {
        [Some(first), Some(second), Some(epsilon)] if optimizer.contains("adam") => format!(
            "Use {optimizer} with betas=({first},{second}) and epsilon={epsilon} and optimizer_args={arguments}"
        ),
        _ => format!("Use {optimizer} and the args are: {arguments}"),
    }));
    found.extend(said("lr_scheduler_type").map(|kind| ("lr_scheduler_type", kind)));
    for (key, name) in
        [("warmup_ratio", "lr_scheduler_warmup_ratio"), ("warmup_steps", "lr_scheduler_warmup_steps")]
    {
        let said = said(key).filter(|text| text.parse::<f64>().is_ok_and(|number| number > 0.0));
        found.extend(said.map(|number| (name, number)));
    }
    found.push(match train.length {
        Length::Steps(steps) => ("training_steps", steps.to_string()),
        Length::Epochs(epochs) => ("num_epochs", format!("{epochs:?}")),
    });
    found.push(("precision", train.dtype.to_string()));
    found
}
