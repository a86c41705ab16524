//! The files of the model that a run leaves in its folder: the ranks lay them out to write them, and before the start their
//! names say what would be in the way.

use oarlock_config::config::{Finetuning, TrainConfig};
use oarlock_engine::Result;
use oarlock_engine::checkpoint::weights::ModelFiles;
use oarlock_tensor::DType;

use super::data::{chat, template_texts};
use super::model::{Start, base_name, settings};
use super::written::writer;
use crate::adapters::{Adaptation, TemplateFiles, adapter_files, converted_files};
use crate::data::Tokenizer;
use crate::model::Decoder;
use crate::model::hf::{HfConfig, SaveOptions};

/// The model or the adapter, with settings, tokenizer and the texts of its template.
///
/// # Errors
/// Weights that cannot be laid out.
pub fn final_files(
    config: &TrainConfig,
    hf: &HfConfig,
    (model, adaptation): (&Decoder, Option<&Adaptation>),
    texts: &TemplateFiles,
    dtype: DType,
) -> Result<ModelFiles> {
    let tokenizer = Some(config.model.tokenizer.as_path());
    let mut files = match adaptation {
        Some(adaptation) => adapter_files(hf, model, adaptation, &base_name(config), tokenizer)?,
        None => hf.files_of(model, &SaveOptions::new(dtype, tokenizer))?,
    };
    let writer = writer(config);
    // What the template of the run changes of them.
    for (name, text) in texts {
        files.add_text(name, text.clone());
    }
    Ok(files.written_by(writer.by, writer.overwrites))
}

/// What a run of a configuration will write at its end.
pub struct Planned {
    /// Into its folder.
    pub model: ModelFiles,
    /// Into the folder below, where an adapter of PiSSA is to be converted.
    pub converted: Option<ModelFiles>,
}

impl Planned {
    /// Without its weights.
    ///
    /// # Errors
    /// What is wrong with the model, its adapters, the tokenizer or the template.
    pub fn of(config: &TrainConfig) -> Result<Planned> {
        let hf = settings(&config.model)?;
        let start = Start::new(config, &hf)?;
        let model = start.decoder(config, &hf)?;
        let tokenizer = Tokenizer::open_with(&config.model.tokenizer, &config.model.new_tokens)?;
        let chat = chat(config, &tokenizer)?;
        let texts = template_texts(config, &hf, &tokenizer, chat.as_ref())?;
        let adaptation = start.adaptation.as_ref();
        let converts = match &config.train.finetuning {
            Finetuning::Adapter(args) => args.convert_pissa,
            _ => false,
        };
        let converted = match adaptation.filter(|adaptation| converts && adaptation.config.is_pissa()) {
            Some(adaptation) => {
                let base = base_name(config);
                let beside = (base.as_str(), Some(config.model.tokenizer.as_path()));
                Some(converted_files(&hf, &model, adaptation, beside)?)
            }
            None => None,
        };
        let model = final_files(config, &hf, (&model, adaptation), &texts, config.train.dtype)?;
        Ok(Planned { model, converted })
    }
}
