//! Which fields of a `config.json` nothing reads, so that a model that asks for more than its family computes says so.

use std::path::Path;

use super::fields::Fields;
use super::rope;

/// Fields that say nothing of what a decoder computes: names, versions, labels, training, generation, and how other programs
/// run it.
const SAYS_NOTHING: &[&str] = &[
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    // transformers' own word for what layer_types say.
    "_sliding_window_pattern",
    "architectures",
    "attn_implementation",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "dtype",
    "experts_implementation",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "inference_mode",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "max_length",
    "min_length",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "task_specific_params",
    "tie_encoder_decoder",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];
/// Settings of generation that older files hold here; the commands that generate have their own.
const OF_GENERATION: &[&str] = &[
    "bad_words_ids",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "remove_invalid_values",
    "repetition_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];
/// What MiniMind writes of its classes, its kernels, and experts that a dense model does not have.
const OF_MINIMIND: &[&str] = &[
    "auto_map",
    "aux_loss_alpha",
    "flash_attn",
    "moe_intermediate_size",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "router_aux_loss_coef",
    "scoring_func",
    "seq_aux",
];
/// Objects whose own fields are looked at as well.
const NESTED: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// A line that names the fields that hold something and that nothing has read, if there are any.
pub(super) fn of(path: &Path, fields: &Fields<'_>) -> Vec<String> {
    // What a folder says of classes of its own, whose code is not run; those of MiniMind are a family here.
    let is_minimind = matches!(fields.text("model_type"), Ok(Some("minimind")));
    let is_own = |name: &str| is_minimind && OF_MINIMIND.contains(&name);
    let is_of_decoder =
        |name: &str| !SAYS_NOTHING.contains(&name) && !OF_GENERATION.contains(&name) && !is_own(name);
    let shown = |name: &str, value: &serde_json::Value| match value {
        serde_json::Value::Object(_) | serde_json::Value::Array(_) => format!("\"{name}\""),
        value => format!("\"{name}\": {value}"),
    };
    let mut unread: Vec<String> = (fields.not_asked_for())
        .filter(|(name, value)| is_of_decoder(name) && **value != serde_json::Value::Bool(false))
        .map(|(name, value)| shown(name, value))
        .collect();
    for outer in NESTED {
        if let Ok(Some(inner)) = fields.object(outer) {
            let nested =
                inner.not_asked_for().filter(|(name, _)| !matches!(name.as_str(), "type" | "rope_type"));
            unread.extend(nested.map(|(name, value)| shown(&format!("{outer}.{name}"), value)));
        }
    }
    let mut notes = rope::overruled(path, fields);
    if unread.is_empty() {
        return notes;
    }
    notes.push(format!(
        "note: of {} nothing reads {}; models of this kind are computed without {}",
        path.display(),
        unread.join(", "),
        if unread.len() == 1 { "it" } else { "them" }
    ));
    notes
}
