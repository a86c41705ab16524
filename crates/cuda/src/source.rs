//! The sources of the kernels, embedded in the program, and the units in which they are compiled.

/// A file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// Its name.
    pub file: &'static str,
    /// What it contains.
    pub text: &'static str,
}

macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)+) => {
        $($(#[$doc])*
        pub const $name: Source = Source { file: $file, text: include_str!(concat!("../kernels/", $file)) };)+
    };
}

sources! {
    /// The steps of Adafactor.
    ADAFACTOR = "adafactor.cu";
    /// Attention, backward.
    ATTENTION_BACKWARD = "attention_backward.cu";
    /// Attention for few queries.
    ATTENTION_DECODE = "attention_decode.cu";
    /// Attention, forward.
    ATTENTION_FORWARD = "attention_forward.cu";
    /// Functions of two elements.
    BINARY = "binary.cu";
    /// Comparisons of two elements.
    COMPARE = "compare.cu";
    /// Moving elements.
    COPY = "copy.cu";
    /// Cross-entropy and its gradient.
    CROSS_ENTROPY = "cross_entropy.cu";
    /// Running sums.
    CUMSUM = "cumsum.cu";
    /// Sums and conversions of elements.
    ELEMENTWISE = "elementwise.cu";
    /// Token embedding.
    EMBED = "embed.cu";
    /// Matrix products.
    GEMM = "gemm.cu";
    /// Matrix products with quantized weights.
    GEMM_QUANTIZED = "gemm_quantized.cu";
    /// Gated linear units.
    GLU = "glu.cu";
    /// Elements and rows by their index.
    INDEXED = "indexed.cu";
    /// The steps of Lamb.
    LAMB = "lamb.cu";
    /// RMSNorm and LayerNorm.
    NORM = "norm.cu";
    /// The steps of optimizers.
    OPTIM = "optim.cu";
    /// Rows in the order of ids.
    ORDER = "order.cu";
    /// Losses of two tensors.
    PAIR_LOSS = "pair_loss.cu";
    /// Each word by itself.
    PROBE = "probe.cu";
    /// Quantized weights.
    QUANTIZED = "quantized.cu";
    /// Random numbers.
    RANDOM = "random.cu";
    /// Sums and extremes.
    REDUCE = "reduce.cu";
    /// Rotary position embedding.
    ROPE = "rope.cu";
    /// Cross-entropy of each row for itself.
    ROW_LOSS = "row_loss.cu";
    /// Softmax and its logarithm.
    SOFTMAX = "softmax.cu";
    /// Sorting along a dim.
    SORT = "sort.cu";
    /// The first elements of rows by their order.
    TOP_K = "top_k.cu";
    /// Functions of one element.
    UNARY = "unary.cu";
    /// What the passes of attention share.
    ATTENTION = "attention.h";
    /// Activation functions.
    FUNCTIONS = "functions.h";
    /// Numbers with the order of elements.
    KEYS = "keys.h";
    /// What the steps of optimizers share.
    OPTIM_RULES = "optim.h";
    /// Many slices in one launch.
    PIECES = "pieces.h";
    /// What matrix products share.
    PRODUCT = "product.h";
    /// The tile of a product by tensor cores.
    PRODUCT_MMA = "product_mma.h";
    /// The tile of a product of f32.
    PRODUCT_PLAIN = "product_plain.h";
    /// Where the elements of quantized weights are.
    QUANTIZED_PARTS = "quantized.h";
    /// The maximum and the sum of exponentials of a row.
    ROWS = "rows.h";
    /// Sums over what comes before.
    SCAN = "scan.h";
    /// Sums over flat slices.
    SUMS = "sums.h";
    /// Tiles of matrices.
    TILE = "tile.h";
    /// Tiles as a warp multiplies them.
    TILE_WARP = "tile_warp.h";
    /// Tiles as a warpgroup multiplies them.
    TILE_WARPGROUP = "tile_warpgroup.h";
    /// Strides of operands.
    WALK = "walk.h";
    /// Products of a warpgroup.
    WGMMA = "wgmma.h";
    /// The words that all kernels are written in.
    WORDS = "words.h";
}

/// The headers that sources include, by the name in the directive.
pub const HEADERS: &[Source] = &[
    ATTENTION,
    FUNCTIONS,
    KEYS,
    OPTIM_RULES,
    PIECES,
    PRODUCT,
    PRODUCT_MMA,
    PRODUCT_PLAIN,
    QUANTIZED_PARTS,
    ROWS,
    SCAN,
    SUMS,
    TILE,
    TILE_WARP,
    TILE_WARPGROUP,
    WALK,
    WGMMA,
    WORDS,
];

/// What is compiled at a time: a source, with macros that select some of its kernels where it has many.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// The file.
    pub source: Source,
    /// Macros and their values.
    pub defines: Vec<(&'static str, String)>,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.source.file)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
