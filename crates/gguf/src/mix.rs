//! Mixes: which type each tensor of a model gets, as llama-quantize chooses it.
//!
//! The rules are those of llama.cpp of November 2026 (`llama-quant.cpp`). There, a fused `attn_qkv` counts as `attn_v` does.

use crate::plan::TensorPlan;
use crate::types::TensorType;

/// One row for each mix: its number as `general.file_type`, and the type of most tensors.
macro_rules! mixes {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $default:ident;)*) => {
        /// A mix of types, under the names that llama-quantize and file names have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the names of llama-quantize")]
        pub enum Mix {
            $($(#[$doc])* $name,)*
        }

        impl Mix {
            /// All mixes.
            pub const ALL: &'static [Mix] = &[$(Mix::$name),*];

            /// The name, such as `Q4_K_M`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mix::$name => stringify!($name),)*
                }
            }

            /// The value of the key `general.file_type`.
            pub fn file_type(self) -> u32 {
                match self {
                    $(Mix::$name => $id,)*
                }
            }

            /// The type of most tensors.
            pub fn default_type(self) -> TensorType {
                match self {
                    $(Mix::$name => TensorType::$default,)*
                }
            }
        }
    };
}

mixes! {
    /// Single precision.
    F32 = 0: F32;
    /// Half precision.
    F16 = 1: F16;
    /// 4 bits around zero.
    Q4_0 = 2: Q4_0;
    /// 4 bits above a minimum.
    Q4_1 = 3: Q4_1;
    /// 8 bits.
    Q8_0 = 7: Q8_0;
    /// 5 bits around zero.
    Q5_0 = 8: Q5_0;
    /// 5 bits above a minimum.
    Q5_1 = 9: Q5_1;
    /// 2 bits, with 3 and 4 where they matter most.
    Q2_K = 10: Q2_K;
    /// 3 bits alone.
    Q3_K_S = 11: Q3_K;
    /// 3 bits, with 4 and 5 where they matter most.
    Q3_K_M = 12: Q3_K;
    /// 3 bits, with 5 where they matter most.
    Q3_K_L = 13: Q3_K;
    /// 4 bits, with 5 in a few tensors.
    Q4_K_S = 14: Q4_K;
    /// 4 bits, with 6 where they matter most: what most people take.
    Q4_K_M = 15: Q4_K;
    /// 5 bits alone.
    Q5_K_S = 16: Q5_K;
    /// 5 bits, with 6 where they matter most.
    Q5_K_M = 17: Q5_K;
    /// 6 bits.
    Q6_K = 18: Q6_K;
    /// 2 bits, with 4 in a few tensors. It needs an importance matrix.
    Q2_K_S = 21: Q2_K;
    /// The upper half of single precision.
    BF16 = 32: BF16;
    /// 4 bits of microscaling for experts, 8 bits for the others.
    MXFP4_MOE = 38: MXFP4;
}

impl Mix {
    /// The mix of a name, in any case. `Q3_K`, `Q4_K` and `Q5_K` are the medium ones.
    pub fn from_name(name: &str) -> Option<Mix> {
        let name = name.to_ascii_uppercase();
        match name.as_str() {
            "Q3_K" => Some(Mix::Q3_K_M),
            "Q4_K" => Some(Mix::Q4_K_M),
            "Q5_K" => Some(Mix::Q5_K_M),
            name => Mix::ALL.iter().copied().find(|mix| mix.name() == name),
        }
    }

    /// Whether a tensor that this mix gave a type must not be quantised without an importance.
    pub fn needs_importance(self, plan: &TensorPlan) -> bool {
        let is_embedding =
            matches!(plan.name.as_str(), "output.weight" | TOKEN_EMBEDDING | PER_LAYER_EMBEDDING);
        self == Mix::Q2_K_S && plan.tensor_type == TensorType::Q2_K && !is_embedding
    }
}

/// What a mix must know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// The value of the key `general.architecture`, such as `llama`.
    pub architecture: String,
    /// The number of layers, which is the key `block_count`.
    pub n_layers: u32,
    /// The number of heads of a layer.
    pub n_heads: u32,
    /// The number of heads of keys and values of a layer.
    pub n_kv_heads: u32,
    /// The number of experts of a layer, 0 in a dense model.
    pub n_experts: u32,
    /// Whether there is an importance matrix.
    pub has_importance: bool,
}

impl ModelFacts {
    /// How many heads share keys and values.
    fn heads_per_kv(&self) -> u32 {
        self.n_heads.checked_div(self.n_kv_heads).unwrap_or(0)
    }

    /// Whether llama.cpp calls the size of the model 70B.
    fn is_70b(&self) -> bool {
        match self.architecture.as_str() {
            "llama" => self.n_layers == 80 && self.n_heads != self.n_kv_heads,
            "qwen2" | "olmo" | "deci" => self.n_layers == 80,
            _ => false,
        }
    }
}

