//! Gated linear units against f64 references.

use half::{bf16, f16};
use oarlock_cuda::functions::Activation;
use oarlock_cuda::geometry;
use oarlock_reference::function::Activation as Reference;
use oarlock_reference::gated::{Case, SIZES};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::Float;

const ALL: [(Activation, Reference); 6] = [
    (Activation::Silu, Reference::Silu),
    (Activation::Gelu, Reference::Gelu),
    (Activation::GeluTanh, Reference::GeluTanh),
    (Activation::Relu, Reference::Relu),
    (Activation::Tanh, Reference::Tanh),
    (Activation::Sigmoid, Reference::Sigmoid),
];

/// `n` gates and ups, in rows of `width` with the rest of `stride` between them, or all one after the other.
fn gated<T: Float>(
    library: &Library,
    (act, reference): (Activation, Reference),
    n: usize,
    rows: Option<[usize; 2]>,
) {
    let c = Case::<T>::new(reference, n);
    let [width, stride] = rows.unwrap_or([n, n]);
    let spread = |x: &[T]| -> Vec<T> {
        x.chunks(width).flat_map(|row| row.iter().copied().chain(vec![T::of(9.0); stride - width])).collect()
    };
    // The backward pass gives the output once more, where that is wanted.
    let computes_again = !n.is_multiple_of(77);
    let (y, again, d_gate, d_up) = in_every_order(library, |gpu| {
        let (gate, up, dy) = (gpu.buffer(&spread(&c.gate)), gpu.buffer(&spread(&c.up)), gpu.buffer(&c.dy));
        let nines = vec![T::of(9.0); n / width * stride];
        let (y, again) = (gpu.fresh::<T>(n), gpu.fresh::<T>(n));
        let (d_gate, d_up) = (gpu.buffer(&nines), gpu.buffer(&nines));
        let to: Option<&Buffer<T>> = computes_again.then_some(&again);
        let (grid, count, act) = (geometry::elements(n), n as u64, act as u32);
        let [w, s] = rows.unwrap_or([0, 0]).map(|n| n as u32);
        gpu.run("gated_forward", &[T::ELEMENT], grid, args![act, gate, up, y, count, w, s]);
        gpu.run(
            "gated_backward",
            &[T::ELEMENT],
            grid,
            args![act, gate, up, dy, d_gate, d_up, to, count, w, s],
        );
        let packed = |spread: Vec<T>| -> Vec<T> {
            assert!(
                spread.chunks(stride).all(|row| row[width..].iter().all(|x| x.f64() == 9.0)),
                "between rows"
            );
            spread.chunks(stride).flat_map(|row| row[..width].to_vec()).collect()
        };
        let y = y.read();
        let again = if computes_again { again.read() } else { y.clone() };
        (y, again, packed(d_gate.read()), packed(d_up.read()))
    });
    assert_eq!(y, again, "once more");
    c.check([&y, &d_gate, &d_up]);
}

/// Every kernel of the family; f32 comes first, as planted faults have no other kernels.
pub fn check(library: &Library) {
    for act in ALL {
        SIZES.iter().for_each(|n| gated::<f32>(library, act, *n, None));
    }
    // Gates and ups side by side.
    gated::<f32>(library, ALL[0], 3 * 40, Some([40, 80]));
    gated::<bf16>(library, ALL[0], 4096, None);
    gated::<f16>(library, ALL[2], 77, None);
    gated::<bf16>(library, ALL[0], 5 * 328, Some([328, 656]));
    gated::<f16>(library, ALL[1], 2 * 16, Some([16, 24]));
}

#[test]
fn gated_units_match_the_reference() {
    on_emulator(check);
}
