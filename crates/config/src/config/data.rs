//! How texts become rows, and which of them are split off for validation.

/// How records become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// LLaMA-Factory's `packing: true`: all records in a row, chopped into blocks of exactly `len` tokens; the tail
    /// is dropped. Attention reaches into the text before.
    Concat,
    /// The same blocks, but attention stays inside a record and no record predicts the next (`neat_packing`).
    ConcatDocuments,
    /// `packing: false`: one record a row, cut to `len` tokens, filled up behind.
    Truncate,
    /// MiniMind's: begin, text and end, cut and filled to `len` tokens; a row is the first `len - 1` of them, its
    /// targets the last `len - 1`, and no target is the fill token.
    MiniMind,
    /// One conversation a row. The rows of a batch run one after another as documents, without padding.
    Examples,
    /// Whole conversations in rows of up to `len` tokens, as many in each as fit; each is a document. Without padding.
    Knapsack,
}

impl Packing {
    /// Whether rows have lengths of their own and run without padding.
    pub fn is_unpadded(self) -> bool {
        matches!(self, Packing::Examples | Packing::Knapsack)
    }

    /// Whether attention stays inside of documents.
    pub fn has_documents(self) -> bool {
        self == Packing::ConcatDocuments || self.is_unpadded()
    }
}

/// How several data sets become one.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Mix {
    /// One after another; the shuffling of the run mixes them.
    #[default]
    Concat,
    /// Row by row from one of them.
    Interleave {
        /// When it ends.
        end: MixEnd,
        /// The probability with which each row is one of each data set; `None` lets them take turns.
        probabilities: Option<Vec<f64>>,
    },
}

/// When interleaving ends, and what becomes of a data set that ends before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixEnd {
    /// With the first data set that ends (`interleave_under`).
    FirstExhausted,
    /// When each data set has ended once; those that ended begin again (`interleave_over`).
    AllExhausted,
    /// When each data set has ended; those that ended are left out (`interleave_once`).
    Once,
}

/// How many records are split off for validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValSize {
    /// So many.
    Count(u64),
    /// A part of all, rounded up.
    Fraction(f64),
}

/// How conversations become tokens, and what is learned of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatArgs {
    /// The name of a layout; `None` takes the tokenizer's own chat template.
    pub template: Option<String>,
    /// How functions and their calls are written, where not as the template says.
    pub tool_format: Option<String>,
    /// The system message of conversations that have none, where it is not the template's.
    pub default_system: Option<String>,
    /// Of templates of reasoning models: whether answers without a thought learn an empty one; `None` leaves thoughts as
    /// they are, and gives the others an empty one to read.
    pub enable_thinking: Option<bool>,
    /// Keep the thoughts of earlier answers where only the last is learned.
    pub preserve_thinking: bool,
    /// Learn the prompts, too.
    pub train_on_prompt: bool,
    /// Compute the loss on the last answer only.
    pub mask_history: bool,
    /// Special tokens that stand in messages stay text.
    pub split_special_tokens: bool,
    /// What of the rows is learned.
    pub examples: ExampleKind,
}

/// What of rows is learned, and so which rows are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExampleKind {
    /// The answers of conversations (`stage: sft`).
    #[default]
    Answers,
    /// Which of two answers to a conversation is better (`stage: dpo` and `rm`).
    Pairs,
    /// Whether the last answer of a conversation is wanted (`stage: kto`).
    UnpairedPreferences,
}

impl ExampleKind {
    /// What these rows are called in messages.
    pub fn stages(self) -> &'static str {
        match self {
            ExampleKind::Answers => "stage sft",
            ExampleKind::Pairs => "stages dpo and rm",
            ExampleKind::UnpairedPreferences => "stage kto",
        }
    }
}
