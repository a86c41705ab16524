//! Addressed random numbers: each is a pure function of (seed, stream, index), by Philox4x32-10.
//!
//! Elements come in groups of 64: lane `l` of 16 Philox blocks gives word `w` to element `16 w + l`, so that a group
//! is computed and stored as whole vectors. Any split of a range gives bitwise identical results.

use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::{Isa, multiversion};
use crate::math::{ln, sin_cos_turn};
use crate::pieces::TASK_ELEMS;

const BLOCKS: usize = 16;
const GROUP: usize = 4 * BLOCKS;

/// A sequence of 2^64 random numbers; different pairs of seed and stream are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The seed of the run.
    pub seed: u64,
    /// Which of its sequences: a parameter, a dropout layer in a step, an epoch.
    pub stream: u64,
}

/// Four words for each of the blocks of a group.
type Group = [[u32; BLOCKS]; 4];

impl Stream {
    /// The random bits of element `index`.
    pub fn bits(self, index: u64) -> u32 {
        let within = (index % GROUP as u64) as usize;
        let block = index / GROUP as u64 * BLOCKS as u64 + (within % BLOCKS) as u64;
        let words = self.blocks::<1>(block);
        words[within / BLOCKS][0]
    }

    /// Element `index`, uniform in `0.0..1.0`.
    pub fn uniform(self, index: u64) -> f32 {
        unit(self.bits(index))
    }

    /// Ten rounds of Philox4x32 on `N` consecutive counters.
    #[inline(always)]
    fn blocks<const N: usize>(self, first: u64) -> [[u32; N]; 4] {
        let (mut low, mut high) = ([0; N], [0; N]);
        for l in 0..N {
            let counter = first.wrapping_add(l as u64);
            (low[l], high[l]) = (counter & LOW, counter >> 32);
        }
        let halves = |x: u64| [x & LOW, x >> 32];
        philox(low, high, halves(self.stream), halves(self.seed))
    }
}

const LOW: u64 = 0xffff_ffff;

/// Philox4x32-10 (Salmon et al. 2011), `N` blocks side by side. All words are 32 bits wide, held in u64 for the
/// wide products: `a`, `b` and `tail` are the counter.
#[inline(always)]
pub fn philox<const N: usize>(
    mut a: [u64; N],
    mut b: [u64; N],
    tail: [u64; 2],
    mut key: [u64; 2],
) -> [[u32; N]; 4] {
    let (mut c, mut d) = ([tail[0]; N], [tail[1]; N]);
    for _ in 0..10 {
        for l in 0..N {
            // The masks change nothing; they tell the compiler that this is a product of 32-bit numbers.
            let (p, q) = (0xd251_1f53 * (a[l] & LOW), 0xcd9e_8d57 * (c[l] & LOW));
            a[l] = (q >> 32) ^ b[l] ^ key[0];
            b[l] = q & LOW;
            c[l] = (p >> 32) ^ d[l] ^ key[1];
            d[l] = p & LOW;
        }
        key = [(key[0] + 0x9e37_79b9) & LOW, (key[1] + 0xbb67_ae85) & LOW];
    }
    let mut words = [[0; N]; 4];
    for l in 0..N {
        (words[0][l], words[1][l]) = (a[l] as u32, b[l] as u32);
        (words[2][l], words[3][l]) = (c[l] as u32, d[l] as u32);
    }
    words
}

