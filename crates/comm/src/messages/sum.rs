//! Sums over ranks: each owner receives its elements in pieces and adds them in the tree, first inside machines and then between
//! them.

use std::ops::Range;

use oarlock_tensor::DType;
use oarlock_tensor::cpu::rank_sum::{sum_range, sum_range_as};

use super::exchange::Exchange;
use super::layout::Layout;
use super::library::ByteSpan;
use super::member::Group;
use super::pieces::{parts, span};
use crate::error::Result;
use crate::held_region::HeldRegion;
use crate::ownership::Ownership;
use crate::region::copy;
use crate::stamp::Stamp;

/// Bytes of elements that wait to be sent or summed, of all ranks together.
const SCRATCH: usize = 32 << 20;
/// The least and most of them in one message.
const PIECE: (usize, usize) = (32 << 10, 1 << 20);
/// The least and most pieces of one owner that are under way at a time.
const DEPTH: (usize, usize) = (2, 8);

/// What the messages of one rank of the column bring, in their order.
#[derive(Clone, Copy)]
enum Arrival {
    /// Its values of a piece of this rank.
    Contribution,
    /// The sums of its piece with this number.
    Result(usize),
}

/// A sum at work. Its steps are the pieces of the owners, of which those of one column work together.
struct Sum<'a> {
    exchange: Exchange<'a>,
    layout: Layout,
    /// The buffers of the ranks of this machine, and which is this rank's.
    row: Vec<*mut u8>,
    region: &'a HeldRegion,
    dtype: DType,
    /// What is sent for the sum of a machine.
    wire: DType,
    /// Of each rank of the column, the pieces that it owns.
    parts: Vec<Vec<Range<usize>>>,
    scratch: *mut u8,
    /// Pieces of one owner that are under way at a time.
    depth: usize,
    /// Bytes of a place in the scratch.
    piece: usize,
    arrivals: Vec<Vec<Arrival>>,
    /// Of each rank of the column, how many arrivals have been looked at.
    seen: Vec<usize>,
    /// Of each rank of the column, the number of each contribution among the messages from it, and to it.
    received: Vec<Vec<usize>>,
    sent: Vec<Vec<usize>>,
    /// Messages queued to each rank of the column.
    queued: Vec<usize>,
}

impl Group {
    /// Adds the elements of all ranks (invariant 4). Each owner then has the sums of its elements; `everywhere`: all ranks have
    /// the sums of all.
    pub(super) fn sum(
        &self,
        stamp: &Stamp,
        region: &HeldRegion,
        dtype: DType,
        owners: &Ownership,
        everywhere: bool,
    ) -> Result<()> {
        let layout = self.layout_of(&[region]);
        let machines = layout.column.len();
        // A sum of several 16-bit values is rounded once, when all are added.
        let wire = if layout.is_flat() { dtype } else { DType::F32 };
        let depth = (SCRATCH / (2 * machines * PIECE.1)).clamp(DEPTH.0, DEPTH.1);
        let places = 2 * depth * machines;
        let piece = (SCRATCH / places).clamp(PIECE.0, PIECE.1) / 4096 * 4096;
        let mut exchange = Exchange::new(self, stamp);
        exchange.keep(region);
        let scratch = if machines > 1 { places * piece } else { 0 };
        let scratch = exchange.buffer(scratch).map_err(|error| self.member.fail_locally(error))?;
        let parts = |&rank: &usize| parts(owners, rank, piece / wire.size()).collect();
        let mut sum = Sum {
            exchange,
            row: if layout.is_flat() { vec![region.as_ptr()] } else { region.buffers().collect() },
            region,
            dtype,
            wire,
            parts: layout.column.iter().map(parts).collect(),
            scratch,
            depth,
            piece,
            arrivals: vec![Vec::new(); machines],
            seen: vec![0; machines],
            received: vec![Vec::new(); machines],
            sent: vec![Vec::new(); machines],
            queued: vec![0; machines],
            layout,
        };
        sum.run(everywhere)?;
        sum.exchange.settle(&sum.layout)
    }
}

