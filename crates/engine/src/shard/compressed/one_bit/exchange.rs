//! The mean over ranks of which each sends one bit an element: two stages of signs and scales, and what they do not say is
//! kept for the next exchange (error feedback; Tang et al. 2021, <https://arxiv.org/abs/2102.02888>).
//!
//! ```text
//! 1  each rank     c = values + own error         sends signs of chunk j and |c| / sqrt(n) to rank j     all_to_all
//! 2  each server   c = mean of what came + error  sends signs of its chunk and their scale to all        all_gather
//! ```
//!
//! A block of bytes goes from each rank to each other in either stage: the signs of a chunk of every item, then the scale
//! of every item. An item is padded to chunks of whole bytes, and the padding counts in its norms, as in DeepSpeed.

use std::ops::Range;

use oarlock_comm::{Communicator, Ownership, Region, Sharing};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::{one_bit, transfer, update};
use oarlock_tensor::{DType, Device, FlatBuffer, Store};

use crate::Result;
use crate::shard::layout::BLOCK;
use crate::shard::order::ready;

/// What is sent with one scale.
struct Item {
    /// Elements of a chunk: of the signs that one rank adds up.
    chunk: usize,
    /// Where it begins in the errors of this rank, and among those of the server.
    errors: [usize; 2],
    /// Where its signs begin in a block.
    byte: usize,
}

/// Memory and errors of the exchanges of one kind of values.
pub(super) struct Exchange {
    comm: Communicator,
    device: Device,
    items: Vec<Item>,
    /// The bytes of a block, and where in it the scales begin.
    block: usize,
    scales: usize,
    sent: Region,
    received: Region,
    /// What this rank has not said yet, and what it has not said as the server of its chunks.
    errors: [FlatBuffer; 2],
    /// The sum of a chunk.
    sum: FlatBuffer,
}

impl Exchange {
    /// For items of so many elements. All ranks call it.
    pub fn new(comm: &Communicator, device: &Device, n_elems: &[usize]) -> Result<Exchange> {
        let n_ranks = comm.world_size();
        // A chunk is a multiple of whole bytes and of the ranks.
        let multiple = n_ranks * least_common_multiple(n_ranks, 8);
        let (mut items, mut ends, mut byte) = (Vec::new(), [0; 2], 0);
        for n in n_elems {
            let chunk = n.next_multiple_of(multiple) / n_ranks;
            items.push(Item { chunk, errors: ends, byte });
            ends = [ends[0] + n_ranks * chunk, ends[1] + chunk];
            byte += chunk / 8;
        }
        let scales = byte.next_multiple_of(4);
        let block = scales + 4 * items.len();
        let region = |name| comm.allocate(name, n_ranks * block, Sharing::PerRank);
        let largest = items.iter().map(|item| item.chunk).max().unwrap_or(0);
        let memory = |n: usize, what| FlatBuffer::pooled(device, 4 * n, what);
        Ok(Exchange {
            sent: region("signs to send")?,
            received: region("signs received")?,
            errors: [memory(ends[0], "errors of compression")?, memory(ends[1], "errors of compression")?],
            sum: memory(largest, "a sum of signs")?,
            comm: comm.clone(),
            device: device.clone(),
            items,
            block,
            scales,
        })
    }

    /// Forgets what earlier exchanges have left over.
    pub fn forget_errors(&self) -> Result<()> {
        for errors in &self.errors {
            transfer::zero(&self.device, errors)?;
        }
        Ok(())
    }

