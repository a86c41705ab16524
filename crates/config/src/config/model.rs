//! The model to train: where it comes from, and what it gets.

use std::path::PathBuf;

use oarlock_tensor::cpu::quantized::Format;

use super::objective::answering;
use super::sparsity::SparsityConfig;
use crate::settings::keys::Range::{Any, NotNegative, Positive};
use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{self, Bool, Choice, Float, Int, List, Map, Path, Text};
use crate::settings::node::Entry;
use crate::settings::secret::Secret;
use crate::settings::section::section;

section! {
    /// The model to train.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ModelArgs of Model with ModelParts {
        /// Where its settings come from.
        source: ModelSource,
        /// The folder of tokenizer.json.
        tokenizer: PathBuf,
        /// Keep the weights of all linear layers but the output weights in this format; they are not trained then.
        quantization: Option<Format>,
        /// Whether the weights of a GGUF file stay in its blocks.
        gguf_weights: GgufWeights,
        /// Which blocks of its scores attention computes; `None`: what the model's config.json says.
        sparse_attention: Option<SparsityConfig>,
        /// Tokens that it gets.
        new_tokens: NewTokens,
        /// How its rotary frequencies are changed for sequences that are longer than those of its pretraining.
        rope_scaling: Option<RopeArgs>,
    }

    /// The keys of models.
    pub const MODEL = [
        MODEL_NAME_OR_PATH: Option<String> = (Path, "model_name_or_path", "", Used, "The model: its folder with config.json, tokenizer.json and weights, its GGUF file, or OWNER/NAME on a hub");
        MODEL_CONFIG: Vec<Entry> = (Map, "model_config", "", Used, "Our own: a new model by its settings instead of a folder, as in {model_type: minimind, hidden_size: 512, num_hidden_layers: 8}");
        TOKENIZER_PATH: Option<String> = (Path, "tokenizer_path", "", Used, "Our own: the tokenizer.json, or its folder, that goes with model_config");
        TRAIN_FROM_SCRATCH: bool = (Bool, "train_from_scratch", "false", Used, "Begin with seeded random weights instead of those of the folder") => Computes from_scratch;
        CACHE_DIR: Option<String> = (Path, "cache_dir", "", Used, "Cache of models from a hub; by default that of HF_HUB_CACHE");
        MODEL_REVISION: String = (Text, "model_revision", "main", Used, "Revision of the model in its hub");
        HF_HUB_TOKEN: Option<Secret> = (ValueType::Secret, "hf_hub_token", "", Used, "Token of the Hugging Face hub");
        MS_HUB_TOKEN: Option<Secret> = (ValueType::Secret, "ms_hub_token", "", Used, "Token of ModelScope");
        OM_HUB_TOKEN: Option<Secret> = (ValueType::Secret, "om_hub_token", "", NoEffect("models are read from a local folder"), "Token of Modelers");
        TRUST_REMOTE_CODE: bool = (Bool, "trust_remote_code", "false", NoEffect("no code of a model folder is run"), "Run Python code that comes with a model");
        USE_FAST_TOKENIZER: bool = (Bool, "use_fast_tokenizer", "true", NoEffect("there is one tokenizer, the fast one"), "Use the fast tokenizer");
        RESIZE_VOCAB: bool = (Bool, "resize_vocab", "false", Used, "Resize the embeddings to the tokenizer, rounded up to a multiple of 64; adapters then train embed_tokens and lm_head as well");
        SPLIT_SPECIAL_TOKENS: bool = (Bool, "split_special_tokens", "true", Used, "Treat special tokens inside messages as plain text; false: encode them as special tokens, as LLaMA-Factory does");
        ADD_TOKENS: Vec<String> = (List, "add_tokens", "", Used, "Tokens to add to the tokenizer and the model");
        ADD_SPECIAL_TOKENS: Vec<String> = (List, "add_special_tokens", "", Used, "Special tokens to add to the tokenizer and the model");
        NEW_SPECIAL_TOKENS: Vec<String> = (List, "new_special_tokens", "", Used, "Older name of add_special_tokens");
        NEW_SPECIAL_TOKENS_CONFIG: Option<String> = (Path, "new_special_tokens_config", "", Used, "YAML file of special tokens to add, each with a description");
        INIT_SPECIAL_TOKENS: String = (Choice(&["noise_init", "desc_init", "desc_init_w_noise"]), "init_special_tokens", "noise_init", Used, "Initialization of new token embeddings: the mean of all rows with noise (noise_init), or the mean of the tokens of the description, without or with noise");
        ROPE_SCALING: Option<String> = (Choice(&["linear", "dynamic", "yarn", "llama3"]), "rope_scaling", "", Used, "Scaling of the rotary frequencies if cutoff_len exceeds max_position_embeddings");
        FLASH_ATTN: String = (Choice(&["auto", "disabled", "sdpa", "fa2", "fa3", "flash_attention_2", "flash_attention_3"]), "flash_attn", "auto", NoEffect("attention never stores its S x S scores, whatever is written"), "Attention implementation");
        ATTN_IMPLEMENTATION: Option<String> = (Text, "attn_implementation", "", NoEffect("attention never stores its S x S scores, whatever is written"), "Attention implementation");
        SHIFT_ATTN: bool = (Bool, "shift_attn", "false", Later("shifted sparse attention is not there"), "Shifted sparse attention");
        MIXTURE_OF_DEPTHS: Option<String> = (Choice(&["convert", "load"]), "mixture_of_depths", "", Later("mixture-of-depths models are not there"), "Mixture of depths");
        USE_UNSLOTH: bool = (Bool, "use_unsloth", "false", NoEffect("the kernels are always our own"), "Kernels of Unsloth");
        USE_UNSLOTH_GC: bool = (Bool, "use_unsloth_gc", "false", NoEffect("write gradient_checkpointing: true"), "Activation checkpointing of Unsloth");
        ENABLE_LIGER_KERNEL: bool = (Bool, "enable_liger_kernel", "false", NoEffect("the kernels are always our own"), "Kernels of Liger");
        USE_LIGER_KERNEL: bool = (Bool, "use_liger_kernel", "false", NoEffect("the kernels are always our own"), "Kernels of Liger");
        USE_V1_KERNELS: bool = (Bool, "use_v1_kernels", "false", NoEffect("the kernels are always our own"), "Newer kernels of LLaMA-Factory");
        MOE_AUX_LOSS_COEF: Option<f64> = (Float(NotNegative), "moe_aux_loss_coef", "", Later("mixture-of-experts models are not there"), "Weight of the load-balancing loss");
        USE_KT: bool = (Bool, "use_kt", "false", Later("KTransformers is not there"), "Experts on the CPU with KTransformers");
        KT_CPU_ACTIVATION: Option<String> = (Choice(&["retain", "recompute"]), "kt_cpu_activation", "", NoEffect("KTransformers is not there"), "Activations of these experts");
        KT_WEIGHT_PATH: Option<String> = (Path, "kt_weight_path", "", NoEffect("KTransformers is not there"), "Their quantized weights");
        KT_NON_EXPERT_WEIGHT_PATH: Option<String> = (Path, "kt_non_expert_weight_path", "", NoEffect("KTransformers is not there"), "The other weights");
        KT_EXPERT_CHECKPOINT_PATH: Option<String> = (Path, "kt_expert_checkpoint_path", "", NoEffect("KTransformers is not there"), "Checkpoint of the experts");
        KT_USE_LORA_EXPERTS: bool = (Bool, "kt_use_lora_experts", "", NoEffect("KTransformers is not there"), "LoRA experts");
        KT_LORA_EXPERT_NUM: Option<usize> = (Int(1), "kt_lora_expert_num", "", NoEffect("KTransformers is not there"), "Number of LoRA experts");
        KT_LORA_EXPERT_INTERMEDIATE_SIZE: Option<usize> = (Int(1), "kt_lora_expert_intermediate_size", "", NoEffect("KTransformers is not there"), "Width of LoRA experts");
        KT_CONFIG: Vec<Entry> = (Map, "kt_config", "", NoEffect("KTransformers is not there"), "Settings of KTransformers");
        DISABLE_GRADIENT_CHECKPOINTING: bool = (Bool, "disable_gradient_checkpointing", "false", Used, "Keep all activations, which is the default here");
        GRADIENT_CHECKPOINTING: bool = (Bool, "gradient_checkpointing", "false", Used, "Recompute the activations of every unit in the backward pass");
        ACTIVATION_CHECKPOINTING: String = (Text, "activation_checkpointing", "none", Used, "Our own: which activations to recompute: none, full, every-2 (every second unit), attention, mlp");
        GRADIENT_CHECKPOINTING_KWARGS: Vec<Entry> = (Map, "gradient_checkpointing_kwargs", "", NoEffect("recomputation needs none"), "Arguments of recomputation");
        USE_REENTRANT_GC: bool = (Bool, "use_reentrant_gc", "true", NoEffect("there is one kind"), "Kind of recomputation");
        UPCAST_LAYERNORM: bool = (Bool, "upcast_layernorm", "false", NoEffect("norms always compute in f32"), "Norms in f32");
        UPCAST_LMHEAD_OUTPUT: bool = (Bool, "upcast_lmhead_output", "false", NoEffect("the loss always adds up in f32"), "Logits in f32");
        LOW_CPU_MEM_USAGE: bool = (Bool, "low_cpu_mem_usage", "true", NoEffect("weights are always mapped, never loaded twice"), "Load weights sparingly");
        USE_CACHE: bool = (Bool, "use_cache", "false", NoEffect("training keeps no KV cache"), "KV cache");
        USE_KV_CACHE: bool = (Bool, "use_kv_cache", "true", NoEffect("training keeps no KV cache"), "KV cache in generation");
        INFER_BACKEND: String = (Text, "infer_backend", "huggingface", NoEffect("Oarlock itself generates the answers of do_predict"), "Engine of generation");
        INFER_DTYPE: String = (Text, "infer_dtype", "auto", NoEffect("answers are generated in the precision of the run; `oarlock export` reads it"), "Precision of generation");
        OFFLOAD_FOLDER: String = (Path, "offload_folder", "offload", NoEffect("weights stay in memory while answers are generated"), "Folder of offloaded weights");
        EXPORT_DIR: Option<String> = (Path, "export_dir", "", NoEffect("training exports nothing; `oarlock export` does"), "Folder of the exported model");
        EXPORT_SIZE: f64 = (Float(Positive), "export_size", "5", NoEffect("training exports nothing; `oarlock export` does"), "Gigabytes of a file of the exported model");
        EXPORT_DEVICE: String = (Choice(&["cpu", "auto"]), "export_device", "cpu", NoEffect("training exports nothing; `oarlock export` does"), "Device of the export");
        EXPORT_QUANTIZATION_BIT: Option<usize> = (Int(2), "export_quantization_bit", "", NoEffect("training exports nothing; `oarlock export` does"), "Bits of the exported weights");
        EXPORT_QUANTIZATION_DATASET: Option<String> = (Text, "export_quantization_dataset", "", NoEffect("training exports nothing; `oarlock export` does"), "Data set of the quantization: with gguf, what its importance matrix is collected on");
        EXPORT_QUANTIZATION_NSAMPLES: usize = (Int(1), "export_quantization_nsamples", "128", NoEffect("training exports nothing; `oarlock export` does"), "Most rows of export_quantization_dataset");
        EXPORT_QUANTIZATION_MAXLEN: usize = (Int(1), "export_quantization_maxlen", "1024", NoEffect("training exports nothing; `oarlock export` does"), "Most tokens of each of these rows");
        EXPORT_LEGACY_FORMAT: bool = (Bool, "export_legacy_format", "false", NoEffect("training exports nothing; `oarlock export` does"), "Export .bin files");
        EXPORT_DEQUANTIZED: bool = (Bool, "export_dequantized", "false", NoEffect("training exports nothing; `oarlock export` does"), "Our own: merge into the dequantized weights of quantization_bit");
        GGUF_WEIGHTS: String = (Choice(&GgufWeights::WORDS), "gguf_weights", "auto", Used, "Our own: with adapters, quantized weights of a GGUF file stay as they are (blocks) or are dequantized as a whole (dequantized), with the same results; auto: blocks where that is possible");
        GGUF: Option<String> = (Choice(&["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q2_k_s", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k"]), "gguf", "", NoEffect("training exports nothing; `oarlock export` does"), "Our own: also export one GGUF file of these types, for llama.cpp and Ollama");
        GGUF_ADAPTER: Option<String> = (Choice(&["f32", "f16", "bf16"]), "gguf_adapter", "", NoEffect("training exports nothing; `oarlock export` does"), "Our own: export the adapter alone as a GGUF file of this type, for llama.cpp and Ollama, and merge nothing");
        IMATRIX: Option<String> = (Path, "imatrix", "", NoEffect("training exports nothing; `oarlock export` does"), "Our own: the importance matrix of llama-imatrix by which the blocks of gguf are rounded");
        EXPORT_HUB_MODEL_ID: Option<String> = (Text, "export_hub_model_id", "", NoEffect("training exports nothing; `oarlock export` does"), "Name of the exported model in the hub");
        VLLM_MAXLEN: usize = (Int(1), "vllm_maxlen", "4096", NoEffect("Oarlock itself generates the answers of do_predict"), "Tokens of a sequence in vLLM");
        VLLM_GPU_UTIL: f64 = (Float(NotNegative), "vllm_gpu_util", "0.7", NoEffect("Oarlock itself generates the answers of do_predict"), "Share of the GPU memory for vLLM");
        VLLM_ENFORCE_EAGER: bool = (Bool, "vllm_enforce_eager", "false", NoEffect("Oarlock itself generates the answers of do_predict"), "No CUDA graphs in vLLM");
        VLLM_MAX_LORA_RANK: usize = (Int(1), "vllm_max_lora_rank", "32", NoEffect("Oarlock itself generates the answers of do_predict"), "Largest rank of LoRA in vLLM");
        VLLM_CONFIG: Vec<Entry> = (Map, "vllm_config", "", NoEffect("Oarlock itself generates the answers of do_predict"), "Settings of vLLM");
        SGLANG_MAXLEN: usize = (Int(1), "sglang_maxlen", "4096", NoEffect("Oarlock itself generates the answers of do_predict"), "Tokens of a sequence in SGLang");
        SGLANG_MEM_FRACTION: f64 = (Float(NotNegative), "sglang_mem_fraction", "0.7", NoEffect("Oarlock itself generates the answers of do_predict"), "Share of the memory for SGLang");
        SGLANG_TP_SIZE: i64 = (Int(-1), "sglang_tp_size", "-1", NoEffect("Oarlock itself generates the answers of do_predict"), "Tensor parallel ranks of SGLang");
        SGLANG_CONFIG: Vec<Entry> = (Map, "sglang_config", "", NoEffect("Oarlock itself generates the answers of do_predict"), "Settings of SGLang");
        SGLANG_LORA_BACKEND: String = (Choice(&["triton", "flashinfer"]), "sglang_lora_backend", "triton", NoEffect("Oarlock itself generates the answers of do_predict"), "Kernels of LoRA in SGLang");
        DO_SAMPLE: bool = (Bool, "do_sample", "true", Used, concat!("For do_predict and ", answering!(), ": sample; false: greedy decoding"));
        TEMPERATURE: f64 = (Float(NotNegative), "temperature", "0.95", Used, concat!("For do_predict and ", answering!(), ": sampling temperature; 0: greedy decoding"));
        TOP_P: f64 = (Float(NotNegative), "top_p", "0.7", Used, concat!("For do_predict and ", answering!(), ": probability mass of nucleus sampling"));
        TOP_K: i64 = (Int(-1), "top_k", "50", Used, concat!("For do_predict and ", answering!(), ": sample from the N most probable tokens; 0 or -1: all"));
        NUM_BEAMS: i64 = (Int(1), "num_beams", "1", Used, "Beams of generation; only 1 is supported");
        MAX_NEW_TOKENS: usize = (Int(1), "max_new_tokens", "1024", Used, concat!("For do_predict and ", answering!(), ": maximum tokens of an answer"));
        REPETITION_PENALTY: f64 = (Float(NotNegative), "repetition_penalty", "1", Used, concat!("For do_predict and ", answering!(), ": penalty of repeated tokens; 1: none"));
        LENGTH_PENALTY: f64 = (Float(Any), "length_penalty", "1", NoEffect("there is no beam search"), "Penalty of long answers in beam search");
        SKIP_SPECIAL_TOKENS: bool = (Bool, "skip_special_tokens", "true", Used, "For do_predict: leave special tokens out of answers");
        PRINT_PARAM_STATUS: bool = (Bool, "print_param_status", "false", Used, "Print the name, dtype and device of every parameter, and whether it is trained") => Unrecorded print_param_status;
        IMAGE_MAX_PIXELS: usize = (Int(1), "image_max_pixels", "589824", NoEffect("models are of text only"), "Largest image");
        IMAGE_MIN_PIXELS: usize = (Int(1), "image_min_pixels", "1024", NoEffect("models are of text only"), "Smallest image");
        VIDEO_MAX_PIXELS: usize = (Int(1), "video_max_pixels", "65536", NoEffect("models are of text only"), "Largest video frame");
        VIDEO_MIN_PIXELS: usize = (Int(1), "video_min_pixels", "256", NoEffect("models are of text only"), "Smallest video frame");
        VIDEO_FPS: f64 = (Float(Positive), "video_fps", "2", NoEffect("models are of text only"), "Frames of a video per second");
        VIDEO_MAXLEN: usize = (Int(1), "video_maxlen", "128", NoEffect("models are of text only"), "Frames of a video");
        IMAGE_DO_PAN_AND_SCAN: bool = (Bool, "image_do_pan_and_scan", "false", NoEffect("models are of text only"), "Pan and scan of images");
        CROP_TO_PATCHES: bool = (Bool, "crop_to_patches", "false", NoEffect("models are of text only"), "Cut images into patches");
        USE_AUDIO_IN_VIDEO: bool = (Bool, "use_audio_in_video", "false", NoEffect("models are of text only"), "Sound of videos");
        AUDIO_SAMPLING_RATE: usize = (Int(1), "audio_sampling_rate", "16000", NoEffect("models are of text only"), "Samples of sound per second");
        FREEZE_VISION_TOWER: bool = (Bool, "freeze_vision_tower", "true", NoEffect("models are of text only"), "Leave the vision tower as it is");
        FREEZE_MULTI_MODAL_PROJECTOR: bool = (Bool, "freeze_multi_modal_projector", "true", NoEffect("models are of text only"), "Leave the projector as it is");
        FREEZE_LANGUAGE_MODEL: bool = (Bool, "freeze_language_model", "false", Later("models are of text only"), "Leave the language model as it is");
    ];
}

/// What becomes of the quantized weights of a GGUF file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GgufWeights {
    /// They stay in blocks where adapters are trained beside them and nothing else has to be done with them.
    #[default]
    Auto,
    /// They stay in blocks, or it is an error.
    Blocks,
    /// They are dequantized as they are read.
    Dequantized,
}

impl GgufWeights {
    /// All of them, as users write them.
    pub const WORDS: [&'static str; 3] = ["auto", "blocks", "dequantized"];

    /// The one of this word; any other is the default.
    pub fn named(word: &str) -> GgufWeights {
        match word {
            "blocks" => GgufWeights::Blocks,
            "dequantized" => GgufWeights::Dequantized,
            _ => GgufWeights::Auto,
        }
    }
}

/// Tokens that a model gets beside those of its tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewTokens {
    /// Ordinary ones.
    pub tokens: Vec<String>,
    /// Special ones, which answers are shown without.
    pub special: Vec<String>,
    /// What describes special ones; their embeddings begin as the mean of those of the description.
    pub descriptions: Vec<(String, String)>,
    /// Whether these get noise as well.
    pub noise_on_descriptions: bool,
    /// Whether the vocabulary grows to that of the tokenizer also where no token is new.
    pub resize: bool,
    /// Whether output weights that are the embedding's become weights of their own, since an adapter trains copies of both.
    pub unties: bool,
}

impl NewTokens {
    /// Whether the vocabulary may grow.
    pub fn may_grow(&self) -> bool {
        self.resize || !self.tokens.is_empty() || !self.special.is_empty()
    }
}

/// A rotary scaling that a run chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeArgs {
    /// Its kind.
    pub kind: RopeKind,
    /// The longest sequence; `None` stands for twice as many positions as the model was made for.
    pub max_len: Option<usize>,
}

/// A kind of rotary scaling that a run can choose: `rope_type` in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// All frequencies are divided.
    Linear,
    /// The base grows with the length.
    Dynamic,
    /// Frequencies are blended along the dimensions.
    Yarn,
    /// Low frequencies are divided.
    Llama3,
}

impl RopeKind {
    /// All of them, by name.
    pub const NAMES: [(&'static str, RopeKind); 4] = [
        ("linear", RopeKind::Linear),
        ("dynamic", RopeKind::Dynamic),
        ("yarn", RopeKind::Yarn),
        ("llama3", RopeKind::Llama3),
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<RopeKind> {
        RopeKind::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
    }
}

/// Where the settings of a model come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// The folder of config.json, tokenizer.json and weights.
    Folder(PathBuf),
    /// The fields of a config.json, written into the configuration.
    Fields(serde_json::Map<String, serde_json::Value>),
}