const TOKEN_EMBEDDING: &str = "token_embd.weight";
const PER_LAYER_EMBEDDING: &str = "per_layer_token_embd.weight";

/// Parts of the names of tensors that keep their type.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
];

/// Orders tensors as llama-quantize writes them: by layer, those of no layer first, and then by name.
pub fn sort_as_llama_quantize(tensors: &mut [TensorPlan]) {
    tensors.sort_by(|a, b| a.layer().cmp(&b.layer()).then_with(|| a.name.cmp(&b.name)));
}

/// Whether a mix changes the type of a tensor at all. Norms, biases and routers keep theirs.
pub fn is_mixed(plan: &TensorPlan) -> bool {
    // Dimensions of 1 at the end do not count.
    let has_rows = plan.dims.iter().skip(1).any(|dim| *dim > 1);
    let is_kept = KEPT.iter().any(|part| plan.name.contains(part));
    let is_table = matches!(plan.name.as_str(), "position_embd.weight" | "token_types.weight");
    has_rows && plan.name.ends_with("weight") && !is_kept && !is_table
}

/// Gives each tensor its type in a mix. The types that they have are those of the unmixed model, which some keep.
///
/// ```
/// use oarlock_gguf::{Mix, ModelFacts, TensorPlan, TensorType, mix_types};
///
/// let facts = ModelFacts {
///     architecture: "llama".to_owned(),
///     n_layers: 8,
///     n_heads: 8,
///     n_kv_heads: 2,
///     n_experts: 0,
///     has_importance: false,
/// };
/// let mut tensors = vec![
///     TensorPlan::new("blk.0.attn_v.weight", [512, 128], TensorType::F32),
///     TensorPlan::new("blk.0.attn_q.weight", [512, 512], TensorType::F32),
///     TensorPlan::new("blk.0.attn_norm.weight", [512], TensorType::F32),
/// ];
/// mix_types(Mix::Q4_K_M, &facts, &mut tensors);
/// let types: Vec<_> = tensors.iter().map(|tensor| tensor.tensor_type).collect();
/// assert_eq!(types, [TensorType::Q6_K, TensorType::Q4_K, TensorType::F32]);
/// ```
pub fn mix_types(mix: Mix, facts: &ModelFacts, tensors: &mut [TensorPlan]) {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&tensors[*a], &tensors[*b]);
        a.layer().cmp(&b.layer()).then_with(|| a.name.cmp(&b.name))
    });
    let n_values = tensors.iter().filter(|tensor| Role::of(&tensor.name) == Role::Values).count();
    let is_tied = !tensors.iter().any(|tensor| tensor.name == "output.weight");
    // No model has more tensors than a u32 counts.
    let mut chooser = Chooser { mix, facts, is_tied, n_values: n_values as u32, values: 0, downs: 0 };
    for index in order {
        let plan = &mut tensors[index];
        if is_mixed(plan) {
            plan.tensor_type = chooser.choose(plan);
        }
    }
}

/// What a tensor does, as far as mixes distinguish.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Output,
    TokenEmbedding,
    /// Values of attention, alone or with queries and keys.
    Values,
    Keys,
    AttentionOutput,
    Down,
    Other,
}

impl Role {
    fn of(name: &str) -> Role {
        let has = |part: &str| name.contains(part);
        match name {
            "output.weight" => Role::Output,
            TOKEN_EMBEDDING | PER_LAYER_EMBEDDING => Role::TokenEmbedding,
            _ if has("attn_qkv.weight") || has("attn_kv_b.weight") || has("attn_v.weight") => Role::Values,
            _ if has("attn_k.weight") => Role::Keys,
            _ if has("attn_output.weight") => Role::AttentionOutput,
            _ if has("ffn_down") => Role::Down,
            _ => Role::Other,
        }
    }
}

/// The state of going through the tensors of a model.
struct Chooser<'a> {
    mix: Mix,
    facts: &'a ModelFacts,
    is_tied: bool,
    /// The number of tensors of values, and how many of them have their type.
    n_values: u32,
    values: u32,
    /// The tensors that lead down from the feed-forward part which have their type.
    downs: u32,
}

