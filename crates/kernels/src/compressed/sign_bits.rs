//! Numbers as one bit each, which is their sign, and a scale for all of them: what 1-bit optimizers send
//! (Tang et al. 2021, <https://arxiv.org/abs/2102.02888>).

use crate::Cpu;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces};

/// Numbers of a byte.
const BYTE: usize = 8;
/// The bytes of a task.
const TASK_BYTES: usize = TASK_ELEMS / BYTE;

/// The number that a bit stands for.
#[inline(always)]
fn value(bit: u8, scale: f32) -> f32 {
    // The sign bit of the float: no branch.
    f32::from_bits(scale.to_bits() ^ (u32::from(bit ^ 1) << 31))
}

/// Packs the signs of `x`: bit `j` of byte `i` says whether element `8 i + j` is not below 0 (zero and NaN count as
/// positive). What the bits do not say stays in `x`, from which `scale` times its sign is taken away.
pub fn pack(cpu: &Cpu, x: &mut [f32], scale: f32, bits: &mut [u8]) {
    assert_eq!(x.len(), BYTE * bits.len(), "sign_bits::pack: one bit for each element");
    let n_tasks = bits.len().div_ceil(TASK_BYTES);
    for_pieces(&cpu.par, n_tasks, (cut(x, TASK_ELEMS), cut(bits, TASK_BYTES)), |_, (x, bits)| {
        pack_task(cpu.isa, x, scale, bits);
    });
}

/// `scale` times the signs from bit `first` on.
pub fn unpack(cpu: &Cpu, bits: &[u8], first: usize, scale: f32, out: &mut [f32]) {
    assert!(first + out.len() <= BYTE * bits.len(), "sign_bits::unpack: one bit for each element");
    cpu.par.chunks_mut(out, TASK_ELEMS, |i, out| {
        let bits = &bits[first / BYTE + i * TASK_BYTES..];
        unpack_task(cpu.isa, bits, first % BYTE, scale, out);
    });
}

/// The sum of the numbers of all ranks, in the order of ranks: those of rank `r` have the scale `scales[r]` and their signs
/// begin at byte `r * stride` of `bits`.
pub fn sum(cpu: &Cpu, bits: &[u8], stride: usize, scales: &[f32], out: &mut [f32]) {
    let n = out.len() / BYTE;
    assert!(out.len() == BYTE * n && n <= stride, "sign_bits::sum: one bit for each element");
    assert!(bits.len() + stride >= scales.len() * stride + n, "sign_bits::sum: the bits of each rank");
    cpu.par.chunks_mut(out, TASK_ELEMS, |i, out| {
        out.fill(0.0);
        for (rank, scale) in scales.iter().enumerate() {
            let own = &bits[rank * stride + i * TASK_BYTES..][..out.len() / BYTE];
            add_task(cpu.isa, own, *scale, out);
        }
    });
}

multiversion! {
    fn pack_task(x: &mut [f32], scale: f32, bits: &mut [u8]) {
        let (eights, _) = x.as_chunks_mut::<BYTE>();
        for (x, byte) in eights.iter_mut().zip(bits) {
            let mut packed = 0;
            for (j, x) in x.iter().enumerate() {
                packed |= u8::from(*x < 0.0) << j;
            }
            for x in x.iter_mut() {
                *x -= if *x < 0.0 { -scale } else { scale };
            }
            // Zero counts as positive, and so does NaN.
            *byte = !packed;
        }
    }
}

multiversion! {
    fn unpack_task(bits: &[u8], first: usize, scale: f32, out: &mut [f32]) {
        let (eights, tail) = out.as_chunks_mut::<BYTE>();
        let n_bytes = eights.len();
        if first == 0 {
            for (out, byte) in eights.iter_mut().zip(bits) {
                for (j, out) in out.iter_mut().enumerate() {
                    *out = value(byte >> j & 1, scale);
                }
            }
        } else {
            // A byte of elements is in two of bits.
            for (out, pair) in eights.iter_mut().zip(bits.windows(2)) {
                let byte = u16::from_le_bytes([pair[0], pair[1]]) >> first;
                for (j, out) in out.iter_mut().enumerate() {
                    *out = value((byte >> j & 1) as u8, scale);
                }
            }
        }
        for (j, out) in tail.iter_mut().enumerate() {
            let at = first + n_bytes * BYTE + j;
            *out = value(bits[at / BYTE] >> (at % BYTE) & 1, scale);
        }
    }
}

multiversion! {
    fn add_task(bits: &[u8], scale: f32, out: &mut [f32]) {
        let (eights, _) = out.as_chunks_mut::<BYTE>();
        for (out, byte) in eights.iter_mut().zip(bits) {
            for (j, out) in out.iter_mut().enumerate() {
                *out += value(byte >> j & 1, scale);
            }
        }
    }
}
