//! The model of a run as a configuration names it: its settings, what is trained of it, and where its first weights come
//! from.

use std::path::{Path, PathBuf};

use oarlock_config::config::{
    Finetuning, LoraInit, ModelArgs, ModelSource, ObjectiveArgs, Predict, Resume, TrainConfig,
};
use oarlock_engine::checkpoint::weights::{
    QuantizedLayers, QuantizedWeights, SafetensorsSource, StoredQuantization,
};
use oarlock_engine::nn::{self, NamedParam, names_of, parameters};
use oarlock_engine::report::speed::flops_per_token_of;
use oarlock_engine::shard::{SeededInit, WeightSource};
use oarlock_engine::{Error, Result};
use oarlock_tensor::{Device, Param};

use crate::adapters::{
    Adaptation, AdaptedSource, Adapter, adapt, adapt_quantized, assemble, convert_pissa, freeze,
};
use crate::data::Tokenizer;
use crate::model::hf::{HfConfig, SpecialTokens, open_weights};
use crate::model::{Decoder, ValueHeadSource, value_head_folder};
use crate::train::blocks;
use crate::train::data::RunData;
use crate::train::new_tokens;
use crate::train::written::writer;

/// The settings of the model. Those that stand in the configuration itself take the tokens with a meaning from the
/// tokenizer.
///
/// # Errors
/// What is wrong with the folder, the settings or the tokenizer.
pub fn settings(args: &ModelArgs) -> Result<HfConfig> {
    let hf = match &args.source {
        // Of a folder whose weights nobody reads, the settings alone have the word.
        ModelSource::Folder(dir) if args.from_scratch => HfConfig::read(&dir.join("config.json")),
        ModelSource::Folder(dir) => HfConfig::read(dir),
        ModelSource::Fields(fields) => {
            let ids = Tokenizer::open(&args.tokenizer)?.special();
            let special = SpecialTokens { bos: ids.bos, eos: ids.eos.into_iter().collect(), pad: ids.pad };
            HfConfig::from_fields("model_config", fields, special)
        }
    }?;
    let hf = match &args.sparse_attention {
        Some(sparsity) => hf.with_sparse_attention(sparsity.clone()),
        None => hf,
    };
    let hf = match args.rope_scaling {
        Some(scaling) => hf.with_rope_scaling(scaling)?,
        None => hf,
    };
    new_tokens::with_room(hf, args)
}

/// The elements of a head in each layer of a configuration's model.
///
/// # Errors
/// What is wrong with the model's settings.
pub fn head_dims(config: &TrainConfig) -> Result<Vec<usize>> {
    let hf = settings(&config.model)?;
    Ok(hf.decoder().layers.iter().map(|layer| layer.attention.head_dim).collect())
}

/// What a run makes of its model before the first step: adapters, frozen layers, quantized weights.
pub struct Start {
    /// Adapters that are merged into the base, in order.
    merged: Vec<Adapter>,
    /// The adapter that is continued.
    trained: Option<Adapter>,
    /// The adapter that stays beside the model: the one that is trained, or the one of a quantized base.
    pub adaptation: Option<Adaptation>,
    /// The layers with quantized weights.
    quantized: Option<QuantizedLayers>,
    /// Whether the files hold them so.
    is_stored: bool,
    /// What the log says about quantized weights.
    pub messages: Vec<String>,
    /// Where the model is that the loss compares it with.
    pub reference: ReferenceModel,
}

/// The frozen model that a loss compares the trained one with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceModel {
    /// None.
    Absent,
    /// The same weights without the adapter that is trained, or with a frozen copy of it.
    SameWeights,
    /// A second model.
    Second,
}

/// The dropout before the value head of a reward model where config.json names none, as in TRL.
const VALUE_HEAD_DROPOUT: f32 = 0.1;

