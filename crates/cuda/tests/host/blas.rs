//! Matrix products against f64.

use std::sync::Arc;

use half::{bf16, f16};
use oarlock_cuda::blas::{Blas, Form, Layout, Operand, Precision, Product, Tuned};
use oarlock_cuda::driver::{DeviceMemory, Stream};
use oarlock_cuda::{Element, Error};
use oarlock_reference::product;

use super::{Machine, download, upload};
use crate::numbers::{Float, Number};

const WORKSPACE: usize = 1 << 16;

/// Sizes and forms of a product.
#[derive(Clone, Copy)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    forms: [Form; 2],
    /// Elements between rows, and rows between matrices, beyond what is needed.
    gaps: usize,
    /// Whether one B serves the whole batch.
    shares_b: bool,
    alpha: f32,
    beta: f32,
    with_c: bool,
    with_bias: bool,
}

const PLAIN: Case = Case {
    m: 5,
    n: 7,
    k: 3,
    batch: 1,
    forms: [Form::AsStored, Form::AsStored],
    gaps: 0,
    shares_b: false,
    alpha: 1.0,
    beta: 0.0,
    with_c: false,
    with_bias: false,
};

fn layout(rows: usize, cols: usize, gaps: usize) -> Layout {
    let row_stride = cols + gaps;
    Layout { rows, cols, row_stride, batch_stride: (rows + gaps) * row_stride }
}

fn stored(rows: usize, cols: usize, form: Form, gaps: usize) -> Layout {
    match form {
        Form::AsStored => layout(rows, cols, gaps),
        Form::Transposed => layout(cols, rows, gaps),
    }
}

/// The same for the reference.
fn of_reference(layout: &Layout, form: Form) -> product::Layout {
    let &Layout { row_stride, batch_stride, .. } = layout;
    product::Layout { row_stride, batch_stride, transposed: form == Form::Transposed }
}

fn compare<T: Float, O: Float>(blas: &Blas, precision: Precision, case: &Case, tolerance: f64) {
    let stream = blas.stream();
    let Case { m, n, k, batch, gaps, alpha, beta, with_c, with_bias, forms, .. } = *case;
    let (a, d) = (stored(m, k, forms[0], gaps), layout(m, n, gaps));
    let mut b = stored(k, n, forms[1], gaps);
    if case.shares_b {
        b.batch_stride = 0;
    }
    let [at_a, at_b] = [of_reference(&a, forms[0]), of_reference(&b, forms[1])];
    let at_d = of_reference(&d, Form::AsStored);
    let of = product::Product { batch, m, n, k, a: at_a, b: at_b, d: at_d, alpha, beta, with_c, with_bias };
    let x = of.operands::<T, O>();
    let [on_a, on_b] = [upload(stream, &x.a), upload(stream, &x.b)];
    let [on_d, on_c, on_bias] = [upload(stream, &x.before), upload(stream, &x.c), upload(stream, &x.bias)];
    let product = Product {
        precision,
        out: O::ELEMENT,
        batch,
        alpha,
        beta,
        a: Operand { memory: on_a.all(), layout: a, form: forms[0] },
        b: Operand { memory: on_b.all(), layout: b, form: forms[1] },
        c: with_c.then_some(on_c.all()),
        d: on_d.all(),
        d_layout: d,
        bias: with_bias.then_some(on_bias.all()),
    };
    blas.multiply(&product).unwrap_or_else(|error| panic!("{error}"));
    of.check(&product.to_string(), &x, &download::<O>(stream, &on_d), tolerance);
}

fn blas(machine: &Machine) -> (Arc<Stream>, Blas) {
    let stream = Arc::new(machine.context(0).stream().expect("a stream"));
    let blas = Blas::new(&stream, &machine.libraries(), WORKSPACE).expect("a library");
    (stream, blas)
}

#[test]
fn products_match_the_reference() {
    let Some(machine) = Machine::new() else { return };
    let (_stream, blas) = blas(&machine);
    assert_eq!(blas.describe(), "cuBLASLt 13.1.0");
    all_products(&blas);
}

