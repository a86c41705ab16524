//! ZeRO++: what ranks send as integers of few bits with a scale for each block of elements (Wang et al. 2023,
//! <https://arxiv.org/abs/2306.10209>).
//!
//! ```text
//! qwZ  weights     each rank sends what it owns in 8 bits                                              all_gather
//! qgZ  gradients   1  in 4 bits to the ranks of its machine: to place p what the ranks in place p own  all_to_all
//!                  2  adds up what came, and sends that in 4 bits to their owners across machines      all_to_all
//!                  3  adds up what came: its sums
//! ```
//!
//! Blocks are counted from the beginning of a parameter, and owners have whole ones, so no code depends on the number of
//! ranks. Between exchanges all numbers are f32. A rank decodes its own weights as it does those of others: all have the same
//! bits.

use std::ops::Range;

use oarlock_comm::{Communicator, Ownership, Ready, Sharing};
use oarlock_tensor::ops::block_int::{self, Bits};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::{DType, Device, FlatBuffer, Store};

use crate::Result;
use crate::shard::layout::Layout;
use crate::shard::order::ready;
use crate::shard::pool::{BufferPool, PoolBuffer};

/// What each rank owns of a group, encoded.
pub(in crate::shard) struct Encoded {
    bits: Bits,
    /// The parts of each rank, each of one parameter: its elements in the group, and its words among those of the rank.
    ranks: Vec<Vec<(Range<usize>, Range<usize>)>>,
}

impl Encoded {
    pub fn of(layout: &Layout, n_ranks: usize, bits: Bits) -> Encoded {
        let of_rank = |rank: usize| {
            let mut end = 0;
            let encoded = |(_, part): (usize, Range<usize>)| {
                let first = end;
                end += bits.n_words(part.len());
                (part, first..end)
            };
            layout.parts(layout.owned(rank, n_ranks)).map(encoded).collect()
        };
        Encoded { bits, ranks: (0..n_ranks).map(of_rank).collect() }
    }

    fn n_words(&self, rank: usize) -> usize {
        self.ranks[rank].last().map_or(0, |(_, words)| words.end)
    }

    /// The most words of a rank.
    fn largest(&self) -> usize {
        (0..self.ranks.len()).map(|rank| self.n_words(rank)).max().unwrap_or(0)
    }

    /// The words of each rank, one behind another.
    fn owners(&self) -> Result<Ownership> {
        let mut end = 0;
        let place = |rank| {
            let first = end;
            end += self.n_words(rank);
            std::iter::once(first..end).collect()
        };
        Ok(Ownership::new((0..self.ranks.len()).map(place).collect())?)
    }

    /// Encodes what a rank owns of the elements `flat` into `words` from `first` on.
    fn write(
        &self,
        device: &Device,
        rank: usize,
        (flat, dtype): (&FlatBuffer, DType),
        (words, first): (&FlatBuffer, usize),
    ) -> Result<()> {
        for (part, place) in &self.ranks[rank] {
            let (x, to) =
                (Part { flat, range: part.clone() }, Part { flat: words, range: from(first, place) });
            block_int::quantize(device, dtype, self.bits, &x, &to)?;
        }
        Ok(())
    }

    /// Decodes words from `first` on as what a rank owns.
    fn read(
        &self,
        device: &Device,
        rank: usize,
        (words, first): (&FlatBuffer, usize),
        (flat, dtype, store): (&FlatBuffer, DType, Store),
    ) -> Result<()> {
        for (part, place) in &self.ranks[rank] {
            let (x, out) =
                (Part { flat: words, range: from(first, place) }, Part { flat, range: part.clone() });
            block_int::dequantize(device, dtype, self.bits, &x, store, &out)?;
        }
        Ok(())
    }
}

fn from(first: usize, place: &Range<usize>) -> Range<usize> {
    first + place.start..first + place.end
}

/// Bytes of weights in 8 bits, divided among so many ranks.
pub(in crate::shard) fn encoded_bytes(layout: &Layout, n_ranks: usize) -> Result<usize> {
    Ok(4 * Encoded::of(layout, n_ranks, Bits::Eight).owners()?.end())
}

/// Begins to gather weights of which the part that this rank owns is in `flat`.
pub(in crate::shard) fn gather(
    device: &Device,
    layout: &Layout,
    comm: &Communicator,
    (flat, dtype): (&FlatBuffer, DType),
    words: &PoolBuffer,
) -> Result<Ready> {
    let encoded = Encoded::of(layout, comm.world_size(), Bits::Eight);
    let owners = encoded.owners()?;
    let first = owners.of(comm.rank()).first().map_or(0, |range| range.start);
    encoded.write(device, comm.rank(), (flat, dtype), (&words.flat, first))?;
    Ok(comm.all_gather(&words.region, DType::I32, &owners, ready(&words.flat)?)?)
}

