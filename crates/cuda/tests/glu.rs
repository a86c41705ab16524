//! Gated linear units against f64 references.

use half::{bf16, f16};
use oarlock_cuda::functions::Activation;
use oarlock_cuda::geometry;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, erf, f64s, values};

const ALL: [Activation; 6] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Tanh,
    Activation::Sigmoid,
];

/// The function at x in f64.
pub fn value(act: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match act {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
    }
}

/// The slope at x, by differences.
pub fn slope(act: Activation, x: f64) -> f64 {
    let h = 1e-5;
    (value(act, x + h) - value(act, x - h)) / (2.0 * h)
}

/// `n` gates and ups, in rows of `width` with the rest of `stride` between them, or all one after the other.
fn gated<T: Float>(library: &Library, act: Activation, n: usize, rows: Option<[usize; 2]>) {
    // No gate is 0, where the slope of ReLU is a matter of taste.
    let gates: Vec<T> = values::<T>(1, n).iter().map(|x| T::of(3.0 * x.f64() + 0.01)).collect();
    let (ups, dys) = (values::<T>(2, n), values::<T>(3, n));
    let [width, stride] = rows.unwrap_or([n, n]);
    let spread = |x: &[T]| -> Vec<T> {
        x.chunks(width).flat_map(|row| row.iter().copied().chain(vec![T::of(9.0); stride - width])).collect()
    };
    // The backward pass gives the output once more, where that is wanted.
    let computes_again = !n.is_multiple_of(77);
    let (y, again, d_gate, d_up) = in_every_order(library, |gpu| {
        let (gate, up, dy) = (gpu.buffer(&spread(&gates)), gpu.buffer(&spread(&ups)), gpu.buffer(&dys));
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
    let (g, u, d) = (f64s(&gates), f64s(&ups), f64s(&dys));
    let each = |f: &dyn Fn(usize) -> f64| (0..n).map(f).collect::<Vec<_>>();
    assert_close("y", &y, &each(&|i| value(act, g[i]) * u[i]), 1e-6 + T::ROUNDING);
    assert_close("d_gate", &d_gate, &each(&|i| d[i] * u[i] * slope(act, g[i])), 1e-5 + T::ROUNDING);
    assert_close("d_up", &d_up, &each(&|i| d[i] * value(act, g[i])), 1e-6 + T::ROUNDING);
}

/// Every kernel of the family; f32 comes first, as planted faults have no other kernels.
pub fn check(library: &Library) {
    for act in ALL {
        gated::<f32>(library, act, 1001, None);
    }
    gated::<f32>(library, Activation::Gelu, 1, None);
    // Gates and ups side by side.
    gated::<f32>(library, Activation::Silu, 3 * 40, Some([40, 80]));
    gated::<bf16>(library, Activation::Silu, 4096, None);
    gated::<f16>(library, Activation::GeluTanh, 77, None);
    gated::<bf16>(library, Activation::Silu, 5 * 328, Some([328, 656]));
    gated::<f16>(library, Activation::Gelu, 2 * 16, Some([16, 24]));
}

#[test]
fn gated_units_match_the_reference() {
    on_emulator(check);
}
