//! Which rows of the head are in a pass over its logits: chunks of rows, without those that have no label.
//!
//! A row that is left out had a gradient of zero, so no sum changes. On a CPU no bit does: the sums over rows in the weight
//! gradient are formed block by block as if all rows were there ([`gemm::sum_order`]), and where it multiplies pairs of rows
//! in one instruction, a row is left out with the other one of its pair.
//!
//! A CPU takes chunks of logits that stay in its cache. A GPU takes large ones, so that its products have enough rows and the
//! weights, and their gradients, move seldom.

use std::ops::Range;

use oarlock_kernels::DType;
use oarlock_kernels::gemm::{self, FEW_ROWS, SumOrder};

use crate::device::Device;
use crate::ops::labels::IGNORE_INDEX;

/// Elements of one chunk of logits on a CPU: large enough for fast products, small enough to stay in the cache.
const CHUNK_ELEMS: usize = 1 << 22;
/// The part of a GPU's memory that a chunk of logits may take in f32, and the most bytes of it. It does not depend on what is
/// free, so that a run is cut in the same way each time.
const GPU_SHARE: usize = 32;
const MOST_GPU_BYTES: usize = 4 << 30;
/// Rows of a CPU's chunk are a multiple of the first, those of a GPU's of the second.
const UNITS: [usize; 2] = [32, 128];

/// Rows in a chunk of logits. Chunks have one size: a short last one would waste the packing of the weights.
pub(super) fn chunk_rows(device: &Device, n_rows: usize, vocab: usize) -> usize {
    let (elems, unit) = match device.gpu_bytes() {
        None => (CHUNK_ELEMS, UNITS[0]),
        Some(bytes) => ((bytes / GPU_SHARE).clamp(4, MOST_GPU_BYTES) / size_of::<f32>(), UNITS[1]),
    };
    let n_chunks = (n_rows * vocab).div_ceil(elems).min(n_rows.div_ceil(unit)).max(1);
    n_rows.div_ceil(n_chunks).next_multiple_of(unit).clamp(1, n_rows.max(1))
}

/// Rows whose logits exist at one time.
pub(super) struct Group {
    /// Their positions, ascending.
    pub rows: Vec<i32>,
    /// Parts of `rows` whose weight gradients are summed from zero.
    pub blocks: Vec<Range<usize>>,
    /// Of a chunk that has too few rows to join others.
    alone: bool,
}

impl Group {
    /// The positions, where they follow each other.
    pub fn span(&self) -> Option<Range<usize>> {
        let (first, last) = (*self.rows.first()? as usize, *self.rows.last()? as usize);
        (last - first + 1 == self.rows.len()).then_some(first..last + 1)
    }
}

/// The rows that have labels in groups of up to a chunk, for a weight of these sizes.
pub(super) fn groups(
    device: &Device,
    labels: &[i32],
    chunk: usize,
    [vocab, dim]: [usize; 2],
    dtype: DType,
) -> Vec<Group> {
    match device.gpu_bytes() {
        Some(_) => of_gpu(labels, chunk),
        None => of_cpu(labels, chunk, |rows| gemm::sum_order(device.host(), vocab, dim, rows, dtype)),
    }
}

/// Of a GPU: one block each. Rows without a label stay where they are few, so that nothing has to be gathered and products
/// have the same sizes in every step; otherwise some of them fill up the last unit, which bounds the number of sizes.
fn of_gpu(labels: &[i32], chunk: usize) -> Vec<Group> {
    let n_kept = labels.iter().filter(|&&label| label != IGNORE_INDEX).count();
    if n_kept == 0 {
        return Vec::new();
    }
    let are_few = (labels.len() - n_kept) * 8 <= labels.len();
    let mut n_more = if are_few { labels.len() } else { n_kept.next_multiple_of(UNITS[1]) - n_kept };
    let mut is_kept = |label: i32| {
        if label != IGNORE_INDEX {
            return true;
        }
        let kept = n_more > 0;
        n_more -= usize::from(kept);
        kept
    };
    let rows: Vec<i32> =
        (0..labels.len()).filter(|&row| is_kept(labels[row])).map(|row| row as i32).collect();
    let group = |rows: &[i32]| Group {
        rows: rows.to_vec(),
        blocks: std::iter::once(0..rows.len()).collect(),
        alone: false,
    };
    rows.chunks(chunk).map(group).collect()
}

