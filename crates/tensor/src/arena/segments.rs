//! Segments of a GPU's memory, and the pieces that they are cut into: what a block takes is cut off a free piece, and joins
//! its free neighbors when it comes back.
//!
//! Memory of a GPU comes in pages of 2 MiB, and the driver may wait for the GPU whenever it is allocated or freed. So few
//! segments serve many blocks, with the sizes of torch's `CUDACachingAllocator`: blocks of at most 1 MiB come from segments
//! of 2 MiB, those below 10 MiB from segments of 20 MiB, and larger ones begin a segment of their size, rounded up to 2 MiB.
//! A block takes the smallest free piece that holds it.
//!
//! Blocks come and go in the order of one stream, so a piece can be given away while launches still use it. Copies of other
//! streams are in no such order: a piece carries those that may use it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oarlock_cuda::driver::{DeviceMemory, Uses};

/// Blocks begin at multiples of this many bytes of a segment, which itself begins at a multiple.
pub(super) const PIECE: usize = 512;
/// The largest block of small segments, and the least rest that is cut off in large ones.
const SMALL: usize = 1 << 20;
const SMALL_SEGMENT: usize = 2 << 20;
const LARGE_SEGMENT: usize = 20 << 20;
/// From this size on a block begins a segment of its own size.
const LARGE: usize = 10 << 20;
/// What those sizes are rounded up to: pages of a GPU.
const PAGE: usize = 2 << 20;

/// The segments of a pool.
#[derive(Default)]
pub(super) struct Segments {
    segments: BTreeMap<u64, Segment>,
    /// Free pieces of small and of large segments: their size, their segment and their first byte.
    free: [BTreeSet<(usize, u64, usize)>; 2],
    /// Segments so far, which are the names of the next.
    n_made: u64,
    /// Pieces that came back so far.
    n_freed: u64,
    held: MemoryStats,
}

/// The bytes of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Taken from the system or the GPU.
    pub reserved: usize,
    /// Of those, what blocks have.
    pub allocated: usize,
    /// The most that were reserved at one time.
    pub peak_reserved: usize,
    /// The most that blocks had at one time.
    pub peak_allocated: usize,
}

impl MemoryStats {
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
    }

    pub(super) fn allocate(&mut self, bytes: usize) {
        self.allocated += bytes;
        self.peak_allocated = self.peak_allocated.max(self.allocated);
    }
}

struct Segment {
    /// None where it is only counted.
    memory: Option<Arc<DeviceMemory>>,
    bytes: usize,
    /// Of small blocks, 0, or of large ones, 1.
    class: usize,
    /// By their first byte; they cover it without gaps.
    pieces: BTreeMap<usize, Piece>,
    /// How many pieces of the pool had come back when its last one did.
    freed: u64,
}

struct Piece {
    bytes: usize,
    /// The copies that may still use it, where it is free.
    free: Option<Uses>,
}

impl Segment {
    /// Whether nobody has a piece of it: all of them have become one.
    fn is_free(&self) -> bool {
        self.pieces.get(&0).is_some_and(|piece| piece.bytes == self.bytes && piece.free.is_some())
    }
}

/// Where a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    segment: u64,
    pub start: usize,
    pub bytes: usize,
}

/// A piece that somebody has.
pub(super) struct Cut {
    pub place: Place,
    /// None where it is only counted.
    pub memory: Option<Arc<DeviceMemory>>,
    /// The copies that its former owners have called for.
    pub copies: Uses,
}

/// The bytes of a piece for so many.
fn piece_bytes(bytes: usize) -> usize {
    bytes.max(1).checked_next_multiple_of(PIECE).unwrap_or(usize::MAX / PIECE * PIECE)
}

fn class_of(bytes: usize) -> usize {
    usize::from(bytes > SMALL)
}

