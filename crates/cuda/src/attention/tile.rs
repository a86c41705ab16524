//! The tiles of attention: how much of queries, keys and values a block has in shared memory at a time.
//!
//! A block owns some rows of an operand and walks over those of another one, so that each pass has two sizes. Which are the
//! fastest depends on the GPU. The usual ones fit into the 163 KiB of an A100 but for large heads in f32; a GPU that has less
//! takes the largest that fits. Other tiles give other orders of sums, so other bits.

use std::fmt;

use crate::cudnn::Pass;
use crate::element::Element;
use crate::kernel::Instance;
use crate::source::{ATTENTION_BACKWARD, Source};
use crate::table;

/// The architecture whose warpgroups multiply together.
pub const WGMMA_ARCH: &str = "sm_90a";

/// Rows of a block's own tile, of which each warp has 16.
const ROWS: [u32; 2] = [64, 128];
/// Rows of the tiles that it walks over.
const WALKED: [u32; 4] = [16, 32, 64, 128];
/// Tiles of few warps, the larger one first: for heads of which a GPU has too little shared memory for any other.
const SMALL: [Tile; 2] = [Tile::of_warps(32, 16), Tile::of_warps(16, 16)];

/// The rows of a pass's tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// Of the operand that a block owns a part of: queries, or keys and values in [`TiledKernel::BackwardKv`].
    pub rows: u32,
    /// Of the operand that it walks over.
    pub walked: u32,
    /// Whether four warps multiply together, 64 rows by instructions that GPUs of sm_90a have.
    pub wgmma: bool,
}

/// A kernel that has tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiledKernel {
    /// Outputs and log-sum-exps.
    Forward,
    /// Gradients of keys and values.
    BackwardKv,
    /// Gradients of queries.
    BackwardQ,
}

impl TiledKernel {
    /// All of them.
    pub const ALL: [TiledKernel; 3] = [TiledKernel::Forward, TiledKernel::BackwardKv, TiledKernel::BackwardQ];

    /// The pass that it is a part of.
    pub fn pass(self) -> Pass {
        if self == TiledKernel::Forward { Pass::Forward } else { Pass::Backward }
    }

    /// How many tiles it holds of each operand that it walks over: with two, one is in flight while the other is used. Warpgroups
    /// that sum gradients of queries use a third one.
    pub(super) fn stages(self, element: Element, head_dim: usize, tile: Tile) -> usize {
        let is_wide = head_dim * element.size() > 256;
        match self {
            TiledKernel::BackwardQ if tile.wgmma => 3,
            TiledKernel::BackwardKv | TiledKernel::BackwardQ if is_wide => 1,
            _ => 2,
        }
    }

    /// Its op in the table of kernels.
    pub fn op(self) -> &'static str {
        match self {
            TiledKernel::Forward => "attention_forward",
            TiledKernel::BackwardKv => "attention_backward_kv",
            TiledKernel::BackwardQ => "attention_backward_q",
        }
    }
}

impl Tile {
    /// One whose warps multiply by themselves, on any GPU.
    pub const fn of_warps(rows: u32, walked: u32) -> Tile {
        Tile { rows, walked, wgmma: false }
    }

    /// One of warpgroups, each of which has 64 of the rows.
    pub const fn of_warpgroups(rows: u32, walked: u32) -> Tile {
        Tile { rows, walked, wgmma: true }
    }

    /// The one that a unit has without another choice.
    pub fn usual(pass: Pass, element: Element, head_dim: u32) -> Tile {
        let most_for_64 = if pass == Pass::Backward { 128 } else { 256 };
        let walked = match head_dim as usize * element.size() {
            bytes if bytes <= most_for_64 => 64,
            0..=512 => 32,
            _ => 16,
        };
        Tile::of_warps(ROWS[0], walked)
    }

    /// The one that a GPU of sm_90a takes instead; none in f32, which tensor cores do not multiply.
    pub fn usual_of_warpgroups(kernel: TiledKernel, element: Element, head_dim: u32) -> Option<Tile> {
        let (rows, walked) = match (kernel, head_dim) {
            (TiledKernel::BackwardKv, ..=64) => (64, 128),
            (TiledKernel::BackwardQ, 96..=128) => (128, 64),
            (_, ..=128) => (64, 64),
            (TiledKernel::BackwardQ, 256) => (64, 16),
            _ => (64, 32),
        };
        (element != Element::F32).then_some(Tile::of_warpgroups(rows, walked))
    }

    /// The usual one of the units of a source.
    pub(crate) fn of_unit(source: Source, element: Element, head_dim: u32) -> Tile {
        let pass = if source == ATTENTION_BACKWARD { Pass::Backward } else { Pass::Forward };
        Tile::usual(pass, element, head_dim)
    }

