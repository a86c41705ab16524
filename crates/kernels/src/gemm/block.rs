//! The blocked product: packs blocks of B (and of A where it cannot be read in place) and runs micro-kernels over tiles.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Cpu;
use crate::dtype::{DType, Float};
use crate::isa::{Isa, Path};

use super::convert::{narrow, widen};
use super::kernel::{Micro, Out, PACKED, Tile};
use super::pack::{LINE, Panels, Source, pack, prefetch_to_l2};
use super::{MatMut, MatRef, Store, SumOrder};

/// Words of K in a block if C is f32 and can hold partial sums.
const K_BLOCK: usize = 768;
/// Words of a packed block of B: a share of the third-level cache.
const B_BLOCK: usize = 1 << 20;
/// Words of a packed block of A: it stays in a second-level cache of 256 KB, the smallest of a CPU with AVX2, and larger ones
/// gain nothing from a larger block.
const A_BLOCK: usize = 48 << 10;
/// Scratch is cut at multiples of this many bytes.
const ALIGN: usize = 64;
/// Tiles of C larger than this do not exist on any path.
const MAX_TILE: usize = 14 * 32;

/// The sizes of the blocks of one product.
struct Blocks {
    micro: Micro,
    /// Elements of K in a block.
    k: usize,
    /// Columns in a block of B: whole panels.
    n: usize,
    /// Rows in a block of A: whole tiles.
    m: usize,
    /// Pieces into which the columns of a block are cut to feed all threads.
    column_groups: usize,
}

impl Blocks {
    fn new(cpu: &Cpu, m: usize, n: usize, k: usize, dtype: DType, partial_sums: bool) -> Blocks {
        let micro = Micro::of(cpu.isa, dtype);
        let per_word = if micro.pairs { 2 } else { 1 };
        let words = micro.steps(k);
        // Even blocks, so that none is tiny.
        let k_words = if partial_sums { words.div_ceil(words.div_ceil(K_BLOCK)) } else { words };
        let n_panels = n.div_ceil(micro.nr);
        let max_panels = (B_BLOCK / (k_words * micro.nr)).max(1);
        let block_panels = n_panels.div_ceil(n_panels.div_ceil(max_panels));
        let tiles = m.div_ceil(micro.mr);
        let threads = cpu.par.n_threads();
        let mut max_tiles = (A_BLOCK / (k_words * micro.a_width)).max(1);
        if threads > 1 {
            max_tiles = max_tiles.min(tiles.div_ceil(2 * threads));
        }
        let row_blocks = tiles.div_ceil(max_tiles);
        let column_groups =
            if threads > 1 { (2 * threads).div_ceil(row_blocks).min(block_panels) } else { 1 };
        Blocks {
            micro,
            k: k_words * per_word,
            n: block_panels * micro.nr,
            m: tiles.div_ceil(row_blocks) * micro.mr,
            column_groups,
        }
    }

    /// Words between packed panels of B. The extra step keeps panels off a power of two apart, where the same steps of all
    /// panels would share a cache set while they are packed.
    fn b_panel(&self) -> usize {
        (self.micro.steps(self.k) + 1) * self.micro.nr
    }

    /// Words between packed panels of A; one more step, as above.
    fn a_panel(&self) -> usize {
        (self.micro.steps(self.k) + 1) * self.micro.a_width
    }

    fn b_words(&self) -> usize {
        self.n / self.micro.nr * self.b_panel()
    }

    fn a_words(&self) -> usize {
        self.m / self.micro.mr * self.a_panel()
    }

    fn bytes(&self, threads: usize) -> usize {
        ALIGN + 4 * (self.b_words() + threads * self.a_words()).next_multiple_of(ALIGN)
    }
}

pub(super) fn scratch_bytes(cpu: &Cpu, m: usize, n: usize, k: usize, dtype: DType) -> usize {
    let threads = cpu.par.n_threads();
    let bytes = |partial_sums| Blocks::new(cpu, m, n, k, dtype, partial_sums).bytes(threads);
    bytes(true).max(bytes(false))
}

