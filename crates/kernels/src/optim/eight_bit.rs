//! States of 8 bits, as bitsandbytes keeps them (Dettmers et al. 2022, <https://arxiv.org/abs/2110.02861>): of each block of 256
//! elements the largest magnitude, and of each element the nearest of 256 shares of it.
//!
//! ```text
//! a state of a parameter   | 256 codes | absmax | 256 codes | absmax | ...   as f32 words, 65 to a block
//! ```
//!
//! Zeros are the state before the first step: their shares are of nothing.

use std::sync::LazyLock;

use super::custom::{Update, round, scale};
use super::{Buffers, Elementwise, MAX_STATES, STRIP, adam, lion, strip};
use crate::Cpu;
use crate::dtype::{Float, bf16, f16};
use crate::instances::instances;
use crate::isa::{Isa, multiversion};
use crate::pieces::{TASK_ELEMS, cut, for_pieces};
use crate::quantized::{dynamic_map, unsigned_dynamic_map};

/// Elements that share a scale.
pub const BLOCK: usize = 256;

/// f32 words of a block: four codes in each, and the scale.
pub const WORDS: usize = BLOCK / 4 + 1;

/// A parameter of fewer elements keeps its states in f32.
pub const MIN_ELEMS: usize = 4096;

// Strips and tasks consist of whole blocks.
const _: () = assert!(STRIP.is_multiple_of(BLOCK) && TASK_ELEMS.is_multiple_of(STRIP));

/// The words of the blocks of so many elements.
pub const fn words(n_elems: usize) -> usize {
    n_elems.div_ceil(BLOCK) * WORDS
}

/// The upper halves of floats from 2⁻²³, below which all are nearest to 0, to 1.
const KEYS: std::ops::RangeInclusive<u32> = 0x3400..=0x3f80;
const N_KEYS: usize = (*KEYS.end() - *KEYS.start() + 1) as usize;

/// A data type of 256 values, with what finds the nearest of them: two looks into small tables instead of eight.
struct Map {
    values: &'static [f32; 256],
    /// The code of 0.
    zero: u8,
    /// The middles between the magnitudes 0, 1, 2 …, and infinity behind the last.
    middles: [f32; 256],
    /// How many middles are below the least float with this upper half. No two floats of an upper half have more than one
    /// middle between them.
    below: [u8; N_KEYS],
}

impl Map {
    fn new(values: &'static [f32; 256]) -> Map {
        let zero = values.partition_point(|&value| value < 0.0);
        let mut middles = [f32::INFINITY; 256];
        for (middle, two) in middles.iter_mut().zip(values[zero..].windows(2)) {
            *middle = (two[0] + two[1]) / 2.0;
        }
        let below = std::array::from_fn(|at| {
            let least = f32::from_bits((KEYS.start() + at as u32) << 16);
            middles.partition_point(|&middle| middle < least) as u8
        });
        Map { values, zero: zero as u8, middles, below }
    }

    /// The code of the value nearest to `x`, which is at most 1 in magnitude; of what is none, some code.
    #[inline(always)]
    fn nearest(&self, x: f32) -> u8 {
        let magnitude = x.abs();
        let key = (magnitude.to_bits() >> 16).clamp(*KEYS.start(), *KEYS.end()) - KEYS.start();
        let below = self.below[key as usize];
        let rank = below + u8::from(magnitude > self.middles[below as usize]);
        // The least value of the signed type is not -1, so the greatest negative magnitudes have the same code.
        if x < 0.0 { self.zero.saturating_sub(rank) } else { self.zero.saturating_add(rank) }
    }

    fn of(is_signed: bool) -> &'static Map {
        static SIGNED: LazyLock<Map> = LazyLock::new(|| Map::new(dynamic_map()));
        static UNSIGNED: LazyLock<Map> = LazyLock::new(|| Map::new(unsigned_dynamic_map()));
        if is_signed { &SIGNED } else { &UNSIGNED }
    }
}

/// Whether each state has a sign.
pub type Signs = [bool; MAX_STATES];

instances! {
    /// One step of a rule on elements of a parameter from the beginning of a block on; the states have [`words`] each.
    pub fn step[
        R: Elementwise, T: Float;
        [adam::Adam<true>, f32] [adam::Adam<true>, bf16] [adam::Adam<true>, f16]
        [lion::Lion, f32] [lion::Lion, bf16] [lion::Lion, f16]
    ](cpu: &Cpu, rule: R, signs: Signs, buffers: Buffers<'_, T>) {
        let isa = cpu.isa;
        // The rule scales its gradients.
        run(cpu, signs, 1.0, buffers, &|weights, [first, second, ..], grad| {
            strip(isa, rule, weights, first, second, grad);
        });
    }
}