impl Sum<'_> {
    fn run(&mut self, everywhere: bool) -> Result<()> {
        let steps = self.parts.iter().map(Vec::len).max().unwrap_or(0);
        let peers: Vec<usize> = (0..self.layout.column.len()).filter(|&m| m != self.layout.machine).collect();
        for step in 0..self.depth {
            for &peer in &peers {
                self.contribute(peer, step)?;
                self.expect(peer, step);
            }
        }
        for step in 0..steps {
            self.add(step, everywhere)?;
            // In the same order on both sides of every pair.
            for &peer in &peers {
                if everywhere {
                    self.send_result(peer, step);
                    self.expect_result(peer, step)?;
                }
                self.contribute(peer, step + self.depth)?;
                self.expect(peer, step + self.depth);
            }
            self.spread();
        }
        self.exchange.finish()?;
        self.spread();
        Ok(())
    }

    /// A place in the scratch: of what is received, or of what is sent.
    fn place(&self, sends: bool, step: usize, machine: usize) -> *mut u8 {
        let machines = self.layout.column.len();
        let index = (usize::from(sends) * self.depth + step % self.depth) * machines + machine;
        // An address alone: there is one place for each direction, each of `depth` steps and each rank of the column.
        self.scratch.wrapping_add(index * self.piece)
    }

    /// The buffers of this machine's ranks, from an element on.
    fn row_at(&self, part: &Range<usize>) -> Vec<*mut u8> {
        // Addresses alone, as in `span`.
        self.row.iter().map(|&buffer| buffer.wrapping_add(part.start * self.dtype.size())).collect()
    }

    /// Adds a piece inside this machine.
    fn add_row(&self, part: &Range<usize>, to: *mut u8) {
        let sources: Vec<*const u8> = self.row_at(part).into_iter().map(<*mut u8>::cast_const).collect();
        // SAFETY: pieces of the column are those of this rank alone on this machine: until its ranks have settled nobody else
        // touches them in any buffer of the row. The target is a place that holds a piece and that no message uses.
        unsafe { sum_range_as([self.dtype, self.wire], &sources, &[to], 0..part.len()) };
    }

    /// Sends this machine's values of a piece to its owner.
    fn contribute(&mut self, peer: usize, step: usize) -> Result<()> {
        let Some(part) = self.parts[peer].get(step).cloned() else { return Ok(()) };
        let to = self.layout.column[peer];
        let values = if self.layout.is_flat() {
            span(self.region, &part, self.dtype.size())
        } else {
            // The place is free once what was sent from it has been.
            if let Some(&before) = step.checked_sub(self.depth).and_then(|before| self.sent[peer].get(before))
            {
                self.exchange.wait_until(|all| all.sends[to].done > before)?;
            }
            let place = self.place(true, step, peer);
            self.add_row(&part, place);
            ByteSpan { at: place, bytes: part.len() * self.wire.size() }
        };
        self.sent[peer].push(self.queued[peer]);
        self.queued[peer] += 1;
        // SAFETY: the communicator checked the ranges; the scratch and the region, which is held and kept, outlive the message. The
        // values stay until they are sent: `expect_result` waits for those in the region, the wait above for those in the scratch.
        unsafe { self.exchange.send(to, values) };
        Ok(())
    }

    /// Receives another machine's values of a piece of this rank.
    fn expect(&mut self, peer: usize, step: usize) {
        let Some(part) = self.parts[self.layout.machine].get(step) else { return };
        let values = ByteSpan { at: self.place(false, step, peer), bytes: part.len() * self.wire.size() };
        self.received[peer].push(self.arrivals[peer].len());
        self.arrivals[peer].push(Arrival::Contribution);
        // SAFETY: a place that holds a piece; the step that used it before is summed.
        unsafe { self.exchange.receive(self.layout.column[peer], values) };
    }

    /// Adds a piece of this rank once the values of all machines are here.
    fn add(&mut self, step: usize, everywhere: bool) -> Result<()> {
        let me = self.layout.machine;
        let Some(part) = self.parts[me].get(step).cloned() else { return Ok(()) };
        let column = self.layout.column.clone();
        let wanted: Vec<(usize, usize)> =
            (0..column.len()).filter(|&m| m != me).map(|m| (column[m], self.received[m][step])).collect();
        self.exchange
            .wait_until(|all| wanted.iter().all(|&(rank, number)| all.receives[rank].done > number))?;
        let mine = span(self.region, &part, self.dtype.size()).at;
        let targets = if everywhere { self.row_at(&part) } else { vec![mine] };
        if column.len() == 1 {
            let sources: Vec<*const u8> = self.row_at(&part).into_iter().map(<*mut u8>::cast_const).collect();
            // SAFETY: as in `add_row`; targets are sources, of the same dtype.
            unsafe { sum_range(self.dtype, &sources, &targets, 0..part.len()) };
            return Ok(());
        }
        let own = match self.layout.is_flat() {
            true => mine,
            false => {
                let place = self.place(false, step, me);
                self.add_row(&part, place);
                place
            }
        };
        let of =
            |machine: usize| if machine == me { own } else { self.place(false, step, machine) }.cast_const();
        let sources: Vec<*const u8> = (0..column.len()).map(of).collect();
        // SAFETY: the pieces of the step are received; as in `add_row`, and no message reads what this rank owns. Pieces begin at
        // multiples of an element.
        unsafe { sum_range_as([self.wire, self.dtype], &sources, &targets, 0..part.len()) };
        Ok(())
    }

    /// Sends the sums of a piece of this rank.
    fn send_result(&mut self, peer: usize, step: usize) {
        let Some(part) = self.parts[self.layout.machine].get(step) else { return };
        self.queued[peer] += 1;
        // SAFETY: the communicator checked the ranges; nobody writes sums that this rank owns.
        unsafe { self.exchange.send(self.layout.column[peer], span(self.region, part, self.dtype.size())) };
    }

    /// Receives the sums of a piece of another rank, once this rank's values of it are sent.
    fn expect_result(&mut self, peer: usize, step: usize) -> Result<()> {
        let Some(part) = self.parts[peer].get(step).cloned() else { return Ok(()) };
        let (from, number) = (self.layout.column[peer], self.sent[peer][step]);
        if self.layout.is_flat() {
            self.exchange.wait_until(|all| all.sends[from].done > number)?;
        }
        self.arrivals[peer].push(Arrival::Result(step));
        // SAFETY: the communicator checked the ranges; owners do not overlap, so no other message touches these elements.
        unsafe { self.exchange.receive(from, span(self.region, &part, self.dtype.size())) };
        Ok(())
    }

    /// Copies sums that have arrived to the other ranks of this machine.
    fn spread(&mut self) {
        for machine in 0..self.layout.column.len() {
            let done = self.exchange.receives[self.layout.column[machine]].done;
            for &arrival in &self.arrivals[machine][self.seen[machine]..done] {
                let Arrival::Result(step) = arrival else { continue };
                let part = &self.parts[machine][step];
                let from = self.region.as_ptr().cast_const();
                for &to in self.row.iter().filter(|&&buffer| buffer.cast_const() != from) {
                    // SAFETY: as in `add_row`; what has arrived is no longer written.
                    unsafe { copy(from, to, [part.start; 2], part.len(), self.dtype.size()) };
                }
            }
            self.seen[machine] = done;
        }
    }
}