#[test]
fn without_the_library_own_kernels_compute() {
    let Some(machine) = Machine::new() else { return };
    std::fs::remove_file(machine.folder().join("libcublasLt.so.13")).expect("a file");
    let context = machine.context(0);
    let stream = Arc::new(context.stream().expect("a stream"));
    let modules = Arc::new(machine.modules(&context));
    let blas = Blas::with_modules(&stream, &machine.libraries(), WORKSPACE, &modules).expect("modules");
    assert!(blas.describe().starts_with("own kernels"), "{}", blas.describe());
    all_products(&blas);
    assert_eq!((blas.n_plans(), modules.counts().compiled), (0, 1));
    let memory = upload(&stream, &[1f32; 64]);
    let wrong = Product { out: Element::F16, ..small(&memory) };
    assert!(matches!(blas.multiply(&wrong), Err(Error::Product { .. })));
}

fn all_products(blas: &Blas) {
    let all_forms = [Form::AsStored, Form::Transposed];
    for forms in all_forms.into_iter().flat_map(|a| all_forms.map(|b| [a, b])) {
        let case = Case { forms, ..PLAIN };
        compare::<f32, f32>(blas, Precision::F32, &case, 1e-5);
        let gapped = Case { gaps: 2, batch: 3, alpha: 0.5, beta: 2.0, ..case };
        compare::<bf16, bf16>(blas, Precision::BF16, &gapped, bf16::ROUNDING);
        compare::<f16, f32>(blas, Precision::F16, &Case { shares_b: true, ..gapped }, 1e-5);
        let added = Case { with_c: true, with_bias: true, ..gapped };
        compare::<bf16, f32>(blas, Precision::BF16, &added, 1e-5);
        compare::<f16, f16>(blas, Precision::F16, &added, f16::ROUNDING);
    }
    compare::<f32, f32>(blas, Precision::TF32, &PLAIN, 1e-2);
    compare::<bf16, bf16>(blas, Precision::BF16, &Case { m: 1, n: 1, k: 1, with_bias: true, ..PLAIN }, 4e-3);
}

#[test]
fn an_algorithm_is_chosen_once_for_a_shape() {
    let Some(machine) = Machine::new() else { return };
    let (_stream, blas) = blas(&machine);
    for _ in 0..3 {
        compare::<f32, f32>(&blas, Precision::F32, &PLAIN, 1e-5);
    }
    assert_eq!((blas.n_plans(), machine.count(2, "fake_choices")), (1, 1));
    let others = [
        Case { m: 6, ..PLAIN },
        Case { gaps: 1, ..PLAIN },
        Case { batch: 2, ..PLAIN },
        Case { forms: [Form::Transposed, Form::AsStored], ..PLAIN },
        Case { with_bias: true, ..PLAIN },
    ];
    for case in &others {
        compare::<f32, f32>(&blas, Precision::F32, case, 1e-5);
    }
    compare::<f32, f32>(&blas, Precision::TF32, &PLAIN, 1e-2);
    // The factors are not part of the choice.
    compare::<f32, f32>(&blas, Precision::F32, &Case { alpha: 3.0, beta: 1.0, ..PLAIN }, 1e-5);
    assert_eq!((blas.n_plans(), machine.count(2, "fake_choices")), (7, 7));
}

/// A product of 2 x 2 matrices of f32 in one memory: A, B, D and then what is left.
fn small(memory: &DeviceMemory) -> Product<'_> {
    let at = |i: usize| memory.slice(i * 16..(i + 1) * 16).expect("a part");
    let layout = Layout::dense(2, 2);
    let operand = |memory| Operand { memory, layout, form: Form::AsStored };
    Product {
        precision: Precision::F32,
        out: Element::F32,
        batch: 1,
        alpha: 1.0,
        beta: 0.0,
        a: operand(at(0)),
        b: operand(at(1)),
        c: None,
        d: at(2),
        d_layout: layout,
        bias: None,
    }
}

#[test]
fn memory_that_is_less_aligned_has_an_algorithm_of_its_own() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let mut held = [1f32; 64];
    held[48..50].fill(5.0);
    let memory = upload(&stream, &held);
    blas.multiply(&small(&memory)).expect("a product");
    let odd = memory.slice(148..164).expect("a part");
    blas.multiply(&Product { d: odd, ..small(&memory) }).expect("a product");
    assert_eq!(download::<f32>(&stream, &memory)[37..41], [2.0; 4]);
    for (start, want) in [(64, 3.0), (192, 7.0), (128, 3.0)] {
        let bias = memory.slice(start..start + 8).expect("a part");
        blas.multiply(&Product { bias: Some(bias), ..small(&memory) }).expect("a product");
        assert_eq!(download::<f32>(&stream, &memory)[8..12], [want; 4], "the bias at {start}");
    }
    // The biases at 64 and 192 are alike.
    assert_eq!(blas.n_plans(), 4);
}

