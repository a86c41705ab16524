//! What is wrong with a configuration beyond its own text: its model, weights, adapters, tokenizer, template, data sets and
//! device. It is found before anything is started; what only the rows themselves show, the ranks find.

use oarlock_config::config::{ModelSource, Resume, TrainConfig};
use oarlock_engine::{Error, Result, checkpoint};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{CudaLibraries, Device, DeviceKind, GpuSurvey, Par};

use crate::data::{Source, Tokenizer};
use crate::model::hf::HfConfig;
use crate::train::best;
use crate::train::data::{added_tokens, chat, check_vocab_size, source, template_texts};
use crate::train::model::{Start, settings};
use crate::train::objective::{self, ObjectiveContext};
use crate::train::obstacles::resumes;
use crate::train::resume::none_to_resume;

/// Something that a run would end with.
#[derive(Debug)]
pub struct Fault {
    /// The keys that may lead to it; one that the message names, or of which it quotes the value, does.
    pub keys: Vec<&'static str>,
    /// What it is and what to do.
    pub message: String,
}

/// What makes a model of its folder, and what of it is trained.
const OF_MODEL: [&str; 17] = [
    "adapter_name_or_path",
    "ref_model",
    "ref_model_adapters",
    "reward_model",
    "lora_target",
    "additional_target",
    "oft_target",
    "pissa_init",
    "quantization_bit",
    "freeze_trainable_layers",
    "freeze_trainable_modules",
    "freeze_extra_modules",
    "cutoff_len",
    "max_new_tokens",
    "finetuning_type",
    "sequence_parallel_size",
    "deepspeed",
];

/// Everything that the ranks of this configuration would end with before their first step, as far as it can be known here.
pub fn preflight(config: &TrainConfig) -> Vec<Fault> {
    let mut faults = Faults::default();
    let model = match config.model.source {
        ModelSource::Folder(_) => "model_name_or_path",
        ModelSource::Fields(_) => "model_config",
    };
    faults.note(&["device"], device(config.ranks.device));
    faults.note(&["cpu_path"], cpu_path(config.ranks.cpu_path.as_deref()));
    faults.note(&["resume_from_checkpoint"], resume(config));
    faults.note(&["metric_for_best_model"], metric(config));
    for (key, datasets) in [("dataset", &config.data.datasets), ("eval_dataset", &config.data.eval_datasets)]
    {
        let is_tokenized = config.data.tokenized.as_ref().is_some_and(|dir| dir.exists());
        if !datasets.is_empty() && !is_tokenized {
            faults.note(&[key, "stage"], source(config, datasets).map(|_: Source| ()));
        }
    }
    let Some(hf) = faults.note(&[model], settings(&config.model)) else { return faults.0 };
    let of_model: Vec<&'static str> = std::iter::once(model).chain(OF_MODEL).collect();
    faults.note(&of_model, start(config, &hf));
    let of_tokens =
        [if model == "model_config" { "tokenizer_path" } else { model }, "template", "tool_format"];
    faults.note(&of_tokens, tokens(config, &hf));
    faults.0
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn note<T>(&mut self, keys: &[&'static str], result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let (keys, message) = match error {
            Error::Setting { key, cause } => (vec![key], cause),
            error => (keys.to_vec(), error.to_string()),
        };
        // One fault may be in the way of two things.
        if !self.0.iter().any(|known| known.message == message) {
            self.0.push(Fault { keys, message });
        }
        None
    }
}

fn device(kind: DeviceKind) -> Result<()> {
    if !matches!(kind, DeviceKind::Cuda(_)) {
        return Ok(());
    }
    let survey = GpuSurvey::of(&CudaLibraries::from_environment());
    let asked = |error: &dyn std::fmt::Display| Error::Usage(error.to_string());
    survey.driver.map_err(|error| asked(&error))?;
    match survey.gpus.map_err(|error| asked(&error))?.is_empty() {
        true => Err(Error::Usage("there is no GPU that this process sees; write `device: cpu`".to_owned())),
        false => Ok(()),
    }
}

fn cpu_path(name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let path = name.parse().map_err(Error::Usage)?;
    Isa::force(path).map(|_| ()).ok_or_else(|| {
        let found: Vec<_> = Isa::available().into_iter().map(|isa| isa.path().to_string()).collect();
        Error::Usage(format!("this CPU cannot run the path {name}; it can run {}", found.join(", ")))
    })
}

fn resume(config: &TrainConfig) -> Result<()> {
    if config.save.resume != Resume::Newest || checkpoint::newest(&config.save.output_dir)?.path.is_some() {
        return Ok(());
    }
    Err(none_to_resume(config))
}

fn metric(config: &TrainConfig) -> Result<()> {
    let Some(args) = &config.save.best else { return Ok(()) };
    let metrics = best::metrics(&*objective::of(&config.train, ObjectiveContext::default()));
    let held_out = config.data.val_size.iter().map(|_| None);
    let each = config.data.eval_datasets.iter().map(|name| Some(name.as_str()));
    let evals: Vec<Option<&str>> = match config.data.eval_each {
        true => held_out.chain(each).collect(),
        false => held_out.chain(each.map(|_| None)).take(1).collect(),
    };
    best::check_metric(&args.metric, &evals, &metrics)
}

/// What the run makes of its model: adapters, frozen layers, quantized weights, a second model, and the files of all of them.
fn start(config: &TrainConfig, hf: &HfConfig) -> Result<()> {
    let start = Start::new(config, hf)?;
    start.decoder(config, hf)?.check_sequence_parallel(config.ranks.sequence_parallel)?;
    let device = Device::dry(Isa::detect(), Par::threads(1)?);
    start.second(config, hf, &device)?;
    start.weights(config, hf, resumes(config)?, &device)?;
    Ok(())
}

fn tokens(config: &TrainConfig, hf: &HfConfig) -> Result<()> {
    let tokenizer = Tokenizer::open_with(&config.model.tokenizer, &config.model.new_tokens)?;
    let vocab_size = hf.decoder().vocab_size;
    check_vocab_size(tokenizer.vocab_size()?, config, vocab_size)?;
    added_tokens(&tokenizer, config, vocab_size)?;
    let chat = chat(config, &tokenizer)?;
    chat.iter().try_for_each(|chat| chat.end_token(&tokenizer).map(|_| ()))?;
    template_texts(config, hf, &tokenizer, chat.as_ref())?;
    Ok(())
}