/// The upper 24 bits as a fraction of one.
#[inline(always)]
fn unit(bits: u32) -> f32 {
    (bits >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// Two independent standard normal numbers (Box-Muller).
#[inline(always)]
fn normal_pair(bits: [u32; 2]) -> [f32; 2] {
    // In (0, 1], with 31 bits, so that the tails reach 6.6 standard deviations.
    let radius_bits = (bits[0] >> 1) as i32 as f32 + 0.5;
    let radius = (-2.0 * ln(radius_bits * (1.0 / 2_147_483_648.0))).sqrt();
    let (sin, cos) = sin_cos_turn(bits[1]);
    [radius * cos, radius * sin]
}

/// What becomes of the bits of a group. A trait, since only methods known by type are sure to be inlined.
trait Numbers {
    type Number: Copy;
    fn from_bits(bits: Group) -> [[Self::Number; BLOCKS]; 4];
}

struct Bits;
struct Normal;

impl Numbers for Bits {
    type Number = u32;

    #[inline(always)]
    fn from_bits(bits: Group) -> Group {
        bits
    }
}

impl Numbers for Normal {
    type Number = f32;

    #[inline(always)]
    fn from_bits(bits: Group) -> [[f32; BLOCKS]; 4] {
        let mut out = [[0.0; BLOCKS]; 4];
        for pair in [0, 2] {
            for l in 0..BLOCKS {
                [out[pair][l], out[pair + 1][l]] = normal_pair([bits[pair][l], bits[pair + 1][l]]);
            }
        }
        out
    }
}

/// Calls `f(values, elements)` for the elements of `out` and their numbers, group by group.
#[inline(always)]
fn by_groups<N: Numbers, E>(stream: Stream, first: u64, out: &mut [E], f: impl Fn(&[N::Number], &mut [E])) {
    let (mut at, mut out) = (first, out);
    while !out.is_empty() {
        let skip = (at % GROUP as u64) as usize;
        let group = N::from_bits(stream.blocks::<BLOCKS>(at / GROUP as u64 * BLOCKS as u64));
        let (part, rest) = out.split_at_mut(out.len().min(GROUP - skip));
        match part.as_chunks_mut::<GROUP>() {
            // The usual case apart, since a fixed length makes whole vectors.
            ([whole], _) => f(group.as_flattened(), whole),
            (_, part) => f(&group.as_flattened()[skip..skip + part.len()], part),
        }
        at = at.wrapping_add((GROUP - skip) as u64);
        out = rest;
    }
}

instances! {
    /// Elements `first..` of the stream, uniform between `low` and `high`.
    pub fn fill_uniform[T: Float](cpu: &Cpu, stream: Stream, first: u64, low: f32, high: f32, out: &mut [T]) {
        in_parts(cpu, first, out, |isa, first, out| uniform_task(isa, stream, first, low, high, out));
    }
}

instances! {
    /// Elements `first..` of the stream, uniform multiples of `1 / n_steps` from 0 up to, but without, 1.
    pub fn fill_steps[T: Float](cpu: &Cpu, stream: Stream, first: u64, n_steps: f32, out: &mut [T]) {
        in_parts(cpu, first, out, |isa, first, out| steps_task(isa, stream, first, n_steps, out));
    }
}

instances! {
    /// Elements `first..` of the stream, normal with this mean and standard deviation.
    pub fn fill_normal[T: Float](cpu: &Cpu, stream: Stream, first: u64, mean: f32, std: f32, out: &mut [T]) {
        in_parts(cpu, first, out, |isa, first, out| normal_task(isa, stream, first, mean, std, out));
    }
}

instances! {
    /// Multiplies each element of `x` by `scale` with probability `keep`, else by 0. The gradient is the same call.
    pub fn dropout[T: Float](cpu: &Cpu, stream: Stream, first: u64, keep: f64, scale: f32, x: &mut [T]) {
        let threshold = dropout_threshold(keep);
        in_parts(cpu, first, x, |isa, first, x| dropout_task(isa, stream, first, threshold, scale, x));
    }
}

/// What random bits are below where an element is kept; 2^32 keeps all.
pub fn dropout_threshold(keep: f64) -> u64 {
    (keep.clamp(0.0, 1.0) * 4_294_967_296.0) as u64
}

fn in_parts<T: Send>(cpu: &Cpu, first: u64, out: &mut [T], f: impl Fn(Isa, u64, &mut [T]) + Sync + Send) {
    cpu.par
        .chunks_mut(out, TASK_ELEMS, |i, out| f(cpu.isa, first.wrapping_add((i * TASK_ELEMS) as u64), out));
}

multiversion! {
    fn uniform_task[T: Float](stream: Stream, first: u64, low: f32, high: f32, out: &mut [T]) {
        by_groups::<Bits, _>(stream, first, out, |bits, out| {
            for (out, bits) in out.iter_mut().zip(bits) {
                *out = T::from_f32(low + (high - low) * unit(*bits));
            }
        });
    }
}

multiversion! {
    fn steps_task[T: Float](stream: Stream, first: u64, n_steps: f32, out: &mut [T]) {
        by_groups::<Bits, _>(stream, first, out, |bits, out| {
            for (out, bits) in out.iter_mut().zip(bits) {
                *out = T::from_f32((unit(*bits) * n_steps).floor() / n_steps);
            }
        });
    }
}

multiversion! {
    fn normal_task[T: Float](stream: Stream, first: u64, mean: f32, std: f32, out: &mut [T]) {
        by_groups::<Normal, _>(stream, first, out, |numbers, out| {
            for (out, z) in out.iter_mut().zip(numbers) {
                *out = T::from_f32(mean + std * z);
            }
        });
    }
}

multiversion! {
    fn dropout_task[T: Float](stream: Stream, first: u64, threshold: u64, scale: f32, x: &mut [T]) {
        by_groups::<Bits, _>(stream, first, x, |bits, x| {
            for (x, bits) in x.iter_mut().zip(bits) {
                let value = T::from_f32(x.to_f32() * scale);
                *x = if u64::from(*bits) < threshold { value } else { T::from_f32(0.0) };
            }
        });
    }
}

/// A random order of `0..n` that is never stored: a Feistel network over the next power of two, walked until it
/// lands inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    right_bits: u32,
    left_bits: u32,
    keys: [u64; 8],
}

impl Permutation {
    /// The permutation of `0..n` that belongs to this stream.
    pub fn new(stream: Stream, n: u64) -> Permutation {
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(2);
        let keys = std::array::from_fn(|i| {
            let i = 2 * i as u64;
            u64::from(stream.bits(i)) << 32 | u64::from(stream.bits(i + 1))
        });
        Permutation { n, right_bits: bits / 2, left_bits: bits - bits / 2, keys }
    }

    /// Where `index` goes; `None` unless it is below `n`.
    pub fn get(&self, index: u64) -> Option<u64> {
        if index >= self.n {
            return None;
        }
        let mut x = self.network(index);
        while x >= self.n {
            x = self.network(x);
        }
        Some(x)
    }

    /// The halves change places in each round, and their widths with them; eight rounds restore both.
    fn network(&self, x: u64) -> u64 {
        let (mut left_bits, mut right_bits) = (self.left_bits, self.right_bits);
        let (mut left, mut right) = (x >> right_bits, x & ((1 << right_bits) - 1));
        for key in self.keys {
            let mixed = left ^ (mix(right ^ key) & ((1 << left_bits) - 1));
            (left, right) = (right, mixed);
            (left_bits, right_bits) = (right_bits, left_bits);
        }
        left << right_bits | right
    }
}

/// A bijective hash of 64 bits whose low bits depend on all others.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}