/// Decodes the gathered weights of all of so many ranks.
pub(in crate::shard) fn decode(
    device: &Device,
    layout: &Layout,
    n_ranks: usize,
    words: &FlatBuffer,
    (flat, dtype): (&FlatBuffer, DType),
) -> Result<()> {
    let encoded = Encoded::of(layout, n_ranks, Bits::Eight);
    let owners = encoded.owners()?;
    for rank in 0..n_ranks {
        let first = owners.of(rank).first().map_or(0, |range| range.start);
        encoded.read(device, rank, (words, first), (flat, dtype, Store::Overwrite))?;
    }
    Ok(())
}

/// The exchanges of gradients, with their buffers.
pub(in crate::shard) struct Exchanges {
    device: Device,
    /// Buffers of the first, between the ranks of a machine, and of the second, between machines.
    inside: BufferPool,
    across: BufferPool,
}

/// Gradients in the first exchange: what was sent, and what comes.
pub(in crate::shard) struct FirstHop {
    sent: PoolBuffer,
    received: PoolBuffer,
}

impl Exchanges {
    pub fn new(inside: &Communicator, across: &Communicator, device: &Device) -> Exchanges {
        let pool = |comm| BufferPool::new(comm, device, Sharing::PerRank, "quantized gradients in flight");
        Exchanges { device: device.clone(), inside: pool(inside), across: pool(across) }
    }

    /// All bytes of the buffers.
    pub fn bytes(&self) -> usize {
        self.inside.bytes() + self.across.bytes()
    }

    /// Ranks of a machine, and machines.
    fn sizes(&self) -> (usize, usize) {
        (self.inside.comm().world_size(), self.across.comm().world_size())
    }

    /// Begins the first exchange of the gradients in `flat`.
    pub fn begin(&mut self, layout: &Layout, flat: &FlatBuffer) -> Result<(FirstHop, Ready)> {
        let (places, machines) = self.sizes();
        let encoded = Encoded::of(layout, places * machines, Bits::Four);
        let block = encoded.largest();
        let words = places * machines * block;
        let hop = FirstHop { sent: self.inside.take(4 * words)?, received: self.inside.take(4 * words)? };
        for place in 0..places {
            for machine in 0..machines {
                let to = (&hop.sent.flat, (place * machines + machine) * block);
                encoded.write(&self.device, machine * places + place, (flat, DType::F32), to)?;
            }
        }
        let sent = ready(&hop.sent.flat)?;
        let (from, to) = (&hop.sent.region, &hop.received.region);
        let ready = self.inside.comm().all_to_all(from, to, DType::I32, 0..words, sent)?;
        Ok((hop, ready))
    }

    /// After the first exchange, does the second: then `flat` has the sums of what this rank owns. On the way it has those
    /// of its machine.
    pub fn finish(&mut self, layout: &Layout, hop: FirstHop, flat: &FlatBuffer) -> Result<()> {
        let (places, machines) = self.sizes();
        let (own_place, own_machine) = (self.inside.comm().rank(), self.across.comm().rank());
        let owner = |machine: usize| machine * places + own_place;
        let encoded = Encoded::of(layout, places * machines, Bits::Four);
        let block = encoded.largest();
        let store = |nth: usize| if nth == 0 { Store::Overwrite } else { Store::Add };
        let bytes = 4 * machines * block;
        let (sent, received) = (self.across.take(bytes)?, self.across.take(bytes)?);
        for machine in 0..machines {
            for from in 0..places {
                let words = (&hop.received.flat, (from * machines + machine) * block);
                encoded.read(&self.device, owner(machine), words, (flat, DType::F32, store(from)))?;
            }
            let to = (&sent.flat, machine * block);
            encoded.write(&self.device, owner(machine), (flat, DType::F32), to)?;
        }
        let (range, after) = (0..machines * block, ready(&sent.flat)?);
        let exchanged =
            self.across.comm().all_to_all(&sent.region, &received.region, DType::I32, range, after)?;
        exchanged.precede_launches()?;
        for machine in 0..machines {
            let words = (&received.flat, machine * block);
            encoded.read(&self.device, owner(own_machine), words, (flat, DType::F32, store(machine)))?;
        }
        [hop.sent, hop.received].into_iter().try_for_each(|buffer| self.inside.give_back(buffer))?;
        [sent, received].into_iter().try_for_each(|buffer| self.across.give_back(buffer))
    }
}
