//! Random numbers, bitwise identical to those of the CPU's kernels, and normal ones against f64.

use half::{bf16, f16};
use oarlock_cuda::geometry;
use oarlock_kernels::random::{self, Stream};
use oarlock_kernels::{Cpu, Isa, Par};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Number, assert_close, values};

const STREAM: Stream = Stream { seed: 0x0123_4567_89ab_cdef, stream: 0xfedc_ba98_7654_3210 };

fn cpu() -> Cpu {
    Cpu { isa: Isa::detect(), par: Par::solo() }
}

fn bits(library: &Library, first: u64, n: usize) {
    let Stream { seed, stream } = STREAM;
    let got = in_every_order(library, |gpu| {
        let out = gpu.fresh::<u32>(n);
        gpu.run("random_bits", &[], geometry::elements(n), args![seed, stream, first, out, n as u64]);
        out.read()
    });
    let want = (0..n as u64).map(|i| STREAM.bits(first.wrapping_add(i)));
    assert_eq!(got, want.collect::<Vec<_>>(), "bits from {first} on");
}

/// Of each kind: what the kernel makes, and what the CPU makes.
macro_rules! numbers {
    ($name:ident, $T:ty) => {
        fn $name(library: &Library, first: u64, n: usize) {
            let Stream { seed, stream } = STREAM;
            let (launch, element) = (geometry::elements(n), &[<$T as crate::numbers::Plain>::ELEMENT]);
            let x = values::<$T>(1, n);
            let got = in_every_order(library, |gpu| {
                let out = [0; 3].map(|_| gpu.fresh::<$T>(n));
                let n = n as u64;
                let args = args![seed, stream, first, -0.3f32, 1.7f32, out[0], n];
                gpu.run("fill_uniform", element, launch, args);
                gpu.run("fill_steps", element, launch, args![seed, stream, first, 7f32, out[1], n]);
                gpu.run("fill_normal", element, launch, args![seed, stream, first, 0.5f32, 2f32, out[2], n]);
                let (noisy, kept, dropped) = (gpu.buffer(&x), gpu.buffer(&x), gpu.fresh::<$T>(n as usize));
                gpu.run("add_normal", element, launch, args![seed, stream, first, 0.25f32, noisy, n]);
                let all = 1u64 << 32;
                gpu.run("dropout", element, launch, args![seed, stream, first, all, 1f32, kept, kept, n]);
                let args = args![seed, stream, first, all / 4 * 3, 1.25f32, kept, dropped, n];
                gpu.run("dropout", element, launch, args);
                let [uniform, steps, normal] = out.map(|out| out.read());
                [uniform, steps, normal, noisy.read(), kept.read(), dropped.read()]
            });
            let zero = <$T>::of(0.0);
            let mut want = [(); 3].map(|()| vec![zero; n]);
            random::fill_uniform(&cpu(), STREAM, first, -0.3, 1.7, &mut want[0]);
            random::fill_steps(&cpu(), STREAM, first, 7.0, &mut want[1]);
            random::fill_normal(&cpu(), STREAM, first, 0.5, 2.0, &mut want[2]);
            let mut dropped = x.clone();
            random::dropout(&cpu(), STREAM, first, 0.75, 1.25, &mut dropped);
            for (what, got, want) in [
                ("uniform", &got[0], &want[0]),
                ("steps", &got[1], &want[1]),
                ("normal", &got[2], &want[2]),
                ("all kept", &got[4], &x),
                ("dropped", &got[5], &dropped),
            ] {
                assert_eq!(got, want, "{what} from {first} on");
            }
            // Against f64, by the bits.
            let z = |i: usize| {
                let at = first + i as u64;
                let (group, word, lane) = (at / 64 * 64, at % 64 / 16, at % 16);
                let of = |word: u64| f64::from(STREAM.bits(group + 16 * word + lane));
                let radius = (-2.0 * (((of(word / 2 * 2) / 2.0).floor() + 0.5) / 2f64.powi(31)).ln()).sqrt();
                let (sin, cos) = (of(word / 2 * 2 + 1) / 2f64.powi(32) * std::f64::consts::TAU).sin_cos();
                radius * if word % 2 == 0 { cos } else { sin }
            };
            let normal: Vec<f64> = (0..n).map(|i| 0.5 + 2.0 * z(i)).collect();
            let noisy: Vec<f64> = (0..n).map(|i| x[i].f64() + 0.25 * z(i)).collect();
            assert_close("normal", &got[2], &normal, 1e-6 + <$T>::ROUNDING);
            assert_close("noisy", &got[3], &noisy, 1e-6 + <$T>::ROUNDING);
        }
    };
}
numbers!(words, f32);
numbers!(brains, bf16);
numbers!(halves, f16);

/// Every kernel of the family.
pub fn check(library: &Library) {
    bits(library, 0, 200);
    bits(library, (1 << 33) + 37, 91);
    // Elements begin again behind the last one.
    bits(library, u64::MAX - 70, 100);
    words(library, 5, 333);
    words(library, 1 << 40, 64);
    brains(library, 63, 70);
    halves(library, 100, 1);
}

#[test]
fn numbers_are_those_of_the_cpu() {
    on_emulator(check);
}
