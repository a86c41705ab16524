//! The tokens that a run gives its model: the size of the vocabulary, and how their rows begin.

use oarlock_config::config::{ModelArgs, TrainConfig};
use oarlock_engine::{Error, Result};

use crate::data::Tokenizer;
use crate::model::hf::{HfConfig, NewRows};

/// Sizes of vocabularies that have grown are multiples of this, as in LLaMA-Factory.
const VOCAB_MULTIPLE: usize = 64;

/// The settings with a vocabulary for the tokens that the model gets.
///
/// # Errors
/// A tokenizer that cannot be used, and a quantized model.
pub fn with_room(hf: HfConfig, args: &ModelArgs) -> Result<HfConfig> {
    let new = &args.new_tokens;
    if !new.may_grow() {
        return Ok(hf);
    }
    let tokenizer = Tokenizer::open_with(&args.tokenizer, new)?;
    if !new.resize && !tokenizer.has_new() {
        return Ok(hf);
    }
    let (n_tokens, n_known) = (tokenizer.vocab_size()?, hf.decoder().vocab_size);
    if n_tokens > n_known && (hf.quantization().is_some() || args.quantization.is_some()) {
        return Err(Error::Model(
            "the vocabulary of a quantized model cannot grow: its embedding would be of another precision than the run saves; \
             add the tokens to the original model first (resize_vocab, add_tokens), and quantize that"
                .to_owned(),
        ));
    }
    let grown = if n_tokens > n_known { n_tokens.next_multiple_of(VOCAB_MULTIPLE) } else { n_known };
    Ok(hf.with_vocab_size(grown, new.unties))
}

/// How the rows of new tokens begin.
///
/// # Errors
/// A tokenizer that cannot be used.
pub fn rows(config: &TrainConfig) -> Result<NewRows> {
    let new = &config.model.new_tokens;
    let mut rows =
        NewRows { seed: config.train.seed, with_noise: new.noise_on_descriptions, ..NewRows::default() };
    if !new.descriptions.is_empty() {
        let tokenizer = Tokenizer::open_with(&config.model.tokenizer, new)?;
        for (token, description) in &new.descriptions {
            if let Some(id) = tokenizer.id_of(token)? {
                rows.described.insert(id, tokenizer.encode(description)?);
            }
        }
    }
    Ok(rows)
}

/// The modules that an adapter trains as a whole where the vocabulary has grown and none are named.
pub const MODULES: [&str; 2] = ["embed_tokens", "lm_head"];