impl Start {
    /// What a configuration asks for. Reads the adapters that it names.
    ///
    /// # Errors
    /// What is wrong with them, or names that the model does not have.
    pub fn new(config: &TrainConfig, hf: &HfConfig) -> Result<Start> {
        let objective = &config.train.objective;
        let mut plain = plain(config, hf)?;
        let merged = match &config.train.finetuning {
            Finetuning::Adapter(args) => args
                .adapters
                .iter()
                .map(|dir| Adapter::open(dir, hf, &mut plain))
                .collect::<Result<Vec<_>>>()?,
            _ => Vec::new(),
        };
        let mut start = Start::quantized(config, hf, &plain, merged.last())?;
        start.merged = merged;
        let second = objective.reference().and_then(|args| args.model.as_deref());
        let of_second = second.and_then(|dir| HfConfig::read(dir).ok());
        let notes = hf.notes().iter().chain(of_second.iter().flat_map(HfConfig::notes));
        start.messages.splice(0..0, notes.cloned());
        start.messages.extend(longer_than_known(config, hf));
        let scores = *objective == ObjectiveArgs::Rewards;
        if scores && config.train.enabled && value_head_folder(value_head_dirs(config))?.is_none() {
            start.messages.push("the value head begins with random values: no folder has one".to_owned());
        }
        let is_left = |dir: &&Path| !scores && dir.join("value_head.safetensors").is_file();
        let left = value_head_dirs(config).find(is_left).map(Path::display);
        let left = left.map(|dir| format!("the value head of {dir} is not read: stage rm trains one"));
        start.messages.extend(left);
        if objective.reference().is_some() {
            start.reference = ReferenceModel::Second;
        }
        let Finetuning::Adapter(args) = &config.train.finetuning else { return Ok(start) };
        let is_quantized = start.quantized.is_some();
        if is_quantized && (start.merged.len() > 1 || args.create_new && !start.merged.is_empty()) {
            return Err(Error::Model(
                "a quantized model takes one adapter, which is continued: nothing can be merged into quantized weights; \
                 merge the adapters into the unquantized model first (`oarlock export`)"
                    .to_owned(),
            ));
        }
        if !config.train.enabled && !is_quantized {
            return Ok(start);
        }
        start.trained = start.merged.pop_if(|_| !args.create_new);
        let adaptation = match &start.trained {
            Some(adapter) => Some(Adaptation::of(adapter)),
            None if config.train.enabled => {
                let mut new = args.config.clone();
                if hf.has_grown() && new.modules_to_save.is_empty() {
                    new.modules_to_save = new_tokens::MODULES.map(str::to_owned).into();
                    start.messages.push(format!(
                        "the vocabulary has been resized: {} are trained as a whole beside the adapter",
                        new_tokens::MODULES.join(" and ")
                    ));
                }
                Some(Adaptation::new(&mut plain, hf, &new)?)
            }
            None => None,
        };
        let lora = adaptation.as_ref().and_then(|of| of.config.lora());
        if let Some(LoraInit::Pissa { iterations }) = lora.map(|lora| lora.init) {
            if is_quantized {
                return Err(Error::Model(
                    "an adapter of PiSSA begins with singular vectors of the weights, which the weights then lack, and those \
                     of a quantized model stay as they are; take the unquantized model, or an ordinary adapter"
                        .to_owned(),
                ));
            }
            start.messages.push(match iterations {
                None => "Using PiSSA initialization.".to_owned(),
                Some(n) => format!("Using PiSSA initialization with FSVD steps {n}."),
            });
        }
        start.adaptation = adaptation.map(|mut adaptation| {
            // Of modules that are trained as a whole nothing is left to compare with.
            if objective.reference().is_some_and(|args| args.model.is_none()) && adaptation.whole.is_empty() {
                start.reference = ReferenceModel::SameWeights;
                // Without its adapter a base of PiSSA is not what the run begins with.
                adaptation.with_reference = start.trained.is_some() || adaptation.config.is_pissa();
            }
            if objective.is_without_dropout() {
                adaptation.config = adaptation.config.without_dropout();
            }
            adaptation
        });
        Ok(start)
    }