    /// All of them, for some of which a GPU has too little shared memory.
    pub fn all() -> impl Iterator<Item = Tile> {
        Tile::large(true).chain(SMALL)
    }

    /// Those that are worth a try where they fit, those of warpgroups behind the others.
    pub(super) fn large(has_wgmma: bool) -> impl Iterator<Item = Tile> {
        let of =
            |wgmma| ROWS.into_iter().flat_map(move |rows| WALKED.map(|walked| Tile { rows, walked, wgmma }));
        of(false).chain(of(true).filter(move |_| has_wgmma))
    }

    /// The usual one, and behind it those that need less shared memory, ever less.
    pub(super) fn usual_or_less(pass: Pass, element: Element, head_dim: u32) -> impl Iterator<Item = Tile> {
        let usual = Tile::usual(pass, element, head_dim);
        let walks = WALKED.into_iter().rev().filter(move |walked| *walked < usual.walked);
        let less = walks.map(move |walked| Tile { walked, ..usual });
        std::iter::once(usual).chain(less).chain(SMALL)
    }

    /// The one of these words, such as `128x32`; none where kernels are not compiled for it.
    pub fn from_words(words: &str) -> Option<Tile> {
        Tile::all().find(|tile| tile.to_string() == words)
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        2 * self.rows
    }

    /// Bytes of a block through which f32 products become operands.
    pub(super) fn scratch_bytes(self, element: Element) -> usize {
        let of_row = 4 * self.walked as usize + 16;
        if element == Element::F32 { self.rows as usize * of_row } else { 0 }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}{}", self.rows, self.walked, if self.wgmma { "-wgmma" } else { "" })
    }
}

/// What attention launches on GPUs of an architecture where nothing else was measured, with elements and heads as kernels have
/// them.
pub fn usual_instances(arch: &str, element: Element, head_dim: u32) -> Vec<Instance> {
    let find = |op| table::find(op).and_then(|kernel| kernel.instance(&[element], Some(head_dim)));
    let tiled = TiledKernel::ALL.into_iter().filter_map(|kernel| {
        let of_warpgroups = Tile::usual_of_warpgroups(kernel, element, head_dim);
        let tile = of_warpgroups.filter(|_| arch == WGMMA_ARCH);
        let tile = tile.unwrap_or_else(|| Tile::usual(kernel.pass(), element, head_dim));
        find(kernel.op()).map(|instance| instance.with_tile(tile))
    });
    tiled.chain(find("attention_delta")).collect()
}

/// The kernels of the units of all tiles but the usual ones.
pub fn tiled_instances() -> impl Iterator<Item = Instance> {
    let sources = [table::find("attention_forward"), table::find("attention_delta")];
    let is_tiled = move |source| sources.iter().flatten().any(|kernel| kernel.source == source);
    let instances = table::all().filter(move |kernel| is_tiled(kernel.source)).flat_map(|k| k.instances());
    instances.flat_map(|instance| {
        let is_f32 = instance.dtypes == [Element::F32];
        Tile::all()
            .filter(move |tile| !(tile.wgmma && is_f32))
            .map(move |tile| instance.clone().with_tile(tile))
            .filter(|instance| instance.tile.is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::HEAD_DIMS;

    #[test]
    fn a_tile_has_a_name_and_the_usual_one_has_none() {
        for tile in Tile::all() {
            assert_eq!(Tile::from_words(&tile.to_string()), Some(tile));
        }
        assert_eq!(Tile::from_words("64x48"), None);
        let kernel = table::find("attention_forward").unwrap();
        let name = |rows, walked, wgmma| {
            let instance = kernel.instance(&[Element::BF16], Some(64)).unwrap();
            instance.with_tile(Tile { rows, walked, wgmma }).name()
        };
        assert_eq!(name(64, 64, false), "attention_forward_bf16_64");
        assert_eq!(name(128, 32, false), "attention_forward_bf16_64_128_32");
        assert_eq!(name(64, 64, true), "attention_forward_bf16_64_64_64_wgmma");
        // Five kernels, each size of heads, all tiles but one for three types; of warpgroups for two.
        let all: Vec<String> = tiled_instances().map(|instance| instance.name()).collect();
        let n_wgmma = Tile::all().filter(|tile| tile.wgmma).count();
        let n_others = Tile::all().count() - n_wgmma - 1;
        assert_eq!(all.len(), 5 * HEAD_DIMS.len() * (3 * n_others + 2 * n_wgmma));
        assert!(all.contains(&"attention_delta_f32_256_128_128".to_owned()));
    }
}