#[test]
fn products_wait_for_what_they_read() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let other = stream.context().stream().expect("a stream");
    let memory = upload(&stream, &[1f32; 64]);
    let ones = memory.slice(0..16).expect("a part");
    for (with_event, want) in [(true, 0.0), (false, 2.0)] {
        stream.write_now(&1f32.to_ne_bytes().repeat(4), ones).expect("a copy");
        other.fill(ones, 0).expect("a fill");
        if with_event {
            stream.wait(&other.mark().expect("an event")).expect("a wait");
        }
        blas.multiply(&small(&memory)).expect("a product");
        assert_eq!(download::<f32>(&stream, &memory)[8..12], [want; 4]);
        other.synchronize().expect("the end of its work");
    }
}

#[test]
fn products_without_a_meaning_are_errors() {
    let Some(machine) = Machine::new() else { return };
    let (stream, blas) = blas(&machine);
    let memory = upload(&stream, &[1f32; 64]);
    let good = small(&memory);
    let dense = Layout::dense;
    let with_a = |layout| Product { a: Operand { layout, ..good.a }, ..good };
    let part = |start: usize, end: usize| memory.slice(start..end).expect("a part");
    let cases = [
        (with_a(dense(2, 3)), "the inner dims 3 and 2 differ"),
        (Product { d_layout: dense(2, 3), ..good }, "the result is [2, 2], and D [2, 3]"),
        (Product { out: Element::F16, ..good }, "can be f32 or f32, not f16"),
        (with_a(Layout { row_stride: 1, ..dense(2, 2) }), "rows of A overlap"),
        (with_a(Layout { row_stride: 3, ..dense(2, 2) }), "A has 16 bytes, too few"),
        (with_a(Layout { row_stride: usize::MAX, ..dense(2, 2) }), "above 2^31 - 1"),
        (Product { batch: 2, ..good }, "A has 16 bytes, too few"),
        (Product { d: part(40, 56), ..good }, ""),
        (Product { d: part(130, 146), ..good }, "does not begin at a multiple of 4 bytes"),
        (Product { d: part(28, 44), ..good }, "D overlaps B"),
        (Product { d: part(8, 24), ..good }, "D overlaps A"),
        (Product { c: Some(part(36, 52)), ..good }, "D overlaps C"),
        (Product { c: Some(part(64, 76)), ..good }, "C has 12 bytes, too few"),
        (Product { bias: Some(part(64, 68)), ..good }, "the bias has 4 bytes, too few"),
        (Product { bias: Some(part(40, 48)), ..good }, "D overlaps bias"),
    ];
    for (product, says) in cases {
        match blas.multiply(&product) {
            Ok(()) => assert_eq!(says, ""),
            Err(error) => {
                let said = error.to_string();
                assert!(matches!(error, Error::Product { .. }) && !says.is_empty(), "{said}");
                assert!(said.contains(says), "{said}, not {says}");
            }
        }
    }
    let apart = Layout { batch_stride: 0, ..dense(2, 2) };
    let shared = Product {
        batch: 2,
        a: Operand { layout: apart, ..good.a },
        b: Operand { layout: apart, ..good.b },
        ..good
    };
    let error = blas.multiply(&Product { d_layout: apart, ..shared }).expect_err("one D for two");
    assert!(error.to_string().contains("matrices of D overlap"), "{error}");
    let empty = Product {
        a: Operand { layout: dense(2, 0), ..good.a },
        b: Operand { layout: dense(0, 2), ..good.b },
        ..good
    };
    let error = blas.multiply(&empty).expect_err("an empty sum");
    assert!(error.to_string().contains("the inner dim is 0"), "{error}");
    blas.multiply(&Product { batch: 0, ..good }).expect("nothing to do");
    let other = upload(&machine.context(1).stream().expect("a stream"), &[0f32; 4]);
    let error = blas.multiply(&Product { d: other.all(), ..good }).expect_err("another GPU's memory");
    assert!(matches!(error, Error::OtherContext { .. }), "{error}");
}

