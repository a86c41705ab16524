//! The keys of training methods: adapters, optimizers of low rank, pipelines.

use super::objective::{STAGE_KEYS, keys::STAGES};
use crate::settings::keys::Group::Method;
use crate::settings::keys::Range::{BelowOne, NotNegative};
use crate::settings::keys::Status::{Among, Later, NoEffect, Used};
use crate::settings::keys::ValueType::{Bool, Choice, Float, Int, List, Map, Path, Text};
use crate::settings::keys::{Row, joined, key, key_table, n_rows};
use crate::settings::node::Entry;

/// The keys of methods.
pub const METHOD: &[Row] = &joined::<{ n_rows(PARTS) }>(PARTS);

const PARTS: &[&[Row]] = &[STAGES, FIRST, STAGE_KEYS, FURTHER];

key_table! {
    /// The keys of methods before those of stages.
    pub const FIRST = [
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
    ];
}

key_table! {
    /// The keys of methods behind those of stages.
    pub const FURTHER = [
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
    ];
}
