//! What a training run computes with, as a list of named values. A key says in its section what it changes, and the other
//! fields of each part of a configuration are taken apart whole: a new one does not compile before somebody has said it.

use std::fmt::Debug;

use oarlock_tensor::DType;
use oarlock_tensor::cpu::Isa;
use serde_json::Value;

use oarlock_config::config::{
    AdapterArgs, AdapterConfig, AdapterKind, BestArgs, ChatArgs, DataArgs, DataParts, Elems, EvalArgs,
    Finetuning, FreezeArgs, GgufWeights, IntervalStrategy, Length, LoraConfig, LoraPlus, ModelArgs,
    ModelParts, ModelSource, OftConfig, OptimizerArgs, Placements, RankArgs, RankParts, SaveArgs, SaveParts,
    ScheduleArgs, ShardingConfig, Steps, TokenLossArgs, TrainArgs, TrainConfig, TrainParts,
};
use oarlock_config::settings::section::number;

pub use oarlock_config::settings::section::{Effect, Recorded as Setting};

/// The rows of a step, over all ranks.
pub const ROWS: &str = "rows of a step";

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
        self.0.push(Setting::new(name, value, effect));
    }

    /// Adds a value of several parts.
    fn parts(&mut self, name: &'static str, value: Option<&impl Debug>, effect: Effect) {
        self.0.push(Setting::printed(name, value, effect));
    }

    fn computes(&mut self, name: &'static str, value: impl Into<Value>) {
        self.add(name, value, Effect::Computes);
    }

    fn nothing(&mut self, name: &'static str, value: impl Into<Value>) {
        self.add(name, value, Effect::Nothing);
    }

    fn model(&mut self, args: &ModelArgs) {
        self.0.extend(args.recorded());
        let parts = args.parts();
        let ModelParts {
            source, tokenizer, quantization, sparse_attention, new_tokens, rope_scaling, ..
        } = parts;
        // Blocks and what they stand for compute the same; which of both a checkpoint's run held is compared by itself.
        if parts.gguf_weights != GgufWeights::Auto {
            self.parts("gguf_weights", Some(&parts.gguf_weights), Effect::Nothing);
        }
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
        self.0.extend(args.recorded());
        // Which rows they hold is said by the tokens.
        let DataParts { packing, chat, shuffle, mix, group_by_length, eval_each, remote: _ } = args.parts();
        self.parts("dataset_dir", Some(&args.dataset_dir), Effect::Nothing);
        self.parts("packing", Some(&packing), Effect::Computes);
        self.computes("disable_shuffling", !shuffle);
        self.parts("val_size", args.val_size.as_ref(), Effect::Computes);
        self.parts("mix_strategy", Some(&mix), Effect::Computes);
        self.computes("group_by_length", group_by_length);
        self.nothing("eval_on_each_dataset", eval_each);
        self.0.push(Setting::path("tokenized_path", args.tokenized.as_deref()));
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
        self.0.extend(args.recorded());
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
        self.0.extend(objective.record());
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

    fn eval(&mut self, args: &EvalArgs) {
        self.0.extend(args.recorded());
        self.nothing("eval_steps", interval(args.when));
    }

    fn save(&mut self, args: &SaveArgs) {
        self.0.extend(args.recorded());
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
        self.0.extend(args.recorded());
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
