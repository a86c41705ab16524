//! Moving elements: permutations and expansions by strides, parts, windows of a dim, choices by a mask.

use std::ops::Range;

use crate::dtype::Word;
use crate::dtype::{Element, Float};
use crate::elementwise::add_task;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, task_rows};
use crate::reduce::Dims;
use crate::walk::Walk;
use crate::{Cpu, Store};

instances! {
    /// `y = x` in the order of `walk`.
    pub fn strided[W: Word](cpu: &Cpu, walk: &Walk<1>, x: &[W], y: &mut [W]) {
        let [step] = walk.steps();
        cpu.par.chunks_mut(y, TASK_ELEMS, |i, y| {
            walk.for_rows(i * TASK_ELEMS, y, |y, [start]| match step {
                0 => y.fill(x[start]),
                1 => y.copy_from_slice(&x[start..start + y.len()]),
                _ => y.iter_mut().zip(x[start..].iter().step_by(step)).for_each(|(y, x)| *y = *x),
            });
        });
    }
}

instances! {
    /// `y[o, k] = x[o, n - 1 - k]`, each a row of `inner` elements.
    pub fn reversed[W: Word](cpu: &Cpu, dims: Dims, x: &[W], y: &mut [W]) {
        let Dims { n, inner, .. } = dims;
        assert!([x.len(), y.len()] == [dims.n_elems(); 2], "reversed: lengths");
        let task = task_rows(inner);
        cpu.par.chunks_mut(y, task * inner, |i, y| {
            for (j, y) in y.chunks_exact_mut(inner).enumerate() {
                let (o, k) = ((i * task + j) / n, (i * task + j) % n);
                y.copy_from_slice(&x[(o * n + n - 1 - k) * inner..][..inner]);
            }
        });
    }
}

instances! {
    /// `y = x` in the columns that `part` names for each row, and 0 in the others.
    pub fn keep_in_rows[W: Word](
        cpu: &Cpu, n_columns: usize, x: &[W], y: &mut [W], part: &(dyn Fn(usize) -> Range<usize> + Sync),
    ) {
        assert_eq!(x.len(), y.len(), "keep_in_rows: lengths");
        let task = task_rows(n_columns);
        cpu.par.chunks_mut(y, task * n_columns, |i, y| {
            let rows = x[i * task * n_columns..].chunks_exact(n_columns);
            for (j, (y, x)) in y.chunks_exact_mut(n_columns).zip(rows).enumerate() {
                let part = part(i * task + j);
                y.fill(W::zeroed());
                y[part.clone()].copy_from_slice(&x[part]);
            }
        });
    }
}

/// Where a part lies in a whole that falls apart into equal blocks: in each of them at the same places.
#[derive(Clone, Debug)]
pub struct Places {
    /// The blocks of the whole.
    pub n_blocks: usize,
    /// The first element of the part in each block.
    pub first: usize,
    /// The order of the part's other elements in it.
    pub walk: Walk<1>,
}

impl Places {
    /// Runs `f(elements of a block, its first, the step between them, part)` for rows of the part.
    fn for_rows<W: Send, V: Sync>(
        &self,
        cpu: &Cpu,
        part: &[V],
        whole: &mut [W],
        f: impl Fn(&mut [W], usize, usize, &[V]) + Sync + Send,
    ) {
        if part.is_empty() {
            return;
        }
        let (full, len, [step]) =
            (whole.len() / self.n_blocks, part.len() / self.n_blocks, self.walk.steps());
        let per_task = (TASK_ELEMS / full).max(1);
        cpu.par.chunks_mut(whole, per_task * full, |i, blocks| {
            for (block, part) in blocks.chunks_mut(full).zip(part[i * per_task * len..].chunks(len)) {
                self.walk
                    .for_ranges(0, len, |range, [start]| f(block, self.first + start, step, &part[range]));
            }
        });
    }
}