impl Chooser<'_> {
    fn choose(&mut self, plan: &TensorPlan) -> TensorType {
        let default = self.mix.default_type();
        if !default.is_quantized() {
            return default;
        }
        let chosen = match Role::of(&plan.name) {
            Role::Output => self.output(plan),
            Role::TokenEmbedding if self.is_tied => self.output(plan),
            _ if self.mix == Mix::MXFP4_MOE => match plan.dims.get(2) {
                Some(2..) => TensorType::MXFP4,
                _ => TensorType::Q8_0,
            },
            Role::TokenEmbedding | Role::Other => default,
            Role::Values => self.values(),
            Role::Keys if self.facts.n_experts == 8 => TensorType::Q8_0,
            Role::Keys => default,
            Role::AttentionOutput => self.attention_output(),
            Role::Down => self.down(plan),
        };
        fitting(chosen, plan.row_elems())
    }

    /// The output, or the embedding that is the output as well.
    fn output(&self, plan: &TensorPlan) -> TensorType {
        let default = self.mix.default_type();
        let is_whole = plan.row_elems().is_multiple_of(default.block_elems() as u64);
        match default {
            TensorType::Q8_0 | TensorType::MXFP4 => TensorType::Q8_0,
            _ if !is_whole => TensorType::Q8_0,
            _ => TensorType::Q6_K,
        }
    }

    fn values(&mut self) -> TensorType {
        use TensorType::{Q3_K, Q4_K, Q5_K, Q6_K, Q8_0};
        let number = self.values;
        self.values += 1;
        let is_shared = self.facts.heads_per_kv() >= 4;
        let chosen = match self.mix {
            Mix::Q2_K if is_shared => Q4_K,
            Mix::Q2_K => Q3_K,
            Mix::Q2_K_S if is_shared => Q4_K,
            Mix::Q3_K_M if number < 2 => Q5_K,
            Mix::Q3_K_M => Q4_K,
            Mix::Q3_K_L => Q5_K,
            Mix::Q4_K_M | Mix::Q5_K_M if deserves_more(number, self.n_values) => Q6_K,
            Mix::Q4_K_S if number < 4 => Q5_K,
            mix => mix.default_type(),
        };
        match chosen {
            _ if self.facts.n_experts == 8 => Q8_0,
            Q3_K | Q4_K if self.facts.is_70b() => Q5_K,
            chosen => chosen,
        }
    }

    fn attention_output(&self) -> TensorType {
        use TensorType::{Q3_K, Q4_K, Q5_K};
        match self.mix {
            Mix::Q2_K | Mix::Q3_K_S | Mix::Q3_K_M | Mix::Q4_K_S | Mix::Q4_K_M
                if self.facts.n_experts == 8 =>
            {
                Q5_K
            }
            mix if self.facts.n_experts == 8 => mix.default_type(),
            Mix::Q2_K => Q3_K,
            Mix::Q3_K_M => Q4_K,
            Mix::Q3_K_L => Q5_K,
            mix => mix.default_type(),
        }
    }

    fn down(&mut self, plan: &TensorPlan) -> TensorType {
        use TensorType::{Q3_K, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K};
        let counted = self.downs;
        self.downs += 1;
        // A layer with experts can have several such tensors, so its number is taken from the name.
        let layer = match self.facts.n_experts {
            0 | 1 => counted,
            _ => plan.layer().unwrap_or(counted),
        };
        let n_layers = self.facts.n_layers;
        let is_first = layer < n_layers / 8;
        match self.mix {
            Mix::Q2_K => Q3_K,
            Mix::Q2_K_S if is_first => Q4_K,
            Mix::Q3_K_M if layer < n_layers / 16 => Q5_K,
            Mix::Q3_K_M => Q4_K,
            Mix::Q3_K_L => Q5_K,
            Mix::Q4_K_M | Mix::Q5_K_M if deserves_more(layer, n_layers) => Q6_K,
            Mix::Q4_K_S if is_first => Q5_K,
            Mix::Q4_0 if is_first && self.facts.has_importance => Q4_1,
            Mix::Q5_0 if is_first && self.facts.has_importance => Q5_1,
            mix => mix.default_type(),
        }
    }
}

/// Whether one of so many layers gets more bits: the first eighth, the last eighth, and every third between them.
fn deserves_more(layer: u32, n_layers: u32) -> bool {
    let eighth = n_layers / 8;
    let last = u64::from(n_layers) * 7 / 8;
    layer < eighth || u64::from(layer) >= last || (layer - eighth) % 3 == 2
}

/// The type, or one of smaller blocks if they do not fit into a row.
fn fitting(tensor_type: TensorType, row_elems: u64) -> TensorType {
    let fits = |tensor_type: TensorType| row_elems.is_multiple_of(tensor_type.block_elems() as u64);
    if fits(tensor_type) {
        return tensor_type;
    }
    let smaller = match tensor_type {
        TensorType::Q2_K | TensorType::Q3_K => TensorType::Q4_0,
        TensorType::Q4_K => TensorType::Q5_0,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q6_K => TensorType::Q8_0,
        other => other,
    };
    if fits(smaller) { smaller } else { TensorType::F16 }
}
