//! THE table: every key that a training YAML of LLaMA-Factory for `stage: pt` can hold, those of its other stages,
//! methods and programs by which a file is still read whole, and our own, each declared once. Help, `docs/keys.md`, checks and nearest names all read it.

use oarlock_config::nearest::nearest_of;
use oarlock_config::settings::keys::Group::{Data, Eval, Log, Method, Model, Ranks, Save, Train};
use oarlock_config::settings::keys::Range::{Any, BelowOne, NotNegative, Positive};
use oarlock_config::settings::keys::Status::{Among, Later, NoEffect, Used};
use oarlock_config::settings::keys::ValueType::{
    self, Bool, BoolOrPath, Choice, Float, Int, List, Map, Path, Steps, Text,
};
use oarlock_config::settings::keys::{Row, key, row};
use oarlock_config::settings::layer::Layer;
use oarlock_config::settings::node::Entry;
use oarlock_config::settings::problem::Problem;
use oarlock_config::settings::secret::Secret;
use oarlock_config::settings::table as training;
use oarlock_config::settings::value::Value;

/// What other programs call a key.
pub const OTHER_NAMES: &[(&str, &str)] = &[
    ("accumulation_steps", "gradient_accumulation_steps"),
    ("batch_size", "per_device_train_batch_size"),
    ("block_size", "cutoff_len"),
    ("data_path", "dataset"),
    ("epochs", "num_train_epochs"),
    ("grad_clip", "max_grad_norm"),
    ("gradient_clipping", "max_grad_norm"),
    ("log_interval", "logging_steps"),
    ("lr", "learning_rate"),
    ("lr_scheduler", "lr_scheduler_type"),
    ("max_length", "cutoff_len"),
    ("max_seq_len", "cutoff_len"),
    ("max_seq_length", "cutoff_len"),
    ("micro_batch_size", "per_device_train_batch_size"),
    ("model", "model_name_or_path"),
    ("nproc_per_node", "num_processes"),
    ("num_gpus", "num_processes"),
    ("num_threads", "num_threads_per_process"),
    ("out_dir", "output_dir"),
    ("pipeline_parallel_degree", "pipeline_model_parallel_size"),
    ("pipeline_parallel_size", "pipeline_model_parallel_size"),
    ("pp_degree", "pipeline_model_parallel_size"),
    ("save_dir", "output_dir"),
    ("save_interval", "save_steps"),
    ("sp_size", "sequence_parallel_size"),
    ("train_batch_size", "per_device_train_batch_size"),
    ("train_dataset", "dataset"),
    ("train_file", "dataset"),
    ("ulysses_sequence_parallel_size", "sequence_parallel_size"),
    ("warmup", "warmup_steps"),
    ("warmup_iters", "warmup_steps"),
];

/// Keys of the format that LLaMA-Factory's examples in `v1` have, which no other file has.
const OF_NEWER_FORMAT: &[&str] = &[
    "model_class",
    "kernel_config",
    "peft_config",
    "quant_config",
    "dist_config",
    "init_config",
    "sample_backend",
    "optim_config",
    "lr_scheduler_config",
];

/// The keys that only stages which compare or score answers read, each with these stages.
pub const PREFERENCE_KEYS: &[(&str, &[&str])] = &[
    ("pref_beta", &["dpo", "kto"]),
    ("pref_ftx", &["dpo", "kto"]),
    ("pref_loss", &["dpo"]),
    ("pref_bco_weight", &["dpo"]),
    ("dpo_label_smoothing", &["dpo"]),
    ("simpo_gamma", &["dpo"]),
    ("ld_alpha", &["dpo"]),
    ("kto_chosen_weight", &["kto"]),
    ("kto_rejected_weight", &["kto"]),
    ("ref_model", &["dpo", "kto"]),
    ("ref_model_adapters", &["dpo", "kto"]),
    ("ref_model_quantization_bit", &["dpo", "kto"]),
    ("reward_model", &["raft"]),
    ("reward_function", &["raft"]),
    ("reward_pattern", &["raft"]),
    ("num_generations", &["raft"]),
    ("min_reward", &["raft"]),
];

/// The stages that predict something; the others have no more than their loss, as in LLaMA-Factory.
pub const PREDICTING_STAGES: &[&str] = &["sft", "rm"];

/// The keys that only stages with conversations read.
pub const CHAT_KEYS: &[&str] =
    &["template", "tool_format", "default_system", "enable_thinking", "preserve_thinking"];