pub(super) fn sum_order(cpu: &Cpu, m: usize, n: usize, k: usize, dtype: DType) -> SumOrder {
    let blocks = Blocks::new(cpu, m, n, k, dtype, true);
    SumOrder { block: blocks.k, unit: if blocks.micro.pairs { 2 } else { 1 } }
}

/// A pointer that several threads may hold; each writes elements of its own.
struct Shared<T>(*mut T);
// SAFETY: users write disjoint parts, and `T: Send`.
unsafe impl<T: Send> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// The sizes and views must fit, `scratch` must be large enough, and no dimension may be zero; `gemm` checks all that.
pub(super) fn run<T: Float, C: Float>(
    cpu: &Cpu,
    a: MatRef<T>,
    b: MatRef<T>,
    c: MatMut<C>,
    store: Store,
    scratch: &mut [u8],
) {
    let (m, n, k) = (c.rows, c.cols, a.cols);
    let partial_sums = C::DTYPE == DType::F32;
    let blocks = Blocks::new(cpu, m, n, k, T::DTYPE, partial_sums);
    let micro = blocks.micro;
    let threads = cpu.par.n_threads();

    let start = scratch.as_ptr().align_offset(ALIGN);
    let scratch = &mut scratch[start..start + blocks.bytes(threads) - ALIGN];
    let words = Shared(scratch.as_mut_ptr().cast::<u32>());
    let a_scratch = blocks.b_words();

    let a_src = Source {
        data: a.data.as_ptr(),
        len: a.data.len(),
        stride: a.row_stride,
        extent: m,
        k_contiguous: !a.transposed,
    };
    let b_src = Source {
        data: b.data.as_ptr(),
        len: b.data.len(),
        stride: b.row_stride,
        extent: n,
        k_contiguous: b.transposed,
    };
    // Rows a multiple of the page apart would all fall into one set of the first-level cache.
    let a_in_place = !a.transposed
        && (if micro.pairs { k.is_multiple_of(2) } else { T::DTYPE == DType::F32 })
        && !(a.row_stride * size_of::<T>()).is_multiple_of(4096);
    let b_panels = Panels { used: micro.nr, width: micro.nr, stride: blocks.b_panel(), pairs: micro.pairs };
    let a_panels =
        Panels { used: micro.mr, width: micro.a_width, stride: blocks.a_panel(), pairs: micro.pairs };
    let c_data = Shared(c.data.as_mut_ptr());
    let c_stride = c.row_stride;

    for n0 in (0..n).step_by(blocks.n) {
        let n_end = (n0 + blocks.n).min(n);
        let n_panels = (n_end - n0).div_ceil(micro.nr);
        for k0 in (0..k).step_by(blocks.k) {
            let k_range = k0..(k0 + blocks.k).min(k);
            let add = store == Store::Add || k0 > 0;
            let steps = micro.steps(k_range.len());

            let pack_groups = if threads > 1 { n_panels.min(4 * threads) } else { 1 };
            cpu.par.for_each(pack_groups, |g| {
                let (p0, p1) = (g * n_panels / pack_groups, (g + 1) * n_panels / pack_groups);
                let outer = n0 + p0 * micro.nr..(n0 + p1 * micro.nr).min(n_end);
                // SAFETY: the ranges are inside B; the panels `p0..p1` are inside the scratch and this call's own.
                unsafe {
                    pack(cpu.isa, &b_src, outer, k_range.clone(), b_panels, words.at(p0 * blocks.b_panel()))
                }
            });

            let row_blocks = m.div_ceil(blocks.m);
            let groups = blocks.column_groups.min(n_panels);
            let next = AtomicUsize::new(0);
            cpu.par.for_each(threads, |thread| {
                let a_block = words.at(a_scratch + thread * blocks.a_words());
                loop {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    if task >= row_blocks * groups {
                        break;
                    }
                    let (i, g) = (task / groups, task % groups);
                    let rows = i * blocks.m..((i + 1) * blocks.m).min(m);
                    // The block of A that this thread probably takes next arrives while it computes this one.
                    let next_i = (task + threads) / groups;
                    let next_rows = (next_i * blocks.m).min(m)..((next_i + 1) * blocks.m).min(m);
                    let panels = g * n_panels / groups..(g + 1) * n_panels / groups;
                    let n_tiles = panels.len() * rows.len().div_ceil(micro.mr);
                    let mut n_done = 0;
                    if !a_in_place {
                        // SAFETY: the ranges are inside A; the block of scratch belongs to this thread.
                        unsafe { pack(cpu.isa, &a_src, rows.clone(), k_range.clone(), a_panels, a_block) }
                    }
                    for p in panels {
                        let b = words.at(p * blocks.b_panel());
                        let col = n0 + p * micro.nr;
                        let cols = micro.nr.min(n - col);
                        for (j, row) in rows.clone().step_by(micro.mr).enumerate() {
                            let (a, a_row_bytes) = if a_in_place {
                                (
                                    a_src.data.wrapping_add(row * a_src.stride + k0).cast(),
                                    a_src.stride * size_of::<T>(),
                                )
                            } else {
                                (a_block.wrapping_add(j * blocks.a_panel()).cast_const().cast(), PACKED)
                            };
                            let rows = micro.mr.min(rows.end - row);
                            let c = c_data.at(row * c_stride + col);
                            a_src.prefetch(&next_rows, &k_range, n_done, n_tiles);
                            n_done += 1;
                            // C arrives while the sums are formed.
                            for r in 0..rows {
                                for line in (0..cols).step_by(LINE / size_of::<C>()) {
                                    prefetch_to_l2(c.wrapping_add(r * c_stride + line));
                                }
                            }
                            // SAFETY: the tile is inside C and this task's own; A and B have `steps` words as packed
                            // above, or in place where K is whole words.
                            unsafe {
                                let mut tile = Tile {
                                    rows,
                                    cols,
                                    steps,
                                    a,
                                    a_row_bytes,
                                    b,
                                    c: Out::F32(c.cast()),
                                    c_stride,
                                    add,
                                };
                                match C::DTYPE {
                                    DType::F32 => micro.tile(&tile),
                                    DType::BF16 if micro.writes_bf16 => {
                                        tile.c = Out::Bf16(c.cast());
                                        micro.tile(&tile);
                                    }
                                    _ => rounded_tile(cpu.isa, &micro, tile, c),
                                }
                            }
                        }
                    }
                }
            });
        }
    }
}