    /// A start without adapters: which weights are quantized, by the files or as the configuration asks for. Of the adapters
    /// the run may continue the `last` one.
    fn quantized(
        config: &TrainConfig,
        hf: &HfConfig,
        plain: &Decoder,
        last: Option<&Adapter>,
    ) -> Result<Start> {
        let (mut quantized, mut messages) = (config.model.quantization.map(QuantizedLayers::All), Vec::new());
        let dtype = config.train.dtype;
        let others = format!("embedding, norms and output weights are in {dtype}");
        if let Some(format) = config.model.quantization {
            messages.push(format!(
                "the weights of the linear layers have {} bits ({format}); {others}",
                format.bits()
            ));
        }
        let stored = match &config.model.source {
            ModelSource::Folder(dir) if !config.model.from_scratch => {
                hf.quantization().map(|kind| (kind, dir))
            }
            _ => None,
        };
        let mut start = Start {
            merged: Vec::new(),
            trained: None,
            adaptation: None,
            reference: ReferenceModel::Absent,
            quantized: None,
            is_stored: false,
            messages: Vec::new(),
        };
        let Some((kind, dir)) = stored else {
            let is_new = matches!(&config.train.finetuning, Finetuning::Adapter(args) if args.create_new);
            let continues_pissa = last.is_some_and(|adapter| !is_new && adapter.config().is_pissa());
            if let Some((layers, message)) = blocks::kept(config, hf, continues_pissa)? {
                start.is_stored = layers.is_some();
                quantized = layers.or(quantized);
                messages.push(message);
            }
            return Ok(Start { quantized, messages, ..start });
        };
        if config.train.enabled && !matches!(config.train.finetuning, Finetuning::Adapter(_)) {
            return Err(Error::Model(format!(
                "the weights of this model are quantized ({}), and quantized weights can only be trained through adapters; \
                 write `finetuning_type: lora`, or take the original model",
                kind.name()
            )));
        }
        messages.clear();
        if quantized.is_some() {
            messages.push(
                "`quantization_bit` changes nothing: the weights of this model are quantized already"
                    .to_owned(),
            );
        }
        let is_stored = kind.is_kept();
        quantized = match is_stored {
            true => Some(SafetensorsSource::open(dir, hf, plain)?.quantized_layers()),
            false => None,
        };
        messages.push(match is_stored {
            true => format!(
                "the weights of the linear layers stay as the files hold them, {}; {others}",
                kind.name()
            ),
            false => format!("the weights are quantized ({}), and are dequantized to {dtype}", kind.name()),
        });
        Ok(Start { quantized, is_stored, messages, ..start })
    }

    /// The model, not prepared yet.
    ///
    /// # Errors
    /// A method that does not fit the model.
    pub fn decoder(&self, config: &TrainConfig, hf: &HfConfig) -> Result<Decoder> {
        Ok(self.build(config, hf)?.0)
    }

    /// The model, and those of its weights that are quantized.
    fn build(&self, config: &TrainConfig, hf: &HfConfig) -> Result<(Decoder, QuantizedWeights)> {
        let (mut decoder, dtype) = (plain(config, hf)?, config.train.dtype);
        if let Finetuning::Freeze(args) = &config.train.finetuning {
            freeze(&decoder, args)?;
        }
        let weights = match (&self.adaptation, &self.quantized) {
            (Some(adaptation), Some(layers)) => adapt_quantized(&mut decoder, adaptation, layers, dtype)?,
            (Some(adaptation), None) => {
                adapt(&mut decoder, adaptation)?;
                QuantizedWeights::default()
            }
            (None, Some(layers)) => decoder.quantize(layers.clone(), dtype)?,
            (None, None) => QuantizedWeights::default(),
        };
        if config.train.objective == ObjectiveArgs::Rewards {
            decoder.add_value_head(hf.value_head_dropout().unwrap_or(VALUE_HEAD_DROPOUT))?;
        }
        // Nothing is trained, so no gradients and no states are kept; but a checkpoint holds what was trained.
        if !config.train.enabled && !matches!(config.save.resume, Resume::Newest | Resume::From(_)) {
            nn::freeze(&decoder);
        }
        Ok((decoder, weights))
    }

