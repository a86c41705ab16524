//! What a training run computes with, as a list of named values. A key says in its section what it changes, and the other
//! fields of each part of a configuration are taken apart whole: a new one does not compile before somebody has said it.

use std::fmt::Debug;
use std::path::PathBuf;

use oarlock_tensor::DType;
use oarlock_tensor::cpu::Isa;
use serde_json::Value;

use oarlock_config::config::{
    AdapterArgs, AdapterConfig, AdapterKind, BestArgs, ChatArgs, DataArgs, DataParts, Elems, EvalArgs,
    Finetuning, FreezeArgs, IntervalStrategy, KtoArgs, Length, LoraConfig, LoraPlus, ModelArgs, ModelParts,
    ModelSource, ObjectiveArgs, OftConfig, OptimizerArgs, Placements, PreferenceArgs, RaftArgs, RankArgs,
    RankParts, ReferenceArgs, RewardArgs, SaveArgs, SaveParts, ScheduleArgs, ShardingConfig, Steps,
    TokenLossArgs, TrainArgs, TrainConfig, TrainParts,
};
use oarlock_config::settings::section::Recorded;

pub use oarlock_config::settings::section::Effect;

/// The rows of a step, over all ranks.
pub const ROWS: &str = "rows of a step";

/// A named value.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    pub value: Value,
    /// What it changes.
    pub effect: Effect,
    /// Whether the value is a text that Rust's names and brackets make, and not one that somebody wrote.
    pub is_rust: bool,
}

/// Named values.
#[derive(Debug, Default)]
pub struct Settings(pub Vec<Setting>);

impl Settings {
    /// Those of a configuration. `rows`: of a step, over all ranks.
    pub fn of(config: &TrainConfig, rows: u64) -> Settings {
        let TrainConfig {
            model,
            data,
            train,
            eval,
            // Comes after training.
            predict: _,
            save,
            // Logs and trackers only look.
            log: _,
            monitor: _,
            shard,
            ranks,
            // How it was written.
            description: _,
        } = config;
        let mut all = Settings::default();
        all.model(model);
        all.data(data);
        all.train(train);
        all.eval(eval);
        all.save(save);
        all.shard(shard);
        all.ranks(ranks);
        all.add(ROWS, rows, Effect::Ranks);
        all
    }

    fn add(&mut self, name: &'static str, value: impl Into<Value>, effect: Effect) {
        self.0.push(Setting { name, value: value.into(), effect, is_rust: false });
    }

