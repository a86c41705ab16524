//! The model of a run as a configuration names it: its settings, what is trained of it, and where its first weights come
//! from.

use std::path::PathBuf;

use oarlock_tensor::{Device, Param};

use crate::adapters::{Adaptation, AdaptedSource, Adapter, adapt, freeze};
use crate::config::{Finetuning, ModelArgs, ModelSource, TrainConfig};
use crate::data::Tokenizer;
use crate::error::Result;
use crate::model::Decoder;
use crate::model::hf::{HfConfig, SafetensorsSource, SpecialTokens};
use crate::nn::{NamedParam, names_of, parameters};
use crate::report::speed::flops_per_token_of;
use crate::shard::{SeededInit, WeightSource};
use crate::train::data::RunData;

/// The settings of the model. Those that stand in the configuration itself take the tokens with a meaning from the
/// tokenizer.
///
/// # Errors
/// What is wrong with the folder, the settings or the tokenizer.
pub fn settings(args: &ModelArgs) -> Result<HfConfig> {
    match &args.source {
        ModelSource::Folder(dir) => HfConfig::read(dir),
        ModelSource::Fields(fields) => {
            let ids = Tokenizer::open(&args.tokenizer)?.special();
            let special = SpecialTokens { bos: ids.bos, eos: ids.eos.into_iter().collect(), pad: ids.pad };
            HfConfig::from_fields("model_config", fields, special)
        }
    }
}

/// What a run makes of its model before the first step: adapters, frozen layers.
pub struct Start {
    /// Adapters that are merged into the base, in order.
    merged: Vec<Adapter>,
    /// The adapter that is continued.
    trained: Option<Adapter>,
    /// The adapter that is trained.
    pub adaptation: Option<Adaptation>,
}

impl Start {
    /// What a configuration asks for. Reads the adapters that it names.
    ///
    /// # Errors
    /// What is wrong with them, or names that the model does not have.
    pub fn new(config: &TrainConfig, hf: &HfConfig) -> Result<Start> {
        let mut start = Start { merged: Vec::new(), trained: None, adaptation: None };
        let Finetuning::Lora(args) = &config.train.finetuning else { return Ok(start) };
        let mut plain = plain(config, hf)?;
        let open = |dir: &PathBuf| Adapter::open(dir, hf, &mut plain);
        start.merged = args.adapters.iter().map(open).collect::<Result<_>>()?;
        if !config.train.enabled {
            return Ok(start);
        }
        start.trained = start.merged.pop_if(|_| !args.create_new);
        start.adaptation = Some(match &start.trained {
            Some(adapter) => Adaptation::of(adapter),
            None => Adaptation::new(&mut plain, hf, &args.config)?,
        });
        Ok(start)
    }

    /// The model, not prepared yet.
    ///
    /// # Errors
    /// A method that does not fit the model.
    pub fn decoder(&self, config: &TrainConfig, hf: &HfConfig) -> Result<Decoder> {
        let mut decoder = plain(config, hf)?;
        if let Finetuning::Freeze(args) = &config.train.finetuning {
            freeze(&decoder, args)?;
        }
        if let Some(adaptation) = &self.adaptation {
            adapt(&mut decoder, adaptation)?;
        }
        Ok(decoder)
    }

    /// The weights that a run begins with; those of a checkpoint replace what is trained.
    ///
    /// # Errors
    /// What is wrong with the weights of the folder.
    pub fn weights(
        self,
        config: &TrainConfig,
        hf: &HfConfig,
        resumes: bool,
        device: &Device,
    ) -> Result<Box<dyn WeightSource>> {
        let (plain, seed) = (plain(config, hf)?, config.train.seed);
        // A checkpoint with adapters has no base.
        let resumes = resumes && self.adaptation.is_none();
        let base: Box<dyn WeightSource> = match &config.model.source {
            ModelSource::Folder(dir) if !config.model.from_scratch && !resumes => {
                Box::new(SafetensorsSource::open(dir, hf, &plain)?)
            }
            _ => Box::new(SeededInit::new(seed, device)),
        };
        if self.adaptation.is_none() && self.merged.is_empty() {
            return Ok(base);
        }
        let source = AdaptedSource::new(base, &plain, seed, device);
        Ok(Box::new(source.merging(self.merged).continuing(self.trained)))
    }
}

/// The longest sequence of a run: a row, or a prompt with its answer.
pub fn positions(config: &TrainConfig, hf: &HfConfig) -> usize {
    let len = config.data.cutoff_len;
    match &config.predict {
        Some(args) => len.max(len.saturating_add(args.max_new_tokens).min(hf.decoder().max_positions)),
        None => len,
    }
}

/// The model as its settings describe it.
fn plain(config: &TrainConfig, hf: &HfConfig) -> Result<Decoder> {
    let n_positions = positions(config, hf);
    Decoder::for_rows(hf.decoder().clone(), n_positions, RunData::longest_row(config).max(n_positions))
}

/// The parameters of a model that are trained, and all of them, as elements.
pub fn sizes(model: &Decoder) -> (usize, usize) {
    let params = parameters(model);
    let count = |keep: &dyn Fn(&NamedParam) -> bool| {
        params.iter().filter(|named| keep(named)).map(|named| named.param.shape().n_elems()).sum()
    };
    (count(&|named| !named.param.is_frozen()), count(&|_| true))
}

/// The operations of forward and backward for one token.
pub fn flops(model: &Decoder, attention_width: u64) -> f64 {
    let names = names_of(model);
    let first = names.iter().position(|named| !named.param.is_frozen()).unwrap_or(names.len());
    // A tied embedding is used last as the output weights.
    let last_use = |param: &Param| names.iter().rposition(|named| named.param.id() == param.id());
    let of = |named: NamedParam| {
        let param = named.param;
        (param.shape().n_elems() as u64, !param.is_frozen(), last_use(&param) > Some(first))
    };
    flops_per_token_of(parameters(model).into_iter().map(of), attention_width)
}

/// Where somebody would change the number of tokens that the model knows.
pub fn place_of_vocab_size(args: &ModelArgs) -> String {
    match &args.source {
        ModelSource::Folder(dir) => dir.join("config.json").display().to_string(),
        ModelSource::Fields(_) => "model_config".to_owned(),
    }
}
