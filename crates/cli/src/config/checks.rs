//! What LLaMA-Factory forbids between its keys, of all stages and methods, so that a file is checked whole although not
//! all of it can be run here. Left out is what is not a restriction here: DeepSpeed without a launcher, kernels of
//! Unsloth with ZeRO-3, neat packing before stage sft.

use oarlock_config::dialect::{Dialects, deepspeed_keys};
use oarlock_config::settings::keys::{Key, Row};
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;
use oarlock_config::settings::value::Value;

use super::{objective, table as keys};

/// Keys that cannot be written together.
struct Rule {
    /// The keys; the first is the one to change.
    keys: &'static [&'static Row],
    /// Whether they stand so that they cannot.
    broken: fn(&Choices) -> bool,
    /// What is wrong.
    message: &'static str,
    /// What to do.
    help: &'static str,
}

/// The settings that the rules look at.
struct Choices<'s> {
    settings: &'s Settings,
    /// The stage of the DeepSpeed configuration, where there is one.
    zero_stage: Option<i64>,
}

impl Choices<'_> {
    fn on(&self, key: Key<bool>) -> bool {
        self.settings.get(key)
    }

    fn said(&self, key: impl Into<&'static Row>) -> bool {
        self.settings.said(key).is_some()
    }

    fn is(&self, key: Key<String>, one_of: &[&str]) -> bool {
        one_of.contains(&self.settings.get(key))
    }

    fn sft(&self) -> bool {
        objective::of(self.settings).is_supervised()
    }

    fn has_no_reference(&self) -> bool {
        self.reads(keys::PREF_LOSS) && self.is(keys::PREF_LOSS, &["orpo", "simpo"])
    }

    fn reads(&self, key: impl Into<&'static Row>) -> bool {
        objective::reads(self.settings, key.into().name)
    }

    fn compares(&self) -> bool {
        objective::of(self.settings).compares()
    }

    fn predicts(&self) -> bool {
        self.on(keys::DO_PREDICT) || self.on(keys::PREDICT_WITH_GENERATE)
    }
}