impl Segments {
    /// The bytes of a new segment for a block of so many.
    pub fn segment_bytes(bytes: usize) -> usize {
        match piece_bytes(bytes) {
            ..=SMALL => SMALL_SEGMENT,
            bytes if bytes < LARGE => LARGE_SEGMENT,
            bytes => bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes),
        }
    }

    /// The accounts.
    pub fn memory_stats(&self) -> MemoryStats {
        self.held
    }

    /// The bytes of segments in which somebody has a piece.
    pub fn occupied(&self) -> usize {
        self.segments.values().filter(|segment| !segment.is_free()).map(|segment| segment.bytes).sum()
    }

    /// The sizes of the free pieces, the smallest first.
    pub fn free(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.free.iter().flatten().map(|&(bytes, ..)| bytes).collect();
        sizes.sort_unstable();
        sizes
    }

    /// The smallest free piece that has so many bytes, without what is left over; `None` where there is none.
    pub fn take(&mut self, bytes: usize) -> Option<Cut> {
        let bytes = piece_bytes(bytes);
        let class = class_of(bytes);
        let &(size, id, start) = self.free[class].range((bytes, 0, 0)..).next()?;
        self.free[class].remove(&(size, id, start));
        let segment = self.segments.get_mut(&id)?;
        let piece = segment.pieces.get_mut(&start)?;
        let copies = piece.free.take().unwrap_or_default();
        // A small rest of a large piece would serve nobody, and keep it from being whole again.
        let least = if class == 0 { PIECE } else { SMALL + 1 };
        let bytes = if size - bytes >= least { bytes } else { size };
        piece.bytes = bytes;
        if bytes < size {
            let rest = Piece { bytes: size - bytes, free: Some(copies.clone()) };
            self.free[class].insert((rest.bytes, id, start + bytes));
            segment.pieces.insert(start + bytes, rest);
        }
        self.held.allocate(bytes);
        Some(Cut { place: Place { segment: id, start, bytes }, memory: segment.memory.clone(), copies })
    }

    /// A new segment, for a block of `bytes` bytes.
    pub fn add(&mut self, bytes: usize, memory: Option<Arc<DeviceMemory>>) {
        let class = class_of(piece_bytes(bytes));
        let bytes = Segments::segment_bytes(bytes);
        let id = self.n_made;
        self.n_made += 1;
        let pieces = BTreeMap::from([(0, Piece { bytes, free: Some(Uses::default()) })]);
        self.free[class].insert((bytes, id, 0));
        self.segments.insert(id, Segment { memory, bytes, class, pieces, freed: self.n_freed });
        self.held.reserve(bytes);
    }

    /// Takes a piece back, with the copies that may still use it.
    pub fn give(&mut self, place: Place, copies: Uses) {
        let Place { segment: id, mut start, mut bytes } = place;
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let free = &mut self.free[segment.class];
        self.held.allocated -= bytes;
        self.n_freed += 1;
        let after = segment.pieces.get(&(start + bytes)).filter(|piece| piece.free.is_some());
        if let Some(size) = after.map(|piece| piece.bytes) {
            free.remove(&(size, id, start + bytes));
            let joined = segment.pieces.remove(&(start + bytes));
            copies.join(joined.and_then(|piece| piece.free).unwrap_or_default());
            bytes += size;
        }
        let before = segment.pieces.range(..start).next_back().filter(|(_, piece)| piece.free.is_some());
        if let Some((first, size)) = before.map(|(&first, piece)| (first, piece.bytes)) {
            free.remove(&(size, id, first));
            segment.pieces.remove(&start);
            let joined = segment.pieces.remove(&first);
            copies.join(joined.and_then(|piece| piece.free).unwrap_or_default());
            (start, bytes) = (first, size + bytes);
        }
        free.insert((bytes, id, start));
        segment.pieces.insert(start, Piece { bytes, free: Some(copies) });
        segment.freed = self.n_freed;
    }

    /// Takes segments out in which nobody has a piece, until no more than so many bytes are reserved: those that lay longest,
    /// because what a step uses whatever its shapes comes back in every step.
    pub fn evict(&mut self, most: usize) -> Vec<Arc<DeviceMemory>> {
        let mut evicted = Vec::new();
        while self.held.reserved > most {
            let free = self.segments.iter().filter(|(_, segment)| segment.is_free());
            let Some((&id, _)) = free.min_by_key(|(_, segment)| segment.freed) else { break };
            let Some(segment) = self.segments.remove(&id) else { break };
            self.free[segment.class].remove(&(segment.bytes, id, 0));
            self.held.reserved -= segment.bytes;
            evicted.extend(segment.memory);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes a block, from a new segment where it has to be.
    fn take(segments: &mut Segments, bytes: usize) -> Place {
        if let Some(cut) = segments.take(bytes) {
            return cut.place;
        }
        segments.add(bytes, None);
        segments.take(bytes).unwrap().place
    }

    fn give(segments: &mut Segments, place: Place) {
        segments.give(place, Uses::default());
    }

    #[test]
    fn segments_have_the_sizes_of_torch() {
        for (bytes, segment) in [
            (1, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 1, 20 * MIB),
            (10 * MIB - PIECE, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 1, 12 * MIB),
            (63 * MIB, 64 * MIB),
        ] {
            assert_eq!(Segments::segment_bytes(bytes), segment, "{bytes}");
        }
        assert!(Segments::segment_bytes(usize::MAX) > usize::MAX / 2);
    }

    #[test]
    fn pieces_are_cut_off_and_join_their_neighbors() {
        let mut segments = Segments::default();
        let [a, b, c] = [700, 512, 1].map(|bytes| take(&mut segments, bytes));
        assert_eq!([a, b, c].map(|place| (place.start, place.bytes)), [(0, 1024), (1024, 512), (1536, 512)]);
        assert_eq!(segments.free(), [2 * MIB - 2048]);
        give(&mut segments, a);
        give(&mut segments, c);
        assert_eq!(segments.free(), [1024, 2 * MIB - 1536]);
        // The smallest that fits.
        assert_eq!(take(&mut segments, 1000), a);
        give(&mut segments, a);
        // It closes the gap.
        give(&mut segments, b);
        assert_eq!(segments.free(), [2 * MIB]);
        assert_eq!(
            segments.memory_stats(),
            MemoryStats { reserved: 2 * MIB, allocated: 0, peak_reserved: 2 * MIB, peak_allocated: 2048 }
        );
    }

    #[test]
    fn a_small_rest_of_a_large_piece_is_not_cut_off() {
        let mut segments = Segments::default();
        let whole = take(&mut segments, 19 * MIB);
        assert_eq!(whole.bytes, 20 * MIB);
        give(&mut segments, whole);
        let part = take(&mut segments, 9 * MIB);
        assert_eq!((part.bytes, segments.free()), (9 * MIB, vec![11 * MIB]));
    }

    #[test]
    fn free_segments_go_back_the_oldest_first() {
        let mut segments = Segments::default();
        let places = [30, 40, 50].map(|mib| take(&mut segments, mib * MIB));
        [1, 0].into_iter().for_each(|i| give(&mut segments, places[i]));
        assert_eq!(segments.occupied(), 50 * MIB);
        segments.evict(100 * MIB);
        assert_eq!((segments.memory_stats().reserved, segments.free()), (80 * MIB, vec![30 * MIB]));
        segments.evict(0);
        assert_eq!(segments.memory_stats().reserved, 50 * MIB, "what is in use stays");
    }

    #[test]
    fn batches_of_many_lengths_take_few_segments() {
        let mut segments = Segments::default();
        let mut state = 1u64;
        let mut random = move |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        // What stays: weights, gradients and moments of 24 layers.
        let states: Vec<Place> = (0..96).map(|_| take(&mut segments, 15 * MIB + 4096)).collect();
        let (kept, before) = (segments.memory_stats().reserved, segments.n_made);
        let mut made = 0;
        for step in 0..50 {
            // Activations of a step: the forward pass keeps them, the backward pass gives them back.
            let tokens = 512 + random(3584);
            let mut alive = Vec::new();
            for _ in 0..24 {
                for per_token in [4 * 896, 2 * 896, 2 * 2 * 4864, 2 * 1152, 4] {
                    alive.push(take(&mut segments, tokens * per_token));
                    let scratch = take(&mut segments, tokens * 2 * 896);
                    give(&mut segments, scratch);
                }
            }
            while let Some(place) = alive.pop() {
                let gradient = take(&mut segments, tokens * 2 * 896);
                give(&mut segments, place);
                give(&mut segments, gradient);
            }
            if step == 24 {
                made = segments.n_made;
            }
        }
        let held = segments.memory_stats();
        let (live, reserved) = (held.peak_allocated - kept, held.peak_reserved - kept);
        // Each block for itself took a call of the driver: 240 a step, and a page more than it needs.
        assert!(segments.n_made - before < 400, "{} segments for 12,000 blocks", segments.n_made - before);
        assert!(segments.n_made - made < 40, "{} in the later half", segments.n_made - made);
        assert!(reserved < live + live / 3, "{reserved} for {live}");
        states.into_iter().for_each(|place| give(&mut segments, place));
        segments.evict(0);
        assert_eq!(
            (segments.memory_stats().reserved, segments.memory_stats().allocated, segments.free()),
            (0, 0, vec![])
        );
    }
}