    /// The second model that the loss compares the trained one with, and its weights: what the run begins with, or a model
    /// of its own.
    ///
    /// # Errors
    /// What is wrong with its folder or its adapters, and another vocabulary.
    pub fn second(
        &self,
        config: &TrainConfig,
        hf: &HfConfig,
        device: &Device,
    ) -> Result<Option<(Decoder, Box<dyn WeightSource>)>> {
        let Some(args) =
            config.train.objective.reference().filter(|_| self.reference == ReferenceModel::Second)
        else {
            return Ok(None);
        };
        let (objective, seed) = (&config.train.objective, config.train.seed);
        let key = objective.reference_key();
        let (mut decoder, base, merged) = match &args.model {
            Some(dir) => {
                let own = HfConfig::read(dir)?;
                if own.decoder().vocab_size != hf.decoder().vocab_size {
                    return Err(Error::Model(format!(
                        "{key}: {} has a vocabulary of {} tokens, the model that is trained one of {}; they must be those \
                         of one tokenizer",
                        dir.display(),
                        own.decoder().vocab_size,
                        hf.decoder().vocab_size
                    )));
                }
                let is_kept = own.quantization().is_some_and(StoredQuantization::is_kept);
                if is_kept || args.quantization.is_some() {
                    if args.adapters.len() > 1 {
                        return Err(Error::Model(
                            "ref_model_adapters: a quantized model takes a single adapter".to_owned(),
                        ));
                    }
                    let new = || plain(config, &own);
                    let (format, dtype) = (args.quantization, config.train.dtype);
                    let (decoder, source) = assemble(dir, &own, &new, &args.adapters, format, device, dtype)?;
                    nn::freeze(&decoder);
                    return Ok(Some((decoder, Box::new(source))));
                }
                let mut decoder = plain(config, &own)?;
                let open = |dir: &PathBuf| Adapter::open(dir, &own, &mut decoder);
                let merged: Vec<Adapter> = args.adapters.iter().map(open).collect::<Result<_>>()?;
                let base: Box<dyn WeightSource> = Box::new(SafetensorsSource::open(dir, &own, &decoder)?);
                (decoder, base, merged)
            }
            None => {
                let merged = self.merged.iter().chain(&self.trained).cloned().collect();
                (plain(config, hf)?, base(config, hf, false, device)?, merged)
            }
        };
        let source = AdaptedSource::new(base, &decoder, seed, device).merging(merged);
        let mut source: Box<dyn WeightSource> = Box::new(source);
        if let (Some(dir), true) = (&args.model, objective.scores_with_reference()) {
            if value_head_folder(std::iter::once(dir.as_path()))?.is_none() {
                return Err(Error::Model(format!(
                    "{key}: {} has no value head (value_head.safetensors), so it cannot score answers; name the folder of \
                     a reward model (stage rm writes one)",
                    dir.display()
                )));
            }
            decoder.add_value_head(0.0)?;
            let size = (decoder.config().hidden_size, seed);
            source = Box::new(ValueHeadSource::new(source, Some(dir), size, device)?);
        }
        nn::freeze(&decoder);
        Ok(Some((decoder, source)))
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
        let seed = config.train.seed;
        // A checkpoint with adapters, or beside a second model, has no frozen parameters.
        let is_whole = self.adaptation.is_none() && self.reference != ReferenceModel::Second;
        let mut base = base(config, hf, resumes && is_whole, device)?;
        if self.quantized.is_some() && !self.is_stored {
            let (_, quantized) = self.build(config, hf)?;
            base = Box::new(quantized.source(base, device));
        }
        let source: Box<dyn WeightSource> = match self.adaptation.is_none() && self.merged.is_empty() {
            true => base,
            false => {
                let mut source = AdaptedSource::new(base, &plain(config, hf)?, seed, device);
                if let Some(adaptation) = &self.adaptation {
                    source = source.beside(adaptation);
                }
                Box::new(source.merging(self.merged).continuing(self.trained))
            }
        };
        if config.train.objective != ObjectiveArgs::Rewards {
            return Ok(source);
        }
        let hidden_size = hf.decoder().hidden_size;
        let dir = value_head_folder(value_head_dirs(config))?;
        if dir.is_none() && !config.train.enabled && !resumes {
            let searched: Vec<String> =
                value_head_dirs(config).map(|dir| dir.display().to_string()).collect();
            return Err(Error::Model(format!(
                "nothing has a value head, so there is nothing to score answers with: {} lacks value_head.safetensors; name \
                 the folder of a reward model (stage rm writes one)",
                searched.join(", ")
            )));
        }
        let head = ValueHeadSource::new(source, dir, (hidden_size, seed), device)?;
        Ok(Box::new(head))
    }
}

