//! Losses of two tensors against f64, and their gradients against differences.

use half::{bf16, f16};
use oarlock_cuda::functions::PairLoss;
use oarlock_cuda::geometry;
use oarlock_reference::pair::{Case, PairLoss as Reference};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::Float;

const BETA: f32 = 0.7;
const FACTOR: f32 = 1.5;
const SCALE: f32 = 0.25;

fn reference(kind: PairLoss) -> Reference {
    match kind {
        PairLoss::Squared => Reference::Squared,
        PairLoss::Absolute => Reference::Absolute,
        PairLoss::Smooth => Reference::Smooth { beta: f64::from(BETA), factor: f64::from(FACTOR) },
        PairLoss::Binary => Reference::Binary,
        PairLoss::KlProbs => Reference::KlProbs,
        PairLoss::KlLogProbs => Reference::KlLogProbs,
    }
}

fn loss<T: Float>(library: &Library, kind: PairLoss, n: usize) {
    let c = Case::<T>::new(reference(kind), n);
    let n_blocks = n.div_ceil(geometry::NORM_BLOCK);
    let (blocks, each, grads) = in_every_order(library, |gpu| {
        let (x, t, blocks, each) =
            (gpu.buffer(&c.x), gpu.buffer(&c.target), gpu.fresh::<f64>(n_blocks), gpu.fresh::<T>(n));
        let (number, dtype, launch) = (kind as u32, &[T::ELEMENT], geometry::elements(n));
        let args = args![number, BETA, FACTOR, x, t, blocks, n as u64];
        gpu.run("pair_loss_sum", dtype, geometry::squared_norm(n), args);
        gpu.run("pair_loss_each", dtype, launch, args![number, BETA, FACTOR, x, t, each, n as u64]);
        let grads = ["pair_loss_input_grad", "pair_loss_target_grad"].map(|op| {
            let out = gpu.fresh::<T>(n);
            let upstream = gpu.buffer(&[2.0f32]);
            gpu.run(
                op,
                dtype,
                launch,
                args![number, BETA, FACTOR, SCALE / 2.0, upstream, x, t, out, n as u64],
            );
            out.read()
        });
        (blocks.read(), each.read(), grads)
    });
    c.check_sum(blocks.iter().sum());
    c.check_each(&each);
    c.check_gradients([&grads[0], &grads[1]], f64::from(SCALE));
}

/// What formulas say at their ends.
fn ends(library: &Library) {
    let (x, t) = ([0f32, 1.0, 0.0], [0f32, 1.0, 1.0]);
    let (binary, slopes, kl, flat) = in_every_order(library, |gpu| {
        let (x, t) = (gpu.buffer(&x), gpu.buffer(&t));
        let dtype = &[oarlock_cuda::Element::F32];
        let run = |op: &str, kind: PairLoss, scale: Option<f32>| {
            let (out, launch, kind) = (gpu.fresh::<f32>(3), geometry::elements(3), kind as u32);
            match scale {
                None => gpu.run(op, dtype, launch, args![kind, BETA, FACTOR, x, t, out, 3u64]),
                Some(scale) => {
                    let none = None::<&Buffer<f32>>;
                    gpu.run(op, dtype, launch, args![kind, BETA, FACTOR, scale, none, x, t, out, 3u64]);
                }
            }
            out.read()
        };
        (
            run("pair_loss_each", PairLoss::Binary, None),
            run("pair_loss_input_grad", PairLoss::Binary, Some(1.0)),
            run("pair_loss_each", PairLoss::KlProbs, None),
            run("pair_loss_input_grad", PairLoss::Absolute, Some(1.0)),
        )
    });
    assert_eq!(binary, [0.0, 0.0, 100.0]);
    assert_eq!(slopes, [0.0, 0.0, -1e12]);
    assert_eq!((kl[0], flat), (0.0, vec![0.0, 0.0, -1.0]));
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    use PairLoss::*;
    for kind in [Squared, Absolute, Smooth, Binary, KlProbs, KlLogProbs] {
        loss::<f32>(library, kind, 77);
    }
    ends(library);
    loss::<f32>(library, Squared, 4100);
    loss::<bf16>(library, Squared, 64);
    loss::<f16>(library, KlProbs, 9);
}

#[test]
fn losses_match_the_reference() {
    on_emulator(check);
}