instances! {
    /// The elements of `whole` at `places` = those of `part`; the rest of `whole` stays.
    pub fn write_places[W: Word](cpu: &Cpu, places: &Places, part: &[W], whole: &mut [W]) {
        places.for_rows(cpu, part, whole, |block, first, step, part| match step {
            1 => block[first..first + part.len()].copy_from_slice(part),
            _ => block[first..].iter_mut().step_by(step.max(1)).zip(part).for_each(|(to, from)| *to = *from),
        });
    }
}

instances! {
    /// The elements of `whole` at `places` += those of `part`.
    pub fn add_places[T: Float](cpu: &Cpu, places: &Places, part: &[T], whole: &mut [T]) {
        places.for_rows(cpu, part, whole, |block, first, step, part| match step {
            1 => add_task(cpu.isa, part, &mut block[first..first + part.len()]),
            _ => {
                let slots = block[first..].iter_mut().step_by(step.max(1));
                slots.zip(part).for_each(|(to, from)| Store::Add.put(to, from.to_f32()));
            }
        });
    }
}

/// The elements `first..first + len` of each block of `full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Elements of a block.
    pub full: usize,
    /// The first of the window.
    pub first: usize,
    /// Elements of the window.
    pub len: usize,
}

impl Window {
    /// Runs `f(block, window)` on blocks of `whole` and windows of `part` in step; `whole` may change.
    fn in_blocks<W: Send>(self, cpu: &Cpu, whole: &mut [W], f: impl Fn(usize, &mut [W]) + Sync + Send) {
        if self.full == 0 || self.len == 0 {
            return;
        }
        let n_blocks = (TASK_ELEMS / self.full).max(1);
        cpu.par.chunks_mut(whole, n_blocks * self.full, |i, blocks| {
            for (j, block) in blocks.chunks_mut(self.full).enumerate() {
                f((i * n_blocks + j) * self.len, &mut block[self.first..self.first + self.len]);
            }
        });
    }
}

instances! {
    /// `part = window of whole`.
    pub fn read_window[W: Word](cpu: &Cpu, window: Window, whole: &[W], part: &mut [W]) {
        let Window { full, first, len } = window;
        let blocks = Window { full: len, first: 0, len };
        blocks.in_blocks(cpu, part, |at, part| {
            let from = at / len * full + first;
            part.copy_from_slice(&whole[from..from + len]);
        });
    }
}

instances! {
    /// `window of whole = part`; the rest of `whole` stays.
    pub fn write_window[W: Word](cpu: &Cpu, window: Window, part: &[W], whole: &mut [W]) {
        window.in_blocks(cpu, whole, |at, whole| whole.copy_from_slice(&part[at..at + whole.len()]));
    }
}

instances! {
    /// `window of whole += part`.
    pub fn add_window[T: Float](cpu: &Cpu, window: Window, part: &[T], whole: &mut [T]) {
        window.in_blocks(cpu, whole, |at, whole| add_task(cpu.isa, &part[at..], whole));
    }
}

instances! {
    /// `out = mask != 0 ? x : y`; an absent operand is `value`.
    pub fn select[T: Element](
        cpu: &Cpu,
        mask: &[i32],
        x: Option<&[T]>,
        y: Option<&[T]>,
        value: T,
        out: &mut [T],
    ) {
        let fits = |operand: Option<&[T]>| operand.is_none_or(|o| o.len() == out.len());
        assert!(mask.len() == out.len() && fits(x) && fits(y), "select: lengths");
        cpu.par.chunks_mut(out, TASK_ELEMS, |i, out| {
            let from = i * TASK_ELEMS;
            select_task(cpu.isa, &mask[from..], x.map(|x| &x[from..]), y.map(|y| &y[from..]), value, out);
        });
    }
}

multiversion! {
    fn select_task[T: Element](mask: &[i32], x: Option<&[T]>, y: Option<&[T]>, value: T, out: &mut [T]) {
        for (i, (out, mask)) in out.iter_mut().zip(mask).enumerate() {
            *out = if *mask != 0 { x } else { y }.map_or(value, |operand| operand[i]);
        }
    }
}
