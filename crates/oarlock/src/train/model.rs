//! The model of a run as a configuration names it: its settings, and where its first weights come from.

use oarlock_tensor::Device;

use crate::config::{ModelArgs, ModelSource, TrainConfig};
use crate::data::Tokenizer;
use crate::error::Result;
use crate::model::Decoder;
use crate::model::hf::{HfConfig, SafetensorsSource, SpecialTokens};
use crate::shard::{SeededInit, WeightSource};

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

/// The weights that a run begins with; those of a checkpoint replace them.
///
/// # Errors
/// What is wrong with the weights of the folder.
pub fn weights(
    config: &TrainConfig,
    hf: &HfConfig,
    model: &Decoder,
    resumes: bool,
    device: &Device,
) -> Result<Box<dyn WeightSource>> {
    match &config.model.source {
        ModelSource::Folder(dir) if !config.model.from_scratch && !resumes => {
            Ok(Box::new(SafetensorsSource::open(dir, hf, model)?))
        }
        _ => Ok(Box::new(SeededInit::new(config.train.seed, device))),
    }
}

/// Where somebody would change the number of tokens that the model knows.
pub fn place_of_vocab_size(args: &ModelArgs) -> String {
    match &args.source {
        ModelSource::Folder(dir) => dir.join("config.json").display().to_string(),
        ModelSource::Fields(_) => "model_config".to_owned(),
    }
}
