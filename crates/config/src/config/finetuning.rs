//! Which parameters a training run changes: all, those of some layers, or adapters beside the others.

use std::path::PathBuf;

/// What is trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Finetuning {
    /// Every parameter.
    #[default]
    Full,
    /// The parameters of some layers.
    Freeze(FreezeArgs),
    /// Adapters; the model itself stays as it is.
    Adapter(AdapterArgs),
}

impl Finetuning {
    /// As LLaMA-Factory writes the method into its log.
    pub fn name(&self) -> &'static str {
        match self {
            Finetuning::Full => "Full",
            Finetuning::Freeze(_) => "Freeze",
            Finetuning::Adapter(args) => match &args.config.kind {
                AdapterKind::Lora(lora) if lora.use_dora => "DoRA",
                AdapterKind::Lora(_) => "LoRA",
                AdapterKind::Oft(_) => "OFT",
            },
        }
    }
}

/// Which layers the method `freeze` trains.
#[derive(Clone, Debug, PartialEq)]
pub struct FreezeArgs {
    /// The layers.
    pub layers: TrainedLayers,
    /// The modules of these layers, such as `mlp`; empty for all of them.
    pub modules: Vec<String>,
    /// Modules outside of the layers, such as `norm`, `embed_tokens`, `lm_head`.
    pub extra: Vec<String>,
}

/// Layers counted from one end, or spread over the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainedLayers {
    /// The first so many.
    First(usize),
    /// The last so many.
    Last(usize),
    /// The last of each of so many equal parts: what LLaMA-Pro adds to a model.
    Spread(usize),
}

/// The methods `lora` and `oft`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterArgs {
    /// A new adapter.
    pub config: AdapterConfig,
    /// Adapters to begin with, as PEFT or Oarlock has written them.
    pub adapters: Vec<PathBuf>,
    /// Merge all of these and begin a new adapter, instead of continuing the last.
    pub create_new: bool,
    /// At the end, write what an adapter of PiSSA is to the base as it was, too.
    pub convert_pissa: bool,
    /// The learning rates of LoRA+.
    pub plus: Option<LoraPlus>,
}

/// The settings of an adapter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterConfig {
    /// What it does with a layer.
    pub kind: AdapterKind,
    /// The linear layers with an adapter.
    pub targets: Targets,
    /// Modules of which the adapter has a trained copy, such as `lm_head`: PEFT's `modules_to_save`.
    pub modules_to_save: Vec<String>,
}

impl AdapterConfig {
    /// Its settings as an adapter of low rank, if it is one.
    pub fn lora(&self) -> Option<&LoraConfig> {
        match &self.kind {
            AdapterKind::Lora(lora) => Some(lora),
            AdapterKind::Oft(_) => None,
        }
    }

    /// Whether it begins as the largest singular values of the weights, which these then lack.
    pub fn is_pissa(&self) -> bool {
        self.lora().is_some_and(|lora| matches!(lora.init, LoraInit::Pissa { .. }))
    }

    /// The same that drops nothing in training.
    #[must_use]
    pub fn without_dropout(mut self) -> AdapterConfig {
        match &mut self.kind {
            AdapterKind::Lora(lora) => lora.dropout = 0.0,
            AdapterKind::Oft(oft) => oft.dropout = 0.0,
        }
        self
    }
}

/// For all linear layers but `lm_head`.
impl From<LoraConfig> for AdapterConfig {
    fn from(lora: LoraConfig) -> AdapterConfig {
        AdapterConfig { kind: AdapterKind::Lora(lora), ..AdapterConfig::default() }
    }
}

/// For all linear layers but `lm_head`.
impl From<OftConfig> for AdapterConfig {
    fn from(oft: OftConfig) -> AdapterConfig {
        AdapterConfig { kind: AdapterKind::Oft(oft), ..AdapterConfig::default() }
    }
}

/// What adapters do with a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum AdapterKind {
    /// An update of low rank is added to the weight (LoRA).
    Lora(LoraConfig),
    /// The weight is rotated (OFT).
    Oft(OftConfig),
}

impl Default for AdapterKind {
    fn default() -> AdapterKind {
        AdapterKind::Lora(LoraConfig::default())
    }
}

/// The settings of an OFT adapter, with the defaults of LLaMA-Factory.
#[derive(Clone, Debug, PartialEq)]
pub struct OftConfig {
    /// Into how many or how large blocks the inputs of a layer are divided, each of which has a rotation.
    pub blocks: OftBlocks,
    /// The share of blocks that are not rotated in a pass of training.
    pub dropout: f32,
    /// Terms of the Cayley–Neumann series of a rotation, as PEFT counts them.
    pub terms: usize,
}

impl Default for OftConfig {
    fn default() -> OftConfig {
        OftConfig { blocks: OftBlocks::Size(32), dropout: 0.0, terms: 5 }
    }
}

/// The blocks of a rotation. Where the inputs cannot be divided so, the nearest number that divides them stands for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OftBlocks {
    /// Inputs of a block.
    Size(usize),
    /// Blocks of a layer: PEFT's `r`.
    Count(usize),
}

/// LoRA+ (Hayou et al. 2024): `lora_B` and vectors learn faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraPlus {
    /// Their learning rate divided by that of the others.
    pub lr_ratio: f64,
}

/// The settings of a LoRA adapter, with the defaults of LLaMA-Factory.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// The rank of an update.
    pub rank: usize,
    /// An update counts `alpha / rank`; `None` stands for twice the rank.
    pub alpha: Option<f64>,
    /// The probability with which an element of what an adapter gets is dropped in training.
    pub dropout: f32,
    /// Ranks of the layers whose path ends so.
    pub rank_pattern: Vec<(String, usize)>,
    /// The same for alpha.
    pub alpha_pattern: Vec<(String, f64)>,
    /// An update counts `alpha / √rank` (rank-stabilized LoRA).
    pub use_rslora: bool,
    /// The length of each row of a weight is trained apart from its direction (DoRA).
    pub use_dora: bool,
    /// How `lora_A` begins; `lora_B` begins at zero.
    pub init: LoraInit,
}

impl Default for LoraConfig {
    fn default() -> LoraConfig {
        LoraConfig {
            rank: 8,
            alpha: None,
            dropout: 0.0,
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            use_rslora: false,
            use_dora: false,
            init: LoraInit::Kaiming,
        }
    }
}

/// Which linear layers get an adapter.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Targets {
    /// All but the output weights `lm_head`.
    #[default]
    All,
    /// Those whose path is one of these, or ends with one after a dot, such as `q_proj`.
    Named(Vec<String>),
}

/// How `lora_A` begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoraInit {
    /// Uniform up to 1 / √inputs.
    #[default]
    Kaiming,
    /// Normal with standard deviation 1 / rank.
    Gaussian,
    /// `lora_A` and `lora_B` begin as the largest singular values of a weight with their vectors, which the base then lacks
    /// (PiSSA, Meng et al. 2024).
    Pissa {
        /// How often the subspace of the vectors is improved; `None` stands for the vectors themselves.
        iterations: Option<usize>,
    },
}
