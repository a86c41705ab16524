//! What LLaMA-Factory means by keys that are not written, where Oarlock means something else: under its commands its
//! defaults hold, and those of Oarlock that stay are listed.

use oarlock_config::settings::node::{Data, Entry, Node};
use oarlock_config::settings::value::boolean;

use super::environment::said_by;
use super::objective;
use super::written::{Authority, Layer};

/// A key whose default is another one in LLaMA-Factory.
pub struct Difference {
    /// The key.
    pub key: &'static str,
    /// Its default here.
    pub ours: &'static str,
    /// Its default there.
    pub theirs: &'static str,
    /// Why ours stays under its commands; none where theirs holds.
    pub stays: Option<&'static str>,
}

const fn holds(key: &'static str, ours: &'static str, theirs: &'static str) -> Difference {
    Difference { key, ours, theirs, stays: None }
}

const fn stays(key: &'static str, ours: &'static str, theirs: &'static str, why: &'static str) -> Difference {
    Difference { key, ours, theirs, stays: Some(why) }
}

/// All of them.
pub const DIFFERENCES: [Difference; 6] = [
    holds("stage", "pt", "sft"),
    holds("finetuning_type", "full", "lora"),
    holds("split_special_tokens", "true", "false"),
    stays("do_train", "true", "false", "a run that neither evaluates nor predicts would end without a step"),
    stays(
        "gradient_checkpointing",
        "false",
        "true",
        "activations are kept, which is faster (`gradient_checkpointing: true` recomputes them)",
    ),
    stays("packing", "true", "true for stage pt alone", "it is so here as well, by the stage"),
];