instances! {
    /// The same for a rule from outside of this crate.
    pub fn custom[T: Float](
        cpu: &Cpu,
        grad_scale: f32,
        signs: Signs,
        buffers: Buffers<'_, T>,
        update: Update<'_>,
    ) {
        run(cpu, signs, grad_scale, buffers, update);
    }
}

fn run<T: Float>(cpu: &Cpu, signs: Signs, grad_scale: f32, buffers: Buffers<'_, T>, update: Update<'_>) {
    let Buffers { weights, state, grad, working } = buffers;
    let n = grad.len();
    assert!(weights.len() == n && working.as_ref().is_none_or(|w| w.len() == n), "optimizer: lengths");
    assert!(state.iter().all(|state| [0, words(n)].contains(&state.len())), "optimizer: states");
    let maps = signs.map(Map::of);
    let outputs = (
        cut(weights, TASK_ELEMS),
        state.map(|state| cut(state, words(TASK_ELEMS))),
        working.map(|w| cut(w, TASK_ELEMS)),
    );
    for_pieces(&cpu.par, n.div_ceil(TASK_ELEMS), outputs, |i, (weights, mut state, mut working)| {
        let grad = &grad[i * TASK_ELEMS..][..weights.len()];
        let mut scaled = [0.0; STRIP];
        let mut values = [const { [0.0; STRIP] }; MAX_STATES];
        for (i, (weights, grad)) in weights.chunks_mut(STRIP).zip(grad.chunks(STRIP)).enumerate() {
            let n = grad.len();
            let packed = i * words(STRIP)..i * words(STRIP) + words(n);
            let scaled = &mut scaled[..n];
            scale(cpu.isa, grad, grad_scale, scaled);
            for ((values, state), map) in values.iter_mut().zip(&state).zip(maps) {
                if !state.is_empty() {
                    unpack(cpu.isa, map, &state[packed.clone()], &mut values[..n]);
                }
            }
            let mut lens = state.each_ref().map(|state| if state.is_empty() { 0 } else { n }).into_iter();
            let unpacked = values.each_mut().map(|values| &mut values[..lens.next().unwrap_or(0)]);
            update(weights, unpacked, scaled);
            for ((values, state), map) in values.iter_mut().zip(&mut state).zip(maps) {
                if !state.is_empty() {
                    pack(cpu.isa, map, &mut values[..n], &mut state[packed.clone()]);
                }
            }
            if let Some(working) = &mut working {
                round(cpu.isa, weights, &mut working[i * STRIP..i * STRIP + n]);
            }
        }
    });
}

/// Quantizes elements, which become shares of the largest magnitude of their block, into its words.
pub fn quantize(isa: Isa, is_signed: bool, values: &mut [f32], words: &mut [f32]) {
    pack(isa, Map::of(is_signed), values, words);
}

/// The elements that words stand for.
pub fn dequantize(isa: Isa, is_signed: bool, words: &[f32], values: &mut [f32]) {
    unpack(isa, Map::of(is_signed), words, values);
}

multiversion! {
    fn unpack(map: &Map, words: &[f32], values: &mut [f32]) {
        for (values, words) in values.chunks_mut(BLOCK).zip(words.chunks(WORDS)) {
            let (codes, absmax) = words.split_at(WORDS - 1);
            let codes: &[u8] = bytemuck::cast_slice(codes);
            for (value, &code) in values.iter_mut().zip(codes) {
                *value = map.values[code as usize] * absmax[0];
            }
        }
    }
}

multiversion! {
    fn pack(map: &Map, values: &mut [f32], words: &mut [f32]) {
        for (values, words) in values.chunks_mut(BLOCK).zip(words.chunks_mut(WORDS)) {
            let (codes, absmax) = words.split_at_mut(WORDS - 1);
            let most = largest(values);
            absmax[0] = most;
            // Of nothing all shares are 0.
            let whole = if most == 0.0 { 1.0 } else { most };
            values.iter_mut().for_each(|value| *value /= whole);
            let codes: &mut [u8] = bytemuck::cast_slice_mut(codes);
            for (code, &share) in codes.iter_mut().zip(&*values) {
                *code = map.nearest(share);
            }
        }
    }
}

/// The largest magnitude.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [0.0f32; 16];
    let (whole, rest) = values.as_chunks::<16>();
    for chunk in whole {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = greater(x.abs(), *lane);
        }
    }
    rest.iter().map(|x| x.abs()).chain(lanes).fold(0.0, |most, x| greater(x, most))
}