    /// Adds a value of several parts.
    fn parts(&mut self, name: &'static str, value: Option<&impl Debug>, effect: Effect) {
        let Some(value) = value else {
            // A run before may have had one, and is then shown in the same words.
            self.0.push(Setting { name, value: Value::Null, effect, is_rust: true });
            return;
        };
        let text = format!("{value:?}");
        // A path or a word is not a text in quotes.
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(text) => self.add(name, text, effect),
            None => self.0.push(Setting { name, value: text.into(), effect, is_rust: true }),
        }
    }

    /// Adds a path, which nobody spells otherwise.
    fn path(&mut self, name: &'static str, path: Option<&PathBuf>, effect: Effect) {
        match path {
            Some(path) => self.parts(name, Some(path), effect),
            None => self.add(name, Value::Null, effect),
        }
    }

    /// Adds what the section of a part says of its keys.
    fn recorded(&mut self, section: Vec<Recorded>) {
        for Recorded { name, value, effect } in section {
            self.add(name, value, effect);
        }
    }

    fn computes(&mut self, name: &'static str, value: impl Into<Value>) {
        self.add(name, value, Effect::Computes);
    }

    fn nothing(&mut self, name: &'static str, value: impl Into<Value>) {
        self.add(name, value, Effect::Nothing);
    }

    fn model(&mut self, args: &ModelArgs) {
        self.recorded(args.recorded());
        let ModelParts { source, tokenizer, quantization, sparse_attention, new_tokens, rope_scaling } =
            args.parts();
        match source {
            ModelSource::Folder(dir) => {
                self.parts("model_name_or_path", Some(&dir), Effect::Nothing);
                self.computes("model_config", Value::Null);
            }
            ModelSource::Fields(fields) => self.computes("model_config", fields),
        }
        self.parts("tokenizer_path", Some(&tokenizer), Effect::Nothing);
        self.parts("quantization_bit", quantization.as_ref(), Effect::Computes);
        self.parts("sparse_attention", sparse_attention.as_ref(), Effect::Computes);
        // What older checkpoints do not name they did without.
        if new_tokens.may_grow() {
            self.parts("add_tokens", Some(&new_tokens), Effect::Computes);
        }
        if let Some(scaling) = rope_scaling {
            self.parts("rope_scaling", Some(&scaling), Effect::Computes);
        }
    }

    fn data(&mut self, args: &DataArgs) {
        self.recorded(args.recorded());
        let DataParts { packing, chat, shuffle, mix, group_by_length, eval_each } = args.parts();
        self.parts("dataset_dir", Some(&args.dataset_dir), Effect::Nothing);
        self.parts("packing", Some(&packing), Effect::Computes);
        self.computes("disable_shuffling", !shuffle);
        self.parts("val_size", args.val_size.as_ref(), Effect::Computes);
        self.parts("mix_strategy", Some(&mix), Effect::Computes);
        self.computes("group_by_length", group_by_length);
        self.nothing("eval_on_each_dataset", eval_each);
        self.path("tokenized_path", args.tokenized.as_ref(), Effect::Nothing);
        let Some(ChatArgs {
            template,
            tool_format,
            default_system,
            enable_thinking,
            preserve_thinking,
            train_on_prompt,
            mask_history,
            split_special_tokens,
            examples,
        }) = chat
        else {
            self.computes("rows", "texts");
            return;
        };
        self.computes("template", template);
        self.computes("tool_format", tool_format);
        self.computes("default_system", default_system);
        self.computes("enable_thinking", enable_thinking);
        self.computes("preserve_thinking", preserve_thinking);
        self.computes("train_on_prompt", train_on_prompt);
        self.computes("mask_history", mask_history);
        self.computes("split_special_tokens", split_special_tokens);
        self.computes("rows", examples.stages());
    }

    fn train(&mut self, args: &TrainArgs) {
        // The product of batches and ranks is what counts.
        self.recorded(args.recorded());
        let TrainParts {
            loss_scale,
            recompute,
            offload_activations,
            optimizer,
            schedule,
            loss,
            finetuning,
            objective,
            enabled: _,
        } = args.parts();
        match args.length {
            Length::Steps(steps) => self.add("max_steps", steps, Effect::Length),
            Length::Epochs(epochs) => self.add("num_train_epochs", epochs, Effect::Length),
        }
        self.computes("dtype", args.dtype.to_string());
        if args.dtype == DType::F16 {
            self.parts("loss scale", Some(&loss_scale), Effect::Computes);
        }
        self.parts("activation_checkpointing", Some(&recompute), Effect::Nothing);
        self.nothing("activation_checkpointing_offload", offload_activations);
        let OptimizerArgs { rule, weight_decay, targets } = optimizer;
        self.parts("optim", Some(&rule), Effect::Computes);
        self.computes("weight_decay", weight_decay);
        self.computes("modules of the optimizer", targets);
        let ScheduleArgs { learning_rate, shape, warmup } = schedule;
        self.computes("learning_rate", learning_rate);
        self.parts("lr_scheduler_type", Some(&shape), Effect::Computes);
        self.computes("warmup_steps", steps(warmup));
        let TokenLossArgs { kind, neftune_alpha, accuracy: _ } = loss;
        self.parts("loss", Some(&kind), Effect::Computes);
        self.computes("neftune_noise_alpha", neftune_alpha);
        self.finetuning(&finetuning);
        self.objective(&objective);
    }

    fn finetuning(&mut self, method: &Finetuning) {
        self.0.push(Setting {
            name: "finetuning_type",
            value: method.name().into(),
            effect: Effect::Computes,
            is_rust: true,
        });
        match method {
            Finetuning::Full => {}
            Finetuning::Freeze(FreezeArgs { layers, modules, extra }) => {
                self.parts("freeze_trainable_layers", Some(layers), Effect::Computes);
                self.computes("freeze_trainable_modules", modules.clone());
                self.computes("freeze_extra_modules", extra.clone());
            }
            Finetuning::Adapter(AdapterArgs { config, adapters, create_new, convert_pissa: _, plus }) => {
                let AdapterConfig { kind, targets, modules_to_save } = config;
                self.parts("lora_target", Some(targets), Effect::Computes);
                self.computes("additional_target", modules_to_save.clone());
                self.parts("adapter_name_or_path", Some(adapters), Effect::Nothing);
                self.computes("create_new_adapter", *create_new);
                self.computes("loraplus_lr_ratio", plus.map(|LoraPlus { lr_ratio }| lr_ratio));
                match kind {
                    AdapterKind::Lora(lora) => self.lora(lora),
                    AdapterKind::Oft(OftConfig { blocks, dropout, terms }) => {
                        self.parts("oft_block_size", Some(blocks), Effect::Computes);
                        self.computes("module_dropout", number(*dropout));
                        self.computes("terms of a rotation", *terms);
                    }
                }
            }
        }
    }

    fn lora(&mut self, config: &LoraConfig) {
        let LoraConfig { rank, alpha, dropout, rank_pattern, alpha_pattern, use_rslora, use_dora, init } =
            config;
        self.computes("lora_rank", *rank);
        self.computes("lora_alpha", *alpha);
        self.computes("lora_dropout", number(*dropout));
        self.parts("rank_pattern", Some(rank_pattern), Effect::Computes);
        self.parts("alpha_pattern", Some(alpha_pattern), Effect::Computes);
        self.computes("use_rslora", *use_rslora);
        self.computes("use_dora", *use_dora);
        self.parts("pissa_init", Some(init), Effect::Computes);
    }

    fn objective(&mut self, objective: &ObjectiveArgs) {
        let reference = match objective {
            ObjectiveArgs::NextToken => {
                self.computes("objective", "the next token");
                return;
            }
            ObjectiveArgs::Rewards => {
                self.computes("objective", "a reward");
                return;
            }
            ObjectiveArgs::Raft(args) => {
                let RaftArgs { num_generations, sampling, reward, min_reward } = args;
                self.computes("objective", "the model's best answers");
                self.computes("num_generations", *num_generations);
                self.parts("sampling", Some(sampling), Effect::Computes);
                self.computes("min_reward", *min_reward);
                match reward {
                    // Its weights are compared by their fingerprints.
                    RewardArgs::Model(ReferenceArgs { model, adapters: _, quantization: _ }) => {
                        self.path("reward_model", model.as_ref(), Effect::Nothing);
                    }
                    rule => self.parts("reward_function", Some(rule), Effect::Computes),
                }
                return;
            }
            ObjectiveArgs::Preference(args) => {
                let PreferenceArgs {
                    loss,
                    beta,
                    ftx,
                    bco_weight,
                    label_smoothing,
                    simpo_gamma,
                    ld_alpha,
                    reference,
                } = args;
                self.computes("objective", "pairs of answers");
                self.parts("pref_loss", Some(loss), Effect::Computes);
                self.computes("pref_beta", number(*beta));
                self.computes("pref_ftx", number(*ftx));
                self.computes("pref_bco_weight", number(*bco_weight));
                self.computes("dpo_label_smoothing", number(*label_smoothing));
                self.computes("simpo_gamma", number(*simpo_gamma));
                self.computes("ld_alpha", ld_alpha.map(number));
                reference
            }
            ObjectiveArgs::Kto(args) => {
                let KtoArgs { beta, chosen_weight, rejected_weight, ftx, reference } = args;
                self.computes("objective", "unpaired preferences");
                self.computes("pref_beta", number(*beta));
                self.computes("kto_chosen_weight", number(*chosen_weight));
                self.computes("kto_rejected_weight", number(*rejected_weight));
                self.computes("pref_ftx", number(*ftx));
                reference
            }
        };
        let ReferenceArgs { model, adapters, quantization } = reference;
        self.path("ref_model", model.as_ref(), Effect::Nothing);
        self.parts("ref_model_adapters", Some(adapters), Effect::Nothing);
        self.parts("ref_model_quantization_bit", quantization.as_ref(), Effect::Computes);
    }

    fn eval(&mut self, args: &EvalArgs) {
        self.recorded(args.recorded());
        self.nothing("eval_steps", interval(args.when));
    }

    fn save(&mut self, args: &SaveArgs) {
        self.recorded(args.recorded());
        let SaveParts { restarted: _, state_dict: _, whole_weights: _, best } = args.parts();
        self.parts("output_dir", Some(&args.output_dir), Effect::Nothing);
        self.nothing("save_steps", interval(args.when));
        if let Some(BestArgs { metric, greater_is_better, patience, saves: _, load_at_end }) = best {
            // What was best so far was best by this.
            self.computes("metric_for_best_model", metric);
            self.computes("greater_is_better", greater_is_better);
            self.nothing("early_stopping_steps", patience);
            self.nothing("load_best_model_at_end", load_at_end);
        }
    }

    fn shard(&mut self, args: &ShardingConfig<Elems>) {
        let sharding = args.recorded();
        let Placements { optimizer, gradients, parameters } = sharding.placements;
        let placed = [("optimizer", optimizer), ("gradients", gradients), ("parameters", parameters)];
        let placed = placed.map(|(what, at)| format!("{what} {}", format!("{at:?}").to_lowercase()));
        self.nothing("sharding", placed.join(", "));
        self.parts("units", Some(sharding.wrap), Effect::Nothing);
        self.0.push(Setting {
            name: "sharding group",
            value: sharding.group.into(),
            effect: Effect::Nothing,
            is_rust: true,
        });
        self.parts("dtype of reduced gradients", sharding.reduce_dtype.as_ref(), Effect::Computes);
        self.parts("quantized communication", Some(&sharding.quantized), Effect::Computes);
        self.parts("offloaded optimizer", sharding.offload_optimizer, Effect::Nothing);
        self.parts("offloaded parameters", sharding.offload_params, Effect::Nothing);
    }

    fn ranks(&mut self, args: &RankArgs) {
        self.recorded(args.recorded());
        let RankParts { device, pipeline } = args.parts();
        self.parts("device", Some(&device), Effect::Nothing);
        // The one in use: another machine may have another one.
        let cpu_path = args.cpu_path.clone().unwrap_or_else(|| Isa::detect().path().to_string());
        self.nothing("cpu_path", cpu_path);
        self.parts("pipeline", Some(&pipeline), Effect::Nothing);
    }
}

/// When something is done, as it is written.
fn interval(when: IntervalStrategy) -> Value {
    match when {
        IntervalStrategy::Never => "no".into(),
        IntervalStrategy::Epoch => "epoch".into(),
        IntervalStrategy::Every(every) => steps(every),
    }
}

fn steps(steps: Steps) -> Value {
    match steps {
        Steps::Count(count) => count.into(),
        Steps::Share(share) => share.into(),
    }
}

/// The number that a short float was written as.
fn number(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