const RULES: &[Rule] = &[
    Rule {
        keys: &[keys::ADAPTER_NAME_OR_PATH.row, keys::FINETUNING_TYPE.row],
        broken: |choices| {
            choices.said(keys::ADAPTER_NAME_OR_PATH) && !choices.is(keys::FINETUNING_TYPE, &["lora", "oft"])
        },
        message: "an adapter is of finetuning_type lora or oft only",
        help: "write `finetuning_type: lora`, or remove adapter_name_or_path",
    },
    Rule {
        keys: &[keys::QUANTIZATION_BIT.row, keys::FINETUNING_TYPE.row],
        broken: |choices| {
            choices.said(keys::QUANTIZATION_BIT) && !choices.is(keys::FINETUNING_TYPE, &["lora", "oft"])
        },
        message: "quantized weights can only be trained through adapters",
        help: "write `finetuning_type: lora`, or remove quantization_bit",
    },
    Rule {
        keys: &[keys::PISSA_INIT.row, keys::QUANTIZATION_BIT.row],
        broken: |choices| choices.said(keys::QUANTIZATION_BIT) && choices.on(keys::PISSA_INIT),
        message: "PiSSA begins with singular vectors of weights that are not quantized",
        help: "remove pissa_init or quantization_bit",
    },
    Rule {
        keys: &[
            keys::RESIZE_VOCAB.row,
            keys::ADD_TOKENS.row,
            keys::ADD_SPECIAL_TOKENS.row,
            keys::NEW_SPECIAL_TOKENS_CONFIG.row,
            keys::QUANTIZATION_BIT.row,
        ],
        broken: |choices| {
            let tokens =
                [keys::ADD_TOKENS.row, keys::ADD_SPECIAL_TOKENS.row, keys::NEW_SPECIAL_TOKENS_CONFIG.row];
            choices.said(keys::QUANTIZATION_BIT)
                && (choices.on(keys::RESIZE_VOCAB) || tokens.iter().any(|key| choices.said(*key)))
        },
        message: "the embedding of a quantized model cannot be resized",
        help: "give the tokens to the unquantized model first, or remove quantization_bit",
    },
    Rule {
        keys: &[keys::CREATE_NEW_ADAPTER.row, keys::QUANTIZATION_BIT.row],
        broken: |choices| {
            choices.said(keys::QUANTIZATION_BIT)
                && choices.said(keys::ADAPTER_NAME_OR_PATH)
                && choices.on(keys::CREATE_NEW_ADAPTER)
        },
        message: "a new adapter cannot be begun upon a quantized model with another one",
        help: "remove create_new_adapter, or merge the first adapter into the model",
    },
    Rule {
        keys: &[keys::ADAPTER_NAME_OR_PATH.row, keys::QUANTIZATION_BIT.row],
        broken: |choices| {
            choices.said(keys::QUANTIZATION_BIT) && choices.settings.get(keys::ADAPTER_NAME_OR_PATH).len() > 1
        },
        message: "a quantized model takes a single adapter: nothing can be merged into its weights",
        help: "merge them into the unquantized model first (`oarlock export`)",
    },
    Rule {
        keys: &[keys::FP8.row, keys::QUANTIZATION_BIT.row],
        broken: |choices| choices.said(keys::QUANTIZATION_BIT) && choices.on(keys::FP8),
        message: "`fp8` and `quantization_bit` are mutually exclusive",
        help: "keep one of them",
    },
    Rule {
        keys: &[keys::PREDICT_WITH_GENERATE.row, keys::STAGE.row],
        broken: |choices| !choices.sft() && choices.on(keys::PREDICT_WITH_GENERATE),
        message: "`predict_with_generate` belongs to stage sft",
        help: "remove it",
    },
    Rule {
        keys: &[keys::TRAIN_ON_PROMPT.row, keys::STAGE.row],
        broken: |choices| !choices.sft() && choices.on(keys::TRAIN_ON_PROMPT),
        message: "`train_on_prompt` belongs to stage sft",
        help: "remove it; stage pt trains on every token",
    },
    Rule {
        keys: &[keys::MASK_HISTORY.row, keys::STAGE.row],
        broken: |choices| !choices.sft() && choices.on(keys::MASK_HISTORY),
        message: "`mask_history` belongs to stage sft",
        help: "remove it; stage pt has no turns",
    },
    Rule {
        keys: &[keys::TRAIN_ON_PROMPT.row, keys::MASK_HISTORY.row],
        broken: |choices| {
            choices.sft() && choices.on(keys::TRAIN_ON_PROMPT) && choices.on(keys::MASK_HISTORY)
        },
        message: "`train_on_prompt` and `mask_history` are mutually exclusive",
        help: "keep one of them",
    },
    Rule {
        keys: &[keys::PACKING.row, keys::NEAT_PACKING.row, keys::STAGE.row],
        broken: |choices| choices.compares() && (choices.on(keys::PACKING) || choices.on(keys::NEAT_PACKING)),
        message: "answers that are compared are not packed",
        help: "remove it; they run without padding as they are",
    },
    Rule {
        keys: &[keys::DPO_LABEL_SMOOTHING.row, keys::PREF_LOSS.row],
        broken: |choices| {
            choices.settings.get(keys::DPO_LABEL_SMOOTHING) > 0.0
                && choices.reads(keys::PREF_LOSS)
                && !choices.is(keys::PREF_LOSS, &["sigmoid"])
        },
        message: "`dpo_label_smoothing` is only valid for sigmoid loss function",
        help: "write `pref_loss: sigmoid`, or remove dpo_label_smoothing",
    },
    Rule {
        keys: &[keys::PREF_BCO_WEIGHT.row, keys::PREF_LOSS.row],
        broken: |choices| choices.settings.get(keys::PREF_BCO_WEIGHT) > 0.0 && choices.has_no_reference(),
        message: "`pref_bco_weight` compares with a reference, and this loss has none",
        help: "write `pref_loss: sigmoid`, or remove pref_bco_weight",
    },
    Rule {
        keys: &[keys::REF_MODEL.row, keys::PREF_LOSS.row],
        broken: |choices| choices.said(keys::REF_MODEL) && choices.has_no_reference(),
        message: "orpo and simpo have no reference model",
        help: "remove ref_model, or write `pref_loss: sigmoid`",
    },
    Rule {
        keys: &[keys::REF_MODEL_ADAPTERS.row, keys::REF_MODEL.row],
        broken: |choices| choices.said(keys::REF_MODEL_ADAPTERS) && !choices.said(keys::REF_MODEL),
        message: "`ref_model_adapters` are merged into `ref_model`, which is not there",
        help: "write `ref_model: …`, too",
    },
    Rule {
        keys: &[keys::REF_MODEL_QUANTIZATION_BIT.row, keys::REF_MODEL.row],
        broken: |choices| choices.said(keys::REF_MODEL_QUANTIZATION_BIT) && !choices.said(keys::REF_MODEL),
        message: "`ref_model_quantization_bit` quantizes `ref_model`, which is not there",
        help: "write `ref_model: …`, too; a second model with the weights of the beginning is as that one",
    },
    Rule {
        keys: &[keys::REF_MODEL_QUANTIZATION_BIT.row],
        broken: |choices| {
            choices.settings.get(keys::REF_MODEL_QUANTIZATION_BIT).is_some_and(|bits| ![4, 8].contains(&bits))
        },
        message: "bitsandbytes has weights of 4 and of 8 bits",
        help: "write `ref_model_quantization_bit: 4` or `8`",
    },
    Rule {
        keys: &[keys::LD_ALPHA.row, keys::PREF_LOSS.row],
        broken: |choices| {
            choices.said(keys::LD_ALPHA)
                && choices.reads(keys::PREF_LOSS)
                && !choices.is(keys::PREF_LOSS, &["sigmoid", "hinge"])
        },
        message: "`ld_alpha` weighs sums over tokens, and this loss takes means",
        help: "write `pref_loss: sigmoid`, or remove ld_alpha",
    },
    Rule {
        keys: &[keys::DO_PREDICT.row],
        broken: |choices| {
            choices.sft() && choices.on(keys::DO_PREDICT) && !choices.on(keys::PREDICT_WITH_GENERATE)
        },
        message: "`do_predict` without `predict_with_generate` would keep no answers",
        help: "write `predict_with_generate: true`, too",
    },
    Rule {
        keys: &[keys::PREDICT_WITH_GENERATE.row, keys::COMPUTE_ACCURACY.row],
        broken: |choices| choices.on(keys::PREDICT_WITH_GENERATE) && choices.on(keys::COMPUTE_ACCURACY),
        message: "`predict_with_generate` and `compute_accuracy` are mutually exclusive",
        help: "keep one of them",
    },
    Rule {
        keys: &[keys::PREDICT_WITH_GENERATE.row, keys::DEEPSPEED.row],
        broken: |choices| choices.on(keys::PREDICT_WITH_GENERATE) && choices.zero_stage == Some(3),
        message: "`predict_with_generate` does not go with ZeRO-3",
        help: "write stage 2, or generate after training",
    },
    Rule {
        keys: &[keys::DO_PREDICT.row, keys::PREDICT_WITH_GENERATE.row, keys::EVAL_DATASET.row],
        broken: |choices| {
            choices.predicts()
                && !choices.said(keys::EVAL_DATASET)
                && choices.settings.get(keys::VAL_SIZE) == 0.0
        },
        message: "there is nothing to predict on",
        help: "write `eval_dataset: …` or `val_size: 0.01`",
    },
    Rule {
        keys: &[keys::LOAD_BEST_MODEL_AT_END.row, keys::STAGE.row],
        broken: |choices| choices.is(keys::STAGE, &["ppo"]) && choices.on(keys::LOAD_BEST_MODEL_AT_END),
        message: "stage ppo knows no best model",
        help: "remove load_best_model_at_end",
    },
    Rule {
        keys: &[keys::DO_TRAIN.row, keys::STAGE.row],
        broken: |choices| choices.is(keys::STAGE, &["ppo"]) && !choices.on(keys::DO_TRAIN),
        message: "stage ppo cannot only evaluate",
        help: "evaluate with stage sft",
    },
    Rule {
        keys: &[keys::SHIFT_ATTN.row, keys::STAGE.row],
        broken: |choices| choices.is(keys::STAGE, &["ppo"]) && choices.on(keys::SHIFT_ATTN),
        message: "stage ppo does not go with shifted sparse attention",
        help: "remove shift_attn",
    },
    Rule {
        keys: &[keys::STREAMING.row, keys::MAX_STEPS.row],
        broken: |choices| choices.on(keys::STREAMING) && choices.settings.get(keys::MAX_STEPS) <= 0,
        message: "a stream has no length: `max_steps` is needed",
        help: "write `max_steps: …`, or remove streaming",
    },
    Rule {
        keys: &[keys::MAX_SAMPLES.row, keys::STREAMING.row],
        broken: |choices| choices.on(keys::STREAMING) && choices.said(keys::MAX_SAMPLES),
        message: "`max_samples` and `streaming` are mutually exclusive",
        help: "write max_steps instead of max_samples",
    },
    Rule {
        keys: &[keys::VAL_SIZE.row, keys::STREAMING.row],
        broken: |choices| {
            let held_out = choices.settings.get(keys::VAL_SIZE);
            choices.on(keys::STREAMING) && held_out > 0.0 && held_out < 1.0
        },
        message: "a share of a stream cannot be held out",
        help: "write `val_size` as a number of records",
    },
    Rule {
        keys: &[keys::PISSA_INIT.row, keys::FINETUNING_TYPE.row],
        broken: |choices| choices.on(keys::PISSA_INIT) && !choices.is(keys::FINETUNING_TYPE, &["lora"]),
        message: "`pissa_init` is only valid for LoRA training",
        help: "write `finetuning_type: lora`, or remove pissa_init",
    },
    Rule {
        keys: &[keys::PURE_BF16.row, keys::DEEPSPEED.row],
        broken: |choices| choices.on(keys::PURE_BF16) && choices.zero_stage == Some(3),
        message: "`pure_bf16` does not go with ZeRO-3",
        help: "write `bf16: true` instead",
    },
    Rule {
        keys: &[keys::USE_GALORE.row, keys::USE_APOLLO.row],
        broken: |choices| choices.on(keys::USE_GALORE) && choices.on(keys::USE_APOLLO),
        message: "GaLore and APOLLO cannot be used together",
        help: "remove one of them",
    },
    Rule {
        keys: &[keys::USE_MUON.row, keys::OPTIM.row],
        broken: |choices| choices.on(keys::USE_MUON) && !choices.is(keys::OPTIM, &["muon"]),
        message: "`use_muon` names another optimizer than `optim`",
        help: "keep one of them",
    },
    Rule {
        keys: &[keys::USE_GALORE.row, keys::USE_APOLLO.row, keys::FINETUNING_TYPE.row],
        broken: |choices| {
            (choices.on(keys::USE_GALORE) || choices.on(keys::USE_APOLLO))
                && !choices.is(keys::FINETUNING_TYPE, &["full", "freeze"])
        },
        message: "GaLore and APOLLO are for whole weights, not for adapters, whose matrices are small",
        help: "remove them, or write `finetuning_type: full`",
    },
    Rule {
        keys: &[keys::USE_GALORE.row, keys::USE_APOLLO.row, keys::OPTIM.row],
        broken: |choices| {
            (choices.on(keys::USE_GALORE) || choices.on(keys::USE_APOLLO))
                && !choices.is(keys::OPTIM, &["adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"])
        },
        message: "GaLore and APOLLO are there for AdamW only",
        help: "write `optim: adamw_torch`, or remove them",
    },
];

