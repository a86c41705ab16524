//! What owners have, on all ranks: along the columns of the layout by messages, inside machines by copies.

use std::ops::Range;

use super::exchange::Exchange;
use super::member::Group;
use super::pieces::{PIECE, parts, span};
use crate::error::Result;
use crate::held_region::HeldRegion;
use crate::ownership::Ownership;
use crate::region::copy;
use crate::stamp::Stamp;

impl Group {
    /// Brings each owner's elements to all ranks (invariant 5). `without` is a rank
    /// that has them all already.
    pub(super) fn gather(
        &self,
        stamp: &Stamp,
        region: &HeldRegion,
        size: usize,
        owners: &Ownership,
        without: Option<usize>,
    ) -> Result<()> {
        let (me, piece, layout) = (self.me, PIECE / size, self.layout_of(&[region]));
        let without = without.filter(|_| layout.is_flat());
        let mut exchange = Exchange::new(self, stamp);
        exchange.keep(region);
        let column: Vec<usize> = layout.column.iter().copied().filter(|&rank| rank != me).collect();
        let parts = |rank| parts(owners, rank, piece);
        for &peer in &column {
            for part in parts(me).filter(|_| without != Some(peer)) {
                // SAFETY: the communicator checked the ranges; nobody writes what this rank owns.
                unsafe { exchange.send(peer, span(region, &part, size)) };
            }
            for part in parts(peer).filter(|_| without != Some(me)) {
                // SAFETY: as above; owners do not overlap, so no other message touches these elements.
                unsafe { exchange.receive(peer, span(region, &part, size)) };
            }
        }
        if layout.is_flat() {
            return exchange.finish();
        }
        let from = region.as_ptr().cast_const();
        let others: Vec<*mut u8> = region.buffers().filter(|&buffer| buffer.cast_const() != from).collect();
        let spread = |part: &Range<usize>| {
            for &to in &others {
                // SAFETY: what the ranks of a column own is copied inside this machine by this rank alone, and until its ranks have
                // settled nobody else touches it.
                unsafe { copy(from, to, [part.start; 2], part.len(), size) };
            }
        };
        for part in parts(me) {
            spread(&part);
            // Messages move meanwhile.
            exchange.wait_until(|_| true)?;
        }
        let arriving: Vec<Vec<_>> = column.iter().map(|&peer| parts(peer).collect()).collect();
        let mut seen = vec![0; column.len()];
        while arriving.iter().zip(&seen).any(|(parts, &seen)| seen < parts.len()) {
            exchange.wait_until(|all| {
                column.iter().zip(&seen).any(|(&peer, &seen)| all.receives[peer].done > seen)
            })?;
            for ((parts, seen), &peer) in arriving.iter().zip(&mut seen).zip(&column) {
                let done = exchange.receives[peer].done;
                parts[*seen..done].iter().for_each(spread);
                *seen = done;
            }
        }
        exchange.finish()?;
        exchange.settle(&layout)
    }
}
