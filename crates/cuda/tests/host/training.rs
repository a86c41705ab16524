//! A step of training end to end, through modules, launches and products, against f64.

use std::sync::Arc;

use oarlock_cuda::Pieces;
use oarlock_cuda::blas::{Blas, Form, Layout, Operand, Precision, Product};
use oarlock_cuda::driver::{Arg, DeviceMemory};
use oarlock_cuda::geometry::{self, Geometry};
use oarlock_cuda::modules::Modules;
use oarlock_cuda::{Element, table};
use oarlock_reference::formula::with_gradients;
use oarlock_reference::norm::rms_norm;
use oarlock_reference::optimizer::{self, Rule, Weight};

use super::{Machine, arg, download, fresh, upload};
use crate::numbers::{assert_close, f64s, values};

const ROWS: usize = 6;
const DIM: usize = 40;
const OUT: usize = 24;
const EPS: f64 = 1e-5;
const LR: f64 = 0.01;

/// Launches and products of one GPU.
struct Gpu {
    modules: Modules,
    blas: Blas,
}

impl Gpu {
    fn run(&self, op: &str, dtypes: &[Element], geometry: Geometry, args: &[Arg<'_>]) {
        let instance = table::find(op).and_then(|kernel| kernel.instance(dtypes, None)).expect("an instance");
        let function = self.modules.function(&instance).expect("a function");
        // SAFETY: the memory of each argument has the elements of the shapes above.
        unsafe { self.blas.stream().launch(&function, geometry, args) }
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// `d = op(a) op(b)`.
    fn multiply(
        &self,
        a: (&DeviceMemory, Layout, Form),
        b: (&DeviceMemory, Layout, Form),
        d: (&DeviceMemory, Layout),
    ) {
        let operand =
            |(memory, layout, form): (&'_ DeviceMemory, Layout, Form)| (memory.address(), layout, form);
        assert_ne!(operand(a).0, operand(b).0);
        let product = Product {
            precision: Precision::F32,
            out: Element::F32,
            batch: 1,
            alpha: 1.0,
            beta: 0.0,
            a: Operand { memory: a.0.all(), layout: a.1, form: a.2 },
            b: Operand { memory: b.0.all(), layout: b.1, form: b.2 },
            c: None,
            d: d.0.all(),
            d_layout: d.1,
            bias: None,
        };
        self.blas.multiply(&product).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Weights and gain after the first step of AdamW on `sum(dy * (norm(x) W))`, in f64.
fn reference(x: Vec<f64>, gain: Vec<f64>, w: Vec<f64>, dy: &[f64]) -> [Vec<f64>; 2] {
    let inputs = [(&[ROWS, DIM][..], x), (&[DIM], gain.clone()), (&[DIM, OUT], w.clone())];
    let (_, [_, d_gain, dw]) =
        with_gradients(inputs, dy, |[x, gain, w]| rms_norm(x, gain, 0.0, EPS).product(w));
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let args = optimizer::Args { step: 1, lr: LR, weight_decay: 0.1, grad_scale: 1.0 };
    [(w, dw), (gain, d_gain)].map(|(weight, grad)| {
        let mut weight = Weight::new(vec![weight.len()], weight);
        optimizer::step(&rule, &args, &mut weight, &grad);
        weight.values
    })
}

#[test]
fn a_step_of_training_matches_the_reference() {
    use Element::F32;
    let Some(machine) = Machine::new() else { return };
    let context = machine.context(0);
    let stream = Arc::new(context.stream().expect("a stream"));
    let blas = Blas::new(&stream, &machine.libraries(), 1 << 16).expect("a library");
    let gpu = Gpu { modules: machine.modules(&context), blas };
    let [x, gain, w, dy] =
        [(1, ROWS * DIM), (2, DIM), (3, DIM * OUT), (4, ROWS * OUT)].map(|(s, n)| values::<f32>(s, n));
    let want = reference(f64s(&x), f64s(&gain), f64s(&w), &f64s(&dy));
    let [x, gain, w, dy] = [&x, &gain, &w, &dy].map(|values| upload(&stream, values));
    let new = |n: usize| fresh::<f32>(&stream, n);
    let (h, rstd, y) = (new(ROWS * DIM), new(ROWS), new(ROWS * OUT));
    let (rows, dim) = (Arg::u32(ROWS as u32), Arg::u32(DIM as u32));
    let (zero, eps) = (Arg::f32(0.0), Arg::f32(EPS as f32));
    let norm = [arg::<f32>(&x), arg::<f32>(&gain), zero, eps, arg::<f32>(&h), arg::<f32>(&rstd), rows, dim];
    gpu.run("rms_norm_forward", &[F32; 3], geometry::rows(ROWS, DIM), &norm);
    let (on_h, on_w, on_y) = (Layout::dense(ROWS, DIM), Layout::dense(DIM, OUT), Layout::dense(ROWS, OUT));
    gpu.multiply((&h, on_h, Form::AsStored), (&w, on_w, Form::AsStored), (&y, on_y));
    let (dw, dh) = (new(DIM * OUT), new(ROWS * DIM));
    gpu.multiply((&h, on_h, Form::Transposed), (&dy, on_y, Form::AsStored), (&dw, on_w));
    gpu.multiply((&dy, on_y, Form::AsStored), (&w, on_w, Form::Transposed), (&dh, on_h));
    let (dx, partials) = (new(ROWS * DIM), new(geometry::norm_partials(ROWS) * DIM));
    let backward = [
        arg::<f32>(&x),
        arg::<f32>(&gain),
        zero,
        arg::<f32>(&rstd),
        arg::<f32>(&dh),
        arg::<f32>(&dx),
        Arg::null(F32),
        Arg::null(F32),
        Arg::u32(0),
        arg::<f32>(&partials),
        rows,
        dim,
    ];
    gpu.run("rms_norm_backward", &[F32; 3], geometry::norm_backward(ROWS, DIM, 1), &backward);
    assert_eq!(geometry::norm_partials(ROWS), 1, "the partial sums are the gradient");
    for (weights, grad, n) in [(&w, &dw, DIM * OUT), (&gain, &partials, DIM)] {
        let (first, second) = (new(n), new(n));
        stream.fill(first.all(), 0).expect("a fill");
        stream.fill(second.all(), 0).expect("a fill");
        let numbers = [1.0, 0.1, 1.0 - LR * 0.1, 0.1, 0.95, 0.05, 0.05f64.sqrt(), 1e-8, LR / 0.1];
        let [scale, decay, keep, beta1_rest, beta2, beta2_rest, root, eps, size] =
            numbers.map(|number| Arg::f32(number as f32));
        let mut piece = Pieces::new();
        let [w, m, v, g] = [weights, &first, &second, grad].map(|memory| Some(memory.all()));
        assert!(piece.push(n, [w, m, v, g, None]));
        let (all, decoupled) = (Arg::pieces(&piece), Arg::u32(1));
        let args = [all, decoupled, scale, decay, keep, beta1_rest, beta2, beta2_rest, root, eps, size];
        gpu.run("adam", &[F32], geometry::pieces(&piece), &args);
    }
    let [new_w, new_gain] = want;
    assert_close("the weights", &download::<f32>(&stream, &w), &new_w, 2e-5);
    assert_close("the gain", &download::<f32>(&stream, &gain), &new_gain, 2e-5);
    assert_eq!(gpu.modules.counts().compiled, 2);
}