/// Computes a tile in f32 and rounds it to `C`.
///
/// # Safety
/// As [`Micro::tile`], with `c` in place of `tile.c`.
unsafe fn rounded_tile<C: Float>(isa: Isa, micro: &Micro, tile: Tile, c: *mut C) {
    let mut sums = [0f32; MAX_TILE];
    // SAFETY: the caller's contract; the buffer holds the largest tile; an `Isa` proves its features.
    unsafe {
        micro.tile(&Tile { c: Out::F32(sums.as_mut_ptr()), c_stride: micro.nr, add: false, ..tile });
        match isa.path() {
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Bf16 => round_avx512(&sums, micro.nr, &tile, c),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => round_avx2(&sums, micro.nr, &tile, c),
            _ => round(&sums, micro.nr, &tile, c),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn round_avx512<C: Float>(sums: &[f32; MAX_TILE], width: usize, tile: &Tile, c: *mut C) {
    // SAFETY: the caller's contract.
    unsafe { round(sums, width, tile, c) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_avx2<C: Float>(sums: &[f32; MAX_TILE], width: usize, tile: &Tile, c: *mut C) {
    // SAFETY: the caller's contract.
    unsafe { round(sums, width, tile, c) }
}

#[inline(always)]
unsafe fn round<C: Float>(sums: &[f32; MAX_TILE], width: usize, tile: &Tile, c: *mut C) {
    for r in 0..tile.rows {
        // SAFETY: the caller promises `rows` rows of `cols` elements.
        let to = unsafe { std::slice::from_raw_parts_mut(c.add(r * tile.c_stride), tile.cols) };
        let from = &sums[r * width..][..tile.cols];
        if tile.add {
            to.iter_mut().zip(from).for_each(|(c, &x)| *c = narrow(x + widen(*c)));
        } else {
            to.iter_mut().zip(from).for_each(|(c, &x)| *c = narrow(x));
        }
    }
}