/// Products with a workspace of this size, whose kernels are not kept on disk.
fn uncached(machine: &Machine, workspace_bytes: usize) -> (Arc<Stream>, Blas) {
    let context = machine.context(0);
    let stream = Arc::new(context.stream().expect("a stream"));
    let modules = Arc::new(machine.modules(&context));
    let blas = Blas::with_modules(&stream, &machine.libraries(), workspace_bytes, &modules);
    (stream, blas.expect("a library"))
}

#[test]
fn where_the_library_has_no_algorithm_own_kernels_compute() {
    let Some(machine) = Machine::new() else { return };
    // It has none that makes do with this workspace.
    let (stream, blas) = uncached(&machine, 100);
    all_products(&blas);
    let memory = upload(&stream, &[1f32; 64]);
    blas.multiply(&small(&memory)).expect("own kernels");
    assert!(blas.candidates(&small(&memory), 3).expect("an answer").is_empty());
    assert_eq!((blas.n_plans(), blas.shapes().len()), (0, 0));
    let said = blas.lacks().expect("what it lacks");
    assert!(said.starts_with("23 shapes by own kernels: cuBLASLt 13.1.0 has no algorithm"), "{said}");
    assert!(said.ends_with("with 100 bytes of workspace"), "{said}");
    // A library without code for this GPU says so when it is asked for an algorithm, or not before it should run one.
    for (call, status) in ["cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"]
        .into_iter()
        .flat_map(|call| [(call, 8), (call, 15)])
    {
        let (stream, blas) = uncached(&machine, WORKSPACE);
        let memory = upload(&stream, &[1f32; 64]);
        machine.fail(call, 0, status);
        let before = stream.context().counts().launches;
        for _ in 0..2 {
            blas.multiply(&small(&memory)).unwrap_or_else(|error| panic!("{call} {status}: {error}"));
            assert_eq!(download::<f32>(&stream, &memory)[8..12], [2.0; 4], "{call} {status}");
        }
        assert_eq!(stream.context().counts().launches, before + 2, "{call} {status}");
        // It is asked once for a shape, and goes on computing the others.
        compare::<f32, f32>(&blas, Precision::F32, &PLAIN, 1e-5);
        assert_eq!(blas.n_plans(), 1, "{call} {status}");
        let said = blas.lacks().expect("what it lacks");
        assert!(
            said.starts_with("1 shapes by own kernels: ") && said.contains("1 x [2, 2] [2, 2]"),
            "{said}"
        );
    }
    // What it met while it ran is none of these.
    let (stream, blas) = uncached(&machine, WORKSPACE);
    let memory = upload(&stream, &[1f32; 64]);
    for (call, status) in
        [("cublasLtMatmul", 13), ("cublasLtMatmul", 7), ("cublasLtMatmulAlgoGetHeuristic", 14)]
    {
        machine.fail(call, 0, status);
        let error = blas.multiply(&small(&memory)).expect_err("the planned failure");
        assert!(matches!(error, Error::Blas { call: failed, .. } if failed == call), "{error}");
        let other = Product { alpha: 2.0, ..small(&memory) };
        blas.multiply(&other).unwrap_or_else(|error| panic!("{call} {status}: {error}"));
        assert_eq!(blas.lacks(), None);
        blas.tune(Tuned::default());
    }
}

#[test]
fn where_success_comes_without_an_algorithm_own_kernels_compute() {
    let Some(machine) = Machine::new() else { return };
    // No proposal at all, and proposals of which each says that it cannot run.
    for kind in [1, 2] {
        let (stream, blas) = uncached(&machine, WORKSPACE);
        let memory = upload(&stream, &[1f32; 64]);
        machine.tell(2, "fake_proposals", kind);
        for _ in 0..2 {
            blas.multiply(&small(&memory)).unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert_eq!(download::<f32>(&stream, &memory)[8..12], [2.0; 4], "{kind}");
        }
        assert!(blas.candidates(&small(&memory), 3).expect("an answer").is_empty(), "{kind}");
        let said = blas.lacks().expect("what it lacks");
        assert!(said.starts_with("1 shapes by own kernels: cuBLASLt 13.1.0 has no algorithm"), "{said}");
        // A shape for which it has some is its own.
        machine.tell(2, "fake_proposals", 0);
        compare::<f32, f32>(&blas, Precision::F32, &PLAIN, 1e-5);
        assert_eq!(blas.n_plans(), 1, "{kind}");
    }
}