/// The defaults of LLaMA-Factory for what `layers` do not write, as the layer below them, and warnings.
pub fn of_llama_factory(layers: &[Layer]) -> (Layer, Option<String>) {
    let entries = || layers.iter().flat_map(|layer| &layer.entries);
    let last = |key: &str| entries().rfind(|entry| entry.key == key);
    let is_on = |key: &str| last(key).and_then(|entry| scalar(&entry.value)).and_then(boolean) == Some(true);
    let stage = objective::named(last("stage").and_then(|entry| scalar(&entry.value)).unwrap_or("sft"));
    // No file of LLaMA-Factory describes a new model; it is trained as a whole.
    let is_new = last("model_config").is_some();
    let mut layer = Layer { authority: Authority::Replaces, entries: Vec::new() };
    let (mut held, mut warnings) = (Vec::new(), Vec::new());
    let mut hold = |key: &str, value: &str| {
        layer.entries.push(Entry::of(key, said_by("LLaMA-Factory's default", value)));
    };
    for Difference { key, theirs, stays, .. } in &DIFFERENCES {
        if last(key).is_some() {
            continue;
        }
        match stays {
            // Conversations alone have tokens that could be split.
            None if *key == "split_special_tokens" && stage.examples.is_none() => {}
            None if *key == "finetuning_type" && is_new => {}
            None => {
                hold(key, theirs);
                held.push(format!("{key}: {theirs}"));
            }
            Some(_) if *key == "do_train" && (is_on("do_eval") || is_on("do_predict")) => {
                hold(key, "false");
                held.push("do_train: false".to_owned());
            }
            Some(why) if *key == "do_train" => warnings.push(format!("do_train is true ({why})")),
            Some(why)
                if *key == "gradient_checkpointing"
                    && last("disable_gradient_checkpointing").is_none()
                    && last("activation_checkpointing").is_none() =>
            {
                warnings.push((*why).to_owned());
            }
            Some(_) => {}
        }
    }
    let mut parts = Vec::new();
    if !held.is_empty() {
        parts.push(format!("as in LLaMA-Factory: {}", held.join(", ")));
    }
    if !warnings.is_empty() {
        parts.push(format!("otherwise than there: {}", warnings.join(", ")));
    }
    let notes = if parts.is_empty() { None } else { Some(format!("not written: {}", parts.join("; "))) };
    (layer, notes)
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.data {
        Data::Scalar { text, .. } => Some(text.trim()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Words, table, written};
    use super::*;

    /// The defaults of LLaMA-Factory 0.9.5 and of transformers' TrainingArguments, of the keys that are used here; nothing
    /// for none.
    const ORIGINAL: &[(&str, &str)] = &[
        ("train_from_scratch", "false"),
        ("split_special_tokens", "false"),
        ("gradient_checkpointing", "true"),
        ("disable_gradient_checkpointing", "false"),
        ("do_sample", "true"),
        ("temperature", "0.95"),
        ("top_p", "0.7"),
        ("top_k", "50"),
        ("num_beams", "1"),
        ("max_new_tokens", "1024"),
        ("repetition_penalty", "1"),
        ("length_penalty", "1"),
        ("skip_special_tokens", "true"),
        ("template", ""),
        ("dataset", ""),
        ("eval_dataset", ""),
        ("dataset_dir", "data"),
        ("cutoff_len", "2048"),
        ("train_on_prompt", "false"),
        ("mask_history", "false"),
        ("streaming", "false"),
        ("buffer_size", "16384"),
        ("mix_strategy", "concat"),
        ("interleave_probs", ""),
        ("overwrite_cache", "false"),
        ("preprocessing_batch_size", "1000"),
        ("preprocessing_num_workers", ""),
        ("max_samples", ""),
        ("ignore_pad_token_for_loss", "true"),
        ("val_size", "0"),
        ("eval_on_each_dataset", "false"),
        ("packing", "true for stage pt alone"),
        ("neat_packing", "false"),
        ("tool_format", ""),
        ("default_system", ""),
        ("preserve_thinking", "false"),
        ("tokenized_path", ""),
        ("stage", "sft"),
        ("finetuning_type", "lora"),
        ("do_train", "false"),
        ("do_eval", "false"),
        ("do_predict", "false"),
        ("predict_with_generate", "false"),
        ("compute_accuracy", "false"),
        ("disable_shuffling", "false"),
        ("early_stopping_steps", ""),
        ("plot_loss", "false"),
        ("adapter_name_or_path", ""),
        ("create_new_adapter", "false"),
        ("lora_rank", "8"),
        ("lora_alpha", ""),
        ("lora_dropout", "0"),
        ("lora_target", "all"),
        ("additional_target", ""),
        ("use_rslora", "false"),
        ("use_dora", "false"),
        ("pissa_init", "false"),
        ("pissa_iter", "16"),
        ("pissa_convert", "false"),
        ("loraplus_lr_ratio", ""),
        ("loraplus_lr_embedding", "1e-6"),
        ("oft_rank", "0"),
        ("oft_block_size", "32"),
        ("oft_target", "all"),
        ("module_dropout", "0"),
        ("freeze_trainable_layers", "2"),
        ("freeze_trainable_modules", "all"),
        ("freeze_extra_modules", ""),
        ("use_llama_pro", "false"),
        ("pref_beta", "0.1"),
        ("pref_ftx", "0"),
        ("pref_bco_weight", "0"),
        ("pref_loss", "sigmoid"),
        ("dpo_label_smoothing", "0"),
        ("simpo_gamma", "0.5"),
        ("kto_chosen_weight", "1"),
        ("kto_rejected_weight", "1"),
        ("ld_alpha", ""),
        ("ref_model", ""),
        ("ref_model_adapters", ""),
        ("ref_model_quantization_bit", ""),
        ("use_galore", "false"),
        ("galore_target", "all"),
        ("galore_rank", "16"),
        ("galore_update_interval", "200"),
        ("galore_scale", "2"),
        ("galore_proj_type", "std"),
        ("use_apollo", "false"),
        ("apollo_target", "all"),
        ("apollo_rank", "16"),
        ("apollo_update_interval", "200"),
        ("apollo_scale", "32"),
        ("apollo_proj", "random"),
        ("apollo_proj_type", "std"),
        ("apollo_scale_type", "channel"),
        ("apollo_scale_front", "false"),
        ("use_muon", "false"),
        ("use_dft_loss", "false"),
        ("use_eaft_loss", "false"),
        ("eaft_alpha", "1"),
        ("quantization_bit", ""),
        ("quantization_method", "bnb"),
        ("quantization_type", "nf4"),
        ("double_quantization", "true"),
        ("export_size", "5"),
        ("export_device", "cpu"),
        ("export_legacy_format", "false"),
        ("per_device_train_batch_size", "8"),
        ("per_device_eval_batch_size", "8"),
        ("gradient_accumulation_steps", "1"),
        ("num_train_epochs", "3"),
        ("max_steps", "-1"),
        ("learning_rate", "5e-5"),
        ("lr_scheduler_type", "linear"),
        ("lr_scheduler_kwargs", ""),
        ("warmup_steps", "0"),
        ("warmup_ratio", "0"),
        ("optim", "adamw_torch"),
        ("optim_args", ""),
        ("weight_decay", "0"),
        ("adam_beta1", "0.9"),
        ("adam_beta2", "0.999"),
        ("adam_epsilon", "1e-8"),
        ("max_grad_norm", "1"),
        ("label_smoothing_factor", "0"),
        ("neftune_noise_alpha", ""),
        ("bf16", "false"),
        ("fp16", "false"),
        ("seed", "42"),
        ("data_seed", ""),
        ("use_cpu", "false"),
        ("group_by_length", "false"),
        ("train_sampling_strategy", "random"),
        ("dataloader_drop_last", "false"),
        ("logging_steps", "500"),
        ("logging_strategy", "steps"),
        ("logging_first_step", "false"),
        ("report_to", "none"),
        ("run_name", ""),
        ("disable_tqdm", "false"),
        ("eval_strategy", "no"),
        ("eval_steps", ""),
        ("eval_delay", "0"),
        ("eval_on_start", "false"),
        ("save_strategy", "steps"),
        ("save_steps", "500"),
        ("save_total_limit", ""),
        ("save_only_model", "false"),
        ("load_best_model_at_end", "false"),
        ("metric_for_best_model", ""),
        ("greater_is_better", ""),
        ("ignore_data_skip", "false"),
        ("overwrite_output_dir", "false"),
        ("resume_from_checkpoint", ""),
        ("ddp_timeout", "1800"),
        ("deepspeed", ""),
        ("fsdp", ""),
        ("fsdp_config", ""),
    ];

    #[test]
    fn every_default_that_differs_is_listed() {
        for (name, theirs) in ORIGINAL {
            let key = table::find(name).unwrap_or_else(|| panic!("{name} is not a key"));
            let listed = DIFFERENCES.iter().find(|difference| difference.key == *name);
            match listed {
                None => assert_eq!(key.default, *theirs, "{name}: ours, theirs"),
                Some(listed) => {
                    assert_eq!((listed.ours, listed.theirs), (key.default, *theirs), "{name}");
                    assert_ne!(listed.ours, listed.theirs, "{name}");
                }
            }
        }
        for Difference { key, .. } in &DIFFERENCES {
            assert!(ORIGINAL.iter().any(|(name, _)| name == key), "{key}");
        }
    }

    #[test]
    fn docs_page_lists_the_differences() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/llamafactory.md");
        let page = std::fs::read_to_string(page).unwrap();
        for Difference { key, ours, theirs, stays } in &DIFFERENCES {
            let under = match stays {
                None => format!("as in LLaMA-Factory: {theirs}"),
                Some(why) => (*why).to_owned(),
            };
            let row = format!("| `{key}` | {ours} | {theirs} | {under} |");
            assert!(page.contains(&row), "docs/llamafactory.md lacks this row:\n{row}");
        }
    }

    /// What holds for words of a command line, and what is told.
    fn held(line: &str) -> (Vec<String>, String) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let layers = written::arguments(&Words::new(&words)).unwrap().layers().unwrap();
        let (layer, notes) = of_llama_factory(&layers);
        let shown = |entry: &Entry| format!("{}={}", entry.key, scalar(&entry.value).unwrap());
        (layer.entries.iter().map(shown).collect(), notes.unwrap_or_default())
    }

    #[test]
    fn what_is_written_has_the_word() {
        let (entries, notes) = held("template=qwen");
        assert_eq!(entries, ["stage=sft", "finetuning_type=lora", "split_special_tokens=false"]);
        assert!(notes.contains("as in LLaMA-Factory: stage: sft, finetuning_type: lora"), "{notes}");
        assert!(notes.contains("do_train is true"), "{notes}");
        let (entries, notes) =
            held("stage=pt finetuning_type=full do_train=true gradient_checkpointing=false");
        assert!(entries.is_empty() && notes.is_empty(), "{entries:?} {notes}");
        // Whoever only evaluates or predicts does not train.
        for only in ["do_predict=true", "do_eval=True"] {
            let (entries, notes) = held(&format!("stage=rm finetuning_type=full {only}"));
            assert_eq!(entries, ["split_special_tokens=false", "do_train=false"]);
            assert!(!notes.contains("do_train is true"), "{notes}");
        }
        let (entries, _) = held("stage=pt model_config={}");
        assert!(entries.is_empty(), "{entries:?}");
    }
}