/// Reports the rules that are broken. Their keys then count as reported.
pub(super) fn between(settings: &mut Settings, dialects: &Dialects, problems: &mut Problems) {
    let zero_stage =
        dialects.deepspeed.as_ref().map(|block| block.settings.get(deepspeed_keys::ZERO_OPTIMIZATION_STAGE));
    let choices = Choices { settings, zero_stage };
    let broken: Vec<&Rule> = RULES.iter().filter(|rule| (rule.broken)(&choices)).collect();
    for rule in broken {
        problems.push(settings.problem(rule.message, rule.keys).help(rule.help));
        for key in rule.keys {
            if let Some(setting) = settings.find_mut(key.name)
                && matches!(setting.value, Value::Bool(true))
            {
                setting.broken = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MINIMUM, good, train};
    use super::*;

    /// The rules that a text breaks, by their numbers.
    fn broken(text: &str) -> Vec<usize> {
        let reported = match train(&format!("{MINIMUM}{text}"), &[], &[]) {
            Ok(_) => return Vec::new(),
            Err(problems) => problems.to_string(),
        };
        (0..RULES.len()).filter(|i| reported.contains(RULES[*i].message)).collect()
    }

    #[test]
    fn every_rule_is_reported_where_it_is_broken_and_only_there() {
        const ZERO3: &str = "deepspeed: {zero_optimization: {stage: 3}}\n";
        let eval = "eval_dataset: e\nstage: sft\n";
        let mut seen = Vec::new();
        for (text, expected) in [
            ("adapter_name_or_path: a", &["adapter_name_or_path"][..]),
            ("adapter_name_or_path: a\nfinetuning_type: lora", &[]),
            ("quantization_bit: 4", &["quantization_bit"]),
            ("quantization_bit: 4\nfinetuning_type: oft", &[]),
            ("quantization_bit: 4\nfinetuning_type: lora\npissa_init: true", &["pissa_init"]),
            ("quantization_bit: 4\nfinetuning_type: lora\nresize_vocab: true", &["resize_vocab"]),
            ("quantization_bit: 4\nfinetuning_type: lora\nadd_tokens: a", &["resize_vocab"]),
            (
                "quantization_bit: 4\nfinetuning_type: lora\nadapter_name_or_path: a\ncreate_new_adapter: true",
                &["create_new_adapter"],
            ),
            (
                "quantization_bit: 4\nfinetuning_type: lora\nadapter_name_or_path: [a, b]",
                &["adapter_name_or_path"],
            ),
            ("quantization_bit: 4\nfinetuning_type: lora\nfp8: true", &["fp8"]),
            ("eval_dataset: e\npredict_with_generate: true", &["predict_with_generate"]),
            ("train_on_prompt: true", &["train_on_prompt"]),
            ("mask_history: true", &["mask_history"]),
            ("stage: sft\nmask_history: true", &[]),
            ("stage: sft\nmask_history: true\ntrain_on_prompt: true", &["train_on_prompt"]),
            ("stage: rm\npacking: true", &["packing"]),
            ("stage: dpo\nneat_packing: true", &["packing"]),
            ("stage: dpo\npref_loss: ipo\ndpo_label_smoothing: 0.1", &["dpo_label_smoothing"]),
            ("stage: dpo\npref_loss: simpo\npref_bco_weight: 1", &["pref_bco_weight"]),
            ("stage: dpo\npref_loss: orpo\nref_model: m", &["ref_model"]),
            ("stage: dpo\nref_model_adapters: a", &["ref_model_adapters"]),
            ("stage: dpo\nref_model_quantization_bit: 4", &["ref_model_quantization_bit"]),
            ("stage: dpo\nref_model: m\nref_model_quantization_bit: 3", &["ref_model_quantization_bit"]),
            ("stage: dpo\nref_model: m\nref_model_quantization_bit: 8", &[]),
            ("stage: dpo\npref_loss: ipo\nld_alpha: 0.5", &["ld_alpha"]),
            ("stage: dpo\ndpo_label_smoothing: 0.1\nld_alpha: 0.5\nref_model: m", &[]),
            (&format!("{eval}do_predict: true"), &["do_predict"]),
            (&format!("{eval}do_predict: true\npredict_with_generate: true"), &[]),
            (
                &format!("{eval}predict_with_generate: true\ncompute_accuracy: true"),
                &["predict_with_generate"],
            ),
            (&format!("{eval}{ZERO3}predict_with_generate: true"), &["predict_with_generate"]),
            ("stage: sft\npredict_with_generate: true", &["do_predict"]),
            ("stage: ppo\nload_best_model_at_end: true", &["load_best_model_at_end"]),
            ("eval_dataset: e\nstage: ppo\ndo_train: false", &["do_train"]),
            ("stage: ppo\nshift_attn: true", &["shift_attn"]),
            ("streaming: true", &["streaming"]),
            ("streaming: true\nmax_steps: 5\nmax_samples: 3", &["max_samples"]),
            ("streaming: true\nmax_steps: 5\nval_size: 0.1", &["val_size"]),
            ("streaming: true\nmax_steps: 5\nval_size: 10", &[]),
            ("pissa_init: true", &["pissa_init"]),
            (&format!("{ZERO3}pure_bf16: true"), &["pure_bf16"]),
            ("use_galore: true\nuse_apollo: true", &["use_galore"]),
            ("use_galore: true\nfinetuning_type: lora", &["use_galore"]),
            ("use_apollo: true\noptim: adafactor", &["use_galore"]),
            ("use_muon: true\noptim: sgd", &["use_muon"]),
            ("use_muon: true\noptim: adamw_torch", &[]),
            ("use_muon: true\nuse_galore: true", &["use_galore"]),
            ("deepspeed: {}\nuse_galore: true", &[]),
        ] {
            let broken = broken(text);
            assert_eq!(broken.iter().map(|i| RULES[*i].keys[0].name).collect::<Vec<_>>(), expected, "{text}");
            seen.extend(broken);
        }
        assert!((0..RULES.len()).all(|i| seen.contains(&i)), "{seen:?}");
    }

    #[test]
    fn all_are_reported_at_once_and_each_key_once() {
        let problems =
            train(&format!("{MINIMUM}streaming: true\nmax_samples: 3\ntrain_on_prompt: true\n"), &[], &[])
                .unwrap_err();
        assert_eq!(problems.len(), 3, "{problems}");
        assert!(!problems.to_string().contains("not supported yet"), "{problems}");
    }

    #[test]
    fn what_is_no_restriction_here_is_none() {
        good("neat_packing: true");
        good("use_unsloth: true\ndeepspeed: {zero_optimization: {stage: 3}}");
    }
}
