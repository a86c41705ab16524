//! How tasks share threads, scratch and outputs.

use super::AttentionShape;
use crate::Cpu;
use crate::error::{Error, Result};

/// A cache line, the unit of scratch.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// Cache lines that hold so many words.
fn lines(words: usize) -> usize {
    words.div_ceil(16)
}

/// Threads that find a task.
fn n_workers(cpu: &Cpu, shape: &AttentionShape) -> usize {
    cpu.par.n_threads().min(shape.n_tasks())
}

/// Bytes of scratch when each worker wants `words`.
pub(super) fn scratch_bytes(cpu: &Cpu, shape: &AttentionShape, words: usize) -> usize {
    // One line more than the workers use, because bytes need not start at a line.
    size_of::<Line>() * (n_workers(cpu, shape) * lines(words) + 1)
}

/// The tasks of one worker: every `step`-th.
pub(super) type Tasks = std::iter::StepBy<std::ops::Range<usize>>;

/// Shares tasks and scratch out among the threads.
pub(super) fn share_out(
    op: &'static str,
    cpu: &Cpu,
    shape: &AttentionShape,
    scratch: &mut [u8],
    words: usize,
    work: impl Fn(Tasks, &mut [u32]) + Send + Sync,
) -> Result<()> {
    if shape.n_tasks() == 0 || shape.head_dim == 0 {
        return Ok(());
    }
    let n_workers = n_workers(cpu, shape);
    let each = lines(words);
    let got = scratch.len();
    let (_, whole, _) = bytemuck::pod_align_to_mut::<u8, Line>(scratch);
    if whole.len() < n_workers * each {
        let expected = format!("{} bytes of scratch", scratch_bytes(cpu, shape, words));
        return Err(Error::Shape { op, expected, got: got.to_string() });
    }
    cpu.par.chunks_mut(&mut whole[..n_workers * each], each, |worker, scratch| {
        work((worker..shape.n_tasks()).step_by(n_workers), bytemuck::cast_slice_mut(scratch));
    });
    Ok(())
}

/// Scratch that is handed out piece by piece; pieces start at cache lines.
pub(super) struct Carve<'a>(pub(super) &'a mut [u32]);

impl<'a> Carve<'a> {
    /// `n` units.
    pub(super) fn units(&mut self, n: usize) -> &'a mut [u32] {
        let (piece, rest) = std::mem::take(&mut self.0).split_at_mut(n.next_multiple_of(16));
        self.0 = rest;
        &mut piece[..n]
    }

    /// As many numbers as an array has.
    pub(super) fn array<const N: usize>(&mut self) -> &'a mut [f32; N] {
        let (array, _) = self.floats(N).as_chunks_mut::<N>();
        &mut array[0]
    }

    /// `n` numbers.
    pub(super) fn floats(&mut self, n: usize) -> &'a mut [f32] {
        bytemuck::cast_slice_mut(self.units(n))
    }
}

/// Words that [`Carve`] needs for these pieces.
pub(super) fn carved(pieces: &[usize]) -> usize {
    pieces.iter().map(|n| n.next_multiple_of(16)).sum()
}

/// An output whose rows several tasks write, each its own.
pub(super) struct Shared<T> {
    data: *mut T,
    len: usize,
}

// SAFETY: access goes through `slice`, whose callers keep to their own elements.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// The whole of `data`.
    pub(super) fn new(data: &mut [T]) -> Shared<T> {
        Shared { data: data.as_mut_ptr(), len: data.len() }
    }

    /// The elements `start .. start + n` as an output of their own.
    #[inline(always)]
    pub(super) fn part(&self, start: usize, n: usize) -> Shared<T> {
        assert!(start + n <= self.len);
        Shared { data: self.data.wrapping_add(start), len: n }
    }

    /// The elements `start .. start + n`.
    ///
    /// # Safety
    /// The slice that this was made from is still borrowed, and nobody else uses these elements.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the elements")]
    #[inline(always)]
    pub(super) unsafe fn slice(&self, start: usize, n: usize) -> &mut [T] {
        assert!(start + n <= self.len);
        // SAFETY: in range; the rest is the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), n) }
    }
}