    /// The values of each item, in parts, become their mean over the ranks as two exchanges of signs tell it: the same bits
    /// on every rank. All ranks call it.
    pub fn mean(&self, values: &[Vec<Part<'_>>]) -> Result<()> {
        let (rank, n_ranks) = (self.comm.rank(), self.comm.world_size());
        let (sent, received) = (self.sent.flat(), self.received.flat());
        let words = n_ranks * self.block / 4;

        for (item, parts) in self.items.iter().zip(values) {
            let mut at = item.errors[0];
            for part in parts {
                let end = at + part.range.len();
                let to = Part { flat: &self.errors[0], range: at..end };
                transfer::accumulate(&self.device, part, &to, Store::Add)?;
                at = end;
            }
        }
        let all = |item: &Item| item.errors[0]..item.errors[0] + n_ranks * item.chunk;
        let scales = self.scales_of(0, all)?;
        for (item, scale) in self.items.iter().zip(&scales) {
            for to in 0..n_ranks {
                let first = item.errors[0] + to * item.chunk;
                self.pack(0, first..first + item.chunk, *scale, &sent, to * self.block + item.byte)?;
            }
        }
        (0..n_ranks).try_for_each(|to| self.write_scales(&sent, to, &scales))?;
        let exchanged =
            self.comm.all_to_all(&self.sent, &self.received, DType::I32, 0..words, ready(&sent)?)?;
        exchanged.wait()?;

        // The scales of each rank, as shares of a mean.
        let share = (1.0 / n_ranks as f64) as f32;
        let shares =
            (0..n_ranks).map(|from| self.read_scales(&received, from)).collect::<Result<Vec<_>>>()?;
        for (index, item) in self.items.iter().enumerate() {
            let bits = Part { flat: &received, range: item.byte..n_ranks * self.block };
            let scales: Vec<f32> = shares.iter().map(|of_rank| of_rank[index] * share).collect();
            let sum = Part { flat: &self.sum, range: 0..item.chunk };
            one_bit::sum_signs(&self.device, &bits, self.block, &scales, &sum)?;
            let range = item.errors[1]..item.errors[1] + item.chunk;
            transfer::accumulate(&self.device, &sum, &Part { flat: &self.errors[1], range }, Store::Add)?;
        }
        let own = |item: &Item| item.errors[1]..item.errors[1] + item.chunk;
        let scales = self.scales_of(1, own)?;
        for (item, scale) in self.items.iter().zip(&scales) {
            self.pack(1, own(item), *scale, &sent, rank * self.block + item.byte)?;
        }
        self.write_scales(&sent, rank, &scales)?;
        let words = self.block / 4;
        let owners = (0..n_ranks).map(|r| std::iter::once(r * words..(r + 1) * words).collect()).collect();
        let owners = Ownership::new(owners)?;
        self.comm.all_gather(&self.sent, DType::I32, &owners, ready(&sent)?)?.wait()?;

        for from in 0..n_ranks {
            let scales = self.read_scales(&sent, from)?;
            for ((item, parts), scale) in self.items.iter().zip(values).zip(scales) {
                let first = from * self.block + item.byte;
                let bits = Part { flat: &sent, range: first..first + item.chunk / 8 };
                let chunk = from * item.chunk..(from + 1) * item.chunk;
                let mut at = 0;
                for part in parts {
                    let inside = chunk.start.clamp(at, at + part.range.len())
                        ..chunk.end.clamp(at, at + part.range.len());
                    if !inside.is_empty() {
                        let to = part.range.start + inside.start - at..part.range.start + inside.end - at;
                        let out = Part { flat: part.flat, range: to };
                        one_bit::unpack_signs(&self.device, &bits, inside.start - chunk.start, scale, &out)?;
                    }
                    at += part.range.len();
                }
            }
        }
        Ok(())
    }

    /// The scale of each item, `|errors| / sqrt(n)`, over the elements that `range` says.
    fn scales_of(&self, which: usize, range: impl Fn(&Item) -> Range<usize>) -> Result<Vec<f32>> {
        let n_blocks = |item: &Item| range(item).len().div_ceil(BLOCK);
        let total = self.items.iter().map(n_blocks).sum::<usize>();
        let sums = FlatBuffer::borrowed(&self.device, 8 * total, "norms of errors")?;
        let mut end = 0;
        for item in &self.items {
            let blocks = end..end + n_blocks(item);
            end = blocks.end;
            let errors = Part { flat: &self.errors[which], range: range(item) };
            update::squared_norms(&self.device, &errors, &Part { flat: &sums, range: blocks })?;
        }
        let squares = transfer::read_with::<f64, _>(&sums, 0..total, <[f64]>::to_vec)?;
        let mut rest = &squares[..];
        let mut scales = Vec::new();
        for item in &self.items {
            let (own, others) = rest.split_at(n_blocks(item));
            rest = others;
            scales.push((update::tree_sum(own) / range(item).len().max(1) as f64).sqrt() as f32);
        }
        Ok(scales)
    }

    fn pack(
        &self,
        which: usize,
        range: Range<usize>,
        scale: f32,
        to: &FlatBuffer,
        byte: usize,
    ) -> Result<()> {
        let bits = Part { flat: to, range: byte..byte + range.len() / 8 };
        let errors = Part { flat: &self.errors[which], range };
        Ok(one_bit::pack_signs(&self.device, &errors, scale, &bits)?)
    }

    /// The place of the scales in a block, in words.
    fn place_of_scales(&self, block: usize) -> Range<usize> {
        let first = (block * self.block + self.scales) / 4;
        first..first + self.items.len()
    }

    fn write_scales(&self, to: &FlatBuffer, block: usize, scales: &[f32]) -> Result<()> {
        let place = self.place_of_scales(block);
        Ok(transfer::write_with::<f32, _>(to, place, |to| to.copy_from_slice(scales))?)
    }

    fn read_scales(&self, from: &FlatBuffer, block: usize) -> Result<Vec<f32>> {
        Ok(transfer::read_with::<f32, _>(from, self.place_of_scales(block), <[f32]>::to_vec)?)
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