/// Of a CPU. `order` is that of the sums over so many rows.
fn of_cpu(labels: &[i32], chunk: usize, order: impl Fn(usize) -> SumOrder) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for first in (0..labels.len()).step_by(chunk) {
        let labels = &labels[first..labels.len().min(first + chunk)];
        let SumOrder { block, unit } = order(labels.len());
        let mut units: Vec<bool> =
            labels.chunks(unit).map(|unit| unit.iter().any(|&label| label != IGNORE_INDEX)).collect();
        let mut n_units = units.iter().filter(|&&kept| kept).count();
        if n_units == 0 {
            continue;
        }
        // Products with few rows take another way, with other roundings.
        let alone = labels.len() <= FEW_ROWS;
        for kept in units.iter_mut().filter(|kept| !**kept) {
            if alone || (n_units - 1) * unit >= FEW_ROWS {
                break;
            }
            (*kept, n_units) = (true, n_units + 1);
        }
        let n_kept = (0..labels.len()).filter(|row| units[row / unit]).count();
        let fits = |group: &&mut Group| !alone && !group.alone && group.rows.len() + n_kept <= chunk;
        if groups.last_mut().filter(fits).is_none() {
            groups.push(Group { rows: Vec::new(), blocks: Vec::new(), alone });
        }
        let Some(group) = groups.last_mut() else { continue };
        for from in (0..labels.len()).step_by(block) {
            let begin = group.rows.len();
            let rows = from..labels.len().min(from + block);
            group.rows.extend(rows.filter(|row| units[row / unit]).map(|row| (first + row) as i32));
            if group.rows.len() > begin {
                group.blocks.push(begin..group.rows.len());
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const IGNORED: i32 = IGNORE_INDEX;

    #[test]
    fn a_gpu_takes_chunks_by_its_memory() {
        let cpu = Device::cpu(oarlock_kernels::Isa::detect(), oarlock_kernels::Par::solo());
        let gpu = |bytes| cpu.as_dry_gpu(bytes);
        // The vocabularies of Qwen2.5 and of MiniMind; 16,384 tokens.
        let rows = |device: &Device, vocab| chunk_rows(device, 16_384, vocab);
        assert_eq!((rows(&cpu, 151_936), rows(&cpu, 6400)), (32, 672));
        assert_eq!((rows(&gpu(80 << 30), 151_936), rows(&gpu(80 << 30), 6400)), (4096, 16_384));
        assert_eq!((rows(&gpu(192 << 30), 151_936), rows(&gpu(24 << 30), 151_936)), (5504, 1280));
        assert_eq!((rows(&gpu(0), 151_936), chunk_rows(&gpu(80 << 30), 0, 5)), (128, 1));
    }

    #[test]
    fn a_gpu_leaves_out_rows_where_that_pays() {
        let sizes = |labels: &[i32]| -> Vec<(usize, bool)> {
            of_gpu(labels, 256).iter().map(|group| (group.rows.len(), group.span().is_some())).collect()
        };
        let mut labels = vec![3; 600];
        labels[599] = IGNORED;
        assert_eq!(sizes(&labels), [(256, true), (256, true), (88, true)]);
        // Half of them: as many as there are units for.
        let labels: Vec<i32> = (0..600).map(|row| if row % 2 == 0 { 3 } else { IGNORED }).collect();
        assert_eq!(sizes(&labels), [(256, false), (128, false)]);
        let all: Vec<i32> = of_gpu(&labels, 256).into_iter().flat_map(|group| group.rows).collect();
        assert!(all.is_sorted() && (0..600).step_by(2).all(|row| all.contains(&row)));
        assert_eq!(sizes(&[IGNORED; 9]), []);
        assert_eq!(sizes(&[IGNORED, IGNORED, 1]), [(3, true)]);
    }
}