oarlock_config::key_table! {
    /// The keys, in the order in which help and tables show them.
    pub const KEYS = [
        MODEL_NAME_OR_PATH: Option<String> = key(Model, Path, "model_name_or_path", "", Used, "Folder of the model: config.json, tokenizer.json and weights"),
        MODEL_CONFIG: Vec<Entry> = key(Model, Map, "model_config", "", Used, "Our own: a new model by its settings instead of a folder, as in {model_type: minimind, hidden_size: 512, num_hidden_layers: 8}"),
        TOKENIZER_PATH: Option<String> = key(Model, Path, "tokenizer_path", "", Used, "Our own: the tokenizer.json, or its folder, that goes with model_config"),
        TRAIN_FROM_SCRATCH: bool = key(Model, Bool, "train_from_scratch", "false", Used, "Begin with seeded random weights instead of those of the folder"),
        CACHE_DIR: Option<String> = key(Model, Path, "cache_dir", "", NoEffect("models are read from a local folder"), "Cache of downloaded models"),
        MODEL_REVISION: String = key(Model, Text, "model_revision", "main", NoEffect("models are read from a local folder"), "Revision of the model in its hub"),
        HF_HUB_TOKEN: Option<Secret> = key(Model, ValueType::Secret, "hf_hub_token", "", NoEffect("models are read from a local folder"), "Token of the Hugging Face hub"),
        MS_HUB_TOKEN: Option<Secret> = key(Model, ValueType::Secret, "ms_hub_token", "", NoEffect("models are read from a local folder"), "Token of ModelScope"),
        OM_HUB_TOKEN: Option<Secret> = key(Model, ValueType::Secret, "om_hub_token", "", NoEffect("models are read from a local folder"), "Token of Modelers"),
        TRUST_REMOTE_CODE: bool = key(Model, Bool, "trust_remote_code", "false", NoEffect("no code of a model folder is run"), "Run Python code that comes with a model"),
        USE_FAST_TOKENIZER: bool = key(Model, Bool, "use_fast_tokenizer", "true", NoEffect("there is one tokenizer, the fast one"), "Use the fast tokenizer"),
        RESIZE_VOCAB: bool = key(Model, Bool, "resize_vocab", "false", Used, "Resize the embeddings to the tokenizer, rounded up to a multiple of 64; adapters then train embed_tokens and lm_head as well"),
        SPLIT_SPECIAL_TOKENS: bool = key(Model, Bool, "split_special_tokens", "true", Used, "Treat special tokens inside messages as plain text; false: encode them as special tokens, as LLaMA-Factory does"),
        ADD_TOKENS: Vec<String> = key(Model, List, "add_tokens", "", Used, "Tokens to add to the tokenizer and the model"),
        ADD_SPECIAL_TOKENS: Vec<String> = key(Model, List, "add_special_tokens", "", Used, "Special tokens to add to the tokenizer and the model"),
        NEW_SPECIAL_TOKENS: Vec<String> = key(Model, List, "new_special_tokens", "", Used, "Older name of add_special_tokens"),
        NEW_SPECIAL_TOKENS_CONFIG: Option<String> = key(Model, Path, "new_special_tokens_config", "", Used, "YAML file of special tokens to add, each with a description"),
        INIT_SPECIAL_TOKENS: String = key(Model, Choice(&["noise_init", "desc_init", "desc_init_w_noise"]), "init_special_tokens", "noise_init", Used, "Initialization of new token embeddings: the mean of all rows with noise (noise_init), or the mean of the tokens of the description, without or with noise"),
        ROPE_SCALING: Option<String> = key(Model, Choice(&["linear", "dynamic", "yarn", "llama3"]), "rope_scaling", "", Used, "Scaling of the rotary frequencies if cutoff_len exceeds max_position_embeddings"),
        FLASH_ATTN: String = key(Model, Choice(&["auto", "disabled", "sdpa", "fa2", "fa3", "flash_attention_2", "flash_attention_3"]), "flash_attn", "auto", NoEffect("attention never stores its S x S scores, whatever is written"), "Attention implementation"),
        ATTN_IMPLEMENTATION: Option<String> = key(Model, Text, "attn_implementation", "", NoEffect("attention never stores its S x S scores, whatever is written"), "Attention implementation"),
        SHIFT_ATTN: bool = key(Model, Bool, "shift_attn", "false", Later("shifted sparse attention is not there"), "Shifted sparse attention"),
        MIXTURE_OF_DEPTHS: Option<String> = key(Model, Choice(&["convert", "load"]), "mixture_of_depths", "", Later("mixture-of-depths models are not there"), "Mixture of depths"),
        USE_UNSLOTH: bool = key(Model, Bool, "use_unsloth", "false", NoEffect("the kernels are always our own"), "Kernels of Unsloth"),
        USE_UNSLOTH_GC: bool = key(Model, Bool, "use_unsloth_gc", "false", NoEffect("write gradient_checkpointing: true"), "Activation checkpointing of Unsloth"),
        ENABLE_LIGER_KERNEL: bool = key(Model, Bool, "enable_liger_kernel", "false", NoEffect("the kernels are always our own"), "Kernels of Liger"),
        USE_LIGER_KERNEL: bool = key(Model, Bool, "use_liger_kernel", "false", NoEffect("the kernels are always our own"), "Kernels of Liger"),
        USE_V1_KERNELS: bool = key(Model, Bool, "use_v1_kernels", "false", NoEffect("the kernels are always our own"), "Newer kernels of LLaMA-Factory"),
        MOE_AUX_LOSS_COEF: Option<f64> = key(Model, Float(NotNegative), "moe_aux_loss_coef", "", Later("mixture-of-experts models are not there"), "Weight of the load-balancing loss"),
        USE_KT: bool = key(Model, Bool, "use_kt", "false", Later("KTransformers is not there"), "Experts on the CPU with KTransformers"),
        KT_CPU_ACTIVATION: Option<String> = key(Model, Choice(&["retain", "recompute"]), "kt_cpu_activation", "", NoEffect("KTransformers is not there"), "Activations of these experts"),
        KT_WEIGHT_PATH: Option<String> = key(Model, Path, "kt_weight_path", "", NoEffect("KTransformers is not there"), "Their quantized weights"),
        KT_NON_EXPERT_WEIGHT_PATH: Option<String> = key(Model, Path, "kt_non_expert_weight_path", "", NoEffect("KTransformers is not there"), "The other weights"),
        KT_EXPERT_CHECKPOINT_PATH: Option<String> = key(Model, Path, "kt_expert_checkpoint_path", "", NoEffect("KTransformers is not there"), "Checkpoint of the experts"),
        KT_USE_LORA_EXPERTS: bool = key(Model, Bool, "kt_use_lora_experts", "", NoEffect("KTransformers is not there"), "LoRA experts"),
        KT_LORA_EXPERT_NUM: Option<usize> = key(Model, Int(1), "kt_lora_expert_num", "", NoEffect("KTransformers is not there"), "Number of LoRA experts"),
        KT_LORA_EXPERT_INTERMEDIATE_SIZE: Option<usize> = key(Model, Int(1), "kt_lora_expert_intermediate_size", "", NoEffect("KTransformers is not there"), "Width of LoRA experts"),
        KT_CONFIG: Vec<Entry> = key(Model, Map, "kt_config", "", NoEffect("KTransformers is not there"), "Settings of KTransformers"),
        DISABLE_GRADIENT_CHECKPOINTING: bool = key(Model, Bool, "disable_gradient_checkpointing", "false", Used, "Keep all activations, which is the default here"),
        GRADIENT_CHECKPOINTING: bool = key(Model, Bool, "gradient_checkpointing", "false", Used, "Recompute the activations of every unit in the backward pass"),
        ACTIVATION_CHECKPOINTING: String = key(Model, Text, "activation_checkpointing", "none", Used, "Our own: which activations to recompute: none, full, every-2 (every second unit), attention, mlp"),
        GRADIENT_CHECKPOINTING_KWARGS: Vec<Entry> = key(Model, Map, "gradient_checkpointing_kwargs", "", NoEffect("recomputation needs none"), "Arguments of recomputation"),
        USE_REENTRANT_GC: bool = key(Model, Bool, "use_reentrant_gc", "true", NoEffect("there is one kind"), "Kind of recomputation"),
        UPCAST_LAYERNORM: bool = key(Model, Bool, "upcast_layernorm", "false", NoEffect("norms always compute in f32"), "Norms in f32"),
        UPCAST_LMHEAD_OUTPUT: bool = key(Model, Bool, "upcast_lmhead_output", "false", NoEffect("the loss always adds up in f32"), "Logits in f32"),
        LOW_CPU_MEM_USAGE: bool = key(Model, Bool, "low_cpu_mem_usage", "true", NoEffect("weights are always mapped, never loaded twice"), "Load weights sparingly"),
        USE_CACHE: bool = key(Model, Bool, "use_cache", "false", NoEffect("training keeps no KV cache"), "KV cache"),
        USE_KV_CACHE: bool = key(Model, Bool, "use_kv_cache", "true", NoEffect("training keeps no KV cache"), "KV cache in generation"),
        INFER_BACKEND: String = key(Model, Text, "infer_backend", "huggingface", NoEffect("Oarlock itself generates the answers of do_predict"), "Engine of generation"),
        INFER_DTYPE: String = key(Model, Text, "infer_dtype", "auto", NoEffect("answers are generated in the precision of the run; `oarlock export` reads it"), "Precision of generation"),
        OFFLOAD_FOLDER: String = key(Model, Path, "offload_folder", "offload", NoEffect("weights stay in memory while answers are generated"), "Folder of offloaded weights"),
        EXPORT_DIR: Option<String> = key(Model, Path, "export_dir", "", NoEffect("training exports nothing; `oarlock export` does"), "Folder of the exported model"),
        EXPORT_SIZE: f64 = key(Model, Float(Positive), "export_size", "5", NoEffect("training exports nothing; `oarlock export` does"), "Gigabytes of a file of the exported model"),
        EXPORT_DEVICE: String = key(Model, Choice(&["cpu", "auto"]), "export_device", "cpu", NoEffect("training exports nothing; `oarlock export` does"), "Device of the export"),
        EXPORT_QUANTIZATION_BIT: Option<usize> = key(Model, Int(2), "export_quantization_bit", "", NoEffect("training exports nothing; `oarlock export` does"), "Bits of the exported weights"),
        EXPORT_QUANTIZATION_DATASET: Option<String> = key(Model, Text, "export_quantization_dataset", "", NoEffect("training exports nothing; `oarlock export` does"), "Data set of the quantization"),
        EXPORT_QUANTIZATION_NSAMPLES: usize = key(Model, Int(1), "export_quantization_nsamples", "128", NoEffect("training exports nothing; `oarlock export` does"), "Samples of the quantization"),
        EXPORT_QUANTIZATION_MAXLEN: usize = key(Model, Int(1), "export_quantization_maxlen", "1024", NoEffect("training exports nothing; `oarlock export` does"), "Tokens of these samples"),
        EXPORT_LEGACY_FORMAT: bool = key(Model, Bool, "export_legacy_format", "false", NoEffect("training exports nothing; `oarlock export` does"), "Export .bin files"),
        EXPORT_DEQUANTIZED: bool = key(Model, Bool, "export_dequantized", "false", NoEffect("training exports nothing; `oarlock export` does"), "Our own: merge into the dequantized weights of quantization_bit"),
        EXPORT_HUB_MODEL_ID: Option<String> = key(Model, Text, "export_hub_model_id", "", NoEffect("training exports nothing; `oarlock export` does"), "Name of the exported model in the hub"),
        VLLM_MAXLEN: usize = key(Model, Int(1), "vllm_maxlen", "4096", NoEffect("Oarlock itself generates the answers of do_predict"), "Tokens of a sequence in vLLM"),
        VLLM_GPU_UTIL: f64 = key(Model, Float(NotNegative), "vllm_gpu_util", "0.7", NoEffect("Oarlock itself generates the answers of do_predict"), "Share of the GPU memory for vLLM"),
        VLLM_ENFORCE_EAGER: bool = key(Model, Bool, "vllm_enforce_eager", "false", NoEffect("Oarlock itself generates the answers of do_predict"), "No CUDA graphs in vLLM"),
        VLLM_MAX_LORA_RANK: usize = key(Model, Int(1), "vllm_max_lora_rank", "32", NoEffect("Oarlock itself generates the answers of do_predict"), "Largest rank of LoRA in vLLM"),
        VLLM_CONFIG: Vec<Entry> = key(Model, Map, "vllm_config", "", NoEffect("Oarlock itself generates the answers of do_predict"), "Settings of vLLM"),
        SGLANG_MAXLEN: usize = key(Model, Int(1), "sglang_maxlen", "4096", NoEffect("Oarlock itself generates the answers of do_predict"), "Tokens of a sequence in SGLang"),
        SGLANG_MEM_FRACTION: f64 = key(Model, Float(NotNegative), "sglang_mem_fraction", "0.7", NoEffect("Oarlock itself generates the answers of do_predict"), "Share of the memory for SGLang"),
        SGLANG_TP_SIZE: i64 = key(Model, Int(-1), "sglang_tp_size", "-1", NoEffect("Oarlock itself generates the answers of do_predict"), "Tensor parallel ranks of SGLang"),
        SGLANG_CONFIG: Vec<Entry> = key(Model, Map, "sglang_config", "", NoEffect("Oarlock itself generates the answers of do_predict"), "Settings of SGLang"),
        SGLANG_LORA_BACKEND: String = key(Model, Choice(&["triton", "flashinfer"]), "sglang_lora_backend", "triton", NoEffect("Oarlock itself generates the answers of do_predict"), "Kernels of LoRA in SGLang"),
        DO_SAMPLE: bool = key(Model, Bool, "do_sample", "true", Used, "For do_predict and stage raft: sample; false: greedy decoding"),
        TEMPERATURE: f64 = key(Model, Float(NotNegative), "temperature", "0.95", Used, "For do_predict and stage raft: sampling temperature; 0: greedy decoding"),
        TOP_P: f64 = key(Model, Float(NotNegative), "top_p", "0.7", Used, "For do_predict and stage raft: probability mass of nucleus sampling"),
        TOP_K: i64 = key(Model, Int(-1), "top_k", "50", Used, "For do_predict and stage raft: sample from the N most probable tokens; 0 or -1: all"),
        NUM_BEAMS: i64 = key(Model, Int(1), "num_beams", "1", Used, "Beams of generation; only 1 is supported"),
        MAX_NEW_TOKENS: usize = key(Model, Int(1), "max_new_tokens", "1024", Used, "For do_predict and stage raft: maximum tokens of an answer"),
        REPETITION_PENALTY: f64 = key(Model, Float(NotNegative), "repetition_penalty", "1", Used, "For do_predict and stage raft: penalty of repeated tokens; 1: none"),
        LENGTH_PENALTY: f64 = key(Model, Float(Any), "length_penalty", "1", NoEffect("there is no beam search"), "Penalty of long answers in beam search"),
        SKIP_SPECIAL_TOKENS: bool = key(Model, Bool, "skip_special_tokens", "true", Used, "For do_predict: leave special tokens out of answers"),
        PRINT_PARAM_STATUS: bool = key(Model, Bool, "print_param_status", "false", NoEffect("the run says how many parameters are trained, not each of them"), "Print which parameters are trained"),
        IMAGE_MAX_PIXELS: usize = key(Model, Int(1), "image_max_pixels", "589824", NoEffect("models are of text only"), "Largest image"),
        IMAGE_MIN_PIXELS: usize = key(Model, Int(1), "image_min_pixels", "1024", NoEffect("models are of text only"), "Smallest image"),
        VIDEO_MAX_PIXELS: usize = key(Model, Int(1), "video_max_pixels", "65536", NoEffect("models are of text only"), "Largest video frame"),
        VIDEO_MIN_PIXELS: usize = key(Model, Int(1), "video_min_pixels", "256", NoEffect("models are of text only"), "Smallest video frame"),
        VIDEO_FPS: f64 = key(Model, Float(Positive), "video_fps", "2", NoEffect("models are of text only"), "Frames of a video per second"),
        VIDEO_MAXLEN: usize = key(Model, Int(1), "video_maxlen", "128", NoEffect("models are of text only"), "Frames of a video"),
        IMAGE_DO_PAN_AND_SCAN: bool = key(Model, Bool, "image_do_pan_and_scan", "false", NoEffect("models are of text only"), "Pan and scan of images"),
        CROP_TO_PATCHES: bool = key(Model, Bool, "crop_to_patches", "false", NoEffect("models are of text only"), "Cut images into patches"),
        USE_AUDIO_IN_VIDEO: bool = key(Model, Bool, "use_audio_in_video", "false", NoEffect("models are of text only"), "Sound of videos"),
        AUDIO_SAMPLING_RATE: usize = key(Model, Int(1), "audio_sampling_rate", "16000", NoEffect("models are of text only"), "Samples of sound per second"),
        FREEZE_VISION_TOWER: bool = key(Model, Bool, "freeze_vision_tower", "true", NoEffect("models are of text only"), "Leave the vision tower as it is"),
        FREEZE_MULTI_MODAL_PROJECTOR: bool = key(Model, Bool, "freeze_multi_modal_projector", "true", NoEffect("models are of text only"), "Leave the projector as it is"),
        FREEZE_LANGUAGE_MODEL: bool = key(Model, Bool, "freeze_language_model", "false", Later("models are of text only"), "Leave the language model as it is"),
        DATASET: Vec<String> = key(Data, List, "dataset", "", Used, "Data sets: paths, or names in dataset_info.json"),
        EVAL_DATASET: Vec<String> = key(Data, List, "eval_dataset", "", Used, "Data sets of the evaluation: paths, or names in dataset_info.json"),
        DATASET_DIR: String = key(Data, Path, "dataset_dir", "data", Used, "Folder of dataset_info.json and its files"),
        CUTOFF_LEN: usize = key(Data, Int(2), "cutoff_len", "2048", Used, "Tokens of a sequence"),
        PACKING: bool = key(Data, Bool, "packing", "true", Used, "Concatenate texts and cut them into full sequences; false: one padded text per sequence. Stage sft (default false): whole conversations share a row without attending to each other"),
        NEAT_PACKING: bool = key(Data, Bool, "neat_packing", "false", Used, "Packing without attention between texts; in stage sft the same as packing"),
        MINIMIND_ROWS: bool = key(Data, Bool, "minimind_rows", "false", Used, "Our own: MiniMind's rows: begin token, one text, end token, padding; packing is ignored"),
        MAX_SAMPLES: Option<usize> = key(Data, Int(1), "max_samples", "", Used, "Read at most this many records of a data set"),
        VAL_SIZE: f64 = key(Data, Float(NotNegative), "val_size", "0", Used, "Records held out for evaluation: a count, or a fraction below 1"),
        DISABLE_SHUFFLING: bool = key(Data, Bool, "disable_shuffling", "false", Used, "Take the sequences in the order of the files"),
        OVERWRITE_CACHE: bool = key(Data, Bool, "overwrite_cache", "false", Used, "Rebuild the token cache"),
        PREPROCESSING_NUM_WORKERS: Option<usize> = key(Data, Int(1), "preprocessing_num_workers", "", Used, "Threads of the tokenization; unset: one for each core"),
        PREPROCESSING_BATCH_SIZE: usize = key(Data, Int(1), "preprocessing_batch_size", "1000", NoEffect("the cache is written as a stream"), "Records in a batch of the tokenization"),
        TOKENIZED_PATH: Option<String> = key(Data, Path, "tokenized_path", "", Used, "Folder of a tokenized data set: read if it exists, else written; unset: the token cache of output_dir"),
        DATA_SHARED_FILE_SYSTEM: bool = key(Data, Bool, "data_shared_file_system", "false", NoEffect("the machines find out whether they share output_dir; one of those that do builds the cache"), "Whether machines share their files"),
        STREAMING: bool = key(Data, Bool, "streaming", "false", Used, "Accept data sets larger than memory; they are tokenized to disk first, as without it"),
        BUFFER_SIZE: usize = key(Data, Int(1), "buffer_size", "16384", NoEffect("the whole data set is shuffled, streamed or not"), "Shuffle buffer of streaming"),
        MIX_STRATEGY: String = key(Data, Choice(&["concat", "interleave_under", "interleave_over", "interleave_once"]), "mix_strategy", "concat", Used, "How to mix data sets: one after another (concat), or interleaved until the first ends (under), until all have ended with repeats (over), or without repeats (once)"),
        INTERLEAVE_PROBS: Vec<String> = key(Data, List, "interleave_probs", "", Used, "Probabilities of interleaved data sets; unset: round robin"),
        TEMPLATE: Option<String> = key(Data, Text, "template", "", Used, "Chat template"),
        TOOL_FORMAT: Option<String> = key(Data, Text, "tool_format", "", Used, "Format of tool calls"),
        DEFAULT_SYSTEM: Option<String> = key(Data, Text, "default_system", "", Used, "System message"),
        ENABLE_THINKING: Option<bool> = key(Data, Bool, "enable_thinking", "", Used, "Thoughts of reasoning models: true (the default) trains on an empty thought if there is none; false gives it as input and removes other thoughts; null gives it as input and keeps them"),
        PRESERVE_THINKING: bool = key(Data, Bool, "preserve_thinking", "false", Used, "Keep thoughts of earlier turns"),
        MEDIA_DIR: Option<String> = key(Data, Path, "media_dir", "", NoEffect("models are of text only"), "Folder of images, videos and sounds"),
        TRAIN_ON_PROMPT: bool = key(Data, Bool, "train_on_prompt", "false", Used, "Compute the loss on prompts, too"),
        MASK_HISTORY: bool = key(Data, Bool, "mask_history", "false", Used, "Compute the loss on the last turn only"),
        IGNORE_PAD_TOKEN_FOR_LOSS: bool = key(Data, Bool, "ignore_pad_token_for_loss", "true", Later("padding never counts in the loss"), "Leave padding out of the loss"),
        DATALOADER_NUM_WORKERS: usize = key(Data, Int(0), "dataloader_num_workers", "0", NoEffect("tokens are read from a mapped file"), "Processes that load data"),
        DATALOADER_PIN_MEMORY: bool = key(Data, Bool, "dataloader_pin_memory", "true", NoEffect("tokens are read from a mapped file"), "Pinned memory of the loader"),
        DATALOADER_PERSISTENT_WORKERS: bool = key(Data, Bool, "dataloader_persistent_workers", "false", NoEffect("tokens are read from a mapped file"), "Keep loader processes"),
        DATALOADER_PREFETCH_FACTOR: Option<usize> = key(Data, Int(1), "dataloader_prefetch_factor", "", NoEffect("tokens are read from a mapped file"), "Batches loaded ahead"),
        DATALOADER_DROP_LAST: bool = key(Data, Bool, "dataloader_drop_last", "false", Later("the last batch of an epoch is always trained on"), "Drop the last incomplete batch"),
        REMOVE_UNUSED_COLUMNS: bool = key(Data, Bool, "remove_unused_columns", "true", NoEffect("only the text column is read"), "Drop columns that the model does not take"),
        GROUP_BY_LENGTH: bool = key(Data, Bool, "group_by_length", "false", Used, "Batch sequences of similar length, within windows of up to 50 steps"),
        TRAIN_SAMPLING_STRATEGY: String = key(Data, Choice(&["random", "sequential", "group_by_length"]), "train_sampling_strategy", "random", Used, "Order of sequences; sequential is disable_shuffling, group_by_length the key of that name"),
        STAGE: String = key(Method, Choice(&["pt", "sft", "rm", "ppo", "dpo", "kto", "raft"]), "stage", "pt", Among(&["pt", "sft", "dpo", "kto", "rm", "raft"], "pretraining, supervised fine-tuning, preferences (dpo, kto), reward models (rm) and rejection sampling (raft) are there"), "Training stage: pretraining (pt), supervised fine-tuning (sft), preference pairs (dpo), unpaired preferences (kto), reward model (rm), or rejection sampling (raft, our own)"),
        FINETUNING_TYPE: String = key(Method, Choice(&["full", "lora", "freeze", "oft"]), "finetuning_type", "full", Used, "Which parameters to train: all (full), low-rank adapters (lora), orthogonal rotations (oft), or some layers (freeze)"),
        DO_TRAIN: bool = key(Method, Bool, "do_train", "true", Used, "Train; false: only evaluate"),
        DO_PREDICT: bool = key(Method, Bool, "do_predict", "false", Used, "Predict on the evaluation data after training: stage sft, with predict_with_generate, generates and scores answers; stage rm scores both answers of each pair"),
        PREDICT_WITH_GENERATE: bool = key(Method, Bool, "predict_with_generate", "false", Used, "Generate in do_predict; evaluations compute the loss in either case"),
        ADAPTER_NAME_OR_PATH: Vec<String> = key(Method, List, "adapter_name_or_path", "", Used, "Adapters to start from, as PEFT writes them: all but the last are merged in order, and the last is trained further"),
        ADAPTER_FOLDER: Option<String> = key(Method, Path, "adapter_folder", "", Used, "Folder of the adapter below each of adapter_name_or_path"),
        CREATE_NEW_ADAPTER: bool = key(Method, Bool, "create_new_adapter", "false", Used, "Merge all of adapter_name_or_path and create a new adapter"),
        LORA_RANK: usize = key(Method, Int(1), "lora_rank", "8", Used, "Rank of the adapters"),
        LORA_ALPHA: Option<usize> = key(Method, Int(0), "lora_alpha", "", Used, "Scale of the update: lora_alpha / lora_rank; default: twice the rank"),
        LORA_DROPOUT: f64 = key(Method, Float(BelowOne), "lora_dropout", "0", Used, "Dropout probability of the adapter's input"),
        LORA_TARGET: Vec<String> = key(Method, List, "lora_target", "all", Used, "Linear layers with an adapter, such as q_proj, v_proj; all: every one but lm_head"),
        ADDITIONAL_TARGET: Vec<String> = key(Method, List, "additional_target", "", Used, "Modules to train in full beside the adapters, such as embed_tokens, lm_head"),
        FREEZE_TRAINABLE_LAYERS: i64 = key(Method, Int(i64::MIN), "freeze_trainable_layers", "2", Used, "With finetuning_type freeze: train the last N layers, or the first N if negative"),
        FREEZE_TRAINABLE_MODULES: Vec<String> = key(Method, List, "freeze_trainable_modules", "all", Used, "Modules of these layers to train, such as mlp, self_attn"),
        FREEZE_EXTRA_MODULES: Vec<String> = key(Method, List, "freeze_extra_modules", "", Used, "Modules outside the layers to train, such as norm"),
        USE_RSLORA: bool = key(Method, Bool, "use_rslora", "false", Used, "Scale the update by lora_alpha / √lora_rank (rank-stabilized LoRA)"),
        USE_DORA: bool = key(Method, Bool, "use_dora", "false", Used, "Train magnitude and direction of the weights separately (DoRA)"),
        PISSA_INIT: bool = key(Method, Bool, "pissa_init", "false", Used, "Initialize the adapter from the principal singular values and vectors of each weight, which are subtracted from the base (PiSSA)"),
        LORAPLUS_LR_RATIO: Option<f64> = key(Method, Float(NotNegative), "loraplus_lr_ratio", "", Used, "LoRA+: ratio of the learning rates of lora_B and lora_A"),
        LORAPLUS_LR_EMBEDDING: f64 = key(Method, Float(NotNegative), "loraplus_lr_embedding", "1e-6", NoEffect("embeddings have no updates of low rank"), "LoRA+: learning rate of embeddings"),
        PREF_BETA: f64 = key(Method, Float(Positive), "pref_beta", "0.1", Used, "Stages dpo and kto: beta, the factor of the log-probability ratios"),
        PREF_FTX: f64 = key(Method, Float(NotNegative), "pref_ftx", "0", Used, "Stages dpo and kto: weight of the SFT loss of the chosen answers"),
        PREF_LOSS: String = key(Method, Choice(&["sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo"]), "pref_loss", "sigmoid", Among(&["sigmoid", "hinge", "ipo", "orpo", "simpo"], "kto_pair is no longer in TRL; write stage: kto, with unpaired preferences"), "Loss of stage dpo: sigmoid is DPO; orpo and simpo need no reference model"),
        PREF_BCO_WEIGHT: f64 = key(Method, Float(NotNegative), "pref_bco_weight", "0", Used, "Stage dpo: weight of the BCO loss"),
        DPO_LABEL_SMOOTHING: f64 = key(Method, Float(BelowOne), "dpo_label_smoothing", "0", Used, "Stage dpo with pref_loss sigmoid: label smoothing, the probability that the labels of a pair are swapped"),
        SIMPO_GAMMA: f64 = key(Method, Float(NotNegative), "simpo_gamma", "0.5", Used, "Margin of pref_loss simpo"),
        KTO_CHOSEN_WEIGHT: f64 = key(Method, Float(NotNegative), "kto_chosen_weight", "1", Used, "Stage kto: weight of desirable answers"),
        KTO_REJECTED_WEIGHT: f64 = key(Method, Float(NotNegative), "kto_rejected_weight", "1", Used, "Stage kto: weight of undesirable answers"),
        PPO_EPOCHS: usize = key(Method, Int(1), "ppo_epochs", "4", NoEffect("stage ppo is not there"), "Passes over a buffer in stage ppo"),
        PPO_BUFFER_SIZE: usize = key(Method, Int(1), "ppo_buffer_size", "1", NoEffect("stage ppo is not there"), "Size of the buffer in stage ppo"),
        PPO_TARGET: f64 = key(Method, Float(NotNegative), "ppo_target", "6", NoEffect("stage ppo is not there"), "Target of the divergence in stage ppo"),
        PPO_SCORE_NORM: bool = key(Method, Bool, "ppo_score_norm", "false", NoEffect("stage ppo is not there"), "Normalize scores in stage ppo"),
        PPO_WHITEN_REWARDS: bool = key(Method, Bool, "ppo_whiten_rewards", "false", NoEffect("stage ppo is not there"), "Whiten rewards in stage ppo"),
        REF_MODEL: Option<String> = key(Method, Path, "ref_model", "", Used, "Stages dpo and kto: folder of the reference model; unset: the initial weights of the run"),
        REF_MODEL_ADAPTERS: Vec<String> = key(Method, List, "ref_model_adapters", "", Used, "Adapters to merge into ref_model"),
        REF_MODEL_QUANTIZATION_BIT: Option<usize> = key(Method, Int(2), "ref_model_quantization_bit", "", Used, "Quantize the linear layers of ref_model to 4 or 8 bits, with quantization_type and double_quantization"),
        LD_ALPHA: Option<f64> = key(Method, Float(NotNegative), "ld_alpha", "", Used, "Stage dpo: weight of the tokens of the longer answer beyond the length of the shorter one (LD-DPO); unset: 1"),
        REWARD_MODEL: Option<String> = key(Method, Path, "reward_model", "", Used, "Stage raft: folder of the reward model (from stage rm) that scores answers, instead of reward_function"),
        REWARD_FUNCTION: Option<String> = key(Method, Choice(&["exact_match", "regex", "length"]), "reward_function", "", Used, "Stage raft (our own): rule that scores answers; exact_match: 1 if the final answer equals that of the data; regex: 1 if reward_pattern matches; length: the fraction of max_new_tokens"),
        REWARD_PATTERN: Option<String> = key(Method, Text, "reward_pattern", "", Used, "With reward_function regex (our own): the regular expression; {answer} is replaced by the final answer of the data"),
        NUM_GENERATIONS: usize = key(Method, Int(1), "num_generations", "4", Used, "Stage raft (our own): answers per prompt; the best one is trained on"),
        MIN_REWARD: Option<f64> = key(Method, Float(Any), "min_reward", "", Used, "Stage raft (our own): train on the best answer only if its reward is higher; unset: 0 with reward_function, no threshold with reward_model"),
        REWARD_MODEL_ADAPTERS: Vec<String> = key(Method, List, "reward_model_adapters", "", NoEffect("stage raft takes a whole reward model"), "Adapters of the reward model"),
        REWARD_MODEL_QUANTIZATION_BIT: Option<usize> = key(Method, Int(2), "reward_model_quantization_bit", "", NoEffect("stage raft takes a whole reward model"), "Bits of the reward model"),
        REWARD_MODEL_TYPE: String = key(Method, Choice(&["lora", "full", "api"]), "reward_model_type", "lora", NoEffect("stage raft takes a whole reward model"), "Kind of the reward model"),
        PISSA_ITER: i64 = key(Method, Int(-1), "pissa_iter", "16", Used, "Power iterations of the fast SVD of PiSSA; -1: exact SVD"),
        PISSA_CONVERT: bool = key(Method, Bool, "pissa_convert", "false", Used, "At the end, also write the PiSSA adapter as a LoRA adapter of twice the rank into output_dir/pissa_converted"),
        OFT_TARGET: Vec<String> = key(Method, List, "oft_target", "all", Used, "Linear layers that OFT rotates, such as q_proj, v_proj; all: every one but lm_head"),
        OFT_RANK: usize = key(Method, Int(0), "oft_rank", "0", Used, "With finetuning_type oft: number of rotated blocks per layer; 0: derived from oft_block_size"),
        OFT_BLOCK_SIZE: usize = key(Method, Int(0), "oft_block_size", "32", Used, "With finetuning_type oft: size of a rotated block, adjusted to divide the inputs of the layer; 0: derived from oft_rank"),
        MODULE_DROPOUT: f64 = key(Method, Float(BelowOne), "module_dropout", "0", Used, "With finetuning_type oft: dropout probability of a block"),
        QUANTIZATION_BIT: Option<usize> = key(Method, Int(2), "quantization_bit", "", Used, "Quantize the linear layers below adapters to N bits (QLoRA)"),
        QUANTIZATION_METHOD: String = key(Method, Choice(&["bnb", "bitsandbytes", "hqq", "eetq"]), "quantization_method", "bnb", Among(&["bnb", "bitsandbytes"], "the formats of bitsandbytes (bnb) are there"), "Quantization method; bitsandbytes is the older name of bnb"),
        QUANTIZATION_TYPE: String = key(Method, Choice(&["fp4", "nf4"]), "quantization_type", "nf4", Used, "With quantization_bit 4: NormalFloat (nf4) or 4-bit floats (fp4)"),
        QUANTIZATION_DEVICE_MAP: Option<String> = key(Method, Choice(&["auto"]), "quantization_device_map", "", NoEffect("there is one device"), "Devices of quantized weights"),
        FP8_BACKEND: String = key(Method, Text, "fp8_backend", "auto", NoEffect("nothing computes in fp8"), "Kernels of fp8"),
        FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER: bool = key(Method, Bool, "fp8_enable_fsdp_float8_all_gather", "false", NoEffect("nothing computes in fp8"), "Gather weights in fp8"),
        DOUBLE_QUANTIZATION: bool = key(Method, Bool, "double_quantization", "true", Used, "With quantization_bit 4: quantize the scales, too"),
        USE_GALORE: bool = key(Method, Bool, "use_galore", "false", Used, "AdamW in a subspace of the gradients of linear layers (GaLore), with optim adamw_torch and finetuning_type full or freeze"),
        GALORE_TARGET: Vec<String> = key(Method, List, "galore_target", "all", Used, "Linear layers that use GaLore, by words in their names; all: every one but lm_head"),
        GALORE_RANK: usize = key(Method, Int(1), "galore_rank", "16", Used, "Rank of the subspaces of GaLore"),
        GALORE_UPDATE_INTERVAL: u64 = key(Method, Int(1), "galore_update_interval", "200", Used, "Steps between updates of the subspace of GaLore"),
        GALORE_SCALE: f64 = key(Method, Float(NotNegative), "galore_scale", "2", Used, "Scale of the updates of GaLore"),
        GALORE_PROJ_TYPE: String = key(Method, Choice(&["std", "reverse_std", "right", "left", "full"]), "galore_proj_type", "std", Used, "Projected side of a gradient in GaLore: the smaller one (std), the larger one, columns, rows, or both"),
        GALORE_LAYERWISE: bool = key(Method, Bool, "galore_layerwise", "false", Later("write false: the optimizer steps after the backward pass, when gradients are summed over the ranks and clipped"), "GaLore layer by layer"),
        USE_APOLLO: bool = key(Method, Bool, "use_apollo", "false", Used, "Scale the gradients of linear layers by AdamW in a subspace (APOLLO), with optim adamw_torch and finetuning_type full or freeze"),
        APOLLO_TARGET: Vec<String> = key(Method, List, "apollo_target", "all", Used, "Linear layers that use APOLLO, by words in their names; all: every one but lm_head"),
        APOLLO_RANK: usize = key(Method, Int(1), "apollo_rank", "16", Used, "Rank of the subspaces of APOLLO"),
        APOLLO_UPDATE_INTERVAL: u64 = key(Method, Int(1), "apollo_update_interval", "200", Used, "Steps between updates of the subspace of APOLLO"),
        APOLLO_SCALE: f64 = key(Method, Float(NotNegative), "apollo_scale", "32", Used, "Scale of APOLLO; updates are multiplied by its square root"),
        APOLLO_PROJ: String = key(Method, Choice(&["svd", "random"]), "apollo_proj", "random", Used, "Projection of APOLLO: random, or the principal singular vectors of the gradient (svd)"),
        APOLLO_PROJ_TYPE: String = key(Method, Choice(&["std", "right", "left"]), "apollo_proj_type", "std", Used, "Projected side of a gradient in APOLLO: the smaller one (std), columns or rows"),
        APOLLO_SCALE_TYPE: String = key(Method, Choice(&["channel", "tensor"]), "apollo_scale_type", "channel", Used, "Scaling of APOLLO: one factor per channel, or one per tensor"),
        APOLLO_LAYERWISE: bool = key(Method, Bool, "apollo_layerwise", "false", Later("write false: the optimizer steps after the backward pass, when gradients are summed over the ranks and clipped"), "APOLLO layer by layer"),
        APOLLO_SCALE_FRONT: bool = key(Method, Bool, "apollo_scale_front", "false", Used, "Apply the scale of APOLLO before the norm-growth limiter"),
        USE_BADAM: bool = key(Method, Bool, "use_badam", "false", Later("it is not among the optimizers of optim"), "Optimizer BAdam"),
        BADAM_MODE: String = key(Method, Choice(&["layer", "ratio"]), "badam_mode", "layer", NoEffect("this optimizer is not among those of optim"), "What BAdam updates"),
        BADAM_START_BLOCK: Option<usize> = key(Method, Int(0), "badam_start_block", "", NoEffect("this optimizer is not among those of optim"), "First block of BAdam"),
        BADAM_SWITCH_MODE: String = key(Method, Choice(&["ascending", "descending", "random", "fixed"]), "badam_switch_mode", "ascending", NoEffect("this optimizer is not among those of optim"), "Order of the blocks of BAdam"),
        BADAM_SWITCH_INTERVAL: i64 = key(Method, Int(-1), "badam_switch_interval", "50", NoEffect("this optimizer is not among those of optim"), "Steps of a block of BAdam"),
        BADAM_UPDATE_RATIO: f64 = key(Method, Float(NotNegative), "badam_update_ratio", "0.05", NoEffect("this optimizer is not among those of optim"), "Share of the weights that BAdam updates"),
        BADAM_MASK_MODE: String = key(Method, Choice(&["adjacent", "scatter"]), "badam_mask_mode", "adjacent", NoEffect("this optimizer is not among those of optim"), "Which weights BAdam updates"),
        BADAM_VERBOSE: usize = key(Method, Int(0), "badam_verbose", "0", NoEffect("this optimizer is not among those of optim"), "Messages of BAdam"),
        USE_ADAM_MINI: bool = key(Method, Bool, "use_adam_mini", "false", Later("it is not among the optimizers of optim"), "Optimizer Adam-mini"),
        USE_MUON: bool = key(Method, Bool, "use_muon", "false", Used, "As in LLaMA-Factory: optim muon with optim_args adjust_lr_fn=match_rms_adamw"),
        USE_LLAMA_PRO: bool = key(Method, Bool, "use_llama_pro", "false", Used, "With finetuning_type freeze: spread freeze_trainable_layers evenly over the model, like the layers that LLaMA-Pro adds"),
        USE_DFT_LOSS: bool = key(Method, Bool, "use_dft_loss", "false", Used, "Stage sft: dynamic fine-tuning (DFT), which weights the loss of a token by its probability"),
        USE_ASFT_LOSS: bool = key(Method, Bool, "use_asft_loss", "false", Later("it needs a reference model, which stage sft does not load"), "ASFT loss"),
        ASFT_ALPHA: f64 = key(Method, Float(NotNegative), "asft_alpha", "0.1", NoEffect("the ASFT loss is not there"), "Alpha of the ASFT loss"),
        USE_EAFT_LOSS: bool = key(Method, Bool, "use_eaft_loss", "false", Used, "Stage sft: entropy-adaptive fine-tuning (EAFT), which weights the loss of a token by (H / 3)^eaft_alpha, with H the entropy of the 20 most probable tokens"),
        EAFT_ALPHA: f64 = key(Method, Float(NotNegative), "eaft_alpha", "1", Used, "Alpha of the EAFT loss"),
        USE_MCA: bool = key(Method, Bool, "use_mca", "false", Later("the engine is our own"), "Megatron backend"),
        USE_MEGATRON_BRIDGE: bool = key(Method, Bool, "use_megatron_bridge", "false", Later("the engine is our own"), "Megatron Bridge backend"),
        USE_HYPER_PARALLEL: bool = key(Method, Bool, "use_hyper_parallel", "false", Later("the engine is our own"), "HyperParallel backend"),
        HYPER_PARALLEL_ARGS: Option<String> = key(Method, Path, "hyper_parallel_args", "", NoEffect("the engine is our own"), "File of its settings"),
        HYPER_PARALLEL_CP_SIZE: usize = key(Method, Int(1), "hyper_parallel_cp_size", "1", NoEffect("the engine is our own"), "Context parallel ranks"),
        TENSOR_MODEL_PARALLEL_SIZE: usize = key(Method, Int(1), "tensor_model_parallel_size", "1", Later("it belongs to the engine of Megatron, which is not there"), "Tensor parallel ranks of Megatron"),
        PIPELINE_MODEL_PARALLEL_SIZE: usize = key(Method, Int(1), "pipeline_model_parallel_size", "1", Used, "Pipeline parallel stages; the ranks of a stage are data parallel"),
        PIPELINE_SCHEDULE: String = key(Method, Choice(&["1f1b", "interleaved"]), "pipeline_schedule", "1f1b", Used, "Our own: pipeline schedule; interleaved puts several parts of the model on each stage"),
        NUM_VIRTUAL_STAGES: usize = key(Method, Int(1), "num_virtual_stages", "1", Used, "Our own: parts of the model on each pipeline stage; at least 2 with interleaved"),
        PARTITION_METHOD: String = key(Method, Text, "partition_method", "parameters", Used, "How to partition the model into stages, as in DeepSpeed: parameters, uniform or type:REGEX"),
        EXPERT_MODEL_PARALLEL_SIZE: usize = key(Method, Int(1), "expert_model_parallel_size", "1", Later("it belongs to the engine of Megatron, which is not there"), "Expert parallel ranks of Megatron"),
        CONTEXT_PARALLEL_SIZE: usize = key(Method, Int(1), "context_parallel_size", "1", Later("it belongs to the engine of Megatron, which is not there"), "Context parallel ranks of Megatron"),
        SEQUENCE_PARALLEL: bool = key(Method, Bool, "sequence_parallel", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Sequence parallel ranks of Megatron"),
        APPLY_ROPE_FUSION: bool = key(Method, Bool, "apply_rope_fusion", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Fused kernels of Megatron"),
        BIAS_ACTIVATION_FUSION: bool = key(Method, Bool, "bias_activation_fusion", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Fused kernels of Megatron"),
        MOE_GROUPED_GEMM: bool = key(Method, Bool, "moe_grouped_gemm", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Kernels of experts of Megatron"),
        MOE_TOKEN_DISPATCHER_TYPE: Option<String> = key(Method, Text, "moe_token_dispatcher_type", "", NoEffect("it belongs to the engine of Megatron, which is not there"), "How Megatron sends tokens to experts"),
        OVERLAP_GRAD_REDUCE: bool = key(Method, Bool, "overlap_grad_reduce", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Overlap of communication of Megatron"),
        OVERLAP_PARAM_GATHER: bool = key(Method, Bool, "overlap_param_gather", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Overlap of communication of Megatron"),
        RECOMPUTE_GRANULARITY: Option<String> = key(Method, Text, "recompute_granularity", "", NoEffect("it belongs to the engine of Megatron, which is not there"), "What Megatron recomputes; write activation_checkpointing"),
        USE_DISTRIBUTED_OPTIMIZER: bool = key(Method, Bool, "use_distributed_optimizer", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Optimizer of Megatron"),
        USE_PACKED_SEQUENCES: bool = key(Method, Bool, "use_packed_sequences", "false", NoEffect("it belongs to the engine of Megatron, which is not there"), "Packed sequences of Megatron"),
        EXPORT_HF_ON_FINISH: bool = key(Method, Bool, "export_hf_on_finish", "true", NoEffect("the model is always a Hugging Face folder"), "Write a Hugging Face folder at the end"),
        USE_RAY: bool = key(Method, Bool, "use_ray", "false", Later("ranks are started by this program"), "Start ranks by Ray"),
        RAY_NUM_WORKERS: usize = key(Method, Int(1), "ray_num_workers", "1", NoEffect("ranks are started by this program"), "Ranks of Ray"),
        RAY_INIT_KWARGS: Vec<Entry> = key(Method, Map, "ray_init_kwargs", "", NoEffect("ranks are started by this program"), "Settings of Ray"),
        PER_DEVICE_TRAIN_BATCH_SIZE: usize = row(training::PER_DEVICE_TRAIN_BATCH_SIZE),
        GRADIENT_ACCUMULATION_STEPS: usize = row(training::GRADIENT_ACCUMULATION_STEPS),
        NUM_TRAIN_EPOCHS: f64 = key(Train, Float(Positive), "num_train_epochs", "3", Used, "Passes over the data"),
        MAX_STEPS: i64 = key(Train, Int(-1), "max_steps", "-1", Used, "Optimizer steps; when positive it replaces num_train_epochs"),
        MAX_GRAD_NORM: f64 = row(training::MAX_GRAD_NORM),
        BF16: bool = row(training::BF16),
        FP16: bool = row(training::FP16),
        PURE_BF16: bool = key(Train, Bool, "pure_bf16", "false", Used, "As bf16: true; master weights and moments stay in f32"),
        MIXED_PRECISION: Option<String> = key(Train, Text, "mixed_precision", "", Later("write bf16: true or fp16: true"), "Precision, as Accelerate and Megatron name it"),
        FP8: bool = key(Train, Bool, "fp8", "false", Later("use bf16: true"), "Compute in fp8"),
        TF32: bool = key(Train, Bool, "tf32", "", Used, "On a GPU, compute f32 matrix products in TF32, which is many times faster; no effect on the CPU"),
        SEED: u64 = key(Train, Int(0), "seed", "42", Used, "Seed of initial weights, shuffling, dropout and what val_size holds out"),
        DATA_SEED: Option<u64> = key(Train, Int(0), "data_seed", "", Used, "Seed of shuffling alone; unset: seed"),
        FULL_DETERMINISM: bool = key(Train, Bool, "full_determinism", "false", NoEffect("every run is deterministic"), "Bitwise identical results on every run"),
        LABEL_SMOOTHING_FACTOR: f64 = key(Train, Float(BelowOne), "label_smoothing_factor", "0", Used, "Label smoothing: the share of the loss that is spread over the whole vocabulary"),
        NEFTUNE_NOISE_ALPHA: Option<f64> = key(Train, Float(NotNegative), "neftune_noise_alpha", "", Used, "Noise on the embeddings (NEFTune): uniform in ±alpha / √(tokens · hidden_size) for each example; 0 or unset: none"),
        EARLY_STOPPING_STEPS: Option<u64> = key(Train, Int(1), "early_stopping_steps", "", Used, "Stop after N evaluations in a row without improvement of metric_for_best_model"),
        AVERAGE_TOKENS_ACROSS_DEVICES: bool = key(Train, Bool, "average_tokens_across_devices", "true", NoEffect("every token of a step has the same weight on all ranks, always"), "Weight the loss by tokens over all ranks"),
        AUTO_FIND_BATCH_SIZE: bool = key(Train, Bool, "auto_find_batch_size", "false", Later("memory is checked before the start"), "Halve the batch until it fits"),
        TORCH_COMPILE: bool = key(Train, Bool, "torch_compile", "false", NoEffect("there is nothing to compile"), "Compile the model"),
        TORCH_COMPILE_BACKEND: Option<String> = key(Train, Text, "torch_compile_backend", "", NoEffect("there is nothing to compile"), "Backend of compilation"),
        TORCH_COMPILE_MODE: Option<String> = key(Train, Text, "torch_compile_mode", "", NoEffect("there is nothing to compile"), "Mode of compilation"),
        USE_CPU: bool = key(Train, Bool, "use_cpu", "false", Used, "Train on the CPU, also where there is a GPU (device: cpu)"),
        NO_CUDA: bool = key(Train, Bool, "no_cuda", "false", Used, "The older name of use_cpu"),
        TORCH_EMPTY_CACHE_STEPS: Option<usize> = key(Train, Int(1), "torch_empty_cache_steps", "", NoEffect("buffers are allocated once"), "Empty the memory cache"),
        OPTIM: String = row(training::OPTIM),
        OPTIM_ARGS: Option<String> = row(training::OPTIM_ARGS),
        LEARNING_RATE: f64 = row(training::LEARNING_RATE),
        WEIGHT_DECAY: f64 = row(training::WEIGHT_DECAY),
        ADAM_BETA1: f64 = row(training::ADAM_BETA1),
        ADAM_BETA2: f64 = row(training::ADAM_BETA2),
        ADAM_EPSILON: f64 = row(training::ADAM_EPSILON),
        LR_SCHEDULER_TYPE: String = row(training::LR_SCHEDULER_TYPE),
        LR_SCHEDULER_KWARGS: Vec<Entry> = row(training::LR_SCHEDULER_KWARGS),
        MIN_LR_RATIO: Option<f64> = row(training::MIN_LR_RATIO),
        WARMUP_STEPS: f64 = row(training::WARMUP_STEPS),
        WARMUP_RATIO: f64 = row(training::WARMUP_RATIO),
        DO_EVAL: bool = key(Eval, Bool, "do_eval", "false", Used, "Evaluate at the end; the default if there is evaluation data"),
        EVAL_STRATEGY: String = key(Eval, Choice(&["no", "steps", "epoch"]), "eval_strategy", "no", Used, "When to evaluate"),
        EVALUATION_STRATEGY: Option<String> = key(Eval, Choice(&["no", "steps", "epoch"]), "evaluation_strategy", "", Used, "Older name of eval_strategy"),
        EVAL_STEPS: Option<f64> = key(Eval, Steps, "eval_steps", "", Used, "Steps between evaluations; unset: logging_steps"),
        PER_DEVICE_EVAL_BATCH_SIZE: usize = key(Eval, Int(1), "per_device_eval_batch_size", "8", Used, "Sequences of a rank in one evaluation pass"),
        EVAL_ON_START: bool = key(Eval, Bool, "eval_on_start", "false", Used, "Evaluate before the first step, too"),
        EVAL_DELAY: f64 = key(Eval, Float(NotNegative), "eval_delay", "0", Used, "Steps, or epochs with eval_strategy: epoch, before the first evaluation of eval_strategy"),
        EVAL_ON_EACH_DATASET: bool = key(Eval, Bool, "eval_on_each_dataset", "false", Used, "Evaluate each data set of eval_dataset separately, as eval_NAME_loss"),
        EVAL_ACCUMULATION_STEPS: Option<usize> = key(Eval, Int(1), "eval_accumulation_steps", "", NoEffect("what evaluation needs of a batch is summed at once, and no predictions are kept"), "Steps before predictions leave the device"),
        EVAL_NUM_BEAMS: Option<usize> = key(Eval, Int(1), "eval_num_beams", "", NoEffect("there is no beam search"), "Beams of generation"),
        PREDICTION_LOSS_ONLY: bool = key(Eval, Bool, "prediction_loss_only", "false", NoEffect("evaluation keeps no predictions, and its other metrics cost nothing"), "Evaluate the loss only"),
        COMPUTE_ACCURACY: bool = key(Eval, Bool, "compute_accuracy", "false", Used, "Also evaluate the token accuracy, as eval_accuracy: the mean over examples"),
        OUTPUT_DIR: Option<String> = key(Save, Path, "output_dir", "", Used, "Folder of checkpoints, logs and the final model"),
        OVERWRITE_OUTPUT_DIR: bool = key(Save, Bool, "overwrite_output_dir", "false", Used, "Start from the beginning even if the folder contains checkpoints or a model, and replace files of the same names; the first save removes later checkpoints. Also for export"),
        BEGIN_ANEW: bool = key(Save, Bool, "begin_anew", "false", Used, "Our own: start from the beginning and replace what earlier runs left in output_dir; a file that no run wrote, or that was changed since, ends the run instead"),
        RESUME_FROM_CHECKPOINT: Value = key(Save, BoolOrPath, "resume_from_checkpoint", "", Used, "Folder of a checkpoint, true for the newest, false for none; unset: the newest if there is one"),
        RESUME_ANYWAY: bool = key(Save, Bool, "resume_anyway", "false", Used, "Our own: resume even if settings or data that affect the result have changed since the checkpoint"),
        SAVE_STRATEGY: String = key(Save, Choice(&["no", "steps", "epoch", "best"]), "save_strategy", "steps", Used, "When to save; best: after each evaluation that is the best so far"),
        SAVE_STEPS: f64 = key(Save, Steps, "save_steps", "500", Used, "Steps between checkpoints"),
        SAVE_TOTAL_LIMIT: Option<usize> = key(Save, Int(0), "save_total_limit", "", Used, "Keep the last N checkpoints, the best one included; 0 or unset: all"),
        SAVE_ONLY_MODEL: bool = key(Save, Bool, "save_only_model", "false", Used, "Save the weights without the state that resuming needs"),
        SAVE_SAFETENSORS: bool = key(Save, Bool, "save_safetensors", "true", Later("weights are always written as safetensors"), "Write weights as safetensors"),
        SAVE_ON_EACH_NODE: bool = key(Save, Bool, "save_on_each_node", "false", NoEffect("the machines find out whether they share output_dir; each that does not saves in its own"), "Save on every machine"),
        IGNORE_DATA_SKIP: bool = key(Save, Bool, "ignore_data_skip", "false", Later("a resumed run continues at its place in the data"), "Restart the data when resuming"),
        LOAD_BEST_MODEL_AT_END: bool = key(Save, Bool, "load_best_model_at_end", "false", Used, "Load the best checkpoint at the end; it becomes the final model"),
        METRIC_FOR_BEST_MODEL: Option<String> = key(Save, Text, "metric_for_best_model", "", Used, "Metric that compares evaluations, such as eval_loss or rewards/accuracies; unset: loss"),
        GREATER_IS_BETTER: Option<bool> = key(Save, Bool, "greater_is_better", "", Used, "Whether a higher metric is better; unset: true unless its name ends with loss"),
        PUSH_TO_HUB: bool = key(Save, Bool, "push_to_hub", "false", Later("models stay on this machine"), "Upload the model"),
        HUB_MODEL_ID: Option<String> = key(Save, Text, "hub_model_id", "", NoEffect("models stay on this machine"), "Name in the hub"),
        HUB_STRATEGY: String = key(Save, Choice(&["end", "every_save", "checkpoint", "all_checkpoints"]), "hub_strategy", "every_save", NoEffect("models stay on this machine"), "When to upload"),
        HUB_TOKEN: Option<Secret> = key(Save, ValueType::Secret, "hub_token", "", NoEffect("models stay on this machine"), "Token of the hub"),
        LOGGING_STEPS: f64 = key(Log, Steps, "logging_steps", "500", Used, "Steps between log records"),
        LOGGING_STRATEGY: String = key(Log, Choice(&["no", "steps", "epoch"]), "logging_strategy", "steps", Used, "When to log"),
        LOGGING_FIRST_STEP: bool = key(Log, Bool, "logging_first_step", "false", Used, "Log the first step, too"),
        PLOT_LOSS: bool = key(Log, Bool, "plot_loss", "false", Used, "Draw training_loss.png"),
        DISABLE_TQDM: bool = key(Log, Bool, "disable_tqdm", "false", Used, "Print plain lines instead of a progress line"),
        REPORT_TO: Vec<String> = key(Log, List, "report_to", "none", Used, "Trackers to report to: tensorboard, wandb (offline), csv, jsonl, all, none"),
        RUN_NAME: Option<String> = key(Log, Text, "run_name", "", Used, "Name of the run in wandb"),
        WANDB_PROJECT: String = key(Log, Text, "wandb_project", "huggingface", Used, "Our own: project of the run in wandb, as WANDB_PROJECT"),
        LOGGING_DIR: Option<String> = key(Log, Path, "logging_dir", "", Used, "Folder of the files of tensorboard, csv and jsonl; unset: TENSORBOARD_LOGGING_DIR, else runs in output_dir"),
        LOG_LEVEL: String = key(Log, Text, "log_level", "passive", NoEffect("messages are few"), "Level of messages"),
        LOG_LEVEL_REPLICA: String = key(Log, Text, "log_level_replica", "warning", NoEffect("rank 0 speaks for all"), "Level of messages of other ranks"),
        LOG_ON_EACH_NODE: bool = key(Log, Bool, "log_on_each_node", "true", NoEffect("rank 0 speaks for all"), "Messages of every machine"),
        LOGGING_NAN_INF_FILTER: bool = key(Log, Bool, "logging_nan_inf_filter", "true", NoEffect("losses that are not finite are in no mean"), "Leave nan and inf out of the logged loss"),
        INCLUDE_NUM_INPUT_TOKENS_SEEN: bool = key(Log, Bool, "include_num_input_tokens_seen", "false", NoEffect("tokens are always counted"), "Count tokens"),
        INCLUDE_TOKENS_PER_SECOND: bool = key(Log, Bool, "include_tokens_per_second", "false", NoEffect("throughput is always logged"), "Log tokens per second"),
        INCLUDE_EFFECTIVE_TOKENS_PER_SECOND: bool = key(Log, Bool, "include_effective_tokens_per_second", "false", NoEffect("throughput is always logged"), "Log effective tokens per second"),
        MEMORY_STEPS: usize = key(Log, Int(0), "memory_steps", "0", Used, "Our own: steps between memory reports; 0: none"),
        MEMORY_CHECK: bool = key(Log, Bool, "memory_check", "true", Used, "Our own: refuse a training run that would not fit into memory"),
        PROFILE: bool = key(Log, Bool, "profile", "false", Used, "Our own: report the time of each phase of a step, and memory, every profile_interval steps"),
        PROFILE_INTERVAL: u64 = key(Log, Int(1), "profile_interval", "10", Used, "Our own: optimizer steps between profile reports"),
        SKIP_MEMORY_METRICS: bool = key(Log, Bool, "skip_memory_metrics", "true", NoEffect("memory is always logged"), "Leave memory out of the logs"),
        USE_SWANLAB: bool = key(Log, Bool, "use_swanlab", "false", Later("logs go to trainer_log.jsonl"), "Report to SwanLab"),
        SWANLAB_PROJECT: String = key(Log, Text, "swanlab_project", "llamafactory", NoEffect("SwanLab is not there"), "Project in SwanLab"),
        SWANLAB_WORKSPACE: Option<String> = key(Log, Text, "swanlab_workspace", "", NoEffect("SwanLab is not there"), "Workspace in SwanLab"),
        SWANLAB_RUN_NAME: Option<String> = key(Log, Text, "swanlab_run_name", "", NoEffect("SwanLab is not there"), "Name of the run in SwanLab"),
        SWANLAB_MODE: String = key(Log, Choice(&["cloud", "local"]), "swanlab_mode", "cloud", NoEffect("SwanLab is not there"), "Where SwanLab logs"),
        SWANLAB_API_KEY: Option<Secret> = key(Log, ValueType::Secret, "swanlab_api_key", "", NoEffect("SwanLab is not there"), "Key of SwanLab"),
        SWANLAB_LOGDIR: Option<String> = key(Log, Path, "swanlab_logdir", "", NoEffect("SwanLab is not there"), "Folder of SwanLab"),
        SWANLAB_LARK_WEBHOOK_URL: Option<String> = key(Log, Text, "swanlab_lark_webhook_url", "", NoEffect("SwanLab is not there"), "Messages of SwanLab to Lark"),
        SWANLAB_LARK_SECRET: Option<Secret> = key(Log, ValueType::Secret, "swanlab_lark_secret", "", NoEffect("SwanLab is not there"), "Secret of these messages"),
        ENABLE_TORCH_PROFILER: bool = key(Log, Bool, "enable_torch_profiler", "false", Later("times of each phase are always measured"), "Write traces"),
        PROFILER_OUTPUT_DIR: Option<String> = key(Log, Path, "profiler_output_dir", "", NoEffect("write profile: true"), "Folder of traces"),
        PROFILER_WAIT_STEPS: usize = key(Log, Int(0), "profiler_wait_steps", "1", NoEffect("write profile: true"), "Steps before a trace"),
        PROFILER_WARMUP_STEPS: usize = key(Log, Int(0), "profiler_warmup_steps", "1", NoEffect("write profile: true"), "Steps of warming up"),
        PROFILER_ACTIVE_STEPS: usize = key(Log, Int(0), "profiler_active_steps", "1", NoEffect("write profile: true"), "Steps of a trace"),
        PROFILER_REPEAT: usize = key(Log, Int(0), "profiler_repeat", "1", NoEffect("write profile: true"), "Number of traces"),
        PROFILER_RECORD_SHAPES: bool = key(Log, Bool, "profiler_record_shapes", "true", NoEffect("write profile: true"), "Shapes in traces"),
        PROFILER_PROFILE_MEMORY: bool = key(Log, Bool, "profiler_profile_memory", "true", NoEffect("write profile: true"), "Memory in traces"),
        PROFILER_WITH_STACK: bool = key(Log, Bool, "profiler_with_stack", "true", NoEffect("write profile: true"), "Call stacks in traces"),
        PROFILE_MODULES: Vec<String> = key(Log, List, "profile_modules", "", NoEffect("write profile: true"), "Modules that are timed"),
        NUM_PROCESSES: usize = row(training::NUM_PROCESSES),
        SEQUENCE_PARALLEL_SIZE: usize = row(training::SEQUENCE_PARALLEL_SIZE),
        NUM_THREADS_PER_PROCESS: Option<usize> = key(Ranks, Int(1), "num_threads_per_process", "", Used, "Our own: threads of a rank; unset: the cores divided by the ranks"),
        DEVICE: String = key(Ranks, Choice(&["auto", "cpu", "cuda"]), "device", "auto", Used, "Our own: device of the ranks; auto: NVIDIA GPUs if there are any, else the CPU; cuda: GPUs, shared if there are more ranks (experimental: verified in emulation, not yet on hardware)"),
        CPU_PATH: String = key(Ranks, Choice(&["auto", "portable", "avx2", "avx512", "avx512bf16"]), "cpu_path", "auto", Used, "Our own: instruction set of the kernels; auto: the fastest that this CPU has"),
        DDP_BACKEND: Option<String> = key(Ranks, Choice(&["nccl", "gloo", "mpi", "ccl", "hccl", "cncl", "mccl"]), "ddp_backend", "", NoEffect("ranks meet in shared memory, over Gloo or through MPI (OARLOCK_TRANSPORT)"), "Backend of collectives"),
        DDP_TIMEOUT: u64 = key(Ranks, Int(1), "ddp_timeout", "1800", Used, "Seconds that ranks wait in a collective before the run fails with an error that names the missing rank; a note names it after 5 seconds"),
        DDP_BUCKET_CAP_MB: Option<usize> = key(Ranks, Int(1), "ddp_bucket_cap_mb", "", NoEffect("a unit is reduced as one buffer, while others compute"), "Size of gradient buckets"),
        DDP_FIND_UNUSED_PARAMETERS: bool = key(Ranks, Bool, "ddp_find_unused_parameters", "", NoEffect("untouched parameters have a zero gradient on all ranks"), "Look for unused parameters"),
        DDP_BROADCAST_BUFFERS: bool = key(Ranks, Bool, "ddp_broadcast_buffers", "", NoEffect("the engine lays out and reduces its own buffers"), "Broadcast buffers"),
        DDP_STATIC_GRAPH: bool = key(Ranks, Bool, "ddp_static_graph", "", NoEffect("the engine lays out and reduces its own buffers"), "Whether every step is alike"),
        LOCAL_RANK: i64 = key(Ranks, Int(-1), "local_rank", "-1", NoEffect("a rank reads its place from the environment of its launcher"), "Rank on this machine"),
        DEEPSPEED: Value = row(training::DEEPSPEED),
        FSDP: Vec<String> = row(training::FSDP),
        FSDP_CONFIG: Value = row(training::FSDP_CONFIG),
        FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP: Vec<String> = row(training::FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP),
        ACCELERATOR_CONFIG: Vec<Entry> = key(Ranks, Map, "accelerator_config", "", Used, "Accelerate configuration: dispatch_batches, use_seedable_sampler and non_blocking change nothing here; split_batches and even_batches have their defaults"),
        PARALLELISM_CONFIG: Vec<Entry> = key(Ranks, Map, "parallelism_config", "", Later("write fsdp_config, sequence_parallel_size or pipeline_model_parallel_size"), "Parallelism configuration"),
        MASTER_ADDR: Option<String> = key(Ranks, Text, "master_addr", "", NoEffect("a rank reads the address from the environment of its launcher"), "Address of the first machine"),
        MASTER_PORT: Option<String> = key(Ranks, Text, "master_port", "", NoEffect("a rank reads the port from the environment of its launcher"), "Port of the first machine"),
    ];
}

/// The key of this name.
pub fn find(name: &str) -> Option<&'static Row> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name that somebody who wrote `name` probably meant: a key that other programs call so, or the nearest one.
pub fn nearest(name: &str) -> Option<&'static str> {
    if let Some((_, key)) = OTHER_NAMES.iter().find(|(other, _)| *other == name) {
        return Some(key);
    }
    nearest_of(name, KEYS.iter().map(|key| key.name))
}

/// What to say of a file in LLaMA-Factory's newer format, none of whose keys mean anything here.
pub fn newer_format(layers: &[Layer]) -> Option<Problem> {
    let mut entries = layers.iter().flat_map(|layer| &layer.entries);
    let entry = entries.find(|entry| OF_NEWER_FORMAT.contains(&entry.key.as_str()))?;
    let reported = format!("`{}` is a key of LLaMA-Factory's v1 format, which is not read", entry.key);
    let help = "write the keys of its other examples: model_name_or_path, stage, finetuning_type, dataset, …";
    Some(Problem::new(reported).at(&entry.location, "").help(help))
}

/// What to say of an entry under a key that is not in the table.
pub fn unknown(entry: &Entry) -> Problem {
    let name = entry.key.split('.').next().unwrap_or_default();
    let problem = Problem::new(format!("unknown key `{name}`")).at(&entry.location, "");
    match nearest(name) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem.help("`oarlock train --help` lists every key"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        assert_eq!(nearest("learning_rat"), Some("learning_rate"));
        assert_eq!(nearest("warmup_step"), Some("warmup_steps"));
        assert_eq!(nearest("BF16"), Some("bf16"));
        assert_eq!(nearest("grad_clip"), Some("max_grad_norm"));
        assert_eq!(nearest("completely_different"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn a_file_of_the_newer_format_is_told_as_such() {
        let words = ["model: Qwen/Qwen3-0.6B", "train_dataset: d.yaml", "model_class: llm"].join("\n");
        let reported = |text: &str| {
            let layer = written::text_of_file("v1.yaml", text.to_owned()).unwrap();
            super::super::train_config_of(vec![layer], &|_| None).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(
            reported(&words),
            "v1.yaml:3:1: `model_class` is a key of LLaMA-Factory's v1 format, which is not read (write the keys of its \
             other examples: model_name_or_path, stage, finetuning_type, dataset, …)"
        );
        assert!(reported("model: x").contains("did you mean `model_name_or_path`"));
        assert!(OF_NEWER_FORMAT.iter().all(|name| find(name).is_none()));
    }

    #[test]
    fn a_training_has_all_keys_of_the_library() {
        for key in training::TRAINING {
            assert!(find(key.name).is_some(), "{key}");
        }
    }

    #[test]
    fn every_key_is_declared_once_and_well() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{} stands twice", key.name);
            assert!(
                key.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
                "{}",
                key.name
            );
            assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}: doc", key.name);
        }
        for (other, key) in OTHER_NAMES {
            assert!(find(key).is_some() && find(other).is_none(), "{other} -> {key}");
        }
    }
}