/// Writes the adapter of PiSSA in `dir` as one of the base as it was.
///
/// # Errors
/// What is wrong with the folder or the weights of the base, or goes wrong while writing.
pub fn convert(config: &TrainConfig, hf: &HfConfig, dir: &Path, out: &Path, device: &Device) -> Result<()> {
    let mut model = plain(config, hf)?;
    let adapter = Adapter::open(dir, hf, &mut model)?;
    let start = Start { trained: None, ..Start::new(config, hf)? };
    let mut first = start.weights(config, hf, false, device)?;
    let base = base_name(config);
    let beside = (base.as_str(), Some(config.model.tokenizer.as_path()));
    convert_pissa(hf, &model, &adapter, &mut *first, beside, writer(config), out)
}

/// What an adapter calls its base.
pub fn base_name(config: &TrainConfig) -> String {
    match &config.model.source {
        ModelSource::Folder(dir) => dir.display().to_string(),
        ModelSource::Fields(_) => String::new(),
    }
}

/// The weights of the base: those of the folder, or new ones; new ones, too, where a checkpoint replaces them.
fn base(
    config: &TrainConfig,
    hf: &HfConfig,
    resumes: bool,
    device: &Device,
) -> Result<Box<dyn WeightSource>> {
    Ok(match &config.model.source {
        ModelSource::Folder(dir) if !config.model.from_scratch && !resumes => {
            open_weights(dir, hf, &new_tokens::rows(config)?, device)?
        }
        _ => Box::new(SeededInit::new(config.train.seed, device)),
    })
}

/// The folders whose value head is trained further: the adapters, the last one first, then the model.
fn value_head_dirs(config: &TrainConfig) -> impl Iterator<Item = &Path> {
    let adapters: &[PathBuf] = match &config.train.finetuning {
        Finetuning::Adapter(args) => &args.adapters,
        _ => &[],
    };
    let model = match &config.model.source {
        ModelSource::Folder(dir) if !config.model.from_scratch => Some(dir),
        ModelSource::Folder(_) | ModelSource::Fields(_) => None,
    };
    adapters.iter().rev().chain(model).map(PathBuf::as_path)
}

/// The longest sequence of a run: a row, or a prompt with its answer.
pub fn positions(config: &TrainConfig, hf: &HfConfig) -> usize {
    let len = config.data.cutoff_len;
    match &config.predict {
        Some(Predict::Answers(args)) => {
            len.max(hf.decoder().positions(len.saturating_add(args.max_new_tokens)))
        }
        Some(Predict::Scores) | None => len,
    }
}

/// A warning where rows may be longer than what the model was made for.
fn longer_than_known(config: &TrainConfig, hf: &HfConfig) -> Option<String> {
    let (len, decoder) = (config.data.cutoff_len, hf.decoder());
    (decoder.positions(len) < len).then(|| {
        format!(
            "note: cutoff_len is {len}, and the model was made for sequences of {} (max_position_embeddings): longer ones are \
             trained at positions that it has not seen, as in transformers; rope_scaling changes the model for them",
            decoder.max_positions
        )
    })
}

/// The model as its settings describe it.
fn plain(config: &TrainConfig, hf: &HfConfig) -> Result<Decoder> {
    let n_positions = positions(config, hf);
    Decoder::for_rows(hf.decoder().clone(), n_positions, RunData::longest_row(config).max(n_positions))
}

/// The parameters of a model that are trained, and all of them, each weight counted once whatever its bits.
pub fn sizes(model: &Decoder) -> (usize, usize) {
    let params = parameters(model);
    let count = |keep: &dyn Fn(&NamedParam) -> bool| {
        params.iter().filter(|named| keep(named)).map(|named| named.param.n_weights()).sum()
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
        (param.n_weights() as u64, !param.is_frozen(), last_use(&param) > Some(first))
    };
    flops_per_token_of(parameters(model).into_iter().map(of), attention_width)
}
